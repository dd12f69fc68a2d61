//! Stop strings and patterns, found in text that arrives in pieces.

use super::pattern::{PatternMatch, PatternSearch, StopPatterns};

/// What an answer ends at.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Stops {
    pub(crate) strings: Vec<String>,
    pub(crate) patterns: Option<StopPatterns>,
    /// What was matched is a part of the answer.
    pub(crate) are_kept: bool,
}

/// Looks for stop strings and patterns. Text that could be the beginning of one is held back until it
/// is known not to be. What is found does not depend on how the text is cut into pieces: the one that is
/// complete first wins, and of several that are complete at once the longest.
pub(crate) struct StopMatcher {
    strings: Vec<String>,
    search: Option<PatternSearch>,
    are_kept: bool,
    /// Ends with what may become a match, or is empty.
    held: String,
}

impl StopMatcher {
    /// Matches `stops`; empty strings match nothing.
    pub(crate) fn new(stops: Stops) -> Self {
        let Stops { mut strings, patterns, are_kept } = stops;
        strings.retain(|stop| !stop.is_empty());
        Self { strings, search: patterns.map(PatternSearch::new), are_kept, held: String::new() }
    }

    /// Takes the next piece and appends to `out` what is certainly part of the output. After a
    /// match, whose string or pattern is returned, the output is complete.
    pub(crate) fn push(&mut self, piece: &str, out: &mut String) -> Option<String> {
        if self.strings.is_empty() && self.search.is_none() {
            out.push_str(piece);
            return None;
        }
        let offset = self.held.len();
        self.held.push_str(piece);
        let by_pattern = self.search.as_mut().and_then(|search| search.push(piece, offset));
        let found = by_pattern.into_iter().chain(self.string_match());
        if let Some(found) = found.min_by_key(|found| (found.end, found.start)) {
            let end = if self.are_kept { found.end } else { found.start };
            out.push_str(&self.held[..end]);
            self.held.clear();
            return Some(found.pattern);
        }
        let keep = self.strings.iter().map(|stop| overlap(&self.held, stop)).max().unwrap_or(0);
        let begun = self.search.as_ref().and_then(PatternSearch::begun);
        let release = (self.held.len() - keep).min(begun.unwrap_or(usize::MAX));
        out.push_str(&self.held[..release]);
        self.held.drain(..release);
        if let Some(search) = &mut self.search {
            search.shift(release);
        }
        None
    }

    /// Takes a piece in which nothing may match, and whatever was held back.
    pub(crate) fn pass(&mut self, piece: &str, out: &mut String) {
        self.finish(out);
        out.push_str(piece);
        if let Some(search) = &mut self.search {
            search.pass(piece);
        }
    }

    /// The output ended without a match: what was held back belongs to it.
    pub(crate) fn finish(&mut self, out: &mut String) {
        out.push_str(&self.held);
        self.held.clear();
    }

    /// The first that a stop string gives.
    fn string_match(&self) -> Option<PatternMatch> {
        let found = self.strings.iter().filter_map(|stop| {
            let start = self.held.find(stop.as_str())?;
            Some((start, start + stop.len(), stop))
        });
        let (start, end, stop) = found.min_by_key(|&(start, end, _)| (end, start))?;
        Some(PatternMatch { start, end, pattern: stop.clone() })
    }
}

