//! Gated DeltaNet (arXiv 2412.06464): a convolution over a few tokens, then a recurrent memory.

use super::{Builder, Place, Precision, linear::Rows, norm::Norm, step::Step};
use crate::config::{DeltaAttention, Linear};
use ir::{DType, Dim, Op, ValueId, op::Dims};

/// Queries, keys and values `[T,heads,channels]` of the rows of a step.
struct Mixed {
    q: ValueId,
    k: ValueId,
    v: ValueId,
}

impl Builder<'_> {
    /// Gated DeltaNet of the normalised rows `x`, output projection included.
    pub(super) fn delta_attention(
        &mut self,
        place: &Place,
        a: &DeltaAttention,
        x: ValueId,
        step: &mut Step,
    ) -> ValueId {
        let Precision { weights, activations } = self.options.precision;
        let Mixed { q, k, v } = self.convolved(place, a, x, step);
        let (gate, beta) = self.delta_gates(place, a, x);
        let memory = *step.states.of("delta", place);
        let args = [memory, q, k, v, gate, beta, step.sequences(), step.positions];
        let names = [place.name("delta"), place.name("attn")];
        let [memory, o] = self.ops(Op::GatedDelta {}, &args, [&names[0], &names[1]]);
        *step.states.of("delta", place) = memory;

        let kind = Norm { eps: self.config.rms_norm_eps, from_one: false };
        let prefix = place.stored("linear_attn.norm");
        let o = self.norm_of(&prefix, kind, o, activations, &place.name("attn_head_norm"));
        let z = self.qkvz(place, a, x, &[z_rows(a)], "z_proj");
        let z = self.reshape(z, &[a.value_heads, a.value_dim], &place.name("z"));
        let z = self.op(Op::Silu {}, &[z], &place.name("z_silu"));
        let o = self.op(Op::Mul {}, &[z, o], &place.name("attn_gated"));
        let o = self.reshape(o, &[a.values()], &place.name("attn_flat"));
        let o = self.cast(o, weights, &place.name("attn_flat_cast"));
        let linear = Linear { outputs: self.config.hidden, inputs: a.values(), bias: false };
        self.linear(&place.stored("linear_attn.out_proj"), o, linear, &place.name("o"))
    }

    /// Rows `choice` of the projection to queries, keys, values and gates of results.
    fn qkvz(
        &mut self,
        place: &Place,
        a: &DeltaAttention,
        x: ValueId,
        choice: &[Rows],
        name: &str,
    ) -> ValueId {
        let outputs = 2 * (a.keys() + a.values());
        let linear = Linear { outputs, inputs: self.columns(x), bias: false };
        let prefix = place.stored("linear_attn.in_proj_qkvz");
        self.linear_rows(&prefix, x, linear, choice, &place.name(name))
    }

    /// Queries, keys and values behind the convolution; queries and keys of length 1, queries
    /// scaled.
    fn convolved(
        &mut self,
        place: &Place,
        a: &DeltaAttention,
        x: ValueId,
        step: &mut Step,
    ) -> Mixed {
        let x = self.qkvz(place, a, x, &qkv_rows(a), "qkv_proj");
        let weight = self.weight(&place.stored("linear_attn.conv1d.weight"), DType::F32);
        let taps = Op::Reshape { dims: Dims([a.channels(), a.taps].map(Dim::Const).to_vec()) };
        let weight = self.op(taps, &[weight], &place.name("conv_weight"));
        let rows = *step.states.of("conv", place);
        let args = [rows, x, weight, step.sequences(), step.positions];
        let names = [place.name("conv"), place.name("qkv_conv")];
        let [rows, y] = self.ops(Op::CausalConv {}, &args, [&names[0], &names[1]]);
        *step.states.of("conv", place) = rows;
        let y = self.op(Op::Silu {}, &[y], &place.name("qkv_silu"));

        let mut part = |start, heads: u64, dim: u64, name: &str| {
            let slice = Op::Slice { axis: 1, start, len: heads * dim };
            let flat = self.op(slice, &[y], &place.name(&format!("{name}_flat")));
            self.reshape(flat, &[heads, dim], &place.name(name))
        };
        let q = part(0, a.key_heads, a.key_dim, "q");
        let k = part(a.keys(), a.key_heads, a.key_dim, "k");
        let v = part(2 * a.keys(), a.value_heads, a.value_dim, "v");
        let mut unit = |x, scale, name: &str| {
            let norm = Op::L2Norm { eps: a.length_eps, scale };
            self.op(norm, &[x], &place.name(name))
        };
        let scale = (a.key_dim as f64).powf(-0.5) as f32;
        Mixed { q: unit(q, scale, "q_unit"), k: unit(k, 1.0, "k_unit"), v }
    }

    /// The decay of the memory and the strength of a write, `f32[T,value_heads]` each.
    fn delta_gates(&mut self, place: &Place, a: &DeltaAttention, x: ValueId) -> (ValueId, ValueId) {
        let linear = Linear { outputs: 2 * a.value_heads, inputs: self.columns(x), bias: false };
        let prefix = place.stored("linear_attn.in_proj_ba");
        let served = a.value_heads / a.key_heads;
        let mut part = |start, name: &str| {
            let rows = [Rows { groups: a.key_heads, start, len: served, halves: false }];
            let y = self.linear_rows(&prefix, x, linear, &rows, &place.name(name));
            self.cast(y, DType::F32, &place.name(&format!("{name}_f32")))
        };
        let (b, decay) = (part(0, "b_proj"), part(served, "a_proj"));
        let beta = self.op(Op::Sigmoid {}, &[b], &place.name("beta"));
        let a_log = self.weight(&place.stored("linear_attn.A_log"), DType::F32);
        let dt_bias = self.weight(&place.stored("linear_attn.dt_bias"), DType::F32);
        let args = [decay, a_log, dt_bias];
        (self.op(Op::DeltaGate {}, &args, &place.name("decay")), beta)
    }
}

/// Rows of `in_proj_qkvz`, whose runs are key heads: of each the query, the key, the values it
/// serves and their gates.
fn run(a: &DeltaAttention) -> (Rows, u64) {
    let served = a.value_heads / a.key_heads * a.value_dim;
    (Rows { groups: a.key_heads, start: 0, len: a.key_dim, halves: false }, served)
}

fn qkv_rows(a: &DeltaAttention) -> [Rows; 3] {
    let (query, served) = run(a);
    let key = Rows { start: a.key_dim, ..query };
    [query, key, Rows { start: 2 * a.key_dim, len: served, ..query }]
}

fn z_rows(a: &DeltaAttention) -> Rows {
    let (query, served) = run(a);
    Rows { start: 2 * a.key_dim + served, len: served, ..query }
}
