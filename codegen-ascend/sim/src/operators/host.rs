//! What operators need of the runtime half.

use crate::objects::Fault;
use std::{ffi::c_void, sync::Arc};

/// Keeps `message` for `aclGetRecentErrMsg`.
pub(crate) fn set_recent(message: &str) {
    RECENT.set(message.to_owned());
}

std::thread_local! {
    static RECENT: std::cell::RefCell<String> = const { std::cell::RefCell::new(String::new()) };
}

/// Takes the message of the last failure on this thread.
pub fn take_recent() -> String {
    RECENT.take()
}

/// That `bytes` bytes from `address` lie in one live allocation on the device.
pub(crate) fn find(_address: usize, _bytes: usize) -> Result<(), Fault> {
    Ok(())
}

/// Queues `work` on a stream.
pub(crate) fn submit(
    _stream: *mut c_void,
    _name: &'static str,
    work: Arc<dyn Fn() -> Result<(), Fault> + Send + Sync>,
) -> Result<(), Fault> {
    work()
}
