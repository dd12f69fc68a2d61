//! Steps of random functions by themselves: every op that the chains of [`super::graph`] have not.

use super::graph::{f32s, op};
use ir::{DType, Func, Layout, Op, TensorType, ValueId};

/// How many forms [`step`] knows.
pub(super) const FORMS: u8 = 25;

/// Whether a form has an op that passes make and no definition of a model has: a fused one, or a
/// layout.
pub(super) fn of_passes(form: u8) -> bool {
    matches!(form, 10 | 13..=15 | 17 | 20 | 21 | 23)
}

/// What a step of this form makes: of rows `x` and `y`, of a matrix, which may be constant, and of a
/// row. Empty where the operands break a typing rule.
pub(super) fn step(
    func: &mut Func,
    form: u8,
    [x, y]: [ValueId; 2],
    [matrix, row]: [ValueId; 2],
    out: DType,
) -> Vec<ValueId> {
    let (eps, f32) = (1e-6, DType::F32);
    let one = |made: Option<ValueId>| made.into_iter().collect();
    one(match form {
        0 => op(func, Op::Sigmoid {}, &[x]),
        1 => op(func, Op::AddScalar { value: 0.75 }, &[x]),
        2 => {
            let column = op(func, Op::Slice { axis: 1, start: 1, len: 1 }, &[y]);
            column.and_then(|column| op(func, Op::ScaleRows {}, &[x, column]))
        }
        3 => op(func, Op::LayerNorm { eps, out }, &[x, row, row]),
        4 => op(func, Op::L2Norm { eps, scale: 0.5 }, &[x]),
        5 => op(func, Op::Transpose {}, &[matrix]),
        6 => {
            let half =
                |func: &mut Func, start| op(func, Op::Slice { axis: 0, start, len: 2 }, &[matrix]);
            match [half(func, 0), half(func, 2)] {
                [Some(a), Some(b)] => op(func, Op::Interleave { block: 1 }, &[a, b]),
                _ => None,
            }
        }
        7 => {
            let stack = op(func, Op::Stack {}, &[matrix, matrix]);
            let dims = "[8,4]".parse().expect("dims");
            stack.and_then(|stack| op(func, Op::Reshape { dims }, &[stack]))
        }
        8 => {
            let half = op(func, Op::Slice { axis: 0, start: 0, len: 2 }, &[matrix]);
            half.and_then(|half| op(func, Op::RepeatRows { times: 2, rows: 4 }, &[half]))
        }
        9 => {
            let bits = if out == f32 { 8 } else { 4 };
            let Some(parts) = both(func, Op::QuantizeWeight { bits, group: 2 }, &[matrix]) else {
                return Vec::new();
            };
            op(func, Op::Dequantize { group: 2, out: f32 }, &parts)
        }
        10 => {
            let fractal = op(func, Op::Relayout { layout: Layout::Nz }, &[matrix]);
            fractal.and_then(|w| op(func, Op::Matmul { out }, &[x, w]))
        }
        11 => {
            let logits = op(func, Op::Slice { axis: 1, start: 0, len: 4 }, &[x]);
            let ids = logits.and_then(|logits| op(func, Op::Argmax {}, &[logits]));
            let table = func.weight("table", f32s("[4,4]"));
            ids.and_then(|ids| op(func, Op::Embed { out }, &[ids, table]))
        }
        12 => {
            let rows = func
                .param(&format!("rows{}", func.params.len()), f32s("[T]").with_dtype(DType::I32));
            op(func, Op::GatherRows {}, &[x, rows])
        }
        13 => return results(func, Op::AddRmsNorm { eps, out }, &[x, y, row]),
        14 => op(func, Op::SiluMul { out }, &[x, y]),
        15 => op(func, Op::SiluMulPairs { block: 2, out }, &[x]),
        16 => op(func, Op::SwigluClamped { alpha: 1.702, limit: 0.5, out }, &[x, y]),
        17 => op(func, Op::SwigluClampedPairs { block: 1, alpha: 1.702, limit: 0.5, out }, &[x]),
        18 => fixed(func, x, out),
        19 => fp8(func, x, out),
        20 => {
            let codes = func.weight("mx", weight(DType::MxFp4, "[4,4]"));
            let scale = func.weight("mx.scale", weight(DType::U8, "[4,1]"));
            op(func, Op::DequantMatmul { group: 4, out }, &[x, codes, scale])
        }
        21 => experts(func, x, out),
        22 => op(func, Op::AllGather { group: "tp".to_owned(), ranks: 1 }, &[x]),
        23 => mixed_experts(func, x, out),
        _ => op(func, Op::AllReduce { group: "tp".to_owned() }, &[x]),
    })
}

fn weight(dtype: DType, dims: &str) -> TensorType {
    f32s(dims).with_dtype(dtype)
}

fn results(func: &mut Func, op: Op, args: &[ValueId]) -> Vec<ValueId> {
    func.append(op, args, "").map(|node| func.nodes[node].outs.clone()).unwrap_or_default()
}

