//! Calls of library operators, and sequences of calls, under construction.

use crate::kernels::Declined;
use artifact::{Element, Operator, Param, TensorParam};
use compiler::{Arg, KernelCall, Lowered, Operand};
use ir::{DType, Layout};
use tensor::layout::Nz;

/// A tensor parameter with the buffer it describes.
#[derive(Clone, Debug)]
pub(super) struct Tensor {
    arg: Arg,
    param: TensorParam,
}

impl Tensor {
    /// A dense tensor.
    pub(super) fn dense(arg: Arg, dtype: DType, dims: &[u64]) -> Self {
        Self { arg, param: TensorParam::dense(0, dtype, dims) }
    }

    /// A dense tensor of any kind of element.
    pub(super) fn dense_of(arg: Arg, element: Element, dims: &[u64]) -> Self {
        let row = dims.iter().skip(1).product();
        Self { arg, param: TensorParam::strided(0, element, dims, row) }
    }

    /// An operand as it lies.
    pub(super) fn of(arg: Arg, operand: &Operand) -> Self {
        Self::shaped(arg, operand, &dims(operand))
    }

    /// An operand whose rows are read as other dimensions than it has.
    pub(super) fn shaped(arg: Arg, operand: &Operand, dims: &[u64]) -> Self {
        let element = Element::Of(operand.ty.dtype);
        Self { arg, param: TensorParam::strided(0, element, dims, operand.row_stride) }
    }

    /// `x [..,K]` as a matrix of its last axis.
    ///
    /// # Errors
    /// When the rows of a tensor of rank 3 or more do not lie at one distance.
    pub(super) fn rows(arg: Arg, operand: &Operand) -> Result<Self, Declined> {
        let all = dims(operand);
        let (cols, leading) = match &all[..] {
            [leading @ .., cols] => (*cols, leading),
            [] => return Err(Declined("a number has no rows".to_owned())),
        };
        let rows: u64 = leading.iter().product();
        match leading.len() {
            1 => Ok(Self::of(arg, operand)),
            _ if operand.row_stride == all.iter().skip(1).product::<u64>() => {
                Ok(Self::dense(arg, operand.ty.dtype, &[rows, cols]))
            }
            _ => Err(Declined("its rows lie apart in more than one axis".to_owned())),
        }
    }

    /// A dense tensor seen with its axes in another order.
    pub(super) fn permuted(mut self, axes: &[usize]) -> Self {
        let pick = |v: &[i64]| axes.iter().map(|&a| v[a]).collect();
        // The storage stays in the order in which it lies.
        self.param.strides = pick(&self.param.strides);
        self.param.dims = pick(&self.param.dims);
        self
    }

    /// A weight `[..,N,K]` in the layout it is stored in, seen as itself.
    pub(super) fn weight(arg: Arg, operand: &Operand) -> Self {
        let all = dims(operand);
        let mut tensor = Self::dense(arg, operand.ty.dtype, &all);
        if operand.ty.layout == Layout::Nz {
            tensor.param.layout = Layout::Nz;
            tensor.param.storage = fractal_dims(&all, operand.ty.dtype);
        }
        tensor
    }

    /// A weight `[..,N,K]` seen as the right operand `[..,K,N]` of a product.
    pub(super) fn right(arg: Arg, operand: &Operand) -> Self {
        let tensor = Self::weight(arg, operand);
        let mut axes: Vec<usize> = (0..operand.ty.rank()).collect();
        let last = axes.len();
        axes.swap(last - 1, last - 2);
        tensor.permuted(&axes)
    }
}

/// The dimensions of an operand as numbers.
pub(super) fn dims(operand: &Operand) -> Vec<u64> {
    (0..operand.ty.rank()).map(|i| operand.dim(i)).collect()
}

