// The part of the Ascend runtime interface that this project calls: types, numbers and functions of
// libascendcl and libnnopbase, written from the public documentation of the interface (toolkit 8.1
// to 9.x). Names, orders and numbers are those of the interface; everything else is ours.
//
// `cargo xtask bindings` makes src/sys.rs and src/functions.rs of it. `cargo xtask check-acl` compares
// it with the headers of a torch-npu package, declaration by declaration.
//
// A function is preceded by ACL_FUNC(library, release, need): the library whose symbol it is, the first
// release of the toolkit that has it with these parameters, and whether the device half can do
// without it (`optional`) or not (`required`).
#ifndef PRECAST_ACL_H
#define PRECAST_ACL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define ACL_FUNC(library, release, need)

/// What every function of the runtime returns; 0 is success.
typedef int aclError;
/// What operators return; 0 is success.
typedef int32_t aclnnStatus;

/// A queue of work of a device; null is the default one of the current context.
typedef void *aclrtStream;
/// A point in the work of a stream that others can wait for.
typedef void *aclrtEvent;
/// What a thread works in: a device and the objects made on it.
typedef void *aclrtContext;
/// A recorded sequence of work that is executed as a whole.
typedef void *aclmdlRI;
/// A task of a recorded sequence.
typedef void *aclmdlRITask;
/// Tasks of a capture whose parameters can be replaced later.
typedef void *aclrtTaskGrp;
/// A loaded kernel binary.
typedef void *aclrtBinHandle;
/// A kernel of a loaded binary.
typedef void *aclrtFuncHandle;
/// The arguments of a launch while they are put together.
typedef void *aclrtArgsHandle;
/// One of the arguments of a launch.
typedef void *aclrtParamHandle;
/// A function of the host that a stream calls.
typedef void (*aclrtHostFunc)(void *args);

/// A described buffer.
typedef struct aclTensor aclTensor;
/// A number with an element type.
typedef struct aclScalar aclScalar;
/// Whole numbers on the host.
typedef struct aclIntArray aclIntArray;
/// Numbers on the host.
typedef struct aclFloatArray aclFloatArray;
/// Flags on the host.
typedef struct aclBoolArray aclBoolArray;
/// A list of tensors, which it owns.
typedef struct aclTensorList aclTensorList;
/// A list of scalars, which it owns.
typedef struct aclScalarList aclScalarList;
/// An operator bound to its parameters, between its two phases.
typedef struct aclOpExecutor aclOpExecutor;

/// Element types.
typedef enum {
    ACL_DT_UNDEFINED = -1,
    ACL_FLOAT = 0,
    ACL_FLOAT16 = 1,
    ACL_INT8 = 2,
    ACL_INT32 = 3,
    ACL_UINT8 = 4,
    ACL_INT16 = 6,
    ACL_UINT16 = 7,
    ACL_UINT32 = 8,
    ACL_INT64 = 9,
    ACL_UINT64 = 10,
    ACL_DOUBLE = 11,
    ACL_BOOL = 12,
    ACL_STRING = 13,
    ACL_COMPLEX64 = 16,
    ACL_COMPLEX128 = 17,
    ACL_BF16 = 27,
    ACL_INT4 = 29,
    ACL_UINT1 = 30,
    ACL_COMPLEX32 = 33,
    ACL_HIFLOAT8 = 34,
    ACL_FLOAT8_E5M2 = 35,
    ACL_FLOAT8_E4M3FN = 36,
    ACL_FLOAT8_E8M0 = 37,
    ACL_FLOAT6_E3M2 = 38,
    ACL_FLOAT6_E2M3 = 39,
    ACL_FLOAT4_E2M1 = 40,
    ACL_FLOAT4_E1M2 = 41
} aclDataType;

/// How a tensor is stored.
typedef enum {
    ACL_FORMAT_UNDEFINED = -1,
    ACL_FORMAT_NCHW = 0,
    ACL_FORMAT_NHWC = 1,
    ACL_FORMAT_ND = 2,
    ACL_FORMAT_NC1HWC0 = 3,
    ACL_FORMAT_FRACTAL_Z = 4,
    ACL_FORMAT_NC1HWC0_C04 = 12,
    ACL_FORMAT_HWCN = 16,
    ACL_FORMAT_NDHWC = 27,
    ACL_FORMAT_FRACTAL_NZ = 29,
    ACL_FORMAT_NCDHW = 30,
    ACL_FORMAT_NDC1HWC0 = 32,
    ACL_FRACTAL_Z_3D = 33,
    ACL_FORMAT_NC = 35,
    ACL_FORMAT_NCL = 47
} aclFormat;

/// Which pages device memory is made of.
typedef enum aclrtMemMallocPolicy {
    ACL_MEM_MALLOC_HUGE_FIRST = 0,
    ACL_MEM_MALLOC_HUGE_ONLY = 1,
    ACL_MEM_MALLOC_NORMAL_ONLY = 2,
    ACL_MEM_MALLOC_HUGE_FIRST_P2P = 3,
    ACL_MEM_MALLOC_HUGE_ONLY_P2P = 4,
    ACL_MEM_MALLOC_NORMAL_ONLY_P2P = 5,
    ACL_MEM_MALLOC_HUGE1G_ONLY = 6,
    ACL_MEM_MALLOC_HUGE1G_ONLY_P2P = 7,
    ACL_MEM_TYPE_LOW_BAND_WIDTH = 0x0100,
    ACL_MEM_TYPE_HIGH_BAND_WIDTH = 0x1000
} aclrtMemMallocPolicy;

