//! What compiled models choose: experts, and keys that attention looks at. Every choice that is recorded
//! of both prompts, on plans for each instruction set, with the choices as further results of
//! `@prefill` and, for the last layer's experts, of `@head`.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use artifact::{Artifact, Phase};
use benches::released;
use codegen_cpu::{
    InstructionSet,
    target::{CpuTarget, KV_BLOCK_TOKENS},
};
use compiler::{KvBudget, Options};
use ir::{DType, Module, Op, ValueId};
use models::{BuildOptions, Checkpoint, Precision};
use precast_tests::{fixture, oracle::Oracle, planned::Planned};
use tempfile::TempDir;

/// Share of the largest weight of a row that weights of experts may be off by.
const TOLERANCE: f64 = 2e-4;
/// The same where inputs are rounded to few values: one that lies between two of them is rounded the
/// other way by a sum in another order.
const ROUNDED: f64 = 0.1;

/// A row of a prompt, counted over the layers that choose, where two groups of experts have scores that are
/// nearly equal and one input before them is rounded the other way.
const TIE: (&str, &str, usize) = ("deepseek_v3_w4a8_dynamic", "a", 90);

/// Makes `@prefill` and `@head` return what their layers choose. Returns the names, layer by layer: of
/// experts, of their weights, of keys.
fn expose(module: &mut Module) -> [Vec<String>; 3] {
    let [prefill, head] = ["prefill", "head"].map(|name| expose_of(module, name));
    let mut names = prefill;
    names.iter_mut().zip(head).for_each(|(names, last)| names.extend(last));
    names
}

fn expose_of(module: &mut Module, function: &str) -> [Vec<String>; 3] {
    let f = module.funcs.iter_mut().find(|f| f.name == function).unwrap();
    let mut found: [Vec<ValueId>; 3] = Default::default();
    for &node in &f.order {
        let node = &f.nodes[node];
        match node.op {
            Op::Route { .. } => {
                found[0].push(node.outs[0]);
                found[1].push(node.outs[1]);
            }
            Op::SelectKeys { .. } => found[2].push(node.outs[0]),
            _ => {}
        }
    }
    let results = f.results.iter().copied().chain(found.iter().flatten().copied()).collect();
    let names = found.map(|values| values.iter().map(|&v| f.values[v].name.clone()).collect());
    f.set_results(results);
    names
}

/// `module`, compiled in f32 with chunks of `rows` rows.
fn compiled(checkpoint: &Checkpoint, module: Module, rows: u32, dir: &TempDir) -> Artifact {
    let mut model = released::model(checkpoint).unwrap();
    model.dtype = DType::F32;
    let options = Options {
        prefill_chunks: vec![rows],
        context_tiers: Vec::new(),
        max_context: Some(rows),
        kv: KvBudget::Blocks(rows.div_ceil(KV_BLOCK_TOKENS)),
        ..released::options(&[1])
    };
    let prepared = compiler::prepare(module, &model, &CpuTarget, &options).unwrap();
    let source = compiler::Checkpoint {
        model,
        config_json: Vec::new(),
        tensors: checkpoint.source().tensors().cloned().collect(),
        weights: checkpoint.source(),
        files: Vec::new(),
    };
    let out = dir.path().join("artifact");
    prepared.write(&source, &out, &mut |_| (), None).unwrap();
    Artifact::open(&out).unwrap()
}

fn choices_match(name: &str) {
    let checkpoint = Checkpoint::open(fixture(name)).unwrap();
    let oracle = Oracle::open(&fixture(name));
    let quantised = fixture(name).join("quant_model_description.json").exists();
    for prompt in ["a", "b"] {
        let tokens = oracle.ids(&format!("input_ids_{prompt}"));
        let rows = tokens.len();
        let mut module = models::build(
            &checkpoint,
            &BuildOptions {
                precision: Precision { weights: DType::F32, activations: DType::F32 },
                kv_dtype: DType::F32,
                kv_block_tokens: u64::from(KV_BLOCK_TOKENS),
                quantize_activations: false,
                head_top_k: 0,
            },
        );
        let [ids, weights, keys] = expose(&mut module);
        assert!(!ids.is_empty());
        let dir = TempDir::new().unwrap();
        // Some rows of the last block are padding.
        let artifact = compiled(&checkpoint, module, (rows as u32 + 5).next_multiple_of(16), &dir);
        for set in InstructionSet::available() {
            let context = format!("{name} {prompt} {set}");
            let mut planned = Planned::new(&artifact, set);
            let mut outputs = planned.step(Phase::Prefill, &tokens);
            outputs.extend(planned.head(rows));
            let all = |names: &[String]| -> Vec<f64> {
                names.iter().flat_map(|n| outputs[n].iter().copied()).collect()
            };
            let recorded = oracle.ids(&format!("route_ids_f32_{prompt}"));
            let found: Vec<u32> = all(&ids).into_iter().map(|id| id as u32).collect();
            let weight = oracle.floats(&format!("route_weights_f32_{prompt}"));
            let (chosen, count) = (weight.cols, weight.data.len());
            assert_eq!((found.len(), recorded.len()), (count, count));
            let is_tie = |row: &usize| (name, prompt, *row) == TIE;
            let rows_of = |ids: &[u32]| -> Vec<Vec<u32>> {
                let rows = ids.chunks(chosen).enumerate().filter(|(row, _)| !is_tie(row));
                rows.map(|(_, ids)| ids.to_vec()).collect()
            };
            assert_eq!(rows_of(&found), rows_of(&recorded), "{context}");
            let recorded = weight;
            let found = all(&weights);
            for (i, found) in found.chunks(chosen).enumerate().filter(|(i, _)| !is_tie(i)) {
                let differences = found.iter().zip(recorded.row(i)).map(|(f, &r)| f - f64::from(r));
                let off = differences.fold(0.0, |m: f64, d| m.max(d.abs()));
                let bound = if quantised { ROUNDED } else { TOLERANCE };
                let bound = bound * f64::from(recorded.largest(i));
                assert!(off <= bound, "{context} row {}: {off}", i % rows);
            }
            if keys.is_empty() {
                continue;
            }
            let per_row = outputs[&keys[0]].len() / rows;
            let found = all(&keys);
            let mask = |row: &[f64]| -> Vec<u32> {
                (0..rows).map(|j| u32::from(row.contains(&(j as f64)))).collect()
            };
            let found: Vec<u32> = found.chunks(per_row).flat_map(mask).collect();
            assert_eq!(found, oracle.flags(&format!("dsa_selected_f32_{prompt}")), "{context}");
        }
    }
}

macro_rules! fixtures {
    ($($name:ident)*) => {
        $(#[test] fn $name() {
            choices_match(stringify!($name));
        })*
    };
}

fixtures! {
    qwen3_moe qwen3_moe_w8a8 qwen3_moe_w8a8_dynamic qwen3_moe_w4a8_dynamic qwen3_moe_w4a8_mixed
    qwen3_next qwen3_next_w8a8 gpt_oss
    deepseek_v3 deepseek_v3_fp8 deepseek_v3_w8a8 deepseek_v3_w8a8_dynamic deepseek_v3_w4a8_dynamic
    deepseek_v32 deepseek_v32_fp8 deepseek_v32_w8a8
}
