//! `compile --quantize` of every kind of model with every size of group: what is packed is what was
//! asked for, and plans compute what the interpreter makes of the same program in double precision.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use artifact::{Artifact, Phase};
use benches::checkpoint::write_config;
use codegen_cpu::InstructionSet;
use ir::DType;
use models::Checkpoint;
use precast_tests::{
    compile_here,
    engine::{Output, load},
    fixture,
    interpreted::Interpreted,
    planned::Planned,
};
use runtime::{Request, StepOutcome};
use serde_json::{Value, json};
use std::fs;
use tempfile::TempDir;

const TOKENS: usize = 5;
/// Distance of a row of logits in single precision from the same in double precision.
const ROUNDING: f64 = 1e-5;
/// Of all rows, where an input between two codes is rounded the other way in one of them.
const FLIPPED: f64 = 5e-3;
/// Inputs of products with groups: 128 divides every one.
const WIDE: u64 = 128;

/// The configuration of a fixture with inputs of products that every group divides.
fn config(name: &str) -> Value {
    let text = fs::read(fixture(name).join("config.json")).unwrap();
    let mut config: Value = serde_json::from_slice(&text).unwrap();
    let sizes = [
        ("hidden_size", WIDE),
        ("intermediate_size", 2 * WIDE),
        ("moe_intermediate_size", WIDE),
        ("shared_expert_intermediate_size", WIDE),
        ("q_lora_rank", WIDE),
        ("kv_lora_rank", WIDE),
        ("v_head_dim", 32),
        ("head_dim", 32),
        ("linear_value_head_dim", 32),
        ("num_hidden_layers", if name == "qwen3_next" { 4 } else { 2 }),
        ("num_nextn_predict_layers", 0),
    ];
    for (key, value) in sizes {
        if config.get(key).is_some() {
            config[key] = json!(value);
        }
    }
    config
}

struct Model {
    dir: TempDir,
    checkpoint: Checkpoint,
}

impl Model {
    fn new(name: &str, seed: u64) -> Self {
        let dir = TempDir::new().unwrap();
        write_config(&dir.path().join("model"), &config(name), None, seed).unwrap();
        let checkpoint = Checkpoint::open(dir.path().join("model")).unwrap();
        Self { dir, checkpoint }
    }

    fn compile(&self, name: &str, options: &str) -> Artifact {
        let options = format!(
            "--graph-bs 2 --prefill-chunks 24 --max-context 64 --kv-blocks 8 --no-record --dtype f32 {options}"
        );
        compile_here(&self.dir.path().join("model"), &self.dir.path().join(name), &options)
    }
}

fn prompt() -> Vec<u32> {
    (0..20).map(|i| (i * 37 + 11) % 256).collect()
}

/// The greedy continuation of the prompt as an engine gives it.
fn served(artifact: &Artifact) -> Vec<u32> {
    let mut engine = load(artifact, 2);
    let output = Output::default();
    let request = Request::greedy(1, prompt(), TOKENS, Box::new(output.clone()));
    engine.add(Request { ignore_eos: true, ..request }).unwrap();
    while engine.step().unwrap() != StepOutcome::Idle {}
    output.tokens().iter().map(|&(token, _)| token).collect()
}

/// Logits of the prompt and of each token after it.
fn planned(artifact: &Artifact, set: InstructionSet, tokens: &[u32]) -> Vec<f64> {
    let (mut plans, prompt) = (Planned::new(artifact, set), prompt());
    plans.step(Phase::Prefill, &prompt);
    let mut logits = plans.logits(prompt.len());
    for token in tokens {
        logits.extend(&plans.step(Phase::Decode, &[*token])["logits"]);
    }
    logits
}

/// The same of the interpreter.
fn interpreted(artifact: &Artifact, checkpoint: &Checkpoint, tokens: &[u32]) -> Vec<f64> {
    let mut program = Interpreted::new(artifact, checkpoint);
    let mut logits = program.prefill(&prompt());
    tokens.iter().for_each(|&token| logits.extend(program.decode(token)));
    logits
}

