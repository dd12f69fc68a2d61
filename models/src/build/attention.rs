//! The attention half of a layer.

use super::{Builder, Place, Precision, step::Step};
use crate::{
    config::{Attention, FullAttention, Linear},
    expected::names,
};
use ir::{Op, ValueId};

impl Builder<'_> {
    /// `x + Attention(N(x))`.
    pub(super) fn attention(
        &mut self,
        place: &Place,
        spec: &Attention,
        x: ValueId,
        step: &mut Step,
    ) -> ValueId {
        let Precision { weights, .. } = self.options.precision;
        let prefix = place.stored(names::ATTENTION_NORM);
        let normed = self.norm(&prefix, x, weights, &place.name("attn_norm"));
        let o = match spec {
            Attention::Full(a) => self.full_attention(place, a, normed, step),
        };
        self.op(Op::Add {}, &[x, o], &place.name("attn_residual"))
    }

    /// Softmax attention of the normalised rows `x`, output projection included.
    fn full_attention(
        &mut self,
        place: &Place,
        a: &FullAttention,
        x: ValueId,
        step: &mut Step,
    ) -> ValueId {
        let Precision { weights, .. } = self.options.precision;
        let rotary = Op::Rotary { interleaved: false };
        let rope = self.rope_table(step);

        let q = self.heads(place, a, "q", a.heads, x);
        let q = self.head_norm(place, a, "q", q);
        let q = self.op(rotary.clone(), &[q, rope], &place.name("q_rotary"));
        let k = self.heads(place, a, "k", a.kv_heads, x);
        let k = self.head_norm(place, a, "k", k);
        let k = self.op(rotary, &[k, rope], &place.name("k_rotary"));
        let v = self.heads(place, a, "v", a.kv_heads, x);

        let cache = step.states.of("kv", place);
        *cache = self.op(Op::KvWrite {}, &[*cache, k, v, step.slots], &place.name("kv"));
        let args = [q, *cache, step.block_table, step.positions];
        let scale = (a.head_dim as f64).powf(-0.5) as f32;
        let o = self.op(Op::Attention { scale, out: weights }, &args, &place.name("attn"));
        let width = a.heads * a.head_dim;
        let o = self.reshape(o, &[width], &place.name("attn_flat"));
        let linear = Linear { outputs: self.config.hidden, inputs: width, bias: a.o_bias };
        self.linear(&place.stored("self_attn.o_proj"), o, linear, &place.name("o"))
    }

    /// Projection `which` of attention, split into heads.
    fn heads(
        &mut self,
        place: &Place,
        a: &FullAttention,
        which: &str,
        heads: u64,
        x: ValueId,
    ) -> ValueId {
        let linear =
            Linear { outputs: heads * a.head_dim, inputs: self.columns(x), bias: a.qkv_bias };
        let prefix = place.stored(&format!("self_attn.{which}_proj"));
        let flat = self.linear(&prefix, x, linear, &place.name(&format!("{which}_proj")));
        self.reshape(flat, &[heads, a.head_dim], &place.name(which))
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
