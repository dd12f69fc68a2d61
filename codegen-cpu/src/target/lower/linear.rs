//! Products with what is done to their results on the way to memory.

use super::{float, is, is_f32, product, quant, stride};
use crate::target::{GATE_UP_BLOCK, MOST_FOUND};
use compiler::{Arg, KernelCall, Lowered, Operand};
use ir::{DType, Func, Node, Op, ValueId};
use tensor::layout::Panels;

/// With more rows, quantising them in a launch before the product is faster.
const ROWS_QUANTISED_INSIDE: u64 = 64;

/// An operand and the buffer that it is.
type Value<'a> = (Arg, &'a Operand);

/// What becomes of the results of a product.
#[derive(Default)]
struct End<'a> {
    bias: Option<Bias<'a>>,
    gate: Option<Gate>,
    residual: Option<Value<'a>>,
    argmax: Option<ValueId>,
    /// How many, values and indices.
    top_k: Option<(u64, [ValueId; 2])>,
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
    let mut nodes = reading.body.order.iter().map(|&n| &reading.body.nodes[n]).peekable();
    let quantise = nodes.next_if(|node| quantises(&node.op));
    let product = nodes.next()?;
    // Floats in the place of their codes.
    let (given, made) = quantise.map_or((&[][..], &[][..]), |q| (&q.args[..], &q.outs[..]));
    (product.args.starts_with(made)).then_some(())?;
    let args = given.iter().chain(&product.args[made.len()..]);
    let args = args.map(|&a| reading.operand(a)).collect::<Option<Vec<_>>>()?;
    let begin = Begin { quantise: quantise.map(|q| &q.op), product: &product.op };
    let (mut end, mut value) = (End::default(), product.outs[0]);
    for node in nodes {
        reading.add(&mut end, node, value)?;
        // These look at what goes to memory.
        if !matches!(node.op, Op::Argmax {} | Op::TopK { .. }) {
            value = node.outs[0];
        }
    }
    let dense = Operand::dense(reading.body.values[value].ty.clone());
    let result = |v: ValueId| reading.body.results.iter().position(|&r| r == v);
    let mut scratch_bytes = Vec::new();
    // Values that nobody reads, such as those that are compared and not kept, are temporary.
    let mut buffer = |v: ValueId| match result(v) {
        Some(i) => Some(Arg::Result(i)),
        None => {
            scratch_bytes.push(reading.body.values[v].ty.bytes()?);
            Some(Arg::Scratch(scratch_bytes.len() - 1))
        }
    };
    let out = result(value).map_or(Some(&dense), |i| results.get(i))?;
    let to = (buffer(value)?, out);
    let found = end.found().into_iter().map(&mut buffer).collect::<Option<Vec<_>>>()?;
    match quantise {
        Some(quantise) if out.dim(0) > ROWS_QUANTISED_INSIDE => {
            let first = scratch_bytes.len();
            let (codes, calls) = reading.quantised(quantise, &mut scratch_bytes)?;
            let codes = (first..).map(Arg::Scratch).zip(&codes);
            let args: Vec<_> = codes.chain(args[given.len()..].iter().copied()).collect();
            let begin = Begin { quantise: None, ..begin };
            let then = end.after(begin, &args, to, found, scratch_bytes)?;
            Some(Lowered { calls: calls.into_iter().chain(then.calls).collect(), ..then })
        }
        _ => end.after(begin, &args, to, found, scratch_bytes),
    }
}

/// Whether it makes codes of the inputs of a product.
fn quantises(op: &Op) -> bool {
    matches!(op, Op::QuantizeRows {} | Op::QuantizeStatic {} | Op::QuantizeFp8 { .. })
}

/// A product, and what quantises its inputs.
struct Begin<'a> {
    quantise: Option<&'a Op>,
    product: &'a Op,
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

    /// What `quantise` makes, each in scratch memory of its own after that there is, and the calls that
    /// make it.
    fn quantised(
        &self,
        quantise: &Node,
        scratch_bytes: &mut Vec<u64>,
    ) -> Option<(Vec<Operand>, Vec<KernelCall>)> {
        let given = quantise.args.iter().map(|&a| self.operand(a)).collect::<Option<Vec<_>>>()?;
        let operands: Vec<Operand> = given.iter().map(|(_, o)| (*o).clone()).collect();
        let types = quantise.outs.iter().map(|&o| Operand::dense(self.body.values[o].ty.clone()));
        let types: Vec<Operand> = types.collect();
        let lowered = quant::lower(&quantise.op, &operands, &types)?;
        lowered.scratch_bytes.is_empty().then_some(())?;
        let mut calls = lowered.calls;
        let first = scratch_bytes.len();
        for arg in calls.iter_mut().flat_map(|call| &mut call.args) {
            *arg = match *arg {
                Arg::Operand(i) => given[i].0,
                Arg::Result(i) => Arg::Scratch(first + i),
                other => other,
            };
        }
        for made in &types {
            scratch_bytes.push(made.ty.bytes()?);
        }
        Some((types, calls))
    }

    /// Adds what `node` does with `value` to the end, if it may come next.
    fn add(&self, end: &mut End<'a>, node: &Node, value: ValueId) -> Option<()> {
        if !matches!(node.op, Op::Argmax {} | Op::TopK { .. }) && !end.found().is_empty() {
            return None;
        }
        let f32s = |v: ValueId| self.body.values[v].ty.dtype == DType::F32;
        let fresh = end.gate.is_none() && end.residual.is_none();
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
            (Op::Argmax {}, &[x]) if x == value && fresh && end.argmax.is_none() => {
                end.argmax = Some(node.outs[0]);
            }
            (&Op::TopK { k }, &[x])
                if x == value && fresh && end.top_k.is_none() && k <= MOST_FOUND =>
            {
                end.top_k = Some((k, [node.outs[0], node.outs[1]]));
            }
            _ => return None,
        }
        f32s(value).then_some(())
    }
}

impl End<'_> {
    /// What is found among the results, in the order of its buffers.
    fn found(&self) -> Vec<ValueId> {
        let top_k = self.top_k.iter().flat_map(|(_, outs)| outs);
        self.argmax.iter().chain(top_k).copied().collect()
    }

    /// The call of a product that ends so and stores to `to`, and what is found to `found`.
    fn after(
        &self,
        begin: Begin<'_>,
        operands: &[Value<'_>],
        (to, out): Value<'_>,
        found: Vec<Arg>,
        mut scratch_bytes: Vec<u64>,
    ) -> Option<Lowered> {
        let types: Vec<&Operand> = operands.iter().map(|(_, o)| *o).collect();
        let (name, mut call) = match begin.quantise {
            None => product::call(begin.product, &types, out)?,
            Some(quantise) => product::quantising_call(quantise, begin.product, &types, out)?,
        };
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
        if !found.is_empty() {
            scratch_bytes.push(4 * out.dim(0) * out.dim(1).div_ceil(Panels::WIDTH));
            call.args.extend(found);
            call.args.push(Arg::Scratch(scratch_bytes.len() - 1));
        }
        let flags = [self.residual.is_some(), self.argmax.is_some()].map(u64::from);
        let lowered = call
            .ints(&[bias, gate])
            .ints(&flags)
            .ints(&[self.top_k.map_or(0, |(k, _)| k)])
            .ints(&[residual_stride])
            .float(alpha)
            .float(limit)
            .named(format!("linear_{name}_{}", float(out)?))?;
        Some(Lowered { scratch_bytes, ..lowered })
    }
}
