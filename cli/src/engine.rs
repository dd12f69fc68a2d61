//! An artifact on a device of this host.

use crate::{
    Precast,
    args::EngineArgs,
    device::{self, HostDevice},
};
use artifact::Artifact;
use runtime::{Engine, EngineOptions};

/// Loads an artifact on the device that `args` ask for, with the kernels of extensions. With
/// `release_weights` pages of the weight file are given back after use, so that memory stays near the
/// largest tensor.
///
/// # Errors
/// When the artifact is for something else or damaged, or memory, an instruction set or a device is
/// missing.
pub(crate) fn load_engine(
    precast: &Precast,
    artifact: &Artifact,
    args: &EngineArgs,
    options: EngineOptions,
    release_weights: bool,
) -> anyhow::Result<Engine<HostDevice>> {
    precast.check_extensions(artifact)?;
    let device = device::open(precast, artifact, args, release_weights)?;
    Ok(Engine::load(device, artifact, options)?)
}
