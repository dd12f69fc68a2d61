//! Outputs recorded from Hugging Face transformers, see `tests/fixtures/README.md`.

use crate::answer::Entry;
use safetensors::{Dtype, SafeTensors, tensor::TensorView};
use std::path::Path;

/// The recorded outputs of one fixture.
pub struct Oracle(Vec<u8>);

/// A matrix of recorded numbers.
pub struct Matrix {
    /// Row-major.
    pub data: Vec<f32>,
    /// Columns.
    pub cols: usize,
}

/// A step of a recorded greedy continuation.
pub struct Step {
    /// The token.
    pub id: u32,
    /// The best tokens with their log-probabilities, best first.
    pub best: Vec<Entry>,
}

impl Matrix {
    /// Row `i`.
    pub fn row(&self, i: usize) -> &[f32] {
        &self.data[i * self.cols..(i + 1) * self.cols]
    }

    /// How many rows there are.
    pub fn rows(&self) -> usize {
        self.data.len() / self.cols
    }

    /// Row `i` as natural log-probabilities, summed in f64.
    pub fn log_softmax(&self, i: usize) -> Vec<f32> {
        let row = self.row(i);
        let max = f64::from(row.iter().fold(f32::NEG_INFINITY, |m, &v| m.max(v)));
        let sum: f64 = row.iter().map(|&v| (f64::from(v) - max).exp()).sum();
        row.iter().map(|&v| (f64::from(v) - max - sum.ln()) as f32).collect()
    }

    /// The column of the largest number in row `i`, the first among equals.
    pub fn argmax(&self, i: usize) -> usize {
        let row = self.row(i);
        (0..row.len()).fold(0, |best, k| if row[k] > row[best] { k } else { best })
    }

    /// The largest magnitude in row `i`.
    pub fn largest(&self, i: usize) -> f32 {
        self.row(i).iter().fold(0.0, |m, v| m.max(v.abs()))
    }
}

/// Words of `N` bytes.
fn words<const N: usize>(bytes: &[u8]) -> impl Iterator<Item = [u8; N]> {
    bytes.as_chunks::<N>().0.iter().copied()
}

impl Oracle {
    /// Reads `oracle.safetensors` of a fixture.
    ///
    /// # Panics
    /// When it is missing.
    pub fn open(fixture: &Path) -> Self {
        Self(std::fs::read(fixture.join("oracle.safetensors")).expect("the fixture has an oracle"))
    }

    fn view<T>(&self, name: &str, read: impl FnOnce(&TensorView<'_>) -> T) -> T {
        let tensors = SafeTensors::deserialize(&self.0).expect("the oracle is a safetensors file");
        read(&tensors.tensor(name).unwrap_or_else(|_| panic!("the oracle has {name}")))
    }

    /// Integers, such as `gen_ids_f32_a` and `route_ids_f32_a`.
    pub fn ids(&self, name: &str) -> Vec<u32> {
        self.view(name, |t| {
            let bytes = t.data();
            match t.dtype() {
                Dtype::I64 => words(bytes).map(|w| i64::from_le_bytes(w) as u32).collect(),
                Dtype::I32 => words(bytes).map(|w| i32::from_le_bytes(w) as u32).collect(),
                other => panic!("{name} is {other:?}"),
            }
        })
    }

    /// Zeros and ones, such as `dsa_selected_f32_a`.
    pub fn flags(&self, name: &str) -> Vec<u32> {
        self.view(name, |t| {
            assert!(matches!(t.dtype(), Dtype::U8 | Dtype::BOOL));
            t.data().iter().map(|&flag| u32::from(flag)).collect()
        })
    }

    /// The greedy continuation recorded as `kind`, such as `f32_a`.
    pub fn steps(&self, kind: &str) -> Vec<Step> {
        let best_ids = self.ids(&format!("gen_top5_ids_{kind}"));
        let logprobs = self.floats(&format!("gen_top5_logprobs_{kind}"));
        let ids = self.ids(&format!("gen_ids_{kind}"));
        let best = |step: usize| {
            let ids = &best_ids[step * logprobs.cols..];
            logprobs.row(step).iter().zip(ids).map(|(&v, &id)| (v, id as usize)).collect()
        };
        ids.into_iter().enumerate().map(|(i, id)| Step { id, best: best(i) }).collect()
    }

    /// Floating-point numbers, such as `logits_f32_a`, with the last dimension as columns.
    pub fn floats(&self, name: &str) -> Matrix {
        self.view(name, |t| {
            let data = match t.dtype() {
                Dtype::F32 => {
                    let (words, _) = t.data().as_chunks::<4>();
                    words.iter().map(|&w| f32::from_le_bytes(w)).collect()
                }
                Dtype::BF16 => {
                    let (words, _) = t.data().as_chunks::<2>();
                    words.iter().map(|&w| half::bf16::from_le_bytes(w).to_f32()).collect()
                }
                other => panic!("{name} is {other:?}"),
            };
            Matrix { data, cols: *t.shape().last().expect("a matrix has columns") }
        })
    }
}
