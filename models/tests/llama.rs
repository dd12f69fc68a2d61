//! Llama checkpoints with every rotary scaling and every bias, against a forward pass written here
//! in plain `f64` from the definitions, which shares nothing with the builder.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

#[path = "support/run.rs"]
mod run;
mod support;

use precast_models::Checkpoint;
use run::{Session, distance, floats};
use serde_json::{Value, json};
use std::{
    collections::HashMap,
    f64::consts::{PI, TAU},
};
use support::{F32, Random, Stored, llama_with, write_checkpoint};

/// A model as stored, with the numbers of its `config.json`.
struct Plain {
    config: Value,
    tensors: HashMap<String, Vec<f64>>,
}

type Rows = Vec<Vec<f64>>;

impl Plain {
    fn new(config: &Value, stored: &[Stored]) -> Self {
        let values = |t: &Stored| (t.0.clone(), floats(&t.3, ir::DType::F32));
        Self { config: config.clone(), tensors: stored.iter().map(values).collect() }
    }

    fn size(&self, key: &str) -> usize {
        self.config[key].as_u64().unwrap() as usize
    }

    /// Angle per position of each channel pair, and the factor on cosine and sine.
    fn frequencies(&self) -> (Vec<f64>, f64) {
        let (d, theta) = (self.size("head_dim"), self.config["rope_theta"].as_f64().unwrap());
        let plain = |i: usize| 1.0 / theta.powf((2 * i) as f64 / d as f64);
        let scaling = &self.config["rope_scaling"];
        let number = |key: &str| scaling[key].as_f64().unwrap();
        let pairs = 0..d / 2;
        match scaling["rope_type"].as_str() {
            None => (pairs.map(plain).collect(), 1.0),
            Some("linear") => (pairs.map(|i| plain(i) / number("factor")).collect(), 1.0),
            Some("llama3") => {
                let turns = |i: usize| number("original_max_position_embeddings") * plain(i) / TAU;
                let (low, high) = (number("low_freq_factor"), number("high_freq_factor"));
                let kept = |i: usize| ((turns(i) - low) / (high - low)).clamp(0.0, 1.0);
                let mixed = |i: usize| plain(i) * (kept(i) + (1.0 - kept(i)) / number("factor"));
                (pairs.map(mixed).collect(), 1.0)
            }
            Some("yarn") => {
                let original = number("original_max_position_embeddings");
                // The channel that turns `beta` times within the original context.
                let channel =
                    |beta: f64| d as f64 * (original / (beta * 2.0 * PI)).ln() / (2.0 * theta.ln());
                let top = d as f64 - 1.0;
                let low = channel(number("beta_fast")).floor().clamp(0.0, top);
                let high = channel(number("beta_slow")).ceil().clamp(0.0, top);
                let divided = |i: usize| ((i as f64 - low) / (high - low)).clamp(0.0, 1.0);
                let factor = number("factor");
                let mixed = |i: usize| plain(i) * (1.0 - divided(i) + divided(i) / factor);
                (pairs.map(mixed).collect(), 0.1 * factor.ln() + 1.0)
            }
            Some(other) => panic!("{other}"),
        }
    }

    fn linear(&self, x: &Rows, name: &str) -> Rows {
        let weight = &self.tensors[&format!("{name}.weight")];
        let bias = self.tensors.get(&format!("{name}.bias"));
        let row = |x: &Vec<f64>| {
            let product = |w: &[f64]| w.iter().zip(x).map(|(w, x)| w * x).sum::<f64>();
            let products = weight.chunks(x.len()).map(product);
            products.enumerate().map(|(i, y)| y + bias.map_or(0.0, |b| b[i])).collect()
        };
        x.iter().map(row).collect()
    }

    fn norm(&self, x: &Rows, name: &str) -> Rows {
        let weight = &self.tensors[&format!("{name}.weight")];
        let eps = self.config["rms_norm_eps"].as_f64().unwrap();
        let row = |x: &Vec<f64>| {
            let mean = x.iter().map(|v| v * v).sum::<f64>() / x.len() as f64;
            x.iter().zip(weight).map(|(v, w)| w * v / (mean + eps).sqrt()).collect()
        };
        x.iter().map(row).collect()
    }

    /// Rotates every head of every row, in place.
    fn rotate(&self, x: &mut Rows) {
        let (frequencies, factor) = self.frequencies();
        let d = self.size("head_dim");
        for (position, row) in x.iter_mut().enumerate() {
            for head in row.chunks_mut(d) {
                for (i, f) in frequencies.iter().enumerate() {
                    let (sin, cos) = (position as f64 * f).sin_cos();
                    let (u, v) = (head[i], head[i + d / 2]);
                    head[i] = factor * (u * cos - v * sin);
                    head[i + d / 2] = factor * (v * cos + u * sin);
                }
            }
        }
    }

