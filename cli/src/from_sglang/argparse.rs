//! Reads arguments as Python's argparse does: prefixes that are unambiguous, `--flag=value`, flags with
//! several values, the last of repeated flags.

use super::{
    shell::Word,
    table::{Arity, Flag, nearest},
};

/// A flag as it was given.
#[derive(Clone, Debug)]
pub(super) struct Given {
    pub(super) flag: &'static Flag,
    /// As written, which may be a prefix of its name.
    pub(super) written: String,
    pub(super) values: Vec<Word>,
    /// A later one counts instead.
    pub(super) repeated: bool,
}

/// What is no flag, or not readable as one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Stray {
    pub(super) written: String,
    pub(super) why: String,
}

/// Arguments, read.
#[derive(Clone, Debug, Default)]
pub(super) struct Arguments {
    pub(super) given: Vec<Given>,
    pub(super) stray: Vec<Stray>,
}

impl Arguments {
    /// The flag called `name`, as it counts.
    pub(super) fn get(&self, name: &str) -> Option<&Given> {
        self.given.iter().find(|g| !g.repeated && g.flag.names[0] == name)
    }

    /// Its first value.
    pub(super) fn value(&self, name: &str) -> Option<&Word> {
        self.get(name)?.values.first()
    }
}

/// Reads `words` by `table`.
pub(super) fn read(words: &[Word], table: &'static [Flag]) -> Arguments {
    let mut arguments = Arguments::default();
    let mut rest = words.iter().peekable();
    while let Some(word) = rest.next() {
        let mut stray = |written: &Word, why: String| {
            arguments.stray.push(Stray { written: written.raw.clone(), why });
        };
        if !is_flag(word) {
            stray(word, "it belongs to no flag; SGLang refuses it".into());
            continue;
        }
        let (name, inline) = match word.text.split_once('=') {
            Some((name, text)) => {
                let raw = word.raw.split_once('=').map_or("", |(_, raw)| raw);
                (name, Some(Word { raw: raw.to_owned(), text: text.to_owned() }))
            }
            None => (word.text.as_str(), None),
        };
        let flag = match find(name, table) {
            Ok(flag) => flag,
            Err(why) => {
                // What follows is likely its value.
                let values = std::iter::from_fn(|| rest.next_if(|w| !is_flag(w)));
                let words = [word].into_iter().chain(values).map(|w| w.raw.as_str());
                let written = words.collect::<Vec<_>>().join(" ");
                arguments.stray.push(Stray { written, why });
                continue;
            }
        };
        let takes = match (flag.arity, &inline) {
            (Arity::Switch, _) | (_, Some(_)) => 0,
            (Arity::One | Arity::Optional, None) => 1,
            (Arity::Many | Arity::Each, None) => usize::MAX,
        };
        if let (Arity::Switch, Some(value)) = (flag.arity, &inline) {
            stray(value, format!("{} takes no value; SGLang refuses it", flag.names[0]));
        }
        let mut values: Vec<Word> =
            inline.into_iter().filter(|_| flag.arity != Arity::Switch).collect();
        while values.len() < takes
            && let Some(value) = rest.next_if(|w| !is_flag(w))
        {
            values.push(value.clone());
        }
        if values.is_empty() && !matches!(flag.arity, Arity::Switch | Arity::Optional) {
            stray(word, format!("{} needs a value; SGLang refuses it", flag.names[0]));
            continue;
        }
        if flag.arity != Arity::Each {
            for before in &mut arguments.given {
                before.repeated |= std::ptr::eq(before.flag, flag);
            }
        }
        let written = name.to_owned();
        arguments.given.push(Given { flag, written, values, repeated: false });
    }
    arguments
}

/// Whether a word begins with a dash and is no negative number.
fn is_flag(word: &Word) -> bool {
    word.text.starts_with('-') && word.text.len() > 1 && word.text.parse::<f64>().is_err()
}

