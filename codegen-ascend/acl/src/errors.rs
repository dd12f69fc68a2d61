//! What the codes mean, and what to do about them.

use crate::sys::*;

/// A result of the interface that is not success.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ErrorCode {
    /// The number.
    pub code: aclError,
    /// Its name in the interface.
    pub name: &'static str,
    /// What it means.
    pub meaning: &'static str,
    /// What helps; empty where only the vendor's message can tell.
    pub advice: &'static str,
}

macro_rules! codes {
    ($($name:ident: $meaning:literal $(=> $advice:expr)?;)*) => {
        const CODES: &[ErrorCode] = &[$(ErrorCode {
            code: $name,
            name: stringify!($name),
            meaning: $meaning,
            advice: codes!(@ $($advice)?),
        }),*];
    };
    (@ $advice:expr) => { $advice };
    (@) => { "" };
}

const OURS: &str = "this is a mistake of this program; please report it with the message above";
const RECOMPILE: &str = "the artifact does not fit this toolkit; run `precast compile` for this chip and \
     check `precast doctor`";
const STREAMS: &str = "serve fewer sizes (`--graph-bs`), stop other processes on the device, or install \
     toolkit 8.5 with driver 25.5.1 or newer, where graphs do not hold streams while they wait";
const MEMORY: &str = "lower `--kv-blocks` or the number of sequences, or stop other processes on the \
     device (`npu-smi info`)";
const DEVICE_FAULT: &str =
    "look for the device's log under ~/ascend/log; `npu-smi info` shows its health";
const NEWER: &str = "install a newer toolkit and driver; `precast doctor` lists what is missing";
const STUCK: &str = "a step does not end: raise the device's timeout if it is only slow, otherwise look for \
     the device's log under ~/ascend/log";
const OPERATORS: &str = "install the operator package for this chip (`Ascend-cann-kernels`) and set up its \
     environment (`source set_env.sh`)";

