//! The table of decline codes is what the passes say, no more and no less, and file tests show each
//! guard of each pass, and each pass firing twice.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use precast_passes::{Catalog, filetest};
use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
};

fn root(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(path)
}

/// Codes of the table, each with how often it stands there.
fn listed() -> BTreeMap<String, usize> {
    let table = fs::read_to_string(root("docs/decline-codes.md")).unwrap();
    let rows = table.lines().filter_map(|l| l.strip_prefix("| `"));
    let mut codes = BTreeMap::new();
    for row in rows {
        *codes.entry(row.split_once('`').unwrap().0.to_owned()).or_default() += 1;
        assert_eq!(row.matches('|').count(), 3, "three cells: {row}");
    }
    codes
}

fn files(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        match path.is_dir() {
            true => files(&path, found),
            false => found.push(path),
        }
    }
}

/// A word or a mark of a source, or the content of a string.
#[derive(Clone, Debug, PartialEq)]
enum Token {
    Word(String),
    Text(String),
}

/// What a source consists of, without comments and what is compiled for tests alone.
fn tokens(source: &str) -> Vec<Token> {
    let source = source.split("#[cfg(test)]").next().unwrap();
    let mut found = Vec::new();
    let mut rest = source.trim_start();
    while let Some(first) = rest.chars().next() {
        let len = if rest.starts_with("//") {
            rest.find('\n').unwrap_or(rest.len())
        } else if first == '"' {
            let mut escaped = false;
            let end = rest[1..].find(|c| {
                let ends = c == '"' && !escaped;
                escaped = c == '\\' && !escaped;
                ends
            });
            let end = end.unwrap() + 1;
            let lines = rest[1..end].split("\\\n").map(str::trim_start);
            found.push(Token::Text(lines.collect()));
            end + 1
        } else {
            let is_word = |c: char| c == '_' || c.is_alphanumeric();
            let end = rest.find(|c| !is_word(c)).unwrap_or(rest.len()).max(first.len_utf8());
            found.push(Token::Word(rest[..end].to_owned()));
            end
        };
        rest = rest[len..].trim_start();
    }
    found
}

/// Guards in the text of a pass, as the code and the reason for people: what a code is followed by,
/// which is a literal of several words or the variable `why`; calls of `kernel`, `only_reader` and
/// `constant` imply the code.
fn guards(source: &str) -> BTreeSet<(String, String)> {
    let tokens = tokens(source);
    let is = |at: usize, word: &str| tokens.get(at) == Some(&Token::Word(word.to_owned()));
    let text = |at: usize| match tokens.get(at) {
        Some(Token::Text(text)) => Some(text.as_str()),
        _ => None,
    };
    let why_before = |at: usize| {
        let lets = (0..at).rev().find(|&i| is(i, "let") && is(i + 1, "why") && is(i + 2, "="));
        text(lets? + 3)
    };
    let kebab = |text: &&str| {
        let allowed = |c: char| c == '-' || c.is_ascii_lowercase() || c.is_ascii_digit();
        !text.is_empty() && text.chars().all(allowed)
    };
    let mut found = BTreeSet::new();
    for at in 0..tokens.len() {
        let declared = at > 0 && is(at - 1, "fn");
        if is(at, "kernel") && is(at + 1, "(") && !declared {
            let why = "the target has no kernel for the fused op";
            found.insert(("no-kernel".to_owned(), why.to_owned()));
        }
        let Some(code) = text(at).filter(kebab) else { continue };
        let labelled = is(at + 2, "why") && is(at + 3, ":");
        let named = is(at + 2, "why") && (is(at + 3, ")") || is(at + 3, "}") || is(at + 3, ","));
        let why = match () {
            () if !is(at + 1, ",") => None,
            () if labelled => text(at + 4),
            () if named => why_before(at),
            () => text(at + 2).filter(|t| t.contains(' ')),
        };
        let method = |name: &str| at > 1 && is(at - 2, name) && is(at - 1, "(");
        let code = match () {
            () if method("only_reader") => "other-reader",
            () if method("constant") => "weight-not-constant",
            () => code,
        };
        found.extend(why.map(|why| (code.to_owned(), why.to_owned())));
    }
    found
}

