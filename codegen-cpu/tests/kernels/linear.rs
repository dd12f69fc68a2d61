//! Products with ends of their own: the bits of the same kernels apart.

use crate::product::{Call, Case, Experts, Kind, bits, case, experts};
use crate::support::*;
use artifact::Scalar;
use codegen_cpu::{InstructionSet, kernels::reference};
use proptest::prelude::*;
use tensor::DType;

const F32: DType = DType::F32;

/// Where and with how many threads.
type On = (InstructionSet, usize);

/// What ends read besides the product.
struct Operands {
    bias: Vec<f32>,
    ids: Vec<i32>,
    residual: Vec<f32>,
}

/// Runs an element-wise kernel on dense rows of `n` results.
fn apart(
    on: On,
    kernel: &str,
    inputs: &[Vec<u8>],
    out: DType,
    (rows, n): (usize, usize),
    scalars: &[Scalar],
) -> Vec<f32> {
    let mut buffers = inputs.to_vec();
    buffers.push(unwritten(out, rows * n));
    run(on.0, on.1, kernel, &mut buffers, scalars);
    decode(out, buffers.last().unwrap())
}

/// `product`, rows of `n`, through the kernels that `end` stands for, rounded to `out`.
fn ended(on: On, product: &[f32], n: usize, end: &End, with: &Operands, out: DType) -> Vec<f32> {
    let rows = product.len() / n;
    let mut v = product.to_vec();
    let of = |v: &[f32]| encode(F32, v);
    match end.bias {
        1 => {
            v = apart(
                on,
                "add_bias_f32",
                &[of(&v), of(&with.bias)],
                F32,
                (rows, n),
                &ints([rows, n, n, n]),
            )
        }
        2 => {
            let experts = with.bias.len() / n;
            let inputs = [of(&v), bytes_of_i32(&with.ids), of(&with.bias)];
            let scalars = ints([rows, 1, n, experts, n, 1, n]);
            v = apart(on, "expert_bias_f32", &inputs, F32, (rows, n), &scalars);
        }
        _ => {}
    }
    let width = if end.gate > 0 { n / 2 } else { n };
    let mut scalars = ints([rows, width, n, width]);
    match end.gate {
        1 => v = apart(on, "silu_mul_pairs_f32", &[of(&v)], F32, (rows, width), &scalars),
        2 => {
            scalars.extend([end.alpha, end.limit].map(Scalar::Float));
            v = apart(on, "swiglu_clamped_pairs_f32", &[of(&v)], F32, (rows, width), &scalars);
        }
        _ => {}
    }
    if end.residual.is_some() {
        let inputs = [of(&v), of(&with.residual)];
        let scalars = ints([rows, width, width, width, width]);
        v = apart(on, "add_f32", &inputs, F32, (rows, width), &scalars);
    }
    rounded(out, &v)
}

fn end() -> impl Strategy<Value = End> {
    (0..3usize, 0..3usize, any::<bool>(), 0.5f32..2.0, 0.1f32..8.0).prop_map(
        |(bias, gate, residual, alpha, limit)| {
            let residual = residual.then_some(0);
            End { bias, gate, alpha, limit, residual, argmax: false, top_k: 0 }
        },
    )
}