codes! {
    ACL_ERROR_INVALID_PARAM: "a parameter is not allowed" => OURS;
    ACL_ERROR_UNINITIALIZE: "the runtime was not started" => OURS;
    ACL_ERROR_REPEAT_INITIALIZE: "the runtime was started before";
    ACL_ERROR_INVALID_FILE: "a file is not what it should be";
    ACL_ERROR_INVALID_MODEL_ID: "no such model" => OURS;
    ACL_ERROR_OP_NOT_FOUND: "the operator is not installed" => OPERATORS;
    ACL_ERROR_KERNEL_NOT_FOUND: "the kernel is not installed" => OPERATORS;
    ACL_ERROR_WAIT_CALLBACK_TIMEOUT: "a callback did not come in time";
    ACL_ERROR_REPEAT_FINALIZE: "the runtime was ended before" => OURS;
    ACL_ERROR_COMPILING_STUB_MODE: "this is the stub library that programs are linked against"
        => "LD_LIBRARY_PATH must have the runtime's folder (`source set_env.sh`) before any `devlib` or `stub` folder";
    ACL_ERROR_BAD_ALLOC: "host memory could not be had" => "free some memory of the host";
    ACL_ERROR_API_NOT_SUPPORT: "the function is not supported here" => NEWER;
    ACL_ERROR_MEMORY_ADDRESS_UNALIGNED: "an address is not aligned" => OURS;
    ACL_ERROR_FEATURE_UNSUPPORTED: "this is not supported here" => NEWER;
    ACL_ERROR_STORAGE_OVER_LIMIT: "a limit of storage was reached" => MEMORY;
    ACL_ERROR_INTERNAL_ERROR: "an error inside the interface";
    ACL_ERROR_FAILURE: "an error that has no name";
    ACL_ERROR_GE_FAILURE: "an error of the graph engine";
    ACL_ERROR_RT_FAILURE: "an error of the runtime";
    ACL_ERROR_DRV_FAILURE: "an error of the driver" => DEVICE_FAULT;

    ACL_ERROR_RT_PARAM_INVALID: "a parameter is not allowed" => OURS;
    ACL_ERROR_RT_INVALID_DEVICEID: "there is no device with this number"
        => "`npu-smi info` lists the devices; ASCEND_RT_VISIBLE_DEVICES may hide some";
    ACL_ERROR_RT_CONTEXT_NULL: "no device is current on this thread" => OURS;
    ACL_ERROR_RT_STREAM_CONTEXT: "the stream belongs to another context" => OURS;
    ACL_ERROR_RT_MODEL_CONTEXT: "the graph belongs to another context" => OURS;
    ACL_ERROR_RT_STREAM_MODEL: "the stream is not one of the graph" => OURS;
    ACL_ERROR_RT_EVENT_TIMESTAMP_INVALID: "the event has no time" => OURS;
    ACL_ERROR_RT_EVENT_TIMESTAMP_REVERSAL: "the events are in the wrong order" => OURS;
    ACL_ERROR_RT_ADDR_UNALIGNED: "an address is not aligned" => OURS;
    ACL_ERROR_RT_FILE_OPEN: "a file could not be opened";
    ACL_ERROR_RT_STREAM_SUBSCRIBE: "callbacks of the stream could not be set up" => OURS;
    ACL_ERROR_RT_THREAD_SUBSCRIBE: "callbacks of the thread could not be set up" => OURS;
    ACL_ERROR_RT_STREAM_NO_CB_REG: "the stream has no callbacks" => OURS;
    ACL_ERROR_RT_INVALID_MEMORY_TYPE: "the memory is of the wrong kind" => OURS;
    ACL_ERROR_RT_INVALID_HANDLE: "the object does not exist (any more)" => OURS;
    ACL_ERROR_RT_INVALID_MALLOC_TYPE: "there is no such kind of memory" => OURS;
    ACL_ERROR_RT_WAIT_TIMEOUT: "waiting took too long" => STUCK;
    ACL_ERROR_RT_TASK_TIMEOUT: "a task took too long" => STUCK;
    ACL_ERROR_RT_DEVICE_TASK_ABORT: "the device is stopping its work" => DEVICE_FAULT;
    ACL_ERROR_RT_STREAM_ABORT: "the stream is stopping its work" => DEVICE_FAULT;
    ACL_ERROR_RT_CAPTURE_DEPENDENCY: "a capture depends on work outside it" => OURS;
    ACL_ERROR_RT_STREAM_UNJOINED: "a side stream was not joined before the end of the capture" => OURS;
    ACL_ERROR_RT_MODEL_CAPTURED: "the graph is being captured" => OURS;
    ACL_ERROR_RT_STREAM_CAPTURED: "the stream is being captured" => OURS;
    ACL_ERROR_RT_EVENT_CAPTURED: "the event is being captured" => OURS;
    ACL_ERROR_RT_STREAM_NOT_CAPTURED: "the stream is not being captured" => OURS;
    ACL_ERROR_RT_CAPTURE_MODE_NOT_SUPPORT: "this is not allowed while a capture is open" => OURS;
    ACL_ERROR_RT_STREAM_CAPTURE_IMPLICIT: "the default stream cannot be part of a capture" => OURS;
    ACL_ERROR_STREAM_CAPTURE_CONFLICT: "two streams that depend on each other began a capture" => OURS;
    ACL_ERROR_STREAM_TASK_GROUP_STATUS: "a group of tasks is not open, or is" => OURS;
    ACL_ERROR_STREAM_TASK_GROUP_INTR: "a group of tasks was interrupted" => OURS;
    ACL_ERROR_RT_STREAM_CAPTURE_UNMATCHED: "the capture began on another stream" => OURS;
    ACL_ERROR_RT_MODEL_RUNNING: "the graph is still running" => OURS;
    ACL_ERROR_RT_STREAM_CAPTURE_WRONG_THREAD: "the capture began on another thread" => OURS;

    ACL_ERROR_RT_FEATURE_NOT_SUPPORT: "this chip, driver or toolkit cannot do it" => NEWER;
    ACL_ERROR_RT_MEMORY_ALLOCATION: "memory could not be had" => MEMORY;
    ACL_ERROR_RT_MEMORY_FREE: "memory could not be freed" => OURS;
    ACL_ERROR_RT_AICORE_OVER_FLOW: "a number overflowed on a cube core";
    ACL_ERROR_RT_NO_DEVICE: "there is no device"
        => "`npu-smi info` lists the devices; a container needs /dev/davinci* and the driver's folder";
    ACL_ERROR_RT_RESOURCE_ALLOC_FAIL: "a resource of the device ran out" => STREAMS;
    ACL_ERROR_RT_NO_PERMISSION: "not allowed"
        => "the user must be in the driver's group (HwHiAiUser), and a container needs /dev/davinci*";
    ACL_ERROR_RT_NO_EVENT_RESOURCE: "the device has no event left" => STREAMS;
    ACL_ERROR_RT_NO_STREAM_RESOURCE: "the device has no stream left" => STREAMS;
    ACL_ERROR_RT_NO_NOTIFY_RESOURCE: "the device has no notification left" => STREAMS;
    ACL_ERROR_RT_NO_MODEL_RESOURCE: "the device has no graph left" => STREAMS;
    ACL_ERROR_RT_OVER_LIMIT: "a limit was reached" => STREAMS;
    ACL_ERROR_RT_QUEUE_EMPTY: "a queue is empty";
    ACL_ERROR_RT_QUEUE_FULL: "a queue is full";
    ACL_ERROR_RT_AIVEC_OVER_FLOW: "a number overflowed on a vector core";
    ACL_ERROR_RT_OVER_FLOW: "a number overflowed";
    ACL_ERROR_RT_DEVICE_OOM: "device memory ran out" => MEMORY;
    ACL_ERROR_RT_FEATURE_NOT_SUPPORT_UPDATE_OP: "this task cannot be changed after its capture" => OURS;

    ACL_ERROR_RT_INTERNAL_ERROR: "an error inside the runtime" => DEVICE_FAULT;
    ACL_ERROR_RT_STREAM_TASK_FULL: "a stream has no room for more tasks" => OURS;
    ACL_ERROR_RT_SOC_VERSION: "made for another chip" => RECOMPILE;
    ACL_ERROR_RT_TASK_TYPE_NOT_SUPPORT: "this kind of task cannot be captured" => RECOMPILE;
    ACL_ERROR_RT_LOST_HEARTBEAT: "the device does not answer any more" => DEVICE_FAULT;
    ACL_ERROR_RT_MODEL_EXECUTE: "the graph failed" => DEVICE_FAULT;
    ACL_ERROR_RT_AICORE_TIMEOUT: "a kernel on cube cores does not end" => DEVICE_FAULT;
    ACL_ERROR_RT_AICORE_EXCEPTION: "a kernel on cube cores failed" => DEVICE_FAULT;
    ACL_ERROR_RT_AICPU_TIMEOUT: "work of the device's own processor does not end" => DEVICE_FAULT;
    ACL_ERROR_RT_AICPU_EXCEPTION: "work of the device's own processor failed" => DEVICE_FAULT;
    ACL_ERROR_RT_MODEL_ABORT_NORMAL: "the graph was stopped";
    ACL_ERROR_RT_KERNEL_LOOKUP: "the kernel is not in its binary" => RECOMPILE;
    ACL_ERROR_RT_KERNEL_DUPLICATE: "the kernel was loaded before" => OURS;
    ACL_ERROR_RT_VECTOR_CORE_TIMEOUT: "a kernel on vector cores does not end" => DEVICE_FAULT;
    ACL_ERROR_RT_VECTOR_CORE_EXCEPTION: "a kernel on vector cores failed" => DEVICE_FAULT;
    ACL_ERROR_RT_AICORE_TRAP_READ_OVERFLOW: "a kernel read outside its memory" => DEVICE_FAULT;
    ACL_ERROR_RT_AICORE_TRAP_WRITE_OVERFLOW: "a kernel wrote outside its memory" => DEVICE_FAULT;
    ACL_ERROR_RT_VECTOR_CORE_TRAP_READ_OVERFLOW: "a kernel read outside its memory" => DEVICE_FAULT;
    ACL_ERROR_RT_VECTOR_CORE_TRAP_WRITE_OVERFLOW: "a kernel wrote outside its memory" => DEVICE_FAULT;
    ACL_ERROR_RT_STREAM_SYNC_TIMEOUT: "a stream did not finish in time" => STUCK;
    ACL_ERROR_RT_EVENT_SYNC_TIMEOUT: "an event did not come in time" => STUCK;
    ACL_ERROR_RT_DEVICE_MEM_ERROR: "device memory is faulty" => DEVICE_FAULT;
    ACL_ERROR_RT_HBM_MULTI_BIT_ECC_ERROR: "device memory lost bits" => DEVICE_FAULT;
    ACL_ERROR_RT_LINK_ERROR: "the link between devices is faulty" => DEVICE_FAULT;
    ACL_ERROR_RT_DRV_INTERNAL_ERROR: "an error inside the driver" => DEVICE_FAULT;
    ACL_ERROR_RT_STREAM_CAPTURE_INVALIDATED: "the capture was broken off by what was done during it" => OURS;

    ACLNN_ERR_PARAM_NULLPTR: "a parameter of the operator is missing" => RECOMPILE;
    ACLNN_ERR_PARAM_INVALID: "the operator does not take these parameters" => RECOMPILE;
    ACLNN_ERR_RUNTIME_ERROR: "the runtime failed under the operator" => DEVICE_FAULT;
    ACLNN_ERR_INNER: "an error inside the operator" => RECOMPILE;
    ACLNN_ERR_INNER_INFERSHAPE_ERROR: "the operator does not take these shapes" => RECOMPILE;
    ACLNN_ERR_INNER_TILING_ERROR: "the operator has no plan for these shapes" => RECOMPILE;
    ACLNN_ERR_INNER_FIND_KERNEL_ERROR: "the operator has no kernel for these types on this chip" => OPERATORS;
    ACLNN_ERR_INNER_CREATE_EXECUTOR: "the operator could not be prepared" => RECOMPILE;
    ACLNN_ERR_INNER_NOT_TRANS_EXECUTOR: "the operator was prepared only in part" => OURS;
    ACLNN_ERR_INNER_NULLPTR: "an error inside the operator" => RECOMPILE;
    ACLNN_ERR_INNER_OPP_PATH_NOT_FOUND: "the operators are not installed" => OPERATORS;
    ACLNN_ERR_INNER_OPP_KERNEL_PKG_NOT_FOUND: "the operators of this chip are not installed" => OPERATORS;
}

