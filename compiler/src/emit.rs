//! From a specialised function to a plan: kernels chosen by the target, every buffer placed.

use crate::{
    Arg, CompileError, KernelCall, KernelFile, Lowered, Operand, Target,
    chain::{self, PendingChain},
    pack::WeightTable,
    place::{Request, place},
    recipe::{Constants, Recipes},
    states::StateTable,
    streams::{self, Assigned, Uses},
};
use artifact::{BufferRef, Issue, Operator, Phase, Placement, Plan, Port, Space, Step, check_plan};
use ir::{EntityId, Func, NodeId, Op, Storage, TensorType, ValueDef, ValueId};
use passes::TargetInfo;
use std::collections::HashSet;

/// What the plan is called and for.
pub(crate) struct PlanName {
    pub(crate) name: String,
    pub(crate) phase: Phase,
    pub(crate) rows: u32,
    pub(crate) context_tokens: u32,
}

/// A plan, what it would cost without sharing memory, and what its calls need.
pub(crate) struct Emitted {
    pub(crate) plan: Plan,
    pub(crate) unshared_bytes: u64,
    pub(crate) files: Vec<KernelFile>,
    pub(crate) choices: Vec<Choice>,
}

/// Why an op is computed by certain calls.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Choice {
    pub(crate) op: String,
    pub(crate) calls: Vec<String>,
    pub(crate) why: String,
}

/// Where constants are looked up and stored.
pub(crate) struct Stored<'a> {
    pub(crate) constants: &'a Constants,
    pub(crate) recipes: &'a Recipes,
    pub(crate) weights: &'a mut WeightTable,
}

/// Emits the plan of `func`, a specialisation of the function of `stored`, whose dimensions are all
/// numbers. Live nodes run in the order of the function: definitions come before uses there, and
/// states are written in that order.
pub(crate) fn emit(
    func: &Func,
    name: PlanName,
    target: &dyn Target,
    stored: Stored<'_>,
    states: &StateTable,
) -> Result<Emitted, CompileError> {
    let mut scope = Scope { func, views: vec![None; func.values.len()], private: None };
    let mut emitter = Emitter {
        target,
        info: target.info(),
        stored,
        states,
        buffers: Vec::new(),
        calls: Vec::new(),
        chains: Vec::new(),
        files: Vec::new(),
        choices: Vec::new(),
        widened: HashSet::new(),
    };
    for &param in &func.params {
        emitter.param(&mut scope, param)?;
    }
    for &node in &func.order {
        emitter.node(&mut scope, node)?;
    }
    emitter.finish(&mut scope, name)
}

/// A function, or the body of a composite in it, with the places of its values.
struct Scope<'a> {
    func: &'a Func,
    views: Vec<Option<View>>,
    /// In a chain, which values lie in private memory.
    private: Option<Vec<bool>>,
}

impl Scope<'_> {
    fn ty(&self, value: ValueId) -> &TensorType {
        &self.func.values[value].ty
    }

    fn pending(&self, value: ValueId) -> PendingArg {
        let view = self.views[value.index()].expect("operands and results were viewed");
        let ty = self.ty(value);
        let bytes = match view.base {
            Base::Private(..) => ty.dtype.bytes_for(row_len(ty)),
            _ => span_bytes(ty, view.row_stride),
        };
        PendingArg { view, bytes }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Base {
    Arena(usize),
    /// A buffer of a chain. It holds one row, so row strides count for nothing.
    Private(usize, usize),
    State(u64),
    Weight(u64),
}

/// Where a value lies: rows of contiguous elements, `row_stride` elements apart.
#[derive(Clone, Copy, Debug)]
struct View {
    base: Base,
    offset_bytes: u64,
    row_stride: u64,
}

struct PendingArg {
    view: View,
    bytes: u64,
}

impl PendingArg {
    /// The same without its first bytes.
    fn after(mut self, skipped: u64) -> Self {
        self.view.offset_bytes += skipped;
        self.bytes = self.bytes.saturating_sub(skipped);
        self
    }
}

struct PendingCall {
    kernel: String,
    args: Vec<PendingArg>,
    scalars: Vec<artifact::Scalar>,
    operator: Option<Operator>,
    blocks: u32,
    /// Which of the arguments it writes.
    writes: Vec<bool>,
}

impl PendingCall {
    fn uses(&self) -> Uses<Base> {
        let is_memory = |base: &Base| !matches!(base, Base::Weight(_));
        let places = |written: bool| {
            let args = self.args.iter().zip(&self.writes).filter(|&(_, &w)| w == written);
            args.map(|(arg, _)| arg.view.base).filter(is_memory).collect()
        };
        let bytes = self.args.iter().map(|arg| arg.bytes).sum();
        Uses { reads: places(false), writes: places(true), bytes }
    }
}

struct Emitter<'a> {
    target: &'a dyn Target,
    info: TargetInfo,
    stored: Stored<'a>,
    states: &'a StateTable,
    buffers: Vec<Request>,
    calls: Vec<PendingCall>,
    /// The last one may be open.
    chains: Vec<PendingChain>,
    files: Vec<KernelFile>,
    choices: Vec<Choice>,
    /// Where codes of 4 bits lie that are stored in a wider type.
    widened: HashSet<u64>,
}

