//! What every function must satisfy between passes. Collects every broken rule, not the first.

use crate::{
    body,
    entity::{EntityId, NodeId, ValueId},
    func::{Func, Node, ValueDef},
    hash::NameHash,
    op::{Op, TypeError},
    text::is_name_char,
    types::{Storage, TensorType},
};
use std::{
    collections::{HashMap, HashSet},
    hash::BuildHasher,
};
use tensor::Layout;

/// A rule that a function breaks, and where.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error("@{func}, at {at}: {rule}")]
pub struct VerifyError {
    /// Function.
    pub func: String,
    /// Value or operation.
    pub at: String,
    /// The rule.
    pub rule: Broken,
}

/// A broken rule.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[allow(missing_docs, reason = "the message of each rule is its documentation")]
pub enum Broken {
    #[error("`%{0}` is read before it is defined")]
    UseBeforeDef(String),
    #[error("names a value that the function does not have")]
    NoSuchValue,
    #[error("is listed twice")]
    ListedTwice,
    #[error("is defined by something else than what lists it")]
    WrongDefinition,
    #[error("{0}")]
    Type(#[from] TypeError),
    #[error("has type {recorded}, inferred {inferred}")]
    RecordedType { recorded: String, inferred: String },
    #[error("the name is taken by another value")]
    DuplicateName,
    #[error("the name has characters other than letters, digits, `_`, `.` and `-`, or none")]
    UnprintableName,
    #[error("counted {counted} uses, found {found}")]
    UseCount { counted: usize, found: usize },
    #[error("state `%{version}` was overwritten by `%{by}` and has a later access")]
    StaleState { version: String, by: String },
    #[error("the last version of a written state is not returned")]
    StateNotReturned,
    #[error("is a state, but neither a parameter nor the next version of one")]
    StrayState,
    #[error("layout {0} is not allowed here")]
    Layout(Layout),
    #[error("{0}")]
    Body(&'static str),
    #[error("{0}")]
    Phase(String),
}

impl Func {
    /// Checks every rule that holds in every phase: definitions come before uses, recorded types
    /// are the inferred ones, names are unique and printable, use counts are right, each version of
    /// a state is overwritten at most once and not read afterwards, the last version of a written
    /// state is returned, and layouts occur only where an op reads them.
    ///
    /// # Errors
    /// Every broken rule, in the order of the program.
    pub fn verify(&self) -> Result<(), Vec<VerifyError>> {
        self.check(false)
    }

    /// [`Func::verify`] for the body of a composite, whose parameters may have layouts.
    pub(crate) fn verify_body(&self) -> Result<(), Vec<VerifyError>> {
        self.check(true)
    }

    fn check(&self, is_body: bool) -> Result<(), Vec<VerifyError>> {
        let mut check = Check { func: self, errors: Vec::new() };
        // The other rules look values up, so they can only be asked once all of these exist.
        if check.everything_exists() {
            check.definitions();
            check.types();
            let live = check.live_values();
            check.names(&live);
            check.use_counts(&live);
            check.states();
            check.layouts(&live, is_body);
            if is_body {
                check.errors.extend(body::check(self));
            }
        }
        if check.errors.is_empty() { Ok(()) } else { Err(check.errors) }
    }

    /// An error at `value`.
    pub fn error_at_value(&self, value: ValueId, rule: Broken) -> VerifyError {
        let at = format!("%{}", self.values[value].name);
        VerifyError { func: self.name.clone(), at, rule }
    }

    /// An error at `node`.
    pub fn error_at_node(&self, node: NodeId, rule: Broken) -> VerifyError {
        VerifyError { func: self.name.clone(), at: self.describe(node), rule }
    }

    /// `mnemonic %first_result`, for messages.
    pub fn describe(&self, node: NodeId) -> String {
        let Node { op, outs, .. } = &self.nodes[node];
        match outs.first().filter(|o| o.index() < self.values.len()) {
            Some(&o) => format!("{} %{}", op.mnemonic(), self.values[o].name),
            None => op.mnemonic().to_owned(),
        }
    }
}

struct Check<'a> {
    func: &'a Func,
    errors: Vec<VerifyError>,
}

impl Check<'_> {
    fn at_value(&mut self, value: ValueId, rule: Broken) {
        self.errors.push(self.func.error_at_value(value, rule));
    }

    fn at_node(&mut self, node: NodeId, rule: Broken) {
        self.errors.push(self.func.error_at_node(node, rule));
    }

    fn at_func(&mut self, at: &str, rule: Broken) {
        self.errors.push(VerifyError { func: self.func.name.clone(), at: at.to_owned(), rule });
    }

    fn everything_exists(&mut self) -> bool {
        let (values, nodes) = (self.func.values.len(), self.func.nodes.len());
        let known = |v: &ValueId| v.index() < values;
        for (what, list) in [
            ("parameters", &self.func.params),
            ("weights", &self.func.weights),
            ("results", &self.func.results),
        ] {
            if !list.iter().all(known) {
                self.at_func(what, Broken::NoSuchValue);
            }
        }
        for &n in &self.func.order {
            if n.index() >= nodes {
                self.at_func("order", Broken::NoSuchValue);
            } else {
                let node = &self.func.nodes[n];
                if !node.args.iter().chain(&node.outs).all(known) {
                    self.at_node(n, Broken::NoSuchValue);
                }
            }
        }
        self.errors.is_empty()
    }

