//! What the machine can do at most: bytes read per second, multiply-adds per second. Profiles and
//! benchmarks state their results as shares of these, measured in the same run.

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
    /// `vpmaddwd` and an addition: what integers of 16 bits, or of 8, are multiplied by where there is no dot product of
    /// bytes.
    Int16MultiplyAdd,
    /// `vpmaddubsw` and an addition: integers of 4 bits by 8, twice as many at once, whose sums fit 16 bits.
    Int4MultiplyAdd,
    /// `vpdpbusd`.
    Int8DotProduct,
    /// `tdpbf16ps`, where the system lets the process use AMX.
    AmxBf16,
    /// `tdpbsud`, likewise.
    AmxInt8,
}

impl Peak {
    /// All of them.
    pub const ALL: [Peak; 7] = [
        Peak::F32MultiplyAdd,
        Peak::Bf16DotProduct,
        Peak::Int16MultiplyAdd,
        Peak::Int4MultiplyAdd,
        Peak::Int8DotProduct,
        Peak::AmxBf16,
        Peak::AmxInt8,
    ];

    /// Those of floating-point numbers.
    pub const FLOATS: [Peak; 3] = [Peak::F32MultiplyAdd, Peak::Bf16DotProduct, Peak::AmxBf16];

    /// For reports.
    pub const fn name(self) -> &'static str {
        match self {
            Peak::F32MultiplyAdd => "f32 multiply-add",
            Peak::Bf16DotProduct => "bf16 dot product",
            Peak::Int16MultiplyAdd => "int16 multiply-add",
            Peak::Int4MultiplyAdd => "int4 multiply-add",
            Peak::Int8DotProduct => "int8 dot product",
            Peak::AmxBf16 => "bf16 AMX tiles",
            Peak::AmxInt8 => "int8 AMX tiles",
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

/// Memory to read, so much that caches do not matter.
pub struct ReadProbe(Vec<u64>);

impl ReadProbe {
    /// Takes a gigabyte of memory and writes to all of it.
    #[expect(clippy::new_without_default, reason = "a gigabyte is no default")]
    pub fn new() -> Self {
        let len = PROBE_BYTES / size_of::<u64>();
        let mut memory = Vec::with_capacity(len);
        #[cfg(target_os = "linux")]
        advise_huge_pages(memory.as_mut_ptr(), len);
        memory.resize(len, 1);
        Self(memory)
    }

    /// Gigabytes per second that `threads` threads read from memory together, each its own part.
    pub fn bandwidth(&self, threads: usize) -> f64 {
        let pass = || {
            std::thread::scope(|scope| {
                for part in self.0.chunks(self.0.len().div_ceil(threads)) {
                    scope.spawn(|| {
                        use_every_processor();
                        black_box(sum(part))
                    });
                }
            });
        };
        PROBE_BYTES as f64 / time(pass) / 1e9
    }
}

/// What a new [`ReadProbe`] measures.
pub fn read_bandwidth(threads: usize) -> f64 {
    ReadProbe::new().bandwidth(threads)
}

/// Asks for memory in huge pages, where the first read of a small one waits for its translation.
#[cfg(target_os = "linux")]
fn advise_huge_pages(memory: *mut u64, len: usize) {
    // SAFETY: only whole pages inside the memory, which advice changes nothing in; a refusal is ignored.
    unsafe {
        let page = 4096;
        let skipped = memory.align_offset(page) * size_of::<u64>();
        let bytes = (len * size_of::<u64>()).saturating_sub(skipped) / page * page;
        libc::madvise(memory.wrapping_byte_add(skipped).cast(), bytes, libc::MADV_HUGEPAGE);
    }
}

/// Operations per second, in billions, that `threads` threads do in registers, a multiplication and
/// an addition counted as two; `None` when this machine lacks the instruction.
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

/// Seconds of the fastest pass, after one to warm up: others had their threads started late, or on one processor.
fn time(pass: impl Fn()) -> f64 {
    pass();
    let once = |_| {
        let began = Instant::now();
        pass();
        began.elapsed().as_secs_f64()
    };
    (0..REPEATS).map(once).fold(f64::INFINITY, f64::min)
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
mod x86;
#[cfg(target_arch = "x86_64")]
use x86::{kernel, sum};

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