/// Between which memories a copy goes.
typedef enum aclrtMemcpyKind {
    ACL_MEMCPY_HOST_TO_HOST = 0,
    ACL_MEMCPY_HOST_TO_DEVICE = 1,
    ACL_MEMCPY_DEVICE_TO_HOST = 2,
    ACL_MEMCPY_DEVICE_TO_DEVICE = 3,
    ACL_MEMCPY_DEFAULT = 4,
    ACL_MEMCPY_HOST_TO_BUF_TO_DEVICE = 5,
    ACL_MEMCPY_INNER_DEVICE_TO_DEVICE = 6,
    ACL_MEMCPY_INTER_DEVICE_TO_DEVICE = 7
} aclrtMemcpyKind;

/// Which memory is asked about.
typedef enum aclrtMemAttr {
    ACL_DDR_MEM = 0,
    ACL_HBM_MEM = 1,
    ACL_DDR_MEM_HUGE = 2,
    ACL_DDR_MEM_NORMAL = 3,
    ACL_HBM_MEM_HUGE = 4,
    ACL_HBM_MEM_NORMAL = 5
} aclrtMemAttr;

/// Whether a stream has work left.
typedef enum aclrtStreamStatus {
    ACL_STREAM_STATUS_COMPLETE = 0,
    ACL_STREAM_STATUS_NOT_READY = 1,
    ACL_STREAM_STATUS_RESERVED = 0xFFFF
} aclrtStreamStatus;

/// Attributes of a stream.
typedef enum {
    ACL_STREAM_ATTR_FAILURE_MODE = 1,
    ACL_STREAM_ATTR_FLOAT_OVERFLOW_CHECK = 2,
    ACL_STREAM_ATTR_USER_CUSTOM_TAG = 3,
    ACL_STREAM_ATTR_CACHE_OP_INFO = 4
} aclrtStreamAttr;

/// Value of an attribute of a stream.
typedef union {
    uint64_t failureMode;
    uint32_t overflowSwitch;
    uint32_t userCustomTag;
    uint32_t cacheOpInfoSwitch;
    uint32_t reserve[4];
} aclrtStreamAttrValue;

/// Whether the work before an event is complete.
typedef enum aclrtEventRecordedStatus {
    ACL_EVENT_RECORDED_STATUS_NOT_READY = 0,
    ACL_EVENT_RECORDED_STATUS_COMPLETE = 1
} aclrtEventRecordedStatus;

/// Facts about a device.
typedef enum {
    ACL_DEV_ATTR_AICPU_CORE_NUM = 1,
    ACL_DEV_ATTR_AICORE_CORE_NUM = 101,
    ACL_DEV_ATTR_CUBE_CORE_NUM = 102,
    ACL_DEV_ATTR_VECTOR_CORE_NUM = 201,
    ACL_DEV_ATTR_WARP_SIZE = 202,
    ACL_DEV_ATTR_MAX_THREAD_PER_VECTOR_CORE = 203,
    ACL_DEV_ATTR_LOCAL_MEM_PER_VECTOR_CORE = 204,
    ACL_DEV_ATTR_TOTAL_GLOBAL_MEM_SIZE = 301,
    ACL_DEV_ATTR_L2_CACHE_SIZE = 302
} aclrtDevAttr;

/// Facts about a device, as older releases tell them.
typedef enum {
    ACL_DEVICE_INFO_UNDEFINED = -1,
    ACL_DEVICE_INFO_AI_CORE_NUM = 0,
    ACL_DEVICE_INFO_VECTOR_CORE_NUM = 1,
    ACL_DEVICE_INFO_L2_SIZE = 2
} aclDeviceInfo;

/// Packages of the toolkit.
typedef enum aclCANNPackageName {
    ACL_PKG_NAME_CANN = 0,
    ACL_PKG_NAME_RUNTIME = 1,
    ACL_PKG_NAME_COMPILER = 2,
    ACL_PKG_NAME_HCCL = 3,
    ACL_PKG_NAME_TOOLKIT = 4,
    ACL_PKG_NAME_OPP = 5,
    ACL_PKG_NAME_OPP_KERNEL = 6,
    ACL_PKG_NAME_DRIVER = 7
} aclCANNPackageName;

/// Version of a package, in texts that end with a zero byte.
typedef struct aclCANNPackageVersion {
    char version[128];
    char majorVersion[64];
    char minorVersion[64];
    char releaseVersion[64];
    char patchVersion[64];
    char reserved[128];
} aclCANNPackageVersion;

/// What other work is allowed while a capture is open.
typedef enum {
    ACL_MODEL_RI_CAPTURE_MODE_GLOBAL = 0,
    ACL_MODEL_RI_CAPTURE_MODE_THREAD_LOCAL = 1,
    ACL_MODEL_RI_CAPTURE_MODE_RELAXED = 2
} aclmdlRICaptureMode;

/// What a stream's capture has come to.
typedef enum {
    ACL_MODEL_RI_CAPTURE_STATUS_NONE = 0,
    ACL_MODEL_RI_CAPTURE_STATUS_ACTIVE = 1,
    ACL_MODEL_RI_CAPTURE_STATUS_INVALIDATED = 2
} aclmdlRICaptureStatus;

/// Options of a launch.
typedef enum aclrtLaunchKernelAttrId {
    ACL_RT_LAUNCH_KERNEL_ATTR_SCHEM_MODE = 1,
    ACL_RT_LAUNCH_KERNEL_ATTR_LOCAL_MEMORY_SIZE = 2,
    ACL_RT_LAUNCH_KERNEL_ATTR_ENGINE_TYPE = 3,
    ACL_RT_LAUNCH_KERNEL_ATTR_BLOCKDIM_OFFSET = 4,
    ACL_RT_LAUNCH_KERNEL_ATTR_BLOCK_TASK_PREFETCH = 5,
    ACL_RT_LAUNCH_KERNEL_ATTR_DATA_DUMP = 6,
    ACL_RT_LAUNCH_KERNEL_ATTR_TIMEOUT = 7,
    ACL_RT_LAUNCH_KERNEL_ATTR_TIMEOUT_US = 8
} aclrtLaunchKernelAttrId;

