//! Ops that need a number made of a whole row: norms, quantisation, the largest element.
//!
//! Where rows come part by part, the numbers of the parts are added up, or the larger is kept, in the
//! order of the parts; a later pass over the parts uses the result.

use super::{
    emit::Gen,
    ops::{each_part, float},
};
use crate::kernels::Declined;
use ir::{NodeId, Op, ValueId};
use std::fmt::Write;

/// Names of what a reduction keeps from part to part.
#[derive(Clone, Debug)]
pub(super) struct Cells {
    /// The number of the row so far, and after the last part what the row is divided by.
    number: String,
    /// The same in each element of a block.
    block: String,
}

/// Whether `op` makes a number of each row.
pub(super) fn is_reduction(op: &Op) -> bool {
    matches!(
        op,
        Op::RmsNorm { .. }
            | Op::L2Norm { .. }
            | Op::LayerNorm { .. }
            | Op::QuantizeRows {}
            | Op::Argmax {}
    )
}

/// Rows that are in local memory as a whole.
pub(super) fn op(g: &mut Gen<'_>, node: NodeId) -> Result<(), Declined> {
    let (op, args, outs) = g.node(node);
    match op {
        Op::Argmax {} => argmax(g, args[0], outs[0]),
        Op::QuantizeRows {} => quantize(g, args[0], outs),
        _ => norm(g, op, args, outs[0]),
    }
}

fn norm(g: &mut Gen<'_>, op: &Op, args: &[ValueId], out: ValueId) -> Result<(), Declined> {
    let x = g.arg(args[0])?;
    let (len, last) = (g.row_len(out), g.last_axis(out));
    let weight = match op {
        Op::L2Norm { .. } => None,
        _ => Some(g.vector(args[1])?),
    };
    let bias = if matches!(op, Op::LayerNorm { .. }) { Some(g.vector(args[2])?) } else { None };
    let y = g.define_over(out, &args[..1]);
    let (squares, partial) = (g.temp(last, "squares"), g.reduction_work(last));
    let (number, block) = (g.temp(8, "number"), g.temp(64, "block"));
    let [s, p, c, b] = [&squares, &partial, &number, &block].map(|t| t.name.clone());
    each_part(g, len / last, last, |g, at| {
        let (x, y) = (part(&x, at), part(&y, at));
        let from = if bias.is_some() {
            // The mean goes out first.
            g.line(format!("ReduceSum({c}, {x}, {p}, {last});"));
            g.line("Step();");
            g.line(format!("Muls({c}, {c}, {}, 1);", float(-1.0 / last as f32)));
            g.line("Step();");
            g.line(format!("Spread({b}, {c});"));
            g.line(format!("AddBlock({y}, {x}, {b}, {last});"));
            y.clone()
        } else {
            x
        };
        g.line(format!("SquaresSum({c}, {from}, {s}, {p}, {last});"));
        divisor(g, op, &c, last);
        g.line(format!("Spread({b}, {c});"));
        g.line(format!("DivBlock({y}, {from}, {b}, {last});"));
        apply(g, op, &y, weight.as_deref(), bias.as_deref(), &last.to_string());
    })?;
    for temp in [squares, partial, number, block] {
        g.free(temp);
    }
    g.finish(out)
}

fn part(name: &str, at: &str) -> String {
    if at == "0" { name.to_owned() } else { format!("{name}[{at}]") }
}

/// The sum of squares becomes what a row is divided by.
fn divisor(g: &mut Gen<'_>, op: &Op, cell: &str, last: u64) {
    let eps = match op {
        Op::RmsNorm { eps, .. } | Op::LayerNorm { eps, .. } => {
            g.line(format!("Muls({cell}, {cell}, {}, 1);", float(1.0 / last as f32)));
            g.line("Step();");
            *eps
        }
        Op::L2Norm { eps, .. } => *eps,
        _ => 0.0,
    };
    g.line(format!("Adds({cell}, {cell}, {}, 1);", float(eps)));
    g.line("Step();");
    g.line(format!("Sqrt({cell}, {cell}, 1);"));
    g.line("Step();");
}

/// What comes after the division.
fn apply(g: &mut Gen<'_>, op: &Op, y: &str, weight: Option<&str>, bias: Option<&str>, n: &str) {
    if let Op::L2Norm { scale, .. } = op
        && *scale != 1.0
    {
        g.line(format!("Muls({y}, {y}, {}, {n});", float(*scale)));
        g.line("Step();");
    }
    if let Some(weight) = weight {
        g.line(format!("Mul({y}, {y}, {weight}, {n});"));
        g.line("Step();");
    }
    if let Some(bias) = bias {
        g.line(format!("Add({y}, {y}, {bias}, {n});"));
        g.line("Step();");
    }
}

