//! Ops of a function as the body of a composite.

use crate::{
    body::Body,
    entity::{NodeId, ValueId},
    func::Func,
    op::Op,
    types::Storage,
    verify::VerifyError,
};
use std::collections::{HashMap, HashSet};

/// A composite that stands for ops of its function. It is not listed yet.
#[derive(Clone, Debug)]
pub struct Outlined {
    /// The composite.
    pub node: NodeId,
    /// The ops it stands for, in the order of the function.
    pub nodes: Vec<NodeId>,
    /// The values that its results take the place of, in order.
    pub results: Vec<ValueId>,
}

/// Ops that cannot become one.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum OutlineError {
    /// Nothing was chosen, or nothing that is read outside.
    #[error("no op that something else reads was chosen")]
    Nothing,
    /// A path leaves the ops and comes back.
    #[error("{at} depends on the ops through one that was not chosen")]
    NotConvex {
        /// The op where the path comes back.
        at: String,
    },
    /// A version of a state that the ops overwrite is read by one that was not chosen, which must
    /// come before them.
    #[error("{at} reads a state that the ops overwrite")]
    StateRead {
        /// The op that reads it.
        at: String,
    },
    /// A constant was chosen; constants are evaluated when compiling.
    #[error("{at} is constant")]
    Constant {
        /// The constant op.
        at: String,
    },
    /// The ops make no body.
    #[error("the ops make no body: {}", errors.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "))]
    Body {
        /// Every broken rule.
        errors: Vec<VerifyError>,
    },
}

impl Func {
    /// Creates a composite of the live ops `nodes` without listing it. What they read from outside
    /// becomes an operand, in order of first use; what others read of them, and the last version
    /// of a state, a result. Composites of the same kind among them are taken apart.
    ///
    /// # Errors
    /// [`OutlineError`] when the ops cannot run as one.
    pub fn outline(&mut self, nodes: &[NodeId], kind: &str) -> Result<Outlined, OutlineError> {
        let chosen: HashSet<NodeId> = nodes.iter().copied().collect();
        let nodes = self.in_order(&chosen);
        self.check_convex(&chosen)?;
        self.check_states(&chosen)?;
        let mut body = Func::new(kind);
        let mut moved: HashMap<ValueId, ValueId> = HashMap::new();
        let mut operands = Vec::new();
        for &n in &nodes {
            let node = &self.nodes[n];
            if node.outs.iter().all(|&o| self.is_const(o)) {
                return Err(OutlineError::Constant { at: self.describe(n) });
            }
            for &a in &node.args {
                moved.entry(a).or_insert_with(|| {
                    operands.push(a);
                    let value = &self.values[a];
                    body.param(local_name(&value.name), value.ty.clone())
                });
            }
            let args: Vec<ValueId> = node.args.iter().map(|a| moved[a]).collect();
            let outs = match &node.op {
                Op::Fused { body: inner } if inner.kind() == kind => {
                    body.take_over(inner.func(), &args)
                }
                _ => body.copy_node(self, n, &args),
            };
            moved.extend(node.outs.iter().copied().zip(outs));
        }
        let results = self.read_outside(&nodes, &chosen);
        if results.is_empty() {
            return Err(OutlineError::Nothing);
        }
        body.set_results(results.iter().map(|r| moved[r]).collect());
        let body = Body::new(body).map_err(|errors| OutlineError::Body { errors })?;
        let types: Vec<_> =
            results.iter().map(|&r| (String::new(), self.values[r].ty.clone())).collect();
        let node = self.create_node(Op::Fused { body }, &operands, types);
        Ok(Outlined { node, nodes, results })
    }

    /// Appends a node of `from` that reads `args`; its results.
    fn copy_node(&mut self, from: &Func, node: NodeId, args: &[ValueId]) -> Vec<ValueId> {
        let node = &from.nodes[node];
        let results = node.outs.iter().map(|&o| {
            let value = &from.values[o];
            (local_name(&value.name).to_owned(), value.ty.clone())
        });
        let copy = self.create_node(node.op.clone(), args, results);
        self.insert(copy, None);
        self.nodes[copy].outs.clone()
    }

