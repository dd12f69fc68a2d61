//! The tables of `docs/from-sglang.md`.

use super::{
    flags::{ROUTER, SERVER},
    table::{Arity, Flag, Variable},
    variables::{COMMANDS, VARIABLES},
};
use std::fmt::Write;

/// Where the page's generated part begins.
const BEGIN: &str = "<!-- generated: PRECAST_BLESS=1 cargo test -p precast-cli from_sglang -->\n";

/// What a flag takes, as the help of a program would show it.
fn taken(arity: Arity) -> &'static str {
    match arity {
        Arity::Switch => "",
        Arity::One => " V",
        Arity::Optional => " [V]",
        Arity::Many | Arity::Each => " V..",
    }
}

fn flags(title: &str, table: &[Flag]) -> String {
    let mut text =
        format!("\n## {title}\n\n| flag | verdict | here | note |\n| --- | --- | --- | --- |\n");
    for f in table {
        let names: Vec<String> =
            f.names.iter().map(|n| format!("`{n}{}`", taken(f.arity))).collect();
        let here = if f.ours.is_empty() { String::new() } else { format!("`{}`", f.ours) };
        let mut note = f.note.to_owned();
        if !f.inert.is_empty() && f.inert != [""] {
            let values: Vec<String> =
                f.inert.iter().filter(|v| !v.is_empty()).map(|v| format!("`{v}`")).collect();
            note = format!("{} is what happens here; {note}", values.join(", "));
        }
        let note = note.trim_end_matches("; ").replace('|', "\\|");
        let _ = writeln!(text, "| {} | {} | {here} | {note} |", names.join(", "), f.verdict.name());
    }
    text
}

fn variables(title: &str, column: &str, table: &[Variable]) -> String {
    let mut text = format!("\n## {title}\n\n| {column} | verdict | note |\n| --- | --- | --- |\n");
    for Variable { name, verdict, note } in table {
        let _ = writeln!(text, "| `{name}` | {} | {note} |", verdict.name());
    }
    text
}

fn generated() -> String {
    [
        flags("Flags of `sglang.launch_server`", SERVER),
        flags("Flags of `sglang_router.launch_router`", ROUTER),
        variables("Environment variables", "variable", VARIABLES),
        variables("Other commands of launch scripts", "contains", COMMANDS),
    ]
    .concat()
}

#[test]
fn the_page_is_that_of_the_tables() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/from-sglang.md");
    let page = std::fs::read_to_string(path).unwrap();
    let (written, tables) = page.split_once(BEGIN).unwrap();
    if std::env::var_os("PRECAST_BLESS").is_some() {
        std::fs::write(path, format!("{written}{BEGIN}{}", generated())).unwrap();
    } else {
        assert!(
            tables == generated(),
            "docs/from-sglang.md differs from the tables; run its test with PRECAST_BLESS=1"
        );
    }
}
