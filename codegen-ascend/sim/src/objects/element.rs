//! Element types of operators.

use tensor::DType;

macro_rules! elements {
    ($($(#[$doc:meta])* $name:ident = $code:literal, $text:literal, $bits:literal;)*) => {
        /// The element type of a tensor or scalar.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum Element { $($(#[$doc])* $name,)* }

        impl Element {
            /// The type with this number in the interface.
            pub const fn from_code(code: i32) -> Option<Self> {
                match code { $($code => Some(Element::$name),)* _ => None }
            }

            /// Its number in the interface.
            pub const fn code(self) -> i32 {
                match self { $(Element::$name => $code,)* }
            }

            /// Its name in the interface.
            pub const fn name(self) -> &'static str {
                match self { $(Element::$name => $text,)* }
            }

            /// Width in bits.
            pub const fn bits(self) -> usize {
                match self { $(Element::$name => $bits,)* }
            }
        }
    };
}

elements! {
    /// IEEE 754 binary32.
    F32 = 0, "FLOAT", 32;
    /// IEEE 754 binary16.
    F16 = 1, "FLOAT16", 16;
    /// Two's complement byte.
    I8 = 2, "INT8", 8;
    /// Two's complement word; eight nibbles where an operator takes four-bit weights.
    I32 = 3, "INT32", 32;
    /// Byte.
    U8 = 4, "UINT8", 8;
    /// Two's complement 16-bit integer.
    I16 = 6, "INT16", 16;
    /// Unsigned 32-bit integer.
    U32 = 8, "UINT32", 32;
    /// Two's complement 64-bit integer.
    I64 = 9, "INT64", 64;
    /// Unsigned 64-bit integer: scales in the form of the matrix unit.
    U64 = 10, "UINT64", 64;
    /// IEEE 754 binary64.
    F64 = 11, "DOUBLE", 64;
    /// A byte that is 0 or 1.
    Bool = 12, "BOOL", 8;
    /// The upper half of a binary32.
    BF16 = 27, "BFLOAT16", 16;
    /// Two's complement nibble, two to a byte, the low one first.
    I4 = 29, "INT4", 4;
}

impl Element {
    /// The type that the layout functions know it as: one of the same width.
    pub(crate) const fn layout(self) -> DType {
        match self.bits() {
            4 => DType::I4,
            8 => DType::I8,
            16 => DType::BF16,
            64 => DType::I64,
            _ => DType::F32,
        }
    }

    /// Elements in one row of a fractal, which is 32 bytes.
    pub(crate) const fn fractal_width(self) -> usize {
        256 / self.bits()
    }

    /// Whether it is floating point.
    pub const fn is_float(self) -> bool {
        matches!(self, Element::F32 | Element::F16 | Element::BF16 | Element::F64)
    }
}
