//! Binaries made with the kernel shim are loaded and launched, with arguments in each of the ways that
//! the interface has; what is no such binary is refused.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod support;

use acl::sys::*;
use ascend_sim::api::{graph::*, kernel::*, memory::*};
use std::{
    ffi::{CString, c_void},
    fs,
    path::{Path, PathBuf},
    process::Command,
    ptr::{null, null_mut},
    sync::LazyLock,
};
use support::*;

/// Adds a number to `count` floats; the number of the second kernel is its first argument's.
const SOURCE: &str = r#"#include "kernel_operator.h"
using namespace AscendC;
extern "C" __global__ __aicore__ void add_one_7(GM_ADDR x, GM_ADDR y, uint64_t count) {
    KERNEL_TASK_TYPE_DEFAULT(KERNEL_TYPE_AIV_ONLY);
    TPipe pipe;
    TQue<QuePosition::VECIN, 1> in;
    TQue<QuePosition::VECOUT, 1> out;
    pipe.InitBuffer(in, 1, 256);
    pipe.InitBuffer(out, 1, 256);
    GlobalTensor<float> from, to;
    from.SetGlobalBuffer((__gm__ float*)x);
    to.SetGlobalBuffer((__gm__ float*)y);
    if (GetBlockIdx() != 0) return;
    const uint32_t bytes = count * 4;
    LocalTensor<float> a = in.AllocTensor<float>();
    DataCopyPad(a, from, DataCopyExtParams(1, bytes, 0, 0, 0), DataCopyPadExtParams<float>(false, 0, 0, 0.0f));
    in.EnQue(a);
    a = in.DeQue<float>();
    LocalTensor<float> b = out.AllocTensor<float>();
    Adds(b, a, 1.0f, (int32_t)count);
    in.FreeTensor(a);
    out.EnQue(b);
    b = out.DeQue<float>();
    DataCopyPad(to, b, DataCopyExtParams(1, bytes, 0, 0, 0));
    out.FreeTensor(b);
}
"#;

/// The compiled kernel; made once for all tests of this file.
static LIBRARY: LazyLock<PathBuf> = LazyLock::new(|| {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("ascend-sim-kernels");
    fs::create_dir_all(&folder).unwrap();
    let (source, library) = (folder.join("kernel.cpp"), folder.join("kernel.so"));
    fs::write(&source, SOURCE).unwrap();
    let shim = Path::new(env!("CARGO_MANIFEST_DIR")).join("../shim");
    let done = Command::new("c++")
        .args(["-O1", "-std=c++17", "-shared", "-fPIC", "-fvisibility=hidden", "-pthread", "-I"])
        .args([&shim, &source, &shim.join("shim.cpp")])
        .arg("-o")
        .arg(&library)
        .output()
        .unwrap();
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    library
});

fn load(path: &Path) -> (i32, aclrtBinHandle) {
    let path = CString::new(path.to_str().unwrap()).unwrap();
    let mut binary = null_mut();
    // SAFETY: the path ends with a zero byte, the result is writable.
    let code = unsafe { aclrtBinaryLoadFromFile(path.as_ptr(), null_mut(), &mut binary) };
    (code, binary)
}

fn function(binary: aclrtBinHandle, name: &str) -> (i32, aclrtFuncHandle) {
    let name = CString::new(name).unwrap();
    let mut function = null_mut();
    // SAFETY: the name ends with a zero byte, the result is writable.
    let code = unsafe { aclrtBinaryGetFunction(binary, name.as_ptr(), &mut function) };
    (code, function)
}

/// The kernel, and memory for it: eight floats to read and eight to write.
struct Setup {
    binary: aclrtBinHandle,
    function: aclrtFuncHandle,
    x: *mut c_void,
    y: *mut c_void,
    stream: aclrtStream,
}

impl Setup {
    fn new() -> Self {
        let (code, binary) = load(&LIBRARY);
        assert_eq!(code, 0, "{}", message());
        let (code, function) = function(binary, "add_one_7");
        assert_eq!(code, 0, "{}", message());
        let (x, y) = (device_memory(32), device_memory(32));
        // SAFETY: it has 32 bytes.
        unsafe { x.cast::<[f32; 8]>().write([1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0]) };
        Self { binary, function, x, y, stream: stream() }
    }

    /// What the kernel wrote, which is then wiped.
    fn result(&self) -> Vec<f32> {
        assert_eq!(sync(self.stream), 0, "{}", message());
        // SAFETY: it has 32 bytes, and nothing runs.
        let found = unsafe { self.y.cast::<[f32; 8]>().replace([0.0; 8]) };
        found.to_vec()
    }

    /// Arguments put together one by one; values may be narrower than a slot.
    fn arguments(&self, count: u32) -> aclrtArgsHandle {
        let (mut args, mut param) = (null_mut(), null_mut());
        let (mut x, mut y, mut count) = (self.x, self.y, count);
        // SAFETY: the values are as long as is said, the results are writable.
        unsafe {
            assert_eq!(aclrtKernelArgsInit(self.function, &mut args), 0);
            assert_eq!(aclrtKernelArgsAppend(args, (&raw mut x).cast(), 8, &mut param), 0);
            assert_eq!(aclrtKernelArgsAppend(args, (&raw mut y).cast(), 8, &mut param), 0);
            assert_eq!(aclrtKernelArgsAppend(args, (&raw mut count).cast(), 4, &mut param), 0);
        }
        args
    }

