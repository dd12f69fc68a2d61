//! Types and numbers of the C interface. Made by `cargo xtask bindings` of `include/precast_acl.h`.
#![allow(
    clippy::allow_attributes_without_reason,
    missing_docs,
    non_camel_case_types,
    non_snake_case,
    non_upper_case_globals,
    reason = "the names are those of the C interface"
)]

/// What every function of the runtime returns; 0 is success.
pub type aclError = ::core::ffi::c_int;
/// What operators return; 0 is success.
pub type aclnnStatus = i32;
/// A queue of work of a device; null is the default one of the current context.
pub type aclrtStream = *mut ::core::ffi::c_void;
/// A point in the work of a stream that others can wait for.
pub type aclrtEvent = *mut ::core::ffi::c_void;
/// What a thread works in: a device and the objects made on it.
pub type aclrtContext = *mut ::core::ffi::c_void;
/// A recorded sequence of work that is executed as a whole.
pub type aclmdlRI = *mut ::core::ffi::c_void;
/// A task of a recorded sequence.
pub type aclmdlRITask = *mut ::core::ffi::c_void;
/// Tasks of a capture whose parameters can be replaced later.
pub type aclrtTaskGrp = *mut ::core::ffi::c_void;
/// A loaded kernel binary.
pub type aclrtBinHandle = *mut ::core::ffi::c_void;
/// A kernel of a loaded binary.
pub type aclrtFuncHandle = *mut ::core::ffi::c_void;
/// The arguments of a launch while they are put together.
pub type aclrtArgsHandle = *mut ::core::ffi::c_void;
/// One of the arguments of a launch.
pub type aclrtParamHandle = *mut ::core::ffi::c_void;
/// A function of the host that a stream calls.
pub type aclrtHostFunc =
    ::core::option::Option<unsafe extern "C" fn(args: *mut ::core::ffi::c_void)>;
