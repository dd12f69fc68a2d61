//! The attention half of a layer.

use super::{
    Builder, Place, Precision,
    linear::Rows,
    step::{Paged, Past, Step, cache_kind},
};
use crate::{
    config::{Attention, FullAttention, Linear, Sinks},
    expected::names,
};
use ir::{DType, Op, ValueId};

impl Builder<'_> {
    /// `x + Attention(N(x))`.
    pub(super) fn attention(
        &mut self,
        place: &Place,
        spec: &Attention,
        x: ValueId,
        step: &mut Step,
    ) -> ValueId {
        let normed = self.attention_norm(place, x);
        let o = match spec {
            Attention::Full(a) => self.full_attention(place, a, normed, step),
            Attention::Latent(a) => self.latent_attention(place, a, normed, step),
            Attention::Delta(a) => self.delta_attention(place, a, normed, step),
        };
        self.op(Op::Add {}, &[x, o], &place.name("attn_residual"))
    }

    pub(super) fn attention_norm(&mut self, place: &Place, x: ValueId) -> ValueId {
        let prefix = place.stored(names::ATTENTION_NORM);
        self.norm(&prefix, x, self.options.precision.weights, &place.name("attn_norm"))
    }

    /// Softmax attention of the normalised rows `x`, output projection included.
    pub(super) fn full_attention(
        &mut self,
        place: &Place,
        a: &FullAttention,
        x: ValueId,
        step: &mut Step,
    ) -> ValueId {
        let rope = self.rope_table(step);
        let q = self.rotated(place, a, "q", x, rope);
        let past = self.write_kv(place, a, x, step);
        self.attend(place, a, x, q, past)
    }

    /// Writes the keys and values of the normalised rows `x`; returns what their queries look at.
    pub(super) fn write_kv(
        &mut self,
        place: &Place,
        a: &FullAttention,
        x: ValueId,
        step: &mut Step,
    ) -> Past {
        let rope = self.rope_table(step);
        let k = self.rotated(place, a, "k", x, rope);
        let v = self.heads(place, a, "v", x);
        let Paged { slots, table } = step.place(a);
        let cache = step.states.of(cache_kind(a), place);
        *cache = self.op(Op::KvWrite {}, &[*cache, k, v, slots], &place.name("kv"));
        Past { cache: *cache, table, positions: step.positions }
    }

    /// The residual stream `x` and what its rows find in the keys and values that
    /// [`Builder::write_kv`] left of them and of rows before them.
    pub(super) fn attention_from(
        &mut self,
        place: &Place,
        a: &FullAttention,
        x: ValueId,
        past: Past,
    ) -> ValueId {
        let normed = self.attention_norm(place, x);
        let rope = self.rope_of(past.positions);
        let q = self.rotated(place, a, "q", normed, rope);
        let o = self.attend(place, a, normed, q, past);
        self.op(Op::Add {}, &[x, o], &place.name("attn_residual"))
    }

    /// What the queries `q` of the normalised rows `x` find, output projection included.
    fn attend(
        &mut self,
        place: &Place,
        a: &FullAttention,
        x: ValueId,
        q: ValueId,
        past: Past,
    ) -> ValueId {
        let mut args = vec![q, past.cache, past.table, past.positions];
        let scale = (a.head_dim as f64).powf(-0.5) as f32;
        let Precision { weights, activations } = self.options.precision;
        let prefix = place.stored("self_attn.o_proj");
        let out = if a.gate { activations } else { self.input_type(&prefix) };
        let op = match &a.sinks {
            None => Op::Attention { scale, out },
            Some(Sinks { window }) => {
                args.push(self.weight(&place.stored(names::SINKS), DType::F32));
                Op::SinkAttention { scale, window: window.unwrap_or(0), out }
            }
        };
        let o = self.op(op, &args, &place.name("attn"));
        let width = a.heads * a.head_dim;
        let mut o = self.reshape(o, &[width], &place.name("attn_flat"));
        if a.gate {
            let gate = self.gate(place, a, x);
            let gated = self.op(Op::Mul {}, &[o, gate], &place.name("attn_gated"));
            o = self.cast(gated, weights, &place.name("attn_gated_cast"));
        }
        let linear = Linear { outputs: self.config.hidden, inputs: width, bias: a.o_bias };
        self.linear(&prefix, o, linear, &place.name("o"))
    }

    /// Queries or keys, as `which` says, at the positions of their rows.
    fn rotated(
        &mut self,
        place: &Place,
        a: &FullAttention,
        which: &str,
        x: ValueId,
        rope: ValueId,
    ) -> ValueId {
        let heads = match which {
            "q" => self.query(place, a, x),
            _ => self.heads(place, a, which, x),
        };
        let heads = self.head_norm(place, a, which, heads);
        let rotary = Op::Rotary { interleaved: false };
        self.op(rotary, &[heads, rope], &place.name(&format!("{which}_rotary")))
    }

    /// Queries `[T,heads,head_dim]`.
    fn query(&mut self, place: &Place, a: &FullAttention, x: ValueId) -> ValueId {
        let flat = if a.gate {
            let rows = Rows { groups: a.heads, start: 0, len: a.head_dim, halves: false };
            self.query_rows(place, a, x, &[rows], "q_proj")
        } else {
            self.query_rows(place, a, x, &[], "q_proj")
        };
        self.reshape(flat, &[a.heads, a.head_dim], &place.name("q"))
    }

    /// The factor `[T,heads * head_dim]` on results.
    fn gate(&mut self, place: &Place, a: &FullAttention, x: ValueId) -> ValueId {
        let rows = Rows { groups: a.heads, start: a.head_dim, len: a.head_dim, halves: false };
        let gate = self.query_rows(place, a, x, &[rows], "gate_proj");
        self.op(Op::Sigmoid {}, &[gate], &place.name("attn_gate"))
    }

    /// Rows of the projection that holds queries and perhaps gates.
    fn query_rows(
        &mut self,
        place: &Place,
        a: &FullAttention,
        x: ValueId,
        rows: &[Rows],
        name: &str,
    ) -> ValueId {
        let queries = a.heads * a.head_dim;
        let outputs = if a.gate { 2 * queries } else { queries };
        let linear = Linear { outputs, inputs: self.columns(x), bias: a.qkv_bias };
        self.linear_rows(&place.stored("self_attn.q_proj"), x, linear, rows, &place.name(name))
    }

    /// Keys or values, as `which` says, `[T,kv_heads,head_dim]`.
    fn heads(&mut self, place: &Place, a: &FullAttention, which: &str, x: ValueId) -> ValueId {
        let outputs = a.kv_heads * a.head_dim;
        let linear = Linear { outputs, inputs: self.columns(x), bias: a.qkv_bias };
        let prefix = place.stored(&format!("self_attn.{which}_proj"));
        let flat = self.linear(&prefix, x, linear, &place.name(&format!("{which}_proj")));
        self.reshape(flat, &[a.kv_heads, a.head_dim], &place.name(which))
    }

    fn head_norm(&mut self, place: &Place, a: &FullAttention, which: &str, x: ValueId) -> ValueId {
        if !a.qk_norm {
            return x;
        }
        let prefix = place.stored(&format!("self_attn.{which}_norm"));
        let name = place.name(&format!("{which}_norm"));
        self.norm(&prefix, x, self.options.precision.activations, &name)
    }
}
