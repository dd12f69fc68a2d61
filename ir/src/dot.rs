//! Functions as Graphviz text, to look at: `dot -Tsvg`.

use crate::{
    entity::{NodeId, ValueId},
    func::{Func, Module},
    op::Op,
};
use std::{
    collections::{HashMap, hash_map::Entry},
    fmt::Write,
};

/// The data flow of every function of `module`. Composites are boxes around the ops of their bodies;
/// of constants only what run-time ops read is shown. Equal modules give equal text.
pub fn dot(module: &Module) -> String {
    let mut out = Dot { text: String::new(), depth: 1 };
    for func in &module.funcs {
        out.function(func);
    }
    let style = "  rankdir=TB;\n  node [shape=box, fontname=\"monospace\", fontsize=10];\n  \
                 edge [fontname=\"monospace\", fontsize=8];\n";
    format!("digraph module {{\n{style}{}}}\n", out.text)
}

/// Where a value is drawn: the Graphviz node that it leaves from.
type Places = HashMap<ValueId, String>;

struct Dot {
    text: String,
    depth: usize,
}

impl Dot {
    fn line(&mut self, line: &str) {
        let _ = writeln!(self.text, "{:indent$}{line}", "", indent = 2 * self.depth);
    }

    fn open(&mut self, id: &str, label: &str) {
        self.line(&format!("subgraph {} {{", quoted(&format!("cluster_{id}"))));
        self.depth += 1;
        self.line(&format!("label={};", quoted(label)));
    }

    fn close(&mut self) {
        self.depth -= 1;
        self.line("}");
    }

    fn node(&mut self, id: &str, label: &str, style: &str) {
        self.line(&format!("{} [label={}{style}];", quoted(id), quoted(label)));
    }

    fn function(&mut self, func: &Func) {
        let name = &func.name;
        self.open(name, &format!("@{name}"));
        let mut places = Places::new();
        for &p in &func.params {
            let value = &func.values[p];
            let id = format!("{name}/{}", value.name);
            self.node(&id, &format!("%{}\n{}", value.name, value.ty), ", shape=ellipse");
            places.insert(p, id);
        }
        self.ops(func, name, &mut places);
        for (i, &r) in func.results.iter().enumerate() {
            let id = format!("{name}/return {i}");
            self.node(&id, &format!("return {i}"), ", shape=ellipse");
            self.edge(func, r, &id, name, &mut places);
        }
        self.close();
    }

    /// The run-time ops of `func`; `scope` keeps its names apart from those of other functions.
    fn ops(&mut self, func: &Func, scope: &str, places: &mut Places) {
        for &n in &func.order {
            let node = &func.nodes[n];
            if node.outs.iter().all(|&o| func.is_const(o)) {
                continue;
            }
            match &node.op {
                Op::Fused { body } => self.composite(func, n, body.func(), scope, places),
                op => {
                    let first = node.outs.first().map_or("", |&o| &func.values[o].name);
                    let id = format!("{scope}/{first}");
                    let attrs = op.attrs().into_iter().map(|(k, v)| format!("\n{k} = {v}"));
                    let label = format!("{}{}", op.mnemonic(), attrs.collect::<String>());
                    self.node(&id, &label, "");
                    for &a in &node.args {
                        self.edge(func, a, &id, scope, places);
                    }
                    places.extend(node.outs.iter().map(|&o| (o, id.clone())));
                }
            }
        }
    }

    fn composite(&mut self, func: &Func, n: NodeId, body: &Func, scope: &str, places: &mut Places) {
        let node = &func.nodes[n];
        let first = node.outs.first().map_or("", |&o| &func.values[o].name);
        let scope_inside = format!("{scope}/{first}");
        for &a in &node.args {
            self.constant(func, a, scope, places);
        }
        let outside = node.args.iter().map(|a| places.get(a).cloned().unwrap_or_default());
        let mut inside: Places = body.params.iter().copied().zip(outside).collect();
        self.open(&scope_inside, &format!("fused {}", node.op.kind()));
        self.ops(body, &scope_inside, &mut inside);
        self.close();
        for (&out, result) in node.outs.iter().zip(&body.results) {
            let place = inside.get(result).cloned().unwrap_or_default();
            places.insert(out, place);
        }
    }

    /// Draws `value` if it is a constant that was not read before.
    fn constant(&mut self, func: &Func, value: ValueId, scope: &str, places: &mut Places) {
        if let Entry::Vacant(place) = places.entry(value) {
            let constant = &func.values[value];
            let id = format!("{scope}/{}", constant.name);
            let label = format!("%{}\n{}", constant.name, constant.ty);
            self.node(&id, &label, ", shape=note, color=gray, fontcolor=gray");
            place.insert(id);
        }
    }

    fn edge(&mut self, func: &Func, value: ValueId, to: &str, scope: &str, places: &mut Places) {
        self.constant(func, value, scope, places);
        let (from, ty) = (&places[&value], &func.values[value].ty);
        let line =
            format!("{} -> {} [label={}];", quoted(from), quoted(to), quoted(&ty.to_string()));
        self.line(&line);
    }
}

fn quoted(text: &str) -> String {
    format!("\"{}\"", text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::text;

    #[test]
    fn composites_are_boxes_around_their_ops() {
        let source = "fused @mine(%a: f32[T,4], %w: f32[4]) {
  %s = silu %a : f32[T,4]
  %r = add_bias %s, %w : f32[T,4]
  return %r
}
func @f(%x: f32[T,4]) {
  weight %b : bf16[4]
  %w = cast %b {to = f32} : f32[4]
  %y = fused %x, %w {body = @mine} : f32[T,4]
  %z = add %y, %x : f32[T,4]
  return %z
}
";
        let module = text::parse("test.ir", source).unwrap();
        let expected = r#"digraph module {
  rankdir=TB;
  node [shape=box, fontname="monospace", fontsize=10];
  edge [fontname="monospace", fontsize=8];
  subgraph "cluster_f" {
    label="@f";
    "f/x" [label="%x\nf32[T,4]", shape=ellipse];
    "f/w" [label="%w\nf32[4]", shape=note, color=gray, fontcolor=gray];
    subgraph "cluster_f/y" {
      label="fused mine";
      "f/y/s" [label="silu"];
      "f/x" -> "f/y/s" [label="f32[T,4]"];
      "f/y/r" [label="add_bias"];
      "f/y/s" -> "f/y/r" [label="f32[T,4]"];
      "f/w" -> "f/y/r" [label="f32[4]"];
    }
    "f/z" [label="add"];
    "f/y/r" -> "f/z" [label="f32[T,4]"];
    "f/x" -> "f/z" [label="f32[T,4]"];
    "f/return 0" [label="return 0", shape=ellipse];
    "f/z" -> "f/return 0" [label="f32[T,4]"];
  }
}
"#;
        assert_eq!(dot(&module), expected);
        assert_eq!(dot(&text::parse("again.ir", source).unwrap()), expected);
    }
}
