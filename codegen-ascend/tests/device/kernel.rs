//! Kernels of ours: compiled, kept, loaded, recorded and replayed like operators.

use crate::support::{N, Sim, arena, loaded_from, options, read, write};
use artifact::Issue;
use hal::{Device, DeviceError, Launch};
use precast_codegen_ascend::{device::AscendOptions, kernels::Kernel};
use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
};

/// `y = 2 x + 1` for `rows` values.
const SOURCE: &str = r#"@MARKER@
#include "kernel_operator.h"
using namespace AscendC;

extern "C" __global__ __aicore__ void @NAME@(GM_ADDR x, GM_ADDR y, uint64_t rows) {
    KERNEL_TASK_TYPE_DEFAULT(KERNEL_TYPE_AIV_ONLY);
    TPipe pipe;
    TQue<QuePosition::VECIN, 1> input;
    TQue<QuePosition::VECOUT, 1> output;
    pipe.InitBuffer(input, 1, 32);
    pipe.InitBuffer(output, 1, 32);
    GlobalTensor<float> from, to;
    from.SetGlobalBuffer((__gm__ float*)x);
    to.SetGlobalBuffer((__gm__ float*)y);
    if (GetBlockIdx() != 0) return;
    const uint32_t bytes = uint32_t(rows) * 4;
    LocalTensor<float> in = input.AllocTensor<float>();
    DataCopyPad(in, from, DataCopyExtParams(1, bytes, 0, 0, 0), DataCopyPadExtParams<float>(false, 0, 0, 0.0f));
    input.EnQue(in);
    in = input.DeQue<float>();
    LocalTensor<float> out = output.AllocTensor<float>();
    Muls(out, in, 2.0f, 8);
    PipeBarrier<PIPE_V>();
    Adds(out, out, 1.0f, 8);
    input.FreeTensor(in);
    output.EnQue(out);
    out = output.DeQue<float>();
    DataCopyPad(to, out, DataCopyExtParams(1, bytes, 0, 0, 0));
    output.FreeTensor(out);
}
"#;

fn kernel(marker: &str) -> Kernel {
    Kernel::new("double_and_one", &SOURCE.replace("@MARKER@", marker))
}

fn put(root: &Path, kernel: &Kernel) {
    let path = root.join(kernel.path());
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, &kernel.source).unwrap();
}

#[test]
fn kernels_are_built_loaded_and_replayed() {
    let sim = Sim::new();
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path().join("artifact");
    let kernels = [kernel("// plain"), kernel(precast_codegen_ascend::device::BATCH_MARKER)];
    kernels.iter().for_each(|k| put(&root, k));
    let cache = folder.path().join("cache");
    let with_cache = || AscendOptions { kernel_cache: Some(cache.clone()), ..options() };
    let mut device = loaded_from(&root, with_cache()).unwrap();
    let issue = Issue { blocks: 4, ..Issue::default() };
    let mut recording = hal::Recording::begin(&mut device).unwrap();
    for (kernel, args) in kernels.iter().zip([[arena(0), arena(1)], [arena(1), arena(2)]]) {
        let scalars = [artifact::Scalar::Int(N as u64)];
        let launch = Launch { issue: &issue, ..Launch::new(&kernel.name, &args, &scalars) };
        recording.launch(&launch).unwrap();
    }
    let graph = recording.finish().unwrap();
    for x in [3.0, -5.0] {
        write(&mut device, arena(0), x);
        device.replay(&graph).unwrap();
        assert_eq!(read(&mut device, arena(2)).unwrap(), [4.0 * x + 3.0; N]);
    }
    assert_eq!(sim.counter("calls/aclrtBinaryLoadFromFile"), 2);
    drop((device, graph));
    assert_eq!(sim.live(), "");
    // The second time nothing is compiled.
    let caches = || fs::read_dir(&cache).unwrap().map(|e| e.unwrap().path());
    let files = |folder: PathBuf| fs::read_dir(folder).unwrap().map(|e| e.unwrap().path());
    let built = |p: PathBuf| (fs::metadata(&p).unwrap().modified().unwrap(), p);
    let all = || caches().flat_map(files).map(built).collect::<BTreeSet<_>>();
    let first = all();
    assert!(first.len() > kernels.len(), "{first:?}");
    loaded_from(&root, with_cache()).unwrap();
    assert_eq!(all(), first);
}

#[test]
fn calls_that_a_kernel_cannot_take_are_refused() {
    let _sim = Sim::new();
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path().join("artifact");
    let kernel = kernel("// plain");
    put(&root, &kernel);
    let mut device = loaded_from(&root, options()).unwrap();
    let args = [arena(0), arena(1)];
    let issue = Issue { blocks: 1, ..Issue::default() };
    let mut attempt = |name: &str, scalars: &[artifact::Scalar], issue: &Issue| {
        device.begin_capture().unwrap();
        let error =
            device.launch(&Launch { issue, ..Launch::new(name, &args, scalars) }).unwrap_err();
        device.abort_capture();
        error
    };
    let rows = [artifact::Scalar::Int(8)];
    let unknown = attempt("no_such_kernel", &rows, &issue);
    assert!(matches!(unknown, DeviceError::UnknownKernel { .. }), "{unknown}");
    let path = attempt("../../etc/passwd", &rows, &issue);
    assert!(matches!(path, DeviceError::UnknownKernel { .. }), "{path}");
    let float = attempt(&kernel.name, &[artifact::Scalar::Float(1.5)], &issue);
    assert!(float.to_string().contains("1.5 is not a whole number"), "{float}");
    let blocks = attempt(&kernel.name, &rows, &Issue::default());
    assert!(blocks.to_string().contains("no blocks"), "{blocks}");
}
