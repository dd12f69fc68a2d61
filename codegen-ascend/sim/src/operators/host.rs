//! What operators need of the runtime half.

use crate::{
    memory::{self, Place},
    objects::Fault,
    stream::{Kind, Task, try_submit},
};
use std::ffi::c_void;

/// That `bytes` bytes from `address` lie in one live allocation on the device.
pub(crate) fn find(address: usize, bytes: usize) -> Result<(), Fault> {
    let found = memory::find(std::ptr::without_provenance(address), bytes as u64);
    if found.is_some_and(|found| matches!(found.place, Place::Device(_))) {
        return Ok(());
    }
    Err(Fault::exception(format!("{bytes} bytes at {address:#x} are not in live device memory")))
}

/// Queues `work` on a stream.
pub(crate) fn submit(
    stream: *mut c_void,
    name: &'static str,
    work: impl Fn() -> Result<(), Fault> + Send + Sync + 'static,
) -> Result<(), Fault> {
    let task = Task::new(name, Kind::Operator, move || work().map_err(|f| f.message));
    let refused =
        |failure: crate::error::Failure| Fault { code: failure.code, message: failure.message };
    try_submit(stream, task).map_err(refused)
}
