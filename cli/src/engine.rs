//! An artifact on the CPU of this machine.

use crate::{Precast, args::EngineArgs};
use anyhow::Context;
use artifact::Artifact;
use codegen_cpu::{
    device::{CpuDevice, CpuOptions, InstructionSet},
    target::CpuTarget,
};
use compiler::Target;
use runtime::{Engine, EngineOptions};

/// Loads an artifact on the CPU of this machine, with the kernels of extensions. With `release_weights` pages of the weight file
/// are given back after use, so that memory stays near the largest tensor.
///
/// # Errors
/// When the artifact is for something else or damaged, or memory or an instruction set is missing.
pub(crate) fn load_engine(
    precast: &Precast,
    artifact: &Artifact,
    args: &EngineArgs,
    options: EngineOptions,
    release_weights: bool,
) -> anyhow::Result<Engine<CpuDevice>> {
    let device = open_device(precast, artifact, args, release_weights)?;
    Ok(Engine::load(device, artifact, options)?)
}

/// The device that `args` ask for, without memory.
///
/// # Errors
/// When the artifact is for something else, or an instruction set is missing.
pub(crate) fn open_device(
    precast: &Precast,
    artifact: &Artifact,
    args: &EngineArgs,
    release_weights: bool,
) -> anyhow::Result<CpuDevice> {
    let available: Vec<&str> = InstructionSet::available().iter().map(|i| i.name()).collect();
    artifact
        .manifest()
        .target
        .check(&CpuTarget.build_target(), &available)
        .with_context(|| artifact.root().display().to_string())?;
    precast.check_extensions(artifact)?;
    let instruction_set = match &args.instruction_set {
        Some(name) => Some(
            name.parse::<InstructionSet>()
                .map_err(|e| anyhow::anyhow!("--instruction-set: {e}"))?,
        ),
        None => None,
    };
    Ok(CpuDevice::new(CpuOptions {
        threads: args.threads.map(|n| n as usize),
        instruction_set,
        release_weights,
        external: precast.kernels.clone(),
        ..Default::default()
    })?)
}
