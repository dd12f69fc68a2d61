//! Runs `tests/filetests/errors/*.ir`: text that must be refused, with the words that say why.
//!
//! The first line is `; expect-error: text`; the whole error must contain it. An error is the
//! parser's, or the verifier's for text that parses. `UPDATE_EXPECT=1` rewrites the line.

use precast_ir::text;
use std::{env, fs, path::Path};

fn error_of(file: &str, content: &str) -> Result<String, String> {
    let module = match text::parse(file, content) {
        Err(e) => return Ok(e.to_string()),
        Ok(module) => module,
    };
    let broken = module.funcs.iter().filter_map(|f| f.verify().err()).flatten();
    let broken: Vec<String> = broken.map(|e| e.to_string()).collect();
    if broken.is_empty() { Err("is accepted".to_owned()) } else { Ok(broken.join("; ")) }
}

fn run(path: &Path) -> Result<(), String> {
    let file = path.file_name().unwrap_or_default().to_string_lossy();
    let content = fs::read_to_string(path).map_err(|e| e.to_string())?;
    let (first, rest) = content.split_once('\n').ok_or("is empty")?;
    let expected = first.strip_prefix("; expect-error: ").ok_or("no `; expect-error:` line")?;
    let found = error_of(&file, &content)?;
    if env::var_os("UPDATE_EXPECT").is_some() {
        let updated = format!("; expect-error: {found}\n{rest}");
        return fs::write(path, updated).map_err(|e| e.to_string());
    }
    match !expected.is_empty() && found.contains(expected) {
        true => Ok(()),
        false => Err(format!("expected `{expected}`, found `{found}`")),
    }
}

#[test]
fn every_error_file_is_refused_for_its_reason() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/filetests/errors");
    let mut paths: Vec<_> = fs::read_dir(folder).unwrap().map(|e| e.unwrap().path()).collect();
    paths.sort();
    let failures: Vec<String> = paths
        .iter()
        .filter_map(|p| run(p).err().map(|e| format!("{}: {e}", p.display())))
        .collect();
    assert!(paths.len() > 20 && failures.is_empty(), "{}", failures.join("\n"));
}
