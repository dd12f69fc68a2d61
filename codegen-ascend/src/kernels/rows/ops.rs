//! What each op is in vector instructions.

use super::{
    emit::Gen,
    program::{Runs, cpp_type, is_param},
    reduce, rope, route,
};
use crate::kernels::Declined;
use ir::{DType, NodeId, Op, ValueId};
use std::fmt::Write;

/// A number as the source has it: a float that reads back as the same one.
pub(super) fn float(x: f32) -> String {
    if x == f32::INFINITY {
        return "3.4028235e38f".to_owned();
    }
    format!("{x:?}f")
}

/// Writes the statements of `node`, which stands at `place` of the order.
pub(super) fn op(g: &mut Gen<'_>, node: NodeId, place: usize) -> Result<(), Declined> {
    let (op, args, outs) = g.node(node);
    let out = outs[0];
    let makes_view = g.views.contains_key(&out);
    if makes_view {
        return Ok(());
    }
    comment(g, node);
    g.place = place;
    match op {
        Op::Reshape { .. } => {
            g.alias(out, args[0], 0)?;
            finish_alias(g, out)?;
        }
        Op::Slice { axis, start, len } if *axis > 0 => {
            slice(g, args[0], out, *axis as usize, *start, *len)?
        }
        Op::Concat { axis } if *axis > 0 => concat(g, args, out, *axis as usize)?,
        Op::Cast { .. } => cast(g, args[0], out)?,
        Op::Add {} => binary(g, "Add", args, out)?,
        Op::Mul {} => binary(g, "Mul", args, out)?,
        Op::AddScalar { value } => {
            let (x, n) = (g.arg(args[0])?, g.count(out));
            let y = g.define_over(out, args);
            g.line(format!("Adds({y}, {x}, {}, {n});", float(*value)));
            g.line("Step();");
            g.finish(out)?;
        }
        Op::Silu {} | Op::Sigmoid {} => {
            let (x, n) = (g.arg(args[0])?, g.count(out));
            let y = g.define_over(out, args);
            let t = g.temp(g.held(g.row_len(out)), "denominator");
            g.line(format!("ExpNegated({}, {x}, {n});", t.name));
            if matches!(op, Op::Silu {}) {
                g.line(format!("Div({y}, {x}, {}, {n});", t.name));
            } else {
                g.line(format!("Duplicate({y}, 1.0f, {n});"));
                g.line("Step();");
                g.line(format!("Div({y}, {y}, {}, {n});", t.name));
            }
            g.line("Step();");
            g.free(t);
            g.finish(out)?;
        }
        Op::ScaleRows {} => {
            let (x, scale, n) = (g.arg(args[0])?, g.arg(args[1])?, g.count(out));
            let y = g.define_over(out, &args[..1]);
            let block = g.temp(64, "factor");
            g.line(format!("Spread({}, {scale});", block.name));
            g.line(format!("MulBlock({y}, {x}, {}, {n});", block.name));
            g.free(block);
            g.finish(out)?;
        }
        Op::SwigluClamped { alpha, limit, .. } => swiglu(g, args, out, *alpha, *limit)?,
        Op::AddBias {} => {
            let (x, bias) = (g.arg(args[0])?, g.vector(args[1])?);
            let (len, last) = (g.row_len(out), g.last_axis(out));
            let y = g.define(out);
            if len == last {
                g.line(format!("Add({y}, {x}, {bias}, {});", g.count(out)));
            } else {
                each_part(g, len / last, last, |g, at| {
                    g.line(format!("Add({y}[{at}], {x}[{at}], {bias}, {last});"));
                })?;
            }
            g.line("Step();");
            g.finish(out)?;
        }
        Op::Embed { .. } | Op::GatherRows {} => gather(g, op, args, out)?,
        Op::RmsNorm { .. }
        | Op::L2Norm { .. }
        | Op::LayerNorm { .. }
        | Op::QuantizeRows {}
        | Op::Argmax {} => {
            reduce::op(g, node)?;
        }
        Op::QuantizeStatic {} => quantize_static(g, args, out)?,
        Op::QuantizeFp8 { .. } => return Err(Declined("the chip has no fp8".to_owned())),
        Op::Route { spec } => route::route(g, args, outs, spec)?,
        Op::ExpertBias {} => expert_bias(g, args, out)?,
        Op::CombineExperts { .. } => combine(g, args, out)?,
        Op::RopeTable { spec } => rope::table(g, args[0], out, spec)?,
        Op::Rotary { interleaved } => rope::rotary(g, args, out, *interleaved)?,
        Op::DeltaGate {} => delta_gate(g, args, out)?,
        Op::StoreRows {} => {
            let offset = stored(g, args[1], g.dtype(out))?;
            let (state, n) = (origin(g, out), g.row_len(args[1]));
            let (name, cpp) = (g.name(state), cpp_type(g.dtype(out))?);
            let _ = writeln!(
                g.stores,
                "        CopyOut({name}_rows[row * {n}], out[{offset}].ReinterpretCast<{cpp}>(), 1, {n}, 0);"
            );
        }
        Op::PagedWrite {} => {
            let offset = stored(g, args[1], g.dtype(out))?;
            let (state, n) = (origin(g, out), g.row_len(args[1]));
            let slot = kept_slot(g, args[2])?;
            let (name, cpp) = (g.name(state), cpp_type(g.dtype(out))?);
            let _ = writeln!(
                g.stores,
                "        if ({slot} >= 0) CopyOut({name}_rows[uint64_t({slot}) * {n}], out[{offset}].ReinterpretCast<{cpp}>(), 1, {n}, 0);"
            );
        }
        Op::KvWrite {} => kv_write(g, args, out)?,
        other => return Err(Declined(format!("`{}` does not go row by row", other.mnemonic()))),
    }
    g.release(place);
    Ok(())
}

