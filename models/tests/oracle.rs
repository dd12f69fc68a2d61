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
use serde_json::Value;
use std::fs;
use support::{F32, Scratch, fixture, write_checkpoint};

const BF16: BuildOptions = BuildOptions {
    precision: Precision { weights: DType::BF16, activations: DType::F32 },
    kv_dtype: DType::BF16,
    kv_block_tokens: 16,
    quantize_activations: false,
    head_top_k: 0,
};

/// Share of the largest logit of a row that f32 results may be off by.
const TOLERANCE: f64 = 2e-4;

fn setup(name: &str, options: &BuildOptions) -> (Checkpoint, Oracle, Session) {
    let checkpoint = Checkpoint::open(fixture(name)).unwrap();
    let session = Session::new(&checkpoint, options);
    (checkpoint, Oracle::of(name), session)
}

/// What the oracle records between layers: residual streams.
fn layers_match(name: &str) {
    let (checkpoint, oracle, mut session) = setup(name, &F32);
    let config = checkpoint.config();
    let (hidden, layers) = (config.hidden as usize, config.layers.len());
    let prompt = oracle.ids("input_ids_a");
    let rows = prompt.len();
    session.expose(&["x".to_owned()]);
    session.expose(&(0..layers).map(|i| format!("layers.{i}.out")).collect::<Vec<_>>());
    session.expose(&[format!("layers.{}.attn_residual", layers - 1)]);
    let found = session.prefill(&prompt);
    let streams: Vec<f64> = found.iter().flat_map(|t| t.data().to_vec()).collect();
    let expected = oracle.get("hidden_f32_a").chunks(rows * hidden);
    for (layer, (found, expected)) in streams.chunks(rows * hidden).zip(expected).enumerate() {
        let off = distance(found, expected, hidden);
        assert!(off < TOLERANCE, "{name}: {off} after {layer} layers");
    }
    let stream = |i: usize| &streams[i * rows * hidden..(i + 1) * rows * hidden];
    // A head that looks at keys goes on before the last layer's attention, another one after it.
    let kept = if session.head_attends() { layers - 1 } else { layers + 1 };
    assert_eq!(session.hidden(rows), stream(kept), "{name}");
}

/// Logits of both prompts, and greedy continuations.
fn continuations_match(name: &str) {
    for prompt in ["a", "b"] {
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

/// Chunks and single tokens leave the same numbers in every memory as one prefill.
fn cuts_do_not_matter(name: &str) {
    let (checkpoint, oracle, mut whole) = setup(name, &F32);
    let vocab = checkpoint.info().vocab_size as usize;
    let tokens = &oracle.ids("input_ids_a");
    let tokens = &tokens[..tokens.len().min(48)];
    whole.prefill(tokens);
    let (expected, _) = whole.head(tokens.len());
    let mut cut = Session::new(&checkpoint, &F32);
    cut.prefill(&tokens[..17]);
    cut.prefill(&tokens[17..18]);
    cut.prefill(&tokens[18..30]);
    let (logits, _) = cut.head(12);
    assert_eq!(logits.data(), &expected.data()[18 * vocab..30 * vocab], "{name}");
    for (i, &token) in tokens.iter().enumerate().skip(30) {
        let (logits, _) = cut.decode(token);
        assert_eq!(logits.data(), &expected.data()[i * vocab..(i + 1) * vocab], "{name} {i}");
    }
}

/// Logits of a head are those of decoding.
fn head_goes_on(checkpoint: &Checkpoint, attends: bool) {
    let vocab = checkpoint.info().vocab_size as usize;
    let tokens: Vec<usize> = (0..40).map(|i| (i * 37 + 11) % vocab).collect();
    let [mut chunks, mut single] = [0; 2].map(|_| Session::new(checkpoint, &F32));
    assert_eq!(chunks.head_attends(), attends);
    for chunk in [&tokens[..23], &tokens[23..]] {
        chunks.prefill(chunk);
        let (logits, _) = chunks.head(chunk.len());
        for (&token, logits) in chunk.iter().zip(logits.data().chunks(vocab)) {
            assert_eq!(single.decode(token).0.data(), logits);
        }
    }
}

fn config_of(name: &str) -> Value {
    let text = fs::read_to_string(fixture(name).join("config.json")).unwrap();
    serde_json::from_str(&text).unwrap()
}

/// Released models end with gated attention; the recorded one has a layer more.
#[test]
fn a_head_goes_on_before_gated_attention() {
    let mut config = config_of("qwen3_next");
    config["num_hidden_layers"] = 4.into();
    let (dir, _) = write_checkpoint(&config);
    head_goes_on(&Checkpoint::open(dir.path()).unwrap(), true);
}

/// No recorded model ends with a window.
#[test]
fn a_head_goes_on_after_a_window() {
    let mut config = config_of("gpt_oss");
    config["layer_types"].as_array_mut().unwrap().reverse();
    let dir = Scratch::new();
    dir.write_json("config.json", &config);
    let weights = "model.safetensors";
    fs::copy(fixture("gpt_oss").join(weights), dir.file(weights)).unwrap();
    head_goes_on(&Checkpoint::open(dir.path()).unwrap(), false);
}

/// With bf16 matrices and memories we are about as far from f32 as the reference library's own
/// bf16.
fn bf16_is_as_good_as_the_reference(name: &str) {
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

macro_rules! fixtures {
    ($($name:ident),*) => { $(
        mod $name {
            const NAME: &str = stringify!($name);

            #[test]
            fn layers_match() {
                super::layers_match(NAME);
            }

            #[test]
            fn continuations_match() {
                super::continuations_match(NAME);
            }

            #[test]
            fn cuts_do_not_matter() {
                super::cuts_do_not_matter(NAME);
            }

            #[test]
            fn bf16_is_as_good_as_the_reference() {
                super::bf16_is_as_good_as_the_reference(NAME);
            }
        }
    )* };
}

fixtures!(qwen2, qwen3, qwen3_moe, deepseek_v3, deepseek_v32, qwen3_next, gpt_oss);
