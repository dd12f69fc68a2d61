//! Experts whose matrices are stored in one MXFP4 tensor.

use super::{Builder, Place, codes::Matrix, experts::Pairs};
use crate::{config::Experts, expected::names, quant::MXFP4_BLOCK};
use ir::{DType, Dim, Op, ValueId, op::Dims};

/// Which rows of a stack of matrices.
#[derive(Clone, Copy)]
enum Which {
    All,
    Even,
    Odd,
}

impl Builder<'_> {
    /// Results `[T,k,H]` of the experts of each row; `activation` takes gate and up.
    pub(super) fn stacked_experts(
        &mut self,
        place: &Place,
        spec: &Experts,
        x: ValueId,
        pairs: Pairs,
        activation: Op,
    ) -> ValueId {
        let (hidden, [count, width]) = (self.columns(x), [spec.count, spec.width]);
        let up = place.stored(names::EXPERTS_UP);
        let mut half = |which, name: &str| {
            let name = place.name(name);
            self.stacked_linear(&up, [count, width, hidden], which, x, pairs, &name)
        };
        let gate = half(Which::Even, "expert_gate");
        let up = half(Which::Odd, "expert_up");
        let gated = self.op(activation, &[gate, up], &place.name("expert_gated"));
        let down = place.stored(names::EXPERTS_DOWN);
        let name = place.name("expert_down");
        self.stacked_linear(&down, [count, hidden, width], Which::All, gated, pairs, &name)
    }

    /// Pairs through the matrices `[count,rows,columns]` of their experts, biases added: rows
    /// `which` of what is stored under `prefix`.
    fn stacked_linear(
        &mut self,
        prefix: &str,
        [count, rows, columns]: [u64; 3],
        which: Which,
        x: ValueId,
        pairs: Pairs,
        name: &str,
    ) -> ValueId {
        let out = self.options.precision.activations;
        let codes = self.stored(&format!("{prefix}_blocks"));
        let scale = self.stored(&format!("{prefix}_scales"));
        let scales = [count, rows, columns / MXFP4_BLOCK];
        let matrix = Matrix {
            codes: self.alternate(codes, which, &[count, rows, columns], &format!("{name}.codes")),
            scale: self.alternate(scale, which, &scales, &format!("{name}.scales")),
        };
        let weight = self.values_of(matrix, MXFP4_BLOCK, DType::F32, name);
        let args = [x, pairs.order, pairs.starts, weight];
        let y = self.op(Op::GroupedMatmul { out }, &args, name);
        let bias = self.weight(&format!("{prefix}_bias"), out);
        let bias = self.alternate(bias, which, &[count, rows], &format!("{name}.bias"));
        self.op(Op::ExpertBias {}, &[y, pairs.ids, bias], &format!("{name}_biased"))
    }

    /// Rows `which` of a constant `[count,rows,..]`; the result has shape `dims`.
    fn alternate(&mut self, x: ValueId, which: Which, dims: &[u64], name: &str) -> ValueId {
        let start = match which {
            Which::All => return x,
            Which::Even => 0,
            Which::Odd => 1,
        };
        let reshape = |dims: &[u64]| Op::Reshape {
            dims: Dims(dims.iter().copied().map(Dim::Const).collect()),
        };
        let mut pairs = dims.to_vec();
        pairs.insert(2, 2);
        let pairs = self.op(reshape(&pairs), &[x], &format!("{name}.pairs"));
        let slice = Op::Slice { axis: 2, start, len: 1 };
        let one = self.op(slice, &[pairs], &format!("{name}.one"));
        self.op(reshape(dims), &[one], name)
    }
}