/// Bytes of the longest suffix of `text` that is a proper prefix of `stop`.
fn overlap(text: &str, stop: &str) -> usize {
    let longest = text.len().min(stop.len() - 1);
    (1..=longest)
        .rev()
        .find(|&n| text.as_bytes()[text.len() - n..] == stop.as_bytes()[..n])
        .unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn run(stops: &[&str], pieces: &[&str]) -> (String, Option<String>) {
        run_with(Stops { strings: owned(stops), ..Stops::default() }, pieces)
    }

    fn owned(texts: &[&str]) -> Vec<String> {
        texts.iter().map(|s| s.to_string()).collect()
    }

    fn run_with(stops: Stops, pieces: &[&str]) -> (String, Option<String>) {
        let mut matcher = StopMatcher::new(stops);
        let mut out = String::new();
        for piece in pieces {
            if let Some(found) = matcher.push(piece, &mut out) {
                return (out, Some(found));
            }
        }
        matcher.finish(&mut out);
        (out, None)
    }

    #[test]
    fn a_stop_string_is_found_across_pieces() {
        assert_eq!(run(&["STOP"], &["a S", "T", "OP b"]), ("a ".into(), Some("STOP".into())));
    }

    #[test]
    fn what_only_looked_like_a_stop_string_is_released() {
        let mut matcher = StopMatcher::new(Stops { strings: owned(&["STOP"]), ..Stops::default() });
        let mut out = String::new();
        matcher.push("x ST", &mut out);
        assert_eq!(out, "x ");
        matcher.push("AR", &mut out);
        assert_eq!(out, "x STAR");
    }

    #[test]
    fn an_unfinished_stop_string_belongs_to_the_output() {
        assert_eq!(run(&["STOP"], &["x STO"]), ("x STO".into(), None));
    }

    #[test]
    fn the_first_complete_stop_string_wins() {
        assert_eq!(run(&["abcd", "bc"], &["abcd"]), ("a".into(), Some("bc".into())));
        assert_eq!(run(&["bc", "abc"], &["abc"]), ("".into(), Some("abc".into())));
    }

    #[test]
    fn a_stop_string_may_be_several_bytes_per_character() {
        assert_eq!(run(&["。好"], &["今天。", "好!"]), ("今天".into(), Some("。好".into())));
        assert_eq!(run(&["é"], &["è", "ê"]), ("èê".into(), None));
    }

    #[test]
    fn nothing_is_cut_by_empty_stop_strings() {
        assert_eq!(run(&[""], &["abc"]), ("abc".into(), None));
    }

    fn both(strings: &[&str], patterns: &[&str], are_kept: bool) -> Stops {
        let patterns = StopPatterns::new(owned(patterns)).unwrap();
        Stops { strings: owned(strings), patterns: Some(patterns), are_kept }
    }

    #[test]
    fn the_first_complete_string_or_pattern_wins() {
        let found = |strings: &[&str], patterns: &[&str], pieces: &[&str]| {
            run_with(both(strings, patterns, false), pieces)
        };
        assert_eq!(found(&["cd"], &["b.d"], &["ab", "cd"]), ("a".into(), Some("b.d".into())));
        assert_eq!(found(&["bcd"], &["c."], &["abcd"]), ("a".into(), Some("bcd".into())));
        assert_eq!(found(&["d"], &["b+c"], &["ab", "bbc"]), ("a".into(), Some("b+c".into())));
        assert_eq!(found(&["x"], &["y.z"], &["ay", "bxyz"]), ("ayb".into(), Some("x".into())));
        assert_eq!(found(&["x"], &["y.z"], &["ay", "b"]), ("ayb".into(), None));
    }

    #[test]
    fn text_is_held_back_while_a_pattern_may_match() {
        let mut matcher = StopMatcher::new(both(&[], &["\\n+Q[0-9]:"], false));
        let mut out = String::new();
        for (piece, certain) in [("a\n", "a"), ("\nQ", "a"), ("x\n", "a\n\nQx"), ("Q1", "a\n\nQx")]
        {
            assert_eq!(matcher.push(piece, &mut out), None);
            assert_eq!(out, certain);
        }
        assert!(matcher.push(": b", &mut out).is_some());
        assert_eq!(out, "a\n\nQx");
    }

    #[test]
    fn what_was_matched_is_kept_if_asked_for() {
        assert_eq!(run_with(both(&["ST"], &["x+y"], true), &["a S", "T b"]).0, "a ST");
        assert_eq!(run_with(both(&["ST"], &["x+y"], true), &["a x", "xy b"]).0, "a xxy");
    }

    #[test]
    fn nothing_matches_where_it_may_not_nor_begins_there() {
        let mut matcher = StopMatcher::new(both(&[], &["a.c", "^b"], false));
        let mut out = String::new();
        matcher.pass("a", &mut out);
        assert_eq!(matcher.push("bca", &mut out), None);
        assert_eq!(out, "abc");
        assert!(matcher.push("bc", &mut out).is_some());
        assert_eq!(out, "abc");
    }

    proptest! {
        #[test]
        fn cutting_the_text_changes_nothing(
            text in "[abé]{0,24}",
            stops in proptest::collection::vec("[abé]{1,4}", 1..4),
            cuts in proptest::collection::vec(1usize..4, 0..24),
        ) {
            let stops: Vec<&str> = stops.iter().map(String::as_str).collect();
            let mut pieces = Vec::new();
            let mut rest = text.as_str();
            for n in cuts {
                let at = rest.char_indices().nth(n).map_or(rest.len(), |(i, _)| i);
                let (piece, tail) = rest.split_at(at);
                pieces.push(piece);
                rest = tail;
            }
            pieces.push(rest);
            prop_assert_eq!(run(&stops, &pieces), run(&stops, &[&text]));
            let stops = both(&stops[1..], &["a[^b]+é", "b{2}"], stops.len().is_multiple_of(2));
            prop_assert_eq!(run_with(stops.clone(), &pieces), run_with(stops, &[&text]));
        }
    }
}
