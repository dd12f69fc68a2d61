//! Constants that several functions of a module share.

use ir::{Func, Module, ValueDef, ValueId};
use std::collections::{BTreeSet, HashMap};

/// Constant matrices that something in a module multiplies by, by what they are computed from, with the
/// names of the functions that do. Stacks of matrices are left out: no table that functions share is one.
///
/// Functions of one module share the stored constants, so whether a table is worth a layout of its
/// own, or a matrix a place in a larger one, is a question about all of them.
#[derive(Clone, Debug, Default)]
pub struct ProductWeights(HashMap<String, BTreeSet<String>>);

impl ProductWeights {
    /// The product weights of `module`.
    pub fn of(module: &Module) -> Self {
        let mut found: HashMap<String, BTreeSet<String>> = HashMap::new();
        for func in &module.funcs {
            let weights = func.order.iter().filter_map(|&n| {
                let node = &func.nodes[n];
                let weight = node.args[node.op.matmul_weight()?];
                if func.values[weight].ty.rank() == 2 { formula(func, weight) } else { None }
            });
            for weight in weights {
                found.entry(weight).or_default().insert(func.name.clone());
            }
        }
        Self(found)
    }

    /// Whether some function of the module multiplies by the constant `value` of `func`.
    pub fn contains(&self, func: &Func, value: ValueId) -> bool {
        self.functions(func, value).is_some()
    }

    /// The functions of the module that multiply by the constant `value` of `func`.
    pub fn functions(&self, func: &Func, value: ValueId) -> Option<&BTreeSet<String>> {
        self.0.get(&formula(func, value)?)
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
