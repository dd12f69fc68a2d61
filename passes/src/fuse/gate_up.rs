//! Gate and up projections in one product, with their activation.

use super::{
    guard, kernel,
    new_nodes::NewNodes,
    producer,
    product::{Part, Product},
};
use crate::{
    rewrite::{Context, Decline, Replacement, Rewrite},
    target::WHOLE,
};
use ir::{DType, Dim, Dims, Func, Layout, NodeId, Op, TypeError, ValueId};

/// `silu_mul(product(x, wg), product(x, wu))` becomes `silu_mul_pairs(product(x, interleave(wg,
/// wu)))` for every kind of product, with the scales of the weights and with biases (`add_bias`,
/// `expert_bias`) on both sides; so does `swiglu_clamped`. The block is the target's; products that
/// are rounded before the activation are joined where it is [`WHOLE`].
///
/// Both products must be f32, which is what is activated, and have no other reader; what is
/// interleaved must be constant, so that this is done when compiling, and read nowhere else, so
/// that it is not stored twice.
pub(crate) struct FuseGateUp;

impl Rewrite for FuseGateUp {
    fn name(&self) -> &'static str {
        "fuse-gate-up"
    }

    fn source(&self) -> &'static str {
        include_str!("gate_up.rs")
    }

    fn apply(
        &self,
        func: &mut Func,
        root: NodeId,
        context: &Context<'_>,
    ) -> Result<Replacement, Decline> {
        let node = &func.nodes[root];
        let activation = Activation::of(&node.op).ok_or(Decline::NoMatch)?;
        let &[gate, up] = &node.args[..] else { return Err(Decline::NoMatch) };
        let (gate, up) = (Side::of(func, gate)?, Side::of(func, up)?);
        if func.nodes[gate.node].op != func.nodes[up.node].op || gate.bias_op != up.bias_op {
            return Err(Decline::NoMatch);
        }
        kernel(context.target, activation.mnemonic())?;
        let block = context.target.gate_up_block.ok_or(Decline::Guard {
            code: "no-block",
            why: "the target does not say how gate and up rows alternate",
        })?;
        let inputs = |side: &Side| side.product.inputs(func, side.node).to_vec();
        guard(inputs(&gate) == inputs(&up), "other-input", "gate and up multiply other inputs")?;
        guard(gate.ids == up.ids, "other-input", "biases of gate and up are of other experts")?;
        // Rounded products are joined only where that is all that happens to them.
        let fits = gate.product.out == DType::F32 || block == WHOLE;
        guard(fits, "not-f32", "the products are rounded before the activation")?;
        let read_here = |side: &Side| side.values.iter().all(|&v| func.uses(v) == 1);
        guard(read_here(&gate) && read_here(&up), "other-reader", "a product has another reader")?;
        let outputs = func.values[gate.values[0]].ty.dims.last().and_then(Dim::as_const);
        let block = outputs.map_or(block, |outputs| block.min(outputs));
        for (part, [a, b]) in pairs(func, &gate, &up) {
            check(func, part, [a, b], block)?;
        }
        build(func, root, (&gate, &up), activation, block).map_err(|_| Decline::NoMatch)
    }
}

/// What becomes of gate and up.
#[derive(Clone, Copy)]
enum Activation {
    SiluMul { out: DType },
    SwigluClamped { alpha: f32, limit: f32, out: DType },
}

impl Activation {
    fn of(op: &Op) -> Option<Self> {
        match *op {
            Op::SiluMul { out } => Some(Self::SiluMul { out }),
            Op::SwigluClamped { alpha, limit, out } => {
                Some(Self::SwigluClamped { alpha, limit, out })
            }
            _ => None,
        }
    }

    /// The op on the columns of one product.
    fn pairs(self, block: u64) -> Op {
        match self {
            Self::SiluMul { out } => Op::SiluMulPairs { block, out },
            Self::SwigluClamped { alpha, limit, out } => {
                Op::SwigluClampedPairs { block, alpha, limit, out }
            }
        }
    }

    fn mnemonic(self) -> &'static str {
        self.pairs(1).mnemonic()
    }
}

/// A product on its way to the activation.
struct Side {
    node: NodeId,
    product: Product,
    bias_op: Option<Op>,
    /// Experts that an `expert_bias` is of.
    ids: Option<ValueId>,
    bias: Option<ValueId>,
    /// The product, and the sum with its bias.
    values: Vec<ValueId>,
}

