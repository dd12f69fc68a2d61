//! A float model with quantised products.

use crate::{
    rewrite::{Context, Decline, Replacement, Rewrite},
    target::WHOLE,
};
use ir::{DType, Dim, Func, Node, NodeId, Op, TypeError, ValueId};

/// How to quantise the products of a float model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Quantize {
    /// Bits of a weight, 8 or 4. Inputs have 8 and one scale for each row.
    pub bits: u64,
    /// Weights of a row that share a scale; it must divide the inputs of a product. [`WHOLE`] is a
    /// whole row. `None` is a whole row for 8 bits and for targets that scale
    /// nothing less, and for 4 bits the first of 128, 64 and 32 that divides, or else the row.
    pub group: Option<u64>,
    /// Whether output projections are quantised too.
    pub head: bool,
}

impl Quantize {
    /// What is wrong with it.
    ///
    /// # Errors
    /// The field that cannot be, and what it can be.
    pub fn check(&self) -> Result<(), String> {
        match (self.bits, self.group) {
            (8 | 4, None | Some(1..)) => Ok(()),
            (8 | 4, _) => Err("group is 0; weights that share a scale are 1 or more".to_owned()),
            (bits, _) => Err(format!("bits is {bits}; weights are quantised to 8 or 4")),
        }
    }

    /// The group for a product of `inputs`, if there is one, on a target that scales parts of rows or
    /// does not.
    fn group_of(&self, inputs: u64, parts: bool) -> Option<u64> {
        let divides = |g: &u64| inputs.is_multiple_of(*g);
        match (self.group, self.bits) {
            (Some(WHOLE), _) => Some(inputs),
            (Some(group), _) => Some(group).filter(divides),
            (None, 4) if parts => Some([128, 64, 32].into_iter().find(divides).unwrap_or(inputs)),
            (None, _) => Some(inputs),
        }
    }
}

/// Outputs below which a product is too small to gain anything.
const MIN_OUTPUTS: u64 = 32;

/// `matmul(x, w)` becomes `quant_matmul(quantize_rows(x), quantize_weight(w))`, and
/// `grouped_matmul` the grouped one, where the options ask for it: it changes numbers.
///
/// A rounding `cast` of `x` is passed over, since codes are made of what was rounded: but not one of
/// a gated value, which goes to memory before all of its row is known, rounded in half the bytes. Stay as they
/// are: products that decide (routers, keys to select, decays of a memory) or that a function
/// returns or chooses a token by (the head), those with few outputs, and weights that are computed
/// at run time or come from codes.
pub(crate) struct QuantizeMatmuls;

impl Rewrite for QuantizeMatmuls {
    fn name(&self) -> &'static str {
        "quantize-matmuls"
    }

    fn source(&self) -> &'static str {
        include_str!("quantize.rs")
    }

    fn apply(
        &self,
        func: &mut Func,
        root: NodeId,
        context: &Context<'_>,
    ) -> Result<Replacement, Decline> {
        let options = context.quantize.ok_or(Decline::NoMatch)?;
        let node = &func.nodes[root];
        if !matches!(node.op, Op::Matmul { .. } | Op::GroupedMatmul { .. }) {
            return Err(Decline::NoMatch);
        }
        let operand = node.op.matmul_weight().ok_or(Decline::NoMatch)?;
        let (x, weight) = (node.args[0], node.args[operand]);
        guard(func.is_const(weight), "weight-not-constant", "the weight is computed at run time")?;
        guard(is_stored_float(func, weight), "quantised", "the weight comes from codes")?;
        match role(func, node.outs[0]) {
            Role::Decision => guard(false, "decision", "the product decides what is computed")?,
            Role::Head => guard(options.head, "head", "the product chooses tokens")?,
            Role::Value => {}
        }
        let dims: Vec<Option<u64>> =
            func.values[weight].ty.dims.iter().map(Dim::as_const).collect();
        let &[.., Some(outputs), Some(inputs)] = &dims[..] else { return Err(Decline::NoMatch) };
        guard(outputs >= MIN_OUTPUTS, "few-outputs", "the product is too small to gain anything")?;
        let group = options.group_of(inputs, context.target.scales_parts);
        let why = "the group does not divide the inputs";
        let group = group.ok_or(Decline::Guard { code: "ragged-group", why })?;
        let x = before_rounding(func, x);
        quantized(func, root, operand, [x, weight], (options.bits, group))
            .map_err(|_| Decline::NoMatch)
    }
}

fn guard(holds: bool, code: &'static str, why: &'static str) -> Result<(), Decline> {
    if holds { Ok(()) } else { Err(Decline::Guard { code, why }) }
}