/// Value of an option of a launch. `schemMode` is 0 to start as soon as one core is free, 1 to wait
/// until all are.
typedef union aclrtLaunchKernelAttrValue {
    uint8_t schemMode;
    uint32_t localMemorySize;
    uint32_t blockDimOffset;
    uint8_t isBlockTaskPrefetch;
    uint8_t isDataDump;
    uint16_t timeout;
    uint32_t rsv[4];
} aclrtLaunchKernelAttrValue;

/// An option of a launch.
typedef struct aclrtLaunchKernelAttr {
    aclrtLaunchKernelAttrId id;
    aclrtLaunchKernelAttrValue value;
} aclrtLaunchKernelAttr;

/// Options of a launch.
typedef struct aclrtLaunchKernelCfg {
    aclrtLaunchKernelAttr *attrs;
    size_t numAttrs;
} aclrtLaunchKernelCfg;

/// Options of loading a binary.
typedef enum aclrtBinaryLoadOptionType {
    ACL_RT_BINARY_LOAD_OPT_LAZY_LOAD = 1,
    ACL_RT_BINARY_LOAD_OPT_MAGIC = 2,
    ACL_RT_BINARY_LOAD_OPT_CPU_KERNEL_MODE = 3
} aclrtBinaryLoadOptionType;

/// Value of an option of loading a binary.
typedef union aclrtBinaryLoadOptionValue {
    uint32_t isLazyLoad;
    uint32_t magic;
    int32_t cpuKernelMode;
    uint32_t rsv[4];
} aclrtBinaryLoadOptionValue;

/// An option of loading a binary.
typedef struct {
    aclrtBinaryLoadOptionType type;
    aclrtBinaryLoadOptionValue value;
} aclrtBinaryLoadOption;

/// Options of loading a binary.
typedef struct aclrtBinaryLoadOptions {
    aclrtBinaryLoadOption *options;
    size_t numOpt;
} aclrtBinaryLoadOptions;

/// A slot of a launch's arguments that receives the device address of a part of them.
typedef struct {
    uint32_t addrOffset;
    uint32_t dataOffset;
} aclrtPlaceHolderInfo;

/// Facts about a kernel.
typedef enum {
    ACL_FUNC_ATTR_KERNEL_TYPE = 1
} aclrtFuncAttribute;

// Flags of events.
static const uint32_t ACL_EVENT_SYNC = 0x1;
static const uint32_t ACL_EVENT_CAPTURE_STREAM_PROGRESS = 0x2;
static const uint32_t ACL_EVENT_TIME_LINE = 0x8;
static const uint32_t ACL_EVENT_DEVICE_USE_ONLY = 0x10;
static const uint32_t ACL_EVENT_EXTERNAL = 0x20;
static const uint32_t ACL_EVENT_IPC = 0x40;

// Flags of streams.
static const uint32_t ACL_STREAM_FAST_LAUNCH = 0x1;
static const uint32_t ACL_STREAM_FAST_SYNC = 0x2;
static const uint32_t ACL_STREAM_PERSISTENT = 0x4;
static const uint32_t ACL_STREAM_HUGE = 0x8;
static const uint32_t ACL_STREAM_CPU_SCHEDULE = 0x10;
static const uint32_t ACL_STREAM_DEVICE_USE_ONLY = 0x20;

// How a stream belongs to an explicitly built sequence.
static const uint32_t ACL_MODEL_STREAM_FLAG_HEAD = 0x0;
static const uint32_t ACL_MODEL_STREAM_FLAG_DEFAULT = 0x7FFFFFFF;

// First words of kernel binaries.
static const uint32_t ACL_RT_BINARY_MAGIC_ELF_AICORE = 0x43554245;
static const uint32_t ACL_RT_BINARY_MAGIC_ELF_VECTOR_CORE = 0x41415246;
static const uint32_t ACL_RT_BINARY_MAGIC_ELF_CUBE_CORE = 0x41494343;

// Results of the interface.
static const int ACL_SUCCESS = 0;
static const int ACL_ERROR_INVALID_PARAM = 100000;
static const int ACL_ERROR_UNINITIALIZE = 100001;
static const int ACL_ERROR_REPEAT_INITIALIZE = 100002;
static const int ACL_ERROR_INVALID_FILE = 100003;
static const int ACL_ERROR_INVALID_MODEL_ID = 100011;
static const int ACL_ERROR_OP_NOT_FOUND = 100024;
static const int ACL_ERROR_KERNEL_NOT_FOUND = 100029;
static const int ACL_ERROR_WAIT_CALLBACK_TIMEOUT = 100036;
static const int ACL_ERROR_REPEAT_FINALIZE = 100037;
static const int ACL_ERROR_COMPILING_STUB_MODE = 100039;
static const int ACL_ERROR_BAD_ALLOC = 200000;
static const int ACL_ERROR_API_NOT_SUPPORT = 200001;
static const int ACL_ERROR_MEMORY_ADDRESS_UNALIGNED = 200003;
static const int ACL_ERROR_FEATURE_UNSUPPORTED = 200006;
static const int ACL_ERROR_STORAGE_OVER_LIMIT = 300000;
static const int ACL_ERROR_INTERNAL_ERROR = 500000;
static const int ACL_ERROR_FAILURE = 500001;
static const int ACL_ERROR_GE_FAILURE = 500002;
static const int ACL_ERROR_RT_FAILURE = 500003;
static const int ACL_ERROR_DRV_FAILURE = 500004;

