//! Tensors in memory, numbers at random, and calls of both phases.

use acl::{Value, sys};
pub(crate) use ascend_sim::objects::Element;
use ascend_sim::objects::{arrays, executor, tensor};
use ascend_sim::operators::phases;
use ascend_sim::{api, config};
use half::{bf16, f16};
use std::{
    ffi::c_void,
    ptr::{null, null_mut},
    sync::Once,
};

pub(crate) use Element::{BF16, Bool, F16, F32, I4, I8, I32, I64, U64};

/// Numbers at random, the same ones every time.
pub(crate) struct Rng(u64);

impl Rng {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 11
    }

    pub(crate) fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }

    /// From -1 to 1.
    pub(crate) fn real(&mut self) -> f64 {
        self.next() as f64 / (1u64 << 52) as f64 - 1.0
    }

    pub(crate) fn reals(&mut self, n: usize) -> Vec<f64> {
        (0..n).map(|_| self.real()).collect()
    }

    /// Whole numbers from `-limit` to `limit - 1`.
    pub(crate) fn codes(&mut self, n: usize, limit: i64) -> Vec<f64> {
        (0..n).map(|_| (self.below(2 * limit as u64) as i64 - limit) as f64).collect()
    }
}

thread_local! {
    /// The stream of this thread: a failed operator fails those of no other test.
    static STREAM: *mut c_void = open();
}

/// A device for this thread, of a release that has every operator.
fn open() -> *mut c_void {
    static INIT: Once = Once::new();
    INIT.call_once(|| {
        config::set(config::VERSION, Some("9.0")).unwrap();
        // SAFETY: no configuration is passed.
        assert_eq!(unsafe { api::system::aclInit(null()) }, 0);
    });
    let mut stream = null_mut();
    // SAFETY: the stream may be written.
    unsafe {
        assert_eq!(api::device::aclrtSetDevice(0), 0);
        assert_eq!(api::stream::aclrtCreateStream(&mut stream), 0);
    }
    stream
}

/// Device memory.
struct Memory {
    start: *mut u8,
    bytes: usize,
}

impl Memory {
    fn new(bytes: usize) -> Self {
        STREAM.with(|_| ());
        let mut start = null_mut();
        // SAFETY: the address may be written.
        assert_eq!(unsafe { api::memory::aclrtMalloc(&mut start, bytes.max(1), 0) }, 0);
        Self { start: start.cast(), bytes }
    }

    fn fill(&self, value: u8) {
        // SAFETY: the memory has that many bytes.
        unsafe { self.start.write_bytes(value, self.bytes) }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: it was allocated once and is freed once. What was written around it is told here.
        let status = unsafe { api::memory::aclrtFree(self.start.cast()) };
        assert!(status == 0 || std::thread::panicking(), "{}", recent());
    }
}

/// What the last failure of this thread was.
pub(crate) fn recent() -> String {
    ascend_sim::error::take_recent().unwrap_or_default()
}

/// A tensor object and the memory it describes.
pub(crate) struct Tensor {
    pub(crate) handle: *mut sys::aclTensor,
    pub(crate) dims: Vec<usize>,
    element: Element,
    memory: Memory,
    /// Where each element lies, in logical order.
    places: Vec<usize>,
    owned: std::cell::Cell<bool>,
}

impl Drop for Tensor {
    fn drop(&mut self) {
        if self.owned.get() {
            // SAFETY: it was created once and is destroyed once.
            unsafe { tensor::aclDestroyTensor(self.handle) };
        }
    }
}

pub(crate) fn dense(dims: &[usize]) -> Vec<usize> {
    (0..dims.len()).map(|i| dims[i + 1..].iter().product()).collect()
}

