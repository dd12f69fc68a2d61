//! Built models on the interpreter against the recorded results of the reference library.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

#[path = "support/recorded.rs"]
mod recorded;
#[path = "support/run.rs"]
mod run;
mod support;

use ir::DType;
use precast_models::{BuildOptions, Checkpoint, Precision};
use recorded::Oracle;
use run::{Session, distance};
use support::{F32, fixture};

const BF16: BuildOptions = BuildOptions {
    precision: Precision { weights: DType::BF16, activations: DType::F32 },
    kv_dtype: DType::BF16,
    kv_block_tokens: 16,
    quantize_activations: false,
};

/// Share of the largest logit of a row that f32 results may be off by.
const TOLERANCE: f64 = 2e-4;

fn setup(name: &str, options: &BuildOptions) -> (Checkpoint, Oracle, Session) {
    let checkpoint = Checkpoint::open(fixture(name)).unwrap();
    let session = Session::new(&checkpoint, options);
    (checkpoint, Oracle::of(name), session)
}

#[test]
fn prefill_matches_in_every_layer() {
    for name in ["qwen2", "qwen3"] {
        let (checkpoint, oracle, mut session) = setup(name, &F32);
        let info = checkpoint.info();
        let hidden = info.hidden as usize;
        let prompt = oracle.ids("input_ids_a");
        let mut names = vec!["x".to_owned()];
        names.extend((0..info.layers).map(|i| format!("layers.{i}.out")));
        session.expose(&names);
        let found = session.prefill(&prompt);
        let expected = oracle.get("hidden_f32_a").chunks(prompt.len() * hidden);
        assert_eq!(expected.len(), found.len());
        for (layer, (found, expected)) in found.iter().zip(expected).enumerate() {
            let off = distance(found.data(), expected, hidden);
            assert!(off < TOLERANCE, "{name}: {off} after {layer} layers");
        }
        let last = oracle.get("hidden_f32_a").chunks(prompt.len() * hidden).next_back().unwrap();
        assert!(distance(session.hidden(prompt.len()), last, hidden) < TOLERANCE);
    }
}

#[test]
fn prompts_get_the_recorded_logits_and_continuations() {
    for (name, prompt) in [("qwen2", "a"), ("qwen2", "b"), ("qwen3", "a"), ("qwen3", "b")] {
        let (checkpoint, oracle, mut session) = setup(name, &F32);
        let vocab = checkpoint.info().vocab_size as usize;
        let tokens = oracle.ids(&format!("input_ids_{prompt}"));
        session.prefill(&tokens);
        let (logits, argmax) = session.head(tokens.len());
        let off = distance(logits.data(), oracle.get(&format!("logits_f32_{prompt}")), vocab);
        assert!(off < TOLERANCE, "{name} {prompt}: {off}");

        let mut generated = vec![*argmax.data().last().unwrap() as usize];
        while generated.len() < 32 {
            let (_, next) = session.decode(*generated.last().unwrap());
            generated.push(next);
        }
        assert_eq!(generated, oracle.ids(&format!("gen_ids_f32_{prompt}")), "{name} {prompt}");
    }
}

/// Chunks and single tokens put the same numbers in the cache as one prefill.
#[test]
fn the_cut_of_a_prompt_does_not_change_its_logits() {
    let (checkpoint, oracle, mut whole) = setup("qwen3", &F32);
    let vocab = checkpoint.info().vocab_size as usize;
    let tokens = oracle.ids("input_ids_a");
    whole.prefill(&tokens);
    let (expected, _) = whole.head(tokens.len());
    let mut cut = Session::new(&checkpoint, &F32);
    cut.prefill(&tokens[..17]);
    cut.prefill(&tokens[17..30]);
    let (logits, _) = cut.head(13);
    assert_eq!(logits.data(), &expected.data()[17 * vocab..30 * vocab]);
    for (i, &token) in tokens.iter().enumerate().skip(30) {
        let (logits, _) = cut.decode(token);
        assert_eq!(logits.data(), &expected.data()[i * vocab..(i + 1) * vocab]);
    }
}

/// With bf16 matrices and cache we are about as far from f32 as the reference library's own bf16.
#[test]
fn bf16_is_as_good_as_the_reference_in_bf16() {
    for name in ["qwen2", "qwen3"] {
        let (_, oracle, mut session) = setup(name, &BF16);
        let tokens = oracle.ids("input_ids_a");
        session.prefill(&tokens);
        let (logits, _) = session.head(tokens.len());
        let exact = oracle.get("logits_f32_a");
        let off = |found: &[f64]| {
            let square = found.iter().zip(exact).map(|(f, e)| (f - e).powi(2)).sum::<f64>();
            (square / exact.len() as f64).sqrt()
        };
        let (ours, theirs) = (off(logits.data()), off(oracle.get("logits_bf16_a")));
        assert!(ours > 0.0 && ours < 1.25 * theirs, "{name}: {ours} against {theirs}");
    }
}
