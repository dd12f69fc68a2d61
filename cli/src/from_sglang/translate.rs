//! The commands that do what a launch line of a server asks for.

use super::{
    argparse::{Arguments, Given, read},
    flags::{ROUTER, SERVER},
    ours::{Ours, command_of, refusal},
    script::{Launch, Program},
    shell::Word,
    table::{How, Verdict, nearest},
    variables::VARIABLES,
};
use serde::Serialize;

/// What became of a flag, a variable or another command.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct Note {
    /// `flag`, `variable`, `argument` or `default`.
    pub(super) kind: &'static str,
    pub(super) name: String,
    /// As written.
    pub(super) written: String,
    pub(super) verdict: Verdict,
    /// Where it went.
    pub(super) ours: Option<String>,
    pub(super) note: String,
}

/// A launch line in our terms.
#[derive(Clone, Debug, Default)]
pub(super) struct Translation {
    /// `server`, `prefill`, `decode` or `router`.
    pub(super) role: &'static str,
    /// Arguments of `precast`, one command each; none for a router.
    pub(super) commands: Vec<Vec<Word>>,
    pub(super) notes: Vec<Note>,
}

/// SGLang's largest graph on NPUs of 64 GB, without a flag.
const DEFAULT_RUNNING: i64 = 64;
/// The longest chunk that a plan is made for.
const LONGEST_CHUNK: i64 = 65536;

/// Translates a launch line; `target` is what to compile for, where that is known.
pub(super) fn translate(launch: &Launch, target: Option<&str>) -> Translation {
    let table = match launch.program {
        Program::Server => SERVER,
        Program::Router => ROUTER,
    };
    let arguments = read(&launch.arguments, table);
    let mut t = Translator {
        launch,
        arguments,
        out: Translation::default(),
        compile: vec![],
        serve: vec![],
    };
    match launch.program {
        Program::Server => t.server(target),
        Program::Router => t.out.role = "router",
    }
    t.notes();
    t.out
}

struct Translator<'a> {
    launch: &'a Launch,
    arguments: Arguments,
    out: Translation,
    compile: Vec<Word>,
    serve: Vec<Word>,
}

fn number_word(n: i64) -> Word {
    Word::literal(&n.to_string())
}

