//! The table of decline codes is what the passes say, no more and no less, and a file test shows
//! each of them.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

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

/// Codes in the text of a pass: `code: "x"`, and `"x"` followed by the reason for people, which is a
/// literal of several words or the variable `why`. What follows a name of a pattern is no code.
fn codes(source: &str) -> BTreeSet<String> {
    let source = source.split("#[cfg(test)]").next().unwrap();
    let mut found = BTreeSet::new();
    for (at, _) in source.match_indices('"') {
        let rest = &source[at + 1..];
        let kebab = |c: char| c == '-' || c.is_ascii_lowercase() || c.is_ascii_digit();
        let end = rest.find(|c| !kebab(c)).unwrap_or(rest.len());
        let (code, after) = rest.split_at(end);
        let Some(after) = after.strip_prefix('"') else { continue };
        let after = after.trim_start_matches(',').trim_start();
        let sentence = after.strip_prefix('"').and_then(|t| t.split('"').next());
        let explained = sentence.is_some_and(|t| t.contains(' ')) || after.starts_with("why)");
        let named = source[..at].ends_with("code: ");
        let of_pattern = ["only_reader(", "constant("].iter().any(|m| source[..at].ends_with(m));
        if !code.is_empty() && !of_pattern && (explained || named) {
            found.insert(code.to_owned());
        }
    }
    found
}

#[test]
fn the_scanner_sees_every_form() {
    let found = codes(
        r#"guard(a, "one", "a reason")?; guard(
            b,
            "two-more",
            "another reason",
        )?; Decline::Guard { code: "three", why }; guard(false, "four", why)?;
        let names = ["codes", "scales"]; x("five"); pass.only_reader("x", "it is read twice");
        #[cfg(test)] guard(a, "six", "a reason")"#,
    );
    assert_eq!(found.into_iter().collect::<Vec<_>>(), ["four", "one", "three", "two-more"]);
}

#[test]
fn the_table_lists_what_passes_say() {
    let mut paths = Vec::new();
    files(&root("passes/src"), &mut paths);
    paths.retain(|p| !p.ends_with("pattern/tests.rs"));
    let said: BTreeSet<String> =
        paths.iter().flat_map(|p| codes(&fs::read_to_string(p).unwrap())).collect();
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
const UNMET: &[&str] = &["no-body", "not-convex", "type-rule"];

#[test]
fn a_file_test_shows_every_code() {
    let mut paths = Vec::new();
    files(&root("tests/filetests/passes"), &mut paths);
    let mut shown = BTreeSet::new();
    for path in paths {
        let text = fs::read_to_string(path).unwrap();
        for line in text.lines().filter_map(|l| l.strip_prefix("; declines:")) {
            shown.extend(line.split(',').map(|c| c.trim().to_owned()));
        }
    }
    shown.extend(UNMET.iter().map(|&code| code.to_owned()));
    let listed: BTreeSet<String> = listed().into_keys().collect();
    assert_eq!(listed.difference(&shown).collect::<Vec<_>>(), Vec::<&String>::new());
}
