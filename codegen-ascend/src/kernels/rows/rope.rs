//! Rotary position embedding.

use super::{
    emit::Gen,
    ops::{each_part, float},
};
use crate::kernels::Declined;
use ir::{RopeSpec, ValueId};
use std::{f64::consts::PI, fmt::Write};

/// A position is `high * SPLIT + low`, each below it for positions up to a million.
const SPLIT: u64 = 1024;
/// Bits of each of the first two parts of a fraction: a number of `SPLIT` times a part has 23 bits and
/// is exact.
const PART_BITS: i32 = 12;

/// `x` as three numbers, of which the first two have [`PART_BITS`] bits.
fn parts(x: f64) -> [f32; 3] {
    let unit = f64::powi(2.0, PART_BITS);
    let first = (x * unit).round() / unit;
    let second = ((x - first) * unit * unit).round() / (unit * unit);
    [first as f32, second as f32, (x - first - second) as f32]
}

/// Cosines and sines of `position * frequency`.
///
/// Angles are counted in turns. The turns per position and per [`SPLIT`] positions are constants,
/// taken modulo one and cut in three parts each, so that what is lost of the angle is below 1e-6 for
/// positions up to 2^20. A cosine is a sine a quarter turn on. A turn folds to the quarters around
/// zero, where the series up to the power of 13 has an error below 1e-9.
pub(super) fn table(
    g: &mut Gen<'_>,
    positions: ValueId,
    out: ValueId,
    spec: &RopeSpec,
) -> Result<(), Declined> {
    let position = g.index(positions, "0")?;
    let r = spec.dim;
    let frequencies = spec.inverse_frequencies();
    let turns: Vec<f64> = frequencies.iter().chain(&frequencies).map(|f| f / (2.0 * PI)).collect();
    let fraction = |x: f64| x - x.round();
    let low: Vec<[f32; 3]> = turns.iter().map(|&t| parts(fraction(t))).collect();
    let high: Vec<[f32; 3]> =
        turns.iter().map(|&t| parts(fraction(fraction(t * SPLIT as f64)))).collect();
    let quarter: Vec<f32> = (0..r).map(|i| if i < r / 2 { 0.25 } else { 0.0 }).collect();
    let constant = |g: &mut Gen<'_>, name: &str, values: Vec<f32>| -> String {
        let local = g.table("float", r, 4, name);
        let list: Vec<String> = values.iter().map(|&v| float(v)).collect();
        for (at, numbers) in list.chunks(16).enumerate() {
            let _ =
                writeln!(g.setup, "    SetNumbers({local}, {}, {});", at * 16, numbers.join(", "));
        }
        local
    };
    let mut tables = Vec::new();
    for (stem, all) in [("high", &high), ("low", &low)] {
        for i in 0..3 {
            let values = all.iter().map(|p| p[i]).collect();
            tables.push((stem, constant(g, &format!("turns_{stem}_{i}"), values)));
        }
    }
    let quarter = constant(g, "quarter", quarter);
    let _ = writeln!(g.setup, "    ScalarToVector();");

    let y = g.define(out);
    let (angle, t, whole) =
        (g.temp(r, "angle"), g.temp(r, "term"), g.temp_of("int32_t", r, 4, "whole"));
    let [a, t_, w] = [&angle, &t, &whole].map(|t| t.name.clone());
    let (high_name, low_name) = (g.fresh("high"), g.fresh("low"));
    let p = g.fresh("position");
    g.line(format!("const int32_t {p} = {position};"));
    g.line(format!("const float {high_name} = static_cast<float>({p} / {SPLIT}), {low_name} = static_cast<float>({p} % {SPLIT});"));
    g.line(format!("DataCopy({a}, {quarter}, {});", r.next_multiple_of(8)));
    g.line("Step();");
    // The largest terms first: these lose nothing, and whole turns go out at once.
    for (stem, local) in &tables {
        let factor = if *stem == "high" { &high_name } else { &low_name };
        g.line(format!("Muls({t_}, {local}, {factor}, {r});"));
        g.line("Step();");
        reduce_turns(g, &t_, &y, &w, r);
        g.line(format!("Add({a}, {a}, {t_}, {r});"));
        g.line("Step();");
    }
    reduce_turns(g, &a, &y, &w, r);
    g.line("// Folded to a quarter turn on either side of zero.");
    for line in [
        format!("Muls({t_}, {a}, -1.0f, {r});"),
        format!("Adds({t_}, {t_}, 0.5f, {r});"),
        format!("Min({y}, {a}, {t_}, {r});"),
        format!("Adds({t_}, {t_}, -1.0f, {r});"),
        format!("Max({a}, {y}, {t_}, {r});"),
        format!("Muls({a}, {a}, {}, {r});", float((2.0 * PI) as f32)),
        format!("Mul({t_}, {a}, {a}, {r});"),
    ] {
        g.line(line);
        g.line("Step();");
    }
    g.line("// The series of the sine.");
    let mut factorial = 1.0f64;
    let mut coefficients = vec![1.0f64];
    for n in (3..=13).step_by(2) {
        factorial *= f64::from(n * (n - 1));
        let sign = if n % 4 == 3 { -1.0 } else { 1.0 };
        coefficients.push(sign / factorial);
    }
    let last = coefficients[coefficients.len() - 1];
    g.line(format!("Duplicate({y}, {}, {r});", float(last as f32)));
    g.line("Step();");
    for c in coefficients.iter().rev().skip(1) {
        g.line(format!("Mul({y}, {y}, {t_}, {r});"));
        g.line("Step();");
        g.line(format!("Adds({y}, {y}, {}, {r});", float(*c as f32)));
        g.line("Step();");
    }
    g.line(format!("Mul({y}, {y}, {a}, {r});"));
    g.line("Step();");
    if spec.attention_factor() != 1.0 {
        g.line(format!("Muls({y}, {y}, {}, {r});", float(spec.attention_factor())));
        g.line("Step();");
    }
    for temp in [angle, t, whole] {
        g.free(temp);
    }
    g.finish(out)
}