    fn definitions(&mut self) {
        let func = self.func;
        let mut defined = vec![false; func.values.len()];
        for &p in &func.params {
            self.define(&mut defined, p, func.values[p].def == ValueDef::Param);
        }
        for &w in &func.weights {
            let is_weight = matches!(func.values[w].def, ValueDef::Weight(_));
            self.define(&mut defined, w, is_weight);
        }
        let mut listed = vec![false; func.nodes.len()];
        for &n in &func.order {
            if std::mem::replace(&mut listed[n.index()], true) {
                self.at_node(n, Broken::ListedTwice);
                continue;
            }
            let node = &func.nodes[n];
            for a in node.args.iter().filter(|a| !defined[a.index()]) {
                self.at_node(n, Broken::UseBeforeDef(func.values[*a].name.clone()));
            }
            for (index, &o) in node.outs.iter().enumerate() {
                let by_this = func.values[o].def == ValueDef::Result { node: n, index };
                self.define(&mut defined, o, by_this);
            }
        }
        for r in func.results.iter().filter(|r| !defined[r.index()]) {
            self.at_func("return", Broken::UseBeforeDef(func.values[*r].name.clone()));
        }
    }

    fn define(&mut self, defined: &mut [bool], value: ValueId, as_listed: bool) {
        if std::mem::replace(&mut defined[value.index()], true) {
            self.at_value(value, Broken::ListedTwice);
        }
        if !as_listed {
            self.at_value(value, Broken::WrongDefinition);
        }
    }

    fn types(&mut self) {
        let func = self.func;
        for &n in &func.order {
            let node = &func.nodes[n];
            let recorded = || node.outs.iter().map(|&o| &func.values[o].ty);
            match func.infer(&node.op, &node.args) {
                Err(e) => self.at_node(n, e.into()),
                Ok(inferred) if !recorded().eq(&inferred) => {
                    let recorded: Vec<&TensorType> = recorded().collect();
                    let (recorded, inferred) = (format!("{recorded:?}"), format!("{inferred:?}"));
                    self.at_node(n, Broken::RecordedType { recorded, inferred });
                }
                Ok(_) => {}
            }
        }
    }

    /// Parameters, weights and results of live nodes.
    fn live_values(&self) -> Vec<ValueId> {
        let func = self.func;
        let outs = func.order.iter().flat_map(|&n| &func.nodes[n].outs);
        func.params.iter().chain(&func.weights).chain(outs).copied().collect()
    }

    fn names(&mut self, live: &[ValueId]) {
        let func = self.func;
        let printable =
            |name: &str| !name.is_empty() && name.bytes().map(char::from).all(is_name_char);
        if !printable(&func.name) {
            self.at_func("the function", Broken::UnprintableName);
        }
        // Of so many names a sorted list of hashes is made sooner than a table.
        let hash = NameHash::default();
        let mut hashes = Vec::with_capacity(live.len());
        for &v in live {
            let value = &func.values[v];
            hashes.push(hash.hash_one(value.name.as_bytes()));
            let tensor = match &value.def {
                ValueDef::Weight(tensor) => tensor,
                _ => &value.name,
            };
            if !printable(&value.name) || (*tensor != value.name && !printable(tensor)) {
                self.at_value(v, Broken::UnprintableName);
            }
        }
        hashes.sort_unstable();
        if hashes.windows(2).all(|pair| pair[0] != pair[1]) {
            return;
        }
        let mut seen = HashSet::with_capacity(live.len());
        for &v in live {
            if !seen.insert(func.values[v].name.as_str()) {
                self.at_value(v, Broken::DuplicateName);
            }
        }
    }

    fn use_counts(&mut self, live: &[ValueId]) {
        let func = self.func;
        let mut found = vec![0; func.values.len()];
        let args = func.order.iter().flat_map(|&n| &func.nodes[n].args);
        for &v in args.chain(&func.results) {
            found[v.index()] += 1;
        }
        for &v in live {
            let (counted, found) = (func.uses(v), found[v.index()]);
            if counted != found {
                self.at_value(v, Broken::UseCount { counted, found });
            }
        }
    }

