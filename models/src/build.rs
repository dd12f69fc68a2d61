//! A dense decoder as primitive ops: `@decode`, `@prefill` and `@head`.

use crate::{checkpoint::Checkpoint, config::Config, expected::names, source::SafetensorsSource};
use ir::{DType, Dim, Func, Module, Op, TensorType, ValueId, op::Dims};
use std::collections::BTreeMap;
use tensor::WeightSource;

/// Element types of a built model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Precision {
    /// Of matrices and of what multiplies them: norm outputs, attention outputs, the gated half of
    /// the feed-forward block.
    pub weights: DType,
    /// Of the residual stream, of matrix products, and of queries, keys and values.
    pub activations: DType,
}

/// What a checkpoint leaves open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BuildOptions {
    /// Element types.
    pub precision: Precision,
    /// Element type of the KV cache.
    pub kv_dtype: DType,
    /// Tokens in a block of the KV cache.
    pub kv_block_tokens: u64,
}

/// The model of `checkpoint` as primitive ops over the symbols `T` (rows of the step), `W` (width
/// of the block table in blocks), `NB` (blocks of the KV cache) and `R` (rows of the hidden-state
/// memory).
///
/// - `@decode(token_ids i32[T], positions i32[T], slots i32[T], block_table i32[T,W], kv.0 ..)`
///   returns `logits f32[T,V]`, `argmax i32[T]` and the last version of each cache.
/// - `@prefill(token_ids i32[T], positions i32[T], slots i32[T], block_table i32[1,W], kv.0 ..,
///   hidden)` stores the residual stream before the final norm in the first `T` rows of `hidden`, a
///   state `[R,H]` of the activation type, and returns the caches and `hidden`.
/// - `@head(rows i32[T], hidden)` returns `logits f32[T,V]` and `argmax i32[T]` of rows of `hidden`.
///
/// A cache is a state `kv_dtype[NB,2,kv_heads,kv_block_tokens,head_dim]`, one for each layer.
/// Weights keep their stored type; a `cast` follows where another is wanted.
///
/// # Panics
/// When an element type in `options` is not floating point or `kv_block_tokens` is 0.
pub fn build(checkpoint: &Checkpoint, options: &BuildOptions) -> Module {
    let Precision { weights, activations } = options.precision;
    assert!(
        [weights, activations, options.kv_dtype].iter().all(|t| t.is_float()),
        "a model is built in floating point, not {options:?}"
    );
    assert!(options.kv_block_tokens > 0, "a cache block holds tokens");
    Module {
        funcs: vec![
            decode(checkpoint, options),
            prefill(checkpoint, options),
            head(checkpoint, options),
        ],
    }
}

fn decode(checkpoint: &Checkpoint, options: &BuildOptions) -> Func {
    let mut b = Builder::new("decode", checkpoint, options);
    let mut step = b.step_params(Dim::sym("T"));
    let x = b.layers(&mut step);
    let mut results = b.final_norm_and_head(x);
    results.extend(step.kv);
    b.f.set_results(results);
    b.f
}

fn prefill(checkpoint: &Checkpoint, options: &BuildOptions) -> Func {
    let mut b = Builder::new("prefill", checkpoint, options);
    let mut step = b.step_params(Dim::Const(1));
    let hidden = b.hidden_param();
    let x = b.layers(&mut step);
    let hidden = b.op(Op::StoreRows {}, &[hidden, x], "hidden.out");
    let mut results = step.kv;
    results.push(hidden);
    b.f.set_results(results);
    b.f
}

fn head(checkpoint: &Checkpoint, options: &BuildOptions) -> Func {
    let mut b = Builder::new("head", checkpoint, options);
    let rows = b.f.param("rows", TensorType::new(DType::I32, [Dim::sym("T")]));
    let hidden = b.hidden_param();
    let x = b.op(Op::GatherRows {}, &[hidden, rows], "x");
    let results = b.final_norm_and_head(x);
    b.f.set_results(results);
    b.f
}

/// Inputs of a step that the layers read, and the current version of each cache.
struct Step {
    token_ids: ValueId,
    positions: ValueId,
    slots: ValueId,
    block_table: ValueId,
    kv: Vec<ValueId>,
}

