//! Projections: the one place that turns what a checkpoint stores for them into ops.

use super::{Builder, codes::Matrix, experts::Pairs};
use crate::{
    config::Linear,
    expected::names,
    quant::{Codes, Scheme},
};
use ir::{DType, Dim, Op, ValueId, op::Dims};
use tensor::WeightSource;

/// A choice of rows of a projection: its rows form `groups` equal runs, such as heads, and of each
/// run rows `start .. start + len` are taken.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rows {
    pub(super) groups: u64,
    pub(super) start: u64,
    pub(super) len: u64,
    /// Whether every other row of a run comes first and the rest after them: what were neighbours
    /// is then half a run apart.
    pub(super) halves: bool,
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
        debug_assert_eq!(self.columns(x), linear.inputs, "{prefix}");
        let out = self.options.precision.activations;
        let constant = |b: &mut Self, part: &str, dtype| {
            let whole = b.weight(&format!("{prefix}.{part}"), dtype);
            b.rows(whole, choice, &format!("{name}.{part}"))
        };
        let y = match Scheme::of(self.source, prefix) {
            Scheme::Float => {
                let weight = constant(self, "weight", self.options.precision.weights);
                self.op(Op::Matmul { out }, &[x, weight], name)
            }
            Scheme::StaticInt8 => {
                let x = self.static_codes(prefix, x, name);
                let weight = constant(self, "weight", DType::I8);
                let bias = constant(self, "quant_bias", DType::I32);
                let scale = constant(self, "deq_scale", DType::F32);
                self.op(Op::StaticMatmul { out }, &[x, weight, bias, scale], name)
            }
            Scheme::Codes { codes, group } => {
                let matrix = self.codes(prefix, codes, choice, name);
                match self.quantized_inputs(codes, x, name) {
                    Some([x, x_scale]) => {
                        let args = [x, x_scale, matrix.codes, matrix.scale];
                        self.op(Op::QuantMatmul { group, out }, &args, name)
                    }
                    None => {
                        let weight = self.values_of(matrix, group, DType::F32, name);
                        self.op(Op::Matmul { out }, &[x, weight], name)
                    }
                }
            }
        };
        self.biased(prefix, y, choice, name)
    }

    /// [`Builder::linear`] for what decides between near equals: from `x` before it was rounded and,
    /// if the weight is stored in floating point, with it in f32.
    pub(super) fn exact_linear(
        &mut self,
        prefix: &str,
        x: ValueId,
        linear: Linear,
        name: &str,
    ) -> ValueId {
        let x = self.unrounded(x);
        if Scheme::of(self.source, prefix) != Scheme::Float {
            return self.linear(prefix, x, linear, name);
        }
        let weight = self.weight(&format!("{prefix}.weight"), DType::F32);
        let y = self.op(Op::Matmul { out: DType::F32 }, &[x, weight], name);
        self.biased(prefix, y, &[], name)
    }

    /// The type in which the projection stored under `prefix` wants its inputs: that of weights, or
    /// f32 if it quantises them.
    pub(super) fn input_type(&self, prefix: &str) -> DType {
        match Scheme::of(self.source, prefix) {
            Scheme::Codes { codes: Codes::Fp8, .. } if !self.options.quantize_activations => {
                self.options.precision.weights
            }
            Scheme::Float => self.options.precision.weights,
            Scheme::StaticInt8 | Scheme::Codes { .. } => DType::F32,
        }
    }

    /// `y` plus rows `choice` of the bias of a projection, if the checkpoint stores one: it may for
    /// a projection that has none by its configuration.
    fn biased(&mut self, prefix: &str, y: ValueId, choice: &[Rows], name: &str) -> ValueId {
        let stored = format!("{prefix}.bias");
        if self.source.info(&stored).is_none() {
            return y;
        }
        let bias = self.weight(&stored, self.f.values[y].ty.dtype);
        let bias = self.rows(bias, choice, &format!("{name}.bias"));
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
        let out = self.options.precision.activations;
        match Scheme::of(self.source, &prefixes[0]) {
            Scheme::StaticInt8 => unreachable!("opening the checkpoint refused it"),
            Scheme::Float => {
                let weights = self.options.precision.weights;
                let part = |b: &mut Self, p: &String| b.weight(&format!("{p}.weight"), weights);
                let weight = self.stack(prefixes, part, &format!("{name}.weight"));
                self.op(Op::GroupedMatmul { out }, &[x, pairs.order, pairs.starts, weight], name)
            }
            Scheme::Codes { codes, group } => {
                let mut scales = Vec::new();
                let part = |b: &mut Self, p: &String| {
                    let matrix = b.codes(p, codes, &[], p);
                    scales.push(matrix.scale);
                    matrix.codes
                };
                let stacked = self.stack(prefixes, part, &format!("{name}.weight"));
                let scale = self.op(Op::Stack {}, &scales, &format!("{name}.weight_scale"));
                let matrix = Matrix { codes: stacked, scale };
                self.grouped(matrix, (codes, group), x, pairs, name)
            }
        }
    }

    /// Rows `choice` of a constant `[N]` or `[N,K]`.
    pub(super) fn rows(&mut self, w: ValueId, choice: &[Rows], name: &str) -> ValueId {
        let dims = self.f.values[w].ty.dims.clone();
        let all = dims[0].as_const().expect("a weight has numbers of rows");
        let part = |b: &mut Self, rows: &Rows| {
            let run = all / rows.groups;
            let with = |lead: &[u64]| {
                let lead = lead.iter().copied().map(Dim::Const);
                Op::Reshape { dims: Dims(lead.chain(dims[1..].iter().cloned()).collect()) }
            };
            let cut = if (rows.start, rows.len) == (0, run) {
                w
            } else if rows.groups == 1 {
                let slice = Op::Slice { axis: 0, start: rows.start, len: rows.len };
                b.op(slice, &[w], &format!("{name}.rows"))
            } else {
                let runs = b.op(with(&[rows.groups, run]), &[w], &format!("{name}.runs"));
                let slice = Op::Slice { axis: 1, start: rows.start, len: rows.len };
                let cut = b.op(slice, &[runs], &format!("{name}.cut"));
                b.op(with(&[rows.groups * rows.len]), &[cut], &format!("{name}.rows"))
            };
            if !rows.halves {
                return cut;
            }
            let half = rows.len / 2;
            let pairs = b.op(with(&[rows.groups, half, 2]), &[cut], &format!("{name}.pairs"));
            let [even, odd] = [("even", 0), ("odd", 1)].map(|(part, start)| {
                let one = Op::Slice { axis: 2, start, len: 1 };
                b.op(one, &[pairs], &format!("{name}.{part}"))
            });
            let halves = b.op(Op::Concat { axis: 1 }, &[even, odd], &format!("{name}.halves"));
            b.op(with(&[rows.groups * rows.len]), &[halves], &format!("{name}.in_halves"))
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
        self.head_of(prefix, normed)
    }

    /// Logits `f32[T,V]` of normalised rows by the matrix stored under `prefix`.
    pub(super) fn head_of(&mut self, prefix: &str, normed: ValueId) -> ValueId {
        let matrix = self.matrix(prefix);
        self.op(Op::Matmul { out: DType::F32 }, &[normed, matrix], "logits")
    }
}
