//! Calls of the runtime as results: a failure names the call, the code, what the vendor says about
//! it and what helps.

use acl::{Api, error_code, sys};
use std::{ffi::CStr, fmt};

/// A call that failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AclError {
    /// The function.
    pub call: &'static str,
    /// What it returned.
    pub code: sys::aclError,
    /// The vendor's message about the last failure of this thread; may be empty.
    pub message: String,
}

impl fmt::Display for AclError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { call, code, message } = self;
        let known = error_code(*code);
        write!(f, "{call} failed with {code}")?;
        if let Some(known) = known {
            write!(f, " ({}): {}", known.name, known.meaning)?;
        }
        if !message.is_empty() {
            write!(f, "; the runtime says: {message}")?;
        }
        match known.filter(|k| !k.advice.is_empty()) {
            Some(known) => write!(f, "; {}", known.advice),
            None => Ok(()),
        }
    }
}

impl std::error::Error for AclError {}

impl AclError {
    /// A function that this release does not have.
    pub(crate) fn unsupported(call: &'static str) -> Self {
        let message = "this release of the runtime does not have it".to_owned();
        Self { call, code: sys::ACL_ERROR_API_NOT_SUPPORT, message }
    }
}

/// What the runtime says about the last failure of this thread, on one line.
fn recent_message(api: &Api) -> String {
    // SAFETY: the function takes nothing; its text, if any, ends with a zero byte and is read at once.
    let text = unsafe {
        let text = (api.aclGetRecentErrMsg)();
        if text.is_null() {
            None
        } else {
            Some(CStr::from_ptr(text).to_string_lossy().into_owned())
        }
    };
    text.unwrap_or_default().split_whitespace().collect::<Vec<_>>().join(" ")
}

/// `Ok` when `code` is success.
///
/// # Errors
/// Otherwise, with the vendor's recent message.
pub(crate) fn check(api: &Api, call: &'static str, code: sys::aclError) -> Result<(), AclError> {
    if code == sys::ACL_SUCCESS {
        return Ok(());
    }
    Err(AclError { call, code, message: recent_message(api) })
}

/// `pointer` when it is not null.
///
/// # Errors
/// Otherwise, with the vendor's recent message.
pub(crate) fn made<T>(api: &Api, call: &'static str, pointer: *mut T) -> Result<*mut T, AclError> {
    if !pointer.is_null() {
        return Ok(pointer);
    }
    Err(AclError { call, code: sys::ACL_ERROR_FAILURE, message: recent_message(api) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_says_what_was_called_and_what_helps() {
        let error = AclError {
            call: "aclrtCreateStream",
            code: 207008,
            message: "Alloc sq cq fail".into(),
        };
        let text = error.to_string();
        let start = "aclrtCreateStream failed with 207008 (ACL_ERROR_RT_NO_STREAM_RESOURCE): the device has \
                     no stream left; the runtime says: Alloc sq cq fail; serve fewer sizes";
        assert!(text.starts_with(start), "{text}");
        let unknown = AclError { call: "aclInit", code: -7, message: String::new() };
        assert_eq!(unknown.to_string(), "aclInit failed with -7");
    }
}
