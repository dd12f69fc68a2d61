//! Element types.

use serde::{Deserialize, Serialize};
use std::{fmt, str::FromStr};

macro_rules! dtypes {
    ($($(#[$doc:meta])* $name:ident = $text:literal, $bits:literal;)*) => {
        /// The element type of a tensor.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
        pub enum DType { $( $(#[$doc])* #[serde(rename = $text)] $name, )* }

        impl DType {
            /// Every element type, in declaration order.
            pub const ALL: &[DType] = &[$(DType::$name),*];

            /// Spelling in the text IR, in kernel names and in manifests.
            pub const fn name(self) -> &'static str {
                match self { $(DType::$name => $text,)* }
            }

            /// Width of one element in bits. Scales that travel beside the elements (MXFP4) are not counted.
            pub const fn bits(self) -> u64 {
                match self { $(DType::$name => $bits,)* }
            }
        }

        impl FromStr for DType {
            type Err = ParseDTypeError;
            fn from_str(s: &str) -> Result<Self, ParseDTypeError> {
                match s { $($text => Ok(DType::$name),)* _ => Err(ParseDTypeError(s.to_owned())) }
            }
        }
    };
}

dtypes! {
    /// IEEE 754 binary32.
    F32 = "f32", 32;
    /// IEEE 754 binary16.
    F16 = "f16", 16;
    /// The upper half of a binary32.
    BF16 = "bf16", 16;
    /// Two's complement byte.
    I8 = "i8", 8;
    /// Two's complement nibble, two to a byte, low nibble first.
    I4 = "i4", 4;
    /// Unsigned byte.
    U8 = "u8", 8;
    /// Two's complement 32-bit integer.
    I32 = "i32", 32;
    /// Two's complement 64-bit integer.
    I64 = "i64", 64;
    /// OCP FP8 E4M3: no infinities, NaN is all ones.
    F8E4M3 = "fp8", 8;
    /// OCP MXFP4: E2M1 elements in blocks of 32 that share one E8M0 scale.
    MxFp4 = "mxfp4", 4;
}

/// A name that is no element type.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not an element type")]
pub struct ParseDTypeError(String);

impl DType {
    /// Bytes that `elements` elements take, rounded up to a whole byte; [`u64::MAX`] when no
    /// number is large enough.
    pub const fn bytes_for(self, elements: u64) -> u64 {
        let bytes = (elements as u128 * self.bits() as u128).div_ceil(8);
        if bytes > u64::MAX as u128 { u64::MAX } else { bytes as u64 }
    }

    /// Whether arithmetic on it is floating point.
    pub const fn is_float(self) -> bool {
        matches!(self, DType::F32 | DType::F16 | DType::BF16 | DType::F8E4M3 | DType::MxFp4)
    }

    /// Whether it counts or indexes.
    pub const fn is_int(self) -> bool {
        !self.is_float()
    }
}

impl fmt::Display for DType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_parses_back() {
        for &t in DType::ALL {
            assert_eq!(t.name().parse(), Ok(t));
        }
        assert!("float".parse::<DType>().is_err());
    }

    #[test]
    fn odd_nibbles_take_a_whole_byte() {
        assert_eq!(DType::I4.bytes_for(3), 2);
        assert_eq!(DType::BF16.bytes_for(3), 6);
        assert_eq!(DType::I4.bytes_for(u64::MAX), 1 << 63);
        assert_eq!(DType::F32.bytes_for(u64::MAX / 2), u64::MAX);
    }
}
