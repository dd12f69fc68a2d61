//! Library operators as a plan calls them: every parameter by value or as a described buffer, so that
//! a device binds them without deciding anything.

use serde::{Deserialize, Serialize};
use std::fmt;
use tensor::{DType, Layout};

/// A call of a library operator: its name and every parameter in the order of its declaration.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Operator {
    /// Name without the prefix of the library: `QuantMatmulWeightNz`.
    pub name: String,
    /// Parameters in order, outputs included.
    pub params: Vec<Param>,
}

/// A parameter of an [`Operator`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Param {
    /// An optional parameter that is left out.
    Absent,
    /// A tensor.
    Tensor(TensorParam),
    /// A list of tensors.
    Tensors(Vec<TensorParam>),
    /// A whole number, whatever its width.
    Int(i64),
    /// A number, single or double precision.
    Float(f64),
    /// A flag.
    Bool(bool),
    /// A name, such as a layout.
    Text(String),
    /// Whole numbers.
    Ints(Vec<i64>),
    /// A scalar object with an element type.
    Scalar(Element, f64),
    /// An element type.
    Type(Element),
}

/// A buffer of a step as an operator sees it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TensorParam {
    /// Index into [`crate::Step::args`].
    pub arg: u32,
    /// Element type.
    pub element: Element,
    /// Shape as the operator reads it.
    pub dims: Vec<i64>,
    /// Distance between neighbours along each dimension, in elements.
    pub strides: Vec<i64>,
    /// How it is stored.
    pub layout: Layout,
    /// Shape of the storage, in elements: `dims` where it is dense, the fractals where it is NZ.
    pub storage: Vec<i64>,
}

/// An element type of an operator's parameter: that of a tensor, or one that only operators have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Element {
    /// That of a tensor.
    Of(DType),
    /// Unsigned 64-bit words, such as scales in the form the matrix unit takes.
    U64,
    /// Bytes that are 0 or 1.
    Bool,
}

impl Element {
    /// Width of one element in bits.
    pub const fn bits(self) -> u64 {
        match self {
            Element::Of(dtype) => dtype.bits(),
            Element::U64 => 64,
            Element::Bool => 8,
        }
    }
}

impl fmt::Display for Element {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Element::Of(dtype) => dtype.name(),
            Element::U64 => "u64",
            Element::Bool => "bool",
        })
    }
}

impl TensorParam {
    /// A dense row-major tensor in argument `arg`.
    pub fn dense(arg: u32, dtype: DType, dims: &[u64]) -> Self {
        Self::strided(arg, Element::Of(dtype), dims, dims.iter().skip(1).product())
    }

    /// A tensor whose first dimension has neighbours `row_stride` elements apart, and which is dense
    /// in the others.
    pub fn strided(arg: u32, element: Element, dims: &[u64], row_stride: u64) -> Self {
        let mut strides = vec![1i64; dims.len()];
        for i in (0..dims.len().saturating_sub(1)).rev() {
            strides[i] = strides[i + 1] * dims[i + 1] as i64;
        }
        if let [first, ..] = &mut strides[..] {
            *first = row_stride as i64;
        }
        let dims: Vec<i64> = dims.iter().map(|&d| d as i64).collect();
        let mut storage = dims.clone();
        if dims.len() > 1 && strides[0] != dims[1..].iter().product::<i64>() {
            // Rows lie apart: the storage is one run of elements that ends with the last row.
            let row: i64 = dims[1..].iter().product();
            storage = vec![(dims[0] - 1).max(0) * strides[0] + row];
        }
        Self { arg, element, dims, strides, layout: Layout::Nd, storage }
    }
}

impl Operator {
    /// Every tensor among the parameters, those of lists included, in order.
    pub fn tensors(&self) -> impl Iterator<Item = &TensorParam> {
        self.params.iter().flat_map(|p| match p {
            Param::Tensor(t) => std::slice::from_ref(t),
            Param::Tensors(list) => list.as_slice(),
            _ => &[],
        })
    }
}
