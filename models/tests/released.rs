//! Configurations of released models: parameters and memory as their publishers count them.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use ir::{DType, Dim, Symbol};
use precast_models::{BuildOptions, Checkpoint, Precision, build};
use std::path::Path;
use tensor::WeightSource;

const BLOCK: u64 = 16;

fn open(name: &str) -> Checkpoint {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/configs");
    Checkpoint::config_only(dir.join(format!("{name}.json"))).unwrap()
}

/// Parameters and bytes for each token of all paged memories in bf16.
fn facts(name: &str) -> (u64, u64) {
    let checkpoint = open(name);
    let options = BuildOptions {
        precision: Precision { weights: DType::BF16, activations: DType::F32 },
        kv_dtype: DType::BF16,
        kv_block_tokens: BLOCK,
        quantize_activations: false,
        head_top_k: 0,
    };
    let module = build(&checkpoint, &options);
    (checkpoint.info().parameters, bytes(&module, &["NB", "NW"]) / BLOCK)
}

/// Bytes of one block, or slot, of the states of `@decode` that have one of the `symbols`.
fn bytes(module: &ir::Module, symbols: &[&str]) -> u64 {
    let f = module.func("decode").unwrap();
    let types = f.params.iter().map(|&p| &f.values[p].ty);
    let of = |ty: &ir::TensorType| {
        let counted = symbols.iter().any(|s| ty.dims.contains(&Dim::Sym(Symbol::new(s))));
        let numbers = ty.dims.iter().filter_map(Dim::as_const).product();
        if counted { ty.dtype.bytes_for(numbers) } else { 0 }
    };
    types.map(of).sum()
}

#[test]
fn dense_models() {
    assert_eq!(facts("qwen2.5-0.5b"), (494_032_768, 12_288));
    assert_eq!(facts("qwen3-8b"), (8_190_735_360, 147_456));
    assert_eq!(facts("qwen3-32b"), (32_762_123_264, 262_144));
}

#[test]
fn mixtures_of_experts() {
    assert_eq!(facts("qwen3-30b-a3b"), (30_532_122_624, 98_304));
    assert_eq!(facts("qwen3-235b-a22b"), (235_093_634_560, 192_512));
    assert_eq!(facts("qwen3-coder-480b-a35b"), (480_154_875_392, 253_952));
}

#[test]
fn recurrent_memory() {
    assert_eq!(facts("qwen3-next-80b-a3b"), (79_674_391_296, 24_576));
}

/// Without the layer that drafts. The second one keeps an index key of 256 bytes in each layer.
#[test]
fn latent_attention() {
    assert_eq!(facts("deepseek-v3"), (671_026_419_200, 70_272));
    assert_eq!(facts("deepseek-v3.2"), (671_877_944_064, 70_272 + 15_616));
}

#[test]
fn nothing_of_a_configuration_can_be_read() {
    let checkpoint = open("deepseek-v3");
    let name = "model.layers.3.mlp.experts.0.gate_proj.weight";
    assert_eq!(checkpoint.source().info(name).unwrap().dtype, DType::F8E4M3);
    let router = checkpoint.source().info("model.layers.3.mlp.gate.weight").unwrap();
    assert_eq!(router.dtype, DType::BF16);
    assert!(checkpoint.source().read(name, 0, &mut [0]).is_err());
}

/// Half the layers keep a window only, in blocks of their own.
#[test]
fn sliding_windows() {
    assert_eq!(facts("gpt-oss-20b"), (20_914_757_184, 49_152));
    assert_eq!(facts("gpt-oss-120b"), (116_829_156_672, 73_728));
}