/// Whether a product with an end has the bits of the product alone and the kernels that the end stands for: on each
/// instruction set, of threads so many apart and so many together, and with so much room between rows and residuals.
fn agrees(
    case: &Case,
    company: Option<&Experts>,
    end: End,
    (threads, others): (usize, usize),
    (pad, residual_pad): (usize, usize),
) -> Result<(), TestCaseError> {
    let (out, pairs) = (case.out, company.map_or(case.t, |experts| case.t * experts.pairs));
    let inputs = if company.is_some_and(|experts| !experts.own) { case.t } else { pairs };
    let experts = company.map_or(1, |experts| experts.count);
    let data = case.data(inputs, experts);
    let width = if end.gate > 0 { case.n / 2 } else { case.n };
    let stride = width + residual_pad;
    let end = End { residual: end.residual.map(|_| stride), ..end };
    let tables = if end.bias == 2 { experts } else { 1 };
    // Ids of biases need not be those of the product.
    let ids = company.map_or(Vec::new(), |experts| {
        experts.ids[..pairs.min(160)].iter().map(|id| id - 1).collect()
    });
    let with = Operands {
        bias: noise(case.seed ^ 0xb1a5, tables * case.n),
        ids,
        residual: noise(case.seed ^ 0x4e5, pairs * width),
    };
    for set in InstructionSet::available() {
        let product = Case { out: F32, ..case.clone() }.run((set, threads), &data, company, 0);
        let want = ended((set, 1), &product, case.n, &end, &with, out);

        let Call { name, mut buffers, mut scalars, rows } =
            case.call(&data, company, pad, width + pad);
        prop_assert_eq!(rows, pairs);
        match end.bias {
            1 => buffers.push(encode(F32, &with.bias)),
            2 => buffers.extend([bytes_of_i32(&with.ids), encode(F32, &with.bias)]),
            _ => {}
        }
        if end.residual.is_some() {
            buffers.push(encode(F32, &spread(&with.residual, width, stride)));
        }
        buffers.push(unwritten(out, rows * (width + pad)));
        scalars.extend(end.scalars());
        run(set, others, &format!("linear_{name}"), &mut buffers, &scalars);
        let got = decode(out, buffers.last().unwrap());
        let got = gathered(&got, width, width + pad);
        prop_assert_eq!(bits(&got), bits(&want), "{} {} {:?}", set, name, end);
    }
    Ok(())
}

/// A case and an end that fit one another, and whether products are by expert.
fn fitted(case: Case, end: End, grouped: bool, fixed: bool) -> (Case, End, bool) {
    let grouped = grouped && !fixed;
    let mut case = Case { out: F32, ..case };
    if fixed {
        case = Case { kind: Kind::Static, x: DType::I8, w: DType::I8, ..case };
    }
    if end.gate > 0 {
        case.n = case.n.next_multiple_of(64);
    }
    let bias = if grouped { end.bias } else { end.bias.min(1) };
    (case, End { bias, ..end }, grouped)
}

