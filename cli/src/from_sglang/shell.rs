//! Enough of a shell's grammar to find launch lines in scripts.

/// A word of a command.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Word {
    /// As written, quotes included.
    pub(super) raw: String,
    /// Without quotes. Variables and substitutions stay as they are written.
    pub(super) text: String,
}

impl Word {
    /// An argument as a program gets it, quoted where a shell needs that.
    pub(super) fn literal(text: &str) -> Self {
        let plain = |c: char| c.is_ascii_alphanumeric() || "-_./:=,@%+".contains(c);
        let raw = if !text.is_empty() && text.chars().all(plain) {
            text.to_owned()
        } else {
            format!("'{}'", text.replace('\'', "'\\''"))
        };
        Self { raw, text: text.to_owned() }
    }

    /// Name and value, if it is an assignment.
    pub(super) fn assignment(&self) -> Option<(String, Word)> {
        let (name, text) = self.text.split_once('=')?;
        let (_, raw) = self.raw.split_once('=')?;
        let mut chars = name.chars();
        let starts = chars.next().is_some_and(|c| c.is_ascii_alphabetic() || c == '_');
        let is_name = starts && chars.all(|c| c.is_ascii_alphanumeric() || c == '_');
        is_name.then(|| (name.to_owned(), Word { raw: raw.to_owned(), text: text.to_owned() }))
    }

    /// Whether a shell would still replace something in it.
    pub(super) fn expands(&self) -> bool {
        self.text.contains(['$', '`'])
    }
}

/// The simple commands of a script, each in words: comments, redirections and operators left out,
/// lines joined where they end in a backslash. Fences of Markdown are skipped.
pub(super) fn commands(script: &str) -> Vec<Vec<Word>> {
    let mut lexer = Lexer { rest: script.chars().collect(), at: 0, ..Lexer::default() };
    lexer.run();
    lexer.commands
}

#[derive(Default)]
struct Lexer {
    rest: Vec<char>,
    at: usize,
    word: Option<Word>,
    command: Vec<Word>,
    commands: Vec<Vec<Word>>,
    /// The next word is the target of a redirection.
    redirected: bool,
}

impl Lexer {
    fn peek(&self, ahead: usize) -> Option<char> {
        self.rest.get(self.at + ahead).copied()
    }

    fn next(&mut self) -> Option<char> {
        let c = self.peek(0)?;
        self.at += 1;
        Some(c)
    }

    fn run(&mut self) {
        while let Some(c) = self.next() {
            match c {
                '\\' if self.continues() => {}
                '\\' => {
                    if let Some(escaped) = self.next() {
                        self.push_raw(&format!("\\{escaped}"), &escaped.to_string());
                    }
                }
                '#' if self.word.is_none() => self.skip_line(),
                '`' if self.word.is_none() && self.peek(0) == Some('`') => self.skip_line(),
                '\'' => self.quoted('\''),
                '"' => self.quoted('"'),
                '`' => self.verbatim("", '`', '`'),
                '$' => match self.peek(0) {
                    Some('(') => self.verbatim("$", '(', ')'),
                    Some('{') => self.verbatim("$", '{', '}'),
                    _ => self.push_raw("$", "$"),
                },
                '(' if self.word.as_ref().is_some_and(|w| w.text.ends_with('=')) => {
                    self.at -= 1;
                    self.verbatim("", '(', ')');
                }
                '<' | '>' => self.redirect(),
                '&' if self.peek(0) == Some('>') => self.end_word(),
                '\n' | ';' | '|' | '&' | '(' | ')' => self.end_command(),
                c if c.is_whitespace() => self.end_word(),
                c => self.push_raw(&c.to_string(), &c.to_string()),
            }
        }
        self.end_command();
    }

    /// Skips the end of a line after a backslash. Spaces before it, which a shell would take for an
    /// escaped one, are a slip that recipes contain.
    fn continues(&mut self) -> bool {
        let blanks = self.rest[self.at..].iter().take_while(|c| matches!(c, ' ' | '\t' | '\r'));
        let after = self.at + blanks.count();
        match self.rest.get(after) {
            None | Some('\n') => {
                self.at = (after + 1).min(self.rest.len());
                self.end_word();
                true
            }
            _ => false,
        }
    }

    fn skip_line(&mut self) {
        while self.peek(0).is_some_and(|c| c != '\n') {
            self.at += 1;
        }
    }

    fn push_raw(&mut self, raw: &str, text: &str) {
        let word = self.word.get_or_insert_default();
        word.raw += raw;
        word.text += text;
    }

