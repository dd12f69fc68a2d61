//! What of an artifact is tried by itself: every op of its functions at a few sizes, each once.

use anyhow::Context;
use artifact::{Artifact, Phase};
use ir::{Bindings, EntityId, Func, NodeId, Op, Storage, Symbol, ValueId, interp::Tensor};
use std::collections::BTreeMap;

/// An op by itself.
pub(super) struct Case {
    /// Mnemonic, or the kind of a composite.
    pub(super) op: String,
    /// Where it was found first: the function and the rows of the step.
    pub(super) at: String,
    /// The function that is that op.
    pub(super) func: Func,
}

/// Blocks of a paged memory, and its sequences, in a case: those of the artifact would not fit beside
/// it.
const MEMORY: u64 = 8;
/// The most blocks in a block table of a case.
const TABLE: u64 = 4;

/// The cases of an artifact: the smallest and largest batch, the shortest chunk, and one row of the
/// head.
pub(super) fn cases(artifact: &Artifact) -> anyhow::Result<Vec<Case>> {
    let m = artifact.manifest();
    let mut found: BTreeMap<String, Case> = BTreeMap::new();
    for phase in [Phase::Decode, Phase::Prefill, Phase::Head] {
        let path = format!("ir/{phase}.ir");
        let text = artifact.file(&path)?.with_context(|| {
            format!("{}: there is no {path}; compile the model again", artifact.root().display())
        })?;
        let module = ir::text::parse(&path, &String::from_utf8_lossy(&text))?;
        let rows =
            || m.plans.iter().filter(|p| p.phase == phase).map(|p| (p.rows, p.context_tokens));
        let largest = rows().max().filter(|_| phase == Phase::Decode);
        let sizes = rows().min().into_iter().chain(largest);
        for (rows, context) in sizes {
            let bindings = bindings(rows, context / m.target.kv_block_tokens.max(1));
            for func in &module.funcs {
                let func = passes::specialise(func, &bindings)?;
                for node in func.order.clone() {
                    if let Some((key, case)) = case(&func, node, &format!("{phase} {rows}")) {
                        found.entry(key).or_insert(case);
                    }
                }
            }
        }
    }
    Ok(found.into_values().collect())
}

fn bindings(rows: u32, blocks: u32) -> Bindings {
    let rows = u64::from(rows);
    let values = [
        ("T", rows),
        ("W", u64::from(blocks).clamp(1, TABLE)),
        ("R", rows),
        ("NB", MEMORY.max(rows)),
        ("NW", MEMORY.max(rows)),
        ("NS", MEMORY.max(rows)),
    ];
    values.map(|(name, value)| (Symbol::new(name), value)).into()
}

/// The op `node` by itself, with its text; `None` for what is not computed on the device.
fn case(func: &Func, node: NodeId, at: &str) -> Option<(String, Case)> {
    let n = &func.nodes[node];
    let is_view = matches!(n.op, Op::Reshape { .. } | Op::Slice { .. });
    if is_view || n.outs.iter().all(|&v| func.is_const(v)) {
        return None;
    }
    let func = alone(func, node);
    let op = match &n.op {
        Op::Fused { body } => body.kind().to_owned(),
        op => op.mnemonic().to_owned(),
    };
    let at = at.to_owned();
    Some((ir::text::print(&func), Case { op, at, func }))
}

/// A function of `node` alone. What it reads is a parameter, but for rows in the order of their
/// experts, which mean nothing without the op that orders them.
fn alone(from: &Func, node: NodeId) -> Func {
    let mut to = Func::new("case");
    let mut known: BTreeMap<usize, ValueId> = BTreeMap::new();
    for &arg in &from.nodes[node].args {
        let order = from.def_node(arg).filter(|(_, n)| matches!(n.op, Op::ExpertGroups { .. }));
        if let Some((order, _)) = order {
            copy(from, order, &mut to, &mut known);
        }
    }
    let results = copy(from, node, &mut to, &mut known);
    to.set_results(results);
    to
}