proptest! {
    #![proptest_config(cases(240))]

    #[test]
    fn an_end_has_the_bits_of_its_kernels(
        (case, experts, end) in (case(), experts(), end()),
        (grouped, fixed, round) in (any::<bool>(), prop::bool::weighted(0.15), any::<bool>()),
        threads in (1..=3usize, 1..=3usize),
        pads in (0..9usize, 0..9usize),
    ) {
        let out = if round { DType::BF16 } else { F32 };
        let (case, end, grouped) = fitted(case, end, grouped, fixed);
        agrees(&Case { out, ..case }, grouped.then_some(&experts), end, threads, pads)?;
    }

    /// Gates of so many rows are found beside the products of the rows after them.
    #[test]
    fn gates_of_many_rows_of_bytes_have_the_bits_of_their_kernels(
        (case, experts) in (case(), experts()),
        (t, w) in (20..75usize, prop_oneof![3 => Just(DType::I8), 1 => Just(DType::I4)]),
        grouped in prop::bool::weighted(0.3),
        threads in (1..=3usize, 1..=3usize),
        pads in (0..9usize, 0..9usize),
    ) {
        let case = Case { kind: Kind::Quant, x: DType::I8, w, out: DType::BF16, t, ..case };
        let (n, t) = (case.n.next_multiple_of(64), if grouped { t / 2 } else { t });
        let end = End { gate: 1, ..End::default() };
        agrees(&Case { n, t, ..case }, grouped.then_some(&experts), end, threads, pads)?;
    }

    /// The logits are those of the product, indices those of the largest of what is stored.
    #[test]
    fn the_largest_of_every_kind_of_product(
        case in case(), bias in any::<bool>(), threads in 1..=3usize,
        (argmax, most, equal) in (any::<bool>(), 0..6usize, any::<bool>()),
    ) {
        let case = Case { out: F32, ..case };
        let data = case.data(case.t, 1);
        let top_k = most.min(case.n);
        let argmax = argmax || top_k == 0;
        let end = End { bias: usize::from(bias), argmax, top_k, ..End::default() };
        let mut with = Operands { bias: noise(case.seed, case.n), ids: vec![], residual: vec![] };
        if equal {
            // Larger than every sum, so that most results are equal.
            with.bias.iter_mut().for_each(|b| *b = if *b < 0.9 { 1e12 } else { f32::NAN });
        }
        for set in InstructionSet::available() {
            let product = case.run((set, threads), &data, None, 0);
            let want = ended((set, 1), &product, case.n, &end, &with, F32);
            let Call { name, mut buffers, mut scalars, rows } = case.call(&data, None, 0, case.n);
            if bias {
                buffers.push(encode(F32, &with.bias));
            }
            let out = buffers.len();
            buffers.push(unwritten(F32, rows * case.n));
            if argmax {
                buffers.push(bytes_of_i32(&vec![-1; rows]));
            }
            if top_k > 0 {
                buffers.push(unwritten(F32, rows * top_k));
                buffers.push(bytes_of_i32(&vec![-1; rows * top_k]));
            }
            buffers.push(vec![0xff; 8 * rows * case.n.div_ceil(64)]);
            scalars.extend(end.scalars());
            run(set, threads, &format!("linear_{name}"), &mut buffers, &scalars);
            let logits = decode(F32, &buffers[out]);
            prop_assert_eq!(bits(&logits), bits(&want), "{} {}", set, name);
            let each = || logits.chunks(case.n);
            if argmax {
                let best: Vec<i32> = each().map(|row| reference::argmax(row) as i32).collect();
                prop_assert_eq!(to_i32(&buffers[out + 1]), best, "{} {}", set, name);
            }
            if top_k > 0 {
                let places = &buffers[buffers.len() - 3..];
                let best: Vec<usize> =
                    each().flat_map(|row| reference::top_k(row, top_k)).collect();
                let ids: Vec<i32> = best.iter().map(|&i| i as i32).collect();
                prop_assert_eq!(to_i32(&places[1]), ids, "{} {}", set, name);
                let values: Vec<f32> =
                    best.iter().enumerate().map(|(i, id)| logits[i / top_k * case.n + id]).collect();
                prop_assert_eq!(bits(&decode(F32, &places[0])), bits(&values), "{} {}", set, name);
            }
        }
    }
}

/// So many results go past the caches.
#[test]
fn gates_of_many_rows_and_outputs_have_the_bits_of_their_kernels() {
    let (x, w, out) = (DType::I8, DType::I8, DType::BF16);
    let (t, n, k, group) = (33, 1 << 17, 8, 8);
    let case = Case { kind: Kind::Quant, x, w, out, t, n, k, group, each: false, seed: 3 };
    agrees(&case, None, End { gate: 1, ..End::default() }, (1, 2), (0, 0)).unwrap();
}

/// So many logits go past the caches; one row's do not.
#[test]
fn the_largest_of_many_logits() {
    let (t, n, k, top_k) = (17, 65_600, 2, 3);
    let (x, weight) = (noise(1, t * k), panels(F32, &noise(2, n * k), n, k));
    let end = End { argmax: true, top_k, ..End::default() };
    for set in InstructionSet::available() {
        let of = |x: &[f32], threads: usize| {
            let rows = x.len() / k;
            let mut buffers = vec![
                encode(F32, x),
                weight.clone(),
                unwritten(F32, rows * n),
                bytes_of_i32(&vec![-1; rows]),
                unwritten(F32, rows * top_k),
                bytes_of_i32(&vec![-1; rows * top_k]),
                vec![0xff; 8 * rows * n.div_ceil(64)],
            ];
            let mut scalars = ints([rows, n, k, k, n]);
            scalars.extend(end.scalars());
            run(set, threads, "linear_matmul_f32_f32", &mut buffers, &scalars);
            let ids = [to_i32(&buffers[3]), to_i32(&buffers[5])];
            (decode(F32, &buffers[2]), ids)
        };
        let (logits, [best, top]) = of(&x, 2);
        for (i, (x, logits)) in x.chunks(k).zip(logits.chunks(n)).enumerate() {
            let (alone, _) = of(x, 1);
            assert!(alone == logits, "{set}, row {i}");
            assert_eq!(best[i] as usize, reference::argmax(logits), "{set}, row {i}");
            let top = top[i * top_k..][..top_k].iter().map(|&id| id as usize);
            assert!(top.eq(reference::top_k(logits, top_k)), "{set}, row {i}");
        }
    }
}

