//! Runs one kernel on a device of its own.

use artifact::{BufferRef, Scalar, Space};
use codegen_cpu::{CpuDevice, CpuOptions, InstructionSet};
use hal::{Device, MemoryRequest};
use half::bf16;
use proptest::prelude::ProptestConfig;
use std::sync::{Arc, OnceLock};
use tensor::{DType, MappedFile, layout::Panels};

/// A weight file for tests that need none.
pub(crate) fn no_weights() -> Arc<MappedFile> {
    static FILE: OnceLock<Arc<MappedFile>> = OnceLock::new();
    let file = FILE.get_or_init(|| {
        let path = std::env::temp_dir().join(format!("precast-kernels-{}", std::process::id()));
        std::fs::write(&path, [0u8; 4096]).unwrap();
        let file = Arc::new(MappedFile::open(&path).unwrap());
        std::fs::remove_file(&path).unwrap();
        file
    });
    Arc::clone(file)
}

/// So many cases, or as many as `PROPTEST_CASES` says.
pub(crate) fn cases(usual: u32) -> ProptestConfig {
    let said = std::env::var("PROPTEST_CASES").ok().and_then(|n| n.parse().ok());
    ProptestConfig::with_cases(said.unwrap_or(usual))
}

/// A device with `threads` threads that share the machine with other tests.
pub(crate) fn device(set: InstructionSet, threads: usize) -> CpuDevice {
    let options = CpuOptions {
        threads: Some(threads),
        instruction_set: Some(set),
        pin: false,
        ..CpuOptions::default()
    };
    CpuDevice::new(options).unwrap()
}

/// Where buffers of these lengths lie in an arena, and how long it is.
pub(crate) fn place(lengths: impl IntoIterator<Item = usize>) -> (Vec<BufferRef>, u64) {
    let mut end = 0;
    let refs = lengths.into_iter().map(|bytes| {
        let at = BufferRef { space: Space::Arena, offset: end, bytes: bytes as u64 };
        end = (end + bytes as u64).next_multiple_of(64);
        at
    });
    (refs.collect(), end)
}

/// Ends the capture and replays it once on `buffers`, which lie at `refs`.
pub(crate) fn replay_on(device: &mut CpuDevice, refs: &[BufferRef], buffers: &mut [Vec<u8>]) {
    let graph = device.end_capture().unwrap();
    for (&at, bytes) in refs.iter().zip(buffers.iter()) {
        device.write(at, bytes);
    }
    device.replay(&graph).unwrap();
    for (&at, bytes) in refs.iter().zip(buffers.iter_mut()) {
        device.read(at, bytes).unwrap();
    }
}

/// Runs `kernel` on buffers with these contents; they hold the contents after it then.
pub(crate) fn run(
    set: InstructionSet,
    threads: usize,
    kernel: &str,
    buffers: &mut [Vec<u8>],
    scalars: &[Scalar],
) {
    let mut device = device(set, threads);
    let (refs, arena_bytes) = place(buffers.iter().map(Vec::len));
    device
        .load(MemoryRequest {
            root: Default::default(),
            weights: no_weights(),
            arena_bytes,
            state_bytes: 0,
        })
        .unwrap();
    device.begin_capture().unwrap();
    device.launch(&hal::Launch::new(kernel, &refs, scalars)).unwrap();
    replay_on(&mut device, &refs, buffers);
}

/// Counts as scalars.
pub(crate) fn ints<const N: usize>(values: [usize; N]) -> Vec<Scalar> {
    values.map(|v| Scalar::Int(v as u64)).to_vec()
}

/// What becomes of the results of a `linear_*`.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct End {
    /// 1 for all rows, 2 for each expert.
    pub(crate) bias: usize,
    /// 1 is silu, 2 the clamped gate.
    pub(crate) gate: usize,
    pub(crate) alpha: f32,
    pub(crate) limit: f32,
    /// The stride of a residual.
    pub(crate) residual: Option<usize>,
    pub(crate) argmax: bool,
    /// How many of the largest; 0 for none.
    pub(crate) top_k: usize,
}

impl End {
    /// Its scalars, after the strides of the product.
    pub(crate) fn scalars(&self) -> Vec<Scalar> {
        let Self { bias, gate, residual, argmax, top_k, .. } = *self;
        let counts = [
            bias,
            gate,
            usize::from(residual.is_some()),
            usize::from(argmax),
            top_k,
            residual.unwrap_or(0),
        ];
        let mut scalars = ints(counts);
        scalars.extend([self.alpha, self.limit].map(Scalar::Float));
        scalars
    }
}

