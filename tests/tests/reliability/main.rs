//! What the server and the compiler do when the world is not kind: crowds, clients that stop reading,
//! death in the middle, full disks, little memory, damaged files. `docs/reliability.md` has the figures.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod crash;
mod crowd;
mod disk;
mod memory;
mod mutations;
mod panic;
mod slow;

use precast_tests::{compile, fixture};
use std::path::PathBuf;
use tempfile::TempDir;

const PRECAST: &str = env!("CARGO_BIN_EXE_precast-under-test");

/// The smallest fixture compiled with `options`, in a directory that is removed with the first value.
fn tiny(options: &str) -> (TempDir, PathBuf) {
    let dir = TempDir::new().unwrap();
    let out = dir.path().join("artifact");
    compile(PRECAST, &fixture("qwen2"), &out, options);
    (dir, out)
}
