//! Whole models for Ascend: every fixture compiles in both types, and what its ops become is what it
//! was. `UPDATE_EXPECT=1` rewrites `tests/golden`.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod recording;

use compiler::{KvBudget, Options, prepare};
use ir::DType;
use models::{BuildOptions, Checkpoint, Precision};
use precast_codegen_ascend::{
    chip::chip,
    target::{AscendTarget, KV_BLOCK_TOKENS},
};
use recording::Recording;
use std::{
    collections::BTreeSet,
    env,
    fmt::Write,
    fs,
    path::{Path, PathBuf},
};

fn root(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

fn options() -> Options {
    Options {
        graph_bs: vec![3],
        max_running_requests: None,
        prefill_chunks: vec![16],
        context_tiers: Vec::new(),
        max_context: Some(512),
        kv: KvBudget::Default,
        memory_limit: None,
        compact_rows: None,
        quantize: None,
        catalog: passes::Catalog::builtin(),
        extensions: Vec::new(),
        disabled_passes: Vec::new(),
        rewrite_limit: usize::MAX,
        dump_ir: false,
        config: Default::default(),
    }
}

/// Compiles `checkpoint` with matrices in `dtype`, without reading weights.
fn compiled(checkpoint: &Checkpoint, dtype: DType, options: &Options) -> Recording {
    let info = checkpoint.info();
    let model = artifact::Model {
        name: info.name.clone(),
        model_type: info.model_type.clone(),
        architecture: info.architecture.clone(),
        vocab_size: info.vocab_size as u32,
        max_context: info.max_context as u32,
        eos_token_ids: info.eos_token_ids.clone(),
        dtype,
        parameters: info.parameters,
        sliding_window: info.sliding_window.map(|n| n as u32),
    };
    let target = Recording::new(AscendTarget::new(chip("ascend910_93").unwrap()));
    let activations = compiler::Target::activations(&target, dtype);
    let build = BuildOptions {
        precision: Precision { weights: dtype, activations },
        kv_dtype: dtype,
        kv_block_tokens: u64::from(KV_BLOCK_TOKENS),
        quantize_activations: false,
        head_top_k: 0,
    };
    let module = models::build(checkpoint, &build);
    prepare(module, &model, &target, options).unwrap_or_else(|e| panic!("{}: {e}", info.name));
    target
}

/// Fixtures that are models of their own.
fn fixtures() -> BTreeSet<String> {
    let entries = fs::read_dir(root("../tests/fixtures")).unwrap();
    let names = entries.map(|e| e.unwrap().file_name().into_string().unwrap());
    names.filter(|n| n != "README.md" && !n.starts_with("eagle3_")).collect()
}

#[test]
fn every_fixture_becomes_the_calls_it_became() {
    let folder = root("tests/golden");
    let update = env::var_os("UPDATE_EXPECT").is_some();
    let mut failures = Vec::new();
    for fixture in fixtures() {
        let checkpoint = Checkpoint::open(root("../tests/fixtures").join(&fixture)).unwrap();
        let mut found = String::new();
        for dtype in [DType::BF16, DType::F32] {
            let recorded = compiled(&checkpoint, dtype, &options());
            writeln!(found, "{dtype}\n{}", recorded.summary()).unwrap();
        }
        let path = folder.join(format!("{fixture}.txt"));
        if update {
            fs::create_dir_all(&folder).unwrap();
            fs::write(&path, found).unwrap();
        } else if fs::read_to_string(&path).unwrap_or_default() != found {
            failures.push(format!("{}, found\n{found}", path.display()));
        }
    }
    let failures = failures.join("\n");
    assert!(failures.is_empty(), "{failures}\nthe calls have changed; UPDATE_EXPECT=1 accepts it");
}

/// Configurations of released models, whose weights are not here.
#[test]
fn released_models_use_the_operators_of_the_library() {
    let open = |name: &str| {
        let path = root("../tests/configs").join(format!("{name}.json"));
        Checkpoint::config_only(path).unwrap()
    };
    let options = Options { max_context: Some(4096), ..options() };
    let operators = |name: &str, kind: &str, expected: &[&str]| {
        let recorded = compiled(&open(name), DType::BF16, &options);
        let found = recorded.operators(kind);
        for operator in expected {
            assert!(
                found.contains(*operator),
                "{name}: {kind} is {found:?}\n{}",
                recorded.summary()
            );
        }
        recorded
    };
    operators("qwen3-8b", "matmul", &["aclnnMatmulWeightNz"]);
    let moe = [
        "aclnnMoeGatingTopKSoftmaxV2",
        "aclnnMoeInitRoutingV3",
        "aclnnGroupedMatmulWeightNz",
        "aclnnMoeFinalizeRoutingV2",
    ];
    operators("qwen3-30b-a3b", "moe", &moe);
    operators("qwen3-next-80b-a3b", "moe", &moe);
    operators("deepseek-v3", "mla_prolog", &["aclnnMlaPrologV2WeightNz"]);
    let deepseek =
        operators("deepseek-v3.2", "moe", &["aclnnMoeGatingTopK", "aclnnMoeInitRoutingV3"]);
    assert!(deepseek.operators("select_keys").contains("aclnnLightningIndexer"));
    let attention = deepseek.operators("sparse_latent_attention");
    assert!(attention.contains("aclnnSparseFlashAttention"), "{attention:?}");
}