/// RMS of the difference over that of `expected`.
fn distance(found: &[f64], expected: &[f64]) -> f64 {
    assert_eq!(found.len(), expected.len());
    let square = |of: &mut dyn Iterator<Item = f64>| of.map(|x| x * x).sum::<f64>().sqrt();
    let off = square(&mut found.iter().zip(expected).map(|(f, e)| f - e));
    off / square(&mut expected.iter().copied())
}

/// Checks that codes are of `dtype` with a scale for each `group` inputs, or for each row, and returns
/// the mean error of the weights and how many are stacks of experts.
fn check_packed(artifact: &Artifact, dtype: DType, group: Option<u64>) -> (f64, usize) {
    let weights = &artifact.manifest().weights;
    let lossy: Vec<_> =
        weights.iter().filter_map(|w| Some((w, f64::from(w.quantization_error?)))).collect();
    for (codes, _) in &lossy {
        assert_eq!(codes.dtype, dtype, "{}", codes.recipe);
        let inputs = *codes.dims.last().unwrap();
        let group = group.unwrap_or(inputs);
        let recipe = codes.recipe.replace("_codes", "_scales");
        let scales = weights.iter().find(|w| w.recipe == recipe).unwrap_or_else(|| {
            panic!("{recipe} is not packed");
        });
        let mut dims = codes.dims.clone();
        *dims.last_mut().unwrap() = inputs / group;
        assert_eq!((scales.dtype, &scales.dims), (DType::F32, &dims), "{recipe}");
    }
    let experts = lossy.iter().filter(|(w, _)| w.dims.len() == 3).count();
    (lossy.iter().map(|(_, e)| e).sum::<f64>() / lossy.len() as f64, experts)
}

/// Each scheme with each group, from the finest on. `lost` is what 8 and 4 bits may be from floats.
fn check(name: &str, seed: u64, lost: [f64; 2]) {
    let model = Model::new(name, seed);
    let floats = model.compile("floats", "");
    for (scheme, dtype, lost) in [("w8a8", DType::I8, lost[0]), ("w4a8", DType::I4, lost[1])] {
        let mut errors = Vec::new();
        for group in ["32", "64", "128", "channel"] {
            let what = format!("{name} {scheme} {group}");
            let options = format!("--quantize {scheme} --quantize-group {group}");
            let artifact = model.compile(&format!("{scheme}-{group}"), &options);
            let (error, experts) = check_packed(&artifact, dtype, group.parse().ok());
            assert_eq!(experts > 0, name != "qwen3", "{what}: experts are quantised");
            errors.push(error);

            let tokens = served(&artifact);
            assert_eq!(tokens.len(), TOKENS);
            let fed = &tokens[..TOKENS - 1];
            let exact = interpreted(&artifact, &model.checkpoint, fed);
            for set in InstructionSet::available() {
                let found = planned(&artifact, set, fed);
                let off = distance(&found, &exact);
                let vocab = exact.len() / (prompt().len() + fed.len());
                let rows = found.chunks(vocab).zip(exact.chunks(vocab));
                let alike = rows.take_while(|(f, e)| distance(f, e) < ROUNDING).count();
                println!("{what} {set}: {off:.2e}, {alike} rows are alike");
                assert!(alike >= 4 && off < FLIPPED, "{what} {set}: {off}, {alike} rows are alike");
                if set == InstructionSet::best() {
                    let best = |row: &[f64]| {
                        let greater = |b, i| if row[i] > row[b] { i } else { b };
                        (0..vocab).fold(0, greater) as u32
                    };
                    let rows = found.chunks(vocab).skip(prompt().len() - 1);
                    assert_eq!(rows.map(best).collect::<Vec<_>>(), tokens, "{what}");
                }
            }
            let off = distance(&exact, &interpreted(&floats, &model.checkpoint, fed));
            println!("{what}: {off:.4} from the floats, weights {error:.4}");
            assert!(off > 1e-4 && off < lost, "{what}: {off} from the model in floats");
        }
        let (groups, channel) = (&errors[..3], errors[3]);
        let more = groups.is_sorted_by(|a, b| a < b) && channel >= groups[2];
        assert!(more, "{name} {scheme}: larger groups lose more: {errors:?}");
    }
}

