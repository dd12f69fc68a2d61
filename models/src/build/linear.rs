//! Projections: the one place that turns what a checkpoint stores for them into ops.

use super::{Builder, Precision, experts::Pairs};
use crate::{config::Linear, expected::names};
use ir::{DType, Dim, Op, ValueId, op::Dims};

/// A choice of rows of a projection: its rows form `groups` equal runs, such as heads, and of each
/// run rows `start .. start + len` are taken.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rows {
    pub(super) groups: u64,
    pub(super) start: u64,
    pub(super) len: u64,
}

impl Builder<'_> {
    /// `x [T,inputs]` through the projection stored under `prefix`: `[T,outputs]` of the activation
    /// type, bias added.
    pub(super) fn linear(
        &mut self,
        prefix: &str,
        x: ValueId,
        linear: Linear,
        name: &str,
    ) -> ValueId {
        self.linear_rows(prefix, x, linear, &[], name)
    }

    /// [`Builder::linear`] to the rows `choice` alone, one choice after the other; an empty one is
    /// all rows.
    pub(super) fn linear_rows(
        &mut self,
        prefix: &str,
        x: ValueId,
        linear: Linear,
        choice: &[Rows],
        name: &str,
    ) -> ValueId {
        let Precision { weights, activations } = self.options.precision;
        let weight = self.weight(&format!("{prefix}.weight"), weights);
        let weight = self.rows(weight, choice, name);
        let y = self.op(Op::Matmul { out: activations }, &[x, weight], name);
        if !linear.bias {
            return y;
        }
        let bias = self.weight(&format!("{prefix}.bias"), activations);
        let bias = self.rows(bias, choice, name);
        self.op(Op::AddBias {}, &[y, bias], &format!("{name}_biased"))
    }

    /// Every pair of a token and an expert through the projection of its expert, `prefixes[e]`, all
    /// of shape `linear` and without bias: `[T,k,outputs]` of the activation type from `x [T,inputs]`
    /// or `[T,k,inputs]`.
    pub(super) fn expert_linear(
        &mut self,
        prefixes: &[String],
        x: ValueId,
        pairs: Pairs,
        linear: Linear,
        name: &str,
    ) -> ValueId {
        assert!(!linear.bias, "experts that are stored one by one have no bias");
        let Precision { weights, activations } = self.options.precision;
        let parts: Vec<ValueId> =
            prefixes.iter().map(|p| self.weight(&format!("{p}.weight"), weights)).collect();
        let weight = self.op(Op::Stack {}, &parts, &format!("{name}.weight"));
        let args = [x, pairs.order, pairs.starts, weight];
        self.op(Op::GroupedMatmul { out: activations }, &args, name)
    }

    /// Rows `choice` of a constant `[N]` or `[N,K]`.
    pub(super) fn rows(&mut self, w: ValueId, choice: &[Rows], name: &str) -> ValueId {
        let dims = self.f.values[w].ty.dims.clone();
        let all = dims[0].as_const().expect("a weight has numbers of rows");
        let part = |b: &mut Self, rows: &Rows| {
            let run = all / rows.groups;
            if (rows.start, rows.len) == (0, run) {
                return w;
            }
            if rows.groups == 1 {
                let slice = Op::Slice { axis: 0, start: rows.start, len: rows.len };
                return b.op(slice, &[w], &format!("{name}.rows"));
            }
            let with = |lead: &[u64]| {
                let lead = lead.iter().copied().map(Dim::Const);
                Op::Reshape { dims: Dims(lead.chain(dims[1..].iter().cloned()).collect()) }
            };
            let runs = b.op(with(&[rows.groups, run]), &[w], &format!("{name}.runs"));
            let slice = Op::Slice { axis: 1, start: rows.start, len: rows.len };
            let cut = b.op(slice, &[runs], &format!("{name}.cut"));
            b.op(with(&[rows.groups * rows.len]), &[cut], &format!("{name}.rows"))
        };
        let parts: Vec<ValueId> = choice.iter().map(|rows| part(self, rows)).collect();
        match parts[..] {
            [] => w,
            [one] => one,
            _ => self.op(Op::Concat { axis: 0 }, &parts, &format!("{name}.joined")),
        }
    }

    /// Logits `f32[T,V]` of normalised rows.
    pub(super) fn head(&mut self, normed: ValueId) -> ValueId {
        let prefix = if self.config.tied { "model.embed_tokens" } else { names::HEAD };
        let matrix = self.weight(&format!("{prefix}.weight"), self.options.precision.weights);
        self.op(Op::Matmul { out: DType::F32 }, &[normed, matrix], "logits")
    }
}
