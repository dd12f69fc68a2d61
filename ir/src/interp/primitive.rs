//! Primitive ops, each by the function that says what it means.

use super::{Failure, Tensor, arith, attention, experts, latent, quant, recurrent, shape};
use crate::op::Op;
use tensor::DType;

/// The results of a primitive op that writes no state, which have the `types` given.
pub(super) fn compute(
    op: &Op,
    args: &[&Tensor],
    types: Vec<(DType, Vec<usize>)>,
) -> Result<Vec<Tensor>, Failure> {
    if let Op::Cast { .. } | Op::Reshape { .. } | Op::Relayout { .. } | Op::AllReduce { .. } = op {
        return Ok(types.iter().map(|(dtype, dims)| args[0].reshaped(*dtype, dims)).collect());
    }
    let data = match several(op, args)? {
        Some(results) => results,
        None => vec![single(op, args, &types[0].1)?],
    };
    let results = types.into_iter().zip(data);
    Ok(results.map(|((dtype, dims), data)| Tensor::new(dtype, dims, data)).collect())
}

/// The next version of `state` and what else the op returns; `args` are the other operands.
pub(super) fn write(op: &Op, mut state: Tensor, args: &[&Tensor]) -> Result<Vec<Tensor>, Failure> {
    let result = match op {
        Op::StoreRows {} => {
            shape::store_rows(&mut state, args[0])?;
            None
        }
        Op::KvWrite {} => {
            attention::kv_write(&mut state, args)?;
            None
        }
        Op::PagedWrite {} => {
            latent::paged_write(&mut state, args[0], args[1])?;
            None
        }
        Op::CausalConv {} => Some(recurrent::causal_conv(&mut state, args)?),
        Op::GatedDelta {} => Some(recurrent::gated_delta(&mut state, args)?),
        other => unreachable!("`{}` writes no state", other.mnemonic()),
    };
    Ok([state].into_iter().chain(result).collect())
}

/// The results of an op that has more than one.
fn several(op: &Op, args: &[&Tensor]) -> Result<Option<Vec<Vec<f64>>>, Failure> {
    Ok(Some(match op {
        Op::QuantizeWeight { bits, group } => {
            quant::quantize_groups(args[0], *group as usize, f64::powi(2.0, *bits as i32 - 1) - 1.0)
        }
        Op::QuantizeRows {} => quant::quantize_groups(args[0], args[0].columns(), 127.0),
        Op::QuantizeFp8 { group, power_of_two } => {
            quant::quantize_fp8(args[0], *group as usize, *power_of_two)
        }
        Op::TopK { k } => arith::top_k(args[0], *k as usize),
        Op::Route { spec } => experts::route(args[0], args.get(1).copied(), spec),
        Op::ExpertGroups { experts } => experts::expert_groups(args[0], *experts as usize)?,
        _ => return Ok(None),
    }))
}

