//! The command line: what each command of `precast` does, callable from tests.

#![forbid(unsafe_code)]

mod args;
mod bench;
mod cache;
mod compile;
mod device;
mod doctor;
mod engine;
mod extension;
mod from_sglang;
mod generate;
mod graph_bs;
mod inspect;
mod limits;
mod log;
mod matches;
mod operation;
mod opt;
mod precast;
mod profile;
mod program;
mod recorded;
mod report;
mod scheduling;
mod selfcheck;
mod serve;
mod target;

pub use args::{Cli, Command, CompileArgs, EngineArgs, MatchFloor, ServeArgs, parse};
pub use device::{HostDevice, HostGraph};
pub use extension::{Extension, ExtensionError};
pub use from_sglang::{FromSglangArgs, NoLaunchLine};
pub use graph_bs::{AutoArgs, GraphBs};
pub use precast::{Builder, Precast};

use artifact::{Artifact, Manifest};
use runtime::{Engine, EngineOptions};
use std::process::ExitCode;

/// Runs the command that `args` (with the program name first) describe, without extensions; see
/// [`Precast::main`].
pub fn main(args: impl IntoIterator<Item = std::ffi::OsString>) -> ExitCode {
    Precast::default().main(args)
}

/// Compiles without extensions. `None` after a dry run.
///
/// # Errors
/// What the checkpoint, the passes, the memory plan or the disk has against it.
pub fn compile(args: &CompileArgs) -> anyhow::Result<Option<Manifest>> {
    compile::compile(&Precast::default(), args)
}

/// Loads an artifact on the device that `args` ask for, without extensions. With `release_weights` pages of
/// the weight file are given back after use, so that memory stays near the largest tensor.
///
/// # Errors
/// When the artifact is for something else or damaged, or memory, an instruction set or a device is
/// missing.
pub fn load_engine(
    artifact: &Artifact,
    args: &EngineArgs,
    options: EngineOptions,
    release_weights: bool,
) -> anyhow::Result<Engine<HostDevice>> {
    engine::load_engine(&Precast::default(), artifact, args, options, release_weights)
}
