//! A built model on the interpreter, fed the way the engine feeds it.

#![allow(dead_code, reason = "each test file uses its own part")]

use ir::{
    Bindings, DType, Module, Symbol,
    interp::{self, Tensor},
};
use precast_models::{Attention, BuildOptions, Checkpoint, build};
use std::collections::HashMap;
use tensor::WeightSource;

/// Blocks of the cache, the spare one included.
const BLOCKS: usize = 12;
/// Rows of the memory for hidden states.
const HIDDEN_ROWS: usize = 128;

/// One sequence with its cache.
pub(crate) struct Session {
    pub(crate) module: Module,
    weights: HashMap<String, Tensor>,
    kv: Vec<Tensor>,
    hidden: Tensor,
    block_tokens: usize,
    /// Tokens in the cache.
    length: usize,
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

fn ints(values: &[usize]) -> Tensor {
    Tensor::new(DType::I32, vec![values.len()], values.iter().map(|&v| v as f64).collect())
}

impl Session {
    pub(crate) fn new(checkpoint: &Checkpoint, options: &BuildOptions) -> Self {
        let source = checkpoint.source();
        let load = |info: &tensor::TensorInfo| {
            let mut bytes = vec![0; info.bytes() as usize];
            source.read(&info.name, 0, &mut bytes).unwrap();
            let dims = info.dims.iter().map(|&d| d as usize).collect();
            (info.name.clone(), Tensor::new(info.dtype, dims, floats(&bytes, info.dtype)))
        };
        let weights = source.tensors().map(load).collect();
        let c = checkpoint.config();
        let state = |dtype, dims: Vec<usize>| {
            // A place that is read before it is written must not go unnoticed.
            let poison = vec![1e4; dims.iter().product()];
            Tensor::new(dtype, dims, poison)
        };
        let block_tokens = options.kv_block_tokens as usize;
        let Attention::Full(a) = &c.layers[0].attention else { panic!("{c:?}") };
        let dims = vec![BLOCKS, 2, a.kv_heads as usize, block_tokens, a.head_dim as usize];
        Self {
            module: build(checkpoint, options),
            weights,
            kv: vec![state(options.kv_dtype, dims); c.layers.len()],
            hidden: state(options.precision.activations, vec![HIDDEN_ROWS, c.hidden as usize]),
            block_tokens,
            length: 0,
        }
    }

    /// Runs `@prefill` on `tokens`, which follow what is in the cache. Returns every result.
    pub(crate) fn prefill(&mut self, tokens: &[usize]) -> Vec<Tensor> {
        let mut results = self.step("prefill", tokens, true);
        let extra = results.split_off(self.kv.len() + 1);
        self.hidden = results.pop().unwrap();
        self.kv = results;
        extra
    }

    /// Runs `@head` on the first `rows` rows of the last prefill: logits and their argmax.
    pub(crate) fn head(&self, rows: usize) -> (Tensor, Tensor) {
        let rows: Vec<usize> = (0..rows).collect();
        let bindings = self.bindings(rows.len(), 1);
        let results = self.call("head", &[ints(&rows), self.hidden.clone()], &bindings);
        let [logits, argmax] = <[Tensor; 2]>::try_from(results).unwrap();
        (logits, argmax)
    }

    /// Runs `@decode` on one token: logits and the next token.
    pub(crate) fn decode(&mut self, token: usize) -> (Tensor, usize) {
        let mut results = self.step("decode", &[token], false);
        self.kv = results.split_off(2);
        (results[0].clone(), results[1].data()[0] as usize)
    }

    /// What `@prefill` left in the rows of the hidden states.
    pub(crate) fn hidden(&self, rows: usize) -> &[f64] {
        &self.hidden.data()[..rows * self.hidden.dims()[1]]
    }

    /// Makes `@prefill` return the values called `names` as well.
    pub(crate) fn expose(&mut self, names: &[String]) {
        let f = self.module.funcs.iter_mut().find(|f| f.name == "prefill").unwrap();
        let find = |n: &String| f.values.iter().find(|(_, v)| v.name == *n).unwrap().0;
        let results = f.results.iter().copied().chain(names.iter().map(find)).collect();
        f.set_results(results);
    }

    fn step(&mut self, name: &str, tokens: &[usize], hidden: bool) -> Vec<Tensor> {
        // Blocks in descending order: a table that is ignored gives wrong results.
        let block = |i: usize| BLOCKS - 1 - i;
        let positions: Vec<usize> = (self.length..self.length + tokens.len()).collect();
        let slot =
            |p: &usize| block(p / self.block_tokens) * self.block_tokens + p % self.block_tokens;
        let slots: Vec<usize> = positions.iter().map(slot).collect();
        self.length += tokens.len();
        let width = self.length.div_ceil(self.block_tokens);
        let table: Vec<f64> = (0..width).map(|i| block(i) as f64).collect();
        let mut inputs = vec![
            ints(tokens),
            ints(&positions),
            ints(&slots),
            Tensor::new(DType::I32, vec![1, width], table),
        ];
        inputs.extend(self.kv.iter().cloned());
        if hidden {
            inputs.push(self.hidden.clone());
        }
        self.call(name, &inputs, &self.bindings(tokens.len(), width))
    }

    fn bindings(&self, rows: usize, width: usize) -> Bindings {
        let bound = [("T", rows), ("W", width), ("NB", BLOCKS), ("R", HIDDEN_ROWS)];
        bound.into_iter().map(|(s, n)| (Symbol::new(s), n as u64)).collect()
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