fn find(name: &str, table: &'static [Flag]) -> Result<&'static Flag, String> {
    if let Some(flag) = table.iter().find(|f| f.names.contains(&name)) {
        return Ok(flag);
    }
    let begun = |f: &&Flag| name.len() > 2 && f.names.iter().any(|n| n.starts_with(name));
    let found: Vec<&'static Flag> = table.iter().filter(begun).collect();
    match found[..] {
        [flag] => Ok(flag),
        [] => {
            let names = table.iter().flat_map(|f| f.names.iter().copied());
            Err(match nearest(name, names) {
                Some(near) => format!("no flag of SGLang's that is known here; is it {near}?"),
                None => "no flag of SGLang's that is known here".into(),
            })
        }
        _ => {
            let names: Vec<&str> = found.iter().map(|f| f.names[0]).collect();
            Err(format!("ambiguous: it could be {}", names.join(", ")))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{super::flags::SERVER, *};

    fn arguments(line: &str) -> Arguments {
        let commands = super::super::shell::commands(line);
        read(&commands.concat(), SERVER)
    }

    fn shown(line: &str) -> Vec<String> {
        let show = |g: &Given| {
            let values: Vec<&str> = g.values.iter().map(|v| v.text.as_str()).collect();
            let repeated = if g.repeated { " (repeated)" } else { "" };
            format!("{} {}{repeated}", g.flag.names[0], values.join(","))
        };
        arguments(line).given.iter().map(show).collect()
    }

    #[test]
    fn prefixes_values_and_lists_are_read() {
        assert_eq!(
            shown(
                "--tp 16 --dp=4 --moe-dense-tp 1 --ep 8 --cuda-graph-bs 8 16 --trust --chunked-prefill -1"
            ),
            [
                "--tp-size 16",
                "--dp-size 4",
                "--moe-dense-tp-size 1",
                "--ep-size 8",
                "--cuda-graph-bs 8,16",
                "--trust-remote-code ",
                "--chunked-prefill-size -1"
            ]
        );
        assert_eq!(
            shown("--load-balance-method round_robin --port 1 --load-balance-method minimum"),
            [
                "--load-balance-method round_robin (repeated)",
                "--port 1",
                "--load-balance-method minimum"
            ]
        );
        let json = "--json-model-override-args '{\"a\": [1, 2]}'";
        assert_eq!(shown(json), ["--json-model-override-args {\"a\": [1, 2]}"]);
    }

    #[test]
    fn what_is_no_flag_is_told() {
        let strays = |line| -> Vec<String> {
            let stray = arguments(line).stray;
            stray.into_iter().map(|s| format!("{}: {}", s.written, s.why)).collect()
        };
        let slip = strays("--speculative-draft-model-quantization= unquant");
        assert!(slip[0].starts_with("unquant: it belongs to no flag"), "{slip:?}");
        let unknown = strays("--max_running_requests 8 --port 1");
        assert!(unknown[0].starts_with("--max_running_requests 8: no flag"), "{unknown:?}");
        assert!(unknown[0].ends_with("is it --max-running-requests?"), "{unknown:?}");
        assert!(strays("--disagg 1")[0].contains("ambiguous: it could be --disaggregation-mode,"));
        assert!(strays("--port --host a")[0].contains("--port needs a value"));
        assert!(strays("--trust-remote-code=1")[0].contains("takes no value"));
        assert_eq!(strays("--host a extra").len(), 1);
    }

    /// Every name stands once, as argparse itself demands.
    #[test]
    fn names_are_unique() {
        for table in [SERVER, super::super::flags::ROUTER] {
            let mut names: Vec<&str> = table.iter().flat_map(|f| f.names).copied().collect();
            let count = names.len();
            names.sort_unstable();
            names.dedup();
            assert_eq!(names.len(), count);
            assert!(names.iter().all(|n| n.starts_with("--") && n.len() > 2));
        }
    }
}
