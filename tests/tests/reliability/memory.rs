//! Less memory than an artifact needs.

use crate::{PRECAST, tiny};
use precast_tests::process::{Limit, limit};
use std::process::{Command, Stdio};

/// 3 layers of 2 x 2 x 16 channels in bf16: 384 bytes a token, 6 KiB a block, 3 GiB in all.
const BUILD: &str =
    "--graph-bs 1 --prefill-chunks 16 --max-context 64 --kv-blocks 524288 --no-record";

/// Limits below what the KV blocks need, down to hardly enough for the program itself.
#[test]
fn a_server_without_enough_memory_says_how_much_it_needs() {
    let (_dir, artifact) = tiny(BUILD);
    for bytes in [2u64 << 30, 1 << 30, 512 << 20] {
        for bound in [Limit::AddressSpace(bytes), Limit::Data(bytes)] {
            let mut command = Command::new(PRECAST);
            command.arg("serve").arg(&artifact).args(["--port", "0"]).stdin(Stdio::null());
            let output = limit(&mut command, bound).output().unwrap();
            let error = String::from_utf8_lossy(&output.stderr);
            assert_eq!(output.status.code(), Some(1), "{bound:?}: {error}");
            assert!(error.contains(" MB of memory (weights"), "{bound:?}: {error}");
            assert!(
                error.contains("ulimit") && error.contains("--kv-blocks"),
                "{bound:?}: {error}"
            );
            assert!(!error.contains("memory allocation of"), "{bound:?}: {error}");
            assert!(!error.contains("panicked"), "{bound:?}: {error}");
        }
    }
}
