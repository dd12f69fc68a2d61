//! The functions of an artifact on the interpreter, in double precision, with the weights of its
//! checkpoint.

use crate::feed::{Feed, Places};
use artifact::{Artifact, Phase};
use half::bf16;
use ir::{
    Bindings, DType, Func, Module, Storage, Symbol,
    interp::{self, Tensor},
};
use models::Checkpoint;
use std::collections::BTreeMap;
use tensor::WeightSource;

/// KV blocks beside the spare one.
const BLOCKS: usize = 8;
/// Rows of the memory for hidden states.
const HIDDEN_ROWS: usize = 64;

/// The program of an artifact and the memories of one sequence.
pub struct Interpreted {
    functions: BTreeMap<&'static str, Func>,
    weights: BTreeMap<String, Tensor>,
    states: BTreeMap<String, Tensor>,
    places: Places,
    length: usize,
}

impl Interpreted {
    /// The functions of `artifact` as the passes left them, with the weights of `checkpoint`, which is
    /// stored in bf16.
    ///
    /// # Panics
    /// When they do not fit together.
    pub fn new(artifact: &Artifact, checkpoint: &Checkpoint) -> Self {
        let function = |name: &'static str| {
            let path = format!("ir/{name}.ir");
            let text = artifact.file(&path).expect("it can be read").expect("the text is kept");
            let module: Module =
                ir::text::parse(&path, &String::from_utf8_lossy(&text)).expect("it parses");
            (name, module.func(name).expect("it is there").clone())
        };
        let weights = checkpoint.source().tensors().map(|info| {
            assert_eq!(info.dtype, DType::BF16, "{}", info.name);
            let mut bytes = vec![0; info.bytes() as usize];
            checkpoint.source().read(&info.name, 0, &mut bytes).expect("it can be read");
            let values = bytes.as_chunks::<2>().0.iter().map(|&b| bf16::from_le_bytes(b).to_f64());
            let dims = info.dims.iter().map(|&d| d as usize).collect();
            (info.name.clone(), Tensor::new(DType::BF16, dims, values.collect()))
        });
        let block_tokens = artifact.manifest().kv.block_tokens as usize;
        Self {
            functions: ["decode", "prefill", "head"].map(function).into(),
            weights: weights.collect(),
            states: BTreeMap::new(),
            places: Places { block_tokens, spare: BLOCKS, window_spare: 0, sequence_spare: 0 },
            length: 0,
        }
    }

    /// Feeds `tokens` to `@prefill` and returns the logits of each.
    ///
    /// # Panics
    /// When the function does not run.
    pub fn prefill(&mut self, tokens: &[u32]) -> Vec<f64> {
        let (before, places) = (self.length, self.places);
        self.step("prefill", Phase::Prefill, tokens);
        let rows: Vec<u32> = (0..tokens.len() as u32).collect();
        self.call("head", &Feed { phase: Phase::Head, tokens: &rows, before, places })
    }

    /// Feeds one token to `@decode` and returns its logits.
    ///
    /// # Panics
    /// When the function does not run.
    pub fn decode(&mut self, token: u32) -> Vec<f64> {
        self.step("decode", Phase::Decode, &[token])
    }

    fn step(&mut self, name: &str, phase: Phase, tokens: &[u32]) -> Vec<f64> {
        let feed = Feed { phase, tokens, before: self.length, places: self.places };
        self.length += tokens.len();
        self.call(name, &feed)
    }

    /// The first result that is no state; states are kept.
    fn call(&mut self, name: &str, feed: &Feed<'_>) -> Vec<f64> {
        let f = &self.functions[name];
        let bindings = self.bindings(feed);
        let params = || f.params.iter().map(|&p| &f.values[p]);
        let mut inputs = Vec::new();
        for param in params() {
            let dims = param.ty.bind(&bindings).const_dims().expect("every symbol is bound");
            let shape: Vec<usize> = dims.iter().map(|&d| d as usize).collect();
            let zeros =
                || Tensor::new(param.ty.dtype, shape.clone(), vec![0.0; shape.iter().product()]);
            inputs.push(match param.ty.storage {
                Storage::State => {
                    self.states.entry(param.name.clone()).or_insert_with(zeros).clone()
                }
                _ => {
                    let values = feed.values(&param.name, &dims).into_iter().map(f64::from);
                    Tensor::new(DType::I32, shape, values.collect())
                }
            });
        }
        let weights = |name: &str| self.weights[name].clone();
        let results = interp::run(f, &inputs, &weights, &bindings).expect("the function runs");
        let is_state = |v: &ir::Value| v.ty.storage == Storage::State;
        let mut names = params().filter(|p| is_state(p)).map(|p| p.name.clone());
        let mut first = None;
        for (&result, found) in f.results.iter().zip(results) {
            match is_state(&f.values[result]) {
                // States are returned in the order of the parameters.
                true => drop(self.states.insert(names.next().expect("it is a parameter"), found)),
                false => first = first.or(Some(found)),
            }
        }
        first.map_or_else(Vec::new, |t| t.data().to_vec())
    }

    fn bindings(&self, feed: &Feed<'_>) -> Bindings {
        let rows = feed.tokens.len();
        let width = feed.end().div_ceil(self.places.block_tokens);
        let bound = [("T", rows), ("W", width), ("NB", BLOCKS + 1), ("NS", 1), ("R", HIDDEN_ROWS)];
        bound.into_iter().map(|(s, n)| (Symbol::new(s), n as u64)).collect()
    }
}
