//! What the end-to-end tests share: compiling fixtures, running the program, speaking HTTP, well and
//! badly, and the recorded outputs to compare with.

pub mod answer;
pub mod checks;
pub mod compare;
pub mod engine;
pub mod feed;
pub mod fixtures;
pub mod http;
pub mod interpreted;
pub mod oracle;
pub mod planned;
pub mod process;
pub mod random;
pub mod raw;

use std::{
    collections::BTreeMap,
    ffi::OsStr,
    fs,
    path::{Path, PathBuf},
    process::{Command, Output, Stdio},
    sync::mpsc,
    time::Duration,
};

/// A path below the root of the workspace.
pub fn root(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("tests/ lies in the root").join(path)
}

/// The checkpoint directory of a fixture.
pub fn fixture(name: &str) -> PathBuf {
    root("tests/fixtures").join(name)
}

/// Every file below `dir` with its bytes, by its path from there.
///
/// # Panics
/// When it cannot be read.
pub fn contents(dir: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut found = BTreeMap::new();
    let mut open = vec![dir.to_owned()];
    while let Some(next) = open.pop() {
        for entry in fs::read_dir(&next).expect("the directory can be read") {
            let path = entry.expect("the directory can be read").path();
            if path.is_dir() {
                open.push(path);
            } else {
                let name = path.strip_prefix(dir).expect("it lies below").to_owned();
                found.insert(name, fs::read(&path).expect("the file can be read"));
            }
        }
    }
    found
}

/// A command that runs `program`, which keeps its compiled kernels with the build: what one test has compiled
/// no other compiles again.
pub fn command(program: &str) -> Command {
    let cache = Path::new(program).with_file_name("../tmp/precast-cache");
    let mut command = Command::new(program);
    command.env("PRECAST_CACHE", cache);
    command
}

/// How long a command may take that is not meant to go on serving.
const LIMIT: Duration = Duration::from_secs(120);

/// Runs `program` (the one under test) to its end and returns what it printed.
///
/// # Panics
/// When it does not end by itself: a server that should have refused to start.
pub fn precast<S: AsRef<OsStr>>(program: &str, args: impl IntoIterator<Item = S>) -> Output {
    let child = command(program)
        .args(args)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the program starts");
    let id = child.id().to_string();
    let (ended, has_ended) = mpsc::channel();
    std::thread::spawn(move || ended.send(child.wait_with_output()));
    match has_ended.recv_timeout(LIMIT) {
        Ok(output) => output.expect("the program can be waited for"),
        Err(_) => {
            let _ = Command::new("kill").arg(id).status();
            panic!("the program still runs after {LIMIT:?}");
        }
    }
}

/// Compiles `model` into `out`; `options` are words as on the command line.
///
/// # Panics
/// When compiling fails.
pub fn compile(program: &str, model: &Path, out: &Path, options: &str) {
    let mut args = vec!["compile".as_ref(), "--model".as_ref(), model.as_os_str()];
    args.extend(["--out".as_ref(), out.as_os_str()]);
    args.extend(options.split_whitespace().map(OsStr::new));
    let output = precast(program, args);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

/// Compiles `model` into `out` in this process; `options` are words as on the command line.
///
/// # Panics
/// When compiling fails.
pub fn compile_here(model: &Path, out: &Path, options: &str) -> artifact::Artifact {
    compile_with(&cli::Precast::default(), model, out, options)
}

/// [`compile_here`] by a program with extensions.
///
/// # Panics
/// When compiling fails.
pub fn compile_with(
    precast: &cli::Precast,
    model: &Path,
    out: &Path,
    options: &str,
) -> artifact::Artifact {
    let words = ["precast", "compile", "--model", model.to_str().expect("a plain path"), "--out"];
    let words = words.into_iter().chain([out.to_str().expect("a plain path")]);
    let line = words.chain(options.split_whitespace()).map(Into::into);
    let command = cli::parse(line).expect("the options parse").command;
    precast.run(command).expect("the model compiles");
    artifact::Artifact::open(out).expect("compile wrote an artifact")
}
