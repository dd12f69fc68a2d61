//! Functions to text.

use crate::{
    body::{Body, kind_of},
    entity::{NodeId, ValueId},
    func::{Func, Module, ValueDef},
    op::Op,
};
use std::{collections::BTreeMap, fmt::Write};

/// The bodies of composites, each once, then the functions of `module`, separated by empty lines.
pub fn print_module(module: &Module) -> String {
    let mut labels = Labels::default();
    module.funcs.iter().for_each(|f| labels.add_bodies_of(f));
    let funcs = module.funcs.iter().map(|f| function("func", &f.name, f, &labels.by_identity));
    labels.texts.iter().cloned().chain(funcs).collect::<Vec<_>>().join("\n")
}

/// Parameters, weights, live nodes and results of `func`, ending in a newline, after the bodies of
/// its composites.
pub fn print(func: &Func) -> String {
    let mut labels = Labels::default();
    labels.add_bodies_of(func);
    labels.texts.push(function("func", &func.name, func, &labels.by_identity));
    labels.texts.join("\n")
}

/// The text that bodies have in common that are the same: with hashes for labels.
pub(crate) fn print_body(func: &Func) -> String {
    let inner = bodies(func).map(|b| (b.identity(), format!("{:032x}", b.identity()))).collect();
    function("fused", kind_of(&func.name), func, &inner)
}

fn bodies(func: &Func) -> impl Iterator<Item = &Body> {
    func.order.iter().filter_map(|&n| match &func.nodes[n].op {
        Op::Fused { body } => Some(body),
        _ => None,
    })
}

/// Bodies that were printed, and what they are called.
#[derive(Default)]
struct Labels {
    by_identity: BTreeMap<u128, String>,
    texts: Vec<String>,
    used: BTreeMap<String, usize>,
}

impl Labels {
    fn add_bodies_of(&mut self, func: &Func) {
        for body in bodies(func) {
            if self.by_identity.contains_key(&body.identity()) {
                continue;
            }
            self.add_bodies_of(body.func());
            let kind = body.kind().to_owned();
            let number = self.used.entry(kind.clone()).or_default();
            let label = if *number == 0 { kind } else { format!("{kind}.{number}") };
            *number += 1;
            self.texts.push(function("fused", &label, body.func(), &self.by_identity));
            self.by_identity.insert(body.identity(), label);
        }
    }
}

fn function(word: &str, name: &str, func: &Func, labels: &BTreeMap<u128, String>) -> String {
    let params: Vec<String> = func
        .params
        .iter()
        .map(|&p| format!("%{}: {}", func.values[p].name, func.values[p].ty))
        .collect();
    let mut out = format!("{word} @{name}({}) {{\n", params.join(", "));
    for &w in &func.weights {
        out.push_str(&weight(func, w));
    }
    for &n in &func.order {
        out.push_str(&node(func, n, labels));
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

fn node(func: &Func, id: NodeId, labels: &BTreeMap<u128, String>) -> String {
    let node = &func.nodes[id];
    let mut line = format!("  {} = {}", names(func, &node.outs), node.op.mnemonic());
    if !node.args.is_empty() {
        let _ = write!(line, " {}", names(func, &node.args));
    }
    let attrs: Vec<String> = match &node.op {
        Op::Fused { body } => vec![format!("body = @{}", labels[&body.identity()])],
        op => op.attrs().into_iter().map(|(name, value)| format!("{name} = {value}")).collect(),
    };
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
