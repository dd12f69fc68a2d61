//! What every exported function does first: it is counted, may be made to fail, and is refused when
//! the release selected lacks it.

use crate::{
    config,
    error::{Failure, Result, code, fail, report},
};
use acl::{Release, sys::aclError};
use std::{
    collections::BTreeMap,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{Mutex, MutexGuard, PoisonError},
};

#[derive(Default)]
struct Ledger {
    /// Calls of each exported function.
    calls: BTreeMap<&'static str, u64>,
    /// Faults to come.
    faults: Vec<Fault>,
    /// Everything else that is counted.
    counters: BTreeMap<&'static str, u64>,
    /// Live objects by type.
    live: BTreeMap<&'static str, i64>,
}

struct Fault {
    target: Target,
    /// Hits left until it strikes; 1 is the next.
    left: u32,
    code: aclError,
}

#[derive(PartialEq)]
enum Target {
    Function(String),
    Task(String),
}

static LEDGER: Mutex<Ledger> = Mutex::new(Ledger {
    calls: BTreeMap::new(),
    faults: Vec::new(),
    counters: BTreeMap::new(),
    live: BTreeMap::new(),
});

fn ledger() -> MutexGuard<'static, Ledger> {
    LEDGER.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Runs an exported function: counts it, fails it if a fault is due or if the release selected is
/// older than `since`, else runs `body`. A panic in it becomes an internal error.
pub fn enter(name: &'static str, since: Release, body: impl FnOnce() -> Result) -> aclError {
    let admitted = admit(name, since);
    let outcome = admitted.and_then(|()| {
        catch_unwind(AssertUnwindSafe(body)).unwrap_or_else(|_| {
            fail(code::INTERNAL, format!("{name}: the software device has a defect: it panicked"))
        })
    });
    outcome.map_or_else(report, |()| 0)
}

/// The part of [`enter`] before the body, for functions that return something else than a code.
///
/// # Errors
/// The injected code; 200001 when the release lacks the function.
pub fn admit(name: &'static str, since: Release) -> Result {
    let mut ledger = ledger();
    *ledger.calls.entry(name).or_default() += 1;
    let injected = strike(
        &mut ledger.faults,
        |target| matches!(target, Target::Function(wanted) if wanted == name),
    );
    drop(ledger);
    if let Some(code) = injected {
        return fail(code, format!("{name}: failure {code} injected by the test"));
    }
    if config::release() < since {
        return fail(code::API_NOT_SUPPORT, format!("{name}: the release selected lacks it"));
    }
    Ok(())
}

/// The fault that is due for a task of this name.
pub(crate) fn task_fault(name: &str) -> Option<Failure> {
    let code = strike(
        &mut ledger().faults,
        |target| matches!(target, Target::Task(wanted) if name.contains(wanted.as_str())),
    )?;
    Some(Failure::new(code, format!("task {name}: failure {code} injected by the test")))
}

fn strike(faults: &mut Vec<Fault>, hit: impl Fn(&Target) -> bool) -> Option<aclError> {
    let mut due = None;
    faults.retain_mut(|fault| {
        if !hit(&fault.target) {
            return true;
        }
        fault.left = fault.left.saturating_sub(1);
        if fault.left == 0 && due.is_none() {
            due = Some(fault.code);
            return false;
        }
        fault.left = fault.left.max(1);
        true
    });
    due
}

/// Makes the `nth` call from now of `function` return `code` and do nothing; 1 is the next call.
pub fn fail_call(function: &str, nth: u32, code: aclError) {
    let target = Target::Function(function.to_owned());
    ledger().faults.push(Fault { target, left: nth.max(1), code });
}

/// Makes the `nth` task from now whose name contains `name` fail on the device with `code`.
pub fn fail_task(name: &str, nth: u32, code: aclError) {
    ledger().faults.push(Fault { target: Target::Task(name.to_owned()), left: nth.max(1), code });
}

/// Adds to a counter.
pub fn count(counter: &'static str, amount: u64) {
    *ledger().counters.entry(counter).or_default() += amount;
}

/// Notes that `change` objects of a type came to live (or died, when negative).
pub fn live(kind: &'static str, change: i64) {
    *ledger().live.entry(kind).or_default() += change;
}

/// Number of live objects of a type.
pub fn live_count(kind: &str) -> i64 {
    ledger().live.get(kind).copied().unwrap_or(0)
}

/// Value of a counter: `calls/FUNCTION`, `live/TYPE`, or the name of any other counter.
pub fn counter(name: &str) -> u64 {
    let ledger = ledger();
    if let Some(function) = name.strip_prefix("calls/") {
        return ledger.calls.get(function).copied().unwrap_or(0);
    }
    if let Some(kind) = name.strip_prefix("live/") {
        return ledger.live.get(kind).map_or(0, |count| u64::try_from(*count).unwrap_or(0));
    }
    ledger.counters.get(name).copied().unwrap_or(0)
}

/// Everything counted, a line each: `live/TYPE N`, `NAME N`, `calls/FUNCTION N`.
pub fn report_text() -> String {
    let ledger = ledger();
    let live = ledger.live.iter().filter(|(_, count)| **count != 0);
    let live = live.map(|(kind, count)| format!("live/{kind} {count}\n"));
    let counters = ledger.counters.iter().map(|(name, count)| format!("{name} {count}\n"));
    let calls = ledger.calls.iter().map(|(name, count)| format!("calls/{name} {count}\n"));
    live.chain(counters).chain(calls).collect()
}

/// Forgets calls, counters and faults. Live objects are forgotten too: whoever calls this has
/// destroyed those of the runtime.
pub(crate) fn clear() {
    *ledger() = Ledger::default();
}

/// Declares exported functions. Each is written as `SINCE fn name(args) { body }`, where the body
/// evaluates to a [`Result`]; what it exports has the C signature and returns the code.
#[macro_export]
macro_rules! exports {
    ($($(#[$doc:meta])* $since:ident fn $name:ident($($arg:ident: $ty:ty),* $(,)?) $body:block)*) => {
        $(
            $(#[$doc])*
            ///
            /// # Safety
            /// Pointers must be valid for what the interface says of them.
            #[unsafe(no_mangle)]
            pub unsafe extern "C" fn $name($($arg: $ty),*) -> ::acl::sys::aclError {
                $crate::call::enter(stringify!($name), ::acl::Release::$since, || $body)
            }
        )*

        /// The functions of this module and the first release that has each.
        pub(crate) const EXPORTS: &[(&str, ::acl::Release)] =
            &[$((stringify!($name), ::acl::Release::$since)),*];
    };
}
