//! The list of runtime functions. Made by `cargo xtask bindings` of `include/precast_acl.h`.

/// Calls the macro `$callback` with every function: its documentation, its library, the first
/// release that has it, whether it is required, and its declaration. Types are those of `acl::sys`,
/// which the caller has in scope.
#[macro_export]
macro_rules! for_each_function {
    ($callback:ident) => {
        $callback! {
            /// Starts the runtime for this process. `configPath` may be null.
            ascendcl V8_1 required fn aclInit(configPath: *const ::core::ffi::c_char) -> aclError;
            /// Ends it. Older releases cannot start it again.
            ascendcl V8_1 required fn aclFinalize() -> aclError;
            /// What the last failure of this thread was about; reading it forgets it. May be null.
            ascendcl V8_1 required fn aclGetRecentErrMsg() -> *const ::core::ffi::c_char;
            /// Version of the interface.
            ascendcl V8_1 required fn aclrtGetVersion(majorVersion: *mut i32, minorVersion: *mut i32, patchVersion: *mut i32) -> aclError;
            /// Version of a package of the toolkit.
            ascendcl V8_1 optional fn aclsysGetCANNVersion(name: aclCANNPackageName, version: *mut aclCANNPackageVersion) -> aclError;
            /// Name of the chip: `Ascend910B3`.
            ascendcl V8_1 required fn aclrtGetSocName() -> *const ::core::ffi::c_char;
            /// Makes a device current on this thread; counted.
            ascendcl V8_1 required fn aclrtSetDevice(deviceId: i32) -> aclError;
            /// Takes back one `aclrtSetDevice`; the last one frees what is left on the device.
            ascendcl V8_1 required fn aclrtResetDevice(deviceId: i32) -> aclError;
            /// The current device.
            ascendcl V8_1 required fn aclrtGetDevice(deviceId: *mut i32) -> aclError;
            /// How many devices there are.
            ascendcl V8_1 required fn aclrtGetDeviceCount(count: *mut u32) -> aclError;
            /// Waits for all work of the current device.
            ascendcl V8_1 required fn aclrtSynchronizeDevice() -> aclError;
            /// Waits for all work of the current device for at most `timeout` milliseconds.
            ascendcl V8_1 optional fn aclrtSynchronizeDeviceWithTimeout(timeout: i32) -> aclError;
            /// A fact about a device.
            ascendcl V8_5 optional fn aclrtGetDeviceInfo(deviceId: u32, attr: aclrtDevAttr, value: *mut i64) -> aclError;
            /// A fact about a device, as older releases tell it.
            ascendcl V8_1 optional fn aclGetDeviceCapability(deviceId: u32, deviceInfo: aclDeviceInfo, value: *mut i64) -> aclError;
            /// Makes a context and makes it current on this thread.
            ascendcl V8_1 required fn aclrtCreateContext(context: *mut aclrtContext, deviceId: i32) -> aclError;
            /// Destroys a context.
            ascendcl V8_1 required fn aclrtDestroyContext(context: aclrtContext) -> aclError;
            /// Makes a context current on this thread.
            ascendcl V8_1 required fn aclrtSetCurrentContext(context: aclrtContext) -> aclError;
            /// The context of this thread.
            ascendcl V8_1 required fn aclrtGetCurrentContext(context: *mut aclrtContext) -> aclError;
            /// Makes a stream.
            ascendcl V8_1 required fn aclrtCreateStream(stream: *mut aclrtStream) -> aclError;
            /// Makes a stream with a priority and flags `ACL_STREAM_*`.
            ascendcl V8_1 required fn aclrtCreateStreamWithConfig(stream: *mut aclrtStream, priority: u32, flag: u32) -> aclError;
            /// Destroys a stream after its work.
            ascendcl V8_1 required fn aclrtDestroyStream(stream: aclrtStream) -> aclError;
            /// Destroys a stream and drops its work.
            ascendcl V8_1 required fn aclrtDestroyStreamForce(stream: aclrtStream) -> aclError;
            /// Waits for the work of a stream.
            ascendcl V8_1 required fn aclrtSynchronizeStream(stream: aclrtStream) -> aclError;
            /// Waits for the work of a stream for at most `timeout` milliseconds; -1 is for ever.
            ascendcl V8_1 required fn aclrtSynchronizeStreamWithTimeout(stream: aclrtStream, timeout: i32) -> aclError;
            /// Whether a stream has work left.
            ascendcl V8_1 optional fn aclrtStreamQuery(stream: aclrtStream, status: *mut aclrtStreamStatus) -> aclError;
            /// Stops the work of a stream.
            ascendcl V8_1 optional fn aclrtStreamAbort(stream: aclrtStream) -> aclError;
            /// Number of a stream.
            ascendcl V8_1 optional fn aclrtStreamGetId(stream: aclrtStream, streamId: *mut i32) -> aclError;
            /// Sets an attribute of a stream.
            ascendcl V8_3 optional fn aclrtSetStreamAttribute(stream: aclrtStream, stmAttrType: aclrtStreamAttr, value: *mut aclrtStreamAttrValue) -> aclError;
            /// How many more streams the device has.
            ascendcl V8_5 optional fn aclrtGetStreamAvailableNum(streamCount: *mut u32) -> aclError;
            /// Makes an event.
            ascendcl V8_1 required fn aclrtCreateEvent(event: *mut aclrtEvent) -> aclError;
            /// Makes an event with flags `ACL_EVENT_*`.
            ascendcl V8_1 required fn aclrtCreateEventWithFlag(event: *mut aclrtEvent, flag: u32) -> aclError;
            /// Makes an event that needs no reset between uses, with flags `ACL_EVENT_*`.
            ascendcl V8_1 required fn aclrtCreateEventExWithFlag(event: *mut aclrtEvent, flag: u32) -> aclError;
            /// Destroys an event.
            ascendcl V8_1 required fn aclrtDestroyEvent(event: aclrtEvent) -> aclError;
            /// Marks the work of a stream so far.
            ascendcl V8_1 required fn aclrtRecordEvent(event: aclrtEvent, stream: aclrtStream) -> aclError;
            /// Makes later work of a stream wait for an event.
            ascendcl V8_1 required fn aclrtStreamWaitEvent(stream: aclrtStream, event: aclrtEvent) -> aclError;
            /// Makes an event unmarked again, in the order of the stream.
            ascendcl V8_1 required fn aclrtResetEvent(event: aclrtEvent, stream: aclrtStream) -> aclError;
            /// Waits for an event.
            ascendcl V8_1 required fn aclrtSynchronizeEvent(event: aclrtEvent) -> aclError;
            /// Waits for an event for at most `timeout` milliseconds.
            ascendcl V8_1 optional fn aclrtSynchronizeEventWithTimeout(event: aclrtEvent, timeout: i32) -> aclError;
            /// Whether the work before an event is complete.
            ascendcl V8_1 required fn aclrtQueryEventStatus(event: aclrtEvent, status: *mut aclrtEventRecordedStatus) -> aclError;
            /// Milliseconds between two events.
            ascendcl V8_1 optional fn aclrtEventElapsedTime(ms: *mut f32, startEvent: aclrtEvent, endEvent: aclrtEvent) -> aclError;
            /// How many more events the device has.
            ascendcl V8_5 optional fn aclrtGetEventAvailNum(eventCount: *mut u32) -> aclError;
            /// Device memory of `size` bytes, aligned to 64 bytes and at least 32 bytes longer than asked for.
            ascendcl V8_1 required fn aclrtMalloc(devPtr: *mut *mut ::core::ffi::c_void, size: usize, policy: aclrtMemMallocPolicy) -> aclError;
            /// Device memory without the 32 bytes past its end.
            ascendcl V8_1 required fn aclrtMallocAlign32(devPtr: *mut *mut ::core::ffi::c_void, size: usize, policy: aclrtMemMallocPolicy) -> aclError;
            /// Frees device memory.
            ascendcl V8_1 required fn aclrtFree(devPtr: *mut ::core::ffi::c_void) -> aclError;
            /// Host memory that the device can copy from and to by itself.
            ascendcl V8_1 required fn aclrtMallocHost(hostPtr: *mut *mut ::core::ffi::c_void, size: usize) -> aclError;
            /// Frees it.
            ascendcl V8_1 required fn aclrtFreeHost(hostPtr: *mut ::core::ffi::c_void) -> aclError;
            /// Free and all bytes of a kind of memory.
            ascendcl V8_1 required fn aclrtGetMemInfo(attr: aclrtMemAttr, free: *mut usize, total: *mut usize) -> aclError;
            /// Copies `count` bytes and waits for it.
            ascendcl V8_1 required fn aclrtMemcpy(dst: *mut ::core::ffi::c_void, destMax: usize, src: *const ::core::ffi::c_void, count: usize, kind: aclrtMemcpyKind) -> aclError;
            /// Copies `count` bytes in the order of a stream.
            ascendcl V8_1 required fn aclrtMemcpyAsync(dst: *mut ::core::ffi::c_void, destMax: usize, src: *const ::core::ffi::c_void, count: usize, kind: aclrtMemcpyKind, stream: aclrtStream) -> aclError;
            /// Sets `count` bytes and waits for it.
            ascendcl V8_1 required fn aclrtMemset(devPtr: *mut ::core::ffi::c_void, maxCount: usize, value: i32, count: usize) -> aclError;
            /// Sets `count` bytes in the order of a stream.
            ascendcl V8_1 required fn aclrtMemsetAsync(devPtr: *mut ::core::ffi::c_void, maxCount: usize, value: i32, count: usize, stream: aclrtStream) -> aclError;
            /// Calls a function of the host in the order of a stream.
            ascendcl V8_5 optional fn aclrtLaunchHostFunc(stream: aclrtStream, fn_: aclrtHostFunc, args: *mut ::core::ffi::c_void) -> aclError;
            /// Starts to record what is put on a stream instead of running it.
            ascendcl V8_1 required fn aclmdlRICaptureBegin(stream: aclrtStream, mode: aclmdlRICaptureMode) -> aclError;
            /// What a stream's capture has come to, and the sequence so far.
            ascendcl V8_1 required fn aclmdlRICaptureGetInfo(stream: aclrtStream, status: *mut aclmdlRICaptureStatus, modelRI: *mut aclmdlRI) -> aclError;
            /// Ends a capture on the stream that it began on.
            ascendcl V8_1 required fn aclmdlRICaptureEnd(stream: aclrtStream, modelRI: *mut aclmdlRI) -> aclError;
            /// Swaps the capture mode of this thread.
            ascendcl V8_1 required fn aclmdlRICaptureThreadExchangeMode(mode: *mut aclmdlRICaptureMode) -> aclError;
            /// Starts tasks whose parameters can be replaced later.
            ascendcl V8_1 required fn aclmdlRICaptureTaskGrpBegin(stream: aclrtStream) -> aclError;
            /// Ends them.
            ascendcl V8_1 required fn aclmdlRICaptureTaskGrpEnd(stream: aclrtStream, handle: *mut aclrtTaskGrp) -> aclError;
            /// Starts to replace the parameters of such tasks.
            ascendcl V8_1 required fn aclmdlRICaptureTaskUpdateBegin(stream: aclrtStream, handle: aclrtTaskGrp) -> aclError;
            /// Ends it.
            ascendcl V8_1 required fn aclmdlRICaptureTaskUpdateEnd(stream: aclrtStream) -> aclError;
            /// Starts a sequence. `flag` is 0.
            ascendcl V8_5 optional fn aclmdlRIBuildBegin(modelRI: *mut aclmdlRI, flag: u32) -> aclError;
            /// Makes what is put on a stream part of the sequence.
            ascendcl V8_5 optional fn aclmdlRIBindStream(modelRI: aclmdlRI, stream: aclrtStream, flag: u32) -> aclError;
            /// Marks the end of a sequence's work on a stream.
            ascendcl V8_5 optional fn aclmdlRIEndTask(modelRI: aclmdlRI, stream: aclrtStream) -> aclError;
            /// Makes a sequence ready. `reserve` is null.
            ascendcl V8_5 optional fn aclmdlRIBuildEnd(modelRI: aclmdlRI, reserve: *mut ::core::ffi::c_void) -> aclError;
            /// Takes a stream out of a sequence.
            ascendcl V8_5 optional fn aclmdlRIUnbindStream(modelRI: aclmdlRI, stream: aclrtStream) -> aclError;
            /// Names a sequence.
            ascendcl V8_5 optional fn aclmdlRISetName(modelRI: aclmdlRI, name: *const ::core::ffi::c_char) -> aclError;
            /// Stops a running sequence.
            ascendcl V8_5 optional fn aclmdlRIAbort(modelRI: aclmdlRI) -> aclError;
            /// Puts a sequence on a stream.
            ascendcl V8_1 required fn aclmdlRIExecuteAsync(modelRI: aclmdlRI, stream: aclrtStream) -> aclError;
            /// Runs a sequence for at most `timeout` milliseconds; -1 is for ever.
            ascendcl V8_5 optional fn aclmdlRIExecute(modelRI: aclmdlRI, timeout: i32) -> aclError;
            /// Destroys a sequence that is not running.
            ascendcl V8_1 required fn aclmdlRIDestroy(modelRI: aclmdlRI) -> aclError;
            /// Streams of a sequence. `numStreams` is the room before and the count after.
            ascendcl V9 optional fn aclmdlRIGetStreams(modelRI: aclmdlRI, streams: *mut aclrtStream, numStreams: *mut u32) -> aclError;
            /// Tasks of a stream of a sequence. `numTasks` is the room before and the count after.
            ascendcl V9 optional fn aclmdlRIGetTasksByStream(stream: aclrtStream, tasks: *mut aclmdlRITask, numTasks: *mut u32) -> aclError;
            /// Loads a kernel binary from an absolute path. `options` may be null.
            ascendcl V8_1 required fn aclrtBinaryLoadFromFile(binPath: *const ::core::ffi::c_char, options: *mut aclrtBinaryLoadOptions, binHandle: *mut aclrtBinHandle) -> aclError;
            /// Loads a kernel binary from memory. `options` may be null.
            ascendcl V8_5 optional fn aclrtBinaryLoadFromData(data: *const ::core::ffi::c_void, length: usize, options: *const aclrtBinaryLoadOptions, binHandle: *mut aclrtBinHandle) -> aclError;
            /// Unloads a kernel binary.
            ascendcl V8_1 required fn aclrtBinaryUnLoad(binHandle: aclrtBinHandle) -> aclError;
            /// A kernel by name.
            ascendcl V8_1 required fn aclrtBinaryGetFunction(binHandle: aclrtBinHandle, kernelName: *const ::core::ffi::c_char, funcHandle: *mut aclrtFuncHandle) -> aclError;
            /// A kernel by the number that its symbol ends in.
            ascendcl V8_1 optional fn aclrtBinaryGetFunctionByEntry(binHandle: aclrtBinHandle, funcEntry: u64, funcHandle: *mut aclrtFuncHandle) -> aclError;
            /// A fact about a kernel.
            ascendcl V8_5 optional fn aclrtGetFunctionAttribute(funcHandle: aclrtFuncHandle, attrType: aclrtFuncAttribute, attrValue: *mut i64) -> aclError;
            /// Address through which cores meet, the hidden first argument of kernels that need it.
            ascendcl V8_5 optional fn aclrtGetHardwareSyncAddr(addr: *mut *mut ::core::ffi::c_void) -> aclError;
            /// Starts the arguments of a launch.
            ascendcl V8_1 required fn aclrtKernelArgsInit(funcHandle: aclrtFuncHandle, argsHandle: *mut aclrtArgsHandle) -> aclError;
            /// Adds an argument by value.
            ascendcl V8_1 required fn aclrtKernelArgsAppend(argsHandle: aclrtArgsHandle, param: *mut ::core::ffi::c_void, paramSize: usize, paramHandle: *mut aclrtParamHandle) -> aclError;
            /// Ends the arguments of a launch.
            ascendcl V8_1 required fn aclrtKernelArgsFinalize(argsHandle: aclrtArgsHandle) -> aclError;
            /// Launches a kernel with arguments in device memory.
            ascendcl V8_1 required fn aclrtLaunchKernel(funcHandle: aclrtFuncHandle, numBlocks: u32, argsData: *const ::core::ffi::c_void, argsSize: usize, stream: aclrtStream) -> aclError;
            /// Launches a kernel with arguments in device memory and options.
            ascendcl V8_5 optional fn aclrtLaunchKernelV2(funcHandle: aclrtFuncHandle, numBlocks: u32, argsData: *const ::core::ffi::c_void, argsSize: usize, cfg: *mut aclrtLaunchKernelCfg, stream: aclrtStream) -> aclError;
            /// Launches a kernel with arguments that were put together. `reserve` is null.
            ascendcl V8_1 required fn aclrtLaunchKernelWithConfig(funcHandle: aclrtFuncHandle, numBlocks: u32, stream: aclrtStream, cfg: *mut aclrtLaunchKernelCfg, argsHandle: aclrtArgsHandle, reserve: *mut ::core::ffi::c_void) -> aclError;
            /// Launches a kernel with arguments in host memory, which are copied.
            ascendcl V8_5 optional fn aclrtLaunchKernelWithHostArgs(funcHandle: aclrtFuncHandle, numBlocks: u32, stream: aclrtStream, cfg: *mut aclrtLaunchKernelCfg, hostArgs: *mut ::core::ffi::c_void, argsSize: usize, placeHolderArray: *mut aclrtPlaceHolderInfo, placeHolderNum: usize) -> aclError;
            /// A tensor at `tensorDataAddr`. Strides and `offset` are in elements; the storage of a dense tensor
            /// has the dimensions of the view.
            nnopbase V8_1 required fn aclCreateTensor(viewDims: *const i64, viewDimsNum: u64, dataType: aclDataType, stride: *const i64, offset: i64, format: aclFormat, storageDims: *const i64, storageDimsNum: u64, tensorData: *mut ::core::ffi::c_void) -> *mut aclTensor;
            /// A number, read from the host.
            nnopbase V8_1 required fn aclCreateScalar(value: *mut ::core::ffi::c_void, dataType: aclDataType) -> *mut aclScalar;
            /// Whole numbers, copied.
            nnopbase V8_1 required fn aclCreateIntArray(value: *const i64, size: u64) -> *mut aclIntArray;
            /// Numbers, copied.
            nnopbase V8_1 optional fn aclCreateFloatArray(value: *const f32, size: u64) -> *mut aclFloatArray;
            /// Flags, copied.
            nnopbase V8_1 optional fn aclCreateBoolArray(value: *const bool, size: u64) -> *mut aclBoolArray;
            /// A list, which takes the tensors over.
            nnopbase V8_1 required fn aclCreateTensorList(value: *const *const aclTensor, size: u64) -> *mut aclTensorList;
            /// Destroys a tensor, not its memory.
            nnopbase V8_1 required fn aclDestroyTensor(tensor: *const aclTensor) -> aclnnStatus;
            /// Destroys a number.
            nnopbase V8_1 required fn aclDestroyScalar(scalar: *const aclScalar) -> aclnnStatus;
            /// Destroys whole numbers.
            nnopbase V8_1 required fn aclDestroyIntArray(array: *const aclIntArray) -> aclnnStatus;
            /// Destroys numbers.
            nnopbase V8_1 optional fn aclDestroyFloatArray(array: *const aclFloatArray) -> aclnnStatus;
            /// Destroys flags.
            nnopbase V8_1 optional fn aclDestroyBoolArray(array: *const aclBoolArray) -> aclnnStatus;
            /// Destroys a list and its tensors.
            nnopbase V8_1 required fn aclDestroyTensorList(array: *const aclTensorList) -> aclnnStatus;
            /// Makes an executor usable more than once; the caller then destroys it.
            nnopbase V8_1 required fn aclSetAclOpExecutorRepeatable(executor: *mut aclOpExecutor) -> aclnnStatus;
            /// Destroys an executor that is usable more than once.
            nnopbase V8_1 required fn aclDestroyAclOpExecutor(executor: *mut aclOpExecutor) -> aclnnStatus;
            /// Gives an input of an executor another address.
            nnopbase V8_1 optional fn aclSetInputTensorAddr(executor: *mut aclOpExecutor, index: usize, tensor: *mut aclTensor, addr: *mut ::core::ffi::c_void) -> aclnnStatus;
            /// Gives an output of an executor another address.
            nnopbase V8_1 optional fn aclSetOutputTensorAddr(executor: *mut aclOpExecutor, index: usize, tensor: *mut aclTensor, addr: *mut ::core::ffi::c_void) -> aclnnStatus;
            /// Gives a tensor of an executor another address.
            nnopbase V8_3 optional fn aclSetTensorAddr(executor: *mut aclOpExecutor, index: usize, tensor: *mut aclTensor, addr: *mut ::core::ffi::c_void) -> aclnnStatus;
        }
    };
}