/// The largest magnitude becomes the scale, and `divisor` what codes are quotients by: a row of
/// zeros has scale 0 and is divided by the smallest normal number.
fn scale(g: &mut Gen<'_>, cell: &str, largest_code: &str, divisor: &str) {
    for line in [
        format!("Duplicate({largest_code}, 127.0f, 8);"),
        "Step();".to_owned(),
        format!("Div({cell}, {cell}, {largest_code}, 1);"),
        "Step();".to_owned(),
        format!("Maxs({divisor}, {cell}, 1.17549435e-38f, 1);"),
        "Step();".to_owned(),
    ] {
        g.line(line);
    }
}

fn quantize(g: &mut Gen<'_>, x: ValueId, outs: &[ValueId]) -> Result<(), Declined> {
    let (codes, scales) = (outs[0], outs[1]);
    let name = g.arg(x)?;
    let (len, last) = (g.row_len(x), g.last_axis(x));
    let (y, s) = (g.define_over(codes, &[x]), g.define(scales));
    let (sizes, partial) = (g.temp(last, "sizes"), g.reduction_work(last));
    let (number, block, most, low) =
        (g.temp(8, "number"), g.temp(64, "block"), g.temp(8, "largest_code"), g.temp(8, "divisor"));
    let [t, p, c, b, m, d] =
        [&sizes, &partial, &number, &block, &most, &low].map(|t| t.name.clone());
    let whole = g.temp_of("int32_t", last, 4, "codes");
    let w = whole.name.clone();
    let many = len != last;
    each_part(g, len / last, last, |g, at| {
        let (x, y) = (part(&name, at), part(&y, at));
        g.line(format!("Abs({t}, {x}, {last});"));
        g.line("Step();");
        g.line(format!("ReduceMax({c}, {t}, {p}, {last});"));
        g.line("Step();");
        scale(g, &c, &m, &d);
        if many {
            g.line("VectorToScalar();");
            g.line(format!("{s}.SetValue(({at}) / {last}, {c}.GetValue(0));"));
            g.line("ScalarToVector();");
        } else {
            g.line(format!("DataCopy({s}, {c}, 8);"));
            g.line("Step();");
        }
        g.line(format!("Spread({b}, {d});"));
        g.line(format!("DivBlock({y}, {x}, {b}, {last});"));
        g.line(format!("RoundToWhole({y}, {w}, {last});"));
    })?;
    for temp in [sizes, partial, number, block, most, low, whole] {
        g.free(temp);
    }
    g.finish(codes)?;
    g.finish(scales)
}

fn argmax(g: &mut Gen<'_>, x: ValueId, out: ValueId) -> Result<(), Declined> {
    let (name, len) = (g.arg(x)?, g.row_len(x));
    let y = g.define(out);
    let (partial, best) = (g.reduction_work(len), g.temp(8, "best"));
    g.line(format!("ReduceMax({}, {name}, {}, {len}, true);", best.name, partial.name));
    g.line("VectorToScalar();");
    g.line(format!("{y}.SetValue(0, {}.ReinterpretCast<int32_t>().GetValue(1));", best.name));
    g.line("ScalarToVector();");
    g.free(partial);
    g.free(best);
    g.finish(out)
}

// ---- part by part ------------------------------------------------------------------------------

/// Declares what is kept, and the statements before the first part.
pub(super) fn begin(g: &mut Gen<'_>, node: NodeId, before: &mut String) -> Result<Cells, Declined> {
    let (op, _, outs) = g.node(node);
    let stem = g.name(outs[0]);
    if matches!(op, Op::LayerNorm { .. }) {
        return Err(Declined("layer_norm of rows that do not fit local memory".to_owned()));
    }
    if let Op::Argmax {} = op {
        let number = g.fresh(&stem);
        let _ = writeln!(
            before,
            "        float {number}_largest = -3.4028235e38f;\n        int32_t {number}_index = 0;"
        );
        return Ok(Cells { number, block: String::new() });
    }
    let number = g.table("float", 8, 4, &format!("{stem}_number"));
    let block = g.table("float", 64, 4, &format!("{stem}_block"));
    let _ = writeln!(before, "        Duplicate({number}, 0.0f, 8);\n        Step();");
    Ok(Cells { number, block })
}

