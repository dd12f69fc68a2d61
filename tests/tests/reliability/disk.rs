//! Compiling where there is no room, or no permission.

use crate::{PRECAST, tiny};
use precast_tests::{
    contents, fixture,
    process::{Limit, limit},
};
use std::{
    fs,
    os::unix::{fs::PermissionsExt, process::CommandExt},
    path::Path,
    process::{Command, Output},
};
use tempfile::TempDir;

const OPTIONS: [&str; 8] =
    ["--graph-bs", "1", "4", "--prefill-chunks", "16", "--max-context", "64", "--no-record"];

fn compile(out: &Path) -> Command {
    let mut command = Command::new(PRECAST);
    command.args(["compile", "--model"]).arg(fixture("qwen2")).arg("--out").arg(out).args(OPTIONS);
    command
}

/// A compile that fails with status 1, and what it says.
fn refused(output: &Output) -> String {
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "{error}");
    error
}

/// Files that may not grow beyond a few sizes, from none at all to nearly the whole weights.
#[test]
fn a_full_disk_is_named_and_leaves_no_half_artifact() {
    let (dir, existing) = tiny("--graph-bs 1 --prefill-chunks 16 --max-context 64");
    let before = contents(&existing);
    let weights = before[Path::new("weights/weights.bin")].len() as u64;
    let fresh = dir.path().join("fresh");
    for bytes in [0, 100, 4096, weights / 2, weights - 1] {
        for out in [&fresh, &existing] {
            let mut command = compile(out);
            let error = refused(&limit(&mut command, Limit::FileBytes(bytes)).output().unwrap());
            assert!(error.contains(out.to_str().unwrap()), "{error}");
            assert!(error.contains("File too large"), "{error}");
            if bytes >= weights / 2 {
                assert!(error.contains("weights.bin"), "{error}");
                assert!(error.contains("of weights"), "it says how much room is needed: {error}");
            }
        }
        assert!(!fresh.exists(), "half an artifact");
        assert!(contents(&existing) == before, "the older artifact has changed");
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1, "something is left behind");
    }
    assert!(compile(&fresh).status().unwrap().success());
}

/// A file system that is full indeed. It is mounted for this process alone, where the system allows
/// that to users.
#[test]
fn a_full_file_system_is_named_and_left_empty() {
    let dir = TempDir::new().unwrap();
    let mount = |script: &str| {
        let script = format!("mount -t tmpfs -o size=256k none \"$0\" && {script}");
        let mut command = Command::new("unshare");
        command.args(["--user", "--map-root-user", "--mount", "sh", "-c", &script]);
        command.arg(dir.path());
        command
    };
    if !mount("true").status().is_ok_and(|s| s.success()) {
        println!("not tested: this system does not let users mount");
        return;
    }
    // Arguments of the compile follow; what is left is listed after it.
    let mut command = mount("\"$@\"; status=$?; ls -A \"$0\"; exit $status");
    let inner = compile(&dir.path().join("out"));
    let output = command.arg(inner.get_program()).args(inner.get_args()).output().unwrap();
    let error = refused(&output);
    assert!(error.contains("No space left on device"), "{error}");
    assert!(error.contains("weights.bin") && error.contains("of weights"), "{error}");
    assert_eq!(String::from_utf8_lossy(&output.stdout), "", "something is left behind");
}

#[test]
fn a_directory_that_may_not_be_written_is_named() {
    let dir = TempDir::new().unwrap();
    let closed = dir.path().join("closed");
    fs::create_dir(&closed).unwrap();
    let open = |path: &Path, mode| fs::set_permissions(path, PermissionsExt::from_mode(mode));
    open(dir.path(), 0o755).unwrap();
    open(&closed, 0o555).unwrap();
    let mut command = compile(&closed.join("out"));
    // SAFETY: asks for the identity of this process and changes nothing.
    if unsafe { libc::geteuid() } == 0 {
        // Nothing is closed to root.
        command.uid(65534);
    }
    let error = refused(&command.output().unwrap());
    assert!(error.contains(closed.to_str().unwrap()), "{error}");
    assert!(error.contains("Permission denied"), "{error}");
    assert_eq!(fs::read_dir(&closed).unwrap().count(), 0);
}