struct Builder<'a> {
    f: Func,
    config: &'a Config,
    source: &'a SafetensorsSource,
    options: &'a BuildOptions,
    /// Weights in the types they were asked for, so that a tied head reuses the embedding's cast.
    casts: BTreeMap<(ValueId, DType), ValueId>,
}

impl<'a> Builder<'a> {
    fn new(name: &str, checkpoint: &'a Checkpoint, options: &'a BuildOptions) -> Self {
        Self {
            f: Func::new(name),
            config: checkpoint.config(),
            source: checkpoint.source(),
            options,
            casts: BTreeMap::new(),
        }
    }

    fn op(&mut self, op: Op, args: &[ValueId], name: &str) -> ValueId {
        let node = self.f.append(op, args, name).expect("a checked configuration gives typed ops");
        self.f.nodes[node].outs[0]
    }

    fn cast(&mut self, x: ValueId, to: DType, name: &str) -> ValueId {
        if self.f.values[x].ty.dtype == to { x } else { self.op(Op::Cast { to }, &[x], name) }
    }

    /// Checkpoint tensor `name` in element type `dtype`.
    fn weight(&mut self, name: &str, dtype: DType) -> ValueId {
        let info = self.source.info(name).expect("opening the checkpoint found every tensor");
        let dims = info.dims.iter().copied().map(Dim::Const);
        let stored = self.f.weight(name, TensorType::new(info.dtype, dims));
        if let Some(&known) = self.casts.get(&(stored, dtype)) {
            return known;
        }
        let cast = self.cast(stored, dtype, &format!("{name}.{dtype}"));
        self.casts.insert((stored, dtype), cast);
        cast
    }

    fn step_params(&mut self, sequences: Dim) -> Step {
        let rows = || TensorType::new(DType::I32, [Dim::sym("T")]);
        let table = TensorType::new(DType::I32, [sequences, Dim::sym("W")]);
        let c = self.config;
        let cache = TensorType::state(
            self.options.kv_dtype,
            [
                Dim::sym("NB"),
                Dim::Const(2),
                Dim::Const(c.kv_heads),
                Dim::Const(self.options.kv_block_tokens),
                Dim::Const(c.head_dim),
            ],
        );
        Step {
            token_ids: self.f.param("token_ids", rows()),
            positions: self.f.param("positions", rows()),
            slots: self.f.param("slots", rows()),
            block_table: self.f.param("block_table", table),
            kv: (0..c.layers).map(|i| self.f.param(&format!("kv.{i}"), cache.clone())).collect(),
        }
    }

    fn hidden_param(&mut self) -> ValueId {
        let dims = [Dim::sym("R"), Dim::Const(self.config.hidden)];
        self.f.param("hidden", TensorType::state(self.options.precision.activations, dims))
    }

    /// Embedding and every layer: the residual stream before the final norm.
    fn layers(&mut self, step: &mut Step) -> ValueId {
        let Precision { weights, activations } = self.options.precision;
        let spec = self.config.rope;
        let table = self.weight(names::EMBED, weights);
        let mut x = self.op(Op::Embed { out: activations }, &[step.token_ids, table], "x");
        let rope = self.op(Op::RopeTable { spec }, &[step.positions], "rope");
        for layer in 0..self.config.layers {
            x = self.attention(layer, x, rope, step);
            x = self.feed_forward(layer, x);
        }
        x
    }

    /// `x + Attn(N(x))`.
    fn attention(&mut self, layer: u64, x: ValueId, rope: ValueId, step: &mut Step) -> ValueId {
        let (c, Precision { weights, .. }) = (self.config, self.options.precision);
        let name = |n: &str| format!("layers.{layer}.{n}");
        let rotary = Op::Rotary { interleaved: false };

        let normed = self.norm(layer, "input_layernorm", x, weights, &name("attn_norm"));
        let q = self.heads(layer, "q", c.heads, normed);
        let q = self.head_norm(layer, "q", q);
        let q = self.op(rotary.clone(), &[q, rope], &name("q_rotary"));
        let k = self.heads(layer, "k", c.kv_heads, normed);
        let k = self.head_norm(layer, "k", k);
        let k = self.op(rotary, &[k, rope], &name("k_rotary"));
        let v = self.heads(layer, "v", c.kv_heads, normed);

        let cache = &mut step.kv[layer as usize];
        *cache = self.op(Op::KvWrite {}, &[*cache, k, v, step.slots], &name("kv"));
        let attention =
            Op::Attention { scale: (c.head_dim as f64).powf(-0.5) as f32, out: weights };
        let args = [q, *cache, step.block_table, step.positions];
        let o = self.op(attention, &args, &name("attn"));
        let flat = Dims(vec![Dim::sym("T"), Dim::Const(c.heads * c.head_dim)]);
        let o = self.op(Op::Reshape { dims: flat }, &[o], &name("attn_flat"));
        let o = self.project(layer, "self_attn.o_proj", c.o_bias, o, &name("o"));
        self.op(Op::Add {}, &[x, o], &name("attn_residual"))
    }