/// Takes whole turns out of `x`; `y` and `whole` are overwritten.
fn reduce_turns(g: &mut Gen<'_>, x: &str, y: &str, whole: &str, r: u64) {
    for line in [
        format!("Cast({whole}, {x}, RoundMode::CAST_RINT, {r});"),
        format!("Cast({y}, {whole}, RoundMode::CAST_RINT, {r});"),
        format!("Sub({x}, {x}, {y}, {r});"),
    ] {
        g.line(line);
        g.line("Step();");
    }
}

/// Rotates the first `r` channels of each head.
pub(super) fn rotary(
    g: &mut Gen<'_>,
    args: &[ValueId],
    out: ValueId,
    interleaved: bool,
) -> Result<(), Declined> {
    let dims = g.dims(args[0]);
    let (heads, d, r) = (dims[1], dims[2], g.row_len(args[1]));
    let half = r / 2;
    let (x, table) = (g.arg(args[0])?, g.arg(args[1])?);
    if g.in_parts(heads * d) {
        return Err(Declined("heads that do not fit local memory".to_owned()));
    }
    let y = g.define_over(out, &args[..1]);
    if d > r || heads == 1 {
        g.line("// Channels that are not rotated pass through.");
        g.line(format!("DataCopy({y}, {x}, {});", (heads * d).next_multiple_of(8)));
        g.line("Step();");
    }
    let aligned = half % 8 == 0 && d % 8 == 0 && d / 8 <= 255 && heads <= 255;
    if !interleaved && aligned {
        halves(g, (&x, &table, &y), heads, d, half)?;
    } else {
        pairs(g, &x, &table, &y, (heads, d, r), interleaved)?;
    }
    g.finish(out)
}

/// Elements that the products with sines take at most, unless a head has more.
const TERM: u64 = 4096;

/// Times that an instruction repeats at most.
const MOST_REPEATS: u64 = 255;

