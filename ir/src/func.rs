//! Functions and modules: who owns the program.

use crate::{
    entity::{Arena, EntityId, NodeId, ValueId},
    hash::NameHash,
    op::{Op, TypeError},
    order::Ranks,
    types::TensorType,
};
use std::collections::{HashMap, HashSet};

/// Where a value comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ValueDef {
    /// A parameter of the function: a step input, or the incoming version of a state.
    Param,
    /// A tensor of the checkpoint, by its name there.
    Weight(String),
    /// Result `index` of a node.
    Result {
        /// The node.
        node: NodeId,
        /// Which of its results.
        index: usize,
    },
}

/// An SSA value.
#[derive(Clone, Debug)]
pub struct Value {
    /// Name in the text format, unique in the function, without the `%`.
    pub name: String,
    /// Its type.
    pub ty: TensorType,
    /// Where it comes from.
    pub def: ValueDef,
}

/// An operation with its operands and results.
#[derive(Clone, Debug)]
pub struct Node {
    /// What it computes.
    pub op: Op,
    /// Operands in the order of the op's declaration.
    pub args: Vec<ValueId>,
    /// Results.
    pub outs: Vec<ValueId>,
}

/// A function: parameters, weights it names, nodes in an order, and what it returns.
///
/// Nothing is removed from the arenas. A node is alive while `order` lists it. Readers of values are
/// counted where nodes are listed, so operands and the order change through methods only.
#[derive(Clone, Debug, Default)]
pub struct Func {
    /// Name in the text format, without the `@`.
    pub name: String,
    /// Every value ever created.
    pub values: Arena<ValueId, Value>,
    /// Every node ever created.
    pub nodes: Arena<NodeId, Node>,
    /// Parameters in order.
    pub params: Vec<ValueId>,
    /// Named weights, each once, in order of first mention.
    pub weights: Vec<ValueId>,
    /// Live nodes; definitions come before uses.
    pub order: Vec<NodeId>,
    /// Returned values.
    pub results: Vec<ValueId>,
    /// For each value the live nodes that read it, once for each operand.
    readers: Vec<Vec<NodeId>>,
    /// For each value how often the function returns it.
    returned: Vec<u32>,
    /// For each node whether the order lists it.
    live: Vec<bool>,
    ranks: Ranks,
    names: HashSet<String, NameHash>,
    tensors: HashMap<String, ValueId, NameHash>,
}

/// The functions of one model.
#[derive(Clone, Debug, Default)]
pub struct Module {
    /// In order of definition.
    pub funcs: Vec<Func>,
}

impl Module {
    /// The function called `name`.
    pub fn func(&self, name: &str) -> Option<&Func> {
        self.funcs.iter().find(|f| f.name == name)
    }
}

impl Func {
    /// An empty function.
    pub fn new(name: &str) -> Self {
        Self { name: name.to_owned(), ..Self::default() }
    }

    fn value(&mut self, name: &str, ty: TensorType, def: ValueDef) -> ValueId {
        let name = self.fresh_name(name);
        self.names.insert(name.clone());
        self.readers.push(Vec::new());
        self.returned.push(0);
        self.values.push(Value { name, ty, def })
    }

    fn fresh_name(&self, wanted: &str) -> String {
        if !wanted.is_empty() && !self.names.contains(wanted) {
            return wanted.to_owned();
        }
        let stem = if wanted.is_empty() { "v" } else { wanted };
        (self.values.len()..)
            .map(|i| format!("{stem}_{i}"))
            .find(|n| !self.names.contains(n))
            .expect("endless range")
    }

    /// Adds a parameter.
    pub fn param(&mut self, name: &str, ty: TensorType) -> ValueId {
        let id = self.value(name, ty, ValueDef::Param);
        self.params.push(id);
        id
    }