/// The only result, of dimensions `dims`.
fn single(op: &Op, args: &[&Tensor], dims: &[usize]) -> Result<Vec<f64>, Failure> {
    Ok(match op {
        Op::Embed { .. } | Op::GatherRows {} => shape::rows_of(op, args)?,
        Op::AllGather { ranks, .. } => match ranks {
            1 => args[0].data().to_vec(),
            _ => return Err(format!("{ranks} ranks; the interpreter is one rank")),
        },
        Op::Slice { axis, start, .. } => shape::slice(args[0], *axis as usize, *start, dims),
        Op::Concat { axis } => shape::concat(args, *axis as usize),
        Op::Stack {} => args.iter().flat_map(|p| p.data()).copied().collect(),
        Op::Transpose {} => shape::transpose(args[0]),
        Op::RepeatRows { times, rows } => shape::repeat_rows(args[0], *times, *rows),
        Op::Interleave { block } => shape::interleave(args[0], args[1], *block as usize),
        Op::Add {} => arith::zip(args[0], args[1], |a, b| a + b),
        Op::Mul {} => arith::zip(args[0], args[1], |a, b| a * b),
        Op::AddScalar { value } => args[0].data().iter().map(|x| x + f64::from(*value)).collect(),
        Op::Silu {} => args[0].data().iter().map(|x| x * arith::sigmoid(*x)).collect(),
        Op::Sigmoid {} => args[0].data().iter().map(|x| arith::sigmoid(*x)).collect(),
        Op::ScaleRows {} => arith::scale_rows(args[0], args[1]),
        Op::SwigluClamped { alpha, limit, .. } => {
            arith::swiglu_clamped(args[0], args[1], f64::from(*alpha), f64::from(*limit))
        }
        Op::AddBias {} => arith::add_bias(args[0], args[1]),
        Op::Matmul { .. } => arith::matmul(args[0], args[1]),
        Op::HeadMatmul { .. } => arith::head_matmul(args[0], args[1]),
        Op::RmsNorm { eps, .. } => arith::rms_norm(args[0], args[1], f64::from(*eps)),
        Op::LayerNorm { eps, .. } => arith::layer_norm(args[0], args[1], args[2], f64::from(*eps)),
        Op::L2Norm { eps, scale } => arith::l2_norm(args[0], f64::from(*eps), f64::from(*scale)),
        Op::Argmax {} => arith::argmax(args[0]),
        Op::Dequantize { group, .. } => quant::dequantize(args[0], args[1], *group as usize),
        Op::RowSums { times } => {
            args[0].rows().map(|row| row.iter().sum::<f64>() * f64::from(*times)).collect()
        }
        Op::FloatBits {} => {
            args[0].data().iter().map(|&x| f64::from((x as f32).to_bits())).collect()
        }
        Op::QuantizeStatic {} => quant::quantize_static(args[0], args[1], args[2]),
        Op::QuantMatmul { group, .. } => quant::quant_matmul(args, *group as usize),
        Op::StaticMatmul { .. } => quant::static_matmul(args),
        Op::GroupedMatmul { .. } => experts::grouped_matmul(args)?,
        Op::GroupedQuantMatmul { group, .. } => {
            experts::grouped_quant_matmul(args, *group as usize)?
        }
        Op::GroupedMixedMatmul { .. } => experts::grouped_mixed_matmul(args)?,
        Op::ExpertBias {} => experts::expert_bias(args[0], args[1], args[2])?,
        Op::CombineExperts { .. } => experts::combine_experts(args[0], args[1]),
        Op::RopeTable { spec } => attention::rope_table(args[0], spec),
        Op::Rotary { interleaved } => attention::rotary(args[0], args[1], *interleaved),
        Op::Attention { scale, .. } => attention::attention(args, f64::from(*scale), None)?,
        Op::SinkAttention { scale, window, .. } => {
            attention::attention(args, f64::from(*scale), Some((args[4], *window)))?
        }
        Op::LatentAttention { scale, .. } | Op::SparseLatentAttention { scale, .. } => {
            latent::attention(args, f64::from(*scale))?
        }
        Op::ExpandedLatentAttention { scale, .. }
        | Op::SparseExpandedLatentAttention { scale, .. } => {
            latent::expanded_attention(args, f64::from(*scale))?
        }
        Op::SelectKeys { keys, scale } => {
            latent::select_keys(args, *keys as usize, f64::from(*scale))?
        }
        Op::DeltaGate {} => recurrent::delta_gate(args[0], args[1], args[2]),
        Op::Cast { .. } | Op::Reshape { .. } | Op::Relayout { .. } | Op::AllReduce { .. } => {
            unreachable!("ops that keep their elements share them")
        }
        Op::QuantizeWeight { .. }
        | Op::QuantizeRows {}
        | Op::QuantizeFp8 { .. }
        | Op::TopK { .. }
        | Op::Route { .. }
        | Op::ExpertGroups { .. } => unreachable!("ops of several results are computed apart"),
        Op::StoreRows {}
        | Op::KvWrite {}
        | Op::PagedWrite {}
        | Op::CausalConv {}
        | Op::GatedDelta {} => unreachable!("writes have their state"),
        Op::AddRmsNorm { .. }
        | Op::SiluMul { .. }
        | Op::SiluMulPairs { .. }
        | Op::SwigluClampedPairs { .. }
        | Op::DequantMatmul { .. }
        | Op::GroupedDequantMatmul { .. }
        | Op::Fused { .. } => unreachable!("fused ops are expanded"),
    })
}
