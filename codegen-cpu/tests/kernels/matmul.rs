//! Matrix products.

use crate::support::*;
use codegen_cpu::{InstructionSet, kernels::reference};
use proptest::prelude::*;
use tensor::{DType, Layout};

/// A product: weights as `[n,k]`, whatever the epilogue makes of them.
#[derive(Clone, Debug)]
struct Case {
    t: usize,
    n: usize,
    k: usize,
    w: DType,
    /// Whether weights of bf16 are compact.
    compact: bool,
    out: DType,
    x_pad: usize,
    out_pad: usize,
    seed: u64,
}

fn float() -> impl Strategy<Value = DType> {
    prop_oneof![Just(DType::F32), Just(DType::BF16)]
}

fn case() -> impl Strategy<Value = Case> {
    // Rows straddle one, two and more tiles, those of AMX included; outputs one to three panels; K
    // the steps of 32 and the blocks of 128 groups, odd lengths included.
    let t = prop_oneof![4 => 1..=26usize, 1 => 30..=35usize, 1 => 63..=66usize];
    // The last straddles the block that more than two tiles share.
    let k = prop_oneof![
        1..40usize,
        60..70usize,
        120..140usize,
        250..300usize,
        500..530usize,
        1018..1034usize,
    ];
    let types = (float(), float(), any::<bool>());
    ((t, 1..=150usize, k), types, (0..9usize, 0..9usize), any::<u64>()).prop_map(
        |((t, n, k), (w, out, compact), (x_pad, out_pad), seed)| Case {
            t,
            n,
            k,
            w,
            compact: compact && w == DType::BF16,
            out,
            x_pad,
            out_pad,
            seed,
        },
    )
}

impl Case {
    fn x(&self) -> Vec<f32> {
        rounded(self.w, &noise(self.seed, self.t * self.k))
    }

    /// Compact ones have some that are far larger and far smaller than the others.
    fn weight(&self, n: usize) -> Vec<f32> {
        let mut weight = rounded(self.w, &noise(self.seed ^ 0x5eed, n * self.k));
        let far = (self.seed % 3) as usize;
        for (i, w) in weight.iter_mut().enumerate().filter(|_| self.compact && far > 0) {
            match i % (60 * far + 1) {
                5 => *w *= 2f32.powi(20),
                9 => *w *= 2f32.powi(-30),
                13 => *w = 0.0,
                _ => {}
            }
        }
        weight
    }

    /// A weight of `n` outputs as kernels read it.
    fn packed(&self, w: &[f32], n: usize) -> Vec<u8> {
        if self.compact {
            let (n, k, bytes) = (n as u64, self.k as u64, encode(DType::BF16, w));
            return compiler::arrange(&bytes, n, k, DType::BF16, Layout::Compact);
        }
        panels(self.w, w, n, self.k)
    }

    /// What kernels call its type.
    fn stored(&self) -> &'static str {
        if self.compact { "compact" } else { self.w.name() }
    }

    /// Multiplies rows of `x`, which are dense; returns dense rows of `n` outputs. A gate makes them
    /// of pairs.
    fn product(
        &self,
        (set, threads): (InstructionSet, usize),
        x: &[f32],
        weight: &[u8],
        bias: Option<&[f32]>,
        gate: bool,
    ) -> Vec<f32> {
        let (t, x_stride, out_stride) =
            (x.len() / self.k, self.k + self.x_pad, self.n + self.out_pad);
        let mut buffers = vec![encode(self.w, &spread(x, self.k, x_stride)), weight.to_vec()];
        buffers.extend(bias.map(|b| encode(DType::F32, b)));
        buffers.push(unwritten(self.out, t * out_stride));
        let mut name = format!("matmul_{}_{}", self.stored(), self.out);
        let outputs = if gate { 2 * self.n } else { self.n };
        let mut scalars = ints([t, outputs, self.k, x_stride, out_stride]);
        let end = End { bias: bias.map_or(0, |_| 1), gate: usize::from(gate), ..End::default() };
        if end.bias + end.gate > 0 {
            name = format!("linear_{name}");
            scalars.extend(end.scalars());
        }
        run(set, threads, &name, &mut buffers, &scalars);
        let out = decode(self.out, buffers.last().unwrap());
        gathered(&out, self.n, out_stride)
    }

    /// A bound on the error of a sum over K in `f32`: one unit for each step of the sum of the
    /// sizes of the products, and the rounding of the result.
    fn bounds(&self, x: &[f32], w: &[f32], n: usize) -> Vec<f64> {
        let abs = |v: &[f32]| v.iter().map(|v| v.abs()).collect::<Vec<_>>();
        let sizes = reference::matmul(&abs(x), &abs(w), n, self.k);
        sizes.iter().map(|s| s * (self.k as f64 + 4.0) * 2f64.powi(-24) + 1e-30).collect()
    }
}

