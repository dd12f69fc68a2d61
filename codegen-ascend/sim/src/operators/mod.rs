//! The operator library: both phases of every operator of the table, in plain arithmetic on the
//! memory that its tensors describe.
//!
//! The first phase takes its parameters by value and checks them against what is documented for
//! Atlas A2 and A3. The second runs the same function again on the stream and then its work, so what
//! is computed is what was checked. Matrix products add in the order of K, so that a row comes out
//! the same whatever rows are beside it.

mod access;
mod activation;
mod arithmetic;
mod call;
mod combine;
mod decode;
mod dispatch;
mod gating;
mod glue;
mod grouped;
mod groups;
mod matmul;
mod mla;
mod prepared;
mod quant_matmul;
mod sparse;

pub(crate) mod host;

pub use call::{Argument, Call};

pub(crate) use prepared::{Outcome, Prepared};

use crate::objects::{EXECUTORS, Executor, Fault, INNER, NULL_POINTER, launch as second_phase};
use acl::{Release, sys, typed};
use std::ffi::c_void;

/// An operator: checks a call and says what it does.
type Implementation = fn(&Call) -> Outcome<'_>;

/// The operators of this library by name.
const IMPLEMENTATIONS: &[&[(&str, Implementation)]] = &[
    activation::OPERATORS,
    combine::OPERATORS,
    dispatch::OPERATORS,
    gating::OPERATORS,
    glue::OPERATORS,
    grouped::OPERATORS,
    matmul::OPERATORS,
    mla::OPERATORS,
    quant_matmul::OPERATORS,
    sparse::OPERATORS,
];

fn implementation(name: &str) -> Option<Implementation> {
    IMPLEMENTATIONS.iter().flat_map(|m| m.iter()).find(|(n, _)| *n == name).map(|(_, f)| *f)
}

fn prepare(call: &Call) -> Outcome<'_> {
    let implementation = implementation(call.name).ok_or_else(|| Fault {
        code: INNER,
        message: "the software device does not implement it".to_owned(),
    })?;
    for tensor in call.tensors_of_all() {
        tensor.check()?;
    }
    implementation(call)
}

/// Does what `call` says, on memory that is checked first.
pub(crate) fn run(call: &Call) -> Result<(), Fault> {
    for tensor in call.tensors_of_all() {
        tensor.check_memory()?;
    }
    prepare(call)?.run()
}

/// The end of every first phase: checks the call and gives out an executor.
///
/// # Safety
/// Both results are null or may be written.
unsafe fn first_phase(
    (name, who, since): (&'static str, &'static str, Release),
    args: impl FnOnce() -> Result<Vec<Argument>, Fault>,
    workspace_size: *mut u64,
    executor: *mut *mut sys::aclOpExecutor,
) -> sys::aclnnStatus {
    let build = || {
        if workspace_size.is_null() || executor.is_null() {
            let message = "nowhere to write the workspace size or the executor".to_owned();
            return Err(Fault { code: NULL_POINTER, message });
        }
        let params = acl::operator(name).map_or(&[][..], |s| s.params);
        let call = Call { name, params, args: args()? };
        let workspace = prepare(&call)?.workspace;
        // SAFETY: the caller's promise; neither is null.
        unsafe {
            workspace_size.write(workspace);
            executor.write(EXECUTORS.insert(Executor::new(call, workspace)));
        }
        Ok(())
    };
    crate::call::enter(who, since, || build().map_err(|f| f.of(who).into()))
}

macro_rules! exports {
    ($($name:ident $since:ident ($($param:ident: $kind:ident),* $(,)?);)*) => {
        $(
            #[allow(non_snake_case, reason = "named like the operator")]
            mod $name {
                use super::*;

                const NAME: &str = stringify!($name);
                const PREPARE: &str = concat!("aclnn", stringify!($name), "GetWorkspaceSize");
                const LAUNCH: &str = concat!("aclnn", stringify!($name));
                const SINCE: Release = Release::$since;

                #[unsafe(export_name = concat!("aclnn", stringify!($name), "GetWorkspaceSize"))]
                pub(super) unsafe extern "C" fn prepare(
                    $($param: typed::$kind,)*
                    workspace_size: *mut u64,
                    executor: *mut *mut sys::aclOpExecutor,
                ) -> sys::aclnnStatus {
                    let args = || {
                        Ok(vec![$(
                            // SAFETY: the caller's promise about strings.
                            unsafe { decode::$kind(stringify!($param), $param)? }
                        ),*])
                    };
                    // SAFETY: the caller's promise about the results.
                    unsafe { first_phase((NAME, PREPARE, SINCE), args, workspace_size, executor) }
                }

                #[unsafe(export_name = concat!("aclnn", stringify!($name)))]
                pub(super) unsafe extern "C" fn launch(
                    workspace: *mut c_void,
                    workspace_size: u64,
                    executor: *mut sys::aclOpExecutor,
                    stream: *mut c_void,
                ) -> sys::aclnnStatus {
                    second_phase((NAME, LAUNCH, SINCE), workspace, workspace_size, executor, stream)
                }
            }
        )*

        /// The addresses of the two phases of the operator called `name`, for a host that is linked
        /// with the library instead of loading it.
        pub fn phases(name: &str) -> Option<(*const c_void, *const c_void)> {
            match name {
                $(stringify!($name) => {
                    Some(($name::prepare as *const c_void, $name::launch as *const c_void))
                })*
                _ => None,
            }
        }
    };
}

acl::for_each_operator!(exports);

#[cfg(test)]
mod tests {
    #[test]
    fn every_operator_of_the_table_is_implemented_and_no_other() {
        for signature in acl::OPERATORS {
            assert!(super::implementation(signature.name).is_some(), "{}", signature.name);
        }
        let mut names: Vec<_> = super::IMPLEMENTATIONS.iter().copied().flatten().collect();
        names.sort_by_key(|(name, _)| *name);
        assert!(names.windows(2).all(|pair| pair[0].0 != pair[1].0), "one is there twice");
        assert_eq!(names.len(), acl::OPERATORS.len());
    }
}