    /// Appends the nodes of `body`, whose parameters are `args` here; its results.
    fn take_over(&mut self, body: &Func, args: &[ValueId]) -> Vec<ValueId> {
        let mut moved: HashMap<ValueId, ValueId> =
            body.params.iter().copied().zip(args.iter().copied()).collect();
        for &n in &body.order {
            let node = &body.nodes[n];
            let args: Vec<ValueId> = node.args.iter().map(|a| moved[a]).collect();
            let outs = self.copy_node(body, n, &args);
            moved.extend(node.outs.iter().copied().zip(outs));
        }
        body.results.iter().map(|r| moved[r]).collect()
    }

    /// `chosen` in the order of the function.
    fn in_order(&self, chosen: &HashSet<NodeId>) -> Vec<NodeId> {
        let mut nodes: Vec<NodeId> = chosen.iter().copied().filter(|&n| self.is_live(n)).collect();
        nodes.sort_unstable_by_key(|&n| self.place(n));
        nodes
    }

    fn check_states(&self, chosen: &HashSet<NodeId>) -> Result<(), OutlineError> {
        for node in chosen.iter().map(|&n| &self.nodes[n]) {
            for &(operand, _) in node.op.writes() {
                let mut readers = self.readers(node.args[operand]).iter();
                if let Some(&reader) = readers.find(|r| !chosen.contains(r)) {
                    return Err(OutlineError::StateRead { at: self.describe(reader) });
                }
            }
        }
        Ok(())
    }

    fn check_convex(&self, chosen: &HashSet<NodeId>) -> Result<(), OutlineError> {
        let ends = self.in_order(chosen);
        let place = |n: Option<&NodeId>| n.and_then(|&n| self.place(n));
        let (Some(first), Some(last)) = (place(ends.first()), place(ends.last())) else {
            return Err(OutlineError::Nothing);
        };
        // Definitions come before uses, so a path that comes back stays between the two.
        let mut after: HashSet<NodeId> = HashSet::new();
        for &n in &self.order[first..=last] {
            let mut sources = self.nodes[n].args.iter().filter_map(|&a| self.def(a));
            if chosen.contains(&n) {
                if sources.any(|s| after.contains(&s)) {
                    return Err(OutlineError::NotConvex { at: self.describe(n) });
                }
            } else if sources.any(|s| after.contains(&s) || chosen.contains(&s)) {
                after.insert(n);
            }
        }
        Ok(())
    }

    /// Results of `nodes` that others read, that the function returns, or that are the last version
    /// of a state.
    fn read_outside(&self, nodes: &[NodeId], chosen: &HashSet<NodeId>) -> Vec<ValueId> {
        let is_read = |&o: &ValueId| {
            let readers = self.readers(o);
            let inside = readers.iter().filter(|n| chosen.contains(n)).count();
            let last = self.values[o].ty.storage == Storage::State
                && !readers.iter().any(|&n| self.overwrites(n, o));
            last || self.uses(o) > inside
        };
        nodes.iter().flat_map(|&n| &self.nodes[n].outs).copied().filter(is_read).collect()
    }

    fn overwrites(&self, node: NodeId, state: ValueId) -> bool {
        let node = &self.nodes[node];
        node.op.writes().iter().any(|&(operand, _)| node.args[operand] == state)
    }
}

