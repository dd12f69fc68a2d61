//! Many places in few words: what is alike in repeated layers is told once.

use std::collections::{BTreeMap, BTreeSet};

/// Places that differ in the numbers of their names alone.
#[derive(Debug, Default)]
struct Alike<'a> {
    first: &'a str,
    /// For each number of the name, which ones the places after the first have.
    rest: Vec<BTreeSet<u64>>,
    count: usize,
}

/// One line for the first of each group of alike places, and one for the others of the group:
///
/// ```text
/// silu_mul %layers.0.gated
///   and 60 more: silu_mul %layers.{1-60}.gated
/// ```
///
/// Places are alike when their names differ only in components that are numbers, such as that of a
/// layer or an expert, and in the numbers that keep equal names apart (`_17` at the end, shown as
/// `_*`). Groups are in order of their first place.
pub(crate) fn summarise<'a>(places: impl IntoIterator<Item = &'a str>) -> Vec<String> {
    let mut groups: Vec<(String, Alike<'a>)> = Vec::new();
    let mut known: BTreeMap<String, usize> = BTreeMap::new();
    for place in places {
        let (pattern, numbers) = pattern(place);
        let at = *known.entry(pattern.clone()).or_insert_with(|| {
            groups.push((pattern, Alike { first: place, ..Alike::default() }));
            groups.len() - 1
        });
        let group = &mut groups[at].1;
        if group.count > 0 {
            group.rest.resize(numbers.len(), BTreeSet::new());
            for (seen, n) in group.rest.iter_mut().zip(numbers) {
                seen.insert(n);
            }
        }
        group.count += 1;
    }
    let mut lines = Vec::new();
    for (pattern, Alike { first, rest, count }) in groups {
        lines.push(first.to_owned());
        if count > 1 {
            lines.push(format!("  and {} more: {}", count - 1, filled(&pattern, &rest)));
        }
    }
    lines
}

/// `place` with `{}` for each component that is a number and `_*` for a number at the end of a
/// component, and the numbers of the former.
fn pattern(place: &str) -> (String, Vec<u64>) {
    let mut numbers = Vec::new();
    let component = |c: &str| {
        if let Ok(n) = c.parse() {
            numbers.push(n);
            return "{}".to_owned();
        }
        match c.rsplit_once('_') {
            Some((stem, n)) if !n.is_empty() && n.bytes().all(|b| b.is_ascii_digit()) => {
                format!("{stem}_*")
            }
            _ => c.to_owned(),
        }
    };
    let components: Vec<String> = place.split('.').map(component).collect();
    (components.join("."), numbers)
}

fn filled(pattern: &str, numbers: &[BTreeSet<u64>]) -> String {
    let mut parts = pattern.split("{}");
    let mut text = parts.next().unwrap_or_default().to_owned();
    for (part, seen) in parts.zip(numbers) {
        text += &ranges(seen);
        text += part;
    }
    text
}

/// `7`, or `{0-3,7}`.
pub(crate) fn ranges(numbers: &BTreeSet<u64>) -> String {
    let mut runs: Vec<(u64, u64)> = Vec::new();
    for &n in numbers {
        match runs.last_mut() {
            Some((_, last)) if *last + 1 == n => *last = n,
            _ => runs.push((n, n)),
        }
    }
    let run = |&(first, last): &(u64, u64)| match first == last {
        true => first.to_string(),
        false => format!("{first}-{last}"),
    };
    match &runs[..] {
        [(first, last)] if first == last => first.to_string(),
        _ => format!("{{{}}}", runs.iter().map(run).collect::<Vec<_>>().join(",")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn repeated_layers_are_told_once() {
        let all: Vec<String> = (0..61).map(|i| format!("add %layers.{i}.sum")).collect();
        let places = all.iter().map(String::as_str).chain(["mul %gate"]);
        let expected = ["add %layers.0.sum", "  and 60 more: add %layers.{1-60}.sum", "mul %gate"];
        assert_eq!(summarise(places), expected);
    }

    #[test]
    fn numbers_that_keep_names_apart_do_not_count() {
        let places = ["add %layers.0.sum_71", "add %layers.4.sum_93", "add %layers.2.sum_99"];
        let expected = ["add %layers.0.sum_71", "  and 2 more: add %layers.{2,4}.sum_*"];
        assert_eq!(summarise(places), expected);
        assert_eq!(summarise(["mul %a_f32", "mul %a_f16"]).len(), 2, "other names");
    }

    #[test]
    fn every_number_has_its_own_range() {
        let names = [(3, 0), (3, 1), (4, 0), (4, 1), (6, 1)]
            .map(|(layer, e)| format!("cast %layers.{layer}.experts.{e}.up"));
        let lines = summarise(names.iter().map(String::as_str));
        assert_eq!(lines[1], "  and 4 more: cast %layers.{3-4,6}.experts.{0-1}.up");
        let one = summarise(["cast %layers.1.experts.7.up", "cast %layers.2.experts.7.up"]);
        assert_eq!(one[1], "  and 1 more: cast %layers.2.experts.7.up");
    }
}