/// Takes the part at hand into the number.
pub(super) fn take(g: &mut Gen<'_>, node: NodeId, cells: &Cells) -> Result<(), Declined> {
    let (op, args, _) = g.node(node);
    let (x, len) = (g.arg(args[0])?, g.row_len(args[0]));
    let held = g.held(len);
    let (partial, one) = (g.reduction_work(held), g.temp(8, "of_part"));
    let [p, o] = [&partial, &one].map(|t| t.name.clone());
    let sizes = (!matches!(op, Op::Argmax {})).then(|| g.temp(held, "sizes"));
    let tn = sizes.as_ref().map_or(String::new(), |t| t.name.clone());
    let number = &cells.number;
    match op {
        Op::Argmax {} => {
            g.line(format!("ReduceMax({o}, {x}, {p}, columns, true);"));
            g.line("VectorToScalar();");
            g.line(format!("if ({o}.GetValue(0) > {number}_largest) {{"));
            g.line(format!("    {number}_largest = {o}.GetValue(0);"));
            g.line(format!(
                "    {number}_index = at + {o}.ReinterpretCast<int32_t>().GetValue(1);"
            ));
            g.line("}");
            g.line("ScalarToVector();");
        }
        Op::QuantizeRows {} => {
            g.line(format!("Abs({tn}, {x}, columns);"));
            g.line("Step();");
            g.line(format!("ReduceMax({o}, {tn}, {p}, columns);"));
            g.line("Step();");
            g.line(format!("Max({number}, {number}, {o}, 1);"));
            g.line("Step();");
        }
        _ => {
            g.line(format!("SquaresSum({o}, {x}, {tn}, {p}, columns);"));
            g.line(format!("Add({number}, {number}, {o}, 1);"));
            g.line("Step();");
        }
    }
    for temp in [partial, one].into_iter().chain(sizes) {
        g.free(temp);
    }
    Ok(())
}

/// After the last part: the number becomes what later passes use. Results that are numbers are given
/// as value and the name of where they stand.
pub(super) fn end(g: &mut Gen<'_>, node: NodeId, cells: &Cells) -> Result<(), Declined> {
    let (op, args, _) = g.node(node);
    let (number, block) = (&cells.number, &cells.block);
    match op {
        Op::Argmax {} => {}
        Op::QuantizeRows {} => {
            let most = g.temp(8, "largest_code");
            let low = g.temp(8, "divisor");
            let (m, d) = (most.name.clone(), low.name.clone());
            scale(g, number, &m, &d);
            g.line(format!("Spread({block}, {d});"));
            g.free(most);
            g.free(low);
        }
        op => {
            divisor(g, op, number, g.row_len(args[0]));
            g.line(format!("Spread({block}, {number});"));
        }
    }
    Ok(())
}

/// The part of the result that belongs to the part at hand.
pub(super) fn apply_part(g: &mut Gen<'_>, node: NodeId, cells: &Cells) -> Result<(), Declined> {
    let (op, args, outs) = g.node(node);
    let x = g.arg(args[0])?;
    let weight = if let Op::RmsNorm { .. } = op { Some(g.vector(args[1])?) } else { None };
    let y = g.define_over(outs[0], &args[..1]);
    g.line(format!("DivBlock({y}, {x}, {}, columns);", cells.block));
    if let Op::QuantizeRows {} = op {
        let held = g.held(g.row_len(args[0]));
        let whole = g.temp_of("int32_t", held, 4, "codes");
        g.line(format!("RoundToWhole({y}, {}, columns);", whole.name));
        g.free(whole);
    }
    apply(g, op, &y, weight.as_deref(), None, "columns");
    g.finish(outs[0])
}

/// The result of a row that is a number: copied into the buffer that goes back.
pub(super) fn number(g: &mut Gen<'_>, node: NodeId, cells: &Cells) -> Result<(), Declined> {
    let (op, _, outs) = g.node(node);
    match op {
        Op::Argmax {} => {
            let offset = g.out_section(outs[0], ir::DType::I32);
            g.line(format!(
                "out[{offset}].ReinterpretCast<int32_t>().SetValue(0, {}_index);",
                cells.number
            ));
            g.line("ScalarToVector();");
        }
        Op::QuantizeRows {} => {
            let offset = g.out_section(outs[1], ir::DType::F32);
            g.line(format!(
                "DataCopy(out[{offset}].ReinterpretCast<float>(), {}, 8);",
                cells.number
            ));
            g.line("Step();");
        }
        _ => {}
    }
    Ok(())
}