/// Several heads at once: an instruction handles up to 64 channels of each, and a head of `x` is a
/// repeat; cosines and sines stay where they are.
fn halves(
    g: &mut Gen<'_>,
    (x, table, y): (&str, &str, &str),
    heads: u64,
    d: u64,
    half: u64,
) -> Result<(), Declined> {
    let fits =
        |n: &u64| heads.is_multiple_of(*n) && (*n == 1 || n * d <= TERM) && *n <= MOST_REPEATS;
    let group = (1..=heads).rev().find(fits).unwrap_or(1);
    let term = g.temp(group * d, "term");
    let t = term.name.clone();
    each_part(g, heads / group, group * d, |g, from| {
        let part =
            |name: &str| if from == "0" { name.to_owned() } else { format!("{name}[{from}]") };
        let (x, y) = (part(x), part(y));
        for at in (0..half).step_by(64) {
            let n = (half - at).min(64);
            let (a, b) = (at, at + half);
            let step = d / 8;
            let with_table =
                format!("{n}, {group}, BinaryRepeatParams(1, 1, 1, {step}, {step}, 0)");
            let of_heads =
                format!("{n}, {group}, BinaryRepeatParams(1, 1, 1, {step}, {step}, {step})");
            for line in [
                format!("Mul({t}[{a}], {x}[{b}], {table}[{}], {with_table});", half + at),
                format!("Mul({t}[{b}], {x}[{a}], {table}[{}], {with_table});", half + at),
                format!("Mul({y}[{a}], {x}[{a}], {table}[{at}], {with_table});"),
                format!("Mul({y}[{b}], {x}[{b}], {table}[{at}], {with_table});"),
                "Step();".to_owned(),
                format!("Sub({y}[{a}], {y}[{a}], {t}[{a}], {of_heads});"),
                format!("Add({y}[{b}], {y}[{b}], {t}[{b}], {of_heads});"),
                "Step();".to_owned(),
            ] {
                g.line(line);
            }
        }
    })?;
    g.free(term);
    Ok(())
}

/// Head by head: each channel times its cosine, plus the other of its pair times its sine, whose sign
/// depends on which of the two it is.
fn pairs(
    g: &mut Gen<'_>,
    x: &str,
    table: &str,
    y: &str,
    (heads, d, r): (u64, u64, u64),
    interleaved: bool,
) -> Result<(), Declined> {
    if heads > 1 && d % 8 != 0 {
        return Err(Declined(format!(
            "heads of {d} elements begin inside a block of local memory"
        )));
    }
    let half = r / 2;
    let (other, angle, sign) = (
        g.table("uint32_t", r, 4, "other"),
        g.table("uint32_t", r, 4, "angle_of"),
        g.table("float", r, 4, "sign"),
    );
    let (is_second, other_of, angle_of) = if interleaved {
        ("i % 2".to_owned(), "i + 1 - i % 2 * 2".to_owned(), "i / 2".to_owned())
    } else {
        (format!("i / {half}"), format!("(i + {half}) % {r}"), format!("i % {half}"))
    };
    let _ = writeln!(
        g.setup,
        "    for (uint32_t i = 0; i < {r}; ++i) {{\n        {other}.SetValue(i, ({other_of}) * sizeof(float));\n        \
         {angle}.SetValue(i, ({angle_of}) * sizeof(float));\n        {sign}.SetValue(i, {is_second} ? 1.0f : -1.0f);\n    }}\n    ScalarToVector();"
    );
    let (cos, sin, swapped) = (g.temp(r, "cosines"), g.temp(r, "sines"), g.temp(r, "swapped"));
    let [c, s, w] = [&cos, &sin, &swapped].map(|t| t.name.clone());
    g.line(format!("Gather({c}, {table}, {angle}, 0, {r});"));
    g.line(format!("Gather({s}, {table}, {angle}, {half} * sizeof(float), {r});"));
    g.line("Step();");
    g.line(format!("Mul({s}, {s}, {sign}, {r});"));
    g.line("Step();");
    let (x, y) = (x.to_owned(), y.to_owned());
    each_part(g, heads, d, |g, at| {
        for line in [
            format!("Gather({w}, {x}[{at}], {other}, 0, {r});"),
            "Step();".to_owned(),
            format!("Mul({w}, {w}, {s}, {r});"),
            format!("Mul({y}[{at}], {x}[{at}], {c}, {r});"),
            "Step();".to_owned(),
            format!("Add({y}[{at}], {y}[{at}], {w}, {r});"),
            "Step();".to_owned(),
        ] {
            g.line(line);
        }
    })?;
    for temp in [cos, sin, swapped] {
        g.free(temp);
    }
    Ok(())
}