    fn attention(&self, x: &Rows, layer: &str) -> Rows {
        let project = |which: &str| self.linear(x, &format!("{layer}.self_attn.{which}_proj"));
        let (mut q, mut k, v) = (project("q"), project("k"), project("v"));
        self.rotate(&mut q);
        self.rotate(&mut k);
        let (d, heads) = (self.size("head_dim"), self.size("num_attention_heads"));
        let group = heads / self.size("num_key_value_heads");
        let head = |t: usize, h: usize| {
            let shared = h / group * d;
            let score = |j: usize| {
                let (q, k) = (&q[t][h * d..][..d], &k[j][shared..][..d]);
                (q.iter().zip(k).map(|(q, k)| q * k).sum::<f64>() / (d as f64).sqrt()).exp()
            };
            let scores: Vec<f64> = (0..=t).map(score).collect();
            let total: f64 = scores.iter().sum();
            let mixed = |c: usize| {
                scores.iter().zip(&v).map(|(s, v)| s * v[shared + c]).sum::<f64>() / total
            };
            (0..d).map(mixed).collect::<Vec<_>>()
        };
        let row = |t: usize| (0..heads).flat_map(|h| head(t, h)).collect();
        let mixed: Rows = (0..x.len()).map(row).collect();
        self.linear(&mixed, &format!("{layer}.self_attn.o_proj"))
    }

    fn feed_forward(&self, x: &Rows, layer: &str) -> Rows {
        let mut gate = self.linear(x, &format!("{layer}.mlp.gate_proj"));
        let up = self.linear(x, &format!("{layer}.mlp.up_proj"));
        for (gate, up) in gate.iter_mut().flatten().zip(up.iter().flatten()) {
            *gate = *gate / (1.0 + (-*gate).exp()) * up;
        }
        self.linear(&gate, &format!("{layer}.mlp.down_proj"))
    }

    fn logits(&self, tokens: &[usize]) -> Vec<f64> {
        let hidden = self.size("hidden_size");
        let table = &self.tensors["model.embed_tokens.weight"];
        let mut x: Rows = tokens.iter().map(|&t| table[t * hidden..][..hidden].to_vec()).collect();
        let add = |x: &mut Rows, y: Rows| {
            for (x, y) in x.iter_mut().flatten().zip(y.iter().flatten()) {
                *x += y;
            }
        };
        for layer in 0..self.size("num_hidden_layers") {
            let layer = format!("model.layers.{layer}");
            let attended =
                self.attention(&self.norm(&x, &format!("{layer}.input_layernorm")), &layer);
            add(&mut x, attended);
            let normed = self.norm(&x, &format!("{layer}.post_attention_layernorm"));
            let fed = self.feed_forward(&normed, &layer);
            add(&mut x, fed);
        }
        let tied = self.config["tie_word_embeddings"] == true;
        let head = if tied { "model.embed_tokens" } else { "lm_head" };
        self.linear(&self.norm(&x, "model.norm"), head).concat()
    }
}

/// Prompts long enough that every scaling rule changes some angle visibly.
fn prompt(vocab: usize) -> Vec<usize> {
    let mut random = Random(11);
    (0..90).map(|_| ((random.next() + 1.0) / 2.0 * vocab as f32) as usize % vocab).collect()
}

/// Logits of the built model: 80 tokens by `@prefill` and `@head`, ten by `@decode`.
fn built(checkpoint: &Checkpoint, tokens: &[usize]) -> Vec<f64> {
    let mut session = Session::new(checkpoint, &F32);
    let (first, rest) = tokens.split_at(80);
    session.prefill(first);
    let mut logits = session.head(first.len()).0.data().to_vec();
    for &token in rest {
        logits.extend_from_slice(session.decode(token).0.data());
    }
    logits
}

const TOLERANCE: f64 = 1e-5;

fn agrees(changes: Value) {
    let config = llama_with(changes);
    let (dir, stored) = write_checkpoint(&config);
    let checkpoint = Checkpoint::open(dir.path()).unwrap();
    let plain = Plain::new(&config, &stored);
    let vocab = plain.size("vocab_size");
    let tokens = prompt(vocab);
    let (found, expected) = (built(&checkpoint, &tokens), plain.logits(&tokens));
    let off = distance(&found, &expected, vocab);
    assert!(off < TOLERANCE, "{config}: {off}");

    // The setting under test must matter, or agreement proves nothing about it.
    if !config["rope_scaling"].is_null() {
        let mut without = config.clone();
        without["rope_scaling"] = Value::Null;
        let unscaled = Plain::new(&without, &stored).logits(&tokens);
        assert!(distance(&found, &unscaled, vocab) > 100.0 * TOLERANCE, "{config}");
    }
}

#[test]
fn plain_with_its_own_head() {
    agrees(json!({}));
}

#[test]
fn every_projection_with_a_bias_and_a_tied_head() {
    agrees(json!({ "attention_bias": true, "mlp_bias": true, "tie_word_embeddings": true }));
}

#[test]
fn one_key_head_for_each_query_head_and_one_for_all() {
    agrees(json!({ "num_key_value_heads": 4 }));
    agrees(json!({ "num_key_value_heads": 1, "attention_bias": true }));
}

#[test]
fn linear_scaling() {
    agrees(json!({ "rope_scaling": { "rope_type": "linear", "factor": 4.0 } }));
}

#[test]
fn llama3_scaling() {
    agrees(json!({ "rope_scaling": {
        "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 128,
    } }));
}

#[test]
fn yarn_scaling() {
    agrees(json!({ "rope_scaling": {
        "rope_type": "yarn", "factor": 8.0, "beta_fast": 8.0, "beta_slow": 1.0,
        "original_max_position_embeddings": 64,
    } }));
}
