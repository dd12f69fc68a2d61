//! Regular expressions that stop an answer, searched for in text that arrives in pieces.

use regex_automata::{
    Anchored, MatchKind,
    dfa::{Automaton, StartKind, dense::DFA},
    nfa::thompson,
    util::{primitives::StateID, start, syntax},
};
use regex_syntax::hir::{Hir, Look};
use std::{collections::HashSet, sync::Arc};

/// The longest text that a pattern matches, in bytes. So much text is held back at most.
const MAX_MATCH_BYTES: usize = 4096;
/// Memory of the automaton of all patterns of a request, in bytes.
const MAX_AUTOMATON_BYTES: usize = 1 << 20;
/// All patterns of a request together, in bytes.
const MAX_PATTERN_BYTES: usize = 4096;

/// Patterns, compiled. Copies share their memory.
#[derive(Clone, Debug)]
pub(crate) struct StopPatterns {
    sources: Arc<[String]>,
    automaton: Arc<DFA<Vec<u32>>>,
}

impl PartialEq for StopPatterns {
    fn eq(&self, other: &Self) -> bool {
        self.sources == other.sources
    }
}

impl StopPatterns {
    /// Compiles `sources`.
    ///
    /// # Errors
    /// Which of them cannot be used, if it is one alone, and why.
    pub(crate) fn new(sources: Vec<String>) -> Result<Self, (Option<usize>, String)> {
        if sources.iter().map(String::len).sum::<usize>() > MAX_PATTERN_BYTES {
            return Err((None, format!("has more than {MAX_PATTERN_BYTES} bytes of patterns")));
        }
        let parsed = sources.iter().enumerate();
        let parsed = parsed.map(|(i, source)| parse(source).map_err(|why| (Some(i), why)));
        let parsed = parsed.collect::<Result<Vec<Hir>, _>>()?;
        let too_large = || (None, "is too complex: its automaton takes too much memory".to_owned());
        let config = thompson::Config::new().nfa_size_limit(Some(MAX_AUTOMATON_BYTES));
        let nfa = thompson::Compiler::new().configure(config).build_many_from_hir(&parsed);
        let config = DFA::config()
            .match_kind(MatchKind::All)
            .start_kind(StartKind::Anchored)
            .dfa_size_limit(Some(MAX_AUTOMATON_BYTES))
            .determinize_size_limit(Some(MAX_AUTOMATON_BYTES));
        let nfa = nfa.map_err(|_| too_large())?;
        let automaton = DFA::builder().configure(config).build_from_nfa(&nfa);
        let automaton = automaton.map_err(|_| too_large())?;
        Ok(Self { sources: sources.into(), automaton: Arc::new(automaton) })
    }
}

/// What is needed of `source` for a search that never looks ahead.
fn parse(source: &str) -> Result<Hir, String> {
    let hir = syntax::parse(source).map_err(|e| {
        let text = e.to_string();
        let line = text.lines().last().unwrap_or_default();
        format!("is no regular expression: {}", line.trim_start_matches("error: "))
    })?;
    let looks_back = |look: Look| matches!(look, Look::Start | Look::StartLF | Look::StartCRLF);
    if !hir.properties().look_set().iter().all(looks_back) {
        let why = "contains `$`, `\\z`, `\\b` or the like, which depend on text that is not there \
                   yet; name the characters that follow instead";
        return Err(why.into());
    }
    if hir.properties().minimum_len().is_none_or(|length| length == 0) {
        return Err("matches no text or the empty text".into());
    }
    Ok(hir)
}

/// A place where a pattern matched: the first byte of it, the byte behind it, and the pattern.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PatternMatch {
    pub(crate) start: usize,
    pub(crate) end: usize,
    pub(crate) pattern: String,
}

/// The search in one text. It finds the match that ends first, and of those that end together the one
/// that begins first; how the text is cut into pieces makes no difference.
pub(crate) struct PatternSearch {
    patterns: StopPatterns,
    /// Places where a match may have begun, ascending, and how far it came. No two are in the same
    /// state, since whatever follows, the earlier place is the better one.
    begun: Vec<(usize, StateID)>,
    /// The last byte of the text.
    before: Option<u8>,
    seen: HashSet<StateID>,
}

impl PatternSearch {
    pub(crate) fn new(patterns: StopPatterns) -> Self {
        Self { patterns, begun: Vec::new(), before: None, seen: HashSet::new() }
    }

    /// Takes the next piece, which stands at `offset`.
    pub(crate) fn push(&mut self, piece: &str, offset: usize) -> Option<PatternMatch> {
        for (at, byte) in (offset..).zip(piece.bytes()) {
            let is_first_of_character = byte & 0b1100_0000 != 0b1000_0000;
            if is_first_of_character {
                self.begin(at);
            }
            self.before = Some(byte);
            if let Some((start, pattern)) = self.step(at, byte) {
                return Some(PatternMatch { start, end: at + 1, pattern });
            }
        }
        None
    }

    /// A match may begin at `at`.
    fn begin(&mut self, at: usize) {
        let config = start::Config::new().anchored(Anchored::Yes).look_behind(self.before);
        let state = self.patterns.automaton.start_state(&config);
        self.begun.push((at, state.expect("the automaton is anchored and quits at no byte")));
    }

