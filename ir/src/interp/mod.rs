//! What each op means, in plain code: slow, readable, and the reference for everything else.
//!
//! Floats are computed in `f64`, rounded to `f32`, which is what kernels accumulate in, and then to
//! the element type of the result. Layouts are not modelled: a relayout moves no logical element.
//! Collectives run on one rank.

mod arith;
mod attention;
mod experts;
mod latent;
mod primitive;
mod quant;
mod recurrent;
mod shape;
mod value;

pub use value::Tensor;

use crate::{
    entity::{EntityId, NodeId, ValueId},
    func::{Func, ValueDef},
    types::{Bindings, TensorType},
};
use tensor::DType;

/// A function that could not be interpreted.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error("interpreting @{func}, at {at}: {what}")]
pub struct InterpError {
    /// Function.
    pub func: String,
    /// Operation or value.
    pub at: String,
    /// What is wrong.
    pub what: String,
}

/// Runs `func` on `inputs`, one per parameter in order, and returns its results. A state is passed
/// as its content and comes back as the content of the version that is returned.
///
/// # Errors
/// [`InterpError`] when an input or weight has not the declared type, a symbol is not bound, or an
/// index points outside its table.
pub fn run(
    func: &Func,
    inputs: &[Tensor],
    weights: &dyn Fn(&str) -> Tensor,
    bindings: &Bindings,
) -> Result<Vec<Tensor>, InterpError> {
    if inputs.len() != func.params.len() {
        let what = format!("{} inputs for {} parameters", inputs.len(), func.params.len());
        return Err(InterpError { func: func.name.clone(), at: "the call".to_owned(), what });
    }
    let mut frame = Frame { func, bindings, values: vec![None; func.values.len()] };
    for (&param, input) in func.params.iter().zip(inputs) {
        frame.define(param, input.clone())?;
    }
    for &weight in &func.weights {
        if let ValueDef::Weight(tensor) = &func.values[weight].def {
            frame.define(weight, weights(tensor))?;
        }
    }
    for &node in &func.order {
        frame.execute(node)?;
    }
    func.results.iter().map(|&r| frame.get(r).cloned()).collect()
}

/// Elements of the largest tensor that is worth interpreting.
const MAX_ELEMENTS: u64 = 1 << 28;

/// Why an op could not be computed.
type Failure = String;

struct Frame<'a> {
    func: &'a Func,
    bindings: &'a Bindings,
    values: Vec<Option<Tensor>>,
}

impl Frame<'_> {
    fn error(&self, at: String, what: String) -> InterpError {
        InterpError { func: self.func.name.clone(), at, what }
    }

    fn at_value(&self, value: ValueId, what: String) -> InterpError {
        self.error(format!("%{}", self.func.values[value].name), what)
    }

    /// Element type and dimensions of `value` with symbols bound.
    fn concrete(&self, value: ValueId) -> Result<(DType, Vec<usize>), InterpError> {
        let ty: TensorType = self.func.values[value].ty.bind(self.bindings);
        let dims = ty.const_dims().ok_or_else(|| {
            self.at_value(value, format!("type {ty} has a symbol without a value; bind it"))
        })?;
        let elements = dims.iter().try_fold(1u64, |n, &d| n.checked_mul(d));
        if elements.is_none_or(|n| n > MAX_ELEMENTS) {
            let what = format!("{ty} is too large to interpret; bind smaller symbols");
            return Err(self.at_value(value, what));
        }
        Ok((ty.dtype, dims.into_iter().map(|d| d as usize).collect()))
    }

    fn define(&mut self, value: ValueId, tensor: Tensor) -> Result<(), InterpError> {
        let (dtype, dims) = self.concrete(value)?;
        if tensor.dtype() != dtype || tensor.dims() != dims {
            let (found, found_dims) = (tensor.dtype(), tensor.dims());
            let what = format!("expected {dtype}{dims:?}, found {found}{found_dims:?}");
            return Err(self.at_value(value, what));
        }
        self.values[value.index()] = Some(tensor);
        Ok(())
    }

    fn get(&self, value: ValueId) -> Result<&Tensor, InterpError> {
        self.values[value.index()]
            .as_ref()
            .ok_or_else(|| self.at_value(value, "is read before it is defined".to_owned()))
    }

    fn execute(&mut self, id: NodeId) -> Result<(), InterpError> {
        let func = self.func;
        let node = &func.nodes[id];
        let fail = |frame: &Self, what: String| frame.error(func.describe(id), what);
        let types: Vec<&TensorType> = node.args.iter().map(|&a| &func.values[a].ty).collect();
        let outs = if let Some(body) =
            node.op.expand(&types).map_err(|e| fail(self, e.to_string()))?
        {
            let args =
                node.args.iter().map(|&a| self.get(a).cloned()).collect::<Result<Vec<_>, _>>()?;
            let none = |name: &str| -> Tensor { unreachable!("bodies name no weight {name}") };
            run(&body, &args, &none, self.bindings)?
        } else if let Some(&(state, _)) = node.op.writes().first() {
            // Nothing reads the version that a write replaces, so the write can have its memory.
            let version = node.args[state];
            let state = self.get(version)?.clone();
            self.values[version.index()] = None;
            let read = node.args.iter().filter(|&&a| a != version);
            let args: Vec<&Tensor> = read.map(|&a| self.get(a)).collect::<Result<_, _>>()?;
            primitive::write(&node.op, state, &args).map_err(|what| fail(self, what))?
        } else {
            let args: Vec<&Tensor> =
                node.args.iter().map(|&a| self.get(a)).collect::<Result<_, _>>()?;
            let types: Vec<(DType, Vec<usize>)> =
                node.outs.iter().map(|&o| self.concrete(o)).collect::<Result<_, _>>()?;
            primitive::compute(&node.op, &args, types).map_err(|what| fail(self, what))?
        };
        for (&out, tensor) in node.outs.iter().zip(outs) {
            self.define(out, tensor)?;
        }
        Ok(())
    }
}
