//! Ops that go row by row, alone or several as one, as a kernel for the vector cores.
//!
//! Rows are split over the cores in contiguous runs. A row comes into local memory through a queue
//! of two buffers, so that the next one is on its way while one is computed; everything is computed
//! in f32 and rounded to the element type that a value has; what is only used inside never leaves
//! local memory. Rows that do not fit are computed part by part: once for each number that is made
//! of a whole row, such as the scale of a quantisation, and once more for the results.
//!
//! What a row becomes depends on the row alone, not on how many there are or which core it is on.

mod emit;
mod moves;
mod ops;
mod parts;
mod program;
mod reduce;
mod rope;
mod route;
mod states;
mod text;
mod whole;

use super::{Declined, Kernel};
use crate::chip::Chip;
use compiler::{Arg, Lowered, Operand};
use emit::Gen;
use ir::{Func, Op, Storage};
use program::{cpp_type, inline};
use std::fmt::Write;

/// Bytes at the end of local memory that stay free.
const SPARE: u64 = 256;

/// A kernel for `op`, which goes row by row (see [`Op::row_wise`]) or is a composite of such ops.
///
/// # Errors
/// Why there is none.
pub fn lower(
    op: &Op,
    operands: &[Operand],
    results: &[Operand],
    chip: &Chip,
) -> Result<Lowered, Declined> {
    let func = inline(op, operands)?;
    let rows = func
        .is_row_wise()
        .and_then(|d| d.as_const())
        .ok_or_else(|| Declined(format!("`{}` does not go row by row", op.kind())))?;
    let mut refused = None;
    for depth in [2, 1] {
        match whole::kernel(&func, depth).and_then(|k| k.fits(chip)) {
            Ok(kernel) => return Ok(call(op, &func, kernel, operands, results, rows, chip)),
            Err(why) => refused = Some(why),
        }
    }
    for part in [8192, 4096, 2048, 1024, 512] {
        match parts::kernel(&func, part).and_then(|k| k.fits(chip)) {
            Ok(kernel) => return Ok(call(op, &func, kernel, operands, results, rows, chip)),
            Err(Declined(why)) => {
                if let Some(Declined(first)) = &mut refused {
                    *first = format!(
                        "{}; in parts: {why}",
                        first.split("; in parts").next().unwrap_or_default()
                    );
                }
            }
        }
    }
    Err(refused.unwrap_or_else(|| Declined("no kernel".to_owned())))
}

/// What a kernel consists of before it has a name.
struct Draft {
    /// Statements of the rows, all buffers declared.
    body: String,
    /// Local memory that they take.
    bytes: u64,
}

impl Draft {
    fn fits(self, chip: &Chip) -> Result<Self, Declined> {
        let room = chip.ub_bytes - SPARE;
        if self.bytes > room {
            return Err(Declined(format!(
                "a row takes {} bytes of local memory; there are {room}",
                self.bytes
            )));
        }
        Ok(self)
    }
}

fn call(
    op: &Op,
    func: &Func,
    draft: Draft,
    operands: &[Operand],
    results: &[Operand],
    rows: u64,
    chip: &Chip,
) -> Lowered {
    let written: Vec<usize> =
        (0..results.len()).filter(|&i| results[i].ty.storage == Storage::Tensor).collect();
    let args = (0..operands.len())
        .map(Arg::Operand)
        .chain(written.iter().map(|&i| Arg::Result(i)))
        .collect();
    let strides = operands.iter().map(|o| o.row_stride);
    let strides = strides.chain(written.iter().map(|&i| results[i].row_stride));
    let scalars: Vec<u64> = [rows].into_iter().chain(strides).collect();
    let ops = func.order.len();
    let about = format!(
        "// {}: {ops} {} on each row, in f32. Buffers are its operands and results; scalars the number of rows\n\
         // and the distance between rows of each buffer, in elements.\n",
        op.kind(),
        if ops == 1 { "op" } else { "ops" }
    );
    let source = text::source(&about, &draft.body);
    let blocks = (rows.min(u64::from(chip.vector_cores)) as u32).max(1);
    Kernel::new(op.kind(), &source).call(args, &scalars, blocks, "row by row on the vector cores")
}

/// The head of a kernel: its parameters, its share of the rows, its tensors in global memory.
fn head(g: &Gen<'_>) -> Result<String, Declined> {
    let func = g.func;
    let mut names: Vec<String> = func.params.iter().map(|&p| g.name(p)).collect();
    let mut types: Vec<&str> = Vec::new();
    for &p in &func.params {
        types.push(cpp_type(func.values[p].ty.dtype)?);
    }
    for (name, value) in results(g) {
        names.push(name);
        types.push(cpp_type(func.values[value].ty.dtype)?);
    }
    let addresses: Vec<String> = names.iter().map(|n| format!("GM_ADDR {n}_address")).collect();
    let strides: Vec<String> = names.iter().map(|n| format!("uint64_t {n}_stride")).collect();
    let mut text = format!(
        "extern \"C\" __global__ __aicore__ void {}({},\n    uint64_t rows, {}) {{\n    \
         KERNEL_TASK_TYPE_DEFAULT(KERNEL_TYPE_AIV_ONLY);\n    \
         // A contiguous run of rows for each core.\n    \
         const uint64_t share = (rows + GetBlockNum() - 1) / GetBlockNum();\n    \
         const uint64_t first = GetBlockIdx() * share;\n    \
         const uint64_t last = first + share < rows ? first + share : rows;\n    \
         if (first >= last) return;\n",
        super::NAME,
        addresses.join(", "),
        strides.join(", ")
    );
    for (name, cpp) in names.iter().zip(&types) {
        let _ = writeln!(
            text,
            "    GlobalTensor<{cpp}> {name}_rows;\n    {name}_rows.SetGlobalBuffer((__gm__ {cpp}*){name}_address);\n    (void){name}_stride;"
        );
    }
    Ok(text)
}

/// Results that are tensors, each with the name of its buffer. A value that is returned twice has two.
fn results(g: &Gen<'_>) -> Vec<(String, ir::ValueId)> {
    let tensors = g.func.results.iter().filter(|&&r| !g.is_state(r));
    tensors.enumerate().map(|(i, &r)| (format!("{}_result{i}", g.name(r)), r)).collect()
}

/// Declarations of the buffers in local memory and what comes before the first row.
fn buffers(g: &Gen<'_>, depth: u64) -> (String, u64) {
    let mut text = "    TPipe pipe;\n".to_owned();
    let mut bytes = 0;
    let mut queue = |name: &str, position: &str, size: u64| {
        if size > 0 {
            let _ = writeln!(
                text,
                "    TQue<QuePosition::{position}, {depth}> {name};\n    pipe.InitBuffer({name}, {depth}, {size});"
            );
            bytes += depth * size;
        }
    };
    queue("rowsIn", "VECIN", g.in_bytes);
    queue("rowsOut", "VECOUT", g.out_bytes);
    let mut buffer = |name: &str, size: u64| {
        if size > 0 {
            let _ = writeln!(text, "    TBuf<> {name};\n    pipe.InitBuffer({name}, {size});");
            bytes += size;
        }
    };
    buffer("work", g.work_bytes());
    buffer("tables", g.table_bytes);
    buffer("staging", g.staging_bytes);
    text += &g.setup;
    (text, bytes)
}
