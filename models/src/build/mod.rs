//! A decoder as primitive ops: `@decode`, `@prefill` and `@head`.

mod attention;
mod capture;
mod codes;
mod delta;
pub(crate) mod draft;
mod experts;
mod feed_forward;
mod latent;
mod linear;
mod norm;
mod stacked;
mod step;

use crate::{
    checkpoint::Checkpoint,
    config::{Attention, Config, FullAttention},
    draft::Capture,
    expected::names,
    source::SafetensorsSource,
};
use ir::{DType, Dim, Func, Module, Op, TensorType, ValueId, op::Dims};
use std::collections::BTreeMap;
use step::Step;
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
    /// Element type of keys and values, latent ones included: floating point, or `i8` for codes with a
    /// scale for each head of a token. Latents and other memory then have the type of the weights.
    pub kv_dtype: DType,
    /// Tokens in a block of the KV cache.
    pub kv_block_tokens: u64,
    /// Whether inputs of FP8 projections are quantised to FP8 too, in groups of 128 channels, as
    /// those who published the weights do. Else only the weights are.
    pub quantize_activations: bool,
    /// How many of the largest logits of a row are returned apart, as many as there are at most; 0 for
    /// none.
    pub head_top_k: u64,
}

/// The model of `checkpoint` as primitive ops.
///
/// Symbols: `T` rows of the step, `W` width of the block tables in blocks, `NB` and `NW` blocks of
/// the KV memory and of the window memory, `NS` slots of recurrent memory, each with a spare one
/// at the end, `R` rows of the hidden-state memory.
///
/// - `@decode(inputs.., states..)` returns `logits f32[T,V]`, `argmax i32[T]` and the last version
///   of each state; with [`BuildOptions::head_top_k`] `K` also, after `argmax`, `top_logits f32[T,K]` and
///   `top_ids i32[T,K]`, the largest logits in descending order.
/// - `@prefill(inputs.., states.., hidden)` stores the residual stream before the last layer in the first `T`
///   rows of `hidden`, a state `[R,H]` of the activation type, and returns the states and `hidden`. Of the last
///   layer it computes keys and values alone. All its rows are one sequence: tables have one row.
/// - `@head(rows i32[T], positions i32[T], block_table i32[1,W], kv.i, hidden)` goes on with rows of `hidden`, for
///   no other row of a prompt needs the rest of the last layer, `i`: it returns `logits f32[T,V]`, `argmax
///   i32[T]` and what `@decode` returns after these.
///
/// Where the last layer is not softmax attention over KV blocks, `hidden` is the residual stream after its
/// attention, and the inputs of `@head` are `rows` and `hidden`.
///
/// Inputs are `token_ids`, `positions`, `slots i32[T]` and `block_table i32[T,W]`; where a layer has
/// a window, `window_slots i32[T]` and `window_table i32[T,W]`; where one has recurrent memory,
/// `sequences i32[T]`, the slot of each row. States of layer `i`, of
/// element type `kv_dtype` unless said otherwise:
///
/// - softmax attention: `kv.i [NB,2,kv_heads,kv_block_tokens,head_dim]`, `[..,head_dim+4]` in `i8`, with a
///   window `window_kv.i [NW,..]` instead;
/// - latent attention: `latent.i` and `rope_key.i [NB,kv_block_tokens,channels]`, with an indexer
///   also `index_key.i`;
/// - gated delta rule: `conv.i [NS,taps-1,channels]` and `delta.i f32[NS,heads,key_dim,value_dim]`.
///
/// Weights keep their stored type; a `cast`, or a `dequantize`, follows where another is wanted.
/// The output of layer `i` is called `layers.i.out`, the choice of its router `layers.i.route_ids` and
/// `layers.i.route_weights`, the keys its indexer chose `layers.i.selected`.
///
/// # Panics
/// When an element type in `options` is not floating point, nor `kv_dtype` `i8`, or `kv_block_tokens` is 0.
pub fn build(checkpoint: &Checkpoint, options: &BuildOptions) -> Module {
    module(checkpoint, options, None)
}

/// [`build`], with what a draft reads: `@decode` and `@prefill` take one more state at the end,
/// `features [R,F]` of the activation type, store the values `capture` of their `T` rows in its
/// first rows, and return it last.
///
/// # Panics
/// As [`build`], and when `capture` names a layer that the model does not have.
pub fn build_capturing(
    checkpoint: &Checkpoint,
    options: &BuildOptions,
    capture: &Capture,
) -> Module {
    module(checkpoint, options, Some(capture))
}

fn module(checkpoint: &Checkpoint, options: &BuildOptions, capture: Option<&Capture>) -> Module {
    check_options(options);
    Module {
        funcs: vec![
            decode(checkpoint, options, capture),
            prefill(checkpoint, options, capture),
            head(checkpoint, options),
        ],
    }
}

