//! Norms of rows and of heads.

use super::Builder;
use ir::{DType, Op, ValueId};
use tensor::WeightSource;

/// How a norm is computed.
#[derive(Clone, Copy)]
pub(super) struct Norm {
    pub(super) eps: f32,
    /// Whether its weight is `1 + w`.
    pub(super) from_one: bool,
}

impl Builder<'_> {
    /// The norm of the residual stream, or of heads, whose weight is `{prefix}.weight`.
    pub(super) fn norm(&mut self, prefix: &str, x: ValueId, out: DType, name: &str) -> ValueId {
        let kind = Norm { eps: self.config.rms_norm_eps, from_one: self.config.norms_from_one };
        self.norm_of(prefix, kind, x, out, name)
    }

    /// The norm whose weight is `{prefix}.weight`, over the last axis of `x`, and its bias where
    /// the checkpoint stores one. It is rounded by a `cast`, which [`Builder::unrounded`] undoes.
    pub(super) fn norm_of(
        &mut self,
        prefix: &str,
        kind: Norm,
        x: ValueId,
        out: DType,
        name: &str,
    ) -> ValueId {
        let mut weight = self.weight(&format!("{prefix}.weight"), DType::F32);
        if kind.from_one {
            let one = Op::AddScalar { value: 1.0 };
            weight = self.op(one, &[weight], &format!("{prefix}.weight.from_one"));
        }
        let bias = format!("{prefix}.bias");
        let has_bias = self.source.info(&bias).is_some();
        let norm = Op::RmsNorm { eps: kind.eps, out: DType::F32 };
        let exact =
            if out != DType::F32 && !has_bias { format!("{name}_f32") } else { name.to_owned() };
        let normed = self.op(norm, &[x, weight], &exact);
        if !has_bias {
            return self.cast(normed, out, name);
        }
        let bias = self.weight(&bias, DType::F32);
        let biased = self.op(Op::AddBias {}, &[normed, bias], &format!("{name}_biased"));
        self.cast(biased, out, &format!("{name}_cast"))
    }

    /// What a cast made `x` from, if that is f32: for those who do not want it rounded.
    pub(super) fn unrounded(&self, x: ValueId) -> ValueId {
        match self.f.def_node(x) {
            Some((_, node)) if matches!(node.op, Op::Cast { .. }) => {
                let wide = node.args[0];
                if self.f.values[wide].ty.dtype == DType::F32 { wide } else { x }
            }
            _ => x,
        }
    }
}
