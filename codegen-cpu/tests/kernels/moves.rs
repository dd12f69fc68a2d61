//! Kernels that move rows.

use crate::support::*;
use codegen_cpu::{
    InstructionSet,
    kernels::{
        kv::{BLOCK_TOKENS, Kv},
        reference,
    },
};
use proptest::prelude::*;
use tensor::{DType, Layout};

const FLOATS: [DType; 2] = [DType::F32, DType::BF16];

proptest! {
    #![proptest_config(cases(48))]

    #[test]
    fn embeddings_come_from_any_layout(
        ids in prop::collection::vec(-2..140i32, 1..6),
        (vocab, n) in (1..140usize, 1..70usize),
        threads in 1..=3usize,
        seed in any::<u64>(),
    ) {
        for (w, out) in FLOATS.iter().flat_map(|&a| FLOATS.map(|b| (a, b))) {
            let mut table = rounded(w, &noise(seed, vocab * n));
            // Far from the others, for compact tables.
            table.iter_mut().step_by(41).for_each(|x| *x *= 2f32.powi(30));
            let want = rounded(out, &reference::embed(&table, &ids, n));
            let mut stored = vec![("nd", encode(w, &table)), ("panels", panels(w, &table, vocab, n))];
            if w == DType::BF16 {
                let (rows, cols) = (vocab as u64, n as u64);
                let compact = compiler::arrange(&stored[0].1, rows, cols, w, Layout::Compact);
                stored.push(("compact", compact));
            }
            for (layout, bytes) in stored {
                for set in InstructionSet::available() {
                    let mut buffers =
                        vec![bytes_of_i32(&ids), bytes.clone(), unwritten(out, ids.len() * n)];
                    let name = format!("embed_{layout}_{w}_{out}");
                    run(set, threads, &name, &mut buffers, &ints([ids.len(), vocab, n, n]));
                    prop_assert_eq!(&decode(out, &buffers[2]), &want, "{} {}", set, name);
                }
            }
        }
    }

    #[test]
    fn rows_are_gathered_stored_and_copied(
        indices in prop::collection::vec(-2..12i32, 1..6),
        (rows, n, pad) in (1..10usize, 1..140usize, 0..5usize),
        threads in 1..=3usize,
        seed in any::<u64>(),
    ) {
        let stride = n + pad;
        for t in FLOATS {
            let x = rounded(t, &noise(seed, rows * n));
            let source = encode(t, &spread(&x, n, stride));
            let gathered_rows = reference::gather_rows(&x, &indices, n);
            for set in InstructionSet::available() {
                let m = indices.len();
                let mut buffers =
                    vec![source.clone(), bytes_of_i32(&indices), unwritten(t, m * stride)];
                let scalars = ints([m, rows, n, stride, stride]);
                run(set, threads, &format!("gather_rows_{t}"), &mut buffers, &scalars);
                let got = gathered(&decode(t, &buffers[2]), n, stride);
                prop_assert_eq!(&got, &gathered_rows);

                let mut buffers = vec![source.clone(), unwritten(t, (rows + 1) * n)];
                let scalars = ints([rows, n, stride]);
                run(set, threads, &format!("store_rows_{t}"), &mut buffers, &scalars);
                let got = decode(t, &buffers[1]);
                prop_assert_eq!(&got[..rows * n], &x[..]);
                prop_assert!(got[rows * n..].iter().all(|v| v.is_nan()), "wrote past the rows");

                let mut buffers = vec![source.clone(), unwritten(t, rows * stride)];
                let scalars = ints([rows, n, stride, stride]);
                run(set, threads, &format!("copy_{t}"), &mut buffers, &scalars);
                prop_assert_eq!(&gathered(&decode(t, &buffers[1]), n, stride), &x);
            }
        }
    }

    #[test]
    fn runs_are_joined_and_cut(
        widths in prop::collection::vec(1..40usize, 1..5),
        (rows, groups, pad) in (1..5usize, 1..5usize, 0..4usize),
        threads in 1..=3usize,
        seed in any::<u64>(),
    ) {
        let width: usize = widths.iter().sum();
        for t in FLOATS {
            let whole = rounded(t, &noise(seed, rows * groups * width));
            let (mut start, mut parts) = (0, Vec::new());
            for &n in &widths {
                let part: Vec<f32> =
                    whole.chunks(width).flat_map(|run| run[start..start + n].to_vec()).collect();
                parts.push((start, n, part));
                start += n;
            }
            for set in InstructionSet::available() {
                let stride = |n: usize| groups * n + pad;
                let strided =
                    |x: &[f32], n: usize| encode(t, &spread(x, groups * n, stride(n)));
                let mut buffers: Vec<_> =
                    parts.iter().map(|(_, n, part)| strided(part, *n)).collect();
                buffers.push(unwritten(t, rows * stride(width)));
                let mut scalars = ints([rows, groups, stride(width), parts.len()]);
                scalars.extend(widths.iter().flat_map(|&n| ints([n, stride(n)])));
                run(set, threads, &format!("concat_{t}"), &mut buffers, &scalars);
                let got = decode(t, buffers.last().unwrap());
                prop_assert_eq!(&gathered(&got, groups * width, stride(width)), &whole);

                for (start, n, part) in &parts {
                    let mut buffers =
                        vec![strided(&whole, width), unwritten(t, rows * stride(*n))];
                    let scalars =
                        ints([rows, groups, width, *start, *n, stride(width), stride(*n)]);
                    run(set, threads, &format!("slice_{t}"), &mut buffers, &scalars);
                    let got = gathered(&decode(t, &buffers[1]), groups * n, stride(*n));
                    prop_assert_eq!(&got, part);
                }
            }
        }
    }

    #[test]
    fn keys_and_values_go_to_their_slots(
        slots in prop::collection::vec(-1..(3 * BLOCK_TOKENS as i32 + 2), 1..8),
        (heads, half) in (1..4usize, 1..40usize),
        threads in 1..=3usize,
        seed in any::<u64>(),
    ) {
        let d = 2 * half;
        let width = heads * d;
        for t in FLOATS {
            let kv = Kv { heads, d, group: if t == DType::BF16 { 2 } else { 1 } };
            let k = noise(seed, slots.len() * width);
            let v = noise(seed ^ 1, slots.len() * width);
            let before = rounded(t, &noise(seed ^ 2, 3 * kv.block_len()));
            let mut want = before.clone();
            reference::kv_write(&k, &v, &slots, kv, &mut want);
            let want = rounded(t, &want);
            for set in InstructionSet::available() {
                let mut buffers = vec![
                    encode(DType::F32, &k),
                    encode(DType::F32, &v),
                    bytes_of_i32(&slots),
                    encode(t, &before),
                ];
                let scalars = ints([slots.len(), heads, d, BLOCK_TOKENS, width, width]);
                run(set, threads, &format!("kv_write_{t}"), &mut buffers, &scalars);
                prop_assert_eq!(&decode(t, &buffers[3]), &want, "{} {}", set, t);
            }
        }
    }

    #[test]
    fn codes_of_keys_and_values_go_to_their_slots(
        slots in prop::collection::vec(-1..(3 * BLOCK_TOKENS as i32 + 2), 1..8),
        (heads, quarter) in (1..4usize, 1..20usize),
        threads in 1..=3usize,
        seed in any::<u64>(),
    ) {
        let d = 4 * quarter;
        let (width, kv) = (heads * d, Kv { heads, d, group: 4 });
        let mut k = noise(seed, slots.len() * width);
        k[..d].fill(0.0);
        let v = noise(seed ^ 1, slots.len() * width);
        let before: Vec<u8> = (0..3 * kv.block_len()).map(|i| i as u8).collect();
        let mut want = before.clone();
        reference::kv_write_codes(&k, &v, &slots, kv, &mut want);
        for set in InstructionSet::available() {
            let (k, v) = (encode(DType::F32, &k), encode(DType::F32, &v));
            let mut buffers = vec![k, v, bytes_of_i32(&slots), before.clone()];
            let scalars = ints([slots.len(), heads, d, BLOCK_TOKENS, width, width]);
            run(set, threads, "kv_write_i8", &mut buffers, &scalars);
            prop_assert!(buffers[3] == want, "{}", set);
        }
    }

    #[test]
    fn rows_go_to_their_slots_of_a_paged_memory(
        slots in prop::collection::vec(-1..(3 * BLOCK_TOKENS as i32 + 2), 1..20),
        (n, pad) in (1..140usize, 0..5usize),
        threads in 1..=3usize,
        seed in any::<u64>(),
    ) {
        let stride = n + pad;
        let x = noise(seed, slots.len() * n);
        for t in FLOATS {
            let before = rounded(t, &noise(seed ^ 1, 3 * BLOCK_TOKENS * n));
            let mut want = before.clone();
            reference::paged_write(&x, &slots, n, &mut want);
            let want = rounded(t, &want);
            for set in InstructionSet::available() {
                let mut buffers = vec![
                    encode(DType::F32, &spread(&x, n, stride)),
                    bytes_of_i32(&slots),
                    encode(t, &before),
                ];
                let scalars = ints([slots.len(), n, BLOCK_TOKENS, stride]);
                run(set, threads, &format!("paged_write_{t}"), &mut buffers, &scalars);
                prop_assert_eq!(&decode(t, &buffers[2]), &want, "{} {}", set, t);
            }
        }
    }
}
