//! Launch lines of a script, each with the environment it starts in.

use super::shell::{Word, commands};
use std::collections::BTreeMap;

/// What a line starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Program {
    Server,
    Router,
}

/// A line that starts a server or a router.
#[derive(Clone, Debug)]
pub(super) struct Launch {
    pub(super) program: Program,
    /// Everything after the name of the program.
    pub(super) arguments: Vec<Word>,
    /// Environment variables that the script or the line sets, in order.
    pub(super) environment: Vec<(String, Word)>,
    /// Every variable with what it was last set to, for values such as `${TP}`.
    pub(super) variables: BTreeMap<String, Word>,
}

/// What a script does.
#[derive(Debug, Default)]
pub(super) struct Script {
    pub(super) launches: Vec<Launch>,
    /// Its other commands, each once.
    pub(super) others: Vec<String>,
}

/// Words that may come before a command.
const KEYWORDS: [&str; 15] = [
    "do", "then", "else", "elif", "if", "while", "until", "!", "{", "time", "nohup", "exec",
    "sudo", "$", "env",
];

#[derive(Clone, Default)]
struct Scope {
    exported: Vec<(String, Word)>,
    variables: BTreeMap<String, Word>,
}

impl Scope {
    fn export(&mut self, name: String, value: Word) {
        self.variables.insert(name.clone(), value.clone());
        self.exported.retain(|(n, _)| *n != name);
        self.exported.push((name, value));
    }
}

/// Reads a script. The loops of recipes are alternatives for the nodes of a cluster, so that what is
/// exported in one does not hold in the next.
pub(super) fn read(text: &str) -> Script {
    let mut script = Script::default();
    let mut scope = Scope::default();
    let mut outer = Vec::new();
    for mut words in commands(text) {
        while words.first().is_some_and(|w| KEYWORDS.contains(&w.raw.as_str())) {
            if words.remove(0).raw == "do" {
                outer.push(scope.clone());
            }
        }
        let Some(first) = words.first() else { continue };
        match first.raw.as_str() {
            "done" => scope = outer.pop().unwrap_or(scope),
            "export" => {
                for word in &words[1..] {
                    if let Some((name, value)) = word.assignment() {
                        scope.export(name, value);
                    } else if let Some(value) = scope.variables.get(&word.text).cloned() {
                        scope.export(word.text.clone(), value);
                    }
                }
            }
            "unset" => {
                for word in &words[1..] {
                    scope.exported.retain(|(n, _)| *n != word.text);
                    scope.variables.remove(&word.text);
                }
            }
            _ => match launch(&words, &scope) {
                Some(launch) => script.launches.push(launch),
                None if words.iter().all(|w| w.assignment().is_some()) => {
                    scope.variables.extend(words.iter().filter_map(Word::assignment));
                }
                None => {
                    let raw: Vec<&str> = words.iter().map(|w| w.raw.as_str()).collect();
                    let line = raw.join(" ");
                    if !script.others.contains(&line) {
                        script.others.push(line);
                    }
                }
            },
        }
    }
    script
}

/// The launch that `words` are, if they are one.
fn launch(words: &[Word], scope: &Scope) -> Option<Launch> {
    let is = |i: usize, text: &str| words.get(i).is_some_and(|w| w.text == text);
    let file = |i: usize, path: &str| words[i].text.ends_with(path);
    let (program, start) = (0..words.len()).find_map(|i| {
        let module = i > 0 && is(i - 1, "-m");
        if (module && is(i, "sglang.launch_server")) || file(i, "sglang/launch_server.py") {
            Some((Program::Server, i + 1))
        } else if file(i, "sglang") && is(i + 1, "serve") {
            Some((Program::Server, i + 2))
        } else if (module && (is(i, "sglang_router.launch_router") || is(i, "sglang_router")))
            || (is(i, "sglang-router") && is(i + 1, "launch"))
        {
            Some((Program::Router, i + 1 + usize::from(!module)))
        } else {
            None
        }
    })?;
    let mut inner = scope.clone();
    for (name, value) in words[..start].iter().filter_map(Word::assignment) {
        inner.export(name, value);
    }
    Some(Launch {
        program,
        arguments: words[start..].to_vec(),
        environment: inner.exported,
        variables: inner.variables,
    })
}

impl Launch {
    /// `word` as a number, its variables looked up once.
    pub(super) fn number(&self, word: &Word) -> Option<i64> {
        let text = word.text.trim();
        text.parse().ok().or_else(|| {
            let name = text.strip_prefix('$')?;
            let name = name.strip_prefix('{').and_then(|n| n.strip_suffix('}')).unwrap_or(name);
            self.variables.get(name)?.text.parse().ok()
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn environment(launch: &Launch) -> Vec<String> {
        launch.environment.iter().map(|(n, v)| format!("{n}={}", v.raw)).collect()
    }

    #[test]
    fn launches_have_their_environment() {
        let script = read(
            "export A=1 B=\"two\"\nTP=8\nfor i in 1 2; do\n  export C=3\n  D=4 python -m sglang.launch_server \
             --tp $TP\ndone\nunset A\nfor i in 1; do if [ x ]; then E=5 nohup sglang serve --dp ${TP} & fi\ndone\n\
             python3 -u -m sglang_router.launch_router --mini-lb\necho hi\necho hi",
        );
        let [first, second, router] = &script.launches[..] else { panic!("{script:?}") };
        assert_eq!(environment(first), ["A=1", "B=\"two\"", "C=3", "D=4"]);
        assert_eq!(environment(second), ["B=\"two\"", "E=5"]);
        assert_eq!(first.number(&first.arguments[1]), Some(8));
        assert_eq!(second.number(&second.arguments[1]), Some(8));
        assert_eq!(second.arguments.len(), 2);
        assert_eq!((router.program, router.arguments.len()), (Program::Router, 1));
        assert_eq!(script.others.iter().filter(|l| *l == "echo hi").count(), 1);
    }

    #[test]
    fn other_ways_to_launch_are_known() {
        for line in [
            "python /sgl/python/sglang/launch_server.py --tp 1",
            "docker run -e A=1 image python3 -m sglang.launch_server --tp 1",
            "/venv/bin/sglang serve --tp 1",
            "$ env A=1 python -m sglang.launch_server --tp 1",
        ] {
            let script = read(line);
            assert_eq!(script.launches.len(), 1, "{line}");
            assert_eq!(script.launches[0].arguments.len(), 2, "{line}");
        }
        assert!(read("python -m vllm.entrypoints.openai.api_server").launches.is_empty());
    }
}
