//! Compiling needs memory for the largest tensor, not for the model.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use benches::checkpoint::{Shape, write_random};
use precast_tests::compile;
use tempfile::TempDir;

const PRECAST: &str = env!("CARGO_BIN_EXE_precast-under-test");

/// Alone in its file: the operating system counts the peak over all children of the process.
#[test]
fn compile_streams() {
    // 24 layers of 21 MB each, the largest tensor 11 MB.
    let shape = Shape {
        hidden: 1024,
        layers: 24,
        intermediate: 2816,
        vocab_size: 1024,
        max_position: 256,
        ..Shape::qwen2_5_0_5b()
    };
    let dir = TempDir::new().unwrap();
    let model = dir.path().join("model");
    std::fs::create_dir(&model).unwrap();
    write_random(&model, &shape, 1).unwrap();
    let weights: u64 =
        std::fs::read_dir(&model).unwrap().map(|e| e.unwrap().metadata().unwrap().len()).sum();
    compile(PRECAST, &model, &dir.path().join("out"), "--graph-bs 1 --prefill-chunks 16");

    // SAFETY: `usage` is plain data that the call fills in.
    let peak = unsafe {
        let mut usage: libc::rusage = std::mem::zeroed();
        assert_eq!(libc::getrusage(libc::RUSAGE_CHILDREN, &mut usage), 0);
        usage.ru_maxrss as u64 * 1024
    };
    let largest = shape.hidden * shape.intermediate * 2;
    assert!(weights > 480 << 20, "the model is {weights} bytes");
    // The promise is 1 GiB and twice the largest tensor; this model would not notice that bound.
    assert!(peak < (256 << 20) + 2 * largest, "peak of {peak} bytes for {weights} of weights");
}
