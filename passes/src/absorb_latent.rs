//! Latent attention in the form that is computed.

use crate::{
    fuse::{NewNodes, guard},
    rewrite::{Context, Decline, Replacement, Rewrite},
};
use ir::{DType, Func, NodeId, Op, ValueId};

/// `expanded_latent_attention(q_nope, q_rope, keys, values, ..)` becomes
/// `head_matmul(latent_attention(head_matmul(q_nope, transpose(keys)), q_rope, ..), values)`, and the
/// sparse one the same: as `q . (K c) = (K^T q) . c` and `sum_j p_j (V c_j) = V (sum_j p_j c_j)`, queries
/// go into the space of the compressed vectors and results out of it, and no place is expanded.
///
/// Weights must be constant, so that the transposed one is stored. Absorbed queries have the type of the
/// rotated ones, mixed vectors that of the weights; neither may be one of 8 bits or less.
pub(crate) struct AbsorbLatent;

impl Rewrite for AbsorbLatent {
    fn name(&self) -> &'static str {
        "absorb-latent"
    }

    fn source(&self) -> &'static str {
        include_str!("absorb_latent.rs")
    }

    fn required(&self) -> Option<&'static str> {
        Some(
            "no target has a kernel for `expanded_latent_attention` and \
             `sparse_expanded_latent_attention`, which it replaces",
        )
    }

    /// Sums in another order, and mixed vectors are rounded to the type of weights.
    fn distance(&self) -> f64 {
        0.01
    }

    fn apply(
        &self,
        func: &mut Func,
        root: NodeId,
        _: &Context<'_>,
    ) -> Result<Replacement, Decline> {
        let node = &func.nodes[root];
        let (scale, out, sparse) = match node.op {
            Op::ExpandedLatentAttention { scale, out } => (scale, out, false),
            Op::SparseExpandedLatentAttention { scale, out } => (scale, out, true),
            _ => return Err(Decline::NoMatch),
        };
        let (args, result) = (node.args.clone(), node.outs[0]);
        let &[q_nope, q_rope, keys, values, ref memory @ ..] = &args[..] else {
            return Err(Decline::NoMatch);
        };
        guard(
            func.is_const(keys) && func.is_const(values),
            "weight-not-constant",
            "a weight is computed at run time, so it is not transposed ahead",
        )?;
        let ty = |value: ValueId| func.values[value].ty.dtype;
        let (queries, mixed) = (ty(q_rope), ty(values));
        let wide = |dtype| matches!(dtype, DType::F32 | DType::F16 | DType::BF16);
        let why =
            "queries or weights have 8 bits or less, which absorbed vectors would be rounded to";
        guard(wide(queries) && wide(mixed), "other-type", why)?;

        let attention = match sparse {
            true => Op::SparseLatentAttention { scale, out: mixed },
            false => Op::LatentAttention { scale, out: mixed },
        };
        let name = func.values[result].name.clone();
        let transposed = format!("{}_transposed", func.values[keys].name);
        let mut new = NewNodes::new(func);
        let mut op =
            |op, args: &[ValueId], name: &str| new.op(op, args, name).map_err(|_| Decline::NoMatch);
        let keys = op(Op::Transpose {}, &[keys], &transposed)?;
        let absorb = Op::HeadMatmul { out: queries };
        let q_latent = op(absorb, &[q_nope, keys], &format!("{name}.q_latent"))?;
        let args = [&[q_latent, q_rope], memory].concat();
        let mixed = op(attention, &args, &format!("{name}.mixed"))?;
        let value = op(Op::HeadMatmul { out }, &[mixed, values], "")?;
        let nodes = new.nodes;
        Ok(Replacement { nodes, ..Replacement::value(result, value) })
    }
}