fn quantized(
    func: &mut Func,
    root: NodeId,
    operand: usize,
    [x, weight]: [ValueId; 2],
    (bits, group): (u64, u64),
) -> Result<Replacement, TypeError> {
    let node = func.nodes[root].clone();
    let op = match node.op {
        Op::Matmul { out } => Op::QuantMatmul { group, out },
        Op::GroupedMatmul { out } => Op::GroupedQuantMatmul { group, out },
        _ => unreachable!("only products are quantised"),
    };
    let rows = codes_of(func, Op::QuantizeRows {}, x)?;
    let codes = codes_of(func, Op::QuantizeWeight { bits, group }, weight)?;
    let mut args = func.nodes[rows].outs.clone();
    args.extend(&node.args[1..operand]);
    args.extend(&func.nodes[codes].outs);
    let product = func.create(op, &args, "")?;
    let replacement = Replacement::node(func, root, product);
    Ok(Replacement { nodes: vec![rows, codes, product], ..replacement })
}

/// `op` of `value`, its results named after it.
fn codes_of(func: &mut Func, op: Op, value: ValueId) -> Result<NodeId, TypeError> {
    let node = func.create(op, &[value], "")?;
    let (outs, name) = (func.nodes[node].outs.clone(), func.values[value].name.clone());
    for (out, what) in outs.into_iter().zip(["codes", "scales"]) {
        func.rename(out, &format!("{name}.{what}"));
    }
    Ok(node)
}

/// What `x` is rounded from, if a `cast` of an f32 makes it that is no product of two values.
fn before_rounding(func: &Func, x: ValueId) -> ValueId {
    let Some((_, Node { op: Op::Cast { .. }, args, .. })) = func.def_node(x) else { return x };
    let wide = args[0];
    let is_gated = func.def_node(wide).is_some_and(|(_, node)| matches!(node.op, Op::Mul {}));
    if func.values[wide].ty.dtype == DType::F32 && !is_gated { wide } else { x }
}

/// Whether the constant `value` is made of floats of the checkpoint alone.
fn is_stored_float(func: &Func, value: ValueId) -> bool {
    let float = matches!(func.values[value].ty.dtype, DType::F32 | DType::F16 | DType::BF16);
    float
        && func
            .def_node(value)
            .is_none_or(|(_, n)| n.args.iter().all(|&a| is_stored_float(func, a)))
}

/// What the result of a product is for.
enum Role {
    /// Choosing what is computed.
    Decision,
    /// A result of the function, or the choice of a token.
    Head,
    Value,
}

/// Follows `value` through ops that change each element alone.
fn role(func: &Func, value: ValueId) -> Role {
    let mut pending = vec![value];
    while let Some(value) = pending.pop() {
        if func.results.contains(&value) {
            return Role::Head;
        }
        for reader in func.users(value) {
            let node = &func.nodes[reader];
            let Some(place) = node.args.iter().position(|&a| a == value) else { continue };
            match (&node.op, place) {
                (Op::Argmax {} | Op::TopK { .. }, _) => return Role::Head,
                (Op::Route { .. }, _)
                | (Op::SelectKeys { .. }, 1)
                | (Op::DeltaGate {}, _)
                | (Op::GatedDelta {}, 4 | 5) => return Role::Decision,
                (
                    Op::Cast { .. }
                    | Op::Reshape { .. }
                    | Op::Slice { .. }
                    | Op::AddBias {}
                    | Op::Sigmoid {},
                    _,
                ) => pending.extend(&node.outs),
                _ => {}
            }
        }
    }
    Role::Value
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_follow_bits_and_inputs() {
        let with = |bits, group| Quantize { bits, group, head: false };
        let of = |bits, group, inputs| with(bits, group).group_of(inputs, true);
        assert_eq!(of(8, None, 2880), Some(2880));
        assert_eq!([2048, 2880, 96, 80].map(|k| of(4, None, k)), [128, 64, 32, 80].map(Some));
        assert_eq!(with(4, None).group_of(2048, false), Some(2048));
        assert_eq!(of(8, Some(32), 96), Some(32));
        assert_eq!(of(4, Some(64), 96), None);
        assert_eq!((of(4, Some(WHOLE), 96), of(8, Some(WHOLE), 2880)), (Some(96), Some(2880)));
    }

    #[test]
    fn options_that_cannot_be_are_refused() {
        let check = |bits, group| Quantize { bits, group, head: false }.check();
        assert_eq!(check(8, None).and(check(4, Some(32))), Ok(()));
        assert!(check(5, None).is_err_and(|e| e.contains("8 or 4")));
        assert!(check(8, Some(0)).is_err_and(|e| e.contains("1 or more")));
    }
}
