//! What `--target` names, and what compiling for it needs to know beside the compiler's own questions.

use crate::Precast;
use acl::Release;
use codegen_ascend::{
    chip::{self, CHIPS},
    target::AscendTarget,
};
use codegen_cpu::target::CpuTarget;
use compiler::{Rates, Target};
use ir::DType;

/// A compile target by name.
#[derive(Clone, Copy, Debug)]
pub(crate) enum HostTarget {
    /// The CPU.
    Cpu,
    /// An Ascend NPU.
    Ascend(AscendTarget),
}

/// Every name of a target.
pub(crate) fn names() -> Vec<&'static str> {
    [CPU].into_iter().chain(CHIPS.iter().map(|c| c.target)).collect()
}

const CPU: &str = "cpu";

impl HostTarget {
    /// The target called `name`.
    pub(crate) fn named(name: &str) -> Option<Self> {
        match name {
            CPU => Some(Self::Cpu),
            _ => chip::chip(name).map(|chip| Self::Ascend(AscendTarget::new(chip))),
        }
    }

    /// The same for an NPU whose host has at least `toolkit`, one of `8.1`, `8.3`, `8.5` and `9.0`, with
    /// streams for branches that move `fork_bytes`.
    pub(crate) fn tuned(self, toolkit: &str, fork_bytes: Option<u64>) -> Self {
        let release = match toolkit {
            "8.1" => Release::V8_1,
            "8.3" => Release::V8_3,
            "8.5" => Release::V8_5,
            _ => Release::V9,
        };
        match self {
            Self::Cpu => Self::Cpu,
            Self::Ascend(target) => {
                let target = target.for_release(release);
                Self::Ascend(fork_bytes.map_or(target, |bytes| target.forking_at(bytes)))
            }
        }
    }

    /// It as the compiler sees it, with the kernels of extensions.
    pub(crate) fn as_target<'a>(&'a self, precast: &'a Precast) -> &'a dyn Target {
        match self {
            Self::Cpu => &precast.target,
            Self::Ascend(target) => target,
        }
    }

    /// Element type of activations in a model whose matrices are of type `weights`. The CPU computes
    /// in f32 whatever it reads; the operators of an NPU read and write one type.
    pub(crate) fn activations(&self, weights: DType) -> DType {
        match self {
            Self::Cpu => DType::F32,
            Self::Ascend(_) => weights,
        }
    }

    /// Tokens in a KV block.
    pub(crate) fn kv_block_tokens(&self) -> u64 {
        let tokens = match self {
            Self::Cpu => CpuTarget.build_target().kv_block_tokens,
            Self::Ascend(target) => target.build_target().kv_block_tokens,
        };
        u64::from(tokens)
    }

    /// Bytes of memory to plan for where nobody says, if there is to be a limit; `here` are those of
    /// this machine.
    pub(crate) fn memory(&self, here: Option<u64>) -> Option<u64> {
        match self {
            Self::Cpu => here,
            // The driver, the library and captured graphs take some.
            Self::Ascend(target) => here.map(|_| target.chip().memory_bytes / 16 * 15),
        }
    }

    /// How fast it is, for the choice of batch sizes: of a chip its figures, of a CPU those of a server
    /// with a few cores, since the one that will serve is not known.
    pub(crate) fn rates(&self) -> Rates {
        match self {
            Self::Cpu => {
                Rates { bytes_per_second: 40e9, flops_per_second: 1e12, step_seconds: 50e-6 }
            }
            Self::Ascend(target) => Rates {
                bytes_per_second: target.chip().memory_bytes_per_second as f64,
                flops_per_second: target.chip().bf16_flops as f64,
                step_seconds: 1e-3,
            },
        }
    }

    /// Whether products of 16-bit operands may be asked for in f32. The operators of an NPU round them,
    /// also where they are widened again.
    pub(crate) fn sums_in_f32(&self) -> bool {
        matches!(self, Self::Cpu)
    }

    /// The most of the largest logits of a row that it finds in order.
    pub(crate) fn most_found(&self) -> u64 {
        match self {
            Self::Cpu => codegen_cpu::target::MOST_FOUND,
            Self::Ascend(_) => codegen_ascend::kernels::sampling::MOST,
        }
    }

    /// Whether caches lie in memory as their types say. The kernels of the CPU keep the keys of a
    /// block in an order of their own.
    pub(crate) fn has_plain_caches(&self) -> bool {
        !matches!(self, Self::Cpu)
    }

    /// Whether an artifact for it can run where it is compiled.
    pub(crate) fn runs_here(&self) -> bool {
        matches!(self, Self::Cpu)
    }
}
