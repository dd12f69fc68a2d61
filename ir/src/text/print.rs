//! Functions to text.

use crate::{
    entity::{NodeId, ValueId},
    func::{Func, Module, ValueDef},
};
use std::fmt::Write;

/// The functions of `module`, separated by empty lines.
pub fn print_module(module: &Module) -> String {
    module.funcs.iter().map(print).collect::<Vec<_>>().join("\n")
}

/// Parameters, weights, live nodes and results of `func`, ending in a newline.
pub fn print(func: &Func) -> String {
    let params: Vec<String> = func
        .params
        .iter()
        .map(|&p| format!("%{}: {}", func.values[p].name, func.values[p].ty))
        .collect();
    let mut out = format!("func @{}({}) {{\n", func.name, params.join(", "));
    for &w in &func.weights {
        out.push_str(&weight(func, w));
    }
    for &n in &func.order {
        out.push_str(&node(func, n));
    }
    let results = names(func, &func.results);
    out.push_str(if results.is_empty() { "  return" } else { "  return " });
    out.push_str(&results);
    out.push_str("\n}\n");
    out
}

fn weight(func: &Func, id: ValueId) -> String {
    let value = &func.values[id];
    match &value.def {
        ValueDef::Weight(tensor) if *tensor != value.name => {
            format!("  weight %{} = {tensor} : {}\n", value.name, value.ty)
        }
        _ => format!("  weight %{} : {}\n", value.name, value.ty),
    }
}

fn node(func: &Func, id: NodeId) -> String {
    let node = &func.nodes[id];
    let mut line = format!("  {} = {}", names(func, &node.outs), node.op.mnemonic());
    if !node.args.is_empty() {
        let _ = write!(line, " {}", names(func, &node.args));
    }
    let attrs: Vec<String> =
        node.op.attrs().into_iter().map(|(name, value)| format!("{name} = {value}")).collect();
    if !attrs.is_empty() {
        let _ = write!(line, " {{{}}}", attrs.join(", "));
    }
    let types: Vec<String> = node.outs.iter().map(|&o| func.values[o].ty.to_string()).collect();
    let _ = writeln!(line, " : {}", types.join(", "));
    line
}

fn names(func: &Func, values: &[ValueId]) -> String {
    values.iter().map(|&v| format!("%{}", func.values[v].name)).collect::<Vec<_>>().join(", ")
}