    fn launch(&self, args: aclrtArgsHandle, blocks: u32) -> i32 {
        let (function, stream) = (self.function, self.stream);
        // SAFETY: any handles may be passed, there are no options.
        unsafe {
            aclrtLaunchKernelWithConfig(function, blocks, stream, null_mut(), args, null_mut())
        }
    }
}

const PLUS_ONE: [f32; 8] = [2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0];

#[test]
fn a_kernel_runs_with_arguments_put_together() {
    let _sim = Sim::new();
    let setup = Setup::new();
    let args = setup.arguments(8);
    assert_eq!(setup.launch(args, 2), 107000, "not ended");
    // SAFETY: any handle may be passed.
    assert_eq!(unsafe { aclrtKernelArgsFinalize(args) }, 0);
    assert_eq!(setup.launch(args, 0), 107000);
    assert_eq!(setup.launch(args, 2), 0, "{}", message());
    assert_eq!(setup.result(), PLUS_ONE);
    // Captured, they are the graph's.
    assert_eq!(begin(setup.stream, 0), 0);
    assert_eq!(setup.launch(args, 2), 0);
    let (code, graph) = end(setup.stream);
    assert_eq!(code, 0);
    // SAFETY: any handle may be passed.
    assert_eq!(unsafe { aclrtBinaryUnLoad(setup.binary) }, 0);
    assert_eq!(setup.launch(args, 2), 107017);
    assert_eq!(execute(graph, setup.stream), 0);
    assert_eq!(setup.result(), PLUS_ONE);
    // SAFETY: any handle may be passed.
    assert_eq!(unsafe { aclmdlRIDestroy(graph) }, 0);
}

#[test]
fn a_kernel_runs_with_arguments_of_the_host_and_of_the_device() {
    let _sim = Sim::new();
    let setup = Setup::new();
    let mut sync_address = null_mut();
    // SAFETY: the result is writable.
    assert_eq!(unsafe { aclrtGetHardwareSyncAddr(&mut sync_address) }, 0);
    let plain = [setup.x as u64, setup.y as u64, 8];
    let hidden = [sync_address as u64, setup.x as u64, setup.y as u64, 8];
    for args in [&plain[..], &hidden[..]] {
        let bytes = args.len() * 8;
        let device = device_memory(bytes);
        // SAFETY: the arguments are as long as is said.
        unsafe {
            let host = args.as_ptr().cast_mut().cast();
            let options = null_mut();
            let (function, stream) = (setup.function, setup.stream);
            let launched = aclrtLaunchKernelWithHostArgs(
                function,
                1,
                stream,
                options,
                host,
                bytes,
                null_mut(),
                0,
            );
            assert_eq!(launched, 0, "{}", message());
            assert_eq!(setup.result(), PLUS_ONE);
            assert_eq!(aclrtMemcpy(device, bytes, host, bytes, 1), 0);
            assert_eq!(aclrtLaunchKernel(function, 1, device, bytes, stream), 0);
            assert_eq!(setup.result(), PLUS_ONE);
            assert_eq!(aclrtLaunchKernelV2(function, 1, device, bytes, options, stream), 0);
            assert_eq!(setup.result(), PLUS_ONE);
            assert_eq!(
                aclrtLaunchKernel(function, 1, host, bytes, stream),
                107000,
                "not the device's"
            );
        }
    }
}

