//! What the runtime makes, owned: each object holds the session, is destroyed once, and in the right
//! order because what needs it holds it.
//!
//! Objects may move between threads: before each call the device is made current on the thread that
//! calls. What is bound to a thread, an open capture, begins and ends inside one function
//! (`capture::record`).

use super::{
    result::{AclError, check},
    session::Session,
};
use acl::sys;
use std::{
    ffi::CString, os::unix::ffi::OsStrExt, path::Path, ptr::NonNull, sync::Arc, time::Duration,
};

/// A handle of the runtime. It is only passed back to it, from any thread with the right context.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Raw(pub(crate) *mut core::ffi::c_void);

// SAFETY: a handle is a number to this program, and the runtime takes it on every thread with the
// context of its device.
unsafe impl Send for Raw {}
// SAFETY: as above.
unsafe impl Sync for Raw {}

/// Milliseconds as waiting functions take them; `None` is for ever.
fn milliseconds(timeout: Option<Duration>) -> i32 {
    timeout.map_or(-1, |t| i32::try_from(t.as_millis().max(1)).unwrap_or(i32::MAX))
}

macro_rules! destroyed_by {
    ($object:ident, $call:ident) => {
        impl Drop for $object {
            fn drop(&mut self) {
                let raw = self.raw.0;
                // SAFETY: `raw` came from the function that makes such an object and is destroyed once.
                self.session.destroy(stringify!($call), |api| unsafe { (api.$call)(raw) });
            }
        }
    };
}

/// A queue of work.
#[derive(Debug)]
pub(crate) struct Stream {
    raw: Raw,
    session: Arc<Session>,
}

destroyed_by!(Stream, aclrtDestroyStream);

impl Stream {
    pub(crate) fn new(session: &Arc<Session>) -> Result<Self, AclError> {
        Self::with_flags(session, sys::ACL_STREAM_FAST_LAUNCH | sys::ACL_STREAM_FAST_SYNC)
    }

    pub(crate) fn with_flags(session: &Arc<Session>, flags: u32) -> Result<Self, AclError> {
        session.enter()?;
        let mut raw = std::ptr::null_mut();
        // SAFETY: `raw` is written during the call; the device is current.
        let code = unsafe { (session.api.aclrtCreateStreamWithConfig)(&mut raw, 0, flags) };
        check(&session.api, "aclrtCreateStreamWithConfig", code)?;
        Ok(Self { raw: Raw(raw), session: session.clone() })
    }

    pub(crate) fn raw(&self) -> sys::aclrtStream {
        self.raw.0
    }

    /// Waits until all work put on it is done.
    pub(crate) fn synchronize(&self, timeout: Option<Duration>) -> Result<(), AclError> {
        let api = &self.session.api;
        // SAFETY: the stream exists; the caller made the device current.
        let code =
            unsafe { (api.aclrtSynchronizeStreamWithTimeout)(self.raw.0, milliseconds(timeout)) };
        check(api, "aclrtSynchronizeStreamWithTimeout", code)
    }

    /// Waits until nothing runs on it, on the way out of something that failed; whether that is so.
    pub(crate) fn drain(&self, timeout: Option<Duration>) -> bool {
        // The first failure may be that of the work itself, which is over then.
        self.synchronize(timeout).is_ok() || self.synchronize(timeout).is_ok()
    }

    /// Makes later work of this stream wait for what `event` marks.
    pub(crate) fn wait(&self, event: &Event) -> Result<(), AclError> {
        let api = &self.session.api;
        // SAFETY: both exist; the caller made the device current.
        let code = unsafe { (api.aclrtStreamWaitEvent)(self.raw.0, event.raw.0) };
        check(api, "aclrtStreamWaitEvent", code)
    }

    /// Copies between memories in the order of the stream.
    ///
    /// # Safety
    /// Both ranges exist until the copy is done; `kind` fits them.
    pub(crate) unsafe fn copy(
        &self,
        to: *mut core::ffi::c_void,
        from: *const core::ffi::c_void,
        bytes: usize,
        kind: sys::aclrtMemcpyKind,
    ) -> Result<(), AclError> {
        let api = &self.session.api;
        // SAFETY: the caller's promise.
        let code = unsafe { (api.aclrtMemcpyAsync)(to, bytes, from, bytes, kind, self.raw.0) };
        check(api, "aclrtMemcpyAsync", code)
    }
}

