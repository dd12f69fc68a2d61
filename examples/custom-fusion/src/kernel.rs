//! The CPU kernel for composites of kind `gated_output`.

use precast_codegen_cpu::external::{ExternalCall, ExternalKernel, Operand, Row, RowMut, Scalar};
use precast_ir::{DType, Func};

/// `x / (1 + exp(-gate))`, one pass over both rows instead of three over memory.
pub struct GatedOutput;

impl ExternalKernel for GatedOutput {
    fn kind(&self) -> &str {
        "gated_output"
    }

    /// Operands are in the order in which the body first reads them: the gate, then `x`.
    fn lower(&self, _: &Func, operands: &[Operand], results: &[Operand]) -> Option<ExternalCall> {
        let wide = operands.len() == 2 && operands.iter().all(|o| o.ty.dtype == DType::F32);
        let float = results.len() == 1 && matches!(results[0].ty.dtype, DType::F32 | DType::BF16);
        (wide && float).then(ExternalCall::default)
    }

    fn run(&self, _: &[Scalar], inputs: &[Row<'_>], outputs: &mut [RowMut<'_>]) {
        let (gate, x) = (inputs[0].f32(), inputs[1].f32());
        outputs[0].fill_with(|i| x[i] / (1.0 + (-gate[i]).exp()));
    }
}
