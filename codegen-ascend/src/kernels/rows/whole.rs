//! Rows that local memory holds as a whole.

use super::{Draft, buffers, emit::Gen, head, ops, program::cpp_type, results};
use crate::kernels::Declined;
use ir::Func;
use std::fmt::Write;

/// A kernel whose queues have `depth` buffers.
pub(super) fn kernel(func: &Func, depth: u64) -> Result<Draft, Declined> {
    let mut g = Gen::new(func, None);
    for (place, &node) in func.order.iter().enumerate() {
        ops::op(&mut g, node, place)?;
    }
    // Results that are parts of operands.
    for (_, value) in results(&g) {
        if g.views.contains_key(&value) {
            g.arg(value)?;
            copy_back(&mut g, value)?;
        }
    }
    let mut rows = "    for (uint64_t row = first; row < last; ++row) {\n".to_owned();
    if g.in_bytes > 0 {
        let _ = write!(
            rows,
            "        {{\n            LocalTensor<uint8_t> in = rowsIn.AllocTensor<uint8_t>();\n{}            rowsIn.EnQue(in);\n        }}\n        \
             LocalTensor<uint8_t> in = rowsIn.DeQue<uint8_t>();\n",
            g.copies
        );
    }
    if g.out_bytes > 0 {
        rows += "        LocalTensor<uint8_t> out = rowsOut.AllocTensor<uint8_t>();\n";
    }
    rows += &g.code;
    if g.in_bytes > 0 {
        rows += "        rowsIn.FreeTensor(in);\n";
    }
    if g.out_bytes > 0 {
        rows += "        rowsOut.EnQue(out);\n        out = rowsOut.DeQue<uint8_t>();\n";
        rows += &store_results(&g)?;
        rows += &g.stores;
        rows += "        rowsOut.FreeTensor(out);\n";
    }
    rows += "    }\n}\n";
    let head = head(&g)?;
    let (buffers, bytes) = buffers(&g, depth);
    Ok(Draft { body: format!("{head}{buffers}{rows}"), bytes })
}

/// A result that no op made: a part of an operand, in its own type.
fn copy_back(g: &mut Gen<'_>, value: ir::ValueId) -> Result<(), Declined> {
    if g.outputs.iter().any(|s| s.value == value) {
        return Ok(());
    }
    g.finish(value)
}

fn store_results(g: &Gen<'_>) -> Result<String, Declined> {
    let mut text = String::new();
    for (name, value) in results(g) {
        let dtype = g.dtype(value);
        let cpp = cpp_type(dtype)?;
        let section = g.outputs.iter().find(|s| s.value == value && s.dtype == dtype);
        let Some(section) = section else {
            return Err(Declined(format!("%{} is not made", g.func.values[value].name)));
        };
        let _ = writeln!(
            text,
            "        CopyOut({name}_rows[row * {name}_stride], out[{}].ReinterpretCast<{cpp}>(), 1, {}, 0);",
            section.offset,
            g.row_len(value)
        );
    }
    Ok(text)
}
