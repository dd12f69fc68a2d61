//! `precast` with an extension whose kernel has a bug: it panics once the file that the environment
//! variable `FAULT` names is there. What a server does then is tested in `reliability`.

use cli::{Extension, Precast};
use codegen_cpu::external::{ExternalCall, ExternalKernel, Operand, Row, RowMut, Scalar};
use ir::{DType, Func, Op};
use passes::{
    Place, is,
    pattern::{Fusion, any, fusion, op},
};
use std::{env, path::PathBuf, process::ExitCode};

const KIND: &str = "faulty_gate";

/// `mul(x, sigmoid(gate))` becomes a composite.
fn fuse_gate() -> Fusion {
    let opened = op(is!(Op::Sigmoid {}), [any("gate")]).named("opened");
    fusion("fuse-faulty-gate", op(is!(Op::Mul {}), [any("x"), opened]))
        .source(include_str!("precast-with-faulty-kernel.rs"))
        .only_reader("opened", "the opened gate is read elsewhere, so it must exist")
        .typed("gate", "not-f32", "the kernel reads f32", |ty| ty.dtype == DType::F32)
        .outline(KIND)
}

struct FaultyGate {
    fault: Option<PathBuf>,
}

impl ExternalKernel for FaultyGate {
    fn kind(&self) -> &str {
        KIND
    }

    fn lower(&self, _: &Func, operands: &[Operand], results: &[Operand]) -> Option<ExternalCall> {
        let all = operands.iter().chain(results);
        let fits = operands.len() == 2 && results.len() == 1;
        (fits && all.into_iter().all(|o| o.ty.dtype == DType::F32)).then(ExternalCall::default)
    }

    fn run(&self, _: &[Scalar], inputs: &[Row<'_>], outputs: &mut [RowMut<'_>]) {
        assert!(!self.fault.as_ref().is_some_and(|file| file.exists()), "the kernel has a bug");
        let (gate, x) = (inputs[0].f32(), inputs[1].f32());
        outputs[0].fill_with(|i| x[i] / (1.0 + (-gate[i]).exp()));
    }
}

fn main() -> ExitCode {
    let extension = Extension::new("faulty")
        .source("precast-with-faulty-kernel.rs", include_str!("precast-with-faulty-kernel.rs"))
        .pass(fuse_gate(), Place::After("assign-layouts"), "composites come last")
        .kernel(FaultyGate { fault: env::var_os("FAULT").map(PathBuf::from) });
    match Precast::builder().register(extension).build() {
        Ok(precast) => precast.main(env::args_os()),
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}