    fn quoted(&mut self, quote: char) {
        let mut raw = quote.to_string();
        let mut text = String::new();
        while let Some(c) = self.next() {
            raw.push(c);
            match c {
                c if c == quote => break,
                '\\' if quote == '"' => {
                    let Some(escaped) = self.next() else { break };
                    raw.push(escaped);
                    match escaped {
                        '"' | '\\' | '$' | '`' => text.push(escaped),
                        '\n' => {}
                        other => text.extend(['\\', other]),
                    }
                }
                c => text.push(c),
            }
        }
        self.push_raw(&raw, &text);
    }

    /// Takes everything up to the bracket that closes the next character, as it is.
    fn verbatim(&mut self, before: &str, open: char, close: char) {
        let mut raw = before.to_owned();
        let mut depth = 0usize;
        if open == close {
            raw.push(open);
            depth = 1;
        }
        while let Some(c) = self.next() {
            raw.push(c);
            if c == close {
                depth -= 1;
            } else if c == open {
                depth += 1;
            }
            if depth == 0 {
                break;
            }
        }
        self.push_raw(&raw.clone(), &raw);
    }

    /// Drops `2>&1`, `> file`, `< file` and `<<< word`.
    fn redirect(&mut self) {
        if self.word.as_ref().is_some_and(|w| w.raw.chars().all(|c| c.is_ascii_digit())) {
            self.word = None;
        }
        self.end_word();
        while matches!(self.peek(0), Some('<' | '>' | '&' | '|')) {
            self.at += 1;
        }
        self.redirected = true;
    }

    fn end_word(&mut self) {
        let Some(word) = self.word.take() else { return };
        if !std::mem::take(&mut self.redirected) {
            self.command.push(word);
        }
    }

    fn end_command(&mut self) {
        self.end_word();
        self.redirected = false;
        let command = std::mem::take(&mut self.command);
        if !command.is_empty() {
            self.commands.push(command);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(script: &str) -> Vec<Vec<String>> {
        let words = |c: Vec<Word>| c.into_iter().map(|w| w.text).collect();
        commands(script).into_iter().map(words).collect()
    }

    #[test]
    fn words_are_those_of_a_shell() {
        let script = "# comment\n```shell\nA=1 python -m x --a 'b c' \\\n  --d=\"e \\\" f\" \\  \n --g h#i # end\nnext";
        assert_eq!(
            texts(script),
            [
                vec!["A=1", "python", "-m", "x", "--a", "b c", "--d=e \" f", "--g", "h#i"],
                vec!["next"]
            ]
        );
    }

    #[test]
    fn substitutions_stay() {
        let script =
            "IP=`hostname -I | awk '{print $1}'`; x ${A[$i]} $((8998+$i)) \"${B} c\" $(f $(g))";
        assert_eq!(
            texts(script),
            [
                vec!["IP=`hostname -I | awk '{print $1}'`"],
                vec!["x", "${A[$i]}", "$((8998+$i))", "${B} c", "$(f $(g))"]
            ]
        );
        assert_eq!(texts("P=('a b' \"c\") d"), [["P=('a b' \"c\")", "d"]]);
    }

    #[test]
    fn redirections_and_operators_end_commands() {
        let script = "nohup a --b 1 > log.txt 2>&1 & c 2>/dev/null | d && e &> f";
        assert_eq!(
            texts(script),
            [vec!["nohup", "a", "--b", "1"], vec!["c"], vec!["d"], vec!["e"]]
        );
    }

    #[test]
    fn nothing_that_is_cut_off_is_lost() {
        for script in ["a 'b", "a \"b\\", "a ${b", "a $(b", "a `b", "a \\", "a >", "x=(a"] {
            assert_eq!(commands(script).len(), 1, "{script}");
        }
    }

    #[test]
    fn arguments_are_quoted_where_needed() {
        for (text, raw) in [("a-b/c:1", "a-b/c:1"), ("", "''"), ("{\"a\": 1}", "'{\"a\": 1}'")] {
            assert_eq!(Word::literal(text).raw, raw);
            assert_eq!(commands(&format!("x {raw}"))[0][1].text, text);
        }
        assert_eq!(commands(&Word::literal("it's").raw)[0][0].text, "it's");
        assert!(Word::literal("1A=2").assignment().is_none());
        assert_eq!(Word::literal("A_1=b=c").assignment().unwrap().1.text, "b=c");
    }
}
