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

/// Normalised rows.
#[derive(Clone, Copy)]
pub(super) struct Normed {
    /// In the type of weights.
    pub(super) rows: ValueId,
    /// Before rounding to it, where that was asked for.
    pub(super) exact: ValueId,
}

impl Builder<'_> {
    /// The norm of the residual stream, or of heads, whose weight is `{prefix}.weight`.
    pub(super) fn norm(&mut self, prefix: &str, x: ValueId, out: DType, name: &str) -> ValueId {
        let kind = Norm { eps: self.config.rms_norm_eps, from_one: self.config.norms_from_one };
        self.norm_of(prefix, kind, x, out, name)
    }

    /// The norm whose weight is `{prefix}.weight`, over the last axis of `x`, and its bias where
    /// the checkpoint stores one.
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
        let eps = kind.eps;
        let bias = format!("{prefix}.bias");
        if self.source.info(&bias).is_none() {
            return self.op(Op::RmsNorm { eps, out }, &[x, weight], name);
        }
        let normed = self.op(Op::RmsNorm { eps, out: DType::F32 }, &[x, weight], name);
        let bias = self.weight(&bias, DType::F32);
        let biased = self.op(Op::AddBias {}, &[normed, bias], &format!("{name}_biased"));
        self.cast(biased, out, &format!("{name}_cast"))
    }

    /// The norm of the residual stream before a half of a layer. `exact` asks for the f32 rows
    /// too.
    pub(super) fn pre_norm(&mut self, prefix: &str, x: ValueId, exact: bool, name: &str) -> Normed {
        let weights = self.options.precision.weights;
        if !exact || weights == DType::F32 {
            let rows = self.norm(prefix, x, weights, name);
            return Normed { rows, exact: rows };
        }
        let exact = self.norm(prefix, x, DType::F32, &format!("{name}_f32"));
        Normed { rows: self.cast(exact, weights, name), exact }
    }
}
