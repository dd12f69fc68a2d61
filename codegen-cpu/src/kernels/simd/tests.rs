use super::*;

/// Words of random bytes, every byte value among them.
fn words(seed: u32) -> Vec<u32> {
    let mut state = seed | 1;
    (0..64 * LANES)
        .map(|_| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            state ^ state >> 15
        })
        .collect()
}

fn bits<S: Simd>(v: S::I) -> [u32; LANES] {
    let mut out = [0; LANES];
    // SAFETY: called where the machine has `S`.
    unsafe { S::store_bits(out.as_mut_ptr(), v) };
    out
}

fn as_bf16<S: Simd>(v: S::V) -> [u16; LANES] {
    let mut out = [bf16::ZERO; LANES];
    // SAFETY: called where the machine has `S`.
    unsafe { S::store_bf16(out.as_mut_ptr(), v) };
    out.map(bf16::to_bits)
}

#[derive(Clone, Copy)]
struct Agrees;

impl Vectorised for Agrees {
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let floats: [f32; LANES] = std::array::from_fn(|i| i as f32 * 1.5 - 7.0);
        let halves: [u16; 2 * LANES] = std::array::from_fn(|i| (i % LANES) as u16 * 999);
        for (w, x) in words(1).chunks(LANES).zip(words(2).chunks(LANES)) {
            // SAFETY: called where the machine has `S`; chunks have 16 words. What is compared
            // with runs anywhere.
            unsafe {
                let load = |p: &[u32]| (S::load_bits(p.as_ptr()), Portable::load_bits(p.as_ptr()));
                let ((w, pw), (x, px)) = (load(w), load(x));
                let same = |got: S::I, want: [u32; LANES], what: &str| {
                    assert_eq!(bits::<S>(got), want, "{what}");
                };
                same(S::byte_dot(x, w, x), Portable::byte_dot(px, pw, px), "byte_dot");
                same(S::odd_bytes(w), pw.map(|w| w >> 8 & 0x00ff_00ff), "odd_bytes");
                same(S::half_dot(x, w, x), Portable::half_dot(px, pw, px), "half_dot");
                same(S::sub_halves(x, w), Portable::sub_halves(px, pw), "sub_halves");
                // Nibbles by bytes, and sums so far, that fit.
                let (low, small) = (0x0f0f_0f0f, 0x0fff_0fff);
                let (nibbles, acc) = (S::splat_bits(low), S::splat_bits(small));
                let got = S::byte_dot_in_halves(S::and_bits(x, acc), S::and_bits(w, nibbles), x);
                let (pacc, pw_low) = (px.map(|x| x & small), pw.map(|w| w & low));
                same(got, Portable::byte_dot_in_halves(pacc, pw_low, px), "byte_dot_in_halves");
                same(S::max_bits(w, x), Portable::max_bits(pw, px), "max");
                same(S::xor_bits(w, x), Portable::xor_bits(pw, px), "xor");
                same(S::or_bits(w, x), Portable::or_bits(pw, px), "or");
                same(S::and_bits(w, x), Portable::and_bits(pw, px), "and");
                let (mask, portable_mask) = (S::shl::<3>(x), Portable::shl::<3>(px));
                let want = Portable::or_masked(pw, px, portable_mask);
                same(S::or_masked(w, x, mask), want, "or_masked");
                same(S::shl::<20>(w), Portable::shl::<20>(pw), "shl");
                same(S::shr::<3>(w), Portable::shr::<3>(pw), "shr");
                same(S::shr_by(w, 16), Portable::shr_by(pw, 16), "shr_by");
                same(S::sar::<24>(w), Portable::sar::<24>(pw), "sar");
                let table = &halves;
                same(S::look_up_pairs(table, w), Portable::look_up_pairs(table, pw), "pairs");
                for (got, want) in S::fp8_pairs(w).into_iter().zip(Portable::fp8_pairs(pw)) {
                    same(got, want, "fp8");
                }
                assert_eq!(S::sum_bits(w), pw.into_iter().fold(0, u32::wrapping_add));
                assert_eq!(S::lanes(S::to_float(w)), Portable::to_float(pw));
                for by in [1.0, 2f32.powi(-12), 2f32.powi(-30)] {
                    let x = Portable::to_float(pw).map(|x| x * by * (1.0 - f32::EPSILON));
                    let whole = bits::<S>(S::to_whole(S::load(x.as_ptr())));
                    for (x, whole) in x.into_iter().zip(whole.map(|w| f64::from(w as i32))) {
                        assert!((f64::from(x) - whole).abs() < 1.0, "{x}: {whole}");
                    }
                }
                assert_eq!(S::lanes(S::look_up(&floats, w)), Portable::look_up(&floats, pw));
                // Up to 2^17 by eighths.
                let eighth = S::mul(S::to_float(S::sar::<11>(w)), S::splat(0.125));
                let portable = S::lanes(eighth);
                assert_eq!(S::sum(eighth), Portable::sum(portable));
                let mut some = portable.map(|v| if v > 1000.0 { f32::NAN } else { v });
                let largest = |some: [f32; LANES]| {
                    let (v, most) = (S::load(some.as_ptr()), Portable::largest(some));
                    assert_eq!(S::largest(v), most);
                    assert!(!S::any_above(v, most));
                    assert_eq!(S::any_above(v, most.next_down()), most > f32::NEG_INFINITY);
                };
                largest(some);
                some[..LANES - 1].fill(f32::NAN);
                largest(some);
                assert!(!S::any_above(S::splat(f32::NAN), f32::NEG_INFINITY));
                // Some and all of them below the normal numbers, then none.
                for mask in [u32::MAX, 0x807f_ffff] {
                    let v = S::from_bits(S::and_bits(w, S::splat_bits(mask)));
                    let want = Portable::from_bits(pw.map(|w| w & mask));
                    let want = as_bf16::<Portable>(want);
                    assert_eq!(as_bf16::<S>(v), want, "{mask:#x}");
                    let mut apart = [bf16::ONE; 2 * LANES];
                    S::store_bf16_apart(apart[1..].as_mut_ptr(), v);
                    for (i, &x) in apart.iter().enumerate() {
                        let want = if i % 2 == 1 { want[i / 2] } else { bf16::ONE.to_bits() };
                        assert_eq!(x.to_bits(), want, "{mask:#x}, place {i}");
                    }
                }
                let (mut crossed, mut want) = ([99; LANES / 2 + 2], [99; LANES / 2 + 2]);
                let [even, odd] = [1, LANES / 4 + 1].map(|i| crossed.as_mut_ptr().add(i));
                S::store_crossed(even, odd, w);
                for (i, four) in pw.chunks(4).enumerate() {
                    want[1 + i] = four[0] & 0xffff | four[2] << 16;
                    want[1 + LANES / 4 + i] = four[1] & 0xffff | four[3] << 16;
                }
                assert_eq!(crossed, want);
                let bytes: [i8; LANES] = std::array::from_fn(|i| pw[i] as i8);
                let mut apart = [99; 4 * LANES + 1];
                S::store_bytes_apart(apart[1..].as_mut_ptr(), &bytes);
                for (i, &byte) in apart.iter().enumerate() {
                    let want = if i % 4 == 1 { bytes[i / 4] } else { 99 };
                    assert_eq!(byte, want, "place {i}");
                }
                let normal = pw.map(|w| f32::from_bits(w & 0xbfff_ffff | 0x2000_0000));
                assert_eq!(as_bf16::<S>(S::load(normal.as_ptr())), as_bf16::<Portable>(normal));
                same(S::to_bits(S::abs(S::from_bits(w))), pw.map(|w| w & 0x7fff_ffff), "abs");
                same(S::to_bits(S::from_bits(w)), pw, "bits");
                let raw = S::lanes(S::from_bits(w)).map(f32::to_bits);
                assert_eq!(raw, pw);
            }
        }
    }
}

