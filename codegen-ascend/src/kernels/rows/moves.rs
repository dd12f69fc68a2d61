//! Ops that move elements: parts of rows, joins, rows by index.

use super::{
    emit::Gen,
    program::{Runs, cpp_type, is_param},
};
use crate::kernels::Declined;
use ir::{DType, Op, ValueId};
use std::fmt::Write;

/// A result that is a part of another value has a copy of its own.
pub(super) fn finish_alias(g: &mut Gen<'_>, out: ValueId) -> Result<(), Declined> {
    if g.makes_results && g.func.results.contains(&out) { g.finish(out) } else { Ok(()) }
}

pub(super) fn slice(
    g: &mut Gen<'_>,
    x: ValueId,
    out: ValueId,
    axis: usize,
    start: u64,
    len: u64,
) -> Result<(), Declined> {
    let runs = Runs::of_slice(&g.dims(x), axis, start, len);
    if g.in_parts(g.row_len(x)) || g.in_parts(g.row_len(out)) {
        return Err(Declined("slices of rows that do not fit local memory".to_owned()));
    }
    if runs.count == 1 && runs.start.is_multiple_of(8) {
        g.alias(out, x, runs.start)?;
        return finish_alias(g, out);
    }
    let name = g.arg(x)?;
    let y = g.define(out);
    let whole = [runs.start, runs.len, runs.stride].iter().all(|n| n % 8 == 0);
    if whole && runs.count < 4096 {
        g.line(format!(
            "DataCopy({y}, {name}[{}], DataCopyParams({}, {}, {}, 0));",
            runs.start,
            runs.count,
            runs.len / 8,
            (runs.stride - runs.len) / 8
        ));
    } else {
        let offsets = offsets(g, &[(String::new(), runs)])?;
        g.line(format!("Gather({y}, {name}, {offsets}, 0, {});", runs.count * runs.len));
    }
    g.line("Step();");
    g.finish(out)
}

/// Byte offsets of `runs` in local memory, one after another and each relative to its base, made
/// once by the scalar unit.
fn offsets(g: &mut Gen<'_>, parts: &[(String, Runs)]) -> Result<String, Declined> {
    let elements = parts.iter().map(|(_, r)| r.count * r.len).sum();
    let name = g.table("uint32_t", elements, 4, "offsets");
    let mut done = 0;
    for (base, r) in parts {
        let base = if base.is_empty() { String::new() } else { format!("{base} + ") };
        let _ = writeln!(
            g.setup,
            "    for (uint32_t run = 0; run < {}; ++run) {{\n        for (uint32_t i = 0; i < {}; ++i) {{\n            \
             {name}.SetValue({done} + run * {} + i, {base}({} + run * {} + i) * sizeof(float));\n        }}\n    }}",
            r.count, r.len, r.len, r.start, r.stride
        );
        done += r.count * r.len;
    }
    let _ = writeln!(g.setup, "    ScalarToVector();");
    Ok(name)
}

pub(super) fn concat(
    g: &mut Gen<'_>,
    parts: &[ValueId],
    out: ValueId,
    axis: usize,
) -> Result<(), Declined> {
    if g.dtype(out) == DType::I32 {
        return Err(Declined("a join of integers".to_owned()));
    }
    if g.in_parts(g.row_len(out)) {
        return Err(Declined("joins of rows that do not fit local memory".to_owned()));
    }
    let dims = g.dims(out);
    let outer: u64 = dims[1..axis].iter().product();
    let run = |g: &Gen<'_>, p: ValueId| g.dims(p)[axis..].iter().product::<u64>();
    let stride: u64 = dims[axis..].iter().product();
    let names: Vec<String> = parts.iter().map(|&p| g.arg(p)).collect::<Result<_, _>>()?;
    let runs: Vec<u64> = parts.iter().map(|&p| run(g, p)).collect();
    let y = g.define(out);
    let single = |i: usize| outer == 1 && i == runs.len() - 1;
    let whole = runs.iter().enumerate().all(|(i, r)| r % 8 == 0 || single(i));
    if whole && outer < 4096 {
        let mut at = 0;
        for (name, run) in names.iter().zip(&runs) {
            let gap = stride.next_multiple_of(8).saturating_sub(run.next_multiple_of(8)) / 8;
            let gap = if outer == 1 { 0 } else { gap };
            g.line(format!(
                "DataCopy({y}[{at}], {name}, DataCopyParams({outer}, {}, 0, {gap}));",
                run.div_ceil(8)
            ));
            at += run;
        }
    } else {
        // All parts side by side, from which the elements are taken one by one.
        let mut room = Vec::new();
        let mut total = 0;
        for run in &runs {
            room.push(total);
            total += (outer * run).next_multiple_of(8);
        }
        let side = g.temp(total, "parts");
        for ((name, run), at) in names.iter().zip(&runs).zip(&room) {
            g.line(format!(
                "DataCopy({}[{at}], {name}, {});",
                side.name,
                (outer * run).next_multiple_of(8)
            ));
        }
        g.line("Step();");
        let mut pieces = Vec::new();
        for o in 0..outer {
            for (run, at) in runs.iter().zip(&room) {
                pieces.push((
                    String::new(),
                    Runs { start: at + o * run, count: 1, len: *run, stride: *run },
                ));
            }
        }
        if pieces.len() > 64 {
            return Err(Declined("a join of many unaligned parts".to_owned()));
        }
        let offsets = offsets(g, &pieces)?;
        g.line(format!("Gather({y}, {}, {offsets}, 0, {});", side.name, outer * stride));
        g.free(side);
    }
    g.line("Step();");
    g.finish(out)
}