impl Translator<'_> {
    fn value(&self, name: &str) -> Option<&Word> {
        self.arguments.value(name)
    }

    fn text(&self, name: &str) -> &str {
        self.value(name).map_or("", |w| w.text.as_str())
    }

    fn number(&self, name: &str) -> Option<i64> {
        self.launch.number(self.value(name)?)
    }

    fn has(&self, name: &str) -> bool {
        self.arguments.get(name).is_some()
    }

    fn compile_flag(&mut self, flag: &str, values: impl IntoIterator<Item = Word>) {
        self.compile.push(Word::literal(flag));
        self.compile.extend(values);
    }

    fn serve_flag(&mut self, flag: &str, values: impl IntoIterator<Item = Word>) {
        self.serve.push(Word::literal(flag));
        self.serve.extend(values);
    }

    /// Says something else of a flag than the table does.
    fn say(&mut self, name: &str, verdict: Verdict, ours: Option<&str>, note: impl Into<String>) {
        if let Some(given) = self.arguments.get(name) {
            let note = flag_note(given, verdict, ours.map(str::to_owned), note.into());
            self.out.notes.push(note);
        }
    }

    /// What no flag of the line asks for.
    fn say_default(&mut self, ours: &str, note: impl Into<String>) {
        self.out.notes.push(Note {
            kind: "default",
            name: ours.to_owned(),
            written: String::new(),
            verdict: Verdict::TakenOver,
            ours: Some(ours.to_owned()),
            note: note.into(),
        });
    }

    fn server(&mut self, target: Option<&str>) {
        self.out.role = match self.text("--disaggregation-mode") {
            "prefill" => "prefill",
            "decode" => "decode",
            _ => "server",
        };
        let artifact = self.artifact();
        self.compile = vec![Word::literal("compile")];
        self.serve = vec![Word::literal("serve"), artifact.clone()];
        let model = self.value("--model-path").cloned();
        if model.is_none() {
            self.say_default("compile --model", "the line names no --model-path; put it in");
        }
        let model = model.unwrap_or_else(|| Word::literal("MODEL"));
        self.compile_flag("--model", [model.clone()]);
        self.compile_flag("--out", [artifact]);
        let npu = self.target(target);
        self.dtype();
        if let Some(context) = self.value("--context-length").cloned() {
            self.compile_flag("--max-context", [context]);
        }
        self.sizes();
        self.chunks();
        if let Some(fraction) = self.value("--mem-fraction-static").cloned() {
            self.compile_flag("--mem-fraction", [fraction]);
        }
        if let Some(id) = self.value("--base-gpu-id").cloned() {
            if npu {
                self.serve_flag("--device-id", [id]);
            } else {
                self.say("--base-gpu-id", Verdict::NotNeeded, None, "there is one processor");
            }
        }
        self.handed_on();
        if !self.has("--port") {
            self.serve_flag("--port", [Word::literal("30000")]);
            self.say_default("serve --port", "SGLang's default; ours is 8000");
        }
        let name = self.value("--served-model-name").cloned().unwrap_or(model);
        self.serve_flag("--served-model-name", [name]);
        if !self.has("--served-model-name") {
            self.say_default("serve --served-model-name", "SGLang's default is the model path");
        }
        self.out.commands =
            vec![std::mem::take(&mut self.compile), std::mem::take(&mut self.serve)];
    }

    /// The directory of the artifact: the last part of the model's path, and the role.
    fn artifact(&self) -> Word {
        let path = self.value("--model-path").filter(|w| !w.expands());
        let name = path.and_then(|w| w.text.trim_end_matches('/').rsplit('/').next());
        let name = name.filter(|n| !n.is_empty()).unwrap_or("model");
        match self.out.role {
            "server" => Word::literal(&format!("artifacts/{name}")),
            role => Word::literal(&format!("artifacts/{name}-{role}")),
        }
    }

    /// Adds `--target`; whether it is an NPU.
    fn target(&mut self, asked: Option<&str>) -> bool {
        let device = self.text("--device").to_owned();
        let ascend =
            ["--attention-backend", "--decode-attention-backend", "--prefill-attention-backend"];
        let npu = device == "npu"
            || device.is_empty() && ascend.iter().any(|f| self.text(f) == "ascend")
            || device.is_empty() && self.text("--quantization") == "modelslim";
        let target = asked.unwrap_or(if npu { "ascend910_93" } else { "cpu" }).to_owned();
        self.compile_flag("--target", [Word::literal(&target)]);
        let unsure = "ascend910_93 is Atlas A3; for A2 give from-sglang --target ascend910b";
        match device.as_str() {
            "npu" if asked.is_none() => {
                self.say("--device", Verdict::TakenOver, Some("compile --target"), unsure);
            }
            "npu" | "cpu" => {}
            "" if npu && asked.is_none() => self.say_default("compile --target", unsure),
            "" if asked.is_some() => {}
            "" => self.say_default(
                "compile --target",
                "the line names no device; there is no CUDA target, so cpu",
            ),
            other => {
                let note = format!("there is no target for {other}; printed for {target}");
                self.say("--device", Verdict::NotSupportedYet, None, note);
            }
        }
        target != "cpu"
    }

    fn dtype(&mut self) {
        let Some(word) = self.value("--dtype").cloned() else { return };
        match word.text.as_str() {
            "auto" | "bfloat16" | "float32" => self.compile_flag("--dtype", [word]),
            "float" => self.compile_flag("--dtype", [Word::literal("float32")]),
            "half" | "float16" => {
                self.say("--dtype", Verdict::NotSupportedYet, None, "bfloat16 is used");
            }
            _ if word.expands() => self.compile_flag("--dtype", [word]),
            other => {
                let note = format!("SGLang has no type {other}; the checkpoint's is used");
                self.say("--dtype", Verdict::Unknown, None, note);
            }
        }
    }

    /// Data-parallel ranks that share the requests of the line.
    fn ranks(&self) -> i64 {
        let shared = self.has("--enable-dp-attention");
        self.number("--dp-size").filter(|&dp| shared && dp > 1).unwrap_or(1)
    }

    /// Adds `--graph-bs` and `--max-running-requests`.
    fn sizes(&mut self) {
        let ranks = self.ranks();
        let unknown_ranks = self.has("--enable-dp-attention")
            && self.value("--dp-size").is_some_and(|w| self.launch.number(w).is_none());
        let list: Vec<Word> =
            self.arguments.get("--cuda-graph-bs").map(|g| g.values.clone()).unwrap_or_default();
        let sizes: Vec<i64> = list.iter().filter_map(|w| self.launch.number(w)).collect();
        let largest = sizes.iter().max().copied().or(self.number("--cuda-graph-max-bs"));
        let asked = self.value("--max-running-requests").cloned();
        let global = asked.as_ref().and_then(|w| self.launch.number(w));
        let each = global.map(|n| (n / ranks).max(1));

        let ceiling = match (&asked, each) {
            (Some(word), _) if unknown_ranks => {
                let dp = self.text("--dp-size").trim_start_matches('$').trim_matches(['{', '}']);
                Some(Word {
                    raw: format!("$(({} / {dp}))", word.raw),
                    text: format!("$(({} / {dp}))", word.text),
                })
            }
            (Some(_), Some(n)) => Some(number_word(n)),
            (Some(word), None) => Some(word.clone()),
            (None, _) => None,
        };
        if let (Some(n), true) = (each, ranks > 1) {
            let note = format!(
                "{} of all {ranks} data-parallel ranks are {n} of one",
                global.unwrap_or(n)
            );
            self.say(
                "--max-running-requests",
                Verdict::TakenOver,
                Some("compile --max-running-requests"),
                note,
            );
        }
        let prefill = self.out.role == "prefill";
        let all = self.has("--disable-cuda-graph-padding");
        let bound = each.or(largest).unwrap_or(DEFAULT_RUNNING);
        if !list.is_empty() {
            self.compile_flag("--graph-bs", list.iter().cloned());
            self.list_notes(&sizes, each);
        } else if all && bound <= 256 {
            self.compile_flag("--graph-bs", (1..=bound).map(number_word));
        } else if prefill {
            let one = ceiling.clone().unwrap_or_else(|| number_word(bound));
            self.compile_flag("--graph-bs", [one]);
            self.say_default("compile --graph-bs", "one size: a prefill node hardly decodes");
        } else {
            self.compile_flag("--graph-bs", [Word::literal("auto")]);
            if !self.has("--cuda-graph-max-bs") {
                self.say_default("compile --graph-bs auto", "SGLang has an automatic list too");
            }
        }
        match ceiling {
            Some(word) => self.compile_flag("--max-running-requests", [word]),
            None if !list.is_empty() => {
                self.say_default("compile --graph-bs", "its largest size is the most that runs at once; SGLang runs more without a graph");
            }
            None => {
                self.compile_flag("--max-running-requests", [number_word(bound)]);
                let why = match largest {
                    Some(_) => "the largest graph; SGLang runs more without one",
                    None => {
                        "SGLang takes what memory allows; this is its largest graph on an NPU of 64 GB"
                    }
                };
                self.say_default("compile --max-running-requests", why);
            }
        }
        if all && bound > 256 {
            let note = format!("a plan for each of {bound} sizes is too many; sizes are chosen");
            self.say("--disable-cuda-graph-padding", Verdict::NotSupportedYet, None, note);
        }
    }

    /// Where SGLang and `compile` would not use the list as it is written.
    fn list_notes(&mut self, sizes: &[i64], ceiling: Option<i64>) {
        let joined = |sizes: &mut dyn Iterator<Item = i64>| {
            sizes.map(|n| n.to_string()).collect::<Vec<_>>().join(" ")
        };
        let mut parts = vec!["sizes of one data-parallel rank in both".to_owned()];
        let tensor =
            self.number("--tp-size").unwrap_or(1) / self.number("--dp-size").unwrap_or(1).max(1);
        let gathered = self.has("--enable-dp-attention") && tensor > 1;
        let dropped = joined(&mut sizes.iter().copied().filter(|n| gathered && n % tensor != 0));
        if !dropped.is_empty() {
            parts.push(format!("SGLang drops {dropped}, no multiple of its attention-TP {tensor}"));
        }
        if let Some(ceiling) = ceiling {
            let above = joined(&mut sizes.iter().copied().filter(|&n| n > ceiling));
            if !above.is_empty() {
                parts.push(format!(
                    "{above} can never fill with {ceiling} requests, so compile drops it"
                ));
            }
            if !sizes.contains(&ceiling) {
                parts.push(format!("compile adds {ceiling}, the most that runs at once"));
            }
        }
        self.say(
            "--cuda-graph-bs",
            Verdict::TakenOver,
            Some("compile --graph-bs"),
            parts.join("; "),
        );
    }

    /// Adds `--prefill-chunks` and `--chunked-prefill-size` for a chunk length.
    fn chunks(&mut self) {
        let name = "--chunked-prefill-size";
        let ours = Some("compile --prefill-chunks, serve --chunked-prefill-size");
        match self.number(name) {
            None => {
                if let Some(word) = self.value(name).cloned() {
                    self.compile_flag("--prefill-chunks", [16, 64, 256].map(number_word));
                    self.compile.push(word.clone());
                    self.serve_flag(name, [word]);
                }
            }
            Some(-1) => {
                let note = "prompts are always cut; where they are cut never changes an answer, and the default lengths are kept";
                self.say(name, Verdict::NotNeeded, None, note);
            }
            Some(given) => {
                let ranks = self.ranks();
                let context = self.number("--context-length").unwrap_or(LONGEST_CHUNK);
                let longest = (given / ranks).clamp(1, LONGEST_CHUNK.min(context.max(1)));
                let shorter = std::iter::successors(Some(16), |n| Some(n * 4));
                let lengths = shorter.take_while(|&n| n < longest).chain([longest]);
                self.compile_flag("--prefill-chunks", lengths.map(number_word));
                self.serve_flag(name, [number_word(longest)]);
                let mut note =
                    "the longest chunk; shorter ones are for the ends of prompts".to_owned();
                if ranks > 1 {
                    note = format!("{given} of all {ranks} data-parallel ranks; {note}");
                }
                if longest < given / ranks {
                    note += "; no longer than a context or 65536";
                }
                note += "; serve can make it shorter, and warns when it is longer than what was compiled";
                self.say(name, Verdict::TakenOver, ours, note);
            }
        }
    }

    /// Flags whose values are handed on as they are, where our commands have them by now.
    fn handed_on(&mut self) {
        let given: Vec<Given> = self.arguments.given.clone();
        for g in given.iter().filter(|g| !g.repeated && g.flag.how == How::Same) {
            let (name, ours) = (g.flag.names[0], g.flag.ours);
            let Some(command) = command_of(ours) else {
                self.say(name, Verdict::NotSupportedYet, None, format!("there is no {ours} yet"));
                continue;
            };
            let values: Vec<String> = g.values.iter().map(|v| v.text.clone()).collect();
            let literal = g.values.iter().all(|v| !v.expands());
            if let Some(why) = refusal(command, ours, &values).filter(|_| literal) {
                self.say(name, Verdict::NotSupportedYet, None, why);
                continue;
            }
            match command {
                Ours::Compile => self.compile_flag(ours, g.values.iter().cloned()),
                Ours::Serve => self.serve_flag(ours, g.values.iter().cloned()),
            }
            let to = format!("{} {ours}", command.name());
            self.say(name, Verdict::TakenOver, Some(&to), g.flag.note);
        }
    }

    /// What the tables say of everything that was not spoken of.
    fn notes(&mut self) {
        let mut notes = std::mem::take(&mut self.out.notes);
        let speculates = self.has("--speculative-algorithm");
        let mut flags = Vec::new();
        for given in &self.arguments.given {
            let flag = given.flag;
            let name = flag.names[0];
            let spoken = notes.iter().position(|n| n.kind == "flag" && n.name == name);
            let inert = given.values.iter().all(|v| flag.inert.contains(&v.text.as_str()))
                && !flag.inert.is_empty();
            flags.push(if given.repeated {
                let note = "given again later: the last one counts".to_owned();
                flag_note(given, Verdict::IgnoredBySglang, None, note)
            } else if let Some(i) = spoken {
                notes.remove(i)
            } else if inert {
                flag_note(given, Verdict::NotNeeded, None, format!("so it is here; {}", flag.note))
            } else if name.starts_with("--speculative-") && !speculates {
                let note = "without --speculative-algorithm it does nothing".to_owned();
                flag_note(given, Verdict::IgnoredBySglang, None, note)
            } else if matches!(name, "--enable-dp-attention" | "--enable-dp-lm-head")
                && self.number("--dp-size").unwrap_or(1) == 1
                && self.value("--dp-size").is_none_or(|w| self.launch.number(w).is_some())
            {
                let note = "with one data-parallel rank SGLang turns it off".to_owned();
                flag_note(given, Verdict::IgnoredBySglang, None, note)
            } else {
                let ours = match (flag.verdict, flag.ours.split(' ').next()) {
                    (Verdict::TakenOver, Some(first)) => {
                        command_of(first).map(|c| format!("{} {}", c.name(), flag.ours))
                    }
                    _ => None,
                };
                flag_note(given, flag.verdict, ours, flag.note.to_owned())
            });
        }
        flags.extend(notes);
        self.out.notes = flags;
        self.out.notes.extend(self.arguments.stray.iter().map(|s| Note {
            kind: "argument",
            name: s.written.split([' ', '=']).next().unwrap_or_default().to_owned(),
            written: s.written.clone(),
            verdict: Verdict::Unknown,
            ours: None,
            note: s.why.clone(),
        }));
        self.out.notes.extend(self.launch.environment.iter().map(variable_note));
    }
}

fn flag_note(given: &Given, verdict: Verdict, ours: Option<String>, note: String) -> Note {
    let values = given.values.iter().map(|v| v.raw.as_str());
    let written = [given.written.as_str()].into_iter().chain(values).collect::<Vec<_>>().join(" ");
    Note { kind: "flag", name: given.flag.names[0].to_owned(), written, verdict, ours, note }
}

fn variable_note((name, value): &(String, Word)) -> Note {
    let (verdict, note) = match VARIABLES.iter().find(|v| v.name == *name) {
        Some(v) => (v.verdict, v.note.to_owned()),
        None => {
            let near = nearest(name, VARIABLES.iter().map(|v| v.name));
            let is = near.map_or(String::new(), |n| format!("; is it {n}?"));
            (Verdict::Unknown, format!("no variable that is known here{is}"))
        }
    };
    Note {
        kind: "variable",
        name: name.clone(),
        written: format!("{name}={}", value.raw),
        verdict,
        ours: (verdict == Verdict::TakenOver).then(|| name.clone()),
        note,
    }
}