    /// Takes the byte at `at`; returns where a match began that ends with it.
    fn step(&mut self, at: usize, byte: u8) -> Option<(usize, String)> {
        let automaton = &*self.patterns.automaton;
        self.seen.clear();
        let seen = &mut self.seen;
        self.begun.retain_mut(|(start, state)| {
            *state = automaton.next_state(*state, byte);
            let is_possible = !automaton.is_dead_state(*state) && at - *start < MAX_MATCH_BYTES;
            is_possible && seen.insert(*state)
        });
        self.begun.iter().find_map(|&(start, state)| {
            let end = automaton.next_eoi_state(state);
            let is_match = automaton.is_match_state(end);
            is_match.then(|| {
                let pattern = automaton.match_pattern(end, 0).as_usize();
                (start, self.patterns.sources[pattern].clone())
            })
        })
    }

    /// Where the first match begins that may still come to an end.
    pub(crate) fn begun(&self) -> Option<usize> {
        self.begun.first().map(|&(start, _)| start)
    }

    /// The first `count` bytes of what was not yet known are done with.
    pub(crate) fn shift(&mut self, count: usize) {
        self.begun.iter_mut().for_each(|(start, _)| *start -= count);
    }

    /// Takes a piece in which nothing may match, nor in what came before.
    pub(crate) fn pass(&mut self, piece: &str) {
        self.begun.clear();
        self.before = piece.bytes().next_back().or(self.before);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use regex::Regex;

    fn patterns(sources: &[&str]) -> Result<StopPatterns, (Option<usize>, String)> {
        StopPatterns::new(sources.iter().map(|s| s.to_string()).collect())
    }

    fn search(sources: &[&str], pieces: &[&str]) -> Option<PatternMatch> {
        let mut search = PatternSearch::new(patterns(sources).unwrap());
        let mut offset = 0;
        pieces.iter().find_map(|piece| {
            let found = search.push(piece, offset);
            offset += piece.len();
            found
        })
    }

    fn found(start: usize, end: usize, pattern: &str) -> Option<PatternMatch> {
        Some(PatternMatch { start, end, pattern: pattern.into() })
    }

    #[test]
    fn a_match_spans_pieces_and_ends_as_soon_as_it_may() {
        assert_eq!(search(&["b+c?d"], &["ab", "b", "bcd e"]), found(1, 6, "b+c?d"));
        assert_eq!(search(&["[0-9]+"], &["in 2024"]), found(3, 4, "[0-9]+"));
        assert_eq!(search(&["cd", "b.."], &["abcd"]), found(1, 4, "b.."));
        assert_eq!(search(&["é[^x]"], &["aé", "è"]), found(1, 5, "é[^x]"));
        assert_eq!(search(&["xyz"], &["xyxy", "yz"]), None);
    }

    #[test]
    fn a_line_begins_behind_a_line_break_and_the_answer_once() {
        assert_eq!(search(&["(?m)^Q:"], &["a Q:\n", "Q: b"]), found(5, 7, "(?m)^Q:"));
        assert_eq!(search(&["^Q:"], &["\nQ:"]), None);
        assert_eq!(search(&["^Q:"], &["Q", ":"]), found(0, 2, "^Q:"));
    }

    #[test]
    fn what_cannot_be_searched_for_is_refused() {
        for (sources, index, text) in [
            (&["a", "(b"] as &[&str], Some(1), "is no regular expression: unclosed group"),
            (&["a*"], Some(0), "matches no text or the empty text"),
            (&["[a&&b]"], Some(0), "matches no text or the empty text"),
            (&["a$"], Some(0), "contains `$`"),
            (&["a\\b"], Some(0), "contains `$`"),
            (&["(?:[ab]*a)[ab]{20}"], None, "is too complex"),
            (&["a{100000}{100000}"], None, "is too complex"),
        ] {
            let (at, why) = patterns(sources).unwrap_err();
            assert!(at == index && why.starts_with(text), "{sources:?}: {at:?} {why}");
        }
        let (at, why) = patterns(&["x".repeat(5000).as_str()]).unwrap_err();
        assert!(at.is_none() && why.contains("4096"), "{why}");
    }

    #[test]
    fn what_is_held_back_is_bounded() {
        let mut search = PatternSearch::new(patterns(&["(?s)<.*>"]).unwrap());
        assert_eq!(search.push("<a", 0), None);
        assert_eq!(search.begun(), Some(0));
        assert_eq!(search.push(&"b".repeat(MAX_MATCH_BYTES), 2), None);
        assert_eq!(search.begun(), None);
        let begun = MAX_MATCH_BYTES + 2;
        assert_eq!(search.push("<>", begun), found(begun, begun + 2, "(?s)<.*>"));
    }

    /// By trying all places.
    fn slowly(sources: &[&str], text: &str) -> Option<(usize, usize)> {
        let whole = |s: &&str| Regex::new(&format!(r"\A(?:{s})\z")).unwrap();
        let whole: Vec<Regex> = sources.iter().map(whole).collect();
        let places = || (0..=text.len()).filter(|&i| text.is_char_boundary(i));
        let all = places().flat_map(|end| places().map(move |start| (start, end)));
        let mut all = all.filter(|(start, end)| start < end);
        all.find(|&(start, end)| whole.iter().any(|regex| regex.is_match(&text[start..end])))
    }

    proptest! {
        #[test]
        fn the_match_that_ends_first_is_found(
            text in "[abcé]{0,16}",
            sources in proptest::sample::subsequence(
                vec!["a+b", "b[^a]c", "(ab|ba)+c", "é.é", "c{2,3}", "[^b]{4}", "(?:a|é)b*c"],
                1..4,
            ),
            cut in 0usize..16,
        ) {
            let cut = (0..=text.len()).filter(|&i| text.is_char_boundary(i)).nth(cut);
            let (head, tail) = text.split_at(cut.unwrap_or(text.len()));
            let quickly = search(&sources, &[head, tail]).map(|found| (found.start, found.end));
            prop_assert_eq!(quickly, slowly(&sources, &text));
        }
    }
}
