//! Matrix products, of coded weights and of one of several weights for each row too.

use super::{Call, float, is, is_f32, stride};
use compiler::{Lowered, Operand};
use ir::{DType, Layout, Op};
use tensor::layout::Panels;

pub(super) fn lower(op: &Op, operands: &[Operand], results: &[Operand]) -> Option<Lowered> {
    let out = results.first()?;
    let (name, call) = call(op, &operands.iter().collect::<Vec<_>>(), out)?;
    call.named(format!("{name}_{}", float(out)?))
}

/// The call of a product whose results end in `out`, up to the stride of that, and its name without
/// the type of that.
pub(super) fn call(op: &Op, operands: &[&Operand], out: &Operand) -> Option<(String, Call)> {
    let call = Call::new(operands.len(), 1);
    Some(match (op, operands) {
        (Op::Matmul { .. }, [x, weight]) => {
            let (stored, n, k) = floats(weight, 2)?;
            (x.ty.dtype == weight.ty.dtype && x.ty.rank() == 2).then_some(())?;
            (format!("matmul_{stored}"), call.ints(&[x.dim(0), n, k, stride(x), stride(out)]))
        }
        (Op::QuantMatmul { group, .. }, [x, x_scale, weight, weight_scale]) => {
            let (n, k) = panels(weight, 2)?;
            let scales = quantized(x, x_scale, weight, weight_scale, *group)?;
            (x.ty.rank() == 2).then_some(())?;
            let call = call.ints(&[x.dim(0), n, k]).ints(&scales).ints(&[stride(x), stride(out)]);
            (format!("quant_matmul_{}", weight.ty.dtype), call)
        }
        (Op::StaticMatmul { .. }, [x, weight, bias, scale]) => {
            let (n, k) = panels(weight, 2)?;
            let typed = is(x, DType::I8) && is(weight, DType::I8) && is(bias, DType::I32);
            (typed && is_f32(&[scale]) && x.ty.rank() == 2).then_some(())?;
            ("static_matmul_i8".into(), call.ints(&[x.dim(0), n, k, stride(x), stride(out)]))
        }
        (Op::DequantMatmul { group, .. }, [x, weight, weight_scale]) => {
            let (n, k) = panels(weight, 2)?;
            let codes = coded(weight, weight_scale, *group)?;
            (x.ty.rank() == 2).then_some(())?;
            let name = format!("dequant_matmul_{codes}_{}", float(x)?);
            (name, call.ints(&[x.dim(0), n, k, *group, stride(x), stride(out)]))
        }
        (Op::GroupedMatmul { .. }, [x, order, _, weight]) => {
            let ([t, k, own], strides) = pairs(x, order, out)?;
            let (stored, n, inputs) = floats(weight, 3)?;
            (x.ty.dtype == weight.ty.dtype).then_some(())?;
            let call = call.ints(&[t, k, own, weight.dim(0), n, inputs]).ints(&strides);
            (format!("grouped_matmul_{stored}"), call)
        }
        (Op::GroupedQuantMatmul { group, .. }, [x, x_scale, order, _, weight, weight_scale]) => {
            let ([t, k, own], strides) = pairs(x, order, out)?;
            let (n, inputs) = panels(weight, 3)?;
            let scales = quantized(x, x_scale, weight, weight_scale, *group)?;
            let call = call.ints(&[t, k, own, weight.dim(0), n, inputs]).ints(&scales);
            (format!("grouped_quant_matmul_{}", weight.ty.dtype), call.ints(&strides))
        }
        (Op::GroupedDequantMatmul { group, .. }, [x, order, _, weight, weight_scale]) => {
            let ([t, k, own], strides) = pairs(x, order, out)?;
            let (n, inputs) = panels(weight, 3)?;
            let codes = coded(weight, weight_scale, *group)?;
            let call = call.ints(&[t, k, own, weight.dim(0), n, inputs, *group]).ints(&strides);
            (format!("grouped_dequant_matmul_{codes}_{}", float(x)?), call)
        }
        _ => return None,
    })
}

