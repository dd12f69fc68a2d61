//! A target that writes down what another makes of each op.

use artifact::BuildTarget;
use compiler::{KernelFile, LowerError, Lowered, Operand, Streams, Target};
use ir::{DType, Op};
use passes::TargetInfo;
use precast_codegen_ascend::target::{AscendTarget, conforms};
use std::{cell::RefCell, collections::BTreeSet};

/// The target, and what it did.
pub(crate) struct Recording {
    target: AscendTarget,
    lowered: RefCell<Vec<(Op, Lowered)>>,
    refused: RefCell<BTreeSet<String>>,
}

impl Recording {
    pub(crate) fn new(target: AscendTarget) -> Self {
        Self { target, lowered: RefCell::default(), refused: RefCell::default() }
    }

    /// Each way in which an op was computed, once, and what was refused as a whole.
    pub(crate) fn summary(&self) -> String {
        let mut lines = BTreeSet::new();
        for (op, lowered) in self.lowered.borrow().iter() {
            let calls: Vec<String> = lowered.calls.iter().map(|c| stem(&c.kernel)).collect();
            lines.insert(format!("  {}: {}\n", op.kind(), calls.join(", ")));
        }
        let refused = self.refused.borrow();
        let refused = refused.iter().map(|r| format!("  {r}\n"));
        lines.into_iter().chain(refused).collect()
    }

    /// Library operators that computed `kind`.
    pub(crate) fn operators(&self, kind: &str) -> BTreeSet<String> {
        let lowered = self.lowered.borrow();
        let of_kind = lowered.iter().filter(|(op, _)| op.kind() == kind);
        of_kind.flat_map(|(_, l)| &l.calls).map(|c| stem(&c.kernel)).collect()
    }
}

/// The name of a kernel without the hash of its source.
fn stem(kernel: &str) -> String {
    match kernel.rsplit_once('_') {
        Some((stem, hash)) if hash.len() == 12 && hash.bytes().all(|b| b.is_ascii_hexdigit()) => {
            format!("@{stem}")
        }
        _ => kernel.to_owned(),
    }
}

impl Target for Recording {
    fn info(&self) -> TargetInfo {
        self.target.info()
    }
    fn build_target(&self) -> BuildTarget {
        self.target.build_target()
    }
    fn activations(&self, weights: DType) -> DType {
        self.target.activations(weights)
    }
    fn arena_align(&self) -> u64 {
        self.target.arena_align()
    }
    fn weight_align(&self) -> u64 {
        self.target.weight_align()
    }
    fn slot_bytes(&self, bytes: u64) -> u64 {
        self.target.slot_bytes(bytes)
    }
    fn runs_chains(&self) -> bool {
        self.target.runs_chains()
    }
    fn streams(&self) -> Streams {
        self.target.streams()
    }
    fn files(&self, kernels: &[KernelFile]) -> Vec<KernelFile> {
        self.target.files(kernels)
    }
    fn sources(&self) -> &'static [&'static str] {
        self.target.sources()
    }
    fn lower(
        &self,
        op: &Op,
        operands: &[Operand],
        results: &[Operand],
    ) -> Result<Lowered, LowerError> {
        let lowered = self.target.lower(op, operands, results);
        match &lowered {
            Ok(lowered) => {
                for operator in lowered.calls.iter().filter_map(|c| c.operator.as_ref()) {
                    conforms(operator).unwrap();
                }
                self.lowered.borrow_mut().push((op.clone(), lowered.clone()));
            }
            Err(e) => {
                self.refused.borrow_mut().insert(format!("{} refused: {}", op.kind(), e.remedy));
            }
        }
        lowered
    }
}