/// Runs `body` compiled for each instruction set of this machine.
pub(crate) fn on_every_set(body: impl Vectorised<Output = ()> + Copy) {
    use crate::device::InstructionSet;
    for set in InstructionSet::available() {
        // SAFETY: the machine has what is available.
        unsafe {
            match set {
                InstructionSet::Portable => Portable::enter(body),
                #[cfg(target_arch = "x86_64")]
                InstructionSet::Avx2 => Avx2::<false>::enter(body),
                #[cfg(target_arch = "x86_64")]
                InstructionSet::AvxVnni => Avx2::<true>::enter(body),
                #[cfg(target_arch = "x86_64")]
                InstructionSet::Avx512 => Avx512::enter(body),
                #[cfg(target_arch = "x86_64")]
                InstructionSet::Avx512Bf16 | InstructionSet::Avx512Amx => Avx512Bf16::enter(body),
                #[cfg(target_arch = "aarch64")]
                InstructionSet::Neon => Neon::<NO_DOTS>::enter(body),
                #[cfg(target_arch = "aarch64")]
                InstructionSet::NeonDot => Neon::<BYTE_DOTS>::enter(body),
                #[cfg(target_arch = "aarch64")]
                InstructionSet::NeonBf16 => Neon::<PAIR_DOTS>::enter(body),
                other => unreachable!("{other} is of another architecture"),
            }
        }
    }
}

#[test]
fn every_instruction_set_agrees_with_plain_arrays() {
    on_every_set(Agrees);
}

#[test]
fn fp8_codes_are_their_values() {
    for code in 0..=u8::MAX {
        let (exponent, mantissa) = (i32::from(code >> 3 & 15), f32::from(code & 7));
        let size = match exponent {
            0 => mantissa * 2f32.powi(-9),
            e => (1.0 + mantissa / 8.0) * 2f32.powi(e - 7),
        };
        let want = if code < 128 { size } else { -size };
        let got = f32::from_bits(u32::from(fp8_as_bf16(code)) << 16);
        assert_eq!(got.to_bits(), want.to_bits(), "{code:#x}");
    }
}