fn create(
    dims: &[usize],
    element: Element,
    strides: &[usize],
    format: i32,
    storage: &[usize],
    start: *mut u8,
) -> *mut sys::aclTensor {
    let wide = |v: &[usize]| v.iter().map(|&x| x as i64).collect::<Vec<_>>();
    let (dims, strides, storage) = (wide(dims), wide(strides), wide(storage));
    // SAFETY: the arrays live through the call.
    unsafe {
        tensor::aclCreateTensor(
            dims.as_ptr(),
            dims.len() as u64,
            element.code(),
            strides.as_ptr(),
            0,
            format,
            storage.as_ptr(),
            storage.len() as u64,
            start.cast(),
        )
    }
}

impl Tensor {
    /// A tensor with these strides.
    pub(crate) fn strided(
        element: Element,
        dims: &[usize],
        strides: &[usize],
        values: &[f64],
    ) -> Self {
        let mut places = vec![0usize];
        for (&d, &s) in dims.iter().zip(strides) {
            places = places.iter().flat_map(|p| (0..d).map(move |i| p + i * s)).collect();
        }
        let storage = places.iter().max().map_or(0, |m| m + 1);
        let memory = Memory::new((storage * element.bits()).div_ceil(8));
        let handle = create(dims, element, strides, 2, &[storage], memory.start);
        let t = Self { handle, dims: dims.to_vec(), element, memory, places, owned: true.into() };
        t.write(values);
        t
    }

    /// A dense tensor.
    pub(crate) fn new(element: Element, dims: &[usize], values: &[f64]) -> Self {
        Self::strided(element, dims, &dense(dims), values)
    }

    /// A dense tensor to be written.
    pub(crate) fn out(element: Element, dims: &[usize]) -> Self {
        Self::new(element, dims, &[])
    }

    /// A tensor `[..,K,N]` stored as `[..,N,K]`.
    pub(crate) fn transposed(element: Element, dims: &[usize], values: &[f64]) -> Self {
        let mut stored = dims.to_vec();
        let last = dims.len() - 1;
        stored.swap(last, last - 1);
        let mut strides = dense(&stored);
        strides.swap(last, last - 1);
        Self::strided(element, dims, &strides, values)
    }

    /// Fractals of the matrices `[..,H,W]` whose view is `dims`, where `flipped` says that it shows
    /// them transposed.
    pub(crate) fn nz(element: Element, dims: &[usize], flipped: bool, values: &[f64]) -> Self {
        let (outer, matrix) = dims.split_at(dims.len() - 2);
        let (h, w) = if flipped { (matrix[1], matrix[0]) } else { (matrix[0], matrix[1]) };
        let c0 = 256 / element.bits();
        let (w1, h1) = (w.div_ceil(c0), h.div_ceil(16));
        let batches: usize = outer.iter().product();
        let mut places = Vec::new();
        for b in 0..batches {
            for r in 0..matrix[0] {
                for c in 0..matrix[1] {
                    let (y, x) = if flipped { (c, r) } else { (r, c) };
                    let fractal = (b * w1 + x / c0) * h1 + y / 16;
                    places.push(fractal * 16 * c0 + y % 16 * c0 + x % c0);
                }
            }
        }
        let storage = [outer, &[w1, h1, 16, c0]].concat();
        let bytes = storage.iter().product::<usize>() * 32 / c0;
        let memory = Memory::new(bytes);
        memory.fill(0);
        let mut strides = dense(&[outer, &[h, w]].concat());
        if flipped {
            strides.swap(outer.len(), outer.len() + 1);
        }
        let handle = create(dims, element, &strides, 29, &storage, memory.start);
        let t = Self { handle, dims: dims.to_vec(), element, memory, places, owned: true.into() };
        t.write(values);
        t
    }

