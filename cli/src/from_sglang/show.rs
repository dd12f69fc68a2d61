//! A translation as text that a shell takes, or as JSON.

use super::{
    script::{Program, Script},
    table::Verdict,
    translate::{Note, Translation},
    variables::COMMANDS,
};
use serde_json::{Value, json};
use std::fmt::Write;

/// Lines are broken before a flag that would pass this column.
const WIDTH: usize = 100;

/// A command as a shell takes it.
pub(super) fn command(words: &[super::shell::Word]) -> String {
    let mut text = "precast".to_owned();
    let mut column = text.len();
    let mut rest = words.iter().peekable();
    while let Some(word) = rest.next() {
        // A flag stays on a line with its values.
        let mut part = word.raw.clone();
        while let Some(value) =
            rest.next_if(|w| word.text.starts_with("--") && !w.text.starts_with("--"))
        {
            part = format!("{part} {}", value.raw);
        }
        if column + part.len() > WIDTH {
            text += " \\\n ";
            column = 1;
        }
        column += part.len() + 1;
        text = format!("{text} {part}");
    }
    text
}

/// Commands with notes as comments.
pub(super) fn text(script: &Script, translations: &[Translation]) -> String {
    let mut out = String::new();
    let many = translations.len() > 1;
    for (i, (launch, t)) in script.launches.iter().zip(translations).enumerate() {
        if i > 0 {
            out.push('\n');
        }
        if many || t.role != "server" {
            let _ = writeln!(out, "# {} of {}: {}", i + 1, translations.len(), t.role);
        }
        for words in &t.commands {
            let _ = writeln!(out, "{}", command(words));
        }
        if launch.program == Program::Router {
            out += "# Run the router as it is, with the addresses of `precast serve` as --worker-urls.\n";
        }
        notes(&mut out, &t.notes);
    }
    let others = others(script);
    if !others.is_empty() {
        out += "\n# other commands of the script\n";
        for (line, note) in others {
            let _ = writeln!(out, "#   {line}: {note}");
        }
    }
    out
}

fn notes(out: &mut String, notes: &[Note]) {
    for verdict in [
        Verdict::TakenOver,
        Verdict::NotNeeded,
        Verdict::NotSupportedYet,
        Verdict::IgnoredBySglang,
        Verdict::Unknown,
    ] {
        let mut of_verdict = notes.iter().filter(|n| n.verdict == verdict).peekable();
        if of_verdict.peek().is_some() {
            let _ = writeln!(out, "# {}", verdict.name());
        }
        for Note { kind, written, ours, note, .. } in of_verdict {
            let what = if *kind == "default" { "not given" } else { written };
            let mut line = format!("#   {}", what.replace('\n', " "));
            if let Some(ours) = ours {
                let _ = write!(line, " -> {ours}");
            }
            if !note.is_empty() {
                let _ = write!(line, ": {note}");
            }
            let _ = writeln!(out, "{line}");
        }
    }
}

/// Commands beside launches that there is something to say of.
fn others(script: &Script) -> Vec<(&str, &'static str)> {
    let known = |line: &&String| COMMANDS.iter().find(|c| line.contains(c.name)).map(|c| c.note);
    script.others.iter().filter_map(|l| Some((l.as_str(), known(&l)?))).collect()
}

/// The same for programs.
pub(super) fn json(script: &Script, translations: &[Translation]) -> Value {
    let shown = |t: &Translation| {
        let commands: Vec<Value> = t
            .commands
            .iter()
            .map(|words| {
                let texts = words.iter().map(|w| w.text.as_str());
                let argv: Vec<&str> = ["precast"].into_iter().chain(texts).collect();
                json!({ "argv": argv, "shell": command(words).replace(" \\\n ", "") })
            })
            .collect();
        json!({ "role": t.role, "commands": commands, "notes": t.notes })
    };
    let others = others(script);
    let others = others.iter().map(|(line, note)| json!({ "command": line, "note": note }));
    json!({
        "launches": translations.iter().map(shown).collect::<Vec<_>>(),
        "other_commands": others.collect::<Vec<_>>(),
    })
}
