//! Rows as external kernels see them.

use half::bf16;

/// A row of an operand, or all of one that is taken whole.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Row<'a> {
    /// `f32` elements.
    F32(&'a [f32]),
    /// `bf16` elements.
    Bf16(&'a [bf16]),
    /// `i8` elements.
    I8(&'a [i8]),
    /// `i32` elements.
    I32(&'a [i32]),
}

/// A row of a result.
#[derive(Debug, PartialEq)]
pub enum RowMut<'a> {
    /// `f32` elements.
    F32(&'a mut [f32]),
    /// `bf16` elements.
    Bf16(&'a mut [bf16]),
    /// `i8` elements.
    I8(&'a mut [i8]),
    /// `i32` elements.
    I32(&'a mut [i32]),
}

impl<'a> Row<'a> {
    /// The elements of a row of `f32`.
    ///
    /// # Panics
    /// When it has others: `lower` says which types `run` gets.
    pub fn f32(self) -> &'a [f32] {
        match self {
            Row::F32(x) => x,
            other => panic!("a row of f32 was expected, found {}", other.type_name()),
        }
    }

    fn type_name(self) -> &'static str {
        match self {
            Row::F32(_) => "f32",
            Row::Bf16(_) => "bf16",
            Row::I8(_) => "i8",
            Row::I32(_) => "i32",
        }
    }
}

impl RowMut<'_> {
    /// Sets every element to what `value` gives for its index, rounded to nearest even where the
    /// row is `bf16`.
    ///
    /// # Panics
    /// When its elements are integers.
    #[inline]
    pub fn fill_with(&mut self, mut value: impl FnMut(usize) -> f32) {
        match self {
            RowMut::F32(y) => y.iter_mut().enumerate().for_each(|(i, y)| *y = value(i)),
            RowMut::Bf16(y) => {
                y.iter_mut().enumerate().for_each(|(i, y)| *y = bf16::from_f32(value(i)));
            }
            RowMut::I8(_) | RowMut::I32(_) => panic!("integers are written one by one"),
        }
    }
}
