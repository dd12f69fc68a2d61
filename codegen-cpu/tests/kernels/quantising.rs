//! Products that quantise their inputs: the bits of the two kernels apart.

use crate::product::{self, Call, Case, Experts, Kind, case, experts};
use crate::support::*;
use codegen_cpu::InstructionSet;
use proptest::prelude::*;
use tensor::DType;

const F32: DType = DType::F32;

/// How inputs become codes.
#[derive(Clone, Copy, Debug)]
struct How {
    /// Type of the floats.
    x: DType,
    power_of_two: bool,
    scale: f32,
    offset: f32,
}

fn how() -> impl Strategy<Value = How> {
    let x = prop_oneof![Just(F32), Just(DType::BF16)];
    (x, any::<bool>(), 1e-3f32..0.1, -20i32..20).prop_map(|(x, power_of_two, scale, offset)| How {
        x,
        power_of_two,
        scale,
        offset: offset as f32,
    })
}

/// Bits, with one NaN for all: its sign is that of whichever factor an instruction takes first.
fn bits(v: &[f32]) -> Vec<u32> {
    let one = |v: &f32| if v.is_nan() { f32::NAN } else { *v };
    product::bits(&v.iter().map(one).collect::<Vec<_>>())
}

/// Which product of codes, by expert or not, and with how many rows of inputs.
fn fitted(case: Case, pick: usize, experts: Experts, grouped: bool) -> (Case, Option<Experts>) {
    let (kind, x, w) = [
        (Kind::Quant, DType::I8, DType::I8),
        (Kind::Quant, DType::I8, DType::I4),
        (Kind::Quant, DType::F8E4M3, DType::F8E4M3),
        (Kind::Static, DType::I8, DType::I8),
    ][pick];
    let grouped = grouped && kind != Kind::Static;
    (Case { kind, x, w, ..case }, grouped.then_some(experts))
}

/// Rows of every size; some are zeros, or have numbers that are not finite.
fn floats(how: &How, seed: u64, rows: usize, k: usize) -> Vec<f32> {
    let mut x = rounded(how.x, &noise(seed, rows * k));
    for (row, size) in x.chunks_mut(k).zip(noise(seed ^ 9, rows)) {
        match size {
            s if s < -0.9 => row.fill(0.0),
            s if s < -0.8 => row[k / 2] = f32::NAN,
            s if s < -0.7 => row[k - 1] = f32::INFINITY,
            s => row.iter_mut().for_each(|v| *v *= 2f32.powi((s * 8.0) as i32)),
        }
    }
    x
}

/// The kernel that quantises, and its codes and scales of dense rows.
fn quantised(
    (set, threads): (InstructionSet, usize),
    case: &Case,
    how: &How,
    x: &[f32],
) -> (Vec<u8>, Vec<f32>) {
    let (k, rows) = (case.k, x.len() / case.k);
    let from = encode(how.x, x);
    if case.kind == Kind::Static {
        let given = [how.scale, how.offset].map(|v| encode(F32, &[v]));
        let [scale, offset] = given;
        let mut buffers = vec![from, scale, offset, vec![0x55; rows * k]];
        let name = format!("quantize_static_{}", how.x);
        run(set, threads, &name, &mut buffers, &ints([rows, k, k]));
        return (buffers.remove(3), vec![]);
    }
    let scales = unwritten(F32, rows * case.x_groups());
    let mut buffers = vec![from, vec![0x55; rows * k], scales];
    if case.x == DType::I8 {
        let name = format!("quantize_rows_{}", how.x);
        run(set, threads, &name, &mut buffers, &ints([rows, 1, k, k]));
    } else {
        let scalars = ints([rows, 1, k, group(case), usize::from(how.power_of_two), k]);
        run(set, threads, &format!("quantize_fp8_{}", how.x), &mut buffers, &scalars);
    }
    (buffers[1].clone(), decode(F32, &buffers[2]))
}

/// Inputs that share a scale of fp8.
fn group(case: &Case) -> usize {
    if case.each { case.group } else { case.k }
}

/// `call`, which reads codes, with the rows of floats `x` in their place. Pairs with rows of their own
/// have those of a token one after the other.
fn with_floats(call: Call, case: &Case, how: &How, x: &[f32], (runs, pad): (usize, usize)) -> Call {
    let Call { name, mut buffers, mut scalars, rows } = call;
    let width = runs * case.k;
    let mut given = vec![encode(how.x, &spread(x, width, width + pad))];
    if case.kind == Kind::Static {
        given.extend([how.scale, how.offset].map(|v| encode(F32, &[v])));
    }
    let scaled = case.kind == Kind::Quant;
    buffers.splice(..1 + usize::from(scaled), given);
    let strides = scalars.len() - 2;
    scalars[strides] = ints([width + pad])[0];
    if scaled {
        let made = match case.x {
            DType::I8 => vec![],
            _ => ints([group(case), usize::from(how.power_of_two)]),
        };
        scalars.splice(strides - 1..strides, made);
    }
    let (kernel, out) = name.rsplit_once('_').unwrap();
    Call { name: format!("{kernel}_{}_{out}", how.x), buffers, scalars, rows }
}

