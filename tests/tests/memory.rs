//! Compiling needs memory for the largest tensor, not for the model.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use benches::checkpoint::{Experts, Shape, write_random};
use precast_tests::{compile, precast};
use tempfile::TempDir;

const PRECAST: &str = env!("CARGO_BIN_EXE_precast-under-test");

/// Alone in its file: the operating system counts the peak over all children of the process.
#[test]
fn compile_streams() {
    // 4 layers of 250 MB each in 64 experts; stacked, a projection of all experts has 84 MB.
    let experts = Experts { count: 64, per_token: 4, width: 640 };
    let shape = Shape {
        hidden: 1024,
        layers: 4,
        experts: Some(experts),
        vocab_size: 1024,
        max_position: 256,
        ..Shape::qwen3_moe_small()
    };
    let dir = TempDir::new().unwrap();
    let (model, out) = (dir.path().join("model"), dir.path().join("out"));
    std::fs::create_dir(&model).unwrap();
    write_random(&model, &shape, 1).unwrap();
    let weights: u64 =
        std::fs::read_dir(&model).unwrap().map(|e| e.unwrap().metadata().unwrap().len()).sum();
    compile(PRECAST, &model, &out, "--graph-bs 1 --prefill-chunks 16");

    // SAFETY: `usage` is plain data that the call fills in.
    let peak = unsafe {
        let mut usage: libc::rusage = std::mem::zeroed();
        assert_eq!(libc::getrusage(libc::RUSAGE_CHILDREN, &mut usage), 0);
        usage.ru_maxrss as u64 * 1024
    };
    let largest = shape.hidden * experts.width * 2;
    assert!(weights > 1_000_000_000, "the model is {weights} bytes");
    // The promise is 1 GiB and twice the largest tensor; far less is enough.
    assert!(peak < (256 << 20) + 2 * largest, "peak of {peak} bytes for {weights} of weights");

    std::fs::remove_dir_all(&model).unwrap();
    let out = out.to_str().unwrap();
    let answer = precast(PRECAST, ["generate", out, "--prompt", "ab", "--max-tokens", "4"]);
    assert!(answer.status.success(), "{}", String::from_utf8_lossy(&answer.stderr));
    assert!(!answer.stdout.is_empty());
}
