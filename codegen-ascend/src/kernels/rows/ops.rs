//! What each op is in vector instructions.

use super::{emit::Gen, moves, program::cpp_type, reduce, rope, route, states};
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
            moves::finish_alias(g, out)?;
        }
        Op::Slice { axis, start, len } if *axis > 0 => {
            moves::slice(g, args[0], out, *axis as usize, *start, *len)?
        }
        Op::Concat { axis } if *axis > 0 => moves::concat(g, args, out, *axis as usize)?,
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
        Op::Embed { .. } | Op::GatherRows {} => moves::gather(g, op, args, out)?,
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
        Op::StoreRows {} => states::store_rows(g, args[1], out)?,
        Op::PagedWrite {} => states::paged_write(g, args, out)?,
        Op::KvWrite {} => states::kv_write(g, args, out)?,
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
        // Nothing computes with these: they are for operators that take such indices.
        (DType::I32, DType::I64) if g.is_result(out) && !g.in_parts(g.row_len(out)) => {
            let offset = g.out_section(out, to);
            let wide = format!("out[{offset}].ReinterpretCast<int64_t>()");
            g.line(format!("Cast({wide}, {name}, RoundMode::CAST_NONE, {n});"));
            g.line("Step();");
            Ok(())
        }
        (from, DType::F32) if from.is_float() || from == DType::I8 => {
            // Held in f32 already.
            g.alias(out, x, 0)?;
            moves::finish_alias(g, out)
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
