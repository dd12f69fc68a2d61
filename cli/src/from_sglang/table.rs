//! What the tables of flags and variables are made of.

use serde::Serialize;

/// What becomes of a flag or a variable.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Verdict {
    /// Something here does the same.
    TakenOver,
    /// What it is for does not arise here.
    NotNeeded,
    /// It has no counterpart here so far.
    NotSupportedYet,
    /// SGLang does not act on it either.
    IgnoredBySglang,
    /// Neither SGLang's nor known.
    Unknown,
}

impl Verdict {
    /// In words.
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::TakenOver => "taken over",
            Self::NotNeeded => "not needed",
            Self::NotSupportedYet => "not supported yet",
            Self::IgnoredBySglang => "ignored by SGLang itself",
            Self::Unknown => "unknown",
        }
    }
}

/// How many values a flag takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Arity {
    /// None.
    Switch,
    /// One.
    One,
    /// None or one.
    Optional,
    /// One or more, up to the next flag.
    Many,
    /// The same, and a repeated flag adds to the ones before.
    Each,
}

/// How a flag reaches our command lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum How {
    /// Its values are handed on as they are.
    Same,
    /// The translation knows it by name.
    ByName,
}

/// A flag of SGLang's server or router.
#[derive(Clone, Copy, Debug)]
pub(super) struct Flag {
    /// Its names, the usual one first.
    pub(super) names: &'static [&'static str],
    pub(super) arity: Arity,
    pub(super) verdict: Verdict,
    /// Our flag, where it is taken over.
    pub(super) ours: &'static str,
    pub(super) how: How,
    /// Values that ask for what happens here anyway.
    pub(super) inert: &'static [&'static str],
    pub(super) note: &'static str,
}

const fn flag(names: &'static [&'static str], arity: Arity, verdict: Verdict) -> Flag {
    Flag { names, arity, verdict, ours: "", how: How::ByName, inert: &[], note: "" }
}

/// Handed on to `ours` as it is.
pub(super) const fn same(
    names: &'static [&'static str],
    arity: Arity,
    ours: &'static str,
    note: &'static str,
) -> Flag {
    Flag { ours, note, how: How::Same, ..flag(names, arity, Verdict::TakenOver) }
}

/// Taken over by the translation.
pub(super) const fn taken(
    names: &'static [&'static str],
    arity: Arity,
    ours: &'static str,
    note: &'static str,
) -> Flag {
    Flag { ours, note, ..flag(names, arity, Verdict::TakenOver) }
}

/// Not needed.
pub(super) const fn spare(
    names: &'static [&'static str],
    arity: Arity,
    note: &'static str,
) -> Flag {
    Flag { note, ..flag(names, arity, Verdict::NotNeeded) }
}

/// Not supported yet, but for the values `inert`.
pub(super) const fn later(
    names: &'static [&'static str],
    arity: Arity,
    inert: &'static [&'static str],
    note: &'static str,
) -> Flag {
    Flag { note, inert, ..flag(names, arity, Verdict::NotSupportedYet) }
}

/// Without effect in SGLang itself.
pub(super) const fn dead(names: &'static [&'static str], arity: Arity, note: &'static str) -> Flag {
    Flag { note, ..flag(names, arity, Verdict::IgnoredBySglang) }
}

/// An environment variable.
#[derive(Clone, Copy, Debug)]
pub(super) struct Variable {
    pub(super) name: &'static str,
    pub(super) verdict: Verdict,
    pub(super) note: &'static str,
}

/// The known name that `name` is most likely a slip of.
pub(super) fn nearest<'a>(name: &str, known: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let most = (name.len() / 4).clamp(1, 5);
    known.map(|k| (distance(name, k), k)).filter(|(d, _)| *d <= most).min().map(|(_, k)| k)
}

/// Letters to insert, delete or replace.
fn distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.chars().enumerate() {
        let mut diagonal = std::mem::replace(&mut row[0], i + 1);
        for (j, &y) in b.iter().enumerate() {
            let replaced = diagonal + usize::from(x != y);
            diagonal = row[j + 1];
            row[j + 1] = replaced.min(row[j].min(diagonal) + 1);
        }
    }
    row[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slips_are_recognised() {
        assert_eq!(distance("kitten", "sitting"), 3);
        let known = ["--max-running-requests", "--max-total-tokens", "--tp-size"];
        let near = |name| nearest(name, known.iter().copied());
        assert_eq!(near("--max_running_requests"), Some("--max-running-requests"));
        assert_eq!(near("--tp-sizes"), Some("--tp-size"));
        assert_eq!(near("--quite-another"), None);
    }
}