/// `n` rows of gates and of ups, interleaved in blocks of 32.
fn interleaved(gate: &[f32], up: &[f32], k: usize) -> Vec<f32> {
    gate.chunks(32 * k).zip(up.chunks(32 * k)).flat_map(|(g, u)| [g, u].concat()).collect()
}

proptest! {
    #![proptest_config(cases(96))]

    #[test]
    fn products_match_the_reference(case in case(), threads in 1..=3usize, bias in any::<bool>()) {
        let (x, w) = (case.x(), case.weight(case.n));
        let bias = bias.then(|| noise(case.seed ^ 0xb1a5, case.n));
        let mut want = reference::matmul(&x, &w, case.n, case.k);
        if let Some(bias) = &bias {
            for (i, v) in want.iter_mut().enumerate() {
                *v += f64::from(bias[i % case.n]);
            }
        }
        let bounds = case.bounds(&x, &w, case.n);
        let packed = case.packed(&w, case.n);
        for set in InstructionSet::available() {
            let got = case.product((set, threads), &x, &packed, bias.as_deref(), false);
            let error = worst(&got, &want, |i, v| bounds[i] + v.abs() * unit(case.out));
            prop_assert!(error <= 1.0, "{set}: {error} of the bound");
        }
    }

    #[test]
    fn gate_and_up_match_the_reference(case in case(), threads in 1..=3usize) {
        let case = Case { n: case.n.div_ceil(32) * 32, ..case };
        let (x, gate) = (case.x(), case.weight(case.n));
        let up = rounded(case.w, &noise(case.seed ^ 0xabcd, case.n * case.k));
        let gates = reference::matmul(&x, &gate, case.n, case.k);
        let ups = reference::matmul(&x, &up, case.n, case.k);
        let want: Vec<f64> =
            gates.iter().zip(&ups).map(|(&g, u)| reference::silu(g) * u).collect();
        let (gate_bounds, up_bounds) =
            (case.bounds(&x, &gate, case.n), case.bounds(&x, &up, case.n));
        let both = interleaved(&gate, &up, case.k);
        let packed = case.packed(&both, 2 * case.n);
        for set in InstructionSet::available() {
            let got = case.product((set, threads), &x, &packed, None, true);
            // |silu'| < 1.1 and |silu(g)| <= |g|; the exponential adds a few units.
            let error = worst(&got, &want, |i, v| {
                1.1 * gate_bounds[i] * (ups[i].abs() + up_bounds[i])
                    + gates[i].abs() * up_bounds[i]
                    + v.abs() * (unit(case.out) + 1e-6)
                    + 1e-30
            });
            prop_assert!(error <= 1.0, "{set}: {error} of the bound");
        }
    }

    #[test]
    fn logits_and_their_largest(case in case(), threads in 1..=3usize, equal in any::<bool>()) {
        let x = case.x();
        let mut w = case.weight(case.n);
        if equal {
            // All outputs equal: the smallest index wins.
            let row = w[..case.k].to_vec();
            w.chunks_mut(case.k).for_each(|r| r.copy_from_slice(&row));
        }
        let want = reference::matmul(&x, &w, case.n, case.k);
        let bounds = case.bounds(&x, &w, case.n);
        let packed = case.packed(&w, case.n);
        for set in InstructionSet::available() {
            let mut buffers = vec![
                encode(case.w, &x),
                packed.clone(),
                unwritten(DType::F32, case.t * case.n),
                bytes_of_i32(&vec![-1; case.t]),
                vec![0xff; 8 * case.t * case.n.div_ceil(64)],
            ];
            let mut scalars = ints([case.t, case.n, case.k, case.k, case.n]);
            scalars.extend(End { argmax: true, ..End::default() }.scalars());
            let name = format!("linear_matmul_{}_f32", case.stored());
            run(set, threads, &name, &mut buffers, &scalars);
            let logits = decode(DType::F32, &buffers[2]);
            let error = worst(&logits, &want, |i, _| bounds[i]);
            prop_assert!(error <= 1.0, "{set}: {error} of the bound");
            let best: Vec<i32> =
                logits.chunks(case.n).map(|row| reference::argmax(row) as i32).collect();
            prop_assert_eq!(to_i32(&buffers[3]), best);
        }
    }

    /// What is compact is put together exactly.
    #[test]
    fn compact_weights_give_the_bits_of_panels(case in case(), threads in 1..=3usize) {
        let compact = Case { w: DType::BF16, compact: true, ..case };
        let plain = Case { compact: false, ..compact.clone() };
        let (x, w) = (compact.x(), compact.weight(compact.n));
        let (packed, panels) = (compact.packed(&w, compact.n), plain.packed(&w, compact.n));
        for set in InstructionSet::available() {
            let got = compact.product((set, threads), &x, &packed, None, false);
            let want = plain.product((set, threads), &x, &panels, None, false);
            let bits = |v: &[f32]| v.iter().map(|v| v.to_bits()).collect::<Vec<_>>();
            prop_assert_eq!(bits(&got), bits(&want), "{}", set);
        }
    }

    /// A row's bits depend on nothing but the row.
    #[test]
    fn a_row_is_the_same_in_every_call(case in case(), threads in 1..=4usize) {
        let (x, w) = (case.x(), case.weight(case.n));
        let packed = case.packed(&w, case.n);
        for set in InstructionSet::available() {
            let together = case.product((set, threads), &x, &packed, None, false);
            for (x, together) in x.chunks(case.k).zip(together.chunks(case.n)) {
                let alone = case.product((set, 1), x, &packed, None, false);
                let bits = |v: &[f32]| v.iter().map(|v| v.to_bits()).collect::<Vec<_>>();
                prop_assert_eq!(bits(together), bits(&alone), "{}", set);
            }
        }
    }
}

