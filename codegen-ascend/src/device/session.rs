//! A device that is set up, and which thread it is current on.

use super::{
    library::Libraries,
    result::{AclError, check},
};
use acl::{Api, Release, sys};
use std::{
    cell::Cell,
    ffi::CStr,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
};

thread_local! {
    /// The session whose context is current on this thread; 0 when none is.
    static CURRENT: Cell<u64> = const { Cell::new(0) };
}

/// Numbers of sessions, from 1.
static SESSIONS: AtomicU64 = AtomicU64::new(1);

/// The runtime with one of its devices set up. Everything made on the device holds it, so that the
/// device is given back last.
#[derive(Debug)]
pub struct Session {
    number: u64,
    ordinal: i32,
    context: sys::aclrtContext,
    /// The functions of the runtime.
    pub(crate) api: Api,
    /// The open libraries.
    pub(crate) libraries: Libraries,
    /// Name of the chip.
    pub(crate) soc: String,
    /// Version of the interface.
    pub(crate) version: (i32, i32, i32),
}

// SAFETY: the context is only an argument of calls, which may come from any thread on which it was
// made current; `Session::enter` does that before every group of calls.
unsafe impl Send for Session {}
// SAFETY: as above; nothing is changed through a shared reference.
unsafe impl Sync for Session {}

/// Why a device cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// Libraries or functions are missing.
    #[error("{0}")]
    Library(String),
    /// A call failed.
    #[error(transparent)]
    Call(#[from] AclError),
}

/// Starts the runtime; doing so again is fine.
pub(crate) fn start(api: &Api) -> Result<(), AclError> {
    // SAFETY: no configuration is allowed.
    let code = unsafe { (api.aclInit)(std::ptr::null()) };
    if code == sys::ACL_ERROR_REPEAT_INITIALIZE {
        return Ok(());
    }
    check(api, "aclInit", code)
}

/// Version of the interface.
pub(crate) fn version(api: &Api) -> Result<(i32, i32, i32), AclError> {
    let mut version = (0, 0, 0);
    // SAFETY: the three are written during the call.
    let code = unsafe { (api.aclrtGetVersion)(&mut version.0, &mut version.1, &mut version.2) };
    check(api, "aclrtGetVersion", code)?;
    Ok(version)
}

/// Name of the chip of the current device; empty when the runtime does not tell.
pub(crate) fn soc(api: &Api) -> String {
    // SAFETY: a device is current; the text, if any, is of the library.
    unsafe {
        let name = (api.aclrtGetSocName)();
        if name.is_null() {
            String::new()
        } else {
            CStr::from_ptr(name).to_string_lossy().into_owned()
        }
    }
}

impl Session {
    /// Loads the runtime, the vendor's or the one at `path`, and sets up device `ordinal`.
    ///
    /// # Errors
    /// [`OpenError`]; nothing stays set up.
    pub fn open(path: Option<&Path>, ordinal: i32) -> Result<Arc<Self>, OpenError> {
        let libraries = Libraries::open(path);
        let mut api =
            libraries.api().map_err(|missing| OpenError::Library(libraries.failure(&missing)))?;
        start(&api)?;
        let version = version(&api)?;
        api.keep_until(Release::of_interface(version.0, version.1));
        // SAFETY: any number may be passed; a bad one is an error.
        check(&api, "aclrtSetDevice", unsafe { (api.aclrtSetDevice)(ordinal) })?;
        let mut context = std::ptr::null_mut();
        // SAFETY: `context` is written during the call.
        let code = unsafe { (api.aclrtGetCurrentContext)(&mut context) };
        let found = check(&api, "aclrtGetCurrentContext", code);
        let number = SESSIONS.fetch_add(1, Relaxed);
        let soc = soc(&api);
        // From here on, dropping it gives the device back.
        let session = Self { number, ordinal, context, api, libraries, soc, version };
        found?;
        CURRENT.set(number);
        tracing::info!(
            soc = session.soc,
            interface = format!("{}.{}.{}", version.0, version.1, version.2),
            release = session.release().name(),
            "device {ordinal} is set up"
        );
        Ok(Arc::new(session))
    }

    /// Name for reports: `ascend Ascend910B3, interface 1.16.0`.
    pub fn name(&self) -> String {
        let (major, minor, patch) = self.version;
        format!("ascend {}, interface {major}.{minor}.{patch}", self.soc)
    }

    /// The release of the toolkit, as far as the interface tells.
    pub fn release(&self) -> Release {
        Release::of_interface(self.version.0, self.version.1)
    }

    /// Makes the device current on this thread. Costs a comparison when it is.
    ///
    /// # Errors
    /// As `aclrtSetCurrentContext`.
    pub(crate) fn enter(&self) -> Result<(), AclError> {
        if CURRENT.get() == self.number {
            return Ok(());
        }
        // SAFETY: the context lives until the device is reset, when the session is dropped.
        let code = unsafe { (self.api.aclrtSetCurrentContext)(self.context) };
        check(&self.api, "aclrtSetCurrentContext", code)?;
        CURRENT.set(self.number);
        Ok(())
    }

    /// Calls `destroy` for something that is not needed any more; failing is logged, and what could
    /// not be destroyed is left to the end of the process. Returns whether it went well.
    pub(crate) fn destroy(
        &self,
        call: &'static str,
        destroy: impl FnOnce(&Api) -> sys::aclError,
    ) -> bool {
        let done = self.enter().and_then(|()| check(&self.api, call, destroy(&self.api)));
        if let Err(e) = &done {
            tracing::error!("{e}; it is left to the end of the process");
        }
        done.is_ok()
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        // SAFETY: takes back the `aclrtSetDevice` of `open`, once; what was made on the device held
        // this session and is gone.
        let code = unsafe { (self.api.aclrtResetDevice)(self.ordinal) };
        if let Err(e) = check(&self.api, "aclrtResetDevice", code) {
            tracing::error!("{e}; the device stays set up until the process ends");
        }
        if CURRENT.get() == self.number {
            CURRENT.set(0);
        }
    }
}
