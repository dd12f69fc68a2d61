//! Executors: an operator bound to its parameters, from its first phase until it is launched, or
//! until it is destroyed when it was made repeatable.

use super::{Fault, Handles, LISTS, NO_EXECUTOR, NULL_POINTER, TENSORS, status};
use crate::{
    call,
    operators::{Argument, Call, host, run},
};
use acl::{Release, sys};
use std::ffi::c_void;
use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

/// Live executors.
pub(crate) static EXECUTORS: Handles<Executor> =
    Handles::new("executor", "executors", 0x7e50_0000_0000);

/// What the first phase of an operator leaves for the second.
pub(crate) struct Executor {
    call: Arc<Call>,
    workspace: u64,
    repeatable: bool,
    alive: Arc<AtomicBool>,
}

/// The pattern of bytes that an operator leaves in its workspace.
const SCRATCH: u8 = 0xa5;
/// Alignment of a buffer that a host cuts out of a larger one.
const WORKSPACE_ALIGNMENT: usize = 64;

impl Executor {
    /// An executor for `call`, which asks for `workspace` bytes.
    pub(crate) fn new(call: Call, workspace: u64) -> Self {
        let alive = Arc::new(AtomicBool::new(true));
        Self { call: Arc::new(call), workspace, repeatable: false, alive }
    }
}

fn no_executor(handle: *const sys::aclOpExecutor, fault: Fault) -> Fault {
    if handle.is_null() { fault } else { Fault { code: NO_EXECUTOR, ..fault } }
}

/// The second phase of the operator called `name`, the symbol `who`, which `since` has.
pub(crate) fn launch(
    (name, who, since): (&'static str, &'static str, Release),
    workspace: *mut c_void,
    workspace_size: u64,
    executor: *mut sys::aclOpExecutor,
    stream: *mut c_void,
) -> sys::aclnnStatus {
    let submit = || {
        let (call, needed, repeatable, alive) = EXECUTORS
            .with(executor, |e| (e.call.clone(), e.workspace, e.repeatable, e.alive.clone()))
            .map_err(|f| no_executor(executor, f))?;
        if call.name != name {
            let message = format!("the executor is one of aclnn{}", call.name);
            return Err(Fault { code: NO_EXECUTOR, message });
        }
        let start = workspace.addr();
        if workspace_size < needed {
            return Err(Fault::invalid(format!(
                "a workspace of {workspace_size} bytes, where the first phase asked for {needed}"
            )));
        }
        if needed > 0 && start == 0 {
            let message = format!("the workspace of {needed} bytes is null");
            return Err(Fault { code: NULL_POINTER, message });
        }
        if needed > 0 && !start.is_multiple_of(WORKSPACE_ALIGNMENT) {
            return Err(Fault::invalid(format!(
                "the workspace {start:#x} is not aligned to {WORKSPACE_ALIGNMENT} bytes"
            )));
        }
        let scratch = workspace.expose_provenance();
        let work = move || {
            if repeatable && !alive.load(Ordering::Acquire) {
                return Err(Fault::exception("its executor was destroyed before it ran"));
            }
            if needed > 0 {
                host::find(scratch, needed as usize).map_err(|f| f.of("workspace"))?;
                // SAFETY: device memory of that size lies there.
                unsafe {
                    std::ptr::with_exposed_provenance_mut::<u8>(scratch)
                        .write_bytes(SCRATCH, needed as usize);
                }
            }
            run(&call)
        };
        host::submit(stream, who, work)?;
        if !repeatable {
            EXECUTORS.remove(executor)?;
        }
        Ok(())
    };
    call::enter(who, since, || submit().map_err(|f| f.of(who).into()))
}

/// Lets an executor be launched more than once; it has to be destroyed then.
///
/// # Safety
/// No pointers are followed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn aclSetAclOpExecutorRepeatable(
    executor: *mut sys::aclOpExecutor,
) -> sys::aclnnStatus {
    status("aclSetAclOpExecutorRepeatable", || {
        let set = EXECUTORS.with(executor, |e| e.repeatable = true);
        set.map_err(|f| no_executor(executor, f))
    })
}

