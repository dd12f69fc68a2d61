//! What kind of device this is: environment variables, each of which a test may override.

use crate::error::{Result, code, fail};
use acl::Release;
use std::{
    collections::BTreeMap,
    env,
    sync::{Mutex, MutexGuard, OnceLock, PoisonError},
};

/// Release of the toolkit: `8.1`, `8.3`, `8.5` (default), `9.0`.
pub const VERSION: &str = "ASCEND_SIM_VERSION";
/// Name of the chip; default `Ascend910_9391`.
pub const SOC: &str = "ASCEND_SIM_SOC";
/// Number of devices; default 1.
pub const DEVICES: &str = "ASCEND_SIM_DEVICES";
/// Memory of each device in bytes; default 64 GiB.
pub const MEMORY: &str = "ASCEND_SIM_MEMORY_BYTES";
/// `old`: each graph owns a task queue per stream; `new`: queues are bound when a graph runs.
/// Default: `old` before release 8.5, else `new`.
pub const STACK: &str = "ASCEND_SIM_STACK";
/// When set, replays run on one thread in an adversarial order that this number selects.
pub const SHUFFLE: &str = "ASCEND_SIM_SHUFFLE";
/// Streams of a device; default 1984, the documented number.
pub const STREAMS: &str = "ASCEND_SIM_STREAMS";
/// Events of a device; default 65536, the documented number.
pub const EVENTS: &str = "ASCEND_SIM_EVENTS";
/// `0`: kernels, operators and fills of memory are accepted and do nothing, to time what the host does.
pub const EXECUTE: &str = "ASCEND_SIM_EXECUTE";

const NAMES: [&str; 8] = [VERSION, SOC, DEVICES, MEMORY, STACK, SHUFFLE, STREAMS, EVENTS];

/// Values set by a test; absent ones are read from the environment.
static OVERRIDES: Mutex<BTreeMap<&'static str, String>> = Mutex::new(BTreeMap::new());

fn overrides() -> MutexGuard<'static, BTreeMap<&'static str, String>> {
    OVERRIDES.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Which driver decides how graphs use task queues.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stack {
    /// A graph owns a queue per stream for as long as it lives.
    Old,
    /// Queues are bound when a graph runs.
    New,
}

/// Overrides the variable `name`, or with `None` goes back to the environment.
///
/// # Errors
/// 107000 for a name that is not one of ours.
pub fn set(name: &str, value: Option<&str>) -> Result {
    let Some(known) = NAMES.iter().find(|known| **known == name) else {
        return fail(code::PARAM, format!("no setting `{name}`; there are {}", NAMES.join(", ")));
    };
    match value {
        Some(value) => overrides().insert(known, value.to_owned()),
        None => overrides().remove(known),
    };
    Ok(())
}

/// Goes back to the environment altogether.
pub(crate) fn clear() {
    overrides().clear();
}

fn text(name: &str) -> Option<String> {
    overrides().get(name).cloned().or_else(|| env::var(name).ok()).filter(|text| !text.is_empty())
}

fn number(name: &str, default: u64) -> u64 {
    text(name).and_then(|text| text.parse().ok()).unwrap_or(default)
}

/// The release selected; an unknown one is the default.
pub fn release() -> Release {
    match text(VERSION).as_deref() {
        Some(text) if text.starts_with("8.1") => Release::V8_1,
        Some(text) if text.starts_with("8.3") => Release::V8_3,
        Some(text) if text.starts_with('9') => Release::V9,
        _ => Release::V8_5,
    }
}

/// Version of the interface that belongs to a release.
pub fn interface_version(release: Release) -> (i32, i32, i32) {
    match release {
        Release::V8_1 => (1, 13, 0),
        Release::V8_3 => (1, 15, 0),
        Release::V8_5 => (1, 16, 0),
        Release::V9 => (1, 17, 0),
    }
}

/// Name of the chip.
pub fn soc() -> String {
    text(SOC).unwrap_or_else(|| "Ascend910_9391".to_owned())
}

/// Number of devices.
pub fn devices() -> u32 {
    u32::try_from(number(DEVICES, 1)).unwrap_or(1)
}

/// Memory of a device in bytes.
pub fn memory_bytes() -> u64 {
    number(MEMORY, 64 << 30)
}

/// Streams of a device, the default ones included.
pub fn streams() -> usize {
    usize::try_from(number(STREAMS, 1984)).unwrap_or(usize::MAX)
}

/// Events of a device.
pub fn events() -> usize {
    usize::try_from(number(EVENTS, 65536)).unwrap_or(usize::MAX)
}

/// How graphs use task queues.
pub fn stack() -> Stack {
    match text(STACK).as_deref() {
        Some("old") => Stack::Old,
        Some("new") => Stack::New,
        _ if release() < Release::V8_5 => Stack::Old,
        _ => Stack::New,
    }
}

/// Whether kernels, operators and fills do their work. Unlike other settings it is read once.
pub fn executes() -> bool {
    static EXECUTES: OnceLock<bool> = OnceLock::new();
    *EXECUTES.get_or_init(|| env::var(EXECUTE).as_deref() != Ok("0"))
}

/// The order in which replays run; `None` is on concurrent threads.
pub fn shuffle() -> Option<u64> {
    text(SHUFFLE).and_then(|text| text.parse().ok())
}

/// Cube cores and vector cores of a chip, and bytes of its second-level cache.
pub fn cores(soc: &str) -> (i64, i64, i64) {
    const MIB: i64 = 1 << 20;
    match soc {
        "Ascend910B3" => (20, 40, 192 * MIB),
        "Ascend910B4" => (20, 40, 96 * MIB),
        "Ascend910_9372" | "Ascend910_9362" => (20, 40, 168 * MIB),
        _ => (24, 48, 192 * MIB),
    }
}