/// A point in the work of a stream. Usable again without a reset.
#[derive(Debug)]
pub(crate) struct Event {
    raw: Raw,
    session: Arc<Session>,
}

destroyed_by!(Event, aclrtDestroyEvent);

impl Event {
    pub(crate) fn new(session: &Arc<Session>) -> Result<Self, AclError> {
        session.enter()?;
        let mut raw = std::ptr::null_mut();
        // SAFETY: `raw` is written during the call; the device is current.
        let code =
            unsafe { (session.api.aclrtCreateEventExWithFlag)(&mut raw, sys::ACL_EVENT_SYNC) };
        check(&session.api, "aclrtCreateEventExWithFlag", code)?;
        Ok(Self { raw: Raw(raw), session: session.clone() })
    }

    /// Marks the work of `stream` so far.
    pub(crate) fn record(&self, stream: &Stream) -> Result<(), AclError> {
        let api = &self.session.api;
        // SAFETY: both exist; the caller made the device current.
        let code = unsafe { (api.aclrtRecordEvent)(self.raw.0, stream.raw.0) };
        check(api, "aclrtRecordEvent", code)
    }

    /// Waits for what it marks.
    pub(crate) fn synchronize(&self, timeout: Option<Duration>) -> Result<(), AclError> {
        let api = &self.session.api;
        if let (Some(wait), Some(_)) = (api.aclrtSynchronizeEventWithTimeout, timeout) {
            // SAFETY: the event exists; the caller made the device current.
            let code = unsafe { wait(self.raw.0, milliseconds(timeout)) };
            return check(api, "aclrtSynchronizeEventWithTimeout", code);
        }
        // SAFETY: as above.
        check(api, "aclrtSynchronizeEvent", unsafe { (api.aclrtSynchronizeEvent)(self.raw.0) })
    }
}

/// Device memory.
#[derive(Debug)]
pub(crate) struct DeviceMemory {
    raw: Raw,
    bytes: u64,
    session: Arc<Session>,
}

destroyed_by!(DeviceMemory, aclrtFree);

impl DeviceMemory {
    /// Memory of `bytes` bytes, in large pages where there are any.
    pub(crate) fn new(session: &Arc<Session>, bytes: u64) -> Result<Self, AclError> {
        session.enter()?;
        let mut raw = std::ptr::null_mut();
        // Nothing may be asked for: the runtime refuses it.
        let size = bytes.max(64) as usize;
        let policy = sys::ACL_MEM_MALLOC_HUGE_FIRST;
        // SAFETY: `raw` is written during the call; the device is current.
        let code = unsafe { (session.api.aclrtMalloc)(&mut raw, size, policy) };
        check(&session.api, "aclrtMalloc", code)?;
        Ok(Self { raw: Raw(raw), bytes, session: session.clone() })
    }

    pub(crate) fn address(&self) -> u64 {
        self.raw.0.addr() as u64
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Where byte `offset` lies.
    pub(crate) fn at(&self, offset: u64) -> *mut core::ffi::c_void {
        self.raw.0.wrapping_byte_add(offset as usize)
    }

    /// Makes it zero and waits for it.
    pub(crate) fn zero(&self) -> Result<(), AclError> {
        if self.bytes == 0 {
            return Ok(());
        }
        self.session.enter()?;
        let api = &self.session.api;
        let bytes = self.bytes as usize;
        // SAFETY: the memory is that long.
        check(api, "aclrtMemset", unsafe { (api.aclrtMemset)(self.raw.0, bytes, 0, bytes) })
    }
}

/// Host memory that the device copies from and to by itself.
#[derive(Debug)]
pub(crate) struct PinnedMemory {
    raw: Raw,
    start: NonNull<u8>,
    bytes: usize,
    session: Arc<Session>,
}

// SAFETY: it is plain memory with one owner.
unsafe impl Send for PinnedMemory {}

destroyed_by!(PinnedMemory, aclrtFreeHost);

impl PinnedMemory {
    pub(crate) fn new(session: &Arc<Session>, bytes: usize) -> Result<Self, AclError> {
        session.enter()?;
        let mut raw = std::ptr::null_mut();
        let size = bytes.max(64);
        // SAFETY: `raw` is written during the call; the device is current.
        let code = unsafe { (session.api.aclrtMallocHost)(&mut raw, size) };
        check(&session.api, "aclrtMallocHost", code)?;
        let start = NonNull::new(raw.cast::<u8>()).ok_or_else(|| AclError {
            call: "aclrtMallocHost",
            code: sys::ACL_ERROR_BAD_ALLOC,
            message: "it gave no memory".to_owned(),
        })?;
        // SAFETY: the memory is at least that long.
        unsafe { start.as_ptr().write_bytes(0, bytes) };
        Ok(Self { raw: Raw(raw), start, bytes, session: session.clone() })
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        // SAFETY: the memory is that long and was made zero; the device writes it only during calls
        // that are waited for before this borrow.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.bytes) }
    }

    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `bytes`; the exclusive borrow is of the only owner.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.bytes) }
    }

    /// Where byte `offset` lies.
    pub(crate) fn at(&self, offset: usize) -> *mut core::ffi::c_void {
        self.raw.0.wrapping_byte_add(offset)
    }
}