/// One output as the definition of `tdpbf16ps` has it, 16 pairs at a time, for normal numbers.
fn amx_sum(x: &[f32], w: &[f32]) -> f32 {
    x.chunks(32).zip(w.chunks(32)).fold(0.0, |sum, (x, w)| {
        let apart = |odd: usize| {
            let products = x.iter().zip(w).skip(odd).step_by(2);
            products.fold(0.0f32, |sum, (&x, &w)| x.mul_add(w, sum))
        };
        sum + (apart(0) + apart(1))
    })
}

#[test]
fn amx_sums_are_those_of_its_definition_at_every_edge() {
    let set = InstructionSet::Avx512Amx;
    if !InstructionSet::available().contains(&set) {
        return;
    }
    // Panels: one less an output, one more, many. K: parts of a step, whole steps, many. Rows: tiles that are full, short, or
    // an odd number.
    for n in [63, 64, 65, 700] {
        for k in [1, 2, 30, 31, 32, 34, 62, 64, 66, 512, 513, 544, 1100] {
            for (t, threads) in
                [(1, 1), (1, 2), (15, 1), (16, 2), (17, 1), (31, 1), (33, 2), (65, 1), (130, 2)]
            {
                let (w_type, seed) = (DType::BF16, (n * k + t) as u64);
                let (out, compact) = (DType::F32, false);
                let case = Case { t, n, k, w: w_type, compact, out, x_pad: 3, out_pad: 1, seed };
                let (x, w) = (case.x(), case.weight(n));
                let packed = case.packed(&w, n);
                let got = case.product((set, threads), &x, &packed, None, false);
                let compact = Case { compact: true, ..case };
                let packed = compact.packed(&w, n);
                assert!(compact.product((set, threads), &x, &packed, None, false) == got);
                for (i, &got) in got.iter().enumerate().step_by(37) {
                    let (row, output) = (i / n, i % n);
                    let want = amx_sum(&x[row * k..][..k], &w[output * k..][..k]);
                    assert_eq!(
                        got.to_bits(),
                        want.to_bits(),
                        "T {t} N {n} K {k}, row {row} output {output}: {got} for {want}"
                    );
                }
            }
        }
    }
}

