//! The software device under test, plans of a few operators, and a counting allocator.

use artifact::{BufferRef, Element, Issue, Operator, Param, Space, TensorParam};
use hal::{Device, DeviceError, Launch, MemoryRequest};
use precast_codegen_ascend::device::{AscendDevice, AscendGraph, AscendOptions};
use std::{
    alloc::{GlobalAlloc, Layout, System},
    cell::Cell,
    ffi::{CString, c_char, c_void},
    io::Write,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError},
};
use tensor::{DType, MappedFile};

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

struct Counting;

// SAFETY: everything is left to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.set(ALLOCATIONS.get() + 1);
        // SAFETY: the caller's promise.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        // SAFETY: the caller's promise.
        unsafe { System.dealloc(at, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Allocations of this thread so far, those of the software device left out.
pub(crate) fn allocations() -> u64 {
    ALLOCATIONS.get()
}

/// The library: a dependency of these tests, so it lies beside them.
pub(crate) fn library() -> PathBuf {
    std::env::current_exe().unwrap().parent().unwrap().join("libascend_sim.so")
}

/// The software device, one test at a time and as new.
pub(crate) struct Sim {
    _turn: MutexGuard<'static, ()>,
    handle: usize,
}

impl Sim {
    pub(crate) fn new() -> Self {
        static TURN: Mutex<()> = Mutex::new(());
        static HANDLE: OnceLock<usize> = OnceLock::new();
        let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
        let handle = *HANDLE.get_or_init(|| {
            let path = CString::new(library().to_str().unwrap()).unwrap();
            // SAFETY: the path ends with a zero byte; the library has no initialisers.
            let handle = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_LAZY | libc::RTLD_LOCAL) };
            assert!(!handle.is_null(), "{} does not open", path.to_str().unwrap());
            handle.addr()
        });
        let sim = Self { _turn: turn, handle };
        // SAFETY: no test is in the middle of a call, as each has its turn.
        let reset: extern "C" fn() -> i32 =
            unsafe { std::mem::transmute(sim.symbol("ascendSimReset")) };
        assert_eq!(reset(), 0);
        sim
    }

    fn symbol(&self, name: &str) -> *mut c_void {
        let text = CString::new(name).unwrap();
        // SAFETY: the library stays open.
        let symbol = unsafe { libc::dlsym(self.handle as *mut c_void, text.as_ptr()) };
        assert!(!symbol.is_null(), "{name}");
        symbol
    }

    pub(crate) fn configure(&self, name: &str, value: &str) {
        type Configure = unsafe extern "C" fn(*const c_char, *const c_char) -> i32;
        // SAFETY: the function has this type.
        let configure: Configure =
            unsafe { std::mem::transmute(self.symbol("ascendSimConfigure")) };
        let (name, value) = (CString::new(name).unwrap(), CString::new(value).unwrap());
        // SAFETY: both texts end with a zero byte.
        assert_eq!(unsafe { configure(name.as_ptr(), value.as_ptr()) }, 0);
    }

    fn inject(&self, how: &str, name: &str, nth: u64, code: i32) {
        type Inject = unsafe extern "C" fn(*const c_char, u32, i32) -> i32;
        // SAFETY: the function has this type.
        let inject: Inject = unsafe { std::mem::transmute(self.symbol(how)) };
        let name = CString::new(name).unwrap();
        // SAFETY: the text ends with a zero byte.
        assert_eq!(unsafe { inject(name.as_ptr(), nth as u32, code) }, 0);
    }

    /// The `nth` call of `function` from now fails.
    pub(crate) fn fail(&self, function: &str, nth: u64, code: i32) {
        self.inject("ascendSimFail", function, nth, code);
    }

    /// The `nth` task from now whose name contains `name` fails.
    pub(crate) fn fail_task(&self, name: &str, nth: u64, code: i32) {
        self.inject("ascendSimFailTask", name, nth, code);
    }

    pub(crate) fn counter(&self, name: &str) -> u64 {
        type Counter = unsafe extern "C" fn(*const c_char, *mut u64) -> i32;
        // SAFETY: the function has this type.
        let counter: Counter = unsafe { std::mem::transmute(self.symbol("ascendSimCounter")) };
        let (name, mut value) = (CString::new(name).unwrap(), 0);
        // SAFETY: the text ends with a zero byte; the value is written during the call.
        assert_eq!(unsafe { counter(name.as_ptr(), &mut value) }, 0);
        value
    }

    /// Every counter with its value.
    pub(crate) fn report(&self) -> Vec<(String, u64)> {
        type Report = unsafe extern "C" fn(*mut c_char, usize) -> usize;
        // SAFETY: the function has this type.
        let report: Report = unsafe { std::mem::transmute(self.symbol("ascendSimReport")) };
        // SAFETY: null asks for the length.
        let length = unsafe { report(std::ptr::null_mut(), 0) };
        let mut text = vec![0u8; length + 4096];
        // SAFETY: there is that much room.
        let length = unsafe { report(text.as_mut_ptr().cast(), text.len()) };
        text.truncate(length - 1);
        let text = String::from_utf8(text).unwrap();
        let line = |l: &str| {
            let (name, value) = l.rsplit_once(' ').unwrap();
            (name.to_owned(), value.parse().unwrap_or(0))
        };
        text.lines().map(line).collect()
    }

    /// What lives on the device, as text; empty when nothing does.
    pub(crate) fn live(&self) -> String {
        let live = self.report().into_iter().filter(|(n, v)| n.starts_with("live/") && *v > 0);
        live.map(|(name, value)| format!("{name} {value} ")).collect()
    }
}

