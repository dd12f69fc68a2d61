//! Multi-head latent attention as published (arXiv 2405.04434): each head expands the compressed
//! vectors to keys and values of its own. What is computed is the absorbed form, which the pass
//! `absorb-latent` makes of it.
//!
//! A checkpoint pairs neighbouring channels for rotation. The published code puts the first of each
//! pair before the second ones and rotates halves; here the weights are put in that order, which is
//! done when compiling. Scores do not depend on it, as queries and keys agree.

use super::{Builder, Place, linear::Rows, norm::Norm, step::Step};
use crate::config::{Indexer, LatentAttention, Linear};
use ir::{DType, Dim, Op, ValueId, op::Dims};

impl Builder<'_> {
    /// Latent attention of the normalised rows `x`, output projection included.
    pub(super) fn latent_attention(
        &mut self,
        place: &Place,
        a: &LatentAttention,
        x: ValueId,
        step: &mut Step,
    ) -> ValueId {
        let query = self.compressed_query(place, a, x);
        let (q_nope, q_rope) = self.latent_query(place, a, query, step);
        self.write_latent(place, a, x, step);
        let (keys, values) = self.latent_weights(place, a);

        let (latent, rope_key) =
            (*step.states.of("latent", place), *step.states.of("rope_key", place));
        let mut args = vec![q_nope, q_rope, keys, values, latent, rope_key];
        args.extend([step.paged.table, step.positions]);
        let prefix = place.stored("self_attn.o_proj");
        let (scale, out) = (a.scale, self.input_type(&prefix));
        let op = match &a.indexer {
            None => Op::ExpandedLatentAttention { scale, out },
            Some(indexer) => {
                args.push(self.selected(place, a, indexer, query, x, step));
                Op::SparseExpandedLatentAttention { scale, out }
            }
        };
        let o = self.op(op, &args, &place.name("attn"));
        let width = a.heads * a.value_dim;
        let o = self.reshape(o, &[width], &place.name("attn_flat"));
        let linear = Linear { outputs: self.config.hidden, inputs: width, bias: false };
        self.linear(&prefix, o, linear, &place.name("o"))
    }

    /// The compressed query `[T,query_rank]`, normalised, in the type of weights.
    fn compressed_query(&mut self, place: &Place, a: &LatentAttention, x: ValueId) -> ValueId {
        let linear = Linear { outputs: a.query_rank, inputs: self.columns(x), bias: false };
        let prefix = place.stored("self_attn.q_a_proj");
        let q = self.linear(&prefix, x, linear, &place.name("q_a"));
        let prefix = place.stored("self_attn.q_a_layernorm");
        let weights = self.options.precision.weights;
        self.norm_of(&prefix, inner(a), q, weights, &place.name("q_a_norm"))
    }

    /// Queries without position `[T,heads,nope_dim]`, in the type of weights, and rotated ones
    /// `[T,heads,rope_dim]`.
    fn latent_query(
        &mut self,
        place: &Place,
        a: &LatentAttention,
        query: ValueId,
        step: &mut Step,
    ) -> (ValueId, ValueId) {
        let dim = a.nope_dim + a.rope_dim;
        let linear = Linear { outputs: a.heads * dim, inputs: a.query_rank, bias: false };
        let prefix = place.stored("self_attn.q_b_proj");
        let mut part = |start, len, halves, name: &str| {
            let rows = [Rows { groups: a.heads, start, len, halves }];
            let flat_name = place.name(&format!("{name}_proj"));
            let flat = self.linear_rows(&prefix, query, linear, &rows, &flat_name);
            self.reshape(flat, &[a.heads, len], &place.name(name))
        };
        let nope = part(0, a.nope_dim, false, "q_nope");
        let rope = part(a.nope_dim, a.rope_dim, true, "q_rope");
        let weights = self.options.precision.weights;
        let nope = self.cast(nope, weights, &place.name("q_nope_cast"));
        let table = self.rope_table(step);
        let rotary = Op::Rotary { interleaved: false };
        (nope, self.op(rotary, &[rope, table], &place.name("q_rotary")))
    }

    /// Writes the compressed vector and the rotated key of each row.
    fn write_latent(&mut self, place: &Place, a: &LatentAttention, x: ValueId, step: &mut Step) {
        let outputs = a.latent + a.rope_dim;
        let linear = Linear { outputs, inputs: self.columns(x), bias: false };
        let prefix = place.stored("self_attn.kv_a_proj_with_mqa");
        let mut part = |start, len, halves, name: &str| {
            let rows = [Rows { groups: 1, start, len, halves }];
            self.linear_rows(&prefix, x, linear, &rows, &place.name(name))
        };
        let latent = part(0, a.latent, false, "kv_a");
        let key = part(a.latent, a.rope_dim, true, "k_rope");

        let prefix = place.stored("self_attn.kv_a_layernorm");
        let activations = self.options.precision.activations;
        let latent = self.norm_of(&prefix, inner(a), latent, activations, &place.name("kv_a_norm"));
        self.write_paged(place, "latent", latent, step);
        let key = self.rotate_one(key, &place.name("k_rope"), step);
        self.write_paged(place, "rope_key", key, step);
    }

    /// Rotates rows `x [T,d]` as one head.
    fn rotate_one(&mut self, x: ValueId, name: &str, step: &mut Step) -> ValueId {
        let width = self.columns(x);
        let table = self.rope_table(step);
        let head = self.reshape(x, &[1, width], &format!("{name}_head"));
        let rotary = Op::Rotary { interleaved: false };
        let rotated = self.op(rotary, &[head, table], &format!("{name}_rotary"));
        self.reshape(rotated, &[width], &format!("{name}_rotated"))
    }

    fn write_paged(&mut self, place: &Place, kind: &str, x: ValueId, step: &mut Step) {
        let state = step.states.of(kind, place);
        *state = self.op(Op::PagedWrite {}, &[*state, x, step.paged.slots], &place.name(kind));
    }

    /// What expands a compressed vector to the keys, `[heads,nope_dim,latent]`, and to the values of
    /// each head, `[heads,value_dim,latent]`.
    fn latent_weights(&mut self, place: &Place, a: &LatentAttention) -> (ValueId, ValueId) {
        let name = |part: &str| place.name(&format!("kv_b.{part}"));
        let both = self.matrix(&place.stored("self_attn.kv_b_proj"));
        let dims = [a.heads, a.nope_dim + a.value_dim, a.latent].map(Dim::Const);
        let heads = Op::Reshape { dims: Dims(dims.to_vec()) };
        let both = self.op(heads, &[both], &name("heads"));
        let keys = Op::Slice { axis: 1, start: 0, len: a.nope_dim };
        let keys = self.op(keys, &[both], &name("keys"));
        let values = Op::Slice { axis: 1, start: a.nope_dim, len: a.value_dim };
        (keys, self.op(values, &[both], &name("values")))
    }

    /// The keys that each row attends to, `i32[T,keys]`.
    fn selected(
        &mut self,
        place: &Place,
        a: &LatentAttention,
        indexer: &Indexer,
        query: ValueId,
        x: ValueId,
        step: &mut Step,
    ) -> ValueId {
        let stored = |part: &str| place.stored(&format!("self_attn.indexer.{part}"));
        let &Indexer { heads, dim, keys, norm_eps } = indexer;

        let linear = Linear { outputs: heads * dim, inputs: a.query_rank, bias: false };
        let q = self.linear(&stored("wq_b"), query, linear, &place.name("index_q_proj"));
        let q = self.reshape(q, &[heads, dim], &place.name("index_q"));
        let table = self.rope_table(step);
        let rotary = Op::Rotary { interleaved: false };
        let q = self.op(rotary, &[q, table], &place.name("index_q_rotary"));

        let linear = Linear { outputs: dim, inputs: self.columns(x), bias: false };
        let k = self.exact_linear(&stored("wk"), x, linear, &place.name("index_k_proj"));
        let norm = Op::LayerNorm { eps: norm_eps, out: self.options.precision.activations };
        let weight = self.weight(&stored("k_norm.weight"), DType::F32);
        let bias = self.weight(&stored("k_norm.bias"), DType::F32);
        let k = self.op(norm, &[k, weight, bias], &place.name("index_k_norm"));
        let k = self.rotate_one(k, &place.name("index_k"), step);
        self.write_paged(place, "index_key", k, step);

        let linear = Linear { outputs: heads, ..linear };
        let name = place.name("index_weights");
        let weights = self.exact_linear(&stored("weights_proj"), x, linear, &name);
        // The published factor `heads^-0.5` on `weights` is positive, so it may stand inside.
        let scale = ((heads * dim) as f64).powf(-0.5) as f32;
        let state = *step.states.of("index_key", place);
        let args = [q, weights, state, step.paged.table, step.positions];
        self.op(Op::SelectKeys { keys, scale }, &args, &place.name("selected"))
    }
}

/// The norm of both compressed vectors.
fn inner(a: &LatentAttention) -> Norm {
    Norm { eps: a.norm_eps, from_one: false }
}
