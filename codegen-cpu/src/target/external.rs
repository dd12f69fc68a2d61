//! The CPU with kernels from outside.

use super::CpuTarget;
use crate::kernels::external::{self, ExternalKernels};
use artifact::BuildTarget;
use compiler::{LowerError, Lowered, Operand, Target};
use ir::Op;
use passes::TargetInfo;
use std::{collections::BTreeSet, sync::Mutex};

/// [`CpuTarget`] that also lowers composites to external kernels.
#[derive(Debug, Default)]
pub struct ExtendedTarget {
    kernels: ExternalKernels,
    /// Kernels whose refusal was told.
    told: Mutex<BTreeSet<String>>,
}

impl ExtendedTarget {
    /// The CPU with `kernels`.
    pub fn new(kernels: ExternalKernels) -> Self {
        Self { kernels, told: Mutex::default() }
    }

    fn tell_once(&self, kind: &str, why: &str) {
        let mut told = self.told.lock().unwrap_or_else(|e| e.into_inner());
        if told.insert(format!("{kind}: {why}")) {
            tracing::warn!("external kernel `{kind}`: {why}; the ops it stands for run one by one");
        }
    }
}

impl Target for ExtendedTarget {
    fn info(&self) -> TargetInfo {
        let mut info = CpuTarget.info();
        info.fused_ops.extend(self.kernels.kinds().map(str::to_owned));
        info
    }

    fn build_target(&self) -> BuildTarget {
        CpuTarget.build_target()
    }

    fn arena_align(&self) -> u64 {
        CpuTarget.arena_align()
    }

    fn weight_align(&self) -> u64 {
        CpuTarget.weight_align()
    }

    fn sources(&self) -> &'static [&'static str] {
        CpuTarget.sources()
    }

    fn lower(
        &self,
        op: &Op,
        operands: &[Operand],
        results: &[Operand],
    ) -> Result<Lowered, LowerError> {
        let kernel = match op {
            Op::Fused { body } => self.kernels.get(body.kind()).map(|k| (k, body)),
            _ => None,
        };
        let Some((kernel, body)) = kernel else {
            return CpuTarget.lower(op, operands, results);
        };
        external::lower(&**kernel, body.func(), operands, results).or_else(|why| {
            self.tell_once(kernel.kind(), &why);
            CpuTarget.lower(op, operands, results)
        })
    }
}