fn dims(ty: &TensorType) -> Vec<u64> {
    ty.const_dims().expect("the function is specialised")
}

fn row_len(ty: &TensorType) -> u64 {
    dims(ty).iter().skip(1).product()
}

fn span_bytes(ty: &TensorType, row_stride: u64) -> u64 {
    if ty.layout != ir::Layout::Nd || ty.rank() < 2 {
        return ty.bytes().expect("the function is specialised");
    }
    let rows = dims(ty)[0];
    ty.dtype.bytes_for(rows.saturating_sub(1) * row_stride + row_len(ty))
}

fn dense(base: Base, ty: &TensorType) -> View {
    View { base, offset_bytes: 0, row_stride: row_len(ty) }
}

impl Emitter<'_> {
    fn buffer(&mut self, bytes: u64, first: usize, last: usize) -> usize {
        let bytes = self.target.slot_bytes(bytes);
        self.buffers.push(Request { first: first as u32, last: last as u32, bytes });
        self.buffers.len() - 1
    }

    /// A buffer of the open chain.
    fn private_buffer(&mut self, bytes: u64, first: usize, last: usize) -> Base {
        let at = self.chains.len() - 1;
        let private = &mut self.chains[at].private;
        private.push(Request { first: first as u32, last: last as u32, bytes });
        Base::Private(at, private.len() - 1)
    }

    fn param(&mut self, scope: &mut Scope<'_>, value: ValueId) -> Result<(), CompileError> {
        let ty = scope.ty(value).clone();
        let base = if ty.storage == Storage::State {
            let name = &scope.func.values[value].name;
            Base::State(self.states.offset(name).ok_or_else(|| CompileError::UnknownState {
                func: scope.func.name.clone(),
                state: name.clone(),
            })?)
        } else {
            let bytes = ty.bytes().expect("the function is specialised");
            Base::Arena(self.buffer(bytes, 0, 0))
        };
        scope.views[value.index()] = Some(dense(base, &ty));
        Ok(())
    }

    /// Where `value` lies; a constant gets its place in the weight file here.
    fn view(&mut self, scope: &mut Scope<'_>, value: ValueId) -> Result<View, CompileError> {
        if let Some(view) = scope.views[value.index()] {
            return Ok(view);
        }
        let Stored { constants, recipes, weights } = &mut self.stored;
        let packed = constants.packed(value).expect("every constant is a weight or its relayout");
        let offset = weights.entry(packed, recipes, self.target.weight_align()).offset;
        if recipes.widens(packed.recipe) {
            self.widened.insert(offset);
        }
        let view = dense(Base::Weight(offset), scope.ty(value));
        scope.views[value.index()] = Some(view);
        Ok(view)
    }

    fn node(&mut self, scope: &mut Scope<'_>, node: NodeId) -> Result<(), CompileError> {
        let n = &scope.func.nodes[node];
        if n.outs.iter().all(|&v| scope.func.is_const(v)) {
            return Ok(());
        }
        if let Some(view) = self.alias(scope, node)? {
            scope.views[n.outs[0].index()] = Some(view);
            return Ok(());
        }
        let operands = n
            .args
            .iter()
            .map(|&a| {
                let view = self.view(scope, a)?;
                Ok(Operand { ty: scope.ty(a).clone(), row_stride: view.row_stride })
            })
            .collect::<Result<Vec<_>, CompileError>>()?;
        let results: Vec<Operand> =
            n.outs.iter().map(|&o| Operand::dense(scope.ty(o).clone())).collect();
        match (&n.op, self.target.lower(&n.op, &operands, &results)) {
            (_, Ok(lowered)) => self.calls(scope, node, lowered),
            (Op::Fused { body }, Err(e)) => {
                let rows = chain::rows(body.func(), &self.info);
                match rows.filter(|_| self.target.runs_chains()) {
                    Some(rows) => self.chain(scope, node, body.func(), rows),
                    None => {
                        if !self.target.runs_chains() {
                            let (op, calls) = (body.kind().to_owned(), Vec::new());
                            self.choices.push(Choice { op, calls, why: e.remedy });
                        }
                        self.in_place(scope, node, body.func(), None)
                    }
                }
            }
            (_, Err(e)) => Err(e.into()),
        }
    }

    /// The ops of a composite as a chain of `rows` rows: what only they use is in private memory.
    fn chain(
        &mut self,
        scope: &mut Scope<'_>,
        node: NodeId,
        body: &Func,
        rows: u64,
    ) -> Result<(), CompileError> {
        let first = self.calls.len();
        self.chains.push(PendingChain { steps: first..first, rows, private: Vec::new() });
        self.in_place(scope, node, body, Some(chain::private(body)))?;
        let steps = first..self.calls.len();
        // Any thread may be at any step: what the chain touches is needed from its start to its end.
        for arg in self.calls[steps.clone()].iter().flat_map(|call| &call.args) {
            if let Base::Arena(buffer) = arg.view.base {
                let Request { first, last, .. } = &mut self.buffers[buffer];
                *first = (*first).min(steps.start as u32);
                *last = (*last).max(steps.end as u32 - 1);
            }
        }
        let chain = self.chains.last_mut().expect("pushed above");
        chain.steps = steps;
        if chain.steps.len() < 2 && chain.private.is_empty() {
            self.chains.pop();
        }
        Ok(())
    }

    /// The ops of a composite one by one, where the target has no kernel for all of it.
    fn in_place(
        &mut self,
        scope: &mut Scope<'_>,
        node: NodeId,
        body: &Func,
        private: Option<Vec<bool>>,
    ) -> Result<(), CompileError> {
        let mut inner = Scope { func: body, views: vec![None; body.values.len()], private };
        let n = &scope.func.nodes[node];
        for (&param, &arg) in body.params.iter().zip(&n.args) {
            inner.views[param.index()] = scope.views[arg.index()];
        }
        for &node in &body.order {
            self.node(&mut inner, node)?;
        }
        for (&result, &out) in body.results.iter().zip(&n.outs) {
            scope.views[out.index()] = inner.views[result.index()];
        }
        Ok(())
    }

    /// The calls that compute `node`, and places for its results.
    fn calls(
        &mut self,
        scope: &mut Scope<'_>,
        node: NodeId,
        lowered: Lowered,
    ) -> Result<(), CompileError> {
        let n = &scope.func.nodes[node];
        let first = self.calls.len();
        let last = first + lowered.calls.len().max(1) - 1;
        for (i, &out) in n.outs.iter().enumerate() {
            let view = match n.op.writes().iter().find(|(_, result)| *result == i) {
                Some(&(state, _)) => self.view(scope, n.args[state])?,
                None => {
                    let ty = scope.ty(out).clone();
                    let base = match &scope.private {
                        Some(private) if private[out.index()] => {
                            self.private_buffer(ty.dtype.bytes_for(row_len(&ty)), first, last)
                        }
                        _ => {
                            let bytes = ty.bytes().expect("the function is specialised");
                            Base::Arena(self.buffer(bytes, first, last))
                        }
                    };
                    dense(base, &ty)
                }
            };
            scope.views[out.index()] = Some(view);
        }
        let mut why = lowered.why;
        let widened = |&a: &ValueId| matches!(scope.views[a.index()], Some(View { base: Base::Weight(at), .. }) if self.widened.contains(&at));
        if n.args.iter().any(widened) {
            let apart = if why.is_empty() { "" } else { "; " };
            why = format!(
                "{why}{apart}codes of 4 bits are stored in 8, which takes twice the memory"
            );
        }
        if !why.is_empty() {
            let op = match &n.op {
                Op::Fused { body } => body.kind().to_owned(),
                op => op.mnemonic().to_owned(),
            };
            let calls = lowered.calls.iter().map(|c| c.kernel.clone()).collect();
            self.choices.push(Choice { op, calls, why });
        }
        self.files.extend(lowered.files);
        let scratch: Vec<usize> = lowered
            .scratch_bytes
            .iter()
            .enumerate()
            .map(|(i, &bytes)| {
                // Needed from the first to the last call that names it.
                let names = |call: &KernelCall| call.args.iter().any(|a| a.scratch() == Some(i));
                let begin = lowered.calls.iter().position(names).unwrap_or_default();
                let end = lowered.calls.iter().rposition(names).unwrap_or_default();
                self.buffer(bytes, first + begin, first + end)
            })
            .collect();
        for &a in &n.args {
            self.touch(scope.views[a.index()].expect("operands have places"), last);
        }
        let temporary = |i: usize, skipped: u64| {
            let view = View { base: Base::Arena(scratch[i]), offset_bytes: 0, row_stride: 0 };
            PendingArg { view, bytes: lowered.scratch_bytes[i] }.after(skipped)
        };
        for call in lowered.calls {
            let args = call
                .args
                .iter()
                .map(|arg| match *arg {
                    Arg::Operand(i) => scope.pending(n.args[i]),
                    Arg::Result(i) => scope.pending(n.outs[i]),
                    Arg::Scratch(i) => temporary(i, 0),
                    Arg::OperandFrom(i, skipped) => scope.pending(n.args[i]).after(skipped),
                    Arg::ResultFrom(i, skipped) => scope.pending(n.outs[i]).after(skipped),
                    Arg::ScratchFrom(i, skipped) => temporary(i, skipped),
                })
                .collect();
            let is_written = |arg: &Arg| match *arg {
                Arg::Operand(i) | Arg::OperandFrom(i, _) => {
                    n.op.writes().iter().any(|&(state, _)| state == i)
                }
                _ => true,
            };
            let writes = call.args.iter().map(is_written).collect();
            let KernelCall { kernel, scalars, operator, blocks, .. } = call;
            self.calls.push(PendingCall { kernel, args, scalars, operator, blocks, writes });
        }
        Ok(())
    }

    fn touch(&mut self, view: View, step: usize) {
        let request = match view.base {
            Base::Arena(buffer) => &mut self.buffers[buffer],
            Base::Private(chain, buffer) => &mut self.chains[chain].private[buffer],
            Base::State(_) | Base::Weight(_) => return,
        };
        request.last = request.last.max(step as u32);
    }

    /// The place of a result that is a part or another shape of its operand, if no element needs
    /// to move.
    fn alias(&mut self, scope: &mut Scope<'_>, node: NodeId) -> Result<Option<View>, CompileError> {
        let n = &scope.func.nodes[node];
        let Some(&x) = n.args.first() else { return Ok(None) };
        let (from, to) = (scope.ty(x).clone(), scope.ty(n.outs[0]).clone());
        match n.op {
            Op::Reshape { .. } => {
                let view = self.view(scope, x)?;
                let same_rows = from.rank() > 0 && to.rank() > 0 && from.dims[0] == to.dims[0];
                let is_dense = view.row_stride == row_len(&from);
                Ok(match (same_rows, is_dense) {
                    (true, _) => Some(view),
                    (false, true) => Some(View { row_stride: row_len(&to), ..view }),
                    (false, false) => None,
                })
            }
            // Rows stay contiguous where every axis between the first and the sliced one is 1.
            Op::Slice { axis, start, .. }
                if axis <= 1 || dims(&from)[1..axis as usize].iter().all(|&n| n == 1) =>
            {
                let view = self.view(scope, x)?;
                let inner: u64 = dims(&from).iter().skip(axis as usize + 1).product();
                let step = if axis == 0 { view.row_stride } else { inner };
                let offset_bytes = view.offset_bytes + from.dtype.bytes_for(start * step);
                Ok(Some(View { offset_bytes, ..view }))
            }
            _ => Ok(None),
        }
    }

    /// The streams of all calls. What calls touch that run side by side is then needed during all of
    /// them.
    fn streams(&mut self) -> Assigned {
        let uses: Vec<Uses<Base>> = self.calls.iter().map(PendingCall::uses).collect();
        let assigned = streams::assign(&uses, self.target.streams());
        for region in &assigned.regions {
            for arg in self.calls[region.clone()].iter().flat_map(|call| &call.args) {
                if let Base::Arena(buffer) = arg.view.base {
                    let Request { first, last, .. } = &mut self.buffers[buffer];
                    *first = (*first).min(region.start as u32);
                    *last = (*last).max(region.end as u32 - 1);
                }
            }
        }
        assigned
    }

    fn port(&self, scope: &Scope<'_>, value: ValueId) -> (Port, View) {
        let pending = scope.pending(value);
        let (ty, name) = (scope.ty(value), &scope.func.values[value].name);
        let at = BufferRef { space: Space::Arena, offset: 0, bytes: pending.bytes };
        (Port { name: name.clone(), dtype: ty.dtype, dims: dims(ty), at }, pending.view)
    }

    fn finish(mut self, scope: &mut Scope<'_>, name: PlanName) -> Result<Emitted, CompileError> {
        let end = self.calls.len();
        let func = scope.func;
        let (mut inputs, mut outputs) = (Vec::new(), Vec::new());
        for &p in &func.params {
            if scope.ty(p).storage == Storage::Tensor {
                inputs.push(self.port(scope, p));
            }
        }
        for &r in &func.results {
            if scope.ty(r).storage == Storage::State {
                continue;
            }
            let is_result = matches!(func.values[r].def, ValueDef::Result { .. });
            let view = self.view(scope, r)?;
            if !is_result || view.row_stride != row_len(scope.ty(r)) {
                return Err(CompileError::Output {
                    func: func.name.clone(),
                    value: func.values[r].name.clone(),
                });
            }
            self.touch(view, end);
            outputs.push(self.port(scope, r));
        }

        let assigned = self.streams();
        let placed = place(&mut self.buffers, inputs.len(), self.target.arena_align());
        let rows: Vec<_> =
            self.chains.iter_mut().map(|c| c.place(self.target.arena_align())).collect();
        let locate = |view: &View, bytes: u64| {
            let (space, base) = match view.base {
                Base::Arena(buffer) => (Space::Arena, placed.offsets[buffer]),
                Base::Private(chain, buffer) => (Space::Private, rows[chain].offsets[buffer]),
                Base::State(offset) => (Space::State, offset),
                Base::Weight(offset) => (Space::Weights, offset),
            };
            BufferRef { space, offset: base + view.offset_bytes, bytes }
        };
        let place_port = |(mut port, view): (Port, View)| {
            port.at = locate(&view, port.at.bytes);
            port
        };
        let mut kernels: Vec<String> = Vec::new();
        let mut operators: Vec<Operator> = Vec::new();
        let mut steps = Vec::with_capacity(self.calls.len());
        for (call, queue) in self.calls.iter().zip(assigned.queues) {
            let kernel = kernels.iter().position(|k| *k == call.kernel).unwrap_or_else(|| {
                kernels.push(call.kernel.clone());
                kernels.len() - 1
            });
            let operator = call.operator.as_ref().map(|operator| {
                let known = operators.iter().position(|o| o == operator);
                known.unwrap_or_else(|| {
                    operators.push(operator.clone());
                    operators.len() - 1
                }) as u32
            });
            steps.push(Step {
                kernel: kernel as u32,
                args: call.args.iter().map(|a| locate(&a.view, a.bytes)).collect(),
                scalars: call.scalars.clone(),
                issue: Issue {
                    stream: queue.stream,
                    waits: queue.waits,
                    blocks: call.blocks,
                    operator,
                },
            });
        }
        let placements = self.buffers.iter().zip(&placed.offsets).map(|(r, &offset)| Placement {
            offset,
            bytes: r.bytes,
            first: r.first,
            last: r.last,
        });
        let plan = Plan {
            name: name.name,
            phase: name.phase,
            rows: name.rows,
            context_tokens: name.context_tokens,
            arena_bytes: placed.arena_bytes,
            inputs: inputs.into_iter().map(place_port).collect(),
            outputs: outputs.into_iter().map(place_port).collect(),
            placements: placements.collect(),
            kernels,
            operators,
            steps,
            chains: self.chains.iter().zip(&rows).map(|(c, placed)| c.finish(placed)).collect(),
        };
        check_plan(&plan)
            .map_err(|source| CompileError::Placement { plan: plan.name.clone(), source })?;
        let unshared_bytes = self.buffers.iter().map(|b| b.bytes).sum();
        let Emitter { mut files, mut choices, .. } = self;
        files.sort_by(|a, b| a.path.cmp(&b.path));
        files.dedup();
        choices.sort();
        Ok(Emitted { plan, unshared_bytes, files, choices })
    }
}