#[test]
fn the_scanner_sees_every_form() {
    let found = guards(
        r#"guard(a, "one", "a reason")?; guard(
            b, // "no-code", "in a comment"
            "two-more",
            "another \
             reason",
        )?; let why = "a third"; Decline::Guard { code: "three", why }; guard(false, "four", why)?;
        Decline::Guard {
            code: "five",
            why: "by its name",
        };
        let names = ["codes", "scales"]; x("six"); pass.only_reader("x", "it is read twice");
        pass.typed("x", "seven", "of a type", f).constant("w", "it must be known").kernel("op");
        fn kernel(target: T) {}
        #[cfg(test)] guard(a, "eight", "a reason")"#,
    );
    let found: Vec<(&str, &str)> = found.iter().map(|(c, w)| (&c[..], &w[..])).collect();
    let expected = [
        ("five", "by its name"),
        ("four", "a third"),
        ("no-kernel", "the target has no kernel for the fused op"),
        ("one", "a reason"),
        ("other-reader", "it is read twice"),
        ("seven", "of a type"),
        ("three", "a third"),
        ("two-more", "another reason"),
        ("weight-not-constant", "it must be known"),
    ];
    assert_eq!(found, expected);
}

#[test]
fn the_table_lists_what_passes_say() {
    let mut paths = Vec::new();
    files(&root("passes/src"), &mut paths);
    paths.retain(|p| !p.ends_with("pattern/tests.rs"));
    let said = paths.iter().flat_map(|p| guards(&fs::read_to_string(p).unwrap()));
    let said: BTreeSet<String> = said.map(|(code, _)| code).collect();
    let listed = listed();
    let twice: Vec<&String> = listed.iter().filter(|(_, n)| **n > 1).map(|(c, _)| c).collect();
    assert!(twice.is_empty(), "listed twice: {twice:?}");
    let listed: BTreeSet<String> = listed.into_keys().collect();
    let new: Vec<_> = said.difference(&listed).collect();
    assert!(new.is_empty(), "say in docs/decline-codes.md what these mean: {new:?}");
    let gone: Vec<_> = listed.difference(&said).collect();
    assert!(gone.is_empty(), "docs/decline-codes.md lists what no pass says: {gone:?}");
}

/// Refusals of `Func::outline` and `Func::create`, which no pass of this crate meets.
const UNMET: &[&str] = &["no-body", "type-rule"];

/// What the file tests show of each pass: the most that it fires at once, and what it declines.
#[derive(Default)]
struct Shown {
    fired: usize,
    declined: BTreeSet<(String, String)>,
}

fn shown() -> BTreeMap<&'static str, Shown> {
    let catalog = Catalog::builtin();
    let mut paths = Vec::new();
    files(&root("tests/filetests/passes"), &mut paths);
    let mut all: BTreeMap<&str, Shown> = BTreeMap::new();
    for path in paths {
        let report = filetest::report_of(&path, &catalog, &[]);
        let report = report.unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        for pass in report.passes {
            let shown = all.entry(pass.pass).or_default();
            shown.fired = shown.fired.max(pass.fired);
            let misses = pass.near_misses.into_iter();
            shown.declined.extend(misses.map(|m| (m.code.to_owned(), m.why.to_owned())));
        }
    }
    all
}

#[test]
fn file_tests_show_every_guard_and_every_pass_firing_twice() {
    let (catalog, shown) = (Catalog::builtin(), shown());
    let mut missing = Vec::new();
    for name in catalog.names() {
        let Some(of_pass) = shown.get(name) else {
            missing.push(format!("{name}: no file test"));
            continue;
        };
        if of_pass.fired < 2 {
            missing.push(format!("{name}: fires at most {} times", of_pass.fired));
        }
        let source = catalog.pass(name).unwrap().source();
        assert!(!source.is_empty(), "{name} has no source to look for guards in");
        for (code, why) in guards(source).difference(&of_pass.declined) {
            missing.push(format!("{name}: {code}: {why}"));
        }
    }
    let met: BTreeSet<&str> =
        shown.values().flat_map(|s| &s.declined).map(|(code, _)| &code[..]).collect();
    let unmet = listed().into_keys().filter(|c| !met.contains(&c[..]) && !UNMET.contains(&&c[..]));
    missing.extend(unmet.map(|code| format!("no file test declines for {code}")));
    assert!(missing.is_empty(), "file tests are missing for\n{}", missing.join("\n"));
}
