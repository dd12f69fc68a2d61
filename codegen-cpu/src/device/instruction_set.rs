//! Instruction sets: which there are, which this machine has, which one is used.

#[cfg(target_arch = "x86_64")]
use super::amx;
use super::processor::amd_family;
use std::{fmt, str::FromStr};

/// What kernels may be compiled for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum InstructionSet {
    /// The architecture's baseline; any CPU.
    Portable,
    /// NEON of 64-bit Arm.
    Neon,
    /// The same with dot products of signed bytes (`dotprod`).
    NeonDot,
    /// The same with dot products of bf16 and of unsigned by signed bytes (`bf16`, `i8mm`).
    NeonBf16,
    /// AVX2 and FMA.
    Avx2,
    /// The same with the dot product of bytes in vectors of 32 bytes (AVX-VNNI), as processors without AVX-512 have it.
    AvxVnni,
    /// AVX-512 F, BW, DQ, VL and the dot products of bytes (VNNI); bf16 is widened and multiplied in `f32`.
    Avx512,
    /// The same with the dot products of bf16, and byte lookups (VBMI).
    Avx512Bf16,
    /// [`InstructionSet::Avx512Bf16`] with AMX tiles for products of matrices of bf16 and of integers.
    Avx512Amx,
}

impl InstructionSet {
    /// All of them, the plainest first.
    pub const ALL: [InstructionSet; 9] = [
        InstructionSet::Portable,
        InstructionSet::Neon,
        InstructionSet::NeonDot,
        InstructionSet::NeonBf16,
        InstructionSet::Avx2,
        InstructionSet::AvxVnni,
        InstructionSet::Avx512,
        InstructionSet::Avx512Bf16,
        InstructionSet::Avx512Amx,
    ];

    /// Spelling in options, reports and manifests.
    pub const fn name(self) -> &'static str {
        match self {
            InstructionSet::Portable => "portable",
            InstructionSet::Neon => "neon",
            InstructionSet::NeonDot => "neondot",
            InstructionSet::NeonBf16 => "neonbf16",
            InstructionSet::Avx2 => "avx2",
            InstructionSet::AvxVnni => "avxvnni",
            InstructionSet::Avx512 => "avx512",
            InstructionSet::Avx512Bf16 => "avx512bf16",
            InstructionSet::Avx512Amx => "avx512amx",
        }
    }

    /// Those this machine has, best first. The order depends on the processor's features and
    /// vendor alone: AMD runs the bf16 dot product at twice the rate of `f32` multiply-add, Intel
    /// at half of it, and AMX at many times either.
    ///
    /// AMX is there when the system lets this process use it, which the first call asks for.
    pub fn available() -> Vec<InstructionSet> {
        let mut sets: Vec<_> = Self::ALL.into_iter().filter(|s| s.is_here()).rev().collect();
        let dot_product = sets.iter().position(|&s| s == InstructionSet::Avx512Bf16);
        if let Some(at) = dot_product.filter(|_| amd_family().is_none()) {
            sets.swap(at, at + 1);
        }
        sets
    }

    /// The one used when none is asked for.
    pub fn best() -> InstructionSet {
        Self::available()[0]
    }

    #[cfg(target_arch = "x86_64")]
    fn is_here(self) -> bool {
        let avx2 = is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma");
        let avx512 = avx2
            && is_x86_feature_detected!("avx512f")
            && is_x86_feature_detected!("avx512bw")
            && is_x86_feature_detected!("avx512dq")
            && is_x86_feature_detected!("avx512vl")
            && is_x86_feature_detected!("avx512vnni");
        let bf16 = avx512
            && is_x86_feature_detected!("avx512bf16")
            && is_x86_feature_detected!("avx512vbmi");
        match self {
            InstructionSet::Portable => true,
            InstructionSet::Neon | InstructionSet::NeonDot | InstructionSet::NeonBf16 => false,
            InstructionSet::Avx2 => avx2,
            InstructionSet::AvxVnni => avx2 && is_x86_feature_detected!("avxvnni"),
            InstructionSet::Avx512 => avx512,
            InstructionSet::Avx512Bf16 => bf16,
            InstructionSet::Avx512Amx => bf16 && amx::available(),
        }
    }

    #[cfg(target_arch = "aarch64")]
    fn is_here(self) -> bool {
        use std::arch::is_aarch64_feature_detected;
        let dot = is_aarch64_feature_detected!("dotprod");
        match self {
            InstructionSet::Portable | InstructionSet::Neon => true,
            InstructionSet::NeonDot => dot,
            InstructionSet::NeonBf16 => {
                dot && is_aarch64_feature_detected!("bf16") && is_aarch64_feature_detected!("i8mm")
            }
            _ => false,
        }
    }

    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    fn is_here(self) -> bool {
        self == InstructionSet::Portable
    }
}

impl fmt::Display for InstructionSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// A name that is no instruction set.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{0}` is not an instruction set; use portable, avx2, avxvnni, avx512, avx512bf16 or avx512amx, on \
     64-bit Arm portable, neon, neondot or neonbf16"
)]
pub struct ParseInstructionSetError(String);

impl FromStr for InstructionSet {
    type Err = ParseInstructionSetError;
    fn from_str(s: &str) -> Result<Self, ParseInstructionSetError> {
        Self::ALL
            .into_iter()
            .find(|set| set.name() == s)
            .ok_or_else(|| ParseInstructionSetError(s.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_parse_back() {
        for set in InstructionSet::ALL {
            assert_eq!(set.name().parse(), Ok(set));
        }
        assert!("sse9".parse::<InstructionSet>().is_err());
    }

    #[test]
    fn the_portable_set_is_always_there_and_last() {
        assert_eq!(InstructionSet::available().last(), Some(&InstructionSet::Portable));
    }
}