fn comment(g: &mut Gen<'_>, node: NodeId) {
    let (op, args, outs) = g.node(node);
    let name = |v: &ValueId| format!("%{}", g.func.values[*v].name);
    let args: Vec<String> = args.iter().map(name).collect();
    let outs: Vec<String> = outs.iter().map(name).collect();
    let text = format!("// {} = {} {}", outs.join(", "), op.mnemonic(), args.join(", "));
    g.line(text);
}

/// A result that is a part of another value has a copy of its own.
fn finish_alias(g: &mut Gen<'_>, out: ValueId) -> Result<(), Declined> {
    if g.makes_results && g.func.results.contains(&out) { g.finish(out) } else { Ok(()) }
}

/// `body` for each of `count` parts of `len` elements, given where the part begins.
pub(super) fn each_part(
    g: &mut Gen<'_>,
    count: u64,
    len: u64,
    body: impl FnOnce(&mut Gen<'_>, &str),
) -> Result<(), Declined> {
    if count == 1 {
        body(g, "0");
        return Ok(());
    }
    if !len.is_multiple_of(8) {
        return Err(Declined(format!(
            "parts of {len} elements begin inside a block of local memory"
        )));
    }
    let h = g.fresh("h");
    g.line(format!("for (uint32_t {h} = 0; {h} < {count}; ++{h}) {{"));
    g.indent += 1;
    body(g, &format!("{h} * {len}"));
    g.indent -= 1;
    g.line("}");
    Ok(())
}

fn binary(
    g: &mut Gen<'_>,
    instruction: &str,
    args: &[ValueId],
    out: ValueId,
) -> Result<(), Declined> {
    if g.dtype(out).is_int() {
        return Err(Declined(format!("`{}` of integers", instruction.to_lowercase())));
    }
    let (a, b, n) = (g.arg(args[0])?, g.arg(args[1])?, g.count(out));
    let y = g.define_over(out, args);
    g.line(format!("{instruction}({y}, {a}, {b}, {n});"));
    g.line("Step();");
    g.finish(out)
}

fn cast(g: &mut Gen<'_>, x: ValueId, out: ValueId) -> Result<(), Declined> {
    let (from, to) = (g.dtype(x), g.dtype(out));
    let (name, n) = (g.arg(x)?, g.count(out));
    match (from, to) {
        (DType::I32, DType::F32 | DType::BF16 | DType::F16) => {
            let y = g.define(out);
            g.line(format!("Cast({y}, {name}, RoundMode::CAST_RINT, {n});"));
            g.line("Step();");
            g.finish(out)
        }
        (from, DType::F32) if from.is_float() || from == DType::I8 => {
            // Held in f32 already.
            g.alias(out, x, 0)?;
            finish_alias(g, out)
        }
        (from, DType::BF16 | DType::F16) if from.is_float() || from == DType::I8 => {
            let y = g.define(out);
            let whole = g.held(g.row_len(out)).next_multiple_of(8);
            let n = if g.in_parts(g.row_len(out)) {
                "(columns + 7) / 8 * 8".to_owned()
            } else {
                whole.to_string()
            };
            g.line(format!("DataCopy({y}, {name}, {n});"));
            g.line("Step();");
            g.finish(out)
        }
        _ => Err(Declined(format!("a cast from {from} to {to}"))),
    }
}

fn slice(
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
        gather_by(g, &y, &name, &offsets, runs.count * runs.len, g.dtype(out));
    }
    g.line("Step();");
    g.finish(out)
}

