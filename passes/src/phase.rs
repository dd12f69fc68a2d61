//! What is true of the IR between stages.

use crate::TargetInfo;
use ir::{Broken, Dims, Func, Layout, Op, ValueId, VerifyError};
use std::fmt;

/// What is true of the IR between two stages. A pass may rely on its input phase and must establish
/// its output phase; the pass manager holds it to both.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Phase {
    /// Straight from a model definition: only primitive ops, only nd layouts.
    Imported,
    /// Every fused op has a kernel on the target; only nd layouts.
    Fused,
    /// Every constant weight of a matrix product, with its scales, is in the target's layout.
    LaidOut,
    /// [`Phase::LaidOut`], and every dimension is a number.
    Specialised,
}

impl fmt::Display for Phase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

impl Phase {
    /// Checks what holds in this phase for `target`, beyond [`Func::verify`].
    ///
    /// # Errors
    /// Every place where it does not hold.
    pub fn check(self, func: &Func, target: &TargetInfo) -> Result<(), Vec<VerifyError>> {
        let mut errors = fused_ops(func, self, target);
        if self <= Phase::Fused {
            errors.extend(layouts_before_assignment(func));
        } else {
            errors.extend(weight_layouts(func, target));
        }
        if self == Phase::Specialised {
            errors.extend(symbols(func));
        }
        if errors.is_empty() { Ok(()) } else { Err(errors) }
    }
}

fn fused_ops(func: &Func, phase: Phase, target: &TargetInfo) -> Vec<VerifyError> {
    let allowed = |op: &Op| phase > Phase::Imported && target.has(op.kind());
    let illegal = |n: &ir::NodeId| func.nodes[*n].op.is_fused() && !allowed(&func.nodes[*n].op);
    let reason = match phase {
        Phase::Imported => "models are defined in primitive ops".to_owned(),
        _ => format!("target {} has no kernel for this fused op", target.name),
    };
    func.order
        .iter()
        .copied()
        .filter(illegal)
        .map(|n| func.error_at_node(n, Broken::Phase(reason.clone())))
        .collect()
}

fn layouts_before_assignment(func: &Func) -> Vec<VerifyError> {
    let is_relayout = |n: &ir::NodeId| matches!(func.nodes[*n].op, Op::Relayout { .. });
    func.order
        .iter()
        .copied()
        .filter(is_relayout)
        .map(|n| func.error_at_node(n, Broken::Phase("layouts are not assigned yet".to_owned())))
        .collect()
}

fn weight_layouts(func: &Func, target: &TargetInfo) -> Vec<VerifyError> {
    let misplaced = |n: &ir::NodeId| {
        let node = &func.nodes[*n];
        let operands = [node.op.matmul_weight(), node.op.weight_scale()].into_iter().flatten();
        let weights: Vec<ValueId> = operands.map(|i| node.args[i]).collect();
        let constant = weights.iter().all(|&w| func.is_const(w));
        weights.into_iter().filter_map(move |w| {
            let ty = &func.values[w].ty;
            let wanted = target.layout_of(&node.op, ty);
            (constant && ty.layout != wanted).then_some((w, wanted))
        })
    };
    let error = |(w, wanted): (ValueId, Layout)| {
        let found: Layout = func.values[w].ty.layout;
        let rule = format!("weight is {found}, but target {} reads {wanted}", target.name);
        func.error_at_value(w, Broken::Phase(rule))
    };
    func.order.iter().flat_map(misplaced).map(error).collect()
}

/// Places where a symbol is left: parameters, weights, results and attributes of live nodes.
pub(crate) fn symbols(func: &Func) -> Vec<VerifyError> {
    let rule = |name: &str| Broken::Phase(format!("symbol {name} has no value; bind it"));
    let outs = func.order.iter().flat_map(|&n| &func.nodes[n].outs);
    let values = func.params.iter().chain(&func.weights).chain(outs).copied();
    let in_types = values.flat_map(|v| {
        let symbols = func.values[v].ty.symbols();
        symbols.map(move |s| func.error_at_value(v, rule(s.name())))
    });
    let in_attrs = func.order.iter().filter_map(|&n| match &func.nodes[n].op {
        Op::Reshape { dims: Dims(dims) } => {
            let symbol = dims.iter().find(|d| d.as_const().is_none())?;
            Some(func.error_at_node(n, rule(&symbol.to_string())))
        }
        _ => None,
    });
    in_types.chain(in_attrs).collect()
}