pub(crate) fn bytes_of_i32(values: &[i32]) -> Vec<u8> {
    values.iter().flat_map(|v| v.to_le_bytes()).collect()
}

pub(crate) fn to_i32(bytes: &[u8]) -> Vec<i32> {
    bytes.chunks(4).map(|b| i32::from_le_bytes(b.try_into().unwrap())).collect()
}

/// Values in memory as `dtype`.
pub(crate) fn encode(dtype: DType, values: &[f32]) -> Vec<u8> {
    match dtype {
        DType::F32 => values.iter().flat_map(|v| v.to_le_bytes()).collect(),
        DType::BF16 => values.iter().flat_map(|&v| bf16::from_f32(v).to_le_bytes()).collect(),
        _ => unreachable!("kernels have f32 and bf16"),
    }
}

pub(crate) fn decode(dtype: DType, bytes: &[u8]) -> Vec<f32> {
    match dtype {
        DType::F32 => bytes.chunks(4).map(|b| f32::from_le_bytes(b.try_into().unwrap())).collect(),
        DType::BF16 => {
            bytes.chunks(2).map(|b| bf16::from_le_bytes(b.try_into().unwrap()).to_f32()).collect()
        }
        _ => unreachable!("kernels have f32 and bf16"),
    }
}

/// What `values` are after a round trip through `dtype`.
pub(crate) fn rounded(dtype: DType, values: &[f32]) -> Vec<f32> {
    decode(dtype, &encode(dtype, values))
}

/// An output that no kernel has written.
pub(crate) fn unwritten(dtype: DType, len: usize) -> Vec<u8> {
    encode(dtype, &vec![f32::NAN; len])
}

/// Rows of `n` elements spread to a stride, NaN between them.
pub(crate) fn spread(values: &[f32], n: usize, stride: usize) -> Vec<f32> {
    let mut out = vec![f32::NAN; values.len() / n.max(1) * stride];
    for (from, to) in values.chunks(n).zip(out.chunks_mut(stride)) {
        to[..n].copy_from_slice(from);
    }
    out
}

/// The reverse of [`spread`]; checks that nothing between the rows was written.
pub(crate) fn gathered(values: &[f32], n: usize, stride: usize) -> Vec<f32> {
    assert!(values.chunks(stride).all(|row| row[n..].iter().all(|v| v.is_nan())), "wrote padding");
    values.chunks(stride).flat_map(|row| row[..n].to_vec()).collect()
}

/// Whether products of bf16 are those of pairs.
pub(crate) fn multiplies_pairs(set: InstructionSet) -> bool {
    matches!(set, InstructionSet::Avx512Bf16 | InstructionSet::Avx512Amx | InstructionSet::NeonBf16)
}

/// A weight `[n,k]` in panels.
pub(crate) fn panels(dtype: DType, w: &[f32], n: usize, k: usize) -> Vec<u8> {
    let layout = Panels::new(n as u64, k as u64, dtype);
    let mut out = vec![0.0; layout.padded_len() as usize];
    for r in 0..n {
        for c in 0..k {
            out[layout.offset(r as u64, c as u64) as usize] = w[r * k + c];
        }
    }
    encode(dtype, &out)
}

/// Deterministic numbers in `-1..1`.
pub(crate) fn noise(seed: u64, len: usize) -> Vec<f32> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 40) as f32 / (1u64 << 23) as f32 - 1.0
    };
    (0..len).map(|_| next()).collect()
}

/// The rounding error of a stored result.
pub(crate) fn unit(dtype: DType) -> f64 {
    match dtype {
        DType::BF16 => 2f64.powi(-8),
        _ => 2f64.powi(-23),
    }
}

/// The worst of `|got - want| / bound`, with NaN worse than everything.
pub(crate) fn worst(got: &[f32], want: &[f64], bound: impl Fn(usize, f64) -> f64) -> f64 {
    assert_eq!(got.len(), want.len());
    let errors = got.iter().zip(want).enumerate();
    errors
        .map(|(i, (&g, &w))| ((f64::from(g) - w).abs() / bound(i, w)).abs())
        .max_by(f64::total_cmp)
        .unwrap_or(0.0)
}
