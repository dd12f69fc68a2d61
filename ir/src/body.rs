//! What a composite op stands for.

use crate::{
    entity::{NodeId, ValueId},
    func::{Func, Node, ValueDef},
    op::{Op, TypeError},
    text,
    types::{Storage, TensorType},
    verify::{Broken, VerifyError},
};
use std::{
    fmt,
    hash::{DefaultHasher, Hash, Hasher},
    str::FromStr,
    sync::Arc,
};
use tensor::Layout;

/// The function that an [`Op::Fused`] stands for. Copies share it.
///
/// Its parameters are the operands of the op and its results the results. It names no weights:
/// constants are operands, in the layout they are read in.
#[derive(Clone)]
pub struct Body(Arc<Inner>);

struct Inner {
    func: Func,
    writes: Vec<(usize, usize)>,
    /// Hash of the function as text: what equality compares.
    identity: u128,
    /// Bodies inside bodies, counting this one.
    depth: usize,
}

/// Bodies inside bodies that are enough for anyone.
const MAX_DEPTH: usize = 8;

impl Body {
    /// The body that `func` is; the part of its name before the first `.` is the kind.
    ///
    /// # Errors
    /// Every rule that it breaks.
    pub fn new(func: Func) -> Result<Self, Vec<VerifyError>> {
        func.verify_body()?;
        Ok(Self::checked(func))
    }

    /// [`Body::new`] for a function that is known to verify.
    pub(crate) fn checked(func: Func) -> Self {
        let writes = writes(&func);
        let identity = hash(&text::print_body(&func));
        let depth = 1 + inner_depth(&func);
        Self(Arc::new(Inner { func, writes, identity, depth }))
    }

    /// What computes it: `rows`, `linear`, the name of an operator of a target.
    pub fn kind(&self) -> &str {
        kind_of(&self.0.func.name)
    }

    /// The function.
    pub fn func(&self) -> &Func {
        &self.0.func
    }

    /// Parameters that are states it overwrites, each with the result that is the next version.
    pub fn writes(&self) -> &[(usize, usize)] {
        &self.0.writes
    }

    pub(crate) fn identity(&self) -> u128 {
        self.0.identity
    }

    pub(crate) fn infer(&self, operands: &[&TensorType]) -> Result<Vec<TensorType>, TypeError> {
        let func = self.func();
        let ty = |&v: &ValueId| &func.values[v].ty;
        if operands.len() != func.params.len() {
            let (expected, got) = (func.params.len(), operands.len());
            return Err(TypeError::Arity { op: "fused", expected, got });
        }
        match operands.iter().zip(func.params.iter().map(ty)).find(|(found, ty)| *found != ty) {
            Some((found, _)) => Err(TypeError::Rule {
                rule: "operands must have the types of the body's parameters",
                found: found.to_string(),
            }),
            None => Ok(func.results.iter().map(ty).cloned().collect()),
        }
    }
}

/// The part of a label that says what computes the body.
pub(crate) fn kind_of(label: &str) -> &str {
    label.split('.').next().unwrap_or_default()
}

/// Two SipHashes of 64 bits, compared inside one process only.
fn hash(text: &str) -> u128 {
    let half = |salt: u8| {
        let mut hasher = DefaultHasher::new();
        (salt, text).hash(&mut hasher);
        u128::from(hasher.finish())
    };
    half(0) << 64 | half(1)
}

fn inner_depth(func: &Func) -> usize {
    let depth = |&n: &NodeId| match &func.nodes[n].op {
        Op::Fused { body } => body.0.depth,
        _ => 0,
    };
    func.order.iter().map(depth).max().unwrap_or(0)
}

fn writes(func: &Func) -> Vec<(usize, usize)> {
    let origin = |mut value| loop {
        let ValueDef::Result { node, index } = func.values[value].def else { return value };
        let Node { op, args, .. } = &func.nodes[node];
        match op.writes().iter().find(|(_, result)| *result == index) {
            Some(&(operand, _)) => value = args[operand],
            None => return value,
        }
    };
    let states = func.results.iter().enumerate();
    let states = states.filter(|(_, r)| func.values[**r].ty.storage == Storage::State);
    let pair = |(result, &r): (usize, &ValueId)| {
        let from = origin(r);
        func.params.iter().position(|&p| p == from).map(|operand| (operand, result))
    };
    states.filter_map(pair).collect()
}

impl PartialEq for Body {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0) || self.0.identity == other.0.identity
    }
}

impl fmt::Debug for Body {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl fmt::Display for Body {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "@{}", self.0.func.name)
    }
}

/// A body is defined in the text, not in an attribute: the parser looks it up by its label.
impl FromStr for Body {
    type Err = ();
    fn from_str(_: &str) -> Result<Self, ()> {
        Err(())
    }
}

/// What a body must satisfy beyond what every function must.
pub(crate) fn check(func: &Func) -> Vec<VerifyError> {
    let rule = |rule: &'static str| Broken::Body(rule);
    let at = |at: &str, rule| VerifyError { func: func.name.clone(), at: at.to_owned(), rule };
    let mut errors = Vec::new();
    if kind_of(&func.name).is_empty() {
        errors.push(at("the body", rule("a label begins with the kind of the body")));
    }
    if !func.weights.is_empty() {
        errors.push(at("weights", rule("constants must be operands of a composite")));
    }
    if func.params.is_empty() || func.results.is_empty() {
        errors.push(at("the body", rule("a composite has operands and results")));
    }
    for &r in &func.results {
        if matches!(func.values[r].def, ValueDef::Param) {
            errors.push(func.error_at_value(r, rule("a composite returns what it computes")));
        }
    }
    if inner_depth(func) >= MAX_DEPTH {
        errors.push(at("the body", rule("bodies stand inside each other at most 8 deep")));
    }
    // Reading an operand out of a layout says what an operator that takes it so computes.
    let arranges =
        |&n: &NodeId| matches!(func.nodes[n].op, Op::Relayout { layout } if layout != Layout::Nd);
    for n in func.order.iter().copied().filter(|n| arranges(n)) {
        errors.push(func.error_at_node(n, rule("layouts are given before ops are fused")));
    }
    errors
}
