//! Mixture of experts: routing, grouping, grouped products, combination.

use super::{Call, float, is, is_f32, rows_of, stride};
use compiler::{Lowered, Operand};
use ir::{DType, Op, RouteScore};

pub(super) fn lower(op: &Op, operands: &[Operand], results: &[Operand]) -> Option<Lowered> {
    let call = Call::new(operands.len(), results.len());
    let out = results.first()?;
    let (rows, n) = rows_of(out);
    match (op, operands) {
        (Op::Route { spec }, [logits, bias @ ..]) => {
            let sigmoid = u64::from(spec.score == RouteScore::Sigmoid);
            let name = if bias.is_empty() { "route" } else { "route_bias" };
            call.ints(&[rows, logits.dim(1), spec.k, sigmoid, u64::from(spec.renormalize)])
                .ints(&[spec.groups, spec.top_groups, stride(logits)])
                .float(spec.scale)
                .named(name)
        }
        (Op::ExpertGroups { experts }, [ids]) => {
            call.ints(&[rows, n, *experts, stride(ids)]).named("expert_groups")
        }
        (Op::ExpertBias {}, [x, ids, bias]) if is_f32(&[x, bias]) => call
            .ints(&[rows, x.dim(1), x.dim(2), bias.dim(0), stride(x), stride(ids), stride(out)])
            .named("expert_bias_f32"),
        (Op::CombineExperts { .. }, [x, weights]) if is(x, DType::F32) => call
            .ints(&[rows, x.dim(1), n, stride(x), stride(weights), stride(out)])
            .named(format!("combine_experts_{}", float(out)?)),
        _ => None,
    }
}
