//! A call: the parameters of an operator by value, and the checks that operators share.

use crate::objects::{Element, Fault, INNER, NULL_POINTER, Tensor};
use acl::Parameter;

/// A parameter by value.
#[derive(Clone, Debug)]
pub enum Argument {
    /// Left out.
    Absent,
    /// A tensor.
    Tensor(Tensor),
    /// Tensors.
    Tensors(Vec<Tensor>),
    /// Whole numbers.
    Ints(Vec<i64>),
    /// A number object.
    Scalar(f64),
    /// A string.
    Text(String),
    /// A whole number.
    Int(i64),
    /// A number.
    Float(f64),
    /// A flag.
    Bool(bool),
    /// An element type.
    Type(Element),
}

/// An operator with its parameters.
#[derive(Clone, Debug)]
pub struct Call {
    /// Name without prefix.
    pub name: &'static str,
    /// What the parameters are.
    pub params: &'static [Parameter],
    /// The parameters, one for each of `params`.
    pub args: Vec<Argument>,
}

macro_rules! readers {
    ($($(#[$doc:meta])* $name:ident -> $ty:ty { $($pattern:pat => $read:expr),* })*) => {$(
        $(#[$doc])*
        pub(crate) fn $name(&self, name: &str) -> Result<$ty, Fault> {
            match self.argument(name) {
                $(Some($pattern) => Ok($read),)*
                _ => Err(Fault {
                    code: INNER,
                    message: format!("{name} is not read as what the table says"),
                }),
            }
        }
    )*};
}

impl Call {
    fn argument(&self, name: &str) -> Option<&Argument> {
        self.params.iter().position(|p| p.name == name).and_then(|i| self.args.get(i))
    }

    readers! {
        /// A tensor that may be left out.
        optional -> Option<&Tensor> { Argument::Tensor(t) => Some(t), Argument::Absent => None }
        /// The tensors of a list, none where it is left out.
        list -> &[Tensor] { Argument::Tensors(l) => l.as_slice(), Argument::Absent => &[] }
        /// Whole numbers, where they are given.
        ints -> Option<&[i64]> { Argument::Ints(v) => Some(v.as_slice()), Argument::Absent => None }
        /// The value of a number object.
        scalar -> f64 { Argument::Scalar(v) => *v }
        /// A string, where it is given.
        text -> Option<&str> { Argument::Text(s) => Some(s.as_str()), Argument::Absent => None }
        /// A whole number.
        int -> i64 { Argument::Int(v) => *v }
        /// A number.
        float -> f64 { Argument::Float(v) => *v }
        /// A flag.
        flag -> bool { Argument::Bool(v) => *v }
        /// An element type.
        element -> Element { Argument::Type(v) => *v }
    }

    /// A tensor that has to be there, even if the table lets it be null.
    pub(crate) fn tensor(&self, name: &str) -> Result<&Tensor, Fault> {
        let message = format!("{name} is null");
        self.optional(name)?.ok_or(Fault { code: NULL_POINTER, message })
    }

    /// Every tensor, those of lists included.
    pub(crate) fn tensors_of_all(&self) -> impl Iterator<Item = &Tensor> {
        self.args.iter().flat_map(|arg| match arg {
            Argument::Tensor(t) => std::slice::from_ref(t),
            Argument::Tensors(list) => list.as_slice(),
            _ => &[],
        })
    }

    /// That each of these optional tensors is left out, or has no elements.
    pub(crate) fn unsupported(&self, names: &[&str]) -> Result<(), Fault> {
        for name in names {
            let given = match self.argument(name) {
                Some(Argument::Tensor(t)) => !t.is_empty(),
                Some(Argument::Tensors(list)) => list.iter().any(|t| !t.is_empty()),
                _ => false,
            };
            if given {
                return Err(Fault::invalid(format!("{name} has to be null on this chip")));
            }
        }
        Ok(())
    }

    /// A whole number in `range`.
    pub(crate) fn int_in(
        &self,
        name: &str,
        range: std::ops::RangeInclusive<i64>,
    ) -> Result<i64, Fault> {
        let value = self.int(name)?;
        if range.contains(&value) {
            return Ok(value);
        }
        Err(Fault::invalid(format!(
            "{name}: {value} is not from {} to {}",
            range.start(),
            range.end()
        )))
    }

    /// The dimension `name` of a tensor with `rank` dimensions, where negative numbers count from
    /// the end.
    pub(crate) fn axis(&self, name: &str, rank: usize) -> Result<usize, Fault> {
        let dim = self.int(name)?;
        axis(name, dim, rank)
    }
}

/// `dim` as an index of one of `rank` dimensions.
pub(crate) fn axis(name: &str, dim: i64, rank: usize) -> Result<usize, Fault> {
    let index = if dim < 0 { dim + rank as i64 } else { dim };
    match usize::try_from(index) {
        Ok(i) if i < rank => Ok(i),
        _ => Err(Fault::invalid(format!("{name}: there is no dimension {dim} of {rank}"))),
    }
}

impl Tensor {
    /// That its element type is one of `elements`.
    pub(crate) fn of(&self, elements: &[Element]) -> Result<&Self, Fault> {
        if elements.contains(&self.element) {
            return Ok(self);
        }
        let names: Vec<&str> = elements.iter().map(|e| e.name()).collect();
        Err(Fault::invalid(format!(
            "{}: {} is not one of {}",
            self.name,
            self.element.name(),
            names.join(", ")
        )))
    }

    /// That its shape is `dims`.
    pub(crate) fn shaped(&self, dims: &[usize]) -> Result<&Self, Fault> {
        if self.dims == dims {
            return Ok(self);
        }
        Err(Fault::invalid(format!("{}: the shape is {:?}, not {dims:?}", self.name, self.dims)))
    }

    /// That it has from `least` to `most` dimensions.
    pub(crate) fn ranked(&self, least: usize, most: usize) -> Result<&Self, Fault> {
        if (least..=most).contains(&self.dims.len()) {
            return Ok(self);
        }
        Err(Fault::invalid(format!(
            "{}: {} dimensions {:?}, not {least} to {most}",
            self.name,
            self.dims.len(),
            self.dims
        )))
    }

    /// That it is stored plainly, not as fractals.
    pub(crate) fn nd(&self) -> Result<&Self, Fault> {
        if !self.is_nz() {
            return Ok(self);
        }
        Err(Fault::invalid(format!("{}: has to be ND, not FRACTAL_NZ", self.name)))
    }

    /// That it is stored as fractals.
    pub(crate) fn nz(&self) -> Result<&Self, Fault> {
        if !self.is_nz() {
            return Err(Fault::invalid(format!(
                "{}: has to be FRACTAL_NZ, not format {}",
                self.name, self.format
            )));
        }
        if self.dims.iter().rev().take(2).any(|&d| d == 1) {
            return Err(Fault::invalid(format!(
                "{}: a matrix {:?} with a side of 1 cannot be FRACTAL_NZ",
                self.name, self.dims
            )));
        }
        Ok(self)
    }

    /// That rows lie densely one after the other, as operators want it that take no views.
    pub(crate) fn contiguous(&self) -> Result<&Self, Fault> {
        let dense = crate::objects::dense(&self.dims);
        let apart = |i: usize| self.dims[i] > 1 && self.strides[i] != dense[i];
        if !self.is_nz() && (0..self.dims.len()).any(apart) {
            return Err(Fault::invalid(format!(
                "{}: strides {:?} of {:?} are not dense",
                self.name, self.strides, self.dims
            )));
        }
        Ok(self)
    }

    /// That one of its sizes satisfies a rule, which `rule` spells out.
    pub(crate) fn rule(&self, holds: bool, rule: &str) -> Result<&Self, Fault> {
        if holds {
            return Ok(self);
        }
        Err(Fault::invalid(format!("{}: {:?} breaks the rule: {rule}", self.name, self.dims)))
    }
}