/// Adds `node` to `to`, and what it reads as parameters; returns its results.
fn copy(
    from: &Func,
    node: NodeId,
    to: &mut Func,
    known: &mut BTreeMap<usize, ValueId>,
) -> Vec<ValueId> {
    let n = &from.nodes[node];
    let mut args = Vec::with_capacity(n.args.len());
    for &arg in &n.args {
        let value = &from.values[arg];
        // Named by number, so that equal ops of all layers are one case.
        let name = format!("p{}", to.params.len());
        let param = || to.param(&name, value.ty.clone());
        args.push(*known.entry(arg.index()).or_insert_with(param));
    }
    let name = format!("r{}", to.order.len());
    let added = to.append(n.op.clone(), &args, &name).expect("its types were checked");
    let outs = to.nodes[added].outs.clone();
    known.extend(n.outs.iter().map(|o| o.index()).zip(outs.iter().copied()));
    outs.to_vec()
}

impl Case {
    /// Whether an operand is of a 16-bit floating point type.
    pub(super) fn is_narrow(&self) -> bool {
        let dtype = |&p: &ValueId| self.func.values[p].ty.dtype;
        self.func.params.iter().map(dtype).any(|t| t.is_float() && t.bits() == 16)
    }

    /// Whether it reads or writes a cache of keys and values.
    pub(super) fn has_cache(&self) -> bool {
        let is_cache = |&p: &ValueId| {
            let ty = &self.func.values[p].ty;
            ty.storage == Storage::State && ty.rank() > 2
        };
        self.func.params.iter().any(is_cache)
    }

    /// Inputs for it. No two rows write the same place of a memory, and rows of a sequence stand
    /// together, as in a step of the engine.
    pub(super) fn inputs(&self, seed: u64) -> anyhow::Result<Vec<Tensor>> {
        let mut inputs = passes::draw_inputs(&self.func, &Bindings::new(), seed)?;
        for (&param, input) in self.func.params.iter().zip(&mut inputs) {
            if self.func.values[param].ty.storage == Storage::State {
                continue;
            }
            let limit = 1.0 + input.data().iter().fold(0.0f64, |m, &x| m.max(x));
            let rows = input.data().len();
            let values: Option<Vec<f64>> = match role(&self.func, param) {
                // Every slot a step apart; a memory has at least a block for each row.
                Some(Role::Slot) => Some((0..rows).map(|i| (i * 3) as f64).collect()),
                Some(Role::Sequence) => {
                    Some((0..rows).map(|i| (i as f64 * limit / rows as f64).floor()).collect())
                }
                None => None,
            };
            if let Some(values) = values {
                *input = Tensor::new(input.dtype(), input.dims().to_vec(), values);
            }
        }
        Ok(inputs)
    }
}

/// What an index of each row is for.
enum Role {
    Slot,
    Sequence,
}

fn role(func: &Func, value: ValueId) -> Option<Role> {
    func.users(value).find_map(|n| {
        let node = &func.nodes[n];
        let place = node.args.iter().position(|&a| a == value)?;
        match (&node.op, place) {
            (Op::KvWrite {}, 3) | (Op::PagedWrite {}, 2) => Some(Role::Slot),
            (Op::CausalConv {}, 3) | (Op::GatedDelta {}, 6) => Some(Role::Sequence),
            // Places in another type of integers.
            (Op::Cast { to }, _) if to.is_int() => role(func, node.outs[0]),
            (Op::Fused { body }, _) => role(body.func(), body.func().params[place]),
            _ => None,
        }
    })
}

/// Types of the results, with their index among the results and, of a state, the operand it is a
/// version of.
pub(super) fn results(func: &Func) -> Vec<(ValueId, Option<ValueId>)> {
    let state_of = |mut value: ValueId| {
        while let Some((_, node)) = func.def_node(value) {
            let out = node.outs.iter().position(|&o| o == value)?;
            let (operand, _) = *node.op.writes().iter().find(|&&(_, result)| result == out)?;
            value = node.args[operand];
        }
        (value.index() < func.values.len() && func.params.contains(&value)).then_some(value)
    };
    let is_state = |v: ValueId| func.values[v].ty.storage == Storage::State;
    func.results.iter().map(|&r| (r, is_state(r).then(|| state_of(r)).flatten())).collect()
}
