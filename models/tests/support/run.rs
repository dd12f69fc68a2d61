//! A built model on the interpreter, fed the way the engine feeds it.

#![allow(dead_code, reason = "each test file uses its own part")]

use ir::{
    Bindings, DType, Func, Module, Storage, Symbol, Value,
    interp::{self, Tensor},
};
use precast_models::{
    BuildOptions, Checkpoint, SafetensorsSource, build, build_capturing, draft::Capture,
};
use std::{collections::HashMap, ops::Range};
use tensor::WeightSource;

/// Blocks of the KV memory and of the window memory, the spare one included.
pub(crate) const BLOCKS: usize = 20;
const WINDOW_BLOCKS: usize = 5;
/// Slots of recurrent memory, the spare one included, and the one that the sequence has.
const SLOTS: usize = 3;
const SLOT: usize = 1;
/// Rows of the memory for hidden states.
pub(crate) const HIDDEN_ROWS: usize = 160;

/// One sequence with its memories.
pub(crate) struct Session {
    pub(crate) module: Module,
    weights: HashMap<String, Tensor>,
    /// States of the layers in the order of the parameters.
    states: Vec<Tensor>,
    hidden: Tensor,
    /// What a draft reads, where it is captured.
    pub(crate) features: Option<Tensor>,
    block_tokens: usize,
    /// Tokens that layers with a window see.
    window: Option<usize>,
    /// Tokens in the memories, and as many of them as were there before the last step.
    length: usize,
    before: usize,
    /// The functions that return what [`Session::expose`] asked for, in order.
    exposed: Vec<&'static str>,
}

pub(crate) fn floats(bytes: &[u8], dtype: DType) -> Vec<f64> {
    match dtype {
        DType::F32 => bytes
            .chunks_exact(4)
            .map(|b| f64::from(f32::from_le_bytes([b[0], b[1], b[2], b[3]])))
            .collect(),
        DType::BF16 => bytes
            .chunks_exact(2)
            .map(|b| half::bf16::from_le_bytes([b[0], b[1]]).to_f64())
            .collect(),
        DType::I8 => bytes.iter().map(|&b| f64::from(b as i8)).collect(),
        DType::U8 => bytes.iter().map(|&b| f64::from(b)).collect(),
        DType::I32 => bytes
            .chunks_exact(4)
            .map(|b| f64::from(i32::from_le_bytes([b[0], b[1], b[2], b[3]])))
            .collect(),
        DType::I4 => nibbles(bytes).map(|n| f64::from(((n << 4) as i8) >> 4)).collect(),
        DType::MxFp4 => nibbles(bytes).map(e2m1).collect(),
        DType::F8E4M3 => bytes.iter().map(|&b| e4m3(b)).collect(),
        other => panic!("{other} is not stored by these tests"),
    }
}

fn nibbles(bytes: &[u8]) -> impl Iterator<Item = u8> {
    bytes.iter().flat_map(|b| [b & 15, b >> 4])
}

fn e2m1(code: u8) -> f64 {
    let magnitude = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0][usize::from(code & 7)];
    if code & 8 == 0 { magnitude } else { -magnitude }
}

/// OCP FP8: bias 7, subnormals at exponent 0.
fn e4m3(code: u8) -> f64 {
    let (exponent, fraction) = (i32::from(code >> 3 & 15), f64::from(code & 7) / 8.0);
    let magnitude = match exponent {
        0 => fraction * 2f64.powi(-6),
        _ => (1.0 + fraction) * 2f64.powi(exponent - 7),
    };
    if code & 0x80 == 0 { magnitude } else { -magnitude }
}

pub(crate) fn ints(values: &[usize]) -> Tensor {
    Tensor::new(DType::I32, vec![values.len()], values.iter().map(|&v| v as f64).collect())
}

/// The states of `f` and their types with symbols bound, the memory of hidden states excepted.
pub(crate) fn states(f: &Func, bindings: &Bindings) -> Vec<Tensor> {
    let poison = |p: &Value| poisoned(p.ty.dtype, p.ty.bind(bindings).const_dims().unwrap());
    layer_states(f).map(poison).collect()
}

fn state_names(f: &Func) -> Vec<&str> {
    layer_states(f).map(|p| &p.name[..]).collect()
}

fn layer_states(f: &Func) -> impl Iterator<Item = &Value> {
    let params = f.params.iter().map(|&p| &f.values[p]);
    params.filter(|p| p.ty.storage == Storage::State && !MEMORIES.contains(&&p.name[..]))
}

/// States that are no memory of a layer.
const MEMORIES: [&str; 3] = ["hidden", "features", "draft_hidden"];