    /// The value of checkpoint tensor `tensor`, created at its first mention.
    ///
    /// # Panics
    /// When the tensor was mentioned before with another type.
    pub fn weight(&mut self, tensor: &str, ty: TensorType) -> ValueId {
        if let Some(w) = self.weight_of(tensor) {
            assert_eq!(self.values[w].ty, ty, "{tensor} has one type");
            return w;
        }
        let id = self.value(tensor, ty, ValueDef::Weight(tensor.to_owned()));
        self.weights.push(id);
        self.tensors.insert(tensor.to_owned(), id);
        id
    }

    /// The value of checkpoint tensor `tensor`, if it was mentioned.
    pub fn weight_of(&self, tensor: &str) -> Option<ValueId> {
        self.tensors.get(tensor).copied()
    }

    /// Takes `weight`, which nothing reads, out of the named weights.
    pub fn remove_weight(&mut self, weight: ValueId) {
        self.weights.retain(|&w| w != weight);
        if let ValueDef::Weight(tensor) = &self.values[weight].def {
            self.tensors.remove(tensor);
        }
    }

    /// Creates a node without listing it in the order; its operands count as used once it is
    /// listed.
    ///
    /// # Errors
    /// [`TypeError`] when the operands break the op's typing rule.
    pub fn create(&mut self, op: Op, args: &[ValueId], name: &str) -> Result<NodeId, TypeError> {
        let results = self.infer(&op, args)?;
        let many = results.len() > 1;
        let named = results.into_iter().enumerate().map(|(index, ty)| {
            (if many { format!("{name}.{index}") } else { name.to_owned() }, ty)
        });
        Ok(self.create_node(op, args, named))
    }

    /// Types of the results that `op` has on `args`.
    ///
    /// # Errors
    /// [`TypeError`] when the operands break the op's typing rule.
    pub fn infer(&self, op: &Op, args: &[ValueId]) -> Result<Vec<TensorType>, TypeError> {
        let types: Vec<&TensorType> = args.iter().map(|&a| &self.values[a].ty).collect();
        op.infer(&types)
    }

    /// [`Func::create`] for results that are already inferred, each with its name.
    pub(crate) fn create_node(
        &mut self,
        op: Op,
        args: &[ValueId],
        results: impl IntoIterator<Item = (String, TensorType)>,
    ) -> NodeId {
        let node = NodeId::from_index(self.nodes.len());
        let outs = results
            .into_iter()
            .enumerate()
            .map(|(index, (name, ty))| self.value(&name, ty, ValueDef::Result { node, index }))
            .collect();
        self.live.push(false);
        self.nodes.push(Node { op, args: args.to_vec(), outs })
    }

    /// Creates a node and appends it to the order.
    ///
    /// # Errors
    /// [`TypeError`] when the operands break the op's typing rule.
    pub fn append(&mut self, op: Op, args: &[ValueId], name: &str) -> Result<NodeId, TypeError> {
        let node = self.create(op, args, name)?;
        self.insert(node, None);
        Ok(node)
    }

    /// The node that computes `value`, unless it is a parameter or a weight.
    pub fn def(&self, value: ValueId) -> Option<NodeId> {
        match self.values[value].def {
            ValueDef::Result { node, .. } => Some(node),
            _ => None,
        }
    }

    /// How many operands of live nodes and results of the function `value` is.
    pub fn uses(&self, value: ValueId) -> usize {
        self.readers[value.index()].len() + self.returned[value.index()] as usize
    }

    /// Live nodes that read `value`, once for each operand, in no order.
    pub(crate) fn readers(&self, value: ValueId) -> &[NodeId] {
        &self.readers[value.index()]
    }

    /// Declares what the function returns.
    pub fn set_results(&mut self, results: Vec<ValueId>) {
        for &r in &self.results {
            self.returned[r.index()] -= 1;
        }
        for &r in &results {
            self.returned[r.index()] += 1;
        }
        self.results = results;
    }