/// Shape of the storage of `[..,H,W]` in fractals: `[..,ceil(W/C0),ceil(H/16),16,C0]` with `C0`
/// elements in 32 bytes.
fn fractal_dims(dims: &[u64], dtype: DType) -> Vec<i64> {
    let [outer @ .., rows, cols] = dims else { return dims.iter().map(|&d| d as i64).collect() };
    let c0 = 256 / dtype.bits();
    let storage = outer.iter().copied().chain([cols.div_ceil(c0), rows.div_ceil(16), 16, c0]);
    let storage: Vec<i64> = storage.map(|d| d as i64).collect();
    debug_assert_eq!(
        storage.iter().product::<i64>() as u64,
        outer.iter().product::<u64>() * Nz::new(*rows, *cols, dtype).padded_len()
    );
    storage
}

/// A call of a library operator: its parameters are given in the order of its declaration.
pub(super) struct Library {
    name: &'static str,
    args: Vec<Arg>,
    params: Vec<Param>,
}

impl Library {
    pub(super) fn new(name: &'static str) -> Self {
        Self { name, args: Vec::new(), params: Vec::new() }
    }

    fn bound(&mut self, Tensor { arg, mut param }: Tensor) -> TensorParam {
        let at = self.args.iter().position(|a| *a == arg).unwrap_or_else(|| {
            self.args.push(arg);
            self.args.len() - 1
        });
        param.arg = at as u32;
        param
    }

    pub(super) fn tensor(mut self, tensor: Tensor) -> Self {
        let param = self.bound(tensor);
        self.params.push(Param::Tensor(param));
        self
    }

    /// A tensor that may be left out.
    pub(super) fn optional(self, tensor: Option<Tensor>) -> Self {
        match tensor {
            Some(tensor) => self.tensor(tensor),
            None => self.absent(1),
        }
    }

    /// A list of one tensor.
    pub(super) fn list(mut self, tensor: Tensor) -> Self {
        let param = self.bound(tensor);
        self.params.push(Param::Tensors(vec![param]));
        self
    }

    /// `count` optional parameters that are left out.
    pub(super) fn absent(mut self, count: usize) -> Self {
        self.params.extend(std::iter::repeat_n(Param::Absent, count));
        self
    }

    pub(super) fn ints<const N: usize>(mut self, values: [i64; N]) -> Self {
        self.params.extend(values.map(Param::Int));
        self
    }

    pub(super) fn float(mut self, value: f64) -> Self {
        self.params.push(Param::Float(value));
        self
    }

    pub(super) fn flag(mut self, value: bool) -> Self {
        self.params.push(Param::Bool(value));
        self
    }

    pub(super) fn text(mut self, value: &str) -> Self {
        self.params.push(Param::Text(value.to_owned()));
        self
    }

    /// A list of whole numbers.
    pub(super) fn int_list(mut self, values: &[i64]) -> Self {
        self.params.push(Param::Ints(values.to_vec()));
        self
    }

    /// A number object.
    pub(super) fn scalar(mut self, element: Element, value: f64) -> Self {
        self.params.push(Param::Scalar(element, value));
        self
    }

    pub(super) fn element(mut self, value: Element) -> Self {
        self.params.push(Param::Type(value));
        self
    }

    pub(super) fn call(self) -> KernelCall {
        let operator = Operator { name: self.name.to_owned(), params: self.params };
        if let Err(why) = conforms(&operator) {
            unreachable!("{why}");
        }
        KernelCall {
            kernel: format!("aclnn{}", self.name),
            args: self.args,
            operator: Some(operator),
            ..KernelCall::default()
        }
    }
}