    pub(crate) fn write(&self, values: &[f64]) {
        let start = self.memory.start;
        for (&place, &v) in self.places.iter().zip(values) {
            // SAFETY: every place lies in the memory.
            unsafe {
                match self.element {
                    F32 => start.cast::<f32>().add(place).write(v as f32),
                    F16 => start.cast::<u16>().add(place).write(f16::from_f64(v).to_bits()),
                    BF16 => start.cast::<u16>().add(place).write(bf16::from_f64(v).to_bits()),
                    I8 => start.cast::<i8>().add(place).write(v as i8),
                    Bool => start.add(place).write(u8::from(v != 0.0)),
                    I32 => start.cast::<i32>().add(place).write(v as i32),
                    I64 => start.cast::<i64>().add(place).write(v as i64),
                    U64 => start.cast::<u64>().add(place).write((v as f32).to_bits().into()),
                    I4 => {
                        let byte = start.add(place / 2);
                        let shift = place % 2 * 4;
                        let kept = byte.read() & !(0xf << shift);
                        byte.write(kept | ((v as i8 as u8) & 0xf) << shift);
                    }
                    other => panic!("{} is not written", other.name()),
                }
            }
        }
    }

    pub(crate) fn values(&self) -> Vec<f64> {
        let start = self.memory.start;
        let read = |&place: &usize| {
            // SAFETY: every place lies in the memory.
            unsafe {
                match self.element {
                    F32 => f64::from(start.cast::<f32>().add(place).read()),
                    F16 => f16::from_bits(start.cast::<u16>().add(place).read()).to_f64(),
                    BF16 => bf16::from_bits(start.cast::<u16>().add(place).read()).to_f64(),
                    I8 => f64::from(start.cast::<i8>().add(place).read()),
                    Bool => f64::from(start.add(place).read()),
                    I32 => f64::from(start.cast::<i32>().add(place).read()),
                    I64 => start.cast::<i64>().add(place).read() as f64,
                    U64 => f64::from(f32::from_bits(start.cast::<u64>().add(place).read() as u32)),
                    I4 => {
                        let byte = start.add(place / 2).read();
                        f64::from(((byte >> (place % 2 * 4)) << 4) as i8 >> 4)
                    }
                    other => panic!("{} is not read", other.name()),
                }
            }
        };
        self.places.iter().map(read).collect()
    }

    pub(crate) fn value(&self) -> Value {
        Value::Tensor(self.handle)
    }

    pub(crate) fn address(&self) -> *mut c_void {
        self.memory.start.cast()
    }
}

/// A list of one tensor; the list owns it from then on.
pub(crate) fn list(t: &Tensor) -> Value {
    lists(&[t])
}

/// A list of tensors, which owns them from then on.
pub(crate) fn lists(all: &[&Tensor]) -> Value {
    let handles: Vec<*const sys::aclTensor> = all
        .iter()
        .map(|t| {
            t.owned.set(false);
            t.handle.cast_const()
        })
        .collect();
    // SAFETY: the handles live through the call.
    Value::Tensors(unsafe { arrays::aclCreateTensorList(handles.as_ptr(), handles.len() as u64) })
}

pub(crate) fn ints(values: &[i64]) -> Value {
    // SAFETY: the numbers live through the call.
    Value::Ints(unsafe { arrays::aclCreateIntArray(values.as_ptr(), values.len() as u64) })
}

pub(crate) fn scalar(value: f32) -> Value {
    let mut value = value;
    // SAFETY: a float lies there.
    Value::Scalar(unsafe { arrays::aclCreateScalar((&raw mut value).cast(), F32.code()) })
}

/// Null where nothing is passed.
pub(crate) const NONE: Value = Value::Absent;

/// The code and message of a failure.
pub(crate) type Failure = (i32, String);

/// The first phase.
pub(crate) fn prepare(
    name: &str,
    values: &[Value],
) -> Result<(u64, *mut sys::aclOpExecutor), Failure> {
    let (function, _) = phases(name).unwrap_or_else(|| panic!("{name} is not there"));
    let signature = acl::operator(name).unwrap();
    let (mut bytes, mut executor) = (0, std::ptr::null_mut());
    // SAFETY: the function has this signature, and the objects are alive.
    let status = unsafe { signature.prepare(function, values, &mut bytes, &mut executor) };
    if status == 0 { Ok((bytes, executor)) } else { Err((status, recent())) }
}

