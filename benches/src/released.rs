//! What compiling a released configuration without its weights needs.

use anyhow::Context;
use artifact::Model;
use compiler::{KvBudget, Options};
use ir::DType;
use models::Checkpoint;

/// The model of `checkpoint`, in bf16.
///
/// # Errors
/// When a size does not fit the manifest.
pub fn model(checkpoint: &Checkpoint) -> anyhow::Result<Model> {
    let info = checkpoint.info();
    Ok(Model {
        name: info.name.clone(),
        model_type: info.model_type.clone(),
        architecture: info.architecture.clone(),
        vocab_size: u32::try_from(info.vocab_size)?,
        max_context: u32::try_from(info.max_context)?,
        eos_token_ids: info.eos_token_ids.clone(),
        dtype: DType::BF16,
        parameters: info.parameters,
        sliding_window: info.sliding_window.map(u32::try_from).transpose()?,
    })
}

/// Four chunk lengths and two context tiers, and decoding in batches of `sizes`.
pub fn options(sizes: &[u32]) -> Options {
    Options {
        graph_bs: sizes.to_vec(),
        max_running_requests: None,
        prefill_chunks: vec![16, 64, 256, 512],
        context_tiers: vec![2048],
        max_context: None,
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

/// The most memory that this process ever held, in bytes.
///
/// # Errors
/// When the system does not tell.
pub fn peak_bytes() -> anyhow::Result<u64> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find_map(|l| l.strip_prefix("VmHWM:"));
    let kilobytes = line.and_then(|l| l.split_whitespace().next()).context("no VmHWM")?;
    Ok(kilobytes.parse::<u64>()? * 1024)
}