// Results of the runtime: mistakes of the caller.
static const int ACL_ERROR_RT_PARAM_INVALID = 107000;
static const int ACL_ERROR_RT_INVALID_DEVICEID = 107001;
static const int ACL_ERROR_RT_CONTEXT_NULL = 107002;
static const int ACL_ERROR_RT_STREAM_CONTEXT = 107003;
static const int ACL_ERROR_RT_MODEL_CONTEXT = 107004;
static const int ACL_ERROR_RT_STREAM_MODEL = 107005;
static const int ACL_ERROR_RT_EVENT_TIMESTAMP_INVALID = 107006;
static const int ACL_ERROR_RT_EVENT_TIMESTAMP_REVERSAL = 107007;
static const int ACL_ERROR_RT_ADDR_UNALIGNED = 107008;
static const int ACL_ERROR_RT_FILE_OPEN = 107009;
static const int ACL_ERROR_RT_STREAM_SUBSCRIBE = 107011;
static const int ACL_ERROR_RT_THREAD_SUBSCRIBE = 107012;
static const int ACL_ERROR_RT_STREAM_NO_CB_REG = 107015;
static const int ACL_ERROR_RT_INVALID_MEMORY_TYPE = 107016;
static const int ACL_ERROR_RT_INVALID_HANDLE = 107017;
static const int ACL_ERROR_RT_INVALID_MALLOC_TYPE = 107018;
static const int ACL_ERROR_RT_WAIT_TIMEOUT = 107019;
static const int ACL_ERROR_RT_TASK_TIMEOUT = 107020;
static const int ACL_ERROR_RT_DEVICE_TASK_ABORT = 107022;
static const int ACL_ERROR_RT_STREAM_ABORT = 107023;
static const int ACL_ERROR_RT_CAPTURE_DEPENDENCY = 107024;
static const int ACL_ERROR_RT_STREAM_UNJOINED = 107025;
static const int ACL_ERROR_RT_MODEL_CAPTURED = 107026;
static const int ACL_ERROR_RT_STREAM_CAPTURED = 107027;
static const int ACL_ERROR_RT_EVENT_CAPTURED = 107028;
static const int ACL_ERROR_RT_STREAM_NOT_CAPTURED = 107029;
static const int ACL_ERROR_RT_CAPTURE_MODE_NOT_SUPPORT = 107030;
static const int ACL_ERROR_RT_STREAM_CAPTURE_IMPLICIT = 107031;
static const int ACL_ERROR_STREAM_CAPTURE_CONFLICT = 107032;
static const int ACL_ERROR_STREAM_TASK_GROUP_STATUS = 107033;
static const int ACL_ERROR_STREAM_TASK_GROUP_INTR = 107034;
static const int ACL_ERROR_RT_STREAM_CAPTURE_UNMATCHED = 107036;
static const int ACL_ERROR_RT_MODEL_RUNNING = 107037;
static const int ACL_ERROR_RT_STREAM_CAPTURE_WRONG_THREAD = 107038;

// Results of the runtime: what there is not enough of.
static const int ACL_ERROR_RT_FEATURE_NOT_SUPPORT = 207000;
static const int ACL_ERROR_RT_MEMORY_ALLOCATION = 207001;
static const int ACL_ERROR_RT_MEMORY_FREE = 207002;
static const int ACL_ERROR_RT_AICORE_OVER_FLOW = 207003;
static const int ACL_ERROR_RT_NO_DEVICE = 207004;
static const int ACL_ERROR_RT_RESOURCE_ALLOC_FAIL = 207005;
static const int ACL_ERROR_RT_NO_PERMISSION = 207006;
static const int ACL_ERROR_RT_NO_EVENT_RESOURCE = 207007;
static const int ACL_ERROR_RT_NO_STREAM_RESOURCE = 207008;
static const int ACL_ERROR_RT_NO_NOTIFY_RESOURCE = 207009;
static const int ACL_ERROR_RT_NO_MODEL_RESOURCE = 207010;
static const int ACL_ERROR_RT_OVER_LIMIT = 207012;
static const int ACL_ERROR_RT_QUEUE_EMPTY = 207013;
static const int ACL_ERROR_RT_QUEUE_FULL = 207014;
static const int ACL_ERROR_RT_AIVEC_OVER_FLOW = 207016;
static const int ACL_ERROR_RT_OVER_FLOW = 207017;
static const int ACL_ERROR_RT_DEVICE_OOM = 207018;
static const int ACL_ERROR_RT_FEATURE_NOT_SUPPORT_UPDATE_OP = 207019;

// Results of the runtime: failures inside it or on the device.
static const int ACL_ERROR_RT_INTERNAL_ERROR = 507000;
static const int ACL_ERROR_RT_STREAM_TASK_FULL = 507002;
static const int ACL_ERROR_RT_SOC_VERSION = 507008;
static const int ACL_ERROR_RT_TASK_TYPE_NOT_SUPPORT = 507009;
static const int ACL_ERROR_RT_LOST_HEARTBEAT = 507010;
static const int ACL_ERROR_RT_MODEL_EXECUTE = 507011;
static const int ACL_ERROR_RT_AICORE_TIMEOUT = 507014;
static const int ACL_ERROR_RT_AICORE_EXCEPTION = 507015;
static const int ACL_ERROR_RT_AICPU_TIMEOUT = 507017;
static const int ACL_ERROR_RT_AICPU_EXCEPTION = 507018;
static const int ACL_ERROR_RT_MODEL_ABORT_NORMAL = 507023;
static const int ACL_ERROR_RT_KERNEL_LOOKUP = 507027;
static const int ACL_ERROR_RT_KERNEL_DUPLICATE = 507028;
static const int ACL_ERROR_RT_VECTOR_CORE_TIMEOUT = 507034;
static const int ACL_ERROR_RT_VECTOR_CORE_EXCEPTION = 507035;
static const int ACL_ERROR_RT_AICORE_TRAP_READ_OVERFLOW = 507042;
static const int ACL_ERROR_RT_AICORE_TRAP_WRITE_OVERFLOW = 507043;
static const int ACL_ERROR_RT_VECTOR_CORE_TRAP_READ_OVERFLOW = 507044;
static const int ACL_ERROR_RT_VECTOR_CORE_TRAP_WRITE_OVERFLOW = 507045;
static const int ACL_ERROR_RT_STREAM_SYNC_TIMEOUT = 507046;
static const int ACL_ERROR_RT_EVENT_SYNC_TIMEOUT = 507047;
static const int ACL_ERROR_RT_DEVICE_MEM_ERROR = 507053;
static const int ACL_ERROR_RT_HBM_MULTI_BIT_ECC_ERROR = 507054;
static const int ACL_ERROR_RT_LINK_ERROR = 507056;
static const int ACL_ERROR_RT_DRV_INTERNAL_ERROR = 507899;
static const int ACL_ERROR_RT_STREAM_CAPTURE_INVALIDATED = 507903;

