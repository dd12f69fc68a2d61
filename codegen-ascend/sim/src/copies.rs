//! Copies and fills: what is checked, and in which order they run.

use crate::{
    call, capture, config,
    error::{Result, code, fail},
    memory::{self, Allocation, Place},
    stream::{self, Kind, Task, drain, is_capturing, try_submit},
    world,
};
use acl::sys::{aclrtMemcpyKind, aclrtStream};
use std::ffi::c_void;

/// When a copy happens.
pub(crate) enum When {
    /// Before the call returns.
    Now,
    /// In the order of a stream.
    InOrderOf(aclrtStream),
}

/// Which way a copy goes.
#[derive(Clone, core::marker::Copy, Debug, PartialEq, Eq)]
enum Way {
    HostToHost,
    HostToDevice,
    DeviceToHost,
    DeviceToDevice,
}

/// A copy whose memory has been checked.
#[derive(Clone, core::marker::Copy)]
pub(crate) struct Copy {
    dst: u64,
    src: u64,
    count: u64,
    way: Way,
    /// The host's memory, where it takes part, is pinned.
    pinned: bool,
}

impl Copy {
    /// Checks a copy.
    ///
    /// # Errors
    /// 107000 for null pointers, nothing to copy, more than `dst_max` bytes or more than the memory
    /// has, 107016 when the kind is not that of the memory.
    pub(crate) fn new(
        dst: *mut c_void,
        dst_max: usize,
        src: *const c_void,
        count: usize,
        kind: aclrtMemcpyKind,
    ) -> Result<Self> {
        if dst.is_null() || src.is_null() || count == 0 || count > dst_max {
            let message =
                format!("a copy of {count} bytes from {src:p} to {dst:p} with room for {dst_max}");
            return fail(code::PARAM, message);
        }
        let (to, from) = (side(dst, dst_max, "destination")?, side(src, count, "source")?);
        let on_device = |side: &Option<Allocation>| {
            matches!(side, Some(Allocation { place: Place::Device(_), .. }))
        };
        let found = match (on_device(&from), on_device(&to)) {
            (false, false) => Way::HostToHost,
            (false, true) => Way::HostToDevice,
            (true, false) => Way::DeviceToHost,
            (true, true) => Way::DeviceToDevice,
        };
        let asked = match kind {
            0 => Some(Way::HostToHost),
            1 | 5 => Some(Way::HostToDevice),
            2 => Some(Way::DeviceToHost),
            3 | 6 | 7 => Some(Way::DeviceToDevice),
            4 => None,
            _ => return fail(code::PARAM, format!("no kind of copy {kind}")),
        };
        if asked.is_some_and(|asked| asked != found) {
            let message = format!("a copy of kind {kind} between memories of {found:?}");
            return fail(code::MEMORY_TYPE, message);
        }
        let is_pinned =
            |side: &Option<Allocation>| side.is_some_and(|found| found.place == Place::Pinned);
        let pinned = (on_device(&from) || is_pinned(&from)) && (on_device(&to) || is_pinned(&to));
        Ok(Self { dst: dst as u64, src: src as u64, count: count as u64, way: found, pinned })
    }

    /// Copies now. Memory is looked up again, since it may have been freed since.
    fn perform(&self) -> std::result::Result<(), String> {
        let live = |start: u64, on_device: bool| {
            !on_device || memory::find(start as *const c_void, self.count).is_some()
        };
        if !live(self.src, matches!(self.way, Way::DeviceToHost | Way::DeviceToDevice))
            || !live(self.dst, matches!(self.way, Way::HostToDevice | Way::DeviceToDevice))
        {
            return Err(format!(
                "a copy of {} bytes from {:#x} to {:#x} touches freed memory",
                self.count, self.src, self.dst
            ));
        }
        let bytes = usize::try_from(self.count).unwrap_or(usize::MAX);
        // SAFETY: device memory is live with this many bytes; for host memory the caller vouches.
        unsafe { std::ptr::copy(self.src as *const u8, self.dst as *mut u8, bytes) };
        match self.way {
            Way::HostToHost => {}
            Way::HostToDevice => count("copies/h2d", "bytes/h2d", self.count),
            Way::DeviceToHost => count("copies/d2h", "bytes/d2h", self.count),
            Way::DeviceToDevice => count("copies/d2d", "bytes/d2d", self.count),
        }
        Ok(())
    }
}

fn count(copies: &'static str, bytes: &'static str, amount: u64) {
    call::count(copies, 1);
    call::count(bytes, amount);
}

/// The allocation that one side of a copy lies in; `None` for memory of the host that is not ours.
fn side(pointer: *const c_void, bytes: usize, what: &str) -> Result<Option<Allocation>> {
    let found = memory::find(pointer, bytes as u64);
    if found.is_none()
        && let Some(short) =
            memory::find(pointer, 0).filter(|short| (pointer as u64) < short.start + short.usable)
    {
        let message = format!(
            "{what}: {bytes} bytes at {pointer:p} go beyond the allocation of {} bytes at {:#x}",
            short.bytes, short.start
        );
        return fail(code::PARAM, message);
    }
    Ok(found)
}

/// Copies now or in the order of a stream.
///
/// # Errors
/// 107030 where an open capture forbids it; what the stream says.
pub(crate) fn run(copy: Copy, when: When) -> Result {
    let task = Task::new("memcpy", Kind::Copy, move || copy.perform());
    match when {
        When::Now => now(&task, "aclrtMemcpy"),
        When::InOrderOf(stream) if copy.pinned => try_submit(stream, task),
        When::InOrderOf(stream) => {
            if is_capturing(stream)? {
                let message = "aclrtMemcpyAsync with host memory that is not pinned cannot be captured; aclrtMallocHost gives pinned memory";
                return fail(code::CAPTURE_MODE, message);
            }
            let world = world::lock();
            capture::unsafe_call(&world, "aclrtMemcpyAsync with host memory that is not pinned")?;
            let key = world.stream(stream)?;
            drop(world);
            try_submit(stream, task)?;
            drain(world::lock(), key, None)
        }
    }
}

/// Fills device memory now or in the order of a stream.
///
/// # Errors
/// 107000 for memory that is not the device's or too short; 107030 where a capture forbids it.
pub(crate) fn fill(
    pointer: *mut c_void,
    max: usize,
    value: i32,
    count: usize,
    when: When,
) -> Result {
    let on_device = memory::find(pointer, max as u64)
        .is_some_and(|found| matches!(found.place, Place::Device(_)));
    if count == 0 || count > max || !on_device {
        let message = format!(
            "a fill of {count} bytes at {pointer:p} with room for {max}, which is not memory of the device"
        );
        return fail(code::PARAM, message);
    }
    let (start, byte) = (pointer as u64, value as u8);
    let task = Task::new("memset", Kind::Copy, move || {
        if memory::find(start as *const c_void, count as u64).is_none() {
            return Err(format!("a fill of {count} bytes at {start:#x} touches freed memory"));
        }
        if config::executes() {
            // SAFETY: the memory is live with this many bytes.
            unsafe { std::ptr::write_bytes(start as *mut u8, byte, count) };
        }
        Ok(())
    });
    match when {
        When::Now => now(&task, "aclrtMemset"),
        When::InOrderOf(stream) => try_submit(stream, task),
    }
}

/// Does the work before the call returns, in no order with any stream.
fn now(task: &stream::Task, call: &str) -> Result {
    let world = world::lock();
    world.current()?;
    capture::unsafe_call(&world, call)?;
    drop(world);
    task.run()
}