/// Rows of no expert are zeros before the end, not after it.
#[test]
fn rows_of_no_expert_have_an_end_too() {
    let (n, k) = (64, 8);
    let weight = panels(F32, &vec![1.0; n * k], n, k).repeat(2);
    // Places 0 and 3 belong to no expert.
    let (order, starts, ids) = ([3, 0, 1, 2], [1, 2, 3], [0, 1, 1, -5]);
    let bias: Vec<f32> = (0..2 * n).map(|i| if i < n { 1.0 } else { 2.0 }).collect();
    let end = End { bias: 2, residual: Some(n), ..End::default() };
    for set in InstructionSet::available() {
        for threads in 1..=3 {
            let mut buffers = vec![
                encode(F32, &vec![1.0; 2 * k]),
                bytes_of_i32(&order),
                bytes_of_i32(&starts),
                weight.clone(),
                bytes_of_i32(&ids),
                encode(F32, &bias),
                encode(F32, &vec![100.0; 4 * n]),
                unwritten(F32, 4 * n),
            ];
            let mut scalars = ints([2, 2, 0, 2, n, k, k, n]);
            scalars.extend(end.scalars());
            run(set, threads, "linear_grouped_matmul_f32_f32", &mut buffers, &scalars);
            let rows = decode(F32, &buffers[7]);
            for (row, want) in rows.chunks(n).zip([109.0, 110.0, 102.0, 101.0]) {
                assert!(row.iter().all(|&v| v == want), "{set}: {row:?}, not {want}");
            }
        }
    }
}

#[test]
fn ends_that_do_not_fit_are_refused() {
    use hal::{Device, DeviceError, MemoryRequest};
    let mut device = device(InstructionSet::best(), 1);
    let (refs, arena_bytes) = place([1 << 16; 5]);
    device
        .load(MemoryRequest {
            root: Default::default(),
            weights: no_weights(),
            arena_bytes,
            state_bytes: 0,
        })
        .unwrap();
    device.begin_capture().unwrap();
    let mut why = |kernel: &str, n: usize, end: End| {
        let mut scalars = ints([1, n, 64, 64, n]);
        scalars.extend(end.scalars());
        match device.launch(&hal::Launch::new(kernel, &refs, &scalars)) {
            Err(DeviceError::BadCall { why, .. }) => why,
            Err(other) => other.to_string(),
            Ok(()) => panic!("{kernel} {end:?}"),
        }
    };
    let none = End::default();
    let ragged = why("linear_matmul_f32_f32", 96, End { gate: 1, ..none });
    assert!(ragged.contains("`N` is 96, expected a multiple of 64"), "{ragged}");
    let kind = why("linear_matmul_f32_f32", 64, End { gate: 3, ..none });
    assert!(kind.contains("`gate` is 3"), "{kind}");
    for (kernel, end) in [
        ("linear_matmul_f32_f32", End { bias: 2, ..none }),
        ("linear_matmul_f32_bf16", End { argmax: true, ..none }),
        ("linear_matmul_f32_f32", End { argmax: true, gate: 1, ..none }),
        ("linear_matmul_f32_bf16", End { top_k: 2, ..none }),
        ("linear_matmul_f32_f32", End { top_k: 2, gate: 1, ..none }),
    ] {
        let fit = why(kernel, 64, end);
        assert!(fit.contains("the end does not fit"), "{kernel} {end:?}: {fit}");
    }
    let many = why("linear_matmul_f32_f32", 64, End { top_k: 65, ..none });
    assert!(many.contains("`k` is 65, expected 1 to 64"), "{many}");
    let unknown = why("linear_add_f32", 64, none);
    assert!(unknown.contains("linear_add_f32"), "{unknown}");
}
