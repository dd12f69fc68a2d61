//! The devices that `serve` runs on, as one type, and how one is opened.

use crate::{
    Precast,
    args::{DeviceArg, EngineArgs},
    target::HostTarget,
};
use anyhow::{Context, bail};
use artifact::{Artifact, BufferRef};
use codegen_ascend::device::{AscendDevice, AscendGraph, AscendOptions};
use codegen_cpu::{
    device::{CpuDevice, CpuGraph, CpuOptions, InstructionSet},
    target::CpuTarget,
};
use compiler::Target;
use hal::{Device, DeviceError, Launch, MemoryRequest};
use std::path::PathBuf;

/// File name of the software device.
const SIMULATOR: &str = "libascend_sim.so";
/// Names another file for the software device.
const SIMULATOR_VARIABLE: &str = "PRECAST_ASCEND_SIM";

/// A device of this host.
pub enum HostDevice {
    /// Its processors.
    Cpu(Box<CpuDevice>),
    /// An Ascend NPU, or the software device in its place.
    Ascend(Box<AscendDevice>),
}

/// A graph of a [`HostDevice`].
pub enum HostGraph {
    /// Of the CPU.
    Cpu(CpuGraph),
    /// Of an NPU.
    Ascend(AscendGraph),
}

/// Opens the device that `args` ask for, or the one that `artifact` is for. It has no memory yet.
/// With `release_weights`, pages of the weight file are given back after use where it stays in memory.
///
/// # Errors
/// When the artifact is for something else, or an instruction set, a library or a device is missing.
pub(crate) fn open(
    precast: &Precast,
    artifact: &Artifact,
    args: &EngineArgs,
    release_weights: bool,
) -> anyhow::Result<HostDevice> {
    let root = artifact.root().display();
    let name = &artifact.manifest().target.device;
    let target = HostTarget::named(name)
        .with_context(|| format!(
            "{root}: compiled for device {name}, which this program does not know; run `precast compile` \
             again with this one, or serve it with the one that compiled it"
        ))?;
    match (target, args.device) {
        (HostTarget::Cpu, None | Some(DeviceArg::Cpu)) => {
            Ok(HostDevice::Cpu(Box::new(cpu(precast, artifact, args, release_weights)?)))
        }
        (HostTarget::Ascend(target), None | Some(DeviceArg::Ascend | DeviceArg::AscendSim)) => {
            let built = target.build_target();
            let wanted = &artifact.manifest().target;
            wanted.check(&built, &[&built.instruction_set]).with_context(|| root.to_string())?;
            let library = match args.device {
                Some(DeviceArg::AscendSim) => Some(simulator()?),
                _ => None,
            };
            let device =
                AscendOptions { device: args.device_id, library, ..AscendOptions::default() };
            Ok(HostDevice::Ascend(Box::new(AscendDevice::open(device)?)))
        }
        (_, Some(device)) => {
            bail!("{root}: compiled for {name}, which does not run on --device {device}")
        }
    }
}

fn cpu(
    precast: &Precast,
    artifact: &Artifact,
    args: &EngineArgs,
    release_weights: bool,
) -> anyhow::Result<CpuDevice> {
    let available: Vec<&str> = InstructionSet::available().iter().map(|i| i.name()).collect();
    let target = &artifact.manifest().target;
    target
        .check(&CpuTarget.build_target(), &available)
        .with_context(|| artifact.root().display().to_string())?;
    let instruction_set = match &args.instruction_set {
        Some(name) => Some(
            name.parse::<InstructionSet>()
                .map_err(|e| anyhow::anyhow!("--instruction-set: {e}"))?,
        ),
        None => None,
    };
    Ok(CpuDevice::new(CpuOptions {
        threads: args.threads.map(|n| n as usize),
        pin: args.pin_threads,
        instruction_set,
        release_weights,
        external: precast.kernels.clone(),
    })?)
}

/// The library of the software device: beside the program, or where a build leaves it.
pub(crate) fn simulator() -> anyhow::Result<PathBuf> {
    if let Some(path) = std::env::var_os(SIMULATOR_VARIABLE) {
        return Ok(path.into());
    }
    let program = std::env::current_exe().context("where this program lies")?;
    let beside = program.parent().unwrap_or(&program);
    let places = [beside.to_owned(), beside.join("deps"), beside.join("../lib")];
    let found = places.iter().map(|dir| dir.join(SIMULATOR)).find(|path| path.is_file());
    found.with_context(|| {
        format!(
            "{SIMULATOR} is not in {}; build it with `cargo build -p precast-ascend-sim`, or name it in \
             {SIMULATOR_VARIABLE}",
            beside.display()
        )
    })
}

/// Calls the same method of whichever device it is.
macro_rules! either {
    ($device:expr, $d:ident => $call:expr) => {
        match $device {
            HostDevice::Cpu($d) => $call,
            HostDevice::Ascend($d) => $call,
        }
    };
}

impl Device for HostDevice {
    type Graph = HostGraph;

    fn name(&self) -> String {
        either!(self, d => d.name())
    }

    fn runs_beside_host(&self) -> bool {
        either!(self, d => d.runs_beside_host())
    }

    fn load(&mut self, request: MemoryRequest) -> Result<(), DeviceError> {
        either!(self, d => d.load(request))
    }

    fn begin_capture(&mut self) -> Result<(), DeviceError> {
        either!(self, d => d.begin_capture())
    }

    fn launch(&mut self, launch: &Launch<'_>) -> Result<(), DeviceError> {
        either!(self, d => d.launch(launch))
    }

    fn begin_chain(&mut self, rows: u32, private_bytes: u64) -> Result<(), DeviceError> {
        either!(self, d => d.begin_chain(rows, private_bytes))
    }

    fn end_chain(&mut self) -> Result<(), DeviceError> {
        either!(self, d => d.end_chain())
    }

    fn end_capture(&mut self) -> Result<HostGraph, DeviceError> {
        match self {
            HostDevice::Cpu(d) => d.end_capture().map(HostGraph::Cpu),
            HostDevice::Ascend(d) => d.end_capture().map(HostGraph::Ascend),
        }
    }

    fn abort_capture(&mut self) {
        either!(self, d => d.abort_capture());
    }

    fn write(&mut self, at: BufferRef, bytes: &[u8]) {
        either!(self, d => d.write(at, bytes));
    }

    fn read(&mut self, at: BufferRef, out: &mut [u8]) -> Result<(), DeviceError> {
        either!(self, d => d.read(at, out))
    }

    fn replay(&mut self, graph: &HostGraph) -> Result<(), DeviceError> {
        match (self, graph) {
            (HostDevice::Cpu(d), HostGraph::Cpu(graph)) => d.replay(graph),
            (HostDevice::Ascend(d), HostGraph::Ascend(graph)) => d.replay(graph),
            _ => Err(DeviceError::Misuse("the graph is of another device")),
        }
    }
}