/// What is known about a code.
pub fn error_code(code: aclError) -> Option<&'static ErrorCode> {
    CODES.iter().find(|c| c.code == code)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_are_known_once_and_say_what_to_do() {
        let numbers: std::collections::BTreeSet<i32> = CODES.iter().map(|c| c.code).collect();
        assert_eq!(numbers.len(), CODES.len());
        let streams = error_code(207008).expect("known");
        assert_eq!(streams.name, "ACL_ERROR_RT_NO_STREAM_RESOURCE");
        assert!(streams.advice.contains("--graph-bs"), "{}", streams.advice);
        assert_eq!(error_code(42), None);
        assert_eq!(error_code(ACL_SUCCESS), None);
    }

    /// Every number of the header that names a failure is explained.
    #[test]
    fn every_declared_failure_is_explained() {
        let header = include_str!("../include/precast_acl.h");
        let declared = header.lines().filter_map(|l| l.strip_prefix("static const int ACL"));
        let mut checked = 0;
        for line in declared {
            let (name, value) = line.trim_end_matches(';').split_once(" = ").expect("a number");
            let code: i32 = value.parse().expect("decimal");
            if code != 0 {
                assert_eq!(error_code(code).map(|c| &c.name[3..]), Some(name));
                checked += 1;
            }
        }
        assert_eq!(checked, CODES.len());
    }
}
