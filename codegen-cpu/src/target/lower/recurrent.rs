//! Convolution and the gated delta rule.

use super::{Call, float, is_f32, stride};
use compiler::{Arg, Lowered, Operand};
use ir::Op;

pub(super) fn lower(op: &Op, operands: &[Operand], results: &[Operand]) -> Option<Lowered> {
    match (op, operands, results) {
        (Op::CausalConv {}, [state, x, weight, _, _], [_, y]) if is_f32(&[x, weight]) => {
            let args = [1, 2, 3, 4, 0].map(Arg::Operand).into_iter().chain([Arg::Result(1)]);
            Call { args: args.collect(), scalars: vec![] }
                .ints(&[x.dim(0), x.dim(1), weight.dim(1), state.dim(0), stride(x), stride(y)])
                .named(format!("causal_conv_{}", float(state)?))
        }
        (Op::DeltaGate {}, [a, _, _], [out]) => {
            Call::new(3, 1).ints(&[a.dim(0), a.dim(1), stride(a), stride(out)]).named("delta_gate")
        }
        (Op::GatedDelta {}, [state, q, k, v, gate, beta, _, _], [_, o]) => {
            let order = [1, 2, 3, 4, 5, 6, 7, 0].map(Arg::Operand);
            let args = order.into_iter().chain([Arg::Result(1)]).collect();
            Call { args, scalars: vec![] }
                .ints(&[q.dim(0), state.dim(0), q.dim(1), v.dim(1), q.dim(2), v.dim(2)])
                .ints(&[stride(q), stride(k), stride(v), stride(gate), stride(beta), stride(o)])
                .named("gated_delta")
        }
        _ => None,
    }
}
