//! What the machine can do at most: bytes read per second, multiply-adds per second. Benchmarks
//! state their results as shares of these, measured in the same run.

use std::hint::black_box;
use std::time::Instant;

/// Memory that a bandwidth probe reads: far more than caches hold.
const PROBE_BYTES: usize = 1 << 30;
const REPEATS: usize = 5;

/// An instruction whose rate bounds matrix kernels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Peak {
    /// Fused multiply-add of `f32` in the widest vectors there are.
    F32MultiplyAdd,
    /// `vdpbf16ps`.
    Bf16DotProduct,
    /// `tdpbf16ps`, where the system lets the process use AMX.
    AmxBf16,
}

impl Peak {
    /// All of them.
    pub const ALL: [Peak; 3] = [Peak::F32MultiplyAdd, Peak::Bf16DotProduct, Peak::AmxBf16];

    /// For reports.
    pub const fn name(self) -> &'static str {
        match self {
            Peak::F32MultiplyAdd => "f32 multiply-add",
            Peak::Bf16DotProduct => "bf16 dot product",
            Peak::AmxBf16 => "bf16 AMX tiles",
        }
    }
}

/// The median of `times`.
///
/// # Panics
/// When it is empty.
pub fn median(mut times: Vec<f64>) -> f64 {
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}

/// Gigabytes per second that `threads` threads read from memory together, each its own part.
pub fn read_bandwidth(threads: usize) -> f64 {
    let memory = vec![1u64; PROBE_BYTES / size_of::<u64>()];
    let pass = || {
        std::thread::scope(|scope| {
            for part in memory.chunks(memory.len().div_ceil(threads)) {
                scope.spawn(|| {
                    use_every_processor();
                    black_box(sum(part))
                });
            }
        });
    };
    PROBE_BYTES as f64 / time(pass) / 1e9
}

/// Floating-point operations per second, in billions, that `threads` threads do in registers;
/// `None` when this machine lacks the instruction.
pub fn peak_flops(peak: Peak, threads: usize) -> Option<f64> {
    let (kernel, flops) = kernel(peak)?;
    let pass = || {
        std::thread::scope(|scope| {
            for _ in 0..threads {
                scope.spawn(|| {
                    use_every_processor();
                    kernel(ROUNDS);
                });
            }
        });
    };
    Some(flops * (ROUNDS * threads) as f64 / time(pass) / 1e9)
}

/// Lets the calling thread run anywhere: it was started by one that an engine may keep on a single
/// processor, and inherited that.
fn use_every_processor() {
    #[cfg(target_os = "linux")]
    // SAFETY: `cpu_set_t` is plain data for which zeros are the empty set; the call is given its
    // size and a live pointer. Processors that do not exist are ignored, and so is a refusal, which
    // leaves the thread where it was.
    unsafe {
        let mut all: libc::cpu_set_t = std::mem::zeroed();
        for processor in 0..libc::CPU_SETSIZE as usize {
            libc::CPU_SET(processor, &mut all);
        }
        libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &all);
    }
}

/// Rounds of a peak probe: some tens of milliseconds.
const ROUNDS: usize = 4_000_000;

/// Median seconds of a pass, after one to warm up.
fn time(pass: impl Fn()) -> f64 {
    pass();
    let once = |_| {
        let began = Instant::now();
        pass();
        began.elapsed().as_secs_f64()
    };
    median((0..REPEATS).map(once).collect())
}

/// A probe that runs so many rounds.
type Probe = fn(usize);

#[cfg(not(target_arch = "x86_64"))]
fn sum(part: &[u64]) -> u64 {
    part.iter().fold(0, |s, v| s.wrapping_add(*v))
}

#[cfg(not(target_arch = "x86_64"))]
fn kernel(_: Peak) -> Option<(Probe, f64)> {
    None
}

#[cfg(target_arch = "x86_64")]
use x86::{kernel, sum};

#[cfg(target_arch = "x86_64")]
mod x86 {
    use super::{Peak, Probe};
    use codegen_cpu::InstructionSet;
    use std::arch::{asm, x86_64::*};
    use std::hint::black_box;

    /// Reads all of `part`.
    pub(super) fn sum(part: &[u64]) -> u64 {
        if is_x86_feature_detected!("avx512f") {
            // SAFETY: detected on the line above.
            return unsafe { sum_avx512(part) };
        }
        part.iter().fold(0, |s, v| s.wrapping_add(*v))
    }

    /// A probe and the operations of one of its rounds.
    pub(super) fn kernel(peak: Peak) -> Option<(Probe, f64)> {
        let avx512 = is_x86_feature_detected!("avx512f");
        match peak {
            Peak::F32MultiplyAdd if avx512 => {
                // SAFETY: detected in the guard.
                Some((|rounds| unsafe { fma_avx512(rounds) }, (CHAINS * 16 * 2) as f64))
            }
            Peak::F32MultiplyAdd if is_x86_feature_detected!("fma") => {
                // SAFETY: detected in the guard.
                Some((|rounds| unsafe { fma_avx2(rounds) }, (NARROW_CHAINS * 8 * 2) as f64))
            }
            Peak::Bf16DotProduct if avx512 && is_x86_feature_detected!("avx512bf16") => {
                // SAFETY: detected in the guard.
                Some((|rounds| unsafe { dot_avx512(rounds) }, (CHAINS * 16 * 4) as f64))
            }
            Peak::AmxBf16 if InstructionSet::available().contains(&InstructionSet::Avx512Amx) => {
                // SAFETY: the guard asked whether the machine has it and the system allows it.
                Some((|rounds| unsafe { amx(rounds) }, (TILE_CHAINS * 16 * 16 * 32 * 2) as f64))
            }
            _ => None,
        }
    }

