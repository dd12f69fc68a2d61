//! Quantisation and products of quantised matrices.

use super::{Call, float, rows_of, stride};
use compiler::{Lowered, Operand};
use ir::Op;

pub(super) fn lower(op: &Op, operands: &[Operand], results: &[Operand]) -> Option<Lowered> {
    let call = Call::new(operands.len(), results.len());
    let out = results.first()?;
    let (rows, n) = rows_of(out);
    match (op, operands) {
        (Op::QuantizeRows {}, [x]) if x.ty.rank() > 1 => {
            let (runs, n) = runs(x);
            call.ints(&[rows, runs, n, stride(x)]).named(format!("quantize_rows_{}", float(x)?))
        }
        (Op::QuantizeStatic {}, [x, _, _]) => {
            call.ints(&[rows, n, stride(x)]).named(format!("quantize_static_{}", float(x)?))
        }
        (Op::QuantizeFp8 { group, power_of_two }, [x]) if x.ty.rank() > 1 => {
            let (runs, n) = runs(x);
            call.ints(&[rows, runs, n, *group, u64::from(*power_of_two), stride(x)])
                .named(format!("quantize_fp8_{}", float(x)?))
        }
        _ => None,
    }
}

/// Runs along the last axis in each row of `o`, and their length.
fn runs(o: &Operand) -> (u64, u64) {
    let last = o.ty.rank() - 1;
    ((1..last).map(|i| o.dim(i)).product(), o.dim(last))
}