/// A place that is read before it is written must not go unnoticed.
pub(crate) fn poisoned(dtype: DType, dims: Vec<u64>) -> Tensor {
    let poison = vec![1e4; dims.iter().product::<u64>() as usize];
    Tensor::new(dtype, dims.into_iter().map(|d| d as usize).collect(), poison)
}

pub(crate) fn bindings(rows: usize, width: usize) -> Bindings {
    let bound = [
        ("T", rows),
        ("W", width),
        ("NB", BLOCKS),
        ("NW", WINDOW_BLOCKS),
        ("NS", SLOTS),
        ("R", HIDDEN_ROWS),
    ];
    bound.into_iter().map(|(s, n)| (Symbol::new(s), n as u64)).collect()
}

/// Every tensor of `source`.
pub(crate) fn load(source: &SafetensorsSource) -> HashMap<String, Tensor> {
    let load = |info: &tensor::TensorInfo| {
        let mut bytes = vec![0; info.bytes() as usize];
        source.read(&info.name, 0, &mut bytes).unwrap();
        let dims = info.dims.iter().map(|&d| d as usize).collect();
        (info.name.clone(), Tensor::new(info.dtype, dims, floats(&bytes, info.dtype)))
    };
    source.tensors().map(load).collect()
}

impl Session {
    pub(crate) fn new(checkpoint: &Checkpoint, options: &BuildOptions) -> Self {
        Self::of(build(checkpoint, options), checkpoint, options)
    }

    /// A session that keeps what a draft reads.
    pub(crate) fn capturing(
        checkpoint: &Checkpoint,
        options: &BuildOptions,
        capture: &Capture,
    ) -> Self {
        let width = capture.width(checkpoint.config().hidden);
        let features = poisoned(options.precision.activations, vec![HIDDEN_ROWS as u64, width]);
        let module = build_capturing(checkpoint, options, capture);
        Self { features: Some(features), ..Self::of(module, checkpoint, options) }
    }

    fn of(module: Module, checkpoint: &Checkpoint, options: &BuildOptions) -> Self {
        let weights = load(checkpoint.source());
        let states = states(module.func("decode").unwrap(), &bindings(1, 1));
        let hidden = vec![HIDDEN_ROWS as u64, checkpoint.config().hidden];
        Self {
            module,
            weights,
            states,
            hidden: poisoned(options.precision.activations, hidden),
            block_tokens: options.kv_block_tokens as usize,
            features: None,
            window: checkpoint.info().sliding_window.map(|n| n as usize),
            length: 0,
            before: 0,
            exposed: Vec::new(),
        }
    }

    /// Runs `@prefill` on `tokens`, which follow what is in the memories. Returns what
    /// [`Session::expose`] asked for, of all tokens, even where `@head` computes it.
    pub(crate) fn prefill(&mut self, tokens: &[usize]) -> Vec<Tensor> {
        let mut results = self.step("prefill", tokens);
        let captured = usize::from(self.features.is_some());
        let extra = results.split_off(self.states.len() + 1 + captured);
        self.features = self.features.take().and_then(|_| results.pop());
        self.hidden = results.pop().unwrap();
        self.states = results;
        let (mut here, mut there) = (extra.into_iter(), Vec::new().into_iter());
        if self.exposed.contains(&"head") {
            there = self.call_head(tokens.len()).split_off(2).into_iter();
        }
        let exposed = self.exposed.iter().map(|&function| match function {
            "head" => there.next(),
            _ => here.next(),
        });
        exposed.map(Option::unwrap).collect()
    }

    /// Runs `@head` on the first `rows` rows of the last prefill: logits and their argmax.
    pub(crate) fn head(&self, rows: usize) -> (Tensor, Tensor) {
        let mut results = self.call_head(rows);
        results.truncate(2);
        let [logits, argmax] = <[Tensor; 2]>::try_from(results).unwrap();
        (logits, argmax)
    }

    fn call_head(&self, rows: usize) -> Vec<Tensor> {
        let rows: Vec<usize> = (0..rows).collect();
        self.feed("head", &rows, self.before..self.before + rows.len())
    }

    /// Runs `@decode` on one token: logits and the next token.
    pub(crate) fn decode(&mut self, token: usize) -> (Tensor, usize) {
        let mut results = self.step("decode", &[token]);
        self.features = self.features.take().and_then(|_| results.pop());
        self.states = results.split_off(2);
        (results[0].clone(), results[1].data()[0] as usize)
    }

    /// The memories as they are, to go back to.
    pub(crate) fn save(&self) -> (Vec<Tensor>, usize) {
        (self.states.clone(), self.length)
    }