/// Inputs that do not all stay in the second-level cache: sums wait for their next block, an odd number of tiles or of
/// chunks of rows included.
#[test]
fn amx_sums_that_wait_are_those_of_a_tile_of_rows() {
    let set = InstructionSet::Avx512Amx;
    if !InstructionSet::available().contains(&set) {
        return;
    }
    for (t, n, k, threads) in [(40, 150, 8300, 2), (33, 400, 8301, 1), (530, 70, 1990, 2)] {
        let (out, w) = (DType::F32, DType::BF16);
        let plain = Case { t, n, k, w, compact: false, out, x_pad: 3, out_pad: 1, seed: 9 };
        let compact = Case { compact: true, ..plain.clone() };
        let (x, w) = (plain.x(), compact.weight(n));
        for case in [plain, compact] {
            let packed = case.packed(&w, n);
            let whole = case.product((set, threads), &x, &packed, None, false);
            let rows = x.chunks(16 * k);
            let parts = rows.flat_map(|x| case.product((set, 1), x, &packed, None, false));
            assert!(whole.into_iter().eq(parts), "T {t} N {n} K {k}, {}", case.stored());
        }
    }
}

/// Results of 4 MiB or more go past the caches, where rows begin with cache lines and there is no AMX.
#[test]
fn long_results_are_those_of_a_few_rows_at_a_time() {
    let (long, short) = (DType::F32, DType::BF16);
    for (out, n, out_pad, gate) in [
        (long, 1000, 8, false),
        (long, 1056, 0, true),
        (long, 1000, 1, false),
        (short, 2000, 16, false),
        (short, 2016, 0, true),
    ] {
        let (t, k, w) = (1060, 3, DType::F32);
        let case = Case { t, n, k, w, compact: false, out, x_pad: 0, out_pad, seed: 7 };
        let outputs = if gate { 2 * n } else { n };
        let weight = panels(w, &case.weight(outputs), outputs, k);
        let x = case.x();
        for set in InstructionSet::available() {
            let whole = case.product((set, 2), &x, &weight, None, gate);
            let rows = x.chunks(53 * k);
            let parts = rows.flat_map(|x| case.product((set, 1), x, &weight, None, gate));
            assert!(whole.into_iter().eq(parts), "{set}, {n} outputs in {out}");
        }
    }
}

/// Whatever the table of a compact weight says of a panel, nothing outside the weight is read and the other
/// panels are right.
#[test]
fn a_damaged_table_does_no_harm() {
    let (n, k, w) = (130, 200, DType::BF16);
    let layout = tensor::Compact::new(n as u64, k as u64);
    for t in [1, 5, 14, 24] {
        let (out, compact) = (DType::F32, true);
        let case = Case { t, n, k, w, compact, out, x_pad: 0, out_pad: 0, seed: 3 };
        let (x, weight) = (case.x(), case.packed(&case.weight(n), n));
        for entry in [
            [u32::MAX; 4],
            [u32::MAX, u32::MAX - 1, u32::MAX, 0],
            [0, u32::MAX - 1, 255, 7],
            [3, 5000, 0, 0],
        ] {
            let mut damaged = weight.clone();
            let table = damaged.len() - layout.table_bytes() as usize;
            let at = table + tensor::Entry::BYTES as usize;
            let entry: Vec<u8> = entry.iter().flat_map(|word| word.to_le_bytes()).collect();
            damaged[at..][..entry.len()].copy_from_slice(&entry);
            for set in InstructionSet::available() {
                let want = case.product((set, 2), &x, &weight, None, false);
                let got = case.product((set, 2), &x, &damaged, None, false);
                for (got, want) in got.chunks(n).zip(want.chunks(n)) {
                    assert!(got[..64] == want[..64] && got[128..] == want[128..], "{set} {t}");
                }
            }
        }
    }
}