    /// Renames `value`; a clash gets a suffix.
    pub fn rename(&mut self, value: ValueId, name: &str) {
        if self.values[value].name != name {
            let fresh = self.fresh_name(name);
            self.names.insert(fresh.clone());
            let old = std::mem::replace(&mut self.values[value].name, fresh);
            self.names.remove(&old);
        }
    }

    /// Gives `new` the name of `old`, and `old` the name of `new`.
    pub fn swap_names(&mut self, old: ValueId, new: ValueId) {
        let name = std::mem::take(&mut self.values[old].name);
        let name = std::mem::replace(&mut self.values[new].name, name);
        self.values[old].name = name;
    }

    /// Live nodes that read `value`, in order; a node that reads it twice is listed once.
    pub fn users(&self, value: ValueId) -> impl Iterator<Item = NodeId> {
        let mut readers = self.readers[value.index()].clone();
        readers.sort_unstable_by_key(|&n| self.ranks.of(n));
        readers.dedup();
        readers.into_iter()
    }

    /// What computes `value`, unless it is a parameter or a weight.
    pub fn def_node(&self, value: ValueId) -> Option<(NodeId, &Node)> {
        self.def(value).map(|n| (n, &self.nodes[n]))
    }

    /// Makes every live reader of `old`, and the function's results, read `new` instead.
    pub fn replace_uses(&mut self, old: ValueId, new: ValueId) {
        if old == new {
            return;
        }
        let readers = std::mem::take(&mut self.readers[old.index()]);
        for &n in &readers {
            self.nodes[n].args.iter_mut().filter(|a| **a == old).for_each(|a| *a = new);
        }
        self.readers[new.index()].extend(readers);
        self.results.iter_mut().filter(|r| **r == old).for_each(|r| *r = new);
        self.returned[new.index()] += std::mem::take(&mut self.returned[old.index()]);
    }

    /// Lists `node`, which [`Func::create`] made, right before `before` (at the end for `None`).
    pub fn insert(&mut self, node: NodeId, before: Option<NodeId>) {
        self.list(node, before);
        self.live[node.index()] = true;
        for &a in &self.nodes[node].args {
            self.readers[a.index()].push(node);
        }
    }

    fn list(&mut self, node: NodeId, before: Option<NodeId>) {
        let at = before.and_then(|b| self.ranks.place(&self.order, b));
        let at = at.unwrap_or(self.order.len());
        self.ranks.insert(&mut self.order, at, node);
    }

    /// Whether the order lists `a` before `b`; both are listed.
    pub fn precedes(&self, a: NodeId, b: NodeId) -> bool {
        self.ranks.of(a) < self.ranks.of(b)
    }

    /// Where the order lists `node`, if it does.
    pub fn place(&self, node: NodeId) -> Option<usize> {
        self.ranks.place(&self.order, node)
    }

    /// Whether the order lists `node`.
    pub fn is_live(&self, node: NodeId) -> bool {
        self.live[node.index()]
    }

    /// Moves `node` right before `before`; both are listed.
    pub fn move_before(&mut self, node: NodeId, before: NodeId) {
        if let Some(at) = self.place(node) {
            self.order.remove(at);
        }
        self.list(node, Some(before));
    }

    /// Takes `node` out of the order.
    pub fn remove(&mut self, node: NodeId) {
        let Some(at) = self.place(node) else {
            return;
        };
        self.order.remove(at);
        self.live[node.index()] = false;
        for a in &self.nodes[node].args {
            self.readers[a.index()].retain(|&n| n != node);
        }
    }

    /// Whether `value` is known at compile time: a weight, or computed from weights alone.
    pub fn is_const(&self, value: ValueId) -> bool {
        match &self.values[value].def {
            ValueDef::Param => false,
            ValueDef::Weight(_) => true,
            ValueDef::Result { node, .. } => {
                let node = &self.nodes[*node];
                node.op.writes().is_empty() && node.args.iter().all(|&a| self.is_const(a))
            }
        }
    }
}