fn both(func: &mut Func, op: Op, args: &[ValueId]) -> Option<[ValueId; 2]> {
    results(func, op, args).try_into().ok()
}

/// A product with codes of `x` by a stored scale and offset.
fn fixed(func: &mut Func, x: ValueId, out: DType) -> Option<ValueId> {
    let [scale, offset] = ["in.scale", "in.offset"].map(|name| func.weight(name, f32s("[1]")));
    let codes = op(func, Op::QuantizeStatic {}, &[x, scale, offset])?;
    let name = format!("fixed{}", func.weights.len());
    let parts = [
        func.weight(&name, weight(DType::I8, "[4,4]")),
        func.weight(&format!("{name}.bias"), weight(DType::I32, "[4]")),
        func.weight(&format!("{name}.scale"), f32s("[4]")),
    ];
    op(func, Op::StaticMatmul { out }, &[codes, parts[0], parts[1], parts[2]])
}

/// A product of groups in FP8.
fn fp8(func: &mut Func, x: ValueId, out: DType) -> Option<ValueId> {
    let quantize = Op::QuantizeFp8 { group: 2, power_of_two: out == DType::F32 };
    let [codes, scales] = both(func, quantize, &[x])?;
    let weights = [
        func.weight("fp8", weight(DType::F8E4M3, "[4,4]")),
        func.weight("fp8.scale", f32s("[4,2]")),
    ];
    op(func, Op::QuantMatmul { group: 2, out }, &[codes, scales, weights[0], weights[1]])
}

/// What an expert router chooses for `x`: ids and weights, then the order and the starts of groups.
fn routed(func: &mut Func, x: ValueId) -> Option<[[ValueId; 2]; 2]> {
    let router = func.weight("router", f32s("[3,4]"));
    let logits = op(func, Op::Matmul { out: DType::F32 }, &[x, router])?;
    let spec = "route(sigmoid,k=2,renormalize=true)".parse().expect("a specification");
    let chosen = both(func, Op::Route { spec }, &[logits])?;
    Some([chosen, both(func, Op::ExpertGroups { experts: 3 }, &[chosen[0]])?])
}

/// Two of three experts of `x`: the first product of floats with biases, or of codes, the second of
/// codes.
fn experts(func: &mut Func, x: ValueId, out: DType) -> Option<ValueId> {
    let [[ids, shares], [order, starts]] = routed(func, x)?;
    let up = if out == DType::F32 {
        let up = func.weight("up", f32s("[3,4,4]"));
        let bias = func.weight("up.bias", f32s("[3,4]"));
        let up = op(func, Op::GroupedMatmul { out }, &[x, order, starts, up])?;
        op(func, Op::ExpertBias {}, &[up, ids, bias])?
    } else {
        let codes = func.weight("up.codes", weight(DType::MxFp4, "[3,4,4]"));
        let scale = func.weight("up.scale", weight(DType::U8, "[3,4,1]"));
        let product = Op::GroupedDequantMatmul { group: 4, out: DType::F32 };
        op(func, product, &[x, order, starts, codes, scale])?
    };
    let gated = op(func, Op::SiluMulPairs { block: 2, out: DType::F32 }, &[up])?;
    let [codes, scales] = both(func, Op::QuantizeRows {}, &[gated])?;
    let down = func.weight("down.codes", weight(DType::I8, "[3,4,2]"));
    let scale = func.weight("down.scale", f32s("[3,4,1]"));
    let product = Op::GroupedQuantMatmul { group: 2, out: DType::F32 };
    let down = op(func, product, &[codes, scales, order, starts, down, scale])?;
    op(func, Op::CombineExperts { out }, &[down, shares])
}

/// Two of three experts of `x` in codes of 4 bits with their inputs first.
fn mixed_experts(func: &mut Func, x: ValueId, out: DType) -> Option<ValueId> {
    let [[_, shares], [order, starts]] = routed(func, x)?;
    let [rows, row_scales] = both(func, Op::QuantizeRows {}, &[x])?;
    let codes = func.weight("mixed", weight(DType::I4, "[3,4,4]"));
    let scale = func.weight("mixed.scale", f32s("[3,4,1]"));
    let values = op(func, Op::Dequantize { group: 4, out: DType::F32 }, &[codes, scale])?;
    let sums = op(func, Op::RowSums { times: 8.0 }, &[values])?;
    let assist = op(func, Op::Reshape { dims: "[3,4]".parse().expect("dims") }, &[sums])?;
    let [codes, scale] = [codes, scale].map(|x| op(func, Op::Transpose {}, &[x]));
    let bits = op(func, Op::FloatBits {}, &[scale?])?;
    let args = [rows, row_scales, order, starts, codes?, bits, assist];
    let product = op(func, Op::GroupedMixedMatmul { out }, &args)?;
    op(func, Op::CombineExperts { out }, &[product, shares])
}