/// The second phase.
pub(crate) fn launch(
    name: &str,
    workspace: *mut c_void,
    bytes: u64,
    executor: *mut sys::aclOpExecutor,
) -> Result<(), Failure> {
    type Launch = unsafe extern "C" fn(
        *mut c_void,
        u64,
        *mut sys::aclOpExecutor,
        *mut c_void,
    ) -> sys::aclnnStatus;
    let (_, function) = phases(name).unwrap();
    // SAFETY: it is the second phase of the operator.
    let function: Launch = unsafe { std::mem::transmute(function) };
    // SAFETY: the workspace has that many bytes.
    let status = STREAM.with(|&stream| unsafe {
        match function(workspace, bytes, executor, stream) {
            0 => api::stream::aclrtSynchronizeStream(stream),
            refused => refused,
        }
    });
    if status == 0 { Ok(()) } else { Err((status, recent())) }
}

/// Both phases, with a workspace as large as asked for.
pub(crate) fn call(name: &str, values: &[Value]) -> Result<(), Failure> {
    let (bytes, executor) = prepare(name, values)?;
    let workspace = Memory::new(bytes as usize);
    let start = if bytes == 0 { std::ptr::null_mut() } else { workspace.start };
    let launched = launch(name, start.cast(), bytes, executor);
    if launched.is_err() {
        // SAFETY: an executor that was not launched is destroyed once.
        unsafe { executor::aclDestroyAclOpExecutor(executor) };
    }
    launched
}

/// Both phases, which have to succeed.
pub(crate) fn run(name: &str, values: &[Value]) {
    if let Err((code, message)) = call(name, values) {
        panic!("{name}: {code}: {message}");
    }
}

/// That a call is refused in its first phase with this code and a message that has `part` in it.
#[track_caller]
pub(crate) fn refused(name: &str, values: &[Value], code: i32, part: &str) {
    match prepare(name, values) {
        Ok(_) => panic!("{name} was taken, which should have been refused for {part}"),
        Err((found, message)) => {
            assert_eq!(found, code, "{message}");
            assert!(message.contains(part), "{message} does not say {part}");
        }
    }
}

/// That values are as near to what they should be as a type allows.
#[track_caller]
pub(crate) fn near(got: &[f64], want: &[f64], relative: f64) {
    assert_eq!(got.len(), want.len());
    for (i, (g, w)) in got.iter().zip(want).enumerate() {
        let same = g == w || (g - w).abs() <= relative * (1.0 + w.abs());
        assert!(same, "element {i}: {g}, not {w}");
    }
}

/// How far results of a type may be off.
pub(crate) fn tolerance(element: Element) -> f64 {
    match element {
        BF16 => 1.0 / 128.0,
        F16 => 1.0 / 1024.0,
        _ => 1e-5,
    }
}

/// `x [m,k]` times `w [k,n]`.
pub(crate) fn product(x: &[f64], w: &[f64], (m, k, n): (usize, usize, usize)) -> Vec<f64> {
    let cell = |i: usize| (0..k).map(|p| x[i / n * k + p] * w[p * n + i % n]).sum();
    (0..m * n).map(cell).collect()
}

impl Tensor {
    /// A list of the same fractals described as words of eight four-bit elements.
    pub(crate) fn fractal_words(&self) -> Value {
        let mut dims = self.dims.clone();
        *dims.last_mut().unwrap() /= 8;
        let (outer, matrix) = dims.split_at(dims.len() - 2);
        let (w1, h1) = (matrix[1].div_ceil(8), matrix[0].div_ceil(16));
        let storage = [outer, &[w1, h1, 16, 8]].concat();
        let start = self.memory.start;
        let handle = create(&dims, I32, &dense(&dims), 29, &storage, start).cast_const();
        // SAFETY: one handle is read.
        Value::Tensors(unsafe { arrays::aclCreateTensorList(&handle, 1) })
    }
}
