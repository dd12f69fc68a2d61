//! A fresh software device for a test, and short names for what tests do to it.
#![allow(dead_code, unreachable_pub, reason = "each test file uses its part")]

use acl::sys::*;
use ascend_sim::{
    api::{device::*, event::*, graph::*, memory::*, sim::*, stream::*, system::*},
    stream::{Kind, Task, submit},
};
use std::{
    ffi::{CStr, CString, c_void},
    ptr::null_mut,
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
};

/// One test at a time: the device is the process's.
static TURN: Mutex<()> = Mutex::new(());

/// A device that is set up; it is taken down at the end.
pub struct Sim(#[allow(dead_code, reason = "held")] MutexGuard<'static, ()>);

impl Sim {
    /// With settings of `ascend_sim::config`.
    pub fn with(settings: &[(&str, &str)]) -> Self {
        let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
        assert_eq!(ascendSimReset(), 0);
        for (name, value) in settings {
            configure(name, value);
        }
        // SAFETY: null is allowed.
        unsafe {
            assert_eq!(aclInit(std::ptr::null()), 0);
            assert_eq!(aclrtSetDevice(0), 0);
        }
        Self(turn)
    }

    pub fn new() -> Self {
        Self::with(&[])
    }
}

impl Drop for Sim {
    fn drop(&mut self) {
        ascendSimReset();
    }
}

pub fn configure(name: &str, value: &str) {
    let (name, value) = (CString::new(name).unwrap(), CString::new(value).unwrap());
    // SAFETY: both end with a zero byte.
    assert_eq!(unsafe { ascendSimConfigure(name.as_ptr(), value.as_ptr()) }, 0);
}

pub fn counter(name: &str) -> u64 {
    let name = CString::new(name).unwrap();
    let mut value = 0;
    // SAFETY: the text ends with a zero byte, the result is writable.
    assert_eq!(unsafe { ascendSimCounter(name.as_ptr(), &mut value) }, 0);
    value
}

pub fn fail_call(function: &str, nth: u32, code: i32) {
    let function = CString::new(function).unwrap();
    // SAFETY: the text ends with a zero byte.
    assert_eq!(unsafe { ascendSimFail(function.as_ptr(), nth, code) }, 0);
}

pub fn fail_task(name: &str, nth: u32, code: i32) {
    let name = CString::new(name).unwrap();
    // SAFETY: the text ends with a zero byte.
    assert_eq!(unsafe { ascendSimFailTask(name.as_ptr(), nth, code) }, 0);
}

/// The text of the last failure.
pub fn message() -> String {
    let text = aclGetRecentErrMsg();
    if text.is_null() {
        return String::new();
    }
    // SAFETY: it ends with a zero byte and is valid until the next call.
    unsafe { CStr::from_ptr(text) }.to_str().unwrap().to_owned()
}

pub fn stream() -> aclrtStream {
    let mut stream = null_mut();
    // SAFETY: the result is writable.
    assert_eq!(unsafe { aclrtCreateStream(&mut stream) }, 0, "{}", message());
    stream
}

pub fn stream_with(flags: u32) -> aclrtStream {
    let mut stream = null_mut();
    // SAFETY: the result is writable.
    assert_eq!(unsafe { aclrtCreateStreamWithConfig(&mut stream, 0, flags) }, 0, "{}", message());
    stream
}

/// An Ex event with the sync flag.
pub fn event() -> aclrtEvent {
    let mut event = null_mut();
    // SAFETY: the result is writable.
    assert_eq!(unsafe { aclrtCreateEventExWithFlag(&mut event, 1) }, 0, "{}", message());
    event
}

/// An event of the first family with these flags.
pub fn flag_event(flags: u32) -> aclrtEvent {
    let mut event = null_mut();
    // SAFETY: the result is writable.
    assert_eq!(unsafe { aclrtCreateEventWithFlag(&mut event, flags) }, 0, "{}", message());
    event
}

pub fn record(event: aclrtEvent, stream: aclrtStream) -> i32 {
    // SAFETY: any handle may be passed.
    unsafe { aclrtRecordEvent(event, stream) }
}

pub fn wait(stream: aclrtStream, event: aclrtEvent) -> i32 {
    // SAFETY: any handle may be passed.
    unsafe { aclrtStreamWaitEvent(stream, event) }
}

pub fn sync(stream: aclrtStream) -> i32 {
    // SAFETY: any handle may be passed.
    unsafe { aclrtSynchronizeStream(stream) }
}

pub fn begin(stream: aclrtStream, mode: u32) -> i32 {
    // SAFETY: any handle may be passed.
    unsafe { aclmdlRICaptureBegin(stream, mode) }
}

/// Ends a capture: the code and the graph.
pub fn end(stream: aclrtStream) -> (i32, aclmdlRI) {
    let mut graph = null_mut();
    // SAFETY: the result is writable.
    let code = unsafe { aclmdlRICaptureEnd(stream, &mut graph) };
    (code, graph)
}

pub fn execute(graph: aclmdlRI, stream: aclrtStream) -> i32 {
    // SAFETY: any handle may be passed.
    unsafe { aclmdlRIExecuteAsync(graph, stream) }
}

/// Device memory.
pub fn device_memory(bytes: usize) -> *mut c_void {
    let mut pointer = null_mut();
    // SAFETY: the result is writable.
    assert_eq!(unsafe { aclrtMalloc(&mut pointer, bytes, 0) }, 0, "{}", message());
    pointer
}

/// Pinned host memory.
pub fn pinned(bytes: usize) -> *mut c_void {
    let mut pointer = null_mut();
    // SAFETY: the result is writable.
    assert_eq!(unsafe { aclrtMallocHost(&mut pointer, bytes) }, 0, "{}", message());
    pointer
}

/// Submits work as a kernel called `name`.
pub fn task(
    stream: aclrtStream,
    name: &str,
    work: impl Fn() -> Result<(), String> + Send + Sync + 'static,
) -> i32 {
    submit(stream, Task::new(name, Kind::Kernel, work))
}

/// What happened, in order.
#[derive(Clone, Default)]
pub struct Log(Arc<Mutex<Vec<String>>>);

impl Log {
    /// Work that writes `line`.
    pub fn writer(&self, line: &str) -> impl Fn() -> Result<(), String> + Send + Sync + 'static {
        let (log, line) = (self.clone(), line.to_owned());
        move || {
            log.0.lock().unwrap().push(line.clone());
            Ok(())
        }
    }

    /// Submits work that writes `line`.
    pub fn task(&self, stream: aclrtStream, line: &str) -> i32 {
        task(stream, line, self.writer(line))
    }

    /// Takes the lines.
    pub fn take(&self) -> Vec<String> {
        std::mem::take(&mut *self.0.lock().unwrap())
    }
}

/// A door that a task waits at.
#[derive(Clone, Default)]
pub struct Door(Arc<(Mutex<bool>, Condvar)>);

impl Door {
    /// Submits a task that waits until the door is open.
    pub fn block(&self, stream: aclrtStream) {
        let door = self.clone();
        let code = task(stream, "door", move || {
            let (open, changed) = &*door.0;
            let mut open = open.lock().unwrap();
            while !*open {
                open = changed.wait(open).unwrap();
            }
            Ok(())
        });
        assert_eq!(code, 0, "{}", message());
    }

    pub fn open(&self) {
        *self.0.0.lock().unwrap() = true;
        self.0.1.notify_all();
    }
}