impl Side {
    fn of(func: &Func, value: ValueId) -> Result<Self, Decline> {
        let (mut node, outer) = producer(func, value)?;
        let mut values = vec![value];
        let (bias_op, ids, bias) = match (&outer.op, &outer.args[..]) {
            (Op::AddBias {}, &[_, bias]) => (Some(outer.op.clone()), None, Some(bias)),
            (Op::ExpertBias {}, &[_, ids, bias]) => (Some(outer.op.clone()), Some(ids), Some(bias)),
            _ => (None, None, None),
        };
        if bias.is_some() {
            values.push(outer.args[0]);
            (node, _) = producer(func, outer.args[0])?;
        }
        let product = Product::of(&func.nodes[node].op).ok_or(Decline::NoMatch)?;
        Ok(Self { node, product, bias_op, ids, bias, values })
    }
}

/// Constants of both sides, one by one, the weight first and a bias last.
fn pairs(func: &Func, gate: &Side, up: &Side) -> Vec<(Part, [ValueId; 2])> {
    let constants = |side: &Side| side.product.constants(func, side.node).to_vec();
    let both = constants(gate).into_iter().zip(constants(up));
    let mut pairs: Vec<_> =
        gate.product.parts.iter().zip(both).map(|(&part, (a, b))| (part, [a, b])).collect();
    if let (Some(a), Some(b)) = (gate.bias, up.bias) {
        pairs.push((Part { name: "bias", vector: true }, [a, b]));
    }
    pairs
}

/// Whether constants can be interleaved.
fn check(func: &Func, part: Part, both: [ValueId; 2], block: u64) -> Result<(), Decline> {
    for constant in both {
        guard(
            func.is_const(constant),
            "weight-not-constant",
            "a weight or bias is computed at run time",
        )?;
        let once = func.uses(constant) == 1;
        guard(once || part.name != "weight", "shared-weight", "a weight has another reader")?;
    }
    let [gate, up] = both.map(|v| &func.values[v].ty);
    guard(gate == up, "other-type", "constants of gate and up differ in type")?;
    if gate.layout != Layout::Nd {
        return Err(Decline::NoMatch);
    }
    let rows = gate.dims.iter().rev().nth(usize::from(!part.vector)).and_then(Dim::as_const);
    let whole_blocks = rows.is_some_and(|rows| rows.is_multiple_of(block));
    guard(whole_blocks, "ragged-rows", "the rows are no multiple of the target's block")
}

fn build(
    func: &mut Func,
    root: NodeId,
    (gate, up): (&Side, &Side),
    activation: Activation,
    block: u64,
) -> Result<Replacement, TypeError> {
    let name = func.values[func.nodes[root].outs[0]].name.clone();
    let mut operands = gate.product.inputs(func, gate.node).to_vec();
    let (op, parts) = (func.nodes[gate.node].op.clone(), pairs(func, gate, up));
    let mut new = NewNodes::new(func);
    for (part, both) in parts {
        operands.push(new.interleaved(part, both, block, &format!("{name}.{}", part.name))?);
    }
    let bias = gate.bias.and_then(|_| operands.pop());
    let mut value = new.op(op, &operands, &format!("{name}.pairs"))?;
    if let (Some(op), Some(bias)) = (&gate.bias_op, bias) {
        let args: Vec<ValueId> = [value].into_iter().chain(gate.ids).chain([bias]).collect();
        value = new.op(op.clone(), &args, &format!("{name}.biased"))?;
    }
    new.op(activation.pairs(block), &[value], "")?;
    let NewNodes { func, nodes } = new;
    let last = *nodes.last().expect("the activation was made");
    Ok(Replacement { nodes, ..Replacement::node(func, root, last) })
}

impl NewNodes<'_> {
    /// The outputs of two constants in alternating blocks.
    fn interleaved(
        &mut self,
        part: Part,
        both: [ValueId; 2],
        block: u64,
        name: &str,
    ) -> Result<ValueId, TypeError> {
        if !part.vector {
            return self.op(Op::Interleave { block }, &both, name);
        }
        let mut dims = self.func.values[both[0]].ty.dims.clone();
        dims.push(Dim::Const(1));
        let [gate, up] = ["gate", "up"].map(|side| format!("{name}.{side}"));
        let column = Op::Reshape { dims: Dims(dims) };
        let gate = self.op(column.clone(), &both[..1], &gate)?;
        let up = self.op(column, &both[1..], &up)?;
        let columns = format!("{name}.column");
        let columns = self.op(Op::Interleave { block }, &[gate, up], &columns)?;
        let mut dims = self.func.values[columns].ty.dims.clone();
        dims.pop();
        self.op(Op::Reshape { dims: Dims(dims) }, &[columns], name)
    }
}