pub(crate) fn options() -> AscendOptions {
    let cache = Path::new(env!("CARGO_TARGET_TMPDIR")).join("kernels");
    AscendOptions {
        library: Some(library()),
        kernel_cache: Some(cache),
        ..AscendOptions::default()
    }
}

/// Elements of every buffer of these tests.
pub(crate) const N: usize = 8;

/// A buffer of [`N`] f32 in slot `slot` of `space`.
pub(crate) fn buffer(space: Space, slot: u64) -> BufferRef {
    BufferRef { space, offset: slot * 128, bytes: 4 * N as u64 }
}

pub(crate) fn arena(slot: u64) -> BufferRef {
    buffer(Space::Arena, slot)
}

/// What [`weights`] holds at index `i`.
pub(crate) fn weight(i: usize) -> f32 {
    (i % 251) as f32 + 0.5
}

/// A weight file of `count` f32.
pub(crate) fn weights(count: usize) -> Arc<MappedFile> {
    let mut file = tempfile::NamedTempFile::new().unwrap();
    let bytes: Vec<u8> = (0..count).flat_map(|i| weight(i).to_le_bytes()).collect();
    file.write_all(&bytes).unwrap();
    Arc::new(MappedFile::open(file.path()).unwrap())
}

pub(crate) fn load(device: &mut AscendDevice) -> Result<(), DeviceError> {
    let root = PathBuf::new();
    let request = MemoryRequest { root, weights: weights(N), arena_bytes: 4096, state_bytes: 1024 };
    device.load(request)
}

/// A device with the memory of an artifact at `root`.
pub(crate) fn loaded_from(
    root: &std::path::Path,
    options: AscendOptions,
) -> Result<AscendDevice, DeviceError> {
    let mut device = AscendDevice::open(options)?;
    let root = root.to_owned();
    device.load(MemoryRequest {
        root,
        weights: weights(N),
        arena_bytes: 4096,
        state_bytes: 1024,
    })?;
    Ok(device)
}

/// A device with memory.
pub(crate) fn loaded(options: AscendOptions) -> AscendDevice {
    let mut device = AscendDevice::open(options).unwrap();
    load(&mut device).unwrap();
    device
}

/// A step: an operator on buffers.
pub(crate) struct Call {
    pub(crate) operator: Option<Operator>,
    pub(crate) args: Vec<BufferRef>,
    pub(crate) issue: Issue,
}

impl Call {
    pub(crate) fn on(mut self, stream: u32, waits: &[u32]) -> Self {
        self.issue.stream = stream;
        self.issue.waits = waits.to_vec();
        self
    }

    pub(crate) fn launch(&self, device: &mut AscendDevice) -> Result<(), DeviceError> {
        let name = self.operator.as_ref().map(|o| format!("aclnn{}", o.name));
        device.launch(&Launch {
            kernel: name.as_deref().unwrap_or("memcpy"),
            args: &self.args,
            scalars: &[],
            issue: &self.issue,
            operator: self.operator.as_ref(),
        })
    }
}

fn tensor(arg: u32) -> Param {
    Param::Tensor(TensorParam::dense(arg, DType::F32, &[1, N as u64]))
}

/// `out = a + b`.
pub(crate) fn add(a: BufferRef, b: BufferRef, out: BufferRef) -> Call {
    let alpha = Param::Scalar(Element::Of(DType::F32), 1.0);
    let params = vec![tensor(0), tensor(1), alpha, tensor(2)];
    let operator = Some(Operator { name: "Add".into(), params });
    Call { operator, args: vec![a, b, out], issue: Issue::default() }
}

/// `out = a * b`.
pub(crate) fn mul(a: BufferRef, b: BufferRef, out: BufferRef) -> Call {
    let operator =
        Some(Operator { name: "Mul".into(), params: vec![tensor(0), tensor(1), tensor(2)] });
    Call { operator, args: vec![a, b, out], issue: Issue::default() }
}

/// `to = from`, inside the device.
pub(crate) fn copy(to: BufferRef, from: BufferRef) -> Call {
    Call { operator: None, args: vec![to, from], issue: Issue::default() }
}

pub(crate) fn capture(
    device: &mut AscendDevice,
    calls: &[Call],
) -> Result<AscendGraph, DeviceError> {
    let mut recording = hal::Recording::begin(device)?;
    for call in calls {
        let name = call.operator.as_ref().map(|o| format!("aclnn{}", o.name));
        recording.launch(&Launch {
            kernel: name.as_deref().unwrap_or("memcpy"),
            args: &call.args,
            scalars: &[],
            issue: &call.issue,
            operator: call.operator.as_ref(),
        })?;
    }
    recording.finish()
}

pub(crate) fn write(device: &mut AscendDevice, at: BufferRef, value: f32) {
    let bytes: [u8; 4 * N] = std::array::from_fn(|i| value.to_le_bytes()[i % 4]);
    device.write(at, &bytes);
}

pub(crate) fn read(device: &mut AscendDevice, at: BufferRef) -> Result<[f32; N], DeviceError> {
    let mut bytes = [0; 4 * N];
    device.read(at, &mut bytes)?;
    let (chunks, _) = bytes.as_chunks::<4>();
    Ok(std::array::from_fn(|i| f32::from_le_bytes(chunks[i])))
}