#[test]
fn dense() {
    check("qwen3", 7, [0.05, 0.5]);
}

#[test]
fn experts() {
    check("qwen3_moe", 7, [0.05, 0.5]);
}

/// Random weights give this model memories that enlarge what comes into them: an error of a hundredth is
/// a fifth in the end. So the weights are such that no input lies between two codes.
#[test]
fn experts_beside_the_delta_rule() {
    check("qwen3_next", 4, [0.5, 2.0]);
}

#[test]
fn latent_attention() {
    check("deepseek_v3", 7, [0.05, 0.5]);
}

#[test]
fn latent_attention_with_an_indexer() {
    check("deepseek_v32", 7, [0.05, 0.5]);
}

/// Keys and values in 8 bits, by themselves and beside a memory of floats.
#[test]
fn keys_and_values() {
    for (name, lost) in [("qwen3", 0.02), ("qwen3_next", 0.3)] {
        let model = Model::new(name, 7);
        let [floats, codes] =
            ["auto", "int8"].map(|kv| model.compile(kv, &format!("--kv-cache-dtype {kv}")));
        let bytes = |artifact: &Artifact| artifact.manifest().kv.bytes_per_token;
        // Heads of 32 elements of 4 bytes, or of 1 byte and a scale.
        assert_eq!(bytes(&codes) * 32 * 4, bytes(&floats) * (32 + 4), "{name}");

        let tokens = served(&codes);
        let fed = &tokens[..TOKENS - 1];
        let exact = interpreted(&codes, &model.checkpoint, fed);
        for set in InstructionSet::available() {
            let off = distance(&planned(&codes, set, fed), &exact);
            println!("{name} {set}: {off:.2e}");
            assert!(off < FLIPPED, "{name} {set}: {off}");
        }
        let off = distance(&exact, &interpreted(&floats, &model.checkpoint, fed));
        println!("{name}: {off:.4} from floats");
        assert!(off > 1e-4 && off < lost, "{name}: {off} from the model in floats");
    }
}

/// Inputs that no group divides fall back to a scale for each output, and only where none was asked for.
#[test]
fn without_a_size_each_product_takes_the_largest_that_divides() {
    let dir = TempDir::new().unwrap();
    let compile = |name: &str, options: &str| {
        let options =
            format!("--graph-bs 1 --prefill-chunks 16 --max-context 64 --no-record {options}");
        compile_here(&fixture("qwen2"), &dir.path().join(name), &options)
    };
    let groups = |artifact: &Artifact| -> Vec<(u64, u64)> {
        let weights = &artifact.manifest().weights;
        let of = |w: &&artifact::WeightEntry| w.recipe.contains("_scales");
        let mut found: Vec<(u64, u64)> = weights.iter().filter(of).map(inputs_and_group).collect();
        found.sort_unstable();
        found.dedup();
        found
    };
    assert_eq!(groups(&compile("default", "--quantize w4a8")), [(96, 32), (160, 32)]);
    let channel = compile("channel", "--quantize w4a8 --quantize-group channel");
    assert_eq!(groups(&channel), [(96, 96), (160, 160)]);
    let error =
        std::panic::catch_unwind(|| compile("none", "--quantize w4a8 --quantize-group 128"));
    assert!(error.is_err(), "128 divides neither 96 nor 160");
}

/// Of scales `[.., outputs, groups]` of a fixture with inputs of 96 and 160.
fn inputs_and_group(scales: &artifact::WeightEntry) -> (u64, u64) {
    let inputs = if scales.recipe.contains("down_proj") { 160 } else { 96 };
    (inputs, inputs / scales.dims.last().unwrap())
}