fn check_options(options: &BuildOptions) {
    let Precision { weights, activations } = options.precision;
    assert!(
        [weights, activations].iter().all(|t| t.is_float())
            && (options.kv_dtype.is_float() || options.kv_dtype == DType::I8),
        "a model is built in floating point, not {options:?}"
    );
    assert!(options.kv_block_tokens > 0, "a cache block holds tokens");
}

fn decode(checkpoint: &Checkpoint, options: &BuildOptions, capture: Option<&Capture>) -> Func {
    let mut b = Builder::new("decode", checkpoint, options);
    let mut step = b.step_params(Dim::sym("T"));
    let features = b.features_param(capture);
    let x = b.before_last(&mut step);
    let x = b.last_attention(x, &mut step);
    let x = b.last_feed_forward(x);
    let mut results = b.final_norm_and_head(x);
    results.extend(step.states.values());
    results.extend(features.map(|state| b.capture(state, capture, x)));
    b.f.set_results(results);
    b.f
}

fn prefill(checkpoint: &Checkpoint, options: &BuildOptions, capture: Option<&Capture>) -> Func {
    let mut b = Builder::new("prefill", checkpoint, options);
    let mut step = b.step_params(Dim::Const(1));
    let hidden = b.hidden_param();
    let features = b.features_param(capture);
    let before = b.before_last(&mut step);
    let late = b.late_attention();
    // What is captured may be the output of the last layer.
    let attended = match &late {
        Some((place, a)) if capture.is_none() => {
            let normed = b.attention_norm(place, before);
            b.write_kv(place, a, normed, &mut step);
            None
        }
        _ => Some(b.last_attention(before, &mut step)),
    };
    let kept = match attended {
        Some(attended) if late.is_none() => attended,
        _ => before,
    };
    let hidden = b.op(Op::StoreRows {}, &[hidden, kept], "hidden.out");
    let mut results: Vec<ValueId> = step.states.values().collect();
    results.push(hidden);
    results.extend(features.zip(attended).map(|(state, x)| {
        let x = b.last_feed_forward(x);
        b.capture(state, capture, x)
    }));
    b.f.set_results(results);
    b.f
}

fn head(checkpoint: &Checkpoint, options: &BuildOptions) -> Func {
    let mut b = Builder::new("head", checkpoint, options);
    let rows = b.row_param("rows");
    let attention = b.late_attention().map(|(place, a)| {
        let past = b.past_params(&place, a);
        (place, a, past)
    });
    let hidden = b.hidden_param();
    let mut x = b.op(Op::GatherRows {}, &[hidden, rows], "x");
    if let Some((place, a, past)) = attention {
        x = b.attention_from(&place, a, x, past);
    }
    let x = b.last_feed_forward(x);
    let results = b.final_norm_and_head(x);
    b.f.set_results(results);
    b.f
}

/// A function under construction.
struct Builder<'a> {
    f: Func,
    config: &'a Config,
    source: &'a SafetensorsSource,
    options: &'a BuildOptions,
    /// Weights in the types they were asked for, so that a tied head reuses the embedding's cast.
    casts: BTreeMap<(ValueId, DType), ValueId>,
    /// Codes of values by the stored scale and offset that they were made with.
    static_codes: BTreeMap<StaticCodes, ValueId>,
    /// The residual stream before the first layer and after each.
    residuals: Vec<ValueId>,
}

/// A value, and the types and bytes of the scale and the offset that quantise it.
type StaticCodes = (ValueId, [(DType, Vec<u8>); 2]);

/// A layer under construction: where its tensors are stored, what its values are called.
struct Place {
    /// Number among the layers, which its states carry.
    layer: usize,
    /// Prefix of its tensors: `model.layers.3`.
    stored: String,
    /// Prefix of its values: `layers.3`.
    name: String,
}

impl Place {
    fn layer(layer: usize) -> Self {
        Self { layer, stored: names::layer(layer), name: format!("layers.{layer}") }
    }

    /// Name of the tensors of `part`.
    fn stored(&self, part: &str) -> String {
        format!("{}.{part}", self.stored)
    }

    /// Name of a value.
    fn name(&self, part: &str) -> String {
        format!("{}.{part}", self.name)
    }
}

impl<'a> Builder<'a> {
    fn new(name: &str, checkpoint: &'a Checkpoint, options: &'a BuildOptions) -> Self {
        Self {
            f: Func::new(name),
            config: checkpoint.config(),
            source: checkpoint.source(),
            options,
            casts: BTreeMap::new(),
            static_codes: BTreeMap::new(),
            residuals: Vec::new(),
        }
    }

    /// The first result of a new node.
    fn op(&mut self, op: Op, args: &[ValueId], name: &str) -> ValueId {
        let node = self.f.append(op, args, name).expect("a checked configuration gives typed ops");
        self.f.nodes[node].outs[0]
    }