/// Whether the parameters of `operator` are those of its declaration in number, order and kind.
///
/// # Errors
/// The parameter that is not.
pub fn conforms(operator: &Operator) -> Result<(), String> {
    let Operator { name, params } = operator;
    let signature = acl::operator(name).ok_or_else(|| format!("{name} is no library operator"))?;
    if signature.params.len() != params.len() {
        let (wanted, found) = (signature.params.len(), params.len());
        return Err(format!("{name} has {wanted} parameters, not {found}"));
    }
    let fits = |kind: acl::Kind, param: &Param| match param {
        Param::Absent => kind.is_optional(),
        Param::Tensor(_) => matches!(kind, acl::Kind::tensor | acl::Kind::optional_tensor),
        Param::Tensors(_) => matches!(kind, acl::Kind::tensors | acl::Kind::optional_tensors),
        Param::Int(_) => matches!(kind, acl::Kind::i64 | acl::Kind::i8),
        Param::Float(_) => matches!(kind, acl::Kind::f64),
        Param::Bool(_) => matches!(kind, acl::Kind::bool),
        Param::Text(_) => matches!(kind, acl::Kind::optional_text),
        Param::Ints(_) => matches!(kind, acl::Kind::optional_ints),
        Param::Scalar(..) => matches!(kind, acl::Kind::scalar),
        Param::Type(_) => matches!(kind, acl::Kind::dtype),
    };
    match signature.params.iter().zip(params).find(|(p, param)| !fits(p.kind, param)) {
        Some((p, found)) => Err(format!("{name}: {} is {:?}, not {found:?}", p.name, p.kind)),
        None => Ok(()),
    }
}

/// Calls that together compute an op.
#[derive(Default)]
pub(super) struct Sequence {
    lowered: Lowered,
}

impl Sequence {
    /// A temporary buffer.
    pub(super) fn scratch(&mut self, bytes: u64) -> Arg {
        self.lowered.scratch_bytes.push(bytes);
        Arg::Scratch(self.lowered.scratch_bytes.len() - 1)
    }

    /// A temporary dense tensor.
    pub(super) fn temporary(&mut self, dtype: DType, dims: &[u64]) -> Arg {
        self.scratch(dtype.bytes_for(dims.iter().product()))
    }

    pub(super) fn call(&mut self, call: Library) {
        self.lowered.calls.push(call.call());
    }

    /// Calls whose buffers are already those of this sequence.
    pub(super) fn append(&mut self, inner: Lowered) {
        debug_assert!(inner.scratch_bytes.is_empty(), "temporary buffers would be mixed up");
        self.lowered.calls.extend(inner.calls);
        self.lowered.files.extend(inner.files);
    }

    /// The calls of `inner`, whose operands and results are these buffers.
    pub(super) fn include(&mut self, inner: Lowered, operands: &[Arg], results: &[Arg]) {
        let first = self.lowered.scratch_bytes.len();
        self.lowered.scratch_bytes.extend(inner.scratch_bytes);
        let place = |arg: Arg| match arg {
            Arg::Operand(i) => operands[i],
            Arg::Result(i) => results[i],
            Arg::Scratch(i) => Arg::Scratch(first + i),
            Arg::OperandFrom(i, skipped) => operands[i].after(skipped),
            Arg::ResultFrom(i, skipped) => results[i].after(skipped),
            Arg::ScratchFrom(i, skipped) => Arg::ScratchFrom(first + i, skipped),
        };
        for mut call in inner.calls {
            call.args = call.args.into_iter().map(place).collect();
            self.lowered.calls.push(call);
        }
        self.lowered.files.extend(inner.files);
    }

    pub(super) fn finish(mut self, why: impl Into<String>) -> Lowered {
        self.lowered.why = why.into();
        self.lowered.files.sort_by(|a, b| a.path.cmp(&b.path));
        self.lowered.files.dedup();
        self.lowered
    }
}

/// One call of a library operator.
pub(super) fn one(call: Library, why: &str) -> Lowered {
    Lowered { calls: vec![call.call()], why: why.to_owned(), ..Lowered::default() }
}

/// Refuses for a reason.
pub(super) fn decline<T>(why: impl Into<String>) -> Result<T, Declined> {
    Err(Declined(why.into()))
}

/// Refuses for a reason unless `holds`.
pub(super) fn ensure(holds: bool, why: impl FnOnce() -> String) -> Result<(), Declined> {
    if holds { Ok(()) } else { Err(Declined(why())) }
}
