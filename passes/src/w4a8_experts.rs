//! Products of experts with 8-bit rows and 4-bit weights, in the form that a library has an operator for.

use crate::{
    fuse::{NewNodes, guard, kernel},
    rewrite::{Context, Decline, Replacement, Rewrite},
};
use ir::{DType, Dim, Dims, Func, Layout, NodeId, Op, TypeError, ValueId};

/// `grouped_quant_matmul` of rows `i8` and a constant `weight i4[E,N,K]` becomes
/// `grouped_mixed_matmul` over constants that are rearranged: the weight with its inputs first, scales
/// as bits, and what the operator's halves of a row leave out. If the result is bf16, rows have one
/// scale each, `N` is a multiple of 8, `K` at most [`MOST_INPUTS`], and scales of the weight are for all
/// of `K` or for parts of [`PART`].
pub(crate) struct W4A8Experts;

/// Inputs that the operator takes.
const MOST_INPUTS: u64 = 18432;
/// Inputs that share a scale, where not all do.
const PART: u64 = 256;

impl Rewrite for W4A8Experts {
    fn name(&self) -> &'static str {
        "w4a8-experts"
    }

    fn source(&self) -> &'static str {
        include_str!("w4a8_experts.rs")
    }

    fn apply(
        &self,
        func: &mut Func,
        root: NodeId,
        context: &Context<'_>,
    ) -> Result<Replacement, Decline> {
        let node = &func.nodes[root];
        let Op::GroupedQuantMatmul { group, out } = node.op else { return Err(Decline::NoMatch) };
        let &[x, x_scale, order, starts, weight, scale] = &node.args[..] else {
            return Err(Decline::NoMatch);
        };
        let ty = |value: ValueId| &func.values[value].ty;
        if (ty(x).dtype, ty(weight).dtype) != (DType::I8, DType::I4) {
            return Err(Decline::NoMatch);
        }
        kernel(context.target, "grouped_mixed_matmul")?;
        let is_plain = |v: ValueId| func.is_const(v) && ty(v).layout == Layout::Nd;
        guard(
            is_plain(weight) && is_plain(scale),
            "weight-not-constant",
            "a weight is computed at run time",
        )?;
        guard(out == DType::BF16, "other-type", "the operator rounds to bf16")?;
        let per_row = ty(x_scale).dims.last() == Some(&Dim::Const(1));
        let [experts, outputs, inputs] = ty(weight).const_dims().unwrap_or_default()[..] else {
            return Err(Decline::NoMatch);
        };
        let whole = group >= inputs || group == PART && inputs.is_multiple_of(PART);
        let fits = per_row && whole && outputs.is_multiple_of(8) && inputs <= MOST_INPUTS;
        let why = "sizes are none that the operator is documented for: up to 18432 inputs, a multiple of \
                   8 outputs, scales for all inputs or for 256";
        guard(fits, "other-size", why)?;

        let mut new = NewNodes::new(func);
        let constants = new.rearranged((weight, scale), group, [experts, outputs]);
        let [weight, scale, assist] = constants.map_err(|_| Decline::NoMatch)?;
        let args = [x, x_scale, order, starts, weight, scale, assist];
        let mut nodes = new.nodes;
        let product = func.create(Op::GroupedMixedMatmul { out }, &args, "");
        let mut replacement = Replacement::node(func, root, product.map_err(|_| Decline::NoMatch)?);
        nodes.append(&mut replacement.nodes);
        Ok(Replacement { nodes, ..replacement })
    }
}

impl NewNodes<'_> {
    /// The weight, its scales and the assist of [`Op::GroupedMixedMatmul`].
    fn rearranged(
        &mut self,
        (weight, scale): (ValueId, ValueId),
        group: u64,
        dims: [u64; 2],
    ) -> Result<[ValueId; 3], TypeError> {
        let name = |v: ValueId, part: &str, func: &Func| format!("{}.{part}", func.values[v].name);
        let value = name(weight, "values", self.func);
        let values =
            self.op(Op::Dequantize { group, out: DType::F32 }, &[weight, scale], &value)?;
        let sums = name(weight, "sums", self.func);
        let sums = self.op(Op::RowSums { times: 8.0 }, &[values], &sums)?;
        let assist = name(weight, "assist", self.func);
        let dims = Dims(dims.into_iter().map(Dim::Const).collect());
        let assist = self.op(Op::Reshape { dims }, &[sums], &assist)?;
        let right = name(weight, "right", self.func);
        let right = self.op(Op::Transpose {}, &[weight], &right)?;
        let turned = name(scale, "right", self.func);
        let turned = self.op(Op::Transpose {}, &[scale], &turned)?;
        let bits = name(scale, "bits", self.func);
        Ok([right, self.op(Op::FloatBits {}, &[turned], &bits)?, assist])
    }
}