    /// Goes back to what was saved.
    pub(crate) fn restore(&mut self, (states, length): (Vec<Tensor>, usize)) {
        self.states = states;
        self.length = length;
    }

    /// Whether `@head` computes attention.
    pub(crate) fn head_attends(&self) -> bool {
        let f = self.module.func("head").unwrap();
        f.params.iter().any(|&p| f.values[p].name == "positions")
    }

    /// What `@prefill` left in the rows of the hidden states.
    pub(crate) fn hidden(&self, rows: usize) -> &[f64] {
        &self.hidden.data()[..rows * self.hidden.dims()[1]]
    }

    /// Makes `@prefill`, or else `@head`, return the values called `names` as well.
    pub(crate) fn expose(&mut self, names: &[String]) {
        for name in names {
            let found = ["prefill", "head"].into_iter().any(|function| {
                let f = self.module.funcs.iter_mut().find(|f| f.name == function).unwrap();
                let value = f.values.iter().find(|(_, v)| v.name == *name);
                let Some((value, _)) = value else { return false };
                let results = f.results.iter().copied().chain([value]).collect();
                f.set_results(results);
                self.exposed.push(function);
                true
            });
            assert!(found, "no value is called {name}");
        }
    }

    fn step(&mut self, name: &str, tokens: &[usize]) -> Vec<Tensor> {
        self.before = self.length;
        self.length += tokens.len();
        self.feed(name, tokens, self.before..self.length)
    }

    /// Runs a function on `tokens` at `positions`; for a head these are rows of the last prefill.
    fn feed(&self, name: &str, tokens: &[usize], positions: Range<usize>) -> Vec<Tensor> {
        let before = positions.start;
        let width = positions.end.div_ceil(self.block_tokens);
        let positions: Vec<usize> = positions.collect();
        // Blocks in descending order: a table that is ignored gives wrong results.
        let slot = |block: usize, p: usize| block * self.block_tokens + p % self.block_tokens;
        let own = |i: usize| BLOCKS - 2 - i;
        // Blocks that the first row of the step no longer sees belong to others: the table names
        // the spare one for them, which holds poison.
        let first = self.window.map_or(0, |n| (before + 1).saturating_sub(n) / self.block_tokens);
        let windowed = |i: usize| match i {
            i if i < first => WINDOW_BLOCKS - 1,
            i => WINDOW_BLOCKS - 2 - i % (WINDOW_BLOCKS - 1),
        };
        let table = |block: &dyn Fn(usize) -> usize| {
            let blocks = (0..width).map(|i| block(i) as f64).collect();
            Tensor::new(DType::I32, vec![1, width], blocks)
        };
        let slots = |block: &dyn Fn(usize) -> usize| {
            let slots = positions.iter().map(|&p| slot(block(p / self.block_tokens), p));
            ints(&slots.collect::<Vec<_>>())
        };
        let state_names = state_names(self.module.func("decode").unwrap());
        let f = self.module.func(name).unwrap();
        let input = |param: &Value| match &param.name[..] {
            "token_ids" | "rows" => ints(tokens),
            "positions" => ints(&positions),
            "slots" => slots(&own),
            "block_table" => table(&own),
            "window_slots" => slots(&windowed),
            "window_table" => table(&windowed),
            "sequences" => ints(&vec![SLOT; tokens.len()]),
            "hidden" => self.hidden.clone(),
            "features" => self.features.clone().unwrap(),
            state => self.states[state_names.iter().position(|n| *n == state).unwrap()].clone(),
        };
        let inputs: Vec<Tensor> = f.params.iter().map(|&p| &f.values[p]).map(input).collect();
        self.call(name, &inputs, &bindings(tokens.len(), width))
    }

    fn call(&self, name: &str, inputs: &[Tensor], bindings: &Bindings) -> Vec<Tensor> {
        let weights = |name: &str| self.weights[name].clone();
        interp::run(self.module.func(name).unwrap(), inputs, &weights, bindings).unwrap()
    }
}

/// Largest distance of a row of `found` from `expected`, as a share of the largest magnitude in
/// that row of `expected`.
pub(crate) fn distance(found: &[f64], expected: &[f64], columns: usize) -> f64 {
    assert_eq!(found.len(), expected.len());
    assert!(!found.is_empty() && found.len().is_multiple_of(columns));
    let row = |(f, e): (&[f64], &[f64])| {
        let off = f.iter().zip(e).map(|(f, e)| (f - e).abs()).fold(0.0, f64::max);
        off / e.iter().map(|e| e.abs()).fold(0.0, f64::max)
    };
    found.chunks(columns).zip(expected.chunks(columns)).map(row).fold(0.0, f64::max)
}