/// Ends the life of an executor. What was launched with it must have run: its arguments go too.
///
/// # Safety
/// No pointers are followed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn aclDestroyAclOpExecutor(
    executor: *mut sys::aclOpExecutor,
) -> sys::aclnnStatus {
    status("aclDestroyAclOpExecutor", || {
        let removed = EXECUTORS.remove(executor).map(|e| e.alive.store(false, Ordering::Release));
        removed.map_err(|f| no_executor(executor, f))
    })
}

/// Which tensors an index counts.
#[derive(Clone, Copy, PartialEq)]
enum Among {
    All,
    Inputs,
    Outputs,
}

/// Whether a parameter of this name is written. What is both read and written counts as an input.
fn is_output(name: &str) -> bool {
    let whole = ["out", "y", "output", "output_scale", "output_offset"];
    whole.contains(&name) || name.ends_with("_out") || matches!(name, "softmax_max" | "softmax_sum")
}

/// Moves parameter `index` of a repeatable executor to `address`; `member` picks one of a list.
fn rebind(
    executor: *mut sys::aclOpExecutor,
    (among, index, member): (Among, usize, Option<usize>),
    address: *mut c_void,
) -> Result<(), Fault> {
    let address = address.expose_provenance();
    let moved = EXECUTORS.with(executor, |e| {
        if !e.repeatable {
            return Err(Fault::invalid("only a repeatable executor takes other addresses"));
        }
        let call = Arc::make_mut(&mut e.call);
        let tensors = call.params.iter().zip(&mut call.args).filter(|(param, _)| {
            use acl::Kind;
            let kinds = match member {
                None => [Kind::tensor, Kind::optional_tensor],
                Some(_) => [Kind::tensors, Kind::optional_tensors],
            };
            let counted = match among {
                Among::All => true,
                Among::Inputs => !is_output(param.name),
                Among::Outputs => is_output(param.name),
            };
            counted && kinds.contains(&param.kind)
        });
        match (tensors.map(|(_, arg)| arg).nth(index), member) {
            (Some(Argument::Tensor(t)), None) => t.address = address,
            (Some(Argument::Tensors(list)), Some(m)) if m < list.len() => list[m].address = address,
            _ => {
                return Err(Fault::invalid(format!(
                    "aclnn{} has no tensor {index}{} to move",
                    call.name,
                    member.map(|m| format!("[{m}]")).unwrap_or_default()
                )));
            }
        }
        Ok(())
    });
    moved.map_err(|f| no_executor(executor, f)).flatten()
}

macro_rules! rebinding {
    ($($(#[$doc:meta])* $name:ident $list:ident, $among:ident;)*) => {$(
        $(#[$doc])*
        ///
        /// # Safety
        /// No pointers are followed.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name(
            executor: *mut sys::aclOpExecutor,
            index: usize,
            tensor: *mut sys::aclTensor,
            address: *mut c_void,
        ) -> sys::aclnnStatus {
            status(stringify!($name), || {
                TENSORS.with(tensor, |_| ())?;
                rebind(executor, (Among::$among, index, None), address)
            })
        }

        $(#[$doc])*
        /// Of a list, the tensor `member`.
        ///
        /// # Safety
        /// No pointers are followed.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $list(
            executor: *mut sys::aclOpExecutor,
            index: usize,
            member: usize,
            tensors: *mut sys::aclTensorList,
            address: *mut c_void,
        ) -> sys::aclnnStatus {
            status(stringify!($list), || {
                LISTS.with(tensors, |_| ())?;
                rebind(executor, (Among::$among, index, Some(member)), address)
            })
        }
    )*};
}

rebinding! {
    /// Moves tensor `index` of an executor, counted over all tensors in the order of the parameters.
    aclSetTensorAddr aclSetDynamicTensorAddr, All;
    /// Moves tensor `index` of an executor, counted over those it reads.
    aclSetInputTensorAddr aclSetDynamicInputTensorAddr, Inputs;
    /// Moves tensor `index` of an executor, counted over those it only writes.
    aclSetOutputTensorAddr aclSetDynamicOutputTensorAddr, Outputs;
}
