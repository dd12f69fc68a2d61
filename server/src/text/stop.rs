//! Stop strings, found in text that arrives in pieces.

/// Looks for stop strings. Text that could be the beginning of one is held back until it is known
/// not to be. What is found does not depend on how the text is cut into pieces: the stop string
/// that is complete first wins, and of several that are complete at once the longest.
pub(crate) struct StopMatcher {
    stops: Vec<String>,
    /// Ends with a proper prefix of a stop string, or is empty.
    held: String,
}

impl StopMatcher {
    /// Matches `stops`; empty strings match nothing.
    pub(crate) fn new(mut stops: Vec<String>) -> Self {
        stops.retain(|stop| !stop.is_empty());
        Self { stops, held: String::new() }
    }

    /// Takes the next piece and appends to `out` what is certainly part of the output. After a
    /// stop string, which is returned, the output is complete.
    pub(crate) fn push(&mut self, piece: &str, out: &mut String) -> Option<String> {
        if self.stops.is_empty() {
            out.push_str(piece);
            return None;
        }
        self.held.push_str(piece);
        if let Some((start, stop)) = self.first_match() {
            out.push_str(&self.held[..start]);
            let matched = stop.to_owned();
            self.held.clear();
            return Some(matched);
        }
        let keep = self.stops.iter().map(|stop| overlap(&self.held, stop)).max().unwrap_or(0);
        let release = self.held.len() - keep;
        out.push_str(&self.held[..release]);
        self.held.drain(..release);
        None
    }

    /// Takes a piece in which nothing may match, and whatever was held back.
    pub(crate) fn pass(&mut self, piece: &str, out: &mut String) {
        self.finish(out);
        out.push_str(piece);
    }

    /// The output ended without a match: what was held back belongs to it.
    pub(crate) fn finish(&mut self, out: &mut String) {
        out.push_str(&self.held);
        self.held.clear();
    }

    fn first_match(&self) -> Option<(usize, &str)> {
        self.stops
            .iter()
            .filter_map(|stop| Some((self.held.find(stop.as_str())?, stop.as_str())))
            .min_by_key(|(start, stop)| (start + stop.len(), *start))
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
        let mut matcher = StopMatcher::new(stops.iter().map(|s| s.to_string()).collect());
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
        let mut matcher = StopMatcher::new(vec!["STOP".into()]);
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
        }
    }
}