/// The last part of `name` that is not the number of a layer, so that bodies of all layers are alike:
/// `layers.3.q_norm` is `q_norm`, `kv.3` is `kv`.
fn local_name(name: &str) -> &str {
    let is_number = |part: &&str| part.bytes().all(|b| b.is_ascii_digit());
    let name = match name.rsplit_once('.') {
        Some((rest, last)) if is_number(&last) => rest,
        _ => name,
    };
    let mut at = 0;
    for (start, _) in name.match_indices('.') {
        let part = name[..start].rsplit('.').next().unwrap_or_default();
        if is_number(&part) {
            at = start + 1;
        }
    }
    let local = &name[at..];
    local.rsplit_once('_').filter(|(_, n)| is_number(n)).map_or(local, |(stem, _)| stem)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::text;

    const TEXT: &str = "func @f(%x: f32[T,4], %kv.0: state f32[R,4]) {
  weight %w : f32[4]
  %layers.0.a = silu %x : f32[T,4]
  %layers.0.b = add_bias %layers.0.a, %w : f32[T,4]
  %layers.0.c = mul %layers.0.a, %layers.0.b : f32[T,4]
  %layers.0.kv = store_rows %kv.0, %layers.0.c : state f32[R,4]
  return %layers.0.b, %layers.0.kv
}
";

    fn outlined(chosen: &[usize]) -> Result<(Func, Outlined), OutlineError> {
        let mut func = text::parse("test.ir", TEXT).unwrap().funcs.remove(0);
        let nodes: Vec<NodeId> = chosen.iter().map(|&i| func.order[i]).collect();
        func.outline(&nodes, "rows").map(|o| (func, o))
    }

    #[test]
    fn operands_and_results_cross_the_border_and_names_forget_the_layer() {
        let (func, made) = outlined(&[3, 1, 0, 2]).unwrap();
        let Op::Fused { body } = &func.nodes[made.node].op else { unreachable!() };
        assert_eq!(
            text::print(body.func()),
            "func @rows(%x: f32[T,4], %w: f32[4], %kv: state f32[R,4]) {
  %a = silu %x : f32[T,4]
  %b = add_bias %a, %w : f32[T,4]
  %c = mul %a, %b : f32[T,4]
  %kv_6 = store_rows %kv, %c : state f32[R,4]
  return %b, %kv_6
}
"
        );
        assert_eq!(body.writes(), [(2, 1)]);
        assert_eq!(made.results.len(), 2);
    }

    #[test]
    fn composites_of_the_kind_are_taken_apart_and_others_stay() {
        for (inner, nested) in [("rows", false), ("linear", true)] {
            let mut func = text::parse("test.ir", TEXT).unwrap().funcs.remove(0);
            let [a, b, c, _] = func.order[..] else { unreachable!() };
            let made = func.outline(&[b, c], inner).unwrap();
            func.insert(made.node, Some(b));
            for (i, &old) in made.results.iter().enumerate() {
                func.replace_uses(old, func.nodes[made.node].outs[i]);
            }
            func.remove(c);
            func.remove(b);
            let whole = func.outline(&[a, made.node], "rows").unwrap();
            let Op::Fused { body } = &func.nodes[whole.node].op else { unreachable!() };
            let ops: Vec<&str> =
                body.func().order.iter().map(|&n| body.func().nodes[n].op.mnemonic()).collect();
            let expected: &[&str] =
                if nested { &["silu", "fused"] } else { &["silu", "add_bias", "mul"] };
            assert_eq!(ops, expected);
            assert_eq!(whole.results, func.nodes[made.node].outs);
            if !nested {
                assert_eq!(
                    text::print(body.func()),
                    "func @rows(%x: f32[T,4], %w: f32[4]) {
  %a = silu %x : f32[T,4]
  %b = add_bias %a, %w : f32[T,4]
  %c = mul %a, %b : f32[T,4]
  return %b, %c
}
"
                );
            }
        }
    }

    #[test]
    fn a_detour_is_refused() {
        let error = outlined(&[0, 2]).unwrap_err();
        assert_eq!(error, OutlineError::NotConvex { at: "mul %layers.0.c".to_owned() });
        assert_eq!(outlined(&[]).unwrap_err(), OutlineError::Nothing);
    }

    #[test]
    fn a_state_that_is_read_before_it_is_overwritten_stays_apart() {
        let text = TEXT.replace(
            "  %layers.0.c =",
            "  %early = gather_rows %kv.0, %rows : f32[T,4]\n  %layers.0.c =",
        );
        let text = text.replace("[R,4]) {", "[R,4], %rows: i32[T]) {");
        let text = text.replace("return ", "return %early, ");
        let mut func = text::parse("test.ir", &text).unwrap().funcs.remove(0);
        let nodes: Vec<NodeId> = [3, 4].map(|i| func.order[i]).to_vec();
        let error = func.outline(&nodes, "rows").unwrap_err();
        assert_eq!(error, OutlineError::StateRead { at: "gather_rows %early".to_owned() });
    }

    #[test]
    fn names_lose_layers_and_suffixes() {
        let names = ["layers.3.q_norm", "kv.3", "x", "layers.10.o.weight.panels", "cut_171"];
        let local = ["q_norm", "kv", "x", "o.weight.panels", "cut"];
        assert_eq!(names.map(local_name), local);
    }
}