    /// Independent sums: enough to hide the latency of either instruction.
    const CHAINS: usize = 24;
    const NARROW_CHAINS: usize = 12;
    const TILE_CHAINS: usize = 4;

    /// Tile configuration: 16 rows of 64 bytes for each of eight tiles.
    #[repr(C, align(64))]
    struct FullTiles([u8; 64]);

    #[target_feature(enable = "avx512f")]
    fn sum_avx512(part: &[u64]) -> u64 {
        let mut sums = [_mm512_setzero_si512(); 8];
        for chunk in part.chunks_exact(64) {
            for (i, sum) in sums.iter_mut().enumerate() {
                // SAFETY: eight vectors of eight elements are the chunk.
                let v = unsafe { _mm512_loadu_si512(chunk.as_ptr().add(8 * i).cast()) };
                *sum = _mm512_add_epi64(*sum, v);
            }
        }
        let total = sums.into_iter().fold(_mm512_setzero_si512(), |a, b| _mm512_add_epi64(a, b));
        _mm512_reduce_add_epi64(total) as u64
    }

    #[target_feature(enable = "avx512f")]
    fn fma_avx512(rounds: usize) {
        let x = _mm512_set1_ps(black_box(0.5));
        let mut sums = [x; CHAINS];
        for _ in 0..rounds {
            for sum in &mut sums {
                *sum = _mm512_fmadd_ps(*sum, x, x);
            }
        }
        black_box(sums);
    }

    #[target_feature(enable = "avx512f,avx512bf16")]
    fn dot_avx512(rounds: usize) {
        let bits = _mm512_set1_epi32(black_box(0x3f00_3f00));
        // SAFETY: the types differ in name only.
        let x = unsafe { std::mem::transmute::<__m512i, __m512bh>(bits) };
        let mut sums = [_mm512_setzero_ps(); CHAINS];
        for _ in 0..rounds {
            for sum in &mut sums {
                *sum = _mm512_dpbf16_ps(*sum, x, x);
            }
        }
        black_box(sums);
    }

    /// # Safety
    /// The machine has AMX with bf16 and the process may use it.
    unsafe fn amx(rounds: usize) {
        let mut config = FullTiles([0; 64]);
        config.0[0] = 1;
        for tile in 0..8 {
            config.0[16 + 2 * tile] = 64;
            config.0[48 + tile] = 16;
        }
        // SAFETY: the configuration is valid, the tiles are set before they are used and released
        // after; the instructions are the caller's promise.
        unsafe {
            asm!(
                "ldtilecfg [{config}]",
                "2:",
                "tdpbf16ps tmm0, tmm4, tmm6",
                "tdpbf16ps tmm1, tmm4, tmm7",
                "tdpbf16ps tmm2, tmm5, tmm6",
                "tdpbf16ps tmm3, tmm5, tmm7",
                "dec {rounds}",
                "jnz 2b",
                "tilerelease",
                config = in(reg) &config,
                rounds = inout(reg) rounds => _,
                out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
                out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _,
                options(nostack),
            );
        }
    }

    #[target_feature(enable = "avx2,fma")]
    fn fma_avx2(rounds: usize) {
        let x = _mm256_set1_ps(black_box(0.5));
        let mut sums = [x; NARROW_CHAINS];
        for _ in 0..rounds {
            for sum in &mut sums {
                *sum = _mm256_fmadd_ps(*sum, x, x);
            }
        }
        black_box(sums);
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;
    use std::thread::{available_parallelism, spawn};

    #[test]
    fn threads_started_by_a_pinned_one_use_every_processor() {
        let processors = available_parallelism().unwrap();
        let pinned = spawn(move || {
            // SAFETY: as in `use_every_processor`.
            unsafe {
                let mut one: libc::cpu_set_t = std::mem::zeroed();
                let mut before: libc::cpu_set_t = std::mem::zeroed();
                libc::sched_getaffinity(0, size_of::<libc::cpu_set_t>(), &mut before);
                let usable = (0..libc::CPU_SETSIZE as usize)
                    .find(|&processor| libc::CPU_ISSET(processor, &before))
                    .unwrap();
                libc::CPU_SET(usable, &mut one);
                assert_eq!(libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &one), 0);
            }
            assert_eq!(available_parallelism().unwrap().get(), 1);
            spawn(|| {
                use_every_processor();
                available_parallelism().unwrap()
            })
            .join()
            .unwrap()
        });
        assert!(pinned.join().unwrap() >= processors);
    }
}
