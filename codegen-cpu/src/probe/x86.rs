//! Probes of x86.

use super::{Peak, Probe};
use crate::device::has_amx;
use std::arch::{asm, x86_64::*};
use std::hint::black_box;

/// How far ahead of its use memory is asked for.
const AHEAD_BYTES: usize = 4096;

/// Reads all of `part`.
pub(super) fn sum(part: &[u64]) -> u64 {
    if is_x86_feature_detected!("avx512f") {
        // SAFETY: detected on the line above.
        return unsafe { sum_avx512(part) };
    }
    part.chunks(64).fold(0, |total, chunk| {
        ask(chunk);
        chunk.iter().fold(total, |s, v| s.wrapping_add(*v))
    })
}

/// Asks for the lines that are [`AHEAD_BYTES`] after `chunk`: with what the machine asks for by itself it reads a
/// sixth less.
#[inline(always)]
fn ask(chunk: &[u64]) {
    for line in chunk.chunks(8) {
        // SAFETY: part of the baseline; a prefetch may name any address.
        unsafe {
            _mm_prefetch::<_MM_HINT_T1>(line.as_ptr().wrapping_byte_add(AHEAD_BYTES).cast());
        }
    }
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
        Peak::Int16MultiplyAdd if is_x86_feature_detected!("avx2") => {
            // SAFETY: detected in the guard.
            Some((|rounds| unsafe { half_dot_avx2(rounds) }, (NARROW_CHAINS * 8 * 4) as f64))
        }
        Peak::Int4MultiplyAdd if is_x86_feature_detected!("avx2") => {
            // SAFETY: detected in the guard.
            Some((
                |rounds| unsafe { byte_dot_in_halves_avx2(rounds) },
                (NARROW_CHAINS * 8 * 8) as f64,
            ))
        }
        Peak::Int8DotProduct if avx512 && is_x86_feature_detected!("avx512vnni") => {
            // SAFETY: detected in the guard.
            Some((|rounds| unsafe { byte_dot_avx512(rounds) }, (CHAINS * 16 * 8) as f64))
        }
        Peak::Int8DotProduct if is_x86_feature_detected!("avxvnni") => {
            // SAFETY: detected in the guard.
            Some((|rounds| unsafe { byte_dot_avx_vnni(rounds) }, (NARROW_CHAINS * 8 * 8) as f64))
        }
        Peak::AmxBf16 if has_amx() => {
            // SAFETY: the guard asked whether the machine has it and the system allows it.
            Some((|rounds| unsafe { amx_bf16(rounds) }, (TILE_CHAINS * 16 * 16 * 32 * 2) as f64))
        }
        Peak::AmxInt8 if has_amx() => {
            // SAFETY: as above.
            Some((|rounds| unsafe { amx_int8(rounds) }, (TILE_CHAINS * 16 * 16 * 64 * 2) as f64))
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
        ask(chunk);
        for (i, sum) in sums.iter_mut().enumerate() {
            // SAFETY: eight vectors of eight elements are the chunk.
            let v = unsafe { _mm512_loadu_si512(chunk.as_ptr().add(8 * i).cast()) };
            *sum = _mm512_add_epi64(*sum, v);
        }
    }
    let total = sums.into_iter().fold(_mm512_setzero_si512(), |a, b| _mm512_add_epi64(a, b));
    _mm512_reduce_add_epi64(total) as u64
}

/// A probe of what makes each of so many vectors a new one with the help of `x`.
macro_rules! vectors {
    ($name:ident, $features:literal, $x:ident = $value:expr, [$sum:ident = $start:expr; $count:ident] => $next:expr) => {
        #[target_feature(enable = $features)]
        fn $name(rounds: usize) {
            let $x = $value;
            let mut sums = [$start; $count];
            for _ in 0..rounds {
                for sum in &mut sums {
                    let $sum = *sum;
                    *sum = $next;
                }
            }
            black_box(sums);
        }
    };
}

vectors!(fma_avx512, "avx512f", x = _mm512_set1_ps(black_box(0.5)),
    [sum = x; CHAINS] => _mm512_fmadd_ps(sum, x, x));
vectors!(dot_avx512, "avx512f,avx512bf16",
    x =
        // SAFETY: the types differ in name only.
        unsafe { std::mem::transmute::<__m512i, __m512bh>(_mm512_set1_epi32(black_box(0x3f00_3f00))) },
    [sum = _mm512_setzero_ps(); CHAINS] => _mm512_dpbf16_ps(sum, x, x));
vectors!(byte_dot_avx512, "avx512f,avx512vnni", x = _mm512_set1_epi32(black_box(0x0101_0101)),
    [sum = x; CHAINS] => _mm512_dpbusd_epi32(sum, x, x));
vectors!(fma_avx2, "avx2,fma", x = _mm256_set1_ps(black_box(0.5)),
    [sum = x; NARROW_CHAINS] => _mm256_fmadd_ps(sum, x, x));
vectors!(half_dot_avx2, "avx2", x = _mm256_set1_epi32(black_box(0x0001_0001)),
    [sum = x; NARROW_CHAINS] => _mm256_add_epi32(sum, _mm256_madd_epi16(sum, x)));
vectors!(byte_dot_avx_vnni, "avx2,avxvnni", x = _mm256_set1_epi32(black_box(0x0101_0101)),
    [sum = x; NARROW_CHAINS] => _mm256_dpbusd_avx_epi32(sum, x, x));
vectors!(byte_dot_in_halves_avx2, "avx2", x = _mm256_set1_epi32(black_box(0x0101_0101)),
    [sum = x; NARROW_CHAINS] => _mm256_add_epi16(sum, _mm256_maddubs_epi16(sum, x)));

/// A probe of an instruction that multiplies tiles.
macro_rules! amx {
    ($name:ident, $dot:literal) => {
        /// # Safety
        /// The machine has AMX with bf16 and bytes and the process may use it.
        unsafe fn $name(rounds: usize) {
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
                    concat!($dot, " tmm0, tmm4, tmm6"),
                    concat!($dot, " tmm1, tmm4, tmm7"),
                    concat!($dot, " tmm2, tmm5, tmm6"),
                    concat!($dot, " tmm3, tmm5, tmm7"),
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
    };
}

amx!(amx_bf16, "tdpbf16ps");
amx!(amx_int8, "tdpbsud");
