//! Recipes as text.

use super::{Id, Recipe, Recipes};

/// Parts that differ in consecutive numbers only are written once from this many on.
const FEWEST_ABBREVIATED: usize = 3;

impl Recipes {
    /// `id` as an expression over checkpoint tensors. Where parts differ only in numbers that count
    /// up by one, they are written once with `{first..last}`, both included.
    pub(crate) fn text(&self, id: Id) -> String {
        let entry = self.get(id);
        let text = |id: &Id| self.text(*id);
        let list =
            |name: &str, parts: Vec<String>| format!("{name}({})", abbreviated(&parts).join(", "));
        match &entry.recipe {
            Recipe::Tensor { name } => name.to_string(),
            Recipe::Cast { x } => format!("{}({})", entry.dtype, text(x)),
            Recipe::Rows { parts } => list("rows", parts.iter().map(|p| self.text(p.id)).collect()),
            Recipe::Columns { parts } => list("columns", parts.iter().map(text).collect()),
            Recipe::Interleave { block, a, b } => {
                format!("interleave{block}({}, {})", text(a), text(b))
            }
            Recipe::RowBlocks { x, period, start, len } => {
                format!("{}[rows {start}..{} of {period}]", text(x), start + len)
            }
            Recipe::ColumnRange { x, start } => {
                format!("{}[columns {start}..{}]", text(x), start + entry.cols)
            }
            Recipe::Refold { x } => format!("refold{}({})", entry.cols, text(x)),
            Recipe::Transpose { x, .. } => format!("transpose({})", text(x)),
            Recipe::Repeat { x, times } => format!("repeat{times}({})", text(x)),
            Recipe::AddScalar { x, bits } => format!("({} + {})", text(x), f32::from_bits(*bits)),
            Recipe::Dequantize { codes, scale, .. } => {
                format!("{}({} * {})", entry.dtype, text(codes), text(scale))
            }
            Recipe::Codes { x, group } => format!("{}_codes{group}({})", entry.dtype, text(x)),
            Recipe::Scales { x, bits, group } => format!("i{bits}_scales{group}({})", text(x)),
            Recipe::RowSums { x, bits } => {
                format!("({} * row_sums({}))", f32::from_bits(*bits), text(x))
            }
            Recipe::FloatBits { x } => format!("float_bits({})", text(x)),
            Recipe::Computed { formula, args } => {
                let op = formula.split(" = ").nth(1).and_then(|op| op.split(' ').next());
                list(op.unwrap_or("computed"), args.iter().map(text).collect())
            }
        }
    }
}

/// `parts` with runs of counting ones as one.
fn abbreviated(parts: &[String]) -> Vec<String> {
    let mut out = Vec::new();
    let mut rest = parts;
    while let [first, others @ ..] = rest {
        let pattern = others.first().and_then(|second| Pattern::of(first, second));
        let run = pattern.as_ref().map_or(1, |p| {
            let fits = |(i, part): &(usize, &String)| p.fits(part, *i as u64 + 1);
            others.iter().enumerate().take_while(fits).count() + 1
        });
        match pattern.filter(|_| run >= FEWEST_ABBREVIATED) {
            Some(pattern) => {
                out.push(pattern.text(run as u64));
                rest = &rest[run..];
            }
            None => {
                out.push(first.clone());
                rest = others;
            }
        }
    }
    out
}

/// A text in which some numbers count.
struct Pattern<'a> {
    pieces: Vec<Piece<'a>>,
}

enum Piece<'a> {
    Same(&'a str),
    From(u64),
}

impl<'a> Pattern<'a> {
    /// What `second` continues by one, if it does.
    fn of(first: &'a str, second: &str) -> Option<Self> {
        let (first, second) = (pieces(first), pieces(second));
        let piece = |(&a, &b): (&&'a str, &&str)| match (number(a), number(b)) {
            _ if a == b => Some(Piece::Same(a)),
            (Some(n), Some(next)) if next == n + 1 => Some(Piece::From(n)),
            _ => None,
        };
        if first.len() != second.len() || first == second {
            return None;
        }
        let pieces = first.iter().zip(&second).map(piece).collect::<Option<_>>()?;
        Some(Self { pieces })
    }

    fn fits(&self, part: &str, ahead: u64) -> bool {
        let part = pieces(part);
        let fits = |(piece, &text): (&Piece<'_>, &&str)| match piece {
            Piece::Same(same) => *same == text,
            Piece::From(n) => number(text) == Some(n + ahead),
        };
        self.pieces.len() == part.len() && self.pieces.iter().zip(&part).all(fits)
    }

    fn text(&self, run: u64) -> String {
        let mut out = String::new();
        for piece in &self.pieces {
            match piece {
                Piece::Same(text) => out.push_str(text),
                Piece::From(n) => out.push_str(&format!("{{{n}..{}}}", n + run - 1)),
            }
        }
        out
    }
}

/// Runs of digits and what lies between them, in turns; the first is no number.
fn pieces(text: &str) -> Vec<&str> {
    let (mut out, mut begin, mut digits) = (Vec::new(), 0, false);
    for (i, byte) in text.bytes().enumerate() {
        if byte.is_ascii_digit() != digits {
            out.push(&text[begin..i]);
            (begin, digits) = (i, !digits);
        }
    }
    out.push(&text[begin..]);
    out
}

/// A number that is written without leading zeros.
fn number(text: &str) -> Option<u64> {
    let number: u64 = text.parse().ok().filter(|&n| n < u64::MAX / 2)?;
    (number.to_string() == text).then_some(number)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn short(parts: impl IntoIterator<Item = String>) -> Vec<String> {
        abbreviated(&parts.into_iter().collect::<Vec<_>>())
    }

    #[test]
    fn counting_parts_are_written_once() {
        let pair = |e: u32| format!("interleave2(l.7.experts.{e}.gate, l.7.experts.{e}.up)");
        assert_eq!(
            short((0..256).map(pair)),
            ["interleave2(l.7.experts.{0..255}.gate, l.7.experts.{0..255}.up)"]
        );
        let shifted = (0..4).map(|e| format!("a.{e}.{}", e + 9));
        assert_eq!(short(shifted), ["a.{0..3}.{9..12}"]);
        let gap = [0, 1, 2, 4, 5].map(|e| format!("x{e}"));
        assert_eq!(short(gap), ["x{0..2}", "x4", "x5"]);
        let late = ["a1.5", "a2.5", "a3.5", "a4.8"].map(str::to_owned);
        assert_eq!(short(late), ["a{1..3}.5", "a4.8"]);
    }

    #[test]
    fn other_parts_stay() {
        let same = ["a", "a", "a"].map(str::to_owned);
        assert_eq!(short(same.clone()), same);
        let few = ["a.1", "a.2"].map(str::to_owned);
        assert_eq!(short(few.clone()), few);
        let zeros = ["a.01", "a.02", "a.03"].map(str::to_owned);
        assert_eq!(short(zeros.clone()), zeros, "the range would not say how they are written");
    }
}
