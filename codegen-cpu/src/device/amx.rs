//! Whether AMX may be used: tiles are so large a state that Linux wants to be asked for them.
//!
//! With `PRECAST_AMX=model` products that use tiles compute them in plain Rust where there are none, hundreds of
//! times slower: so all that surrounds them is tested on any machine with AVX-512.

use std::arch::x86_64::{__cpuid, __cpuid_count};
use std::sync::OnceLock;

/// `CPUID.7.0:EDX`: AMX-BF16, AMX-TILE and AMX-INT8.
const FEATURES: u32 = 1 << 22 | 1 << 24 | 1 << 25;
/// `CPUID.1:ECX`: `xgetbv` may be used.
const OSXSAVE: u32 = 1 << 27;
/// The state component of the tiles' data.
const TILE_DATA: u32 = 18;
/// State components that the system must keep: tile configuration and data.
const STATE: u32 = 1 << 17 | 1 << TILE_DATA;
/// The highest leaf of `CPUID` that is looked at.
const LAST_LEAF: u32 = 7;

/// Whether products may use tiles, those of the processor or of the model.
pub(super) fn available() -> bool {
    static MODEL: OnceLock<bool> = OnceLock::new();
    granted() || *MODEL.get_or_init(|| std::env::var("PRECAST_AMX").is_ok_and(|v| v == "model"))
}

/// Whether the processor has AMX with bf16 and bytes and the system lets this process use it, all threads
/// included. Asks the system once.
pub(crate) fn granted() -> bool {
    static GRANTED: OnceLock<bool> = OnceLock::new();
    *GRANTED.get_or_init(|| processor_has_it() && system_keeps_it() && ask())
}

fn processor_has_it() -> bool {
    __cpuid(0).eax >= LAST_LEAF && __cpuid_count(LAST_LEAF, 0).edx & FEATURES == FEATURES
}

fn system_keeps_it() -> bool {
    if __cpuid(1).ecx & OSXSAVE == 0 {
        return false;
    }
    let state: u32;
    // SAFETY: OSXSAVE says that the instruction is there; register 0 always exists.
    unsafe {
        std::arch::asm!(
            "xgetbv",
            in("ecx") 0,
            out("eax") state,
            out("edx") _,
            options(nomem, nostack, preserves_flags),
        );
    }
    state & STATE == STATE
}

#[cfg(target_os = "linux")]
fn ask() -> bool {
    const ARCH_REQ_XCOMP_PERM: libc::c_int = 0x1023;
    // SAFETY: the call takes two numbers and changes nothing but what this process may use.
    unsafe { libc::syscall(libc::SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, TILE_DATA) == 0 }
}

#[cfg(not(target_os = "linux"))]
fn ask() -> bool {
    false
}