proptest! {
    #![proptest_config(cases(240))]

    #[test]
    fn rows_quantised_inside_have_the_bits_of_the_kernels_apart(
        (case, experts, how) in (case(), experts(), how()),
        (pick, grouped) in (0..4usize, any::<bool>()),
        (threads, others) in (1..=3usize, 1..=4usize),
        pad in 0..9usize,
    ) {
        let (case, experts) = fitted(case, pick, experts, grouped);
        let (k, n) = (case.k, case.n);
        let runs = experts.as_ref().map_or(1, |e| if e.own { e.pairs } else { 1 });
        let rows = case.t * runs;
        let x = floats(&how, case.seed, rows, k);
        let out_stride = n + pad;
        for set in InstructionSet::available() {
            let (codes, scales) = quantised((set, threads), &case, &how, &x);
            let weights = experts.as_ref().map_or(1, |e| e.count);
            let data = case.data(rows, weights).with_codes(&case, codes, scales);
            let want = case.run((set, threads), &data, experts.as_ref(), pad);

            let call = case.call(&data, experts.as_ref(), 0, out_stride);
            let call = with_floats(call, &case, &how, &x, (runs, pad));
            let results = call.rows;
            let name = call.name.clone();
            let got = finish(call, &case, out_stride, (set, others));
            prop_assert_eq!(bits(&got), bits(&want), "{} {} {:?}", set, name, how);

            // Alone, as in any company.
            for p in (0..results).step_by(3) {
                let (source, own) = match &experts {
                    None => (p, None),
                    Some(e) => (
                        if e.own { p } else { p / e.pairs },
                        Some(Experts { pairs: 1, ids: vec![e.ids[p]], ..e.clone() }),
                    ),
                };
                let call = case.call(&data.alone(source, &case), own.as_ref(), 0, n);
                let call = with_floats(call, &case, &how, &x[source * k..][..k], (1, 0));
                let alone = finish(call, &case, n, (set, others));
                let whole = &got[p * n..][..n];
                prop_assert_eq!(bits(&alone), bits(whole), "{} {} row {}", set, name, p);
            }
        }
    }
}

/// The results of `call`, dense.
fn finish(call: Call, case: &Case, stride: usize, on: (InstructionSet, usize)) -> Vec<f32> {
    let Call { name, mut buffers, scalars, rows } = call;
    buffers.push(unwritten(case.out, rows * stride));
    run(on.0, on.1, &name, &mut buffers, &scalars);
    gathered(&decode(case.out, buffers.last().unwrap()), case.n, stride)
}

/// An end does not ask where its sums come from: one of each kind of step.
#[test]
fn ends_follow_products_that_quantise() {
    let (t, n, k) = (5, 128, 40);
    let x = noise(3, t * k);
    let weight = noise(4, n * k).iter().map(|v| (v * 127.0) as i8).collect::<Vec<_>>();
    let bias = noise(5, n);
    let residual = noise(6, t * n / 2);
    let end = End { bias: 1, gate: 1, residual: Some(n / 2), ..End::default() };
    let weight = product::int_panels(&weight, n, k);
    let scales = panels(F32, &vec![0.01; n], n, 1);
    let ending =
        || vec![weight.clone(), scales.clone(), encode(F32, &bias), encode(F32, &residual)];
    for set in InstructionSet::available() {
        let mut made = vec![encode(F32, &x), vec![0; t * k], unwritten(F32, t)];
        run(set, 1, "quantize_rows_f32", &mut made, &ints([t, 1, k, k]));
        let mut apart = made[1..].to_vec();
        apart.extend(ending());
        apart.push(unwritten(DType::BF16, t * n / 2));
        let mut scalars = ints([t, n, k, k, 1, k, n / 2]);
        scalars.extend(end.scalars());
        run(set, 1, "linear_quant_matmul_i8_bf16", &mut apart, &scalars);
        for threads in 1..=3 {
            let mut inside = vec![encode(F32, &x)];
            inside.extend(ending());
            inside.push(unwritten(DType::BF16, t * n / 2));
            let mut scalars = ints([t, n, k, k, k, n / 2]);
            scalars.extend(end.scalars());
            run(set, threads, "linear_quant_matmul_i8_f32_bf16", &mut inside, &scalars);
            assert_eq!(inside.last(), apart.last(), "{set}, {threads} threads");
        }
    }
}