#[test]
fn place_holders_point_to_what_came_along() {
    let _sim = Sim::new();
    let setup = Setup::new();
    // The input is behind the arguments: three slots, a gap of one, eight floats.
    let mut block = [0_u64, setup.y as u64, 8, 0, 0, 0, 0, 0];
    for (i, pair) in block[4..].iter_mut().enumerate() {
        let (low, high) = ((2 * i + 1) as f32, (2 * i + 2) as f32);
        *pair = u64::from(low.to_bits()) | u64::from(high.to_bits()) << 32;
    }
    let mut holder = aclrtPlaceHolderInfo { addrOffset: 0, dataOffset: 32 };
    let mut outside = aclrtPlaceHolderInfo { addrOffset: 0, dataOffset: 64 };
    // SAFETY: the arguments and the holders are as long as is said, the results are writable.
    unsafe {
        let host: *mut c_void = block.as_mut_ptr().cast();
        let (function, stream, options) = (setup.function, setup.stream, null_mut());
        let launched =
            aclrtLaunchKernelWithHostArgs(function, 1, stream, options, host, 64, &mut outside, 1);
        assert_eq!(launched, 107000);
        let launched =
            aclrtLaunchKernelWithHostArgs(function, 1, stream, options, host, 64, &mut holder, 1);
        assert_eq!(launched, 0, "{}", message());
        // It was copied: what happens to the host's block does not matter.
        block.fill(0);
        assert_eq!(setup.result(), PLUS_ONE);

        // The same through a list of arguments.
        let (mut args, mut first, mut other, mut buffer) =
            (null_mut(), null_mut(), null_mut(), null_mut());
        let (mut y, mut count) = (setup.y, 8_u64);
        assert_eq!(aclrtKernelArgsInit(function, &mut args), 0);
        assert_eq!(aclrtKernelArgsAppendPlaceHolder(args, &mut first), 0);
        assert_eq!(aclrtKernelArgsAppend(args, (&raw mut y).cast(), 8, &mut other), 0);
        assert_eq!(aclrtKernelArgsAppend(args, (&raw mut count).cast(), 8, &mut other), 0);
        assert_eq!(aclrtKernelArgsFinalize(args), 0);
        assert_eq!(setup.launch(args, 1), 107000, "the place holder has no data");
        assert_eq!(aclrtKernelArgsGetPlaceHolderBuffer(args, other, 32, &mut buffer), 107000);
        assert_eq!(aclrtKernelArgsGetPlaceHolderBuffer(args, first, 32, &mut buffer), 0);
        buffer.cast::<[f32; 8]>().write([1.0; 8]);
        count = 4;
        assert_eq!(aclrtKernelArgsParaUpdate(args, other, (&raw mut count).cast(), 8), 0);
        assert_eq!(aclrtKernelArgsParaUpdate(args, other, (&raw mut count).cast(), 4), 107000);
        assert_eq!(aclrtKernelArgsFinalize(args), 0);
        let before = counter("live/device_memory");
        assert_eq!(setup.launch(args, 1), 0);
        assert_eq!(setup.result(), [2.0, 2.0, 2.0, 2.0, 0.0, 0.0, 0.0, 0.0]);
        // What came along goes when the launch is over.
        assert_eq!(sync(stream), 0);
        assert_eq!(counter("live/device_memory"), before);
    }
}

#[test]
fn a_kernel_that_goes_out_of_its_memory_fails_the_stream() {
    let _sim = Sim::new();
    let setup = Setup::new();
    // Both have 64 usable bytes: 16 floats are in them, 17 are not.
    for (count, code) in [(16, 0), (17, 507015)] {
        let args = setup.arguments(count);
        // SAFETY: any handle may be passed.
        assert_eq!(unsafe { aclrtKernelArgsFinalize(args) }, 0);
        assert_eq!(setup.launch(args, 1), 0);
        assert_eq!(sync(setup.stream), code, "{count}");
        assert_eq!(message().contains("add_one_7"), code != 0);
    }
}

#[test]
fn binaries_and_kernels_that_are_none_are_refused() {
    let _sim = Sim::new();
    let folder = LIBRARY.parent().unwrap();
    let write = |name: &str, bytes: &[u8]| {
        let path = folder.join(name);
        fs::write(&path, bytes).unwrap();
        path
    };
    let mut device = fs::read(&*LIBRARY).unwrap();
    device[18..20].copy_from_slice(&0x1029_u16.to_le_bytes());
    assert_eq!(load(&write("device.o", &device)).0, 507008);
    assert!(message().contains("compiled for the device"));
    assert_eq!(load(&write("text.o", b"no binary")).0, 107000);
    for length in [0, 6, 63, 64, 1000] {
        let cut = &fs::read(&*LIBRARY).unwrap()[..length];
        assert_ne!(load(&write("cut.o", cut)).0, 0, "{length}");
    }
    assert_eq!(load(&folder.join("nowhere.o")).0, 107009);
    assert_eq!(load(Path::new("relative.o")).0, 107000);

    let (code, binary) = load(&LIBRARY);
    assert_eq!(code, 0);
    assert_eq!(function(binary, "subtract").0, 507027);
    assert!(message().contains("add_one_7"), "it says what there is: {}", message());
    let mut by_entry = null_mut();
    // SAFETY: the result is writable.
    unsafe {
        assert_eq!(aclrtBinaryGetFunctionByEntry(binary, 8, &mut by_entry), 507027);
        assert_eq!(aclrtBinaryGetFunctionByEntry(binary, 7, &mut by_entry), 0);
        assert_eq!(aclrtBinaryUnLoad(binary), 0);
        assert_eq!(aclrtBinaryUnLoad(binary), 107017);
    }
    assert_eq!(function(binary, "add_one_7").0, 107017);
}

#[test]
fn binaries_are_loaded_from_memory() {
    let _sim = Sim::new();
    let bytes = fs::read(&*LIBRARY).unwrap();
    let mut binaries = [null_mut(); 2];
    for binary in &mut binaries {
        let data = bytes.as_ptr().cast();
        // SAFETY: the bytes are as many as is said, the result is writable.
        let code = unsafe { aclrtBinaryLoadFromData(data, bytes.len(), null(), binary) };
        assert_eq!(code, 0, "{}", message());
        assert_eq!(function(*binary, "add_one_7").0, 0);
    }
    for binary in binaries {
        // SAFETY: any handle may be passed.
        assert_eq!(unsafe { aclrtBinaryUnLoad(binary) }, 0);
    }
    assert_eq!(counter("live/binaries"), 0);
}
