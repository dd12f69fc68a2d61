//! Constants that several functions of a module share.

use ir::{Func, Module, ValueDef, ValueId};
use std::collections::HashSet;

/// Constant matrices that something in a module multiplies by, by what they are computed from.
/// Stacks of matrices are left out: no table that functions share is one.
///
/// Functions of one module share the stored constants, so whether a table is worth a layout of its
/// own is a question about all of them.
#[derive(Clone, Debug, Default)]
pub struct ProductWeights(HashSet<String>);

impl ProductWeights {
    /// The product weights of `module`.
    pub fn of(module: &Module) -> Self {
        let weights = module.funcs.iter().flat_map(|func| {
            func.order.iter().filter_map(|&n| {
                let node = &func.nodes[n];
                let weight = node.args[node.op.matmul_weight()?];
                if func.values[weight].ty.rank() == 2 { formula(func, weight) } else { None }
            })
        });
        Self(weights.collect())
    }

    /// Whether some function of the module multiplies by the constant `value` of `func`.
    pub fn contains(&self, func: &Func, value: ValueId) -> bool {
        formula(func, value).is_some_and(|f| self.0.contains(&f))
    }
}

/// How `value` is computed from tensors of the checkpoint; `None` if it is not constant.
fn formula(func: &Func, value: ValueId) -> Option<String> {
    match &func.values[value].def {
        ValueDef::Param => None,
        ValueDef::Weight(tensor) => Some(format!("%{tensor}")),
        ValueDef::Result { node, index } => {
            let node = &func.nodes[*node];
            let args: Option<Vec<String>> = node.args.iter().map(|&a| formula(func, a)).collect();
            let (op, attrs) = (node.op.mnemonic(), node.op.attrs());
            Some(format!("{op}.{index}{attrs:?}({})", args?.join(",")))
        }
    }
}