    /// `x + FFN(N(x))`.
    fn feed_forward(&mut self, layer: u64, x: ValueId) -> ValueId {
        let Precision { weights, .. } = self.options.precision;
        let bias = self.config.mlp_bias;
        let name = |n: &str| format!("layers.{layer}.{n}");

        let normed = self.norm(layer, "post_attention_layernorm", x, weights, &name("mlp_norm"));
        let gate = self.project(layer, "mlp.gate_proj", bias, normed, &name("gate"));
        let up = self.project(layer, "mlp.up_proj", bias, normed, &name("up"));
        let gate = self.op(Op::Silu {}, &[gate], &name("silu"));
        let gated = self.op(Op::Mul {}, &[gate, up], &name("gated"));
        let gated = self.cast(gated, weights, &name("gated_cast"));
        let down = self.project(layer, "mlp.down_proj", bias, gated, &name("down"));
        self.op(Op::Add {}, &[x, down], &name("out"))
    }

    fn final_norm_and_head(&mut self, x: ValueId) -> Vec<ValueId> {
        let Precision { weights, .. } = self.options.precision;
        let norm = self.weight(names::FINAL_NORM, DType::F32);
        let eps = self.config.rms_norm_eps;
        let normed = self.op(Op::RmsNorm { eps, out: weights }, &[x, norm], "final_norm");
        let matrix = if self.config.tied { names::EMBED } else { names::HEAD };
        let matrix = self.weight(matrix, weights);
        let logits = self.op(Op::Matmul { out: DType::F32 }, &[normed, matrix], "logits");
        let argmax = self.op(Op::Argmax {}, &[logits], "argmax");
        vec![logits, argmax]
    }

    fn norm(&mut self, layer: u64, part: &str, x: ValueId, out: DType, name: &str) -> ValueId {
        let weight = self.weight(&names::layer(layer, &format!("{part}.weight")), DType::F32);
        self.op(Op::RmsNorm { eps: self.config.rms_norm_eps, out }, &[x, weight], name)
    }

    /// Projection `which` of attention, split into heads.
    fn heads(&mut self, layer: u64, which: &str, heads: u64, x: ValueId) -> ValueId {
        let (part, name) = (format!("self_attn.{which}_proj"), format!("layers.{layer}.{which}"));
        let flat = self.project(layer, &part, self.config.qkv_bias, x, &format!("{name}_proj"));
        let dims = Dims(vec![Dim::sym("T"), Dim::Const(heads), Dim::Const(self.config.head_dim)]);
        self.op(Op::Reshape { dims }, &[flat], &name)
    }

    fn head_norm(&mut self, layer: u64, which: &str, x: ValueId) -> ValueId {
        if !self.config.qk_norm {
            return x;
        }
        let (part, name) =
            (format!("self_attn.{which}_norm"), format!("layers.{layer}.{which}_norm"));
        self.norm(layer, &part, x, self.options.precision.activations, &name)
    }

    fn project(&mut self, layer: u64, part: &str, bias: bool, x: ValueId, name: &str) -> ValueId {
        let Precision { weights, activations } = self.options.precision;
        let weight = self.weight(&names::layer(layer, &format!("{part}.weight")), weights);
        let y = self.op(Op::Matmul { out: activations }, &[x, weight], name);
        if !bias {
            return y;
        }
        let bias = self.weight(&names::layer(layer, &format!("{part}.bias")), activations);
        self.op(Op::AddBias {}, &[y, bias], &format!("{name}_biased"))
    }
}