/// As [`call`] for a product that quantises its inputs: `operands` begin with those of `quantise`,
/// which stand for its codes and scales.
pub(super) fn quantising_call(
    quantise: &Op,
    op: &Op,
    operands: &[&Operand],
    out: &Operand,
) -> Option<(String, Call)> {
    let call = Call::new(operands.len(), 1);
    let scales = |weight: &Operand, scale: &Operand, group: u64| {
        scaled(weight, scale, group)?;
        Some(match quantise {
            Op::QuantizeRows {} => vec![group],
            Op::QuantizeFp8 { group: of_x, power_of_two } => {
                vec![group, *of_x, u64::from(*power_of_two)]
            }
            _ => return None,
        })
    };
    Some(match (op, operands) {
        (Op::QuantMatmul { group, .. }, [x, weight, weight_scale]) => {
            let (n, k) = panels(weight, 2)?;
            let scales = scales(weight, weight_scale, *group)?;
            (x.ty.rank() == 2).then_some(())?;
            let call = call.ints(&[x.dim(0), n, k]).ints(&scales).ints(&[stride(x), stride(out)]);
            (format!("quant_matmul_{}_{}", weight.ty.dtype, float(x)?), call)
        }
        (Op::StaticMatmul { .. }, [x, _, _, weight, _, _]) => {
            let (n, k) = panels(weight, 2)?;
            (is(weight, DType::I8) && x.ty.rank() == 2).then_some(())?;
            let call = call.ints(&[x.dim(0), n, k, stride(x), stride(out)]);
            (format!("static_matmul_i8_{}", float(x)?), call)
        }
        (Op::GroupedQuantMatmul { group, .. }, [x, order, _, weight, weight_scale]) => {
            let (n, inputs) = panels(weight, 3)?;
            let scales = scales(weight, weight_scale, *group)?;
            (is_dense(out) && is_dense(order)).then_some(())?;
            let own = u64::from(x.ty.rank() == 3);
            let pairs = [order.dim(0), order.dim(1), own, weight.dim(0), n, inputs];
            let call = call.ints(&pairs).ints(&scales).ints(&[stride(x), out.dim(2)]);
            (format!("grouped_quant_matmul_{}_{}", weight.ty.dtype, float(x)?), call)
        }
        _ => return None,
    })
}

/// How a weight of floats is stored, and its outputs and inputs.
fn floats(weight: &Operand, rank: usize) -> Option<(&'static str, u64, u64)> {
    if weight.ty.layout == Layout::Compact {
        (is(weight, DType::BF16) && weight.ty.rank() == rank).then_some(())?;
        return Some(("compact", weight.dim(rank - 2), weight.dim(rank - 1)));
    }
    let (n, k) = panels(weight, rank)?;
    Some((float(weight)?, n, k))
}

/// Outputs and inputs of a packed weight.
fn panels(weight: &Operand, rank: usize) -> Option<(u64, u64)> {
    let fits = weight.ty.layout == Layout::Panels && weight.ty.rank() == rank;
    fits.then(|| (weight.dim(rank - 2), weight.dim(rank - 1)))
}

/// Whether kernels take the scales of a weight in groups of `group`.
fn scaled(weight: &Operand, scale: &Operand, group: u64) -> Option<()> {
    let k = weight.dim(weight.ty.rank() - 1);
    let per_word = Panels::new(1, 1, weight.ty.dtype).group();
    let fits = scale.ty.layout == Layout::Panels && (group >= k || group.is_multiple_of(per_word));
    fits.then_some(())
}

/// How a weight with scales is coded.
fn coded(weight: &Operand, scale: &Operand, group: u64) -> Option<DType> {
    scaled(weight, scale, group)?;
    Some(weight.ty.dtype)
}

/// The scalars of the scales of a product of quantised matrices.
fn quantized(
    x: &Operand,
    x_scale: &Operand,
    weight: &Operand,
    weight_scale: &Operand,
    group: u64,
) -> Option<[u64; 2]> {
    scaled(weight, weight_scale, group)?;
    let each = x_scale.dim(x_scale.ty.rank() - 1);
    // Sums of integers are scaled once, when they are complete.
    let fits = each == 1 || is(x, DType::F8E4M3);
    (fits && is_dense(x_scale)).then_some([group, each])
}

/// Tokens, pairs of each and whether pairs have rows of their own in `x`; strides between rows of
/// inputs and of results.
fn pairs(x: &Operand, order: &Operand, out: &Operand) -> Option<([u64; 3], [u64; 2])> {
    let own = x.ty.rank() == 3;
    let x_stride = if own { x.dim(2) } else { stride(x) };
    let fits = (!own || is_dense(x)) && is_dense(out) && is_dense(order);
    fits.then(|| ([order.dim(0), order.dim(1), u64::from(own)], [x_stride, out.dim(2)]))
}

/// Whether rows follow one another without gaps.
pub(super) fn is_dense(o: &Operand) -> bool {
    o.dim(0) <= 1 || stride(o) == (1..o.ty.rank()).map(|i| o.dim(i)).product::<u64>()
}
