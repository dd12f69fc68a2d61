//! Ops that write states, row by row.

use super::{
    emit::Gen,
    program::{cpp_type, is_param},
};
use crate::kernels::Declined;
use ir::{DType, ValueId};
use std::fmt::Write;

/// Row `t` of `x` over row `t` of the state.
pub(super) fn store_rows(g: &mut Gen<'_>, x: ValueId, out: ValueId) -> Result<(), Declined> {
    let offset = stored(g, x, g.dtype(out))?;
    let (state, n) = (origin(g, out), g.row_len(x));
    let (name, cpp) = (g.name(state), cpp_type(g.dtype(out))?);
    let _ = writeln!(
        g.stores,
        "        CopyOut({name}_rows[row * {n}], out[{offset}].ReinterpretCast<{cpp}>(), 1, {n}, 0);"
    );
    Ok(())
}

/// A row into the place that its slot names.
pub(super) fn paged_write(g: &mut Gen<'_>, args: &[ValueId], out: ValueId) -> Result<(), Declined> {
    let offset = stored(g, args[1], g.dtype(out))?;
    let (state, n) = (origin(g, out), g.row_len(args[1]));
    let slot = kept_slot(g, args[2])?;
    let (name, cpp) = (g.name(state), cpp_type(g.dtype(out))?);
    let _ = writeln!(
        g.stores,
        "        if ({slot} >= 0) CopyOut({name}_rows[uint64_t({slot}) * {n}], out[{offset}].ReinterpretCast<{cpp}>(), 1, {n}, 0);"
    );
    Ok(())
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
    if !is_param(g.func, slots) {
        return Err(Declined("slots that are computed in the same kernel".to_owned()));
    }
    let name = g.name(slots);
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

/// Keys and values of all heads into the place that the slot of the row names.
pub(super) fn kv_write(g: &mut Gen<'_>, args: &[ValueId], out: ValueId) -> Result<(), Declined> {
    let dims = g.dims(out);
    let (heads, tokens, d) = (dims[2], dims[3], dims[4]);
    let dtype = g.dtype(out);
    if dtype == DType::I8 {
        return Err(Declined("codes of keys and values have scales beside them".to_owned()));
    }
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