    fn states(&mut self) {
        let func = self.func;
        let mut overwritten: HashMap<ValueId, ValueId> = HashMap::new();
        let mut is_old = vec![false; func.values.len()];
        let stale = |version: ValueId, by: ValueId| Broken::StaleState {
            version: func.values[version].name.clone(),
            by: func.values[by].name.clone(),
        };
        for &n in &func.order {
            let node = &func.nodes[n];
            for a in node.args.iter().filter(|a| is_old[a.index()]) {
                if let Some(&by) = overwritten.get(a) {
                    self.at_node(n, stale(*a, by));
                }
            }
            let written = node.op.writes();
            for &(operand, result) in written {
                if let (Some(&version), Some(&next)) =
                    (node.args.get(operand), node.outs.get(result))
                {
                    overwritten.insert(version, next);
                    is_old[version.index()] = true;
                }
            }
            for (i, &o) in node.outs.iter().enumerate() {
                let next_version = written.iter().any(|&(_, result)| result == i);
                if func.values[o].ty.storage == Storage::State && !next_version {
                    self.at_value(o, Broken::StrayState);
                }
            }
        }
        for r in &func.results {
            if let Some(&by) = overwritten.get(r) {
                self.at_func("return", stale(*r, by));
            }
        }
        for &next in overwritten.values().collect::<std::collections::BTreeSet<_>>() {
            if !overwritten.contains_key(&next) && !func.results.contains(&next) {
                self.at_value(next, Broken::StateNotReturned);
            }
        }
        for &w in &func.weights {
            if func.values[w].ty.storage == Storage::State {
                self.at_value(w, Broken::StrayState);
            }
        }
    }

    fn layouts(&mut self, live: &[ValueId], is_body: bool) {
        let func = self.func;
        for &v in live {
            let layout = func.values[v].ty.layout;
            let by = func.def_node(v).map(|(_, node)| &node.op);
            let operand = is_body && func.values[v].def == ValueDef::Param;
            if layout != Layout::Nd && !operand && !matches!(by, Some(Op::Relayout { .. })) {
                self.at_value(v, Broken::Layout(layout));
            }
        }
        for &n in &func.order {
            let node = &func.nodes[n];
            for (i, &a) in node.args.iter().enumerate() {
                let layout = func.values[a].ty.layout;
                let reads_layouts =
                    matches!(node.op, Op::Relayout { .. }) || node.op.reads_layout(i);
                if layout != Layout::Nd && !reads_layouts {
                    self.at_node(n, Broken::Layout(layout));
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Dim, Module, text};
    use tensor::DType;

    const GOOD: &str = "func @f(%x: f32[T,4], %kv: state f32[R,4]) {
  weight %w : f32[4,4]
  %a = matmul %x, %w {out = f32} : f32[T,4]
  %next = store_rows %kv, %a : state f32[R,4]
  return %a, %next
}
";

    fn good() -> Func {
        let Module { mut funcs } = text::parse("test.ir", GOOD).unwrap();
        funcs[0].verify().unwrap();
        funcs.remove(0)
    }

    fn rules(func: &Func) -> Vec<Broken> {
        func.verify().unwrap_err().into_iter().map(|e| e.rule).collect()
    }

    #[test]
    fn use_before_definition_is_found_in_nodes_and_results() {
        let mut func = good();
        func.order.swap(0, 1);
        assert_eq!(rules(&func), [Broken::UseBeforeDef("a".to_owned())]);
        let mut func = good();
        let store = func.order[1];
        func.remove(store);
        assert_eq!(rules(&func), [Broken::UseBeforeDef("next".to_owned())]);
    }

    #[test]
    fn every_broken_rule_is_reported() {
        let mut func = good();
        let a = func.nodes[func.order[0]].outs[0];
        func.values[a].ty = TensorType::new(DType::F32, [Dim::from(3), Dim::from(4)]);
        func.values[a].name = "x".to_owned();
        func.set_results(vec![a]);
        let found = rules(&func);
        assert!(matches!(found[0], Broken::RecordedType { .. }), "{found:?}");
        assert!(found.contains(&Broken::DuplicateName), "{found:?}");
        assert!(found.contains(&Broken::StateNotReturned), "{found:?}");
    }

    #[test]
    fn counts_that_a_pass_forgot_to_update_are_found() {
        let mut func = good();
        let matmul = func.order[0];
        func.nodes[matmul].args[1] = func.nodes[matmul].args[0];
        let found = rules(&func);
        assert!(found.contains(&Broken::UseCount { counted: 1, found: 2 }), "{found:?}");
        assert!(found.contains(&Broken::UseCount { counted: 1, found: 0 }), "{found:?}");
        assert!(matches!(found[0], Broken::RecordedType { .. }), "{found:?}");
    }

    #[test]
    fn names_that_cannot_be_read_back_are_found() {
        let mut func = good();
        func.rename(func.params[0], "two words");
        assert_eq!(rules(&func), [Broken::UnprintableName]);
    }

    #[test]
    fn ids_of_another_function_are_found() {
        let mut func = good();
        let far = ValueId::from_index(99);
        func.nodes[func.order[0]].args[0] = far;
        func.results.push(far);
        assert_eq!(rules(&func), [Broken::NoSuchValue, Broken::NoSuchValue]);
    }

    #[test]
    fn a_node_listed_twice_is_found() {
        let mut func = good();
        func.order.push(func.order[0]);
        assert!(rules(&func).contains(&Broken::ListedTwice));
    }

    #[test]
    fn a_part_of_a_state_is_no_state() {
        let mut func = good();
        let op = Op::Slice { axis: 1, start: 0, len: 2 };
        func.append(op, &[func.results[1]], "part").unwrap();
        assert_eq!(rules(&func), [Broken::StrayState]);
    }
}