    /// The results of a new node, called `names`.
    fn ops<const N: usize>(&mut self, op: Op, args: &[ValueId], names: [&str; N]) -> [ValueId; N] {
        let node = self.f.append(op, args, "").expect("a checked configuration gives typed ops");
        let outs = self.f.nodes[node].outs.clone();
        let outs = <[ValueId; N]>::try_from(outs).expect("a name for each result");
        for (&out, name) in outs.iter().zip(names) {
            self.f.rename(out, name);
        }
        outs
    }

    fn cast(&mut self, x: ValueId, to: DType, name: &str) -> ValueId {
        if self.f.values[x].ty.dtype == to { x } else { self.op(Op::Cast { to }, &[x], name) }
    }

    /// Length of the last axis of `x`.
    fn columns(&self, x: ValueId) -> u64 {
        let last = self.f.values[x].ty.dims.last().and_then(Dim::as_const);
        last.expect("the last axis of an activation is a number")
    }

    /// `x` as `[T, dims..]`.
    fn reshape(&mut self, x: ValueId, dims: &[u64], name: &str) -> ValueId {
        let mut all = vec![Dim::sym("T")];
        all.extend(dims.iter().copied().map(Dim::Const));
        self.op(Op::Reshape { dims: Dims(all) }, &[x], name)
    }

    /// Checkpoint tensor `name` as it is stored.
    fn stored(&mut self, name: &str) -> ValueId {
        let info = self.source.info(name).expect("opening the checkpoint found every tensor");
        let dims = info.dims.iter().copied().map(Dim::Const);
        self.f.weight(name, TensorType::new(info.dtype, dims))
    }

    /// Checkpoint tensor `name` in element type `dtype`.
    fn weight(&mut self, name: &str, dtype: DType) -> ValueId {
        let stored = self.stored(name);
        if let Some(&known) = self.casts.get(&(stored, dtype)) {
            return known;
        }
        let cast = self.cast(stored, dtype, &format!("{name}.{dtype}"));
        self.casts.insert((stored, dtype), cast);
        cast
    }

    fn hidden_param(&mut self) -> ValueId {
        let dims = [Dim::sym("R"), Dim::Const(self.config.hidden)];
        self.f.param("hidden", TensorType::state(self.options.precision.activations, dims))
    }

    /// Embedding and every layer but the last.
    fn before_last(&mut self, step: &mut Step) -> ValueId {
        let Precision { weights, activations } = self.options.precision;
        let table = self.weight(names::EMBED, weights);
        let mut x = self.op(Op::Embed { out: activations }, &[step.token_ids, table], "x");
        if self.config.layers.iter().any(|l| !matches!(l.attention, Attention::Delta(_))) {
            self.rope_table(step);
        }
        self.residuals.push(x);
        for layer in 0..self.config.layers.len() - 1 {
            x = self.attention_of(layer, x, step);
            x = self.feed_forward_of(layer, x);
        }
        x
    }

    fn last_attention(&mut self, x: ValueId, step: &mut Step) -> ValueId {
        self.attention_of(self.config.layers.len() - 1, x, step)
    }

    fn attention_of(&mut self, layer: usize, x: ValueId, step: &mut Step) -> ValueId {
        self.attention(&Place::layer(layer), &self.config.layers[layer].attention, x, step)
    }

    /// The last layer, if `@head` computes its attention: of softmax over KV blocks. (The blocks of a window
    /// may have gone by the time logits are asked for.)
    fn late_attention(&self) -> Option<(Place, &'a FullAttention)> {
        let layer = self.config.layers.len() - 1;
        match &self.config.layers[layer].attention {
            Attention::Full(a) if a.window().is_none() => Some((Place::layer(layer), a)),
            _ => None,
        }
    }

    fn last_feed_forward(&mut self, x: ValueId) -> ValueId {
        self.feed_forward_of(self.config.layers.len() - 1, x)
    }

    fn feed_forward_of(&mut self, layer: usize, x: ValueId) -> ValueId {
        let spec = &self.config.layers[layer].feed_forward;
        let x = self.feed_forward(&Place::layer(layer), spec, x);
        self.residuals.push(x);
        x
    }

    fn final_norm_and_head(&mut self, x: ValueId) -> Vec<ValueId> {
        let normed = self.norm(names::FINAL_NORM, x, self.options.precision.weights, "final_norm");
        let logits = self.head(normed);
        let argmax = self.op(Op::Argmax {}, &[logits], "argmax");
        let mut results = vec![logits, argmax];
        let k = self.options.head_top_k.min(self.columns(logits));
        if k > 0 {
            results.extend(self.ops(Op::TopK { k }, &[logits], ["top_logits", "top_ids"]));
        }
        results
    }
}
