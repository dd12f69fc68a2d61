//! Layers of the gated delta rule in random functions.

use super::graph::{f32s, op};
use ir::{DType, Func, Op, TensorType, ValueId};

/// Recurrent memories, and which of their slots rows belong to.
pub(super) struct Recurrent {
    sequences: ValueId,
    positions: ValueId,
    /// Of the convolution and of the delta rule.
    pub(super) states: [ValueId; 2],
}

impl Recurrent {
    pub(super) fn new(func: &mut Func, positions: ValueId) -> Self {
        let state = |dims| TensorType::state(DType::F32, f32s(dims).dims);
        Self {
            sequences: func.param("sequences", f32s("[T]").with_dtype(DType::I32)),
            positions,
            states: [
                func.param("conv", state("[NS,1,10]")),
                func.param("delta", state("[NS,2,2,2]")),
            ],
        }
    }

    /// A projection of the rows `x`, its convolution, and the rule with one head of keys for two of
    /// values.
    pub(super) fn layer(&mut self, func: &mut Func, x: ValueId) -> Option<ValueId> {
        if func.values[x].ty.rank() != 2 {
            return None;
        }
        let n = func.values[x].ty.dims[1].as_const()?;
        let weight = func.weight(&format!("delta_in.{n}"), f32s(&format!("[12,{n}]")));
        let taps = func.weight("taps", f32s("[10,2]"));
        let [a_log, dt_bias] = ["a_log", "dt_bias"].map(|name| func.weight(name, f32s("[2]")));
        let joined = op(func, Op::Matmul { out: DType::F32 }, &[x, weight])?;
        let mut part = |of, start, len| op(func, Op::Slice { axis: 1, start, len }, &[of]);
        let (mixed, a) = (part(joined, 0, 10)?, part(joined, 10, 2)?);
        let rows = [self.sequences, self.positions];
        let conv = [self.states[0], mixed, taps, rows[0], rows[1]];
        let conv = func.append(Op::CausalConv {}, &conv, "").ok()?;
        let [next, mixed] = func.nodes[conv].outs[..] else { unreachable!("two results") };
        self.states[0] = next;
        let mixed = op(func, Op::Silu {}, &[mixed])?;
        let heads = |func: &mut Func, start, n: u64| {
            let part = op(func, Op::Slice { axis: 1, start, len: 2 * n }, &[mixed])?;
            let dims = format!("[T,{n},2]").parse().expect("dims");
            op(func, Op::Reshape { dims }, &[part])
        };
        let (q, k, v) = (heads(func, 0, 1)?, heads(func, 2, 1)?, heads(func, 4, 2)?);
        let norm = Op::L2Norm { eps: 1e-6, scale: 1.0 };
        let [q, k] = [q, k].map(|x| op(func, norm.clone(), &[x]));
        let gate = op(func, Op::DeltaGate {}, &[a, a_log, dt_bias])?;
        let beta = op(func, Op::Slice { axis: 1, start: 8, len: 2 }, &[mixed])?;
        let beta = op(func, Op::Sigmoid {}, &[beta])?;
        let args = [self.states[1], q?, k?, v, gate, beta, rows[0], rows[1]];
        let delta = func.append(Op::GatedDelta {}, &args, "").ok()?;
        let [next, out] = func.nodes[delta].outs[..] else { unreachable!("two results") };
        self.states[1] = next;
        op(func, Op::Reshape { dims: "[T,4]".parse().expect("dims") }, &[out])
    }
}
