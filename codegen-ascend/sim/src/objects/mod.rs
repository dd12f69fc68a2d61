//! Objects of the operator interface: descriptions of tensors, arrays and scalars on the host, and
//! executors between the two phases of an operator.
//!
//! A handle is a number that is given out once and never again, so a handle that is used after its
//! object was destroyed is always found out. Parameters that take objects take them by value in the
//! first phase: what is destroyed later does not reach an executor.

pub mod arrays;
mod element;
pub mod executor;
pub mod tensor;

pub use element::Element;
pub use tensor::Tensor;

pub(crate) use arrays::{FLOATS, INTS, LISTS, SCALARS, members};
pub(crate) use executor::{EXECUTORS, Executor, launch};
pub(crate) use tensor::{TENSORS, dense};

use crate::{
    call,
    error::{Failure, code},
};
use acl::Release;
use std::{
    collections::HashMap,
    sync::{Mutex, MutexGuard, PoisonError},
};

/// A parameter is a null pointer.
pub const NULL_POINTER: i32 = 161001;
/// A parameter is not what the operator takes.
pub const INVALID_PARAMETER: i32 = 161002;
/// The operator itself is at fault.
pub const INNER: i32 = 561000;
/// Sizes or attributes that the operator cannot work with.
pub const TILING: i32 = 561002;
/// An executor that is none, or no longer.
pub const NO_EXECUTOR: i32 = 561102;
/// A kernel met something it cannot go on with while it ran.
pub const KERNEL_EXCEPTION: i32 = code::AICORE_EXCEPTION;

/// Why a call failed: the code that the interface documents, and what is wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// One of the codes of the interface.
    pub code: i32,
    /// What is wrong, and with which parameter.
    pub message: String,
}

impl Fault {
    /// A parameter that breaks a rule.
    pub fn invalid(message: impl Into<String>) -> Self {
        Self { code: INVALID_PARAMETER, message: message.into() }
    }

    /// Something that a kernel finds while it runs.
    pub fn exception(message: impl Into<String>) -> Self {
        Self { code: KERNEL_EXCEPTION, message: message.into() }
    }

    /// The same fault, said to be one of `who`.
    #[must_use]
    pub fn of(self, who: &str) -> Self {
        Self { message: format!("{who}: {}", self.message), ..self }
    }
}

impl From<Fault> for Failure {
    fn from(fault: Fault) -> Self {
        Failure::new(fault.code, fault.message)
    }
}

/// An exported function called `who`: counted, made to fail where that was asked for, and its failure
/// kept for whoever asks.
pub(crate) fn status(who: &'static str, body: impl FnOnce() -> Result<(), Fault>) -> i32 {
    call::enter(who, Release::V8_1, || body().map_err(|f| f.of(who).into()))
}

/// As [`status`], of a function that returns a new object, or null.
pub(crate) fn creation<P>(
    who: &'static str,
    body: impl FnOnce() -> Result<*mut P, Fault>,
) -> *mut P {
    let mut created = std::ptr::null_mut();
    status(who, || {
        created = body()?;
        Ok(())
    });
    created
}

/// Live objects of one kind.
pub(crate) struct Handles<T> {
    what: &'static str,
    /// The name they are counted under.
    plural: &'static str,
    state: Mutex<State<T>>,
}

struct State<T> {
    /// Handles given out so far.
    given: usize,
    live: Option<HashMap<usize, T>>,
}

/// Handles are multiples of this, so that they look like addresses and cannot be mistaken for sizes.
const HANDLE_STEP: usize = 64;

impl<T> Handles<T> {
    /// No objects of a kind called `what`, one of them, and `plural`, whose handles start at `base`.
    pub(crate) const fn new(what: &'static str, plural: &'static str, base: usize) -> Self {
        Self { what, plural, state: Mutex::new(State { given: base, live: None }) }
    }

    fn lock(&self) -> MutexGuard<'_, State<T>> {
        // A panic between two statements of a critical section cannot leave the map half changed.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keeps `object` and returns its handle.
    pub(crate) fn insert<P>(&self, object: T) -> *mut P {
        call::live(self.plural, 1);
        let mut state = self.lock();
        state.given += HANDLE_STEP;
        let handle = state.given;
        state.live.get_or_insert_default().insert(handle, object);
        std::ptr::without_provenance_mut(handle)
    }

    /// What `read` makes of the object behind `handle`.
    pub(crate) fn with<P, R>(
        &self,
        handle: *const P,
        read: impl FnOnce(&mut T) -> R,
    ) -> Result<R, Fault> {
        let mut state = self.lock();
        match state.live.get_or_insert_default().get_mut(&handle.addr()) {
            Some(object) => Ok(read(object)),
            None => Err(self.unknown(handle.addr(), state.given)),
        }
    }

    /// Takes the object behind `handle`; the handle is dead from then on.
    pub(crate) fn remove<P>(&self, handle: *const P) -> Result<T, Fault> {
        let mut state = self.lock();
        let removed = state.live.get_or_insert_default().remove(&handle.addr());
        call::live(self.plural, -i64::from(removed.is_some()));
        removed.ok_or_else(|| self.unknown(handle.addr(), state.given))
    }

    fn clear(&self) {
        self.lock().live = None;
    }

    fn unknown(&self, handle: usize, given: usize) -> Fault {
        let what = self.what;
        if handle == 0 {
            Fault { code: NULL_POINTER, message: format!("the {what} is null") }
        } else if handle <= given && handle.is_multiple_of(HANDLE_STEP) {
            Fault::invalid(format!("the {what} {handle:#x} was destroyed before"))
        } else {
            Fault::invalid(format!("{handle:#x} is not a {what}"))
        }
    }
}

/// Forgets every object; their handles stay dead.
pub(crate) fn clear() {
    TENSORS.clear();
    INTS.clear();
    FLOATS.clear();
    SCALARS.clear();
    LISTS.clear();
    EXECUTORS.clear();
}