/// Byte offsets of `runs` in local memory, one after another and each relative to its base, made
/// once by the scalar unit.
pub(super) fn offsets(g: &mut Gen<'_>, parts: &[(String, Runs)]) -> Result<String, Declined> {
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

fn gather_by(g: &mut Gen<'_>, y: &str, x: &str, offsets: &str, n: u64, dtype: DType) {
    let _ = dtype;
    g.line(format!("Gather({y}, {x}, {offsets}, 0, {n});"));
}

fn concat(g: &mut Gen<'_>, parts: &[ValueId], out: ValueId, axis: usize) -> Result<(), Declined> {
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
        gather_by(g, &y, &side.name.clone(), &offsets, outer * stride, g.dtype(out));
        g.free(side);
    }
    g.line("Step();");
    g.finish(out)
}

fn swiglu(
    g: &mut Gen<'_>,
    args: &[ValueId],
    out: ValueId,
    alpha: f32,
    limit: f32,
) -> Result<(), Declined> {
    let (gate, up, n) = (g.arg(args[0])?, g.arg(args[1])?, g.count(out));
    let y = g.define(out);
    let held = g.held(g.row_len(out));
    let (a, b) = (g.temp(held, "clamped"), g.temp(held, "denominator"));
    let (a_name, b_name) = (a.name.clone(), b.name.clone());
    for line in [
        format!("Mins({a_name}, {gate}, {}, {n});", float(limit)),
        "Step();".to_owned(),
        format!("Muls({b_name}, {a_name}, {}, {n});", float(alpha)),
        "Step();".to_owned(),
        format!("ExpNegated({b_name}, {b_name}, {n});"),
        format!("Div({a_name}, {a_name}, {b_name}, {n});"),
        format!("Mins({y}, {up}, {}, {n});", float(limit)),
        "Step();".to_owned(),
        format!("Maxs({y}, {y}, {}, {n});", float(-limit)),
        "Step();".to_owned(),
        format!("Adds({y}, {y}, 1.0f, {n});"),
        "Step();".to_owned(),
        format!("Mul({y}, {y}, {a_name}, {n});"),
        "Step();".to_owned(),
    ] {
        g.line(line);
    }
    g.free(a);
    g.free(b);
    g.finish(out)
}