// Results of operators.
static const int ACLNN_SUCCESS = 0;
static const int ACLNN_ERR_PARAM_NULLPTR = 161001;
static const int ACLNN_ERR_PARAM_INVALID = 161002;
static const int ACLNN_ERR_RUNTIME_ERROR = 361001;
static const int ACLNN_ERR_INNER = 561000;
static const int ACLNN_ERR_INNER_INFERSHAPE_ERROR = 561001;
static const int ACLNN_ERR_INNER_TILING_ERROR = 561002;
static const int ACLNN_ERR_INNER_FIND_KERNEL_ERROR = 561003;
static const int ACLNN_ERR_INNER_CREATE_EXECUTOR = 561101;
static const int ACLNN_ERR_INNER_NOT_TRANS_EXECUTOR = 561102;
static const int ACLNN_ERR_INNER_NULLPTR = 561103;
static const int ACLNN_ERR_INNER_OPP_PATH_NOT_FOUND = 561107;
static const int ACLNN_ERR_INNER_OPP_KERNEL_PKG_NOT_FOUND = 561112;

#ifdef __cplusplus
extern "C" {
#endif

// Start and end.

/// Starts the runtime for this process. `configPath` may be null.
ACL_FUNC(ascendcl, V8_1, required)
aclError aclInit(const char *configPath);
/// Ends it. Older releases cannot start it again.
ACL_FUNC(ascendcl, V8_1, required)
aclError aclFinalize(void);
/// What the last failure of this thread was about; reading it forgets it. May be null.
ACL_FUNC(ascendcl, V8_1, required)
const char *aclGetRecentErrMsg(void);
/// Version of the interface.
ACL_FUNC(ascendcl, V8_1, required)
aclError aclrtGetVersion(int32_t *majorVersion, int32_t *minorVersion, int32_t *patchVersion);
/// Version of a package of the toolkit.
ACL_FUNC(ascendcl, V8_1, optional)
aclError aclsysGetCANNVersion(aclCANNPackageName name, aclCANNPackageVersion *version);

// Devices and contexts.

/// Name of the chip: `Ascend910B3`.
ACL_FUNC(ascendcl, V8_1, required)
const char *aclrtGetSocName(void);
/// Makes a device current on this thread; counted.
ACL_FUNC(ascendcl, V8_1, required)
aclError aclrtSetDevice(int32_t deviceId);
/// Takes back one `aclrtSetDevice`; the last one frees what is left on the device.
ACL_FUNC(ascendcl, V8_1, required)
aclError aclrtResetDevice(int32_t deviceId);
/// The current device.
ACL_FUNC(ascendcl, V8_1, required)
aclError aclrtGetDevice(int32_t *deviceId);
/// How many devices there are.
ACL_FUNC(ascendcl, V8_1, required)
aclError aclrtGetDeviceCount(uint32_t *count);
/// Waits for all work of the current device.
ACL_FUNC(ascendcl, V8_1, required)
aclError aclrtSynchronizeDevice(void);
/// Waits for all work of the current device for at most `timeout` milliseconds.
ACL_FUNC(ascendcl, V8_1, optional)
aclError aclrtSynchronizeDeviceWithTimeout(int32_t timeout);
/// A fact about a device.
ACL_FUNC(ascendcl, V8_5, optional)
aclError aclrtGetDeviceInfo(uint32_t deviceId, aclrtDevAttr attr, int64_t *value);
/// A fact about a device, as older releases tell it.
ACL_FUNC(ascendcl, V8_1, optional)
aclError aclGetDeviceCapability(uint32_t deviceId, aclDeviceInfo deviceInfo, int64_t *value);
/// Makes a context and makes it current on this thread.
ACL_FUNC(ascendcl, V8_1, required)
aclError aclrtCreateContext(aclrtContext *context, int32_t deviceId);
/// Destroys a context.
ACL_FUNC(ascendcl, V8_1, required)
aclError aclrtDestroyContext(aclrtContext context);
/// Makes a context current on this thread.
ACL_FUNC(ascendcl, V8_1, required)
aclError aclrtSetCurrentContext(aclrtContext context);
/// The context of this thread.
ACL_FUNC(ascendcl, V8_1, required)
aclError aclrtGetCurrentContext(aclrtContext *context);

// Streams.

/// Makes a stream.
ACL_FUNC(ascendcl, V8_1, required)
aclError aclrtCreateStream(aclrtStream *stream);
/// Makes a stream with a priority and flags `ACL_STREAM_*`.
ACL_FUNC(ascendcl, V8_1, required)
aclError aclrtCreateStreamWithConfig(aclrtStream *stream, uint32_t priority, uint32_t flag);
/// Destroys a stream after its work.
ACL_FUNC(ascendcl, V8_1, required)
aclError aclrtDestroyStream(aclrtStream stream);
/// Destroys a stream and drops its work.
ACL_FUNC(ascendcl, V8_1, required)
aclError aclrtDestroyStreamForce(aclrtStream stream);
/// Waits for the work of a stream.
ACL_FUNC(ascendcl, V8_1, required)
aclError aclrtSynchronizeStream(aclrtStream stream);
/// Waits for the work of a stream for at most `timeout` milliseconds; -1 is for ever.
ACL_FUNC(ascendcl, V8_1, required)
aclError aclrtSynchronizeStreamWithTimeout(aclrtStream stream, int32_t timeout);
/// Whether a stream has work left.
ACL_FUNC(ascendcl, V8_1, optional)
aclError aclrtStreamQuery(aclrtStream stream, aclrtStreamStatus *status);
/// Stops the work of a stream.
ACL_FUNC(ascendcl, V8_1, optional)
aclError aclrtStreamAbort(aclrtStream stream);
/// Number of a stream.
ACL_FUNC(ascendcl, V8_1, optional)
aclError aclrtStreamGetId(aclrtStream stream, int32_t *streamId);
/// Sets an attribute of a stream.
ACL_FUNC(ascendcl, V8_3, optional)
aclError aclrtSetStreamAttribute(aclrtStream stream, aclrtStreamAttr stmAttrType, aclrtStreamAttrValue *value);
/// How many more streams the device has.
ACL_FUNC(ascendcl, V8_5, optional)
aclError aclrtGetStreamAvailableNum(uint32_t *streamCount);

// Events.

/// Makes an event.
ACL_FUNC(ascendcl, V8_1, required)
aclError aclrtCreateEvent(aclrtEvent *event);
/// Makes an event with flags `ACL_EVENT_*`.
ACL_FUNC(ascendcl, V8_1, required)
aclError aclrtCreateEventWithFlag(aclrtEvent *event, uint32_t flag);
/// Makes an event that needs no reset between uses, with flags `ACL_EVENT_*`.
ACL_FUNC(ascendcl, V8_1, required)
aclError aclrtCreateEventExWithFlag(aclrtEvent *event, uint32_t flag);
/// Destroys an event.
ACL_FUNC(ascendcl, V8_1, required)
aclError aclrtDestroyEvent(aclrtEvent event);
/// Marks the work of a stream so far.
ACL_FUNC(ascendcl, V8_1, required)
aclError aclrtRecordEvent(aclrtEvent event, aclrtStream stream);
/// Makes later work of a stream wait for an event.
ACL_FUNC(ascendcl, V8_1, required)
aclError aclrtStreamWaitEvent(aclrtStream stream, aclrtEvent event);
/// Makes an event unmarked again, in the order of the stream.
ACL_FUNC(ascendcl, V8_1, required)
aclError aclrtResetEvent(aclrtEvent event, aclrtStream stream);
/// Waits for an event.
ACL_FUNC(ascendcl, V8_1, required)
aclError aclrtSynchronizeEvent(aclrtEvent event);
/// Waits for an event for at most `timeout` milliseconds.
ACL_FUNC(ascendcl, V8_1, optional)
aclError aclrtSynchronizeEventWithTimeout(aclrtEvent event, int32_t timeout);
/// Whether the work before an event is complete.
ACL_FUNC(ascendcl, V8_1, required)
aclError aclrtQueryEventStatus(aclrtEvent event, aclrtEventRecordedStatus *status);
/// Milliseconds between two events.
ACL_FUNC(ascendcl, V8_1, optional)
aclError aclrtEventElapsedTime(float *ms, aclrtEvent startEvent, aclrtEvent endEvent);
/// How many more events the device has.
ACL_FUNC(ascendcl, V8_5, optional)
aclError aclrtGetEventAvailNum(uint32_t *eventCount);

// Memory.

/// Device memory of `size` bytes, aligned to 64 bytes and at least 32 bytes longer than asked for.
ACL_FUNC(ascendcl, V8_1, required)
aclError aclrtMalloc(void **devPtr, size_t size, aclrtMemMallocPolicy policy);
/// Device memory without the 32 bytes past its end.
ACL_FUNC(ascendcl, V8_1, required)
aclError aclrtMallocAlign32(void **devPtr, size_t size, aclrtMemMallocPolicy policy);
/// Frees device memory.
ACL_FUNC(ascendcl, V8_1, required)
aclError aclrtFree(void *devPtr);
/// Host memory that the device can copy from and to by itself.
ACL_FUNC(ascendcl, V8_1, required)
aclError aclrtMallocHost(void **hostPtr, size_t size);
/// Frees it.
ACL_FUNC(ascendcl, V8_1, required)
aclError aclrtFreeHost(void *hostPtr);
/// Free and all bytes of a kind of memory.
ACL_FUNC(ascendcl, V8_1, required)
aclError aclrtGetMemInfo(aclrtMemAttr attr, size_t *free, size_t *total);
/// Copies `count` bytes and waits for it.
ACL_FUNC(ascendcl, V8_1, required)
aclError aclrtMemcpy(void *dst, size_t destMax, const void *src, size_t count, aclrtMemcpyKind kind);
/// Copies `count` bytes in the order of a stream.
ACL_FUNC(ascendcl, V8_1, required)
aclError aclrtMemcpyAsync(void *dst, size_t destMax, const void *src, size_t count, aclrtMemcpyKind kind, aclrtStream stream);
/// Sets `count` bytes and waits for it.
ACL_FUNC(ascendcl, V8_1, required)
aclError aclrtMemset(void *devPtr, size_t maxCount, int32_t value, size_t count);
/// Sets `count` bytes in the order of a stream.
ACL_FUNC(ascendcl, V8_1, required)
aclError aclrtMemsetAsync(void *devPtr, size_t maxCount, int32_t value, size_t count, aclrtStream stream);
/// Calls a function of the host in the order of a stream.
ACL_FUNC(ascendcl, V8_5, optional)
aclError aclrtLaunchHostFunc(aclrtStream stream, aclrtHostFunc fn, void *args);

// Recorded sequences: capture.

/// Starts to record what is put on a stream instead of running it.
ACL_FUNC(ascendcl, V8_1, required)
aclError aclmdlRICaptureBegin(aclrtStream stream, aclmdlRICaptureMode mode);
/// What a stream's capture has come to, and the sequence so far.
ACL_FUNC(ascendcl, V8_1, required)
aclError aclmdlRICaptureGetInfo(aclrtStream stream, aclmdlRICaptureStatus *status, aclmdlRI *modelRI);
/// Ends a capture on the stream that it began on.
ACL_FUNC(ascendcl, V8_1, required)
aclError aclmdlRICaptureEnd(aclrtStream stream, aclmdlRI *modelRI);
/// Swaps the capture mode of this thread.
ACL_FUNC(ascendcl, V8_1, required)
aclError aclmdlRICaptureThreadExchangeMode(aclmdlRICaptureMode *mode);
/// Starts tasks whose parameters can be replaced later.
ACL_FUNC(ascendcl, V8_1, required)
aclError aclmdlRICaptureTaskGrpBegin(aclrtStream stream);
/// Ends them.
ACL_FUNC(ascendcl, V8_1, required)
aclError aclmdlRICaptureTaskGrpEnd(aclrtStream stream, aclrtTaskGrp *handle);
/// Starts to replace the parameters of such tasks.
ACL_FUNC(ascendcl, V8_1, required)
aclError aclmdlRICaptureTaskUpdateBegin(aclrtStream stream, aclrtTaskGrp handle);
/// Ends it.
ACL_FUNC(ascendcl, V8_1, required)
aclError aclmdlRICaptureTaskUpdateEnd(aclrtStream stream);

// Recorded sequences: explicit build.

/// Starts a sequence. `flag` is 0.
ACL_FUNC(ascendcl, V8_5, optional)
aclError aclmdlRIBuildBegin(aclmdlRI *modelRI, uint32_t flag);
/// Makes what is put on a stream part of the sequence.
ACL_FUNC(ascendcl, V8_5, optional)
aclError aclmdlRIBindStream(aclmdlRI modelRI, aclrtStream stream, uint32_t flag);
/// Marks the end of a sequence's work on a stream.
ACL_FUNC(ascendcl, V8_5, optional)
aclError aclmdlRIEndTask(aclmdlRI modelRI, aclrtStream stream);
/// Makes a sequence ready. `reserve` is null.
ACL_FUNC(ascendcl, V8_5, optional)
aclError aclmdlRIBuildEnd(aclmdlRI modelRI, void *reserve);
/// Takes a stream out of a sequence.
ACL_FUNC(ascendcl, V8_5, optional)
aclError aclmdlRIUnbindStream(aclmdlRI modelRI, aclrtStream stream);
/// Names a sequence.
ACL_FUNC(ascendcl, V8_5, optional)
aclError aclmdlRISetName(aclmdlRI modelRI, const char *name);
/// Stops a running sequence.
ACL_FUNC(ascendcl, V8_5, optional)
aclError aclmdlRIAbort(aclmdlRI modelRI);

// Recorded sequences: use.

/// Puts a sequence on a stream.
ACL_FUNC(ascendcl, V8_1, required)
aclError aclmdlRIExecuteAsync(aclmdlRI modelRI, aclrtStream stream);
/// Runs a sequence for at most `timeout` milliseconds; -1 is for ever.
ACL_FUNC(ascendcl, V8_5, optional)
aclError aclmdlRIExecute(aclmdlRI modelRI, int32_t timeout);
/// Destroys a sequence that is not running.
ACL_FUNC(ascendcl, V8_1, required)
aclError aclmdlRIDestroy(aclmdlRI modelRI);
/// Streams of a sequence. `numStreams` is the room before and the count after.
ACL_FUNC(ascendcl, V9, optional)
aclError aclmdlRIGetStreams(aclmdlRI modelRI, aclrtStream *streams, uint32_t *numStreams);
/// Tasks of a stream of a sequence. `numTasks` is the room before and the count after.
ACL_FUNC(ascendcl, V9, optional)
aclError aclmdlRIGetTasksByStream(aclrtStream stream, aclmdlRITask *tasks, uint32_t *numTasks);

// Kernels.

/// Loads a kernel binary from an absolute path. `options` may be null.
ACL_FUNC(ascendcl, V8_1, required)
aclError aclrtBinaryLoadFromFile(const char *binPath, aclrtBinaryLoadOptions *options, aclrtBinHandle *binHandle);
/// Loads a kernel binary from memory. `options` may be null.
ACL_FUNC(ascendcl, V8_5, optional)
aclError aclrtBinaryLoadFromData(const void *data, size_t length, const aclrtBinaryLoadOptions *options, aclrtBinHandle *binHandle);
/// Unloads a kernel binary.
ACL_FUNC(ascendcl, V8_1, required)
aclError aclrtBinaryUnLoad(aclrtBinHandle binHandle);
/// A kernel by name.
ACL_FUNC(ascendcl, V8_1, required)
aclError aclrtBinaryGetFunction(const aclrtBinHandle binHandle, const char *kernelName, aclrtFuncHandle *funcHandle);
/// A kernel by the number that its symbol ends in.
ACL_FUNC(ascendcl, V8_1, optional)
aclError aclrtBinaryGetFunctionByEntry(aclrtBinHandle binHandle, uint64_t funcEntry, aclrtFuncHandle *funcHandle);
/// A fact about a kernel.
ACL_FUNC(ascendcl, V8_5, optional)
aclError aclrtGetFunctionAttribute(aclrtFuncHandle funcHandle, aclrtFuncAttribute attrType, int64_t *attrValue);
/// Address through which cores meet, the hidden first argument of kernels that need it.
ACL_FUNC(ascendcl, V8_5, optional)
aclError aclrtGetHardwareSyncAddr(void **addr);
/// Starts the arguments of a launch.
ACL_FUNC(ascendcl, V8_1, required)
aclError aclrtKernelArgsInit(aclrtFuncHandle funcHandle, aclrtArgsHandle *argsHandle);
/// Adds an argument by value.
ACL_FUNC(ascendcl, V8_1, required)
aclError aclrtKernelArgsAppend(aclrtArgsHandle argsHandle, void *param, size_t paramSize, aclrtParamHandle *paramHandle);
/// Ends the arguments of a launch.
ACL_FUNC(ascendcl, V8_1, required)
aclError aclrtKernelArgsFinalize(aclrtArgsHandle argsHandle);
/// Launches a kernel with arguments in device memory.
ACL_FUNC(ascendcl, V8_1, required)
aclError aclrtLaunchKernel(aclrtFuncHandle funcHandle, uint32_t numBlocks, const void *argsData, size_t argsSize, aclrtStream stream);
/// Launches a kernel with arguments in device memory and options.
ACL_FUNC(ascendcl, V8_5, optional)
aclError aclrtLaunchKernelV2(aclrtFuncHandle funcHandle, uint32_t numBlocks, const void *argsData, size_t argsSize, aclrtLaunchKernelCfg *cfg, aclrtStream stream);
/// Launches a kernel with arguments that were put together. `reserve` is null.
ACL_FUNC(ascendcl, V8_1, required)
aclError aclrtLaunchKernelWithConfig(aclrtFuncHandle funcHandle, uint32_t numBlocks, aclrtStream stream, aclrtLaunchKernelCfg *cfg, aclrtArgsHandle argsHandle, void *reserve);
/// Launches a kernel with arguments in host memory, which are copied.
ACL_FUNC(ascendcl, V8_5, optional)
aclError aclrtLaunchKernelWithHostArgs(aclrtFuncHandle funcHandle, uint32_t numBlocks, aclrtStream stream, aclrtLaunchKernelCfg *cfg, void *hostArgs, size_t argsSize, aclrtPlaceHolderInfo *placeHolderArray, size_t placeHolderNum);

// Parameters of operators.

/// A tensor at `tensorDataAddr`. Strides and `offset` are in elements; the storage of a dense tensor
/// has the dimensions of the view.
ACL_FUNC(nnopbase, V8_1, required)
aclTensor *aclCreateTensor(const int64_t *viewDims, uint64_t viewDimsNum, aclDataType dataType, const int64_t *stride, int64_t offset, aclFormat format, const int64_t *storageDims, uint64_t storageDimsNum, void *tensorData);
/// A number, read from the host.
ACL_FUNC(nnopbase, V8_1, required)
aclScalar *aclCreateScalar(void *value, aclDataType dataType);
/// Whole numbers, copied.
ACL_FUNC(nnopbase, V8_1, required)
aclIntArray *aclCreateIntArray(const int64_t *value, uint64_t size);
/// Numbers, copied.
ACL_FUNC(nnopbase, V8_1, optional)
aclFloatArray *aclCreateFloatArray(const float *value, uint64_t size);
/// Flags, copied.
ACL_FUNC(nnopbase, V8_1, optional)
aclBoolArray *aclCreateBoolArray(const bool *value, uint64_t size);
/// A list, which takes the tensors over.
ACL_FUNC(nnopbase, V8_1, required)
aclTensorList *aclCreateTensorList(const aclTensor *const *value, uint64_t size);
/// Destroys a tensor, not its memory.
ACL_FUNC(nnopbase, V8_1, required)
aclnnStatus aclDestroyTensor(const aclTensor *tensor);
/// Destroys a number.
ACL_FUNC(nnopbase, V8_1, required)
aclnnStatus aclDestroyScalar(const aclScalar *scalar);
/// Destroys whole numbers.
ACL_FUNC(nnopbase, V8_1, required)
aclnnStatus aclDestroyIntArray(const aclIntArray *array);
/// Destroys numbers.
ACL_FUNC(nnopbase, V8_1, optional)
aclnnStatus aclDestroyFloatArray(const aclFloatArray *array);
/// Destroys flags.
ACL_FUNC(nnopbase, V8_1, optional)
aclnnStatus aclDestroyBoolArray(const aclBoolArray *array);
/// Destroys a list and its tensors.
ACL_FUNC(nnopbase, V8_1, required)
aclnnStatus aclDestroyTensorList(const aclTensorList *array);

// Executors.

/// Makes an executor usable more than once; the caller then destroys it.
ACL_FUNC(nnopbase, V8_1, required)
aclnnStatus aclSetAclOpExecutorRepeatable(aclOpExecutor *executor);
/// Destroys an executor that is usable more than once.
ACL_FUNC(nnopbase, V8_1, required)
aclnnStatus aclDestroyAclOpExecutor(aclOpExecutor *executor);
/// Gives an input of an executor another address.
ACL_FUNC(nnopbase, V8_1, optional)
aclnnStatus aclSetInputTensorAddr(aclOpExecutor *executor, const size_t index, aclTensor *tensor, void *addr);
/// Gives an output of an executor another address.
ACL_FUNC(nnopbase, V8_1, optional)
aclnnStatus aclSetOutputTensorAddr(aclOpExecutor *executor, const size_t index, aclTensor *tensor, void *addr);
/// Gives a tensor of an executor another address.
ACL_FUNC(nnopbase, V8_3, optional)
aclnnStatus aclSetTensorAddr(aclOpExecutor *executor, const size_t index, aclTensor *tensor, void *addr);

#ifdef __cplusplus
}
#endif
#endif