/// Rows of a matrix in global memory by index.
pub(super) fn gather(
    g: &mut Gen<'_>,
    op: &Op,
    args: &[ValueId],
    out: ValueId,
) -> Result<(), Declined> {
    let (ids, table) =
        if matches!(op, Op::Embed { .. }) { (args[0], args[1]) } else { (args[1], args[0]) };
    if !is_param(g.func, table) {
        return Err(Declined("a table that is computed in the same kernel".to_owned()));
    }
    let (dtype, name) = (g.dtype(table), g.name(table));
    let (cpp, len) = (cpp_type(dtype)?, g.row_len(out));
    if dtype == DType::I8 {
        return Err(Declined("a table of i8".to_owned()));
    }
    let id = g.index(ids, "0")?;
    let ty = &g.func.values[table].ty;
    let held = g.held(len);
    let part = g.in_parts(len);
    let columns = g.count_of(len);
    match ty.layout {
        ir::Layout::Nd => {
            let offset = g.in_section(out, dtype, held);
            let start = if part { " + at" } else { "" };
            let _ = writeln!(
                g.copies,
                "            CopyIn(in[{offset}].ReinterpretCast<{cpp}>(), {name}_rows[uint64_t({id}) * {len}{start}], 1, {columns}, 0);"
            );
            unpack_row(g, out, dtype, offset, held)
        }
        ir::Layout::Nz => {
            // A row is one block of 32 bytes in each column of fractals.
            let piece = 256 / dtype.bits();
            let rows = g.dims(table)[0].next_multiple_of(16);
            let offset = g.in_section(out, dtype, held.next_multiple_of(piece));
            if part || len.div_ceil(piece) > 4095 {
                return Err(Declined("rows of fractals that do not fit local memory".to_owned()));
            }
            let _ = writeln!(
                g.copies,
                "            CopyIn(in[{offset}].ReinterpretCast<{cpp}>(), {name}_rows[uint64_t({id}) * {piece}], {}, {piece}, {});",
                len.div_ceil(piece),
                (rows - 1) * piece
            );
            unpack_row(g, out, dtype, offset, held)
        }
        ir::Layout::Panels | ir::Layout::Compact => Err(Declined("a table in panels".to_owned())),
    }
}

/// A row of `dtype` that a copy has brought as the result `out`, which may have another type.
fn unpack_row(
    g: &mut Gen<'_>,
    out: ValueId,
    dtype: DType,
    offset: u64,
    held: u64,
) -> Result<(), Declined> {
    if dtype == DType::I32 {
        g.unpack(out, dtype, offset, held)?;
        return g.finish(out);
    }
    g.unpack(out, dtype, offset, held)?;
    // Rounded to the type of the table already.
    if g.dtype(out) != dtype || (g.makes_results && g.func.results.contains(&out)) {
        if dtype == DType::F32 && g.dtype(out) != DType::F32 {
            // Rounding writes back, and what a copy brought must stay.
            let raw = g.name(out);
            let temp = g.temp(held, &format!("{raw}_copy"));
            let n = held.next_multiple_of(8);
            g.line(format!("DataCopy({}, {raw}, {n});", temp.name));
            g.line("Step();");
            let renamed = temp.name.clone();
            g.names.insert(out, renamed);
            g.define_as(out, Some(temp));
        }
        g.finish(out)?;
    }
    Ok(())
}
