//! Error codes of the interface, and the text of the last failure of each thread.

use acl::sys::aclError;
use std::{
    cell::{Cell, RefCell},
    ffi::{CString, c_char},
    ptr,
};

/// Codes by their documented meaning. The grouping is the vendor's: 1xxxxx the caller's fault, 2xxxxx a
/// resource ran out or is not supported, 5xxxxx the device or the runtime failed.
pub mod code {
    /// Names for numbers.
    macro_rules! codes {
        ($($(#[$doc:meta])* $name:ident = $value:literal;)*) => { $($(#[$doc])* pub const $name: i32 = $value;)* };
    }
    codes! {
        /// A null or nonsensical argument of the outer layer.
        INVALID_PARAM = 100000;
        /// Before `aclInit` or after `aclFinalize`.
        UNINITIALIZE = 100001;
        /// `aclInit` twice.
        REPEAT_INITIALIZE = 100002;
        /// `aclFinalize` twice.
        REPEAT_FINALIZE = 100037;
        /// The release selected lacks the function.
        API_NOT_SUPPORT = 200001;
        /// An argument that the runtime refuses.
        PARAM = 107000;
        /// No such device.
        DEVICE = 107001;
        /// No context is current on this thread.
        CONTEXT_NULL = 107002;
        /// The stream does not belong to the current context.
        STREAM_CONTEXT = 107003;
        /// The stream is not bound to the model.
        STREAM_MODEL = 107005;
        /// The event carries no time.
        EVENT_TIMESTAMP = 107006;
        /// A file cannot be read.
        FILE_OPEN = 107009;
        /// The memory is of another kind than the call says.
        MEMORY_TYPE = 107016;
        /// A handle that was never given or is destroyed.
        INVALID_HANDLE = 107017;
        /// The stream was aborted.
        STREAM_ABORT = 107023;
        /// A dependency between captured and uncaptured work.
        CAPTURE_DEPENDENCY = 107024;
        /// A stream that took part in a capture does not lead back to its origin.
        STREAM_UNJOINED = 107025;
        /// The stream is being captured.
        STREAM_CAPTURED = 107027;
        /// The event is part of a capture.
        EVENT_CAPTURED = 107028;
        /// The stream is not being captured.
        STREAM_NOT_CAPTURED = 107029;
        /// The mode of a capture forbids the call.
        CAPTURE_MODE = 107030;
        /// The default stream would take part in a capture.
        CAPTURE_IMPLICIT = 107031;
        /// Two captures depend on each other.
        CAPTURE_CONFLICT = 107032;
        /// The task group is not in the state that the call needs.
        GROUP_STATUS = 107033;
        /// A task group was left open.
        GROUP_INTERRUPTED = 107034;
        /// The capture was begun on another stream.
        CAPTURE_NOT_BEGUN = 107036;
        /// The graph is in flight.
        MODEL_RUNNING = 107037;
        /// The capture was begun on another thread.
        CAPTURE_THREAD = 107038;
        /// The driver lacks the feature.
        FEATURE_UNSUPPORTED = 207000;
        /// Host memory ran out.
        HOST_MEMORY = 207001;
        /// All events are taken.
        NO_EVENT = 207007;
        /// All streams are taken.
        NO_STREAM = 207008;
        /// Device memory ran out.
        DEVICE_MEMORY = 207018;
        /// The captured task cannot become the one that is given.
        TASK_UPDATE = 207019;
        /// The runtime itself failed.
        INTERNAL = 507000;
        /// The binary is for another chip.
        SOC_VERSION = 507008;
        /// The kind of task is not allowed here.
        TASK_TYPE = 507009;
        /// A kernel broke a rule of the chip.
        AICORE_EXCEPTION = 507015;
        /// The binary has no such kernel.
        KERNEL_LOOKUP = 507027;
        /// The stream did not finish in time.
        STREAM_TIMEOUT = 507046;
        /// The event did not happen in time.
        EVENT_TIMEOUT = 507047;
        /// An illegal call during the capture spoiled it.
        CAPTURE_INVALIDATED = 507903;
    }
}

/// A refused call: the code it returns, and the text that `aclGetRecentErrMsg` gives.
#[derive(Clone, Debug)]
pub struct Failure {
    /// What the call returns.
    pub code: aclError,
    /// What was wrong, with the names and numbers that tell.
    pub message: String,
}

/// Outcome of a call.
pub type Result<T = ()> = std::result::Result<T, Failure>;

impl Failure {
    /// A refusal.
    pub fn new(code: aclError, message: impl Into<String>) -> Self {
        Self { code, message: message.into() }
    }
}

/// A refusal as a result.
///
/// # Errors
/// Always.
pub fn fail<T>(code: aclError, message: impl Into<String>) -> Result<T> {
    Err(Failure::new(code, message))
}

thread_local! {
    static RECENT: RefCell<Option<String>> = const { RefCell::new(None) };
    /// What was last handed out: it stays valid until the next reading on this thread.
    static HANDED_OUT: RefCell<Option<CString>> = const { RefCell::new(None) };
    static LAST_CODE: Cell<aclError> = const { Cell::new(0) };
}

/// Sets the text of this thread's last failure.
pub fn set_recent(message: impl Into<String>) {
    RECENT.with_borrow_mut(|recent| *recent = Some(message.into()));
}

/// Remembers a failure and returns its code.
pub fn report(failure: Failure) -> aclError {
    LAST_CODE.set(failure.code);
    set_recent(failure.message);
    failure.code
}

/// Takes the text of this thread's last failure.
pub fn take_recent() -> Option<String> {
    RECENT.with_borrow_mut(Option::take)
}

/// This thread's last code; `clear` also forgets it.
pub(crate) fn last_code(clear: bool) -> aclError {
    let code = LAST_CODE.get();
    if clear {
        LAST_CODE.set(0);
    }
    code
}

/// The text of this thread's last failure as C text, or null; reading it consumes it.
pub(crate) fn recent_text() -> *const c_char {
    let Some(text) = take_recent() else { return ptr::null() };
    let text = CString::new(text.replace('\0', " ")).unwrap_or_default();
    HANDED_OUT.with_borrow_mut(|slot| slot.insert(text).as_ptr())
}