/// A described buffer.
#[repr(C)]
#[derive(Debug)]
pub struct aclTensor {
    _unused: [u8; 0],
}
/// A number with an element type.
#[repr(C)]
#[derive(Debug)]
pub struct aclScalar {
    _unused: [u8; 0],
}
/// Whole numbers on the host.
#[repr(C)]
#[derive(Debug)]
pub struct aclIntArray {
    _unused: [u8; 0],
}
/// Numbers on the host.
#[repr(C)]
#[derive(Debug)]
pub struct aclFloatArray {
    _unused: [u8; 0],
}
/// Flags on the host.
#[repr(C)]
#[derive(Debug)]
pub struct aclBoolArray {
    _unused: [u8; 0],
}
/// A list of tensors, which it owns.
#[repr(C)]
#[derive(Debug)]
pub struct aclTensorList {
    _unused: [u8; 0],
}
/// A list of scalars, which it owns.
#[repr(C)]
#[derive(Debug)]
pub struct aclScalarList {
    _unused: [u8; 0],
}
/// An operator bound to its parameters, between its two phases.
#[repr(C)]
#[derive(Debug)]
pub struct aclOpExecutor {
    _unused: [u8; 0],
}
pub const ACL_DT_UNDEFINED: aclDataType = -1;
pub const ACL_FLOAT: aclDataType = 0;
pub const ACL_FLOAT16: aclDataType = 1;
pub const ACL_INT8: aclDataType = 2;
pub const ACL_INT32: aclDataType = 3;
pub const ACL_UINT8: aclDataType = 4;
pub const ACL_INT16: aclDataType = 6;
pub const ACL_UINT16: aclDataType = 7;
pub const ACL_UINT32: aclDataType = 8;
pub const ACL_INT64: aclDataType = 9;
pub const ACL_UINT64: aclDataType = 10;
pub const ACL_DOUBLE: aclDataType = 11;
pub const ACL_BOOL: aclDataType = 12;
pub const ACL_STRING: aclDataType = 13;
pub const ACL_COMPLEX64: aclDataType = 16;
pub const ACL_COMPLEX128: aclDataType = 17;
pub const ACL_BF16: aclDataType = 27;
pub const ACL_INT4: aclDataType = 29;
pub const ACL_UINT1: aclDataType = 30;
pub const ACL_COMPLEX32: aclDataType = 33;
pub const ACL_HIFLOAT8: aclDataType = 34;
pub const ACL_FLOAT8_E5M2: aclDataType = 35;
pub const ACL_FLOAT8_E4M3FN: aclDataType = 36;
pub const ACL_FLOAT8_E8M0: aclDataType = 37;
pub const ACL_FLOAT6_E3M2: aclDataType = 38;
pub const ACL_FLOAT6_E2M3: aclDataType = 39;
pub const ACL_FLOAT4_E2M1: aclDataType = 40;
pub const ACL_FLOAT4_E1M2: aclDataType = 41;
/// Element types.
pub type aclDataType = ::core::ffi::c_int;
pub const ACL_FORMAT_UNDEFINED: aclFormat = -1;
pub const ACL_FORMAT_NCHW: aclFormat = 0;
pub const ACL_FORMAT_NHWC: aclFormat = 1;
pub const ACL_FORMAT_ND: aclFormat = 2;
pub const ACL_FORMAT_NC1HWC0: aclFormat = 3;
pub const ACL_FORMAT_FRACTAL_Z: aclFormat = 4;
pub const ACL_FORMAT_NC1HWC0_C04: aclFormat = 12;
pub const ACL_FORMAT_HWCN: aclFormat = 16;
pub const ACL_FORMAT_NDHWC: aclFormat = 27;
pub const ACL_FORMAT_FRACTAL_NZ: aclFormat = 29;
pub const ACL_FORMAT_NCDHW: aclFormat = 30;
pub const ACL_FORMAT_NDC1HWC0: aclFormat = 32;
pub const ACL_FRACTAL_Z_3D: aclFormat = 33;
pub const ACL_FORMAT_NC: aclFormat = 35;
pub const ACL_FORMAT_NCL: aclFormat = 47;
/// How a tensor is stored.
pub type aclFormat = ::core::ffi::c_int;
pub const ACL_MEM_MALLOC_HUGE_FIRST: aclrtMemMallocPolicy = 0;
pub const ACL_MEM_MALLOC_HUGE_ONLY: aclrtMemMallocPolicy = 1;
pub const ACL_MEM_MALLOC_NORMAL_ONLY: aclrtMemMallocPolicy = 2;
pub const ACL_MEM_MALLOC_HUGE_FIRST_P2P: aclrtMemMallocPolicy = 3;
pub const ACL_MEM_MALLOC_HUGE_ONLY_P2P: aclrtMemMallocPolicy = 4;
pub const ACL_MEM_MALLOC_NORMAL_ONLY_P2P: aclrtMemMallocPolicy = 5;
pub const ACL_MEM_MALLOC_HUGE1G_ONLY: aclrtMemMallocPolicy = 6;
pub const ACL_MEM_MALLOC_HUGE1G_ONLY_P2P: aclrtMemMallocPolicy = 7;
pub const ACL_MEM_TYPE_LOW_BAND_WIDTH: aclrtMemMallocPolicy = 256;
pub const ACL_MEM_TYPE_HIGH_BAND_WIDTH: aclrtMemMallocPolicy = 4096;
/// Which pages device memory is made of.
pub type aclrtMemMallocPolicy = ::core::ffi::c_uint;
pub const ACL_MEMCPY_HOST_TO_HOST: aclrtMemcpyKind = 0;
pub const ACL_MEMCPY_HOST_TO_DEVICE: aclrtMemcpyKind = 1;
pub const ACL_MEMCPY_DEVICE_TO_HOST: aclrtMemcpyKind = 2;
pub const ACL_MEMCPY_DEVICE_TO_DEVICE: aclrtMemcpyKind = 3;
pub const ACL_MEMCPY_DEFAULT: aclrtMemcpyKind = 4;
pub const ACL_MEMCPY_HOST_TO_BUF_TO_DEVICE: aclrtMemcpyKind = 5;
pub const ACL_MEMCPY_INNER_DEVICE_TO_DEVICE: aclrtMemcpyKind = 6;
pub const ACL_MEMCPY_INTER_DEVICE_TO_DEVICE: aclrtMemcpyKind = 7;
/// Between which memories a copy goes.
pub type aclrtMemcpyKind = ::core::ffi::c_uint;
pub const ACL_DDR_MEM: aclrtMemAttr = 0;
pub const ACL_HBM_MEM: aclrtMemAttr = 1;
pub const ACL_DDR_MEM_HUGE: aclrtMemAttr = 2;
pub const ACL_DDR_MEM_NORMAL: aclrtMemAttr = 3;
pub const ACL_HBM_MEM_HUGE: aclrtMemAttr = 4;
pub const ACL_HBM_MEM_NORMAL: aclrtMemAttr = 5;
/// Which memory is asked about.
pub type aclrtMemAttr = ::core::ffi::c_uint;
pub const ACL_STREAM_STATUS_COMPLETE: aclrtStreamStatus = 0;
pub const ACL_STREAM_STATUS_NOT_READY: aclrtStreamStatus = 1;
pub const ACL_STREAM_STATUS_RESERVED: aclrtStreamStatus = 65535;
/// Whether a stream has work left.
pub type aclrtStreamStatus = ::core::ffi::c_uint;
pub const ACL_STREAM_ATTR_FAILURE_MODE: aclrtStreamAttr = 1;
pub const ACL_STREAM_ATTR_FLOAT_OVERFLOW_CHECK: aclrtStreamAttr = 2;
pub const ACL_STREAM_ATTR_USER_CUSTOM_TAG: aclrtStreamAttr = 3;
pub const ACL_STREAM_ATTR_CACHE_OP_INFO: aclrtStreamAttr = 4;
/// Attributes of a stream.
pub type aclrtStreamAttr = ::core::ffi::c_uint;
/// Value of an attribute of a stream.
#[repr(C)]
#[derive(Copy, Clone)]
pub union aclrtStreamAttrValue {
    pub failureMode: u64,
    pub overflowSwitch: u32,
    pub userCustomTag: u32,
    pub cacheOpInfoSwitch: u32,
    pub reserve: [u32; 4usize],
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of aclrtStreamAttrValue"][::core::mem::size_of::<aclrtStreamAttrValue>() - 16usize];
    ["Alignment of aclrtStreamAttrValue"][::core::mem::align_of::<aclrtStreamAttrValue>() - 8usize];
    ["Offset of field: aclrtStreamAttrValue::failureMode"]
        [::core::mem::offset_of!(aclrtStreamAttrValue, failureMode) - 0usize];
    ["Offset of field: aclrtStreamAttrValue::overflowSwitch"]
        [::core::mem::offset_of!(aclrtStreamAttrValue, overflowSwitch) - 0usize];
    ["Offset of field: aclrtStreamAttrValue::userCustomTag"]
        [::core::mem::offset_of!(aclrtStreamAttrValue, userCustomTag) - 0usize];
    ["Offset of field: aclrtStreamAttrValue::cacheOpInfoSwitch"]
        [::core::mem::offset_of!(aclrtStreamAttrValue, cacheOpInfoSwitch) - 0usize];
    ["Offset of field: aclrtStreamAttrValue::reserve"]
        [::core::mem::offset_of!(aclrtStreamAttrValue, reserve) - 0usize];
};
pub const ACL_EVENT_RECORDED_STATUS_NOT_READY: aclrtEventRecordedStatus = 0;
pub const ACL_EVENT_RECORDED_STATUS_COMPLETE: aclrtEventRecordedStatus = 1;
/// Whether the work before an event is complete.
pub type aclrtEventRecordedStatus = ::core::ffi::c_uint;
pub const ACL_DEV_ATTR_AICPU_CORE_NUM: aclrtDevAttr = 1;
pub const ACL_DEV_ATTR_AICORE_CORE_NUM: aclrtDevAttr = 101;
pub const ACL_DEV_ATTR_CUBE_CORE_NUM: aclrtDevAttr = 102;
pub const ACL_DEV_ATTR_VECTOR_CORE_NUM: aclrtDevAttr = 201;
pub const ACL_DEV_ATTR_WARP_SIZE: aclrtDevAttr = 202;
pub const ACL_DEV_ATTR_MAX_THREAD_PER_VECTOR_CORE: aclrtDevAttr = 203;
pub const ACL_DEV_ATTR_LOCAL_MEM_PER_VECTOR_CORE: aclrtDevAttr = 204;
pub const ACL_DEV_ATTR_TOTAL_GLOBAL_MEM_SIZE: aclrtDevAttr = 301;
pub const ACL_DEV_ATTR_L2_CACHE_SIZE: aclrtDevAttr = 302;
/// Facts about a device.
pub type aclrtDevAttr = ::core::ffi::c_uint;
pub const ACL_DEVICE_INFO_UNDEFINED: aclDeviceInfo = -1;
pub const ACL_DEVICE_INFO_AI_CORE_NUM: aclDeviceInfo = 0;
pub const ACL_DEVICE_INFO_VECTOR_CORE_NUM: aclDeviceInfo = 1;
pub const ACL_DEVICE_INFO_L2_SIZE: aclDeviceInfo = 2;
/// Facts about a device, as older releases tell them.
pub type aclDeviceInfo = ::core::ffi::c_int;
pub const ACL_PKG_NAME_CANN: aclCANNPackageName = 0;
pub const ACL_PKG_NAME_RUNTIME: aclCANNPackageName = 1;
pub const ACL_PKG_NAME_COMPILER: aclCANNPackageName = 2;
pub const ACL_PKG_NAME_HCCL: aclCANNPackageName = 3;
pub const ACL_PKG_NAME_TOOLKIT: aclCANNPackageName = 4;
pub const ACL_PKG_NAME_OPP: aclCANNPackageName = 5;
pub const ACL_PKG_NAME_OPP_KERNEL: aclCANNPackageName = 6;
pub const ACL_PKG_NAME_DRIVER: aclCANNPackageName = 7;
/// Packages of the toolkit.
pub type aclCANNPackageName = ::core::ffi::c_uint;
/// Version of a package, in texts that end with a zero byte.
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct aclCANNPackageVersion {
    pub version: [::core::ffi::c_char; 128usize],
    pub majorVersion: [::core::ffi::c_char; 64usize],
    pub minorVersion: [::core::ffi::c_char; 64usize],
    pub releaseVersion: [::core::ffi::c_char; 64usize],
    pub patchVersion: [::core::ffi::c_char; 64usize],
    pub reserved: [::core::ffi::c_char; 128usize],
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of aclCANNPackageVersion"][::core::mem::size_of::<aclCANNPackageVersion>() - 512usize];
    ["Alignment of aclCANNPackageVersion"]
        [::core::mem::align_of::<aclCANNPackageVersion>() - 1usize];
    ["Offset of field: aclCANNPackageVersion::version"]
        [::core::mem::offset_of!(aclCANNPackageVersion, version) - 0usize];
    ["Offset of field: aclCANNPackageVersion::majorVersion"]
        [::core::mem::offset_of!(aclCANNPackageVersion, majorVersion) - 128usize];
    ["Offset of field: aclCANNPackageVersion::minorVersion"]
        [::core::mem::offset_of!(aclCANNPackageVersion, minorVersion) - 192usize];
    ["Offset of field: aclCANNPackageVersion::releaseVersion"]
        [::core::mem::offset_of!(aclCANNPackageVersion, releaseVersion) - 256usize];
    ["Offset of field: aclCANNPackageVersion::patchVersion"]
        [::core::mem::offset_of!(aclCANNPackageVersion, patchVersion) - 320usize];
    ["Offset of field: aclCANNPackageVersion::reserved"]
        [::core::mem::offset_of!(aclCANNPackageVersion, reserved) - 384usize];
};
pub const ACL_MODEL_RI_CAPTURE_MODE_GLOBAL: aclmdlRICaptureMode = 0;
pub const ACL_MODEL_RI_CAPTURE_MODE_THREAD_LOCAL: aclmdlRICaptureMode = 1;
pub const ACL_MODEL_RI_CAPTURE_MODE_RELAXED: aclmdlRICaptureMode = 2;
/// What other work is allowed while a capture is open.
pub type aclmdlRICaptureMode = ::core::ffi::c_uint;
pub const ACL_MODEL_RI_CAPTURE_STATUS_NONE: aclmdlRICaptureStatus = 0;
pub const ACL_MODEL_RI_CAPTURE_STATUS_ACTIVE: aclmdlRICaptureStatus = 1;
pub const ACL_MODEL_RI_CAPTURE_STATUS_INVALIDATED: aclmdlRICaptureStatus = 2;
/// What a stream's capture has come to.
pub type aclmdlRICaptureStatus = ::core::ffi::c_uint;
pub const ACL_RT_LAUNCH_KERNEL_ATTR_SCHEM_MODE: aclrtLaunchKernelAttrId = 1;
pub const ACL_RT_LAUNCH_KERNEL_ATTR_LOCAL_MEMORY_SIZE: aclrtLaunchKernelAttrId = 2;
pub const ACL_RT_LAUNCH_KERNEL_ATTR_ENGINE_TYPE: aclrtLaunchKernelAttrId = 3;
pub const ACL_RT_LAUNCH_KERNEL_ATTR_BLOCKDIM_OFFSET: aclrtLaunchKernelAttrId = 4;
pub const ACL_RT_LAUNCH_KERNEL_ATTR_BLOCK_TASK_PREFETCH: aclrtLaunchKernelAttrId = 5;
pub const ACL_RT_LAUNCH_KERNEL_ATTR_DATA_DUMP: aclrtLaunchKernelAttrId = 6;
pub const ACL_RT_LAUNCH_KERNEL_ATTR_TIMEOUT: aclrtLaunchKernelAttrId = 7;
pub const ACL_RT_LAUNCH_KERNEL_ATTR_TIMEOUT_US: aclrtLaunchKernelAttrId = 8;
/// Options of a launch.
pub type aclrtLaunchKernelAttrId = ::core::ffi::c_uint;
/// Value of an option of a launch. `schemMode` is 0 to start as soon as one core is free, 1 to wait
/// until all are.
#[repr(C)]
#[derive(Copy, Clone)]
pub union aclrtLaunchKernelAttrValue {
    pub schemMode: u8,
    pub localMemorySize: u32,
    pub blockDimOffset: u32,
    pub isBlockTaskPrefetch: u8,
    pub isDataDump: u8,
    pub timeout: u16,
    pub rsv: [u32; 4usize],
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of aclrtLaunchKernelAttrValue"]
        [::core::mem::size_of::<aclrtLaunchKernelAttrValue>() - 16usize];
    ["Alignment of aclrtLaunchKernelAttrValue"]
        [::core::mem::align_of::<aclrtLaunchKernelAttrValue>() - 4usize];
    ["Offset of field: aclrtLaunchKernelAttrValue::schemMode"]
        [::core::mem::offset_of!(aclrtLaunchKernelAttrValue, schemMode) - 0usize];
    ["Offset of field: aclrtLaunchKernelAttrValue::localMemorySize"]
        [::core::mem::offset_of!(aclrtLaunchKernelAttrValue, localMemorySize) - 0usize];
    ["Offset of field: aclrtLaunchKernelAttrValue::blockDimOffset"]
        [::core::mem::offset_of!(aclrtLaunchKernelAttrValue, blockDimOffset) - 0usize];
    ["Offset of field: aclrtLaunchKernelAttrValue::isBlockTaskPrefetch"]
        [::core::mem::offset_of!(aclrtLaunchKernelAttrValue, isBlockTaskPrefetch) - 0usize];
    ["Offset of field: aclrtLaunchKernelAttrValue::isDataDump"]
        [::core::mem::offset_of!(aclrtLaunchKernelAttrValue, isDataDump) - 0usize];
    ["Offset of field: aclrtLaunchKernelAttrValue::timeout"]
        [::core::mem::offset_of!(aclrtLaunchKernelAttrValue, timeout) - 0usize];
    ["Offset of field: aclrtLaunchKernelAttrValue::rsv"]
        [::core::mem::offset_of!(aclrtLaunchKernelAttrValue, rsv) - 0usize];
};
/// An option of a launch.
#[repr(C)]
#[derive(Copy, Clone)]
pub struct aclrtLaunchKernelAttr {
    pub id: aclrtLaunchKernelAttrId,
    pub value: aclrtLaunchKernelAttrValue,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of aclrtLaunchKernelAttr"][::core::mem::size_of::<aclrtLaunchKernelAttr>() - 20usize];
    ["Alignment of aclrtLaunchKernelAttr"]
        [::core::mem::align_of::<aclrtLaunchKernelAttr>() - 4usize];
    ["Offset of field: aclrtLaunchKernelAttr::id"]
        [::core::mem::offset_of!(aclrtLaunchKernelAttr, id) - 0usize];
    ["Offset of field: aclrtLaunchKernelAttr::value"]
        [::core::mem::offset_of!(aclrtLaunchKernelAttr, value) - 4usize];
};
/// Options of a launch.
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct aclrtLaunchKernelCfg {
    pub attrs: *mut aclrtLaunchKernelAttr,
    pub numAttrs: usize,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of aclrtLaunchKernelCfg"][::core::mem::size_of::<aclrtLaunchKernelCfg>() - 16usize];
    ["Alignment of aclrtLaunchKernelCfg"][::core::mem::align_of::<aclrtLaunchKernelCfg>() - 8usize];
    ["Offset of field: aclrtLaunchKernelCfg::attrs"]
        [::core::mem::offset_of!(aclrtLaunchKernelCfg, attrs) - 0usize];
    ["Offset of field: aclrtLaunchKernelCfg::numAttrs"]
        [::core::mem::offset_of!(aclrtLaunchKernelCfg, numAttrs) - 8usize];
};
pub const ACL_RT_BINARY_LOAD_OPT_LAZY_LOAD: aclrtBinaryLoadOptionType = 1;
pub const ACL_RT_BINARY_LOAD_OPT_MAGIC: aclrtBinaryLoadOptionType = 2;
pub const ACL_RT_BINARY_LOAD_OPT_CPU_KERNEL_MODE: aclrtBinaryLoadOptionType = 3;
/// Options of loading a binary.
pub type aclrtBinaryLoadOptionType = ::core::ffi::c_uint;
/// Value of an option of loading a binary.
#[repr(C)]
#[derive(Copy, Clone)]
pub union aclrtBinaryLoadOptionValue {
    pub isLazyLoad: u32,
    pub magic: u32,
    pub cpuKernelMode: i32,
    pub rsv: [u32; 4usize],
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of aclrtBinaryLoadOptionValue"]
        [::core::mem::size_of::<aclrtBinaryLoadOptionValue>() - 16usize];
    ["Alignment of aclrtBinaryLoadOptionValue"]
        [::core::mem::align_of::<aclrtBinaryLoadOptionValue>() - 4usize];
    ["Offset of field: aclrtBinaryLoadOptionValue::isLazyLoad"]
        [::core::mem::offset_of!(aclrtBinaryLoadOptionValue, isLazyLoad) - 0usize];
    ["Offset of field: aclrtBinaryLoadOptionValue::magic"]
        [::core::mem::offset_of!(aclrtBinaryLoadOptionValue, magic) - 0usize];
    ["Offset of field: aclrtBinaryLoadOptionValue::cpuKernelMode"]
        [::core::mem::offset_of!(aclrtBinaryLoadOptionValue, cpuKernelMode) - 0usize];
    ["Offset of field: aclrtBinaryLoadOptionValue::rsv"]
        [::core::mem::offset_of!(aclrtBinaryLoadOptionValue, rsv) - 0usize];
};
/// An option of loading a binary.
#[repr(C)]
#[derive(Copy, Clone)]
pub struct aclrtBinaryLoadOption {
    pub type_: aclrtBinaryLoadOptionType,
    pub value: aclrtBinaryLoadOptionValue,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of aclrtBinaryLoadOption"][::core::mem::size_of::<aclrtBinaryLoadOption>() - 20usize];
    ["Alignment of aclrtBinaryLoadOption"]
        [::core::mem::align_of::<aclrtBinaryLoadOption>() - 4usize];
    ["Offset of field: aclrtBinaryLoadOption::type_"]
        [::core::mem::offset_of!(aclrtBinaryLoadOption, type_) - 0usize];
    ["Offset of field: aclrtBinaryLoadOption::value"]
        [::core::mem::offset_of!(aclrtBinaryLoadOption, value) - 4usize];
};
/// Options of loading a binary.
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct aclrtBinaryLoadOptions {
    pub options: *mut aclrtBinaryLoadOption,
    pub numOpt: usize,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of aclrtBinaryLoadOptions"][::core::mem::size_of::<aclrtBinaryLoadOptions>() - 16usize];
    ["Alignment of aclrtBinaryLoadOptions"]
        [::core::mem::align_of::<aclrtBinaryLoadOptions>() - 8usize];
    ["Offset of field: aclrtBinaryLoadOptions::options"]
        [::core::mem::offset_of!(aclrtBinaryLoadOptions, options) - 0usize];
    ["Offset of field: aclrtBinaryLoadOptions::numOpt"]
        [::core::mem::offset_of!(aclrtBinaryLoadOptions, numOpt) - 8usize];
};
/// A slot of a launch's arguments that receives the device address of a part of them.
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct aclrtPlaceHolderInfo {
    pub addrOffset: u32,
    pub dataOffset: u32,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of aclrtPlaceHolderInfo"][::core::mem::size_of::<aclrtPlaceHolderInfo>() - 8usize];
    ["Alignment of aclrtPlaceHolderInfo"][::core::mem::align_of::<aclrtPlaceHolderInfo>() - 4usize];
    ["Offset of field: aclrtPlaceHolderInfo::addrOffset"]
        [::core::mem::offset_of!(aclrtPlaceHolderInfo, addrOffset) - 0usize];
    ["Offset of field: aclrtPlaceHolderInfo::dataOffset"]
        [::core::mem::offset_of!(aclrtPlaceHolderInfo, dataOffset) - 4usize];
};
pub const ACL_FUNC_ATTR_KERNEL_TYPE: aclrtFuncAttribute = 1;
/// Facts about a kernel.
pub type aclrtFuncAttribute = ::core::ffi::c_uint;
pub const ACL_EVENT_SYNC: u32 = 1;
pub const ACL_EVENT_CAPTURE_STREAM_PROGRESS: u32 = 2;
pub const ACL_EVENT_TIME_LINE: u32 = 8;
pub const ACL_EVENT_DEVICE_USE_ONLY: u32 = 16;
pub const ACL_EVENT_EXTERNAL: u32 = 32;
pub const ACL_EVENT_IPC: u32 = 64;
pub const ACL_STREAM_FAST_LAUNCH: u32 = 1;
pub const ACL_STREAM_FAST_SYNC: u32 = 2;
pub const ACL_STREAM_PERSISTENT: u32 = 4;
pub const ACL_STREAM_HUGE: u32 = 8;
pub const ACL_STREAM_CPU_SCHEDULE: u32 = 16;
pub const ACL_STREAM_DEVICE_USE_ONLY: u32 = 32;
pub const ACL_MODEL_STREAM_FLAG_HEAD: u32 = 0;
pub const ACL_MODEL_STREAM_FLAG_DEFAULT: u32 = 2147483647;
pub const ACL_RT_BINARY_MAGIC_ELF_AICORE: u32 = 1129660997;
pub const ACL_RT_BINARY_MAGIC_ELF_VECTOR_CORE: u32 = 1094799942;
pub const ACL_RT_BINARY_MAGIC_ELF_CUBE_CORE: u32 = 1095320387;
pub const ACL_SUCCESS: ::core::ffi::c_int = 0;
pub const ACL_ERROR_INVALID_PARAM: ::core::ffi::c_int = 100000;
pub const ACL_ERROR_UNINITIALIZE: ::core::ffi::c_int = 100001;
pub const ACL_ERROR_REPEAT_INITIALIZE: ::core::ffi::c_int = 100002;
pub const ACL_ERROR_INVALID_FILE: ::core::ffi::c_int = 100003;
pub const ACL_ERROR_INVALID_MODEL_ID: ::core::ffi::c_int = 100011;
pub const ACL_ERROR_OP_NOT_FOUND: ::core::ffi::c_int = 100024;
pub const ACL_ERROR_KERNEL_NOT_FOUND: ::core::ffi::c_int = 100029;
pub const ACL_ERROR_WAIT_CALLBACK_TIMEOUT: ::core::ffi::c_int = 100036;
pub const ACL_ERROR_REPEAT_FINALIZE: ::core::ffi::c_int = 100037;
pub const ACL_ERROR_COMPILING_STUB_MODE: ::core::ffi::c_int = 100039;
pub const ACL_ERROR_BAD_ALLOC: ::core::ffi::c_int = 200000;
pub const ACL_ERROR_API_NOT_SUPPORT: ::core::ffi::c_int = 200001;
pub const ACL_ERROR_MEMORY_ADDRESS_UNALIGNED: ::core::ffi::c_int = 200003;
pub const ACL_ERROR_FEATURE_UNSUPPORTED: ::core::ffi::c_int = 200006;
pub const ACL_ERROR_STORAGE_OVER_LIMIT: ::core::ffi::c_int = 300000;
pub const ACL_ERROR_INTERNAL_ERROR: ::core::ffi::c_int = 500000;
pub const ACL_ERROR_FAILURE: ::core::ffi::c_int = 500001;
pub const ACL_ERROR_GE_FAILURE: ::core::ffi::c_int = 500002;
pub const ACL_ERROR_RT_FAILURE: ::core::ffi::c_int = 500003;
pub const ACL_ERROR_DRV_FAILURE: ::core::ffi::c_int = 500004;
pub const ACL_ERROR_RT_PARAM_INVALID: ::core::ffi::c_int = 107000;
pub const ACL_ERROR_RT_INVALID_DEVICEID: ::core::ffi::c_int = 107001;
pub const ACL_ERROR_RT_CONTEXT_NULL: ::core::ffi::c_int = 107002;
pub const ACL_ERROR_RT_STREAM_CONTEXT: ::core::ffi::c_int = 107003;
pub const ACL_ERROR_RT_MODEL_CONTEXT: ::core::ffi::c_int = 107004;
pub const ACL_ERROR_RT_STREAM_MODEL: ::core::ffi::c_int = 107005;
pub const ACL_ERROR_RT_EVENT_TIMESTAMP_INVALID: ::core::ffi::c_int = 107006;
pub const ACL_ERROR_RT_EVENT_TIMESTAMP_REVERSAL: ::core::ffi::c_int = 107007;
pub const ACL_ERROR_RT_ADDR_UNALIGNED: ::core::ffi::c_int = 107008;
pub const ACL_ERROR_RT_FILE_OPEN: ::core::ffi::c_int = 107009;
pub const ACL_ERROR_RT_STREAM_SUBSCRIBE: ::core::ffi::c_int = 107011;
pub const ACL_ERROR_RT_THREAD_SUBSCRIBE: ::core::ffi::c_int = 107012;
pub const ACL_ERROR_RT_STREAM_NO_CB_REG: ::core::ffi::c_int = 107015;
pub const ACL_ERROR_RT_INVALID_MEMORY_TYPE: ::core::ffi::c_int = 107016;
pub const ACL_ERROR_RT_INVALID_HANDLE: ::core::ffi::c_int = 107017;
pub const ACL_ERROR_RT_INVALID_MALLOC_TYPE: ::core::ffi::c_int = 107018;
pub const ACL_ERROR_RT_WAIT_TIMEOUT: ::core::ffi::c_int = 107019;
pub const ACL_ERROR_RT_TASK_TIMEOUT: ::core::ffi::c_int = 107020;
pub const ACL_ERROR_RT_DEVICE_TASK_ABORT: ::core::ffi::c_int = 107022;
pub const ACL_ERROR_RT_STREAM_ABORT: ::core::ffi::c_int = 107023;
pub const ACL_ERROR_RT_CAPTURE_DEPENDENCY: ::core::ffi::c_int = 107024;
pub const ACL_ERROR_RT_STREAM_UNJOINED: ::core::ffi::c_int = 107025;
pub const ACL_ERROR_RT_MODEL_CAPTURED: ::core::ffi::c_int = 107026;
pub const ACL_ERROR_RT_STREAM_CAPTURED: ::core::ffi::c_int = 107027;
pub const ACL_ERROR_RT_EVENT_CAPTURED: ::core::ffi::c_int = 107028;
pub const ACL_ERROR_RT_STREAM_NOT_CAPTURED: ::core::ffi::c_int = 107029;
pub const ACL_ERROR_RT_CAPTURE_MODE_NOT_SUPPORT: ::core::ffi::c_int = 107030;
pub const ACL_ERROR_RT_STREAM_CAPTURE_IMPLICIT: ::core::ffi::c_int = 107031;
pub const ACL_ERROR_STREAM_CAPTURE_CONFLICT: ::core::ffi::c_int = 107032;
pub const ACL_ERROR_STREAM_TASK_GROUP_STATUS: ::core::ffi::c_int = 107033;
pub const ACL_ERROR_STREAM_TASK_GROUP_INTR: ::core::ffi::c_int = 107034;
pub const ACL_ERROR_RT_STREAM_CAPTURE_UNMATCHED: ::core::ffi::c_int = 107036;
pub const ACL_ERROR_RT_MODEL_RUNNING: ::core::ffi::c_int = 107037;
pub const ACL_ERROR_RT_STREAM_CAPTURE_WRONG_THREAD: ::core::ffi::c_int = 107038;
pub const ACL_ERROR_RT_FEATURE_NOT_SUPPORT: ::core::ffi::c_int = 207000;
pub const ACL_ERROR_RT_MEMORY_ALLOCATION: ::core::ffi::c_int = 207001;
pub const ACL_ERROR_RT_MEMORY_FREE: ::core::ffi::c_int = 207002;
pub const ACL_ERROR_RT_AICORE_OVER_FLOW: ::core::ffi::c_int = 207003;
pub const ACL_ERROR_RT_NO_DEVICE: ::core::ffi::c_int = 207004;
pub const ACL_ERROR_RT_RESOURCE_ALLOC_FAIL: ::core::ffi::c_int = 207005;
pub const ACL_ERROR_RT_NO_PERMISSION: ::core::ffi::c_int = 207006;
pub const ACL_ERROR_RT_NO_EVENT_RESOURCE: ::core::ffi::c_int = 207007;
pub const ACL_ERROR_RT_NO_STREAM_RESOURCE: ::core::ffi::c_int = 207008;
pub const ACL_ERROR_RT_NO_NOTIFY_RESOURCE: ::core::ffi::c_int = 207009;
pub const ACL_ERROR_RT_NO_MODEL_RESOURCE: ::core::ffi::c_int = 207010;
pub const ACL_ERROR_RT_OVER_LIMIT: ::core::ffi::c_int = 207012;
pub const ACL_ERROR_RT_QUEUE_EMPTY: ::core::ffi::c_int = 207013;
pub const ACL_ERROR_RT_QUEUE_FULL: ::core::ffi::c_int = 207014;
pub const ACL_ERROR_RT_AIVEC_OVER_FLOW: ::core::ffi::c_int = 207016;
pub const ACL_ERROR_RT_OVER_FLOW: ::core::ffi::c_int = 207017;
pub const ACL_ERROR_RT_DEVICE_OOM: ::core::ffi::c_int = 207018;
pub const ACL_ERROR_RT_FEATURE_NOT_SUPPORT_UPDATE_OP: ::core::ffi::c_int = 207019;
pub const ACL_ERROR_RT_INTERNAL_ERROR: ::core::ffi::c_int = 507000;
pub const ACL_ERROR_RT_STREAM_TASK_FULL: ::core::ffi::c_int = 507002;
pub const ACL_ERROR_RT_SOC_VERSION: ::core::ffi::c_int = 507008;
pub const ACL_ERROR_RT_TASK_TYPE_NOT_SUPPORT: ::core::ffi::c_int = 507009;
pub const ACL_ERROR_RT_LOST_HEARTBEAT: ::core::ffi::c_int = 507010;
pub const ACL_ERROR_RT_MODEL_EXECUTE: ::core::ffi::c_int = 507011;
pub const ACL_ERROR_RT_AICORE_TIMEOUT: ::core::ffi::c_int = 507014;
pub const ACL_ERROR_RT_AICORE_EXCEPTION: ::core::ffi::c_int = 507015;
pub const ACL_ERROR_RT_AICPU_TIMEOUT: ::core::ffi::c_int = 507017;
pub const ACL_ERROR_RT_AICPU_EXCEPTION: ::core::ffi::c_int = 507018;
pub const ACL_ERROR_RT_MODEL_ABORT_NORMAL: ::core::ffi::c_int = 507023;
pub const ACL_ERROR_RT_KERNEL_LOOKUP: ::core::ffi::c_int = 507027;
pub const ACL_ERROR_RT_KERNEL_DUPLICATE: ::core::ffi::c_int = 507028;
pub const ACL_ERROR_RT_VECTOR_CORE_TIMEOUT: ::core::ffi::c_int = 507034;
pub const ACL_ERROR_RT_VECTOR_CORE_EXCEPTION: ::core::ffi::c_int = 507035;
pub const ACL_ERROR_RT_AICORE_TRAP_READ_OVERFLOW: ::core::ffi::c_int = 507042;
pub const ACL_ERROR_RT_AICORE_TRAP_WRITE_OVERFLOW: ::core::ffi::c_int = 507043;
pub const ACL_ERROR_RT_VECTOR_CORE_TRAP_READ_OVERFLOW: ::core::ffi::c_int = 507044;
pub const ACL_ERROR_RT_VECTOR_CORE_TRAP_WRITE_OVERFLOW: ::core::ffi::c_int = 507045;
pub const ACL_ERROR_RT_STREAM_SYNC_TIMEOUT: ::core::ffi::c_int = 507046;
pub const ACL_ERROR_RT_EVENT_SYNC_TIMEOUT: ::core::ffi::c_int = 507047;
pub const ACL_ERROR_RT_DEVICE_MEM_ERROR: ::core::ffi::c_int = 507053;
pub const ACL_ERROR_RT_HBM_MULTI_BIT_ECC_ERROR: ::core::ffi::c_int = 507054;
pub const ACL_ERROR_RT_LINK_ERROR: ::core::ffi::c_int = 507056;
pub const ACL_ERROR_RT_DRV_INTERNAL_ERROR: ::core::ffi::c_int = 507899;
pub const ACL_ERROR_RT_STREAM_CAPTURE_INVALIDATED: ::core::ffi::c_int = 507903;
pub const ACLNN_SUCCESS: ::core::ffi::c_int = 0;
pub const ACLNN_ERR_PARAM_NULLPTR: ::core::ffi::c_int = 161001;
pub const ACLNN_ERR_PARAM_INVALID: ::core::ffi::c_int = 161002;
pub const ACLNN_ERR_RUNTIME_ERROR: ::core::ffi::c_int = 361001;
pub const ACLNN_ERR_INNER: ::core::ffi::c_int = 561000;
pub const ACLNN_ERR_INNER_INFERSHAPE_ERROR: ::core::ffi::c_int = 561001;
pub const ACLNN_ERR_INNER_TILING_ERROR: ::core::ffi::c_int = 561002;
pub const ACLNN_ERR_INNER_FIND_KERNEL_ERROR: ::core::ffi::c_int = 561003;
pub const ACLNN_ERR_INNER_CREATE_EXECUTOR: ::core::ffi::c_int = 561101;
pub const ACLNN_ERR_INNER_NOT_TRANS_EXECUTOR: ::core::ffi::c_int = 561102;
pub const ACLNN_ERR_INNER_NULLPTR: ::core::ffi::c_int = 561103;
pub const ACLNN_ERR_INNER_OPP_PATH_NOT_FOUND: ::core::ffi::c_int = 561107;
pub const ACLNN_ERR_INNER_OPP_KERNEL_PKG_NOT_FOUND: ::core::ffi::c_int = 561112;