/// Rows of a matrix in global memory by index.
fn gather(g: &mut Gen<'_>, op: &Op, args: &[ValueId], out: ValueId) -> Result<(), Declined> {
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
        ir::Layout::Panels => Err(Declined("a table in panels".to_owned())),
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

fn quantize_static(g: &mut Gen<'_>, args: &[ValueId], out: ValueId) -> Result<(), Declined> {
    let (x, n) = (g.arg(args[0])?, g.count(out));
    let (scale, offset) = (g.vector(args[1])?, g.vector(args[2])?);
    let y = g.define(out);
    let held = g.held(g.row_len(out));
    let (block, codes) = (g.temp(64, "number"), g.temp_of("int32_t", held, 4, "codes"));
    g.line(format!("Spread({}, {scale});", block.name));
    g.line(format!("DivBlock({y}, {x}, {}, {n});", block.name));
    g.line(format!("Spread({}, {offset});", block.name));
    g.line(format!("AddBlock({y}, {y}, {}, {n});", block.name));
    g.line(format!("Maxs({y}, {y}, -128.0f, {n});"));
    g.line("Step();");
    g.line(format!("Mins({y}, {y}, 127.0f, {n});"));
    g.line("Step();");
    g.line(format!("RoundToWhole({y}, {}, {n});", codes.name));
    g.free(block);
    g.free(codes);
    g.finish(out)
}

fn expert_bias(g: &mut Gen<'_>, args: &[ValueId], out: ValueId) -> Result<(), Declined> {
    let (x, ids, bias) = (g.arg(args[0])?, args[1], args[2]);
    let (k, n) = (g.dims(out)[1], g.last_axis(out));
    let dtype = g.dtype(bias);
    if k > 1 && !dtype.bytes_for(n).is_multiple_of(32) {
        return Err(Declined(format!("biases of {n} elements do not fill whole blocks")));
    }
    let (cpp, name) = (cpp_type(dtype)?, g.name(bias));
    let offset = g.in_section(bias, dtype, k * n);
    for j in 0..k {
        let id = g.index(ids, &j.to_string())?;
        let _ = writeln!(
            g.copies,
            "            CopyIn(in[{}].ReinterpretCast<{cpp}>(), {name}_rows[uint64_t({id}) * {n}], 1, {n}, 0);",
            offset + dtype.bytes_for(j * n)
        );
    }
    let y = g.define(out);
    let raw = format!("in[{offset}].ReinterpretCast<{cpp}>()");
    if dtype == DType::F32 {
        g.line(format!("Add({y}, {x}, {raw}, {});", k * n));
    } else {
        g.line(format!("Cast({y}, {raw}, RoundMode::CAST_NONE, {});", k * n));
        g.line("Step();");
        g.line(format!("Add({y}, {x}, {y}, {});", k * n));
    }
    g.line("Step();");
    g.finish(out)
}

fn combine(g: &mut Gen<'_>, args: &[ValueId], out: ValueId) -> Result<(), Declined> {
    let (x, weights) = (g.arg(args[0])?, g.arg(args[1])?);
    let (k, n) = (g.dims(args[0])[1], g.row_len(out));
    if k > 1 && n % 8 != 0 {
        return Err(Declined(format!("rows of {n} elements of experts begin inside a block")));
    }
    let y = g.define(out);
    let blocks = g.temp(k.div_ceil(8) * 64, "factors");
    let b = blocks.name.clone();
    g.line(format!("Brcb({b}, {weights}, {}, BrcbRepeatParams(1, 8));", k.div_ceil(8)));
    g.line("Step();");
    g.line(format!("MulBlock({y}, {x}, {b}, {n});"));
    if k > 1 {
        let (j, product) = (g.fresh("j"), g.temp(n, "product"));
        let p = product.name.clone();
        g.line(format!("for (uint32_t {j} = 1; {j} < {k}; ++{j}) {{"));
        g.line(format!("    MulBlock({p}, {x}[{j} * {n}], {b}[{j} * 8], {n});"));
        g.line(format!("    Add({y}, {y}, {p}, {n});"));
        g.line("    Step();");
        g.line("}");
        g.free(product);
    }
    g.free(blocks);
    g.finish(out)
}

/// `-exp(a_log) * softplus(a + dt_bias)`, with `ln(1 + e)` corrected by what `1 + e` lost of `e`.
fn delta_gate(g: &mut Gen<'_>, args: &[ValueId], out: ValueId) -> Result<(), Declined> {
    let (a, n) = (g.arg(args[0])?, g.count(out));
    let (a_log, bias) = (g.vector(args[1])?, g.vector(args[2])?);
    let y = g.define(out);
    let held = g.held(g.row_len(out));
    let (s, e, u, d) =
        (g.temp(held, "sum"), g.temp(held, "small"), g.temp(held, "one_and"), g.temp(held, "lost"));
    let [sn, en, un, dn] = [&s, &e, &u, &d].map(|t| t.name.clone());
    for line in [
        format!("Add({sn}, {a}, {bias}, {n});"),
        format!("Abs({en}, {sn}, {n});"),
        format!("Muls({en}, {en}, -1.0f, {n});"),
        format!("Exp({en}, {en}, {n});"),
        format!("Adds({un}, {en}, 1.0f, {n});"),
        format!("Adds({dn}, {un}, -1.0f, {n});"),
        format!("Sub({dn}, {en}, {dn}, {n});"),
        format!("Div({dn}, {dn}, {un}, {n});"),
        format!("Ln({un}, {un}, {n});"),
        format!("Add({un}, {un}, {dn}, {n});"),
        format!("Maxs({sn}, {sn}, 0.0f, {n});"),
        format!("Add({un}, {un}, {sn}, {n});"),
        format!("Exp({en}, {a_log}, {n});"),
        format!("Mul({un}, {un}, {en}, {n});"),
        format!("Muls({y}, {un}, -1.0f, {n});"),
    ] {
        g.line(line);
        g.line("Step();");
    }
    for temp in [s, e, u, d] {
        g.free(temp);
    }
    g.finish(out)
}

/// The parameter that a version of a state began as.
fn origin(g: &Gen<'_>, mut value: ValueId) -> ValueId {
    while let Some((_, node)) = g.func.def_node(value) {
        value = node.args[0];
    }
    value
}

/// `value` in the element type of a state, in the buffer that is copied back.
fn stored(g: &mut Gen<'_>, value: ValueId, dtype: DType) -> Result<u64, Declined> {
    let name = g.arg(value)?;
    if g.in_parts(g.row_len(value)) {
        return Err(Declined("stores of rows that do not fit local memory".to_owned()));
    }
    if let Some(s) = g.outputs.iter().find(|s| s.value == value && s.dtype == dtype) {
        return Ok(s.offset);
    }
    let offset = g.out_section(value, dtype);
    let (n, cpp) = (g.row_len(value), cpp_type(dtype)?);
    let to = format!("out[{offset}].ReinterpretCast<{cpp}>()");
    match dtype {
        DType::F32 | DType::I32 => {
            g.line(format!("DataCopy({to}, {name}, {});", n.next_multiple_of(8)))
        }
        DType::BF16 | DType::F16 => {
            g.line(format!("Cast({to}, {name}, RoundMode::CAST_RINT, {n});"))
        }
        other => return Err(Declined(format!("a state of {other}"))),
    }
    g.line("Step();");
    Ok(offset)
}

/// The slot of this row, or -1 where a later row has the same: the last of them writes it.
fn kept_slot(g: &mut Gen<'_>, slots: ValueId) -> Result<String, Declined> {
    let View { name } = slot_view(g, slots)?;
    if let Some(known) = g.tables.get(&slots) {
        return Ok(known.clone());
    }
    let rows = g.dims(slots)[0];
    // All buckets that fit share one kernel.
    let capacity = rows.next_power_of_two().max(512);
    let all = g.table("int32_t", capacity, 4, &format!("{name}_all"));
    let same = g.table("int32_t", capacity, 4, "same");
    let bits = g.table("uint8_t", capacity / 8, 1, "equal");
    let _ = writeln!(
        g.setup,
        "    Duplicate({all}, -1, {capacity});\n    VectorToCopy();\n    CopyIn({all}, {name}_rows, 1, rows, 0);\n    CopyToVector();"
    );
    let (kept, compared) = (g.fresh("kept_slot"), g.fresh("compared"));
    for line in [
        "// The last of the rows that share a slot writes it; the others keep out.".to_owned(),
        format!("int64_t {kept} = {name}_rows.GetValue(row);"),
        format!("const uint32_t {compared} = (rows + 63) / 64 * 64;"),
        format!("Duplicate({same}, static_cast<int32_t>({kept}), {compared});"),
        "Step();".to_owned(),
        format!("Compare({bits}, {all}, {same}, CMPMODE::EQ, {compared});"),
        "VectorToScalar();".to_owned(),
        "for (uint32_t word = (row + 1) / 32; word < (rows + 31) / 32; ++word) {".to_owned(),
        format!("    uint32_t later = {bits}.ReinterpretCast<uint32_t>().GetValue(word);"),
        "    if (word == (row + 1) / 32) later = later >> ((row + 1) % 32) << ((row + 1) % 32);"
            .to_owned(),
        "    if (word == rows / 32) later &= (1u << (rows % 32)) - 1;".to_owned(),
        format!("    if (later != 0) {kept} = -1;"),
        "}".to_owned(),
        "ScalarToVector();".to_owned(),
    ] {
        g.line(line);
    }
    g.tables.insert(slots, kept.clone());
    Ok(kept)
}

struct View {
    name: String,
}

fn slot_view(g: &Gen<'_>, slots: ValueId) -> Result<View, Declined> {
    if !is_param(g.func, slots) {
        return Err(Declined("slots that are computed in the same kernel".to_owned()));
    }
    Ok(View { name: g.name(slots) })
}

fn kv_write(g: &mut Gen<'_>, args: &[ValueId], out: ValueId) -> Result<(), Declined> {
    let dims = g.dims(out);
    let (heads, tokens, d) = (dims[2], dims[3], dims[4]);
    let dtype = g.dtype(out);
    if heads > 1 && !dtype.bytes_for(d).is_multiple_of(32) {
        return Err(Declined(format!("heads of {d} elements do not fill whole blocks")));
    }
    let slot = kept_slot(g, args[3])?;
    let state = origin(g, out);
    let (name, cpp) = (g.name(state), cpp_type(dtype)?);
    for (side, value) in [(0, args[1]), (1, args[2])] {
        let offset = stored(g, value, dtype)?;
        let what = ["keys", "values"][side];
        let _ = writeln!(
            g.stores,
            "        // {what}: block, side, head, place\n        if ({slot} >= 0) {{\n            \
             const uint64_t block = uint64_t({slot}) / {tokens}, place = uint64_t({slot}) % {tokens};\n            \
             CopyOut({name}_rows[((block * 2 + {side}) * {heads} * {tokens} + place) * {d}], out[{offset}].ReinterpretCast<{cpp}>(), {heads}, {d}, {});\n        }}",
            (tokens - 1) * d
        );
    }
    Ok(())
}
