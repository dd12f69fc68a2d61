//! Products with what is done to their results on the way to memory.

use super::{float, is, is_f32, product, stride};
use crate::target::GATE_UP_BLOCK;
use compiler::{Arg, Lowered, Operand};
use ir::{DType, Func, Node, Op, ValueId};
use tensor::layout::Panels;

/// An operand and the buffer that it is.
type Value<'a> = (Arg, &'a Operand);

/// What becomes of the results of a product.
#[derive(Default)]
struct End<'a> {
    bias: Option<Bias<'a>>,
    gate: Option<Gate>,
    residual: Option<Value<'a>>,
    argmax: bool,
}

enum Bias<'a> {
    Row(Value<'a>),
    /// Ids of experts, and their biases.
    Experts(Value<'a>, Value<'a>),
}

/// What becomes of pairs of columns.
enum Gate {
    Silu,
    Clamped { alpha: f32, limit: f32 },
}

/// The call that computes a composite of kind `linear`.
pub(super) fn lower(op: &Op, operands: &[Operand], results: &[Operand]) -> Option<Lowered> {
    let Op::Fused { body } = op else { return None };
    if body.kind() != "linear" {
        return None;
    }
    let reading = Reading { body: body.func(), operands };
    let mut nodes = reading.body.order.iter().map(|&n| &reading.body.nodes[n]);
    let product = nodes.next()?;
    let args = product.args.iter().map(|&a| reading.operand(a)).collect::<Option<Vec<_>>>()?;
    let (mut end, mut value) = (End::default(), product.outs[0]);
    for node in nodes {
        reading.add(&mut end, node, value)?;
        // Argmax looks at what goes to memory.
        if !end.argmax {
            value = node.outs[0];
        }
    }
    let out = &reading.body.values[value].ty;
    let dense = Operand::dense(out.clone());
    let result = |v: ValueId| reading.body.results.iter().position(|&r| r == v);
    let best = reading.body.order.last().map(|&n| reading.body.nodes[n].outs[0])?;
    let to = match result(value) {
        Some(i) => (Arg::Result(i), results.get(i)?),
        // Values that are compared and not kept.
        None => (Arg::Scratch(1), &dense),
    };
    let best = if end.argmax { Some(Arg::Result(result(best)?)) } else { None };
    end.after(&product.op, &args, to, best)
}

/// The body of a composite and its operands.
struct Reading<'a> {
    body: &'a Func,
    operands: &'a [Operand],
}

impl<'a> Reading<'a> {
    /// The operand that `value` is, if it is a parameter of the body.
    fn operand(&self, value: ValueId) -> Option<Value<'a>> {
        let i = self.body.params.iter().position(|&p| p == value)?;
        Some((Arg::Operand(i), self.operands.get(i)?))
    }

    /// Adds what `node` does with `value` to the end, if it may come next.
    fn add(&self, end: &mut End<'a>, node: &Node, value: ValueId) -> Option<()> {
        let f32s = |v: ValueId| self.body.values[v].ty.dtype == DType::F32;
        let fresh = end.gate.is_none() && end.residual.is_none() && !end.argmax;
        match (&node.op, &node.args[..]) {
            (Op::AddBias {}, &[x, bias]) if x == value && fresh && end.bias.is_none() => {
                end.bias = Some(Bias::Row(self.operand(bias)?));
            }
            (Op::ExpertBias {}, &[x, ids, bias]) if x == value && fresh && end.bias.is_none() => {
                end.bias = Some(Bias::Experts(self.operand(ids)?, self.operand(bias)?));
            }
            (Op::SiluMulPairs { block: GATE_UP_BLOCK, .. }, &[x]) if x == value && fresh => {
                end.gate = Some(Gate::Silu);
            }
            (&Op::SwigluClampedPairs { block: GATE_UP_BLOCK, alpha, limit, .. }, &[x])
                if x == value && fresh =>
            {
                end.gate = Some(Gate::Clamped { alpha, limit });
            }
            (Op::Add {}, &[a, b]) if (a == value) != (b == value) && end.residual.is_none() => {
                end.residual = Some(self.operand(if a == value { b } else { a })?);
            }
            // The result is rounded on its way out, once.
            (Op::Cast { .. }, &[x]) if x == value => {}
            (Op::Argmax {}, &[x]) if x == value && fresh => end.argmax = true,
            _ => return None,
        }
        f32s(value).then_some(())
    }
}

impl End<'_> {
    /// The call of a product that ends so and stores to `to`, and the largest to `best`.
    fn after(
        &self,
        op: &Op,
        operands: &[Value<'_>],
        (to, out): Value<'_>,
        best: Option<Arg>,
    ) -> Option<Lowered> {
        let types: Vec<&Operand> = operands.iter().map(|(_, o)| *o).collect();
        let (name, mut call) = product::call(op, &types, out)?;
        call.args = operands.iter().map(|(arg, _)| *arg).collect();
        let bias = match &self.bias {
            None => 0,
            Some(Bias::Row((arg, bias))) => {
                is_f32(&[bias]).then(|| call.args.push(*arg))?;
                1
            }
            Some(Bias::Experts((ids_arg, ids), (arg, bias))) => {
                let fits = is(ids, DType::I32) && product::is_dense(ids) && is_f32(&[bias]);
                fits.then(|| call.args.extend([*ids_arg, *arg]))?;
                2
            }
        };
        let (gate, alpha, limit) = match self.gate {
            None => (0, 0.0, 0.0),
            Some(Gate::Silu) => (1, 0.0, 0.0),
            Some(Gate::Clamped { alpha, limit }) => (2, alpha, limit),
        };
        let residual_stride = match &self.residual {
            None => 0,
            Some((arg, residual)) => {
                (is_f32(&[residual]) && residual.ty.rank() == 2).then(|| call.args.push(*arg))?;
                stride(residual)
            }
        };
        call.args.push(to);
        let mut scratch_bytes = vec![];
        if let Some(best) = best {
            call.args.extend([best, Arg::Scratch(0)]);
            scratch_bytes.push(4 * out.dim(0) * out.dim(1).div_ceil(Panels::WIDTH));
        }
        if to == Arg::Scratch(1) {
            scratch_bytes.push(out.ty.bytes()?);
        }
        let lowered = call
            .ints(&[bias, gate, u64::from(self.residual.is_some()), u64::from(self.argmax)])
            .ints(&[residual_stride])
            .float(alpha)
            .float(limit)
            .named(format!("linear_{name}_{}", float(out)?))?;
        Some(Lowered { scratch_bytes, ..lowered })
    }
}