/// A loaded kernel binary.
#[derive(Debug)]
pub(crate) struct Binary {
    raw: Raw,
    session: Arc<Session>,
}

destroyed_by!(Binary, aclrtBinaryUnLoad);

impl Binary {
    /// Loads the binary at `path`, which is absolute.
    pub(crate) fn load(session: &Arc<Session>, path: &Path) -> Result<Self, AclError> {
        session.enter()?;
        let text = c_text("aclrtBinaryLoadFromFile", path.as_os_str().as_bytes())?;
        let mut raw = std::ptr::null_mut();
        let api = &session.api;
        // SAFETY: the path ends with a zero byte, options may be left out, and `raw` is written
        // during the call.
        let code =
            unsafe { (api.aclrtBinaryLoadFromFile)(text.as_ptr(), std::ptr::null_mut(), &mut raw) };
        check(api, "aclrtBinaryLoadFromFile", code)?;
        Ok(Self { raw: Raw(raw), session: session.clone() })
    }

    /// Its kernel called `name`. Valid for as long as the binary is loaded.
    pub(crate) fn function(&self, name: &str) -> Result<Raw, AclError> {
        let text = c_text("aclrtBinaryGetFunction", name.as_bytes())?;
        let mut raw = std::ptr::null_mut();
        let api = &self.session.api;
        // SAFETY: the name ends with a zero byte, the binary is loaded, `raw` is written during the call.
        let code = unsafe { (api.aclrtBinaryGetFunction)(self.raw.0, text.as_ptr(), &mut raw) };
        check(api, "aclrtBinaryGetFunction", code)?;
        Ok(Raw(raw))
    }
}

fn c_text(call: &'static str, text: &[u8]) -> Result<CString, AclError> {
    CString::new(text).map_err(|e| AclError {
        call,
        code: sys::ACL_ERROR_INVALID_PARAM,
        message: e.to_string(),
    })
}

/// A recorded sequence of work.
#[derive(Debug)]
pub(crate) struct Sequence {
    raw: Raw,
    session: Arc<Session>,
}

impl Sequence {
    /// Owns `raw`, which came from the end of a capture or the begin of a build.
    pub(crate) fn own(session: &Arc<Session>, raw: sys::aclmdlRI) -> Self {
        Self { raw: Raw(raw), session: session.clone() }
    }

    pub(crate) fn raw(&self) -> sys::aclmdlRI {
        self.raw.0
    }

    /// Puts it on `stream`.
    pub(crate) fn execute(&self, stream: &Stream) -> Result<(), AclError> {
        let api = &self.session.api;
        // SAFETY: both exist; the caller made the device current.
        let code = unsafe { (api.aclmdlRIExecuteAsync)(self.raw.0, stream.raw.0) };
        check(api, "aclmdlRIExecuteAsync", code)
    }

    /// Destroys it; whether that went well. It must not be running.
    pub(crate) fn destroy(self) -> bool {
        let raw = self.raw.0;
        // SAFETY: `raw` came from the runtime and is destroyed once, as this takes the only owner.
        self.session.destroy("aclmdlRIDestroy", |api| unsafe { (api.aclmdlRIDestroy)(raw) })
    }
}
