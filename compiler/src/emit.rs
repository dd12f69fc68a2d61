//! From a specialised function to a plan: kernels chosen by the target, every buffer placed.

use crate::{
    Arg, CompileError, Operand, Target,
    pack::WeightTable,
    place::{Request, place},
    recipe::{Constants, Recipes},
    states::StateTable,
};
use artifact::{BufferRef, Phase, Placement, Plan, Port, Space, Step, check_plan};
use ir::{EntityId, Func, NodeId, Op, Storage, TensorType, ValueDef, ValueId};

/// What the plan is called and for.
pub(crate) struct PlanName {
    pub(crate) name: String,
    pub(crate) phase: Phase,
    pub(crate) rows: u32,
    pub(crate) context_tokens: u32,
}

/// A plan and what it would cost without sharing memory.
pub(crate) struct Emitted {
    pub(crate) plan: Plan,
    pub(crate) unshared_bytes: u64,
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
    let mut emitter = Emitter {
        func,
        target,
        stored,
        states,
        views: vec![None; func.values.len()],
        buffers: Vec::new(),
        calls: Vec::new(),
    };
    for &param in &func.params {
        emitter.param(param)?;
    }
    for &node in &func.order {
        emitter.node(node)?;
    }
    emitter.finish(name)
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Base {
    Arena(usize),
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

struct PendingCall {
    kernel: String,
    args: Vec<PendingArg>,
    scalars: Vec<artifact::Scalar>,
}

struct Emitter<'a> {
    func: &'a Func,
    target: &'a dyn Target,
    stored: Stored<'a>,
    states: &'a StateTable,
    views: Vec<Option<View>>,
    buffers: Vec<Request>,
    calls: Vec<PendingCall>,
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

impl Emitter<'_> {
    fn ty(&self, value: ValueId) -> &TensorType {
        &self.func.values[value].ty
    }

    fn buffer(&mut self, bytes: u64, first: usize, last: usize) -> usize {
        self.buffers.push(Request { first: first as u32, last: last as u32, bytes });
        self.buffers.len() - 1
    }

    fn dense(&self, base: Base, ty: &TensorType) -> View {
        View { base, offset_bytes: 0, row_stride: row_len(ty) }
    }

    fn param(&mut self, value: ValueId) -> Result<(), CompileError> {
        let ty = self.ty(value).clone();
        let base = if ty.storage == Storage::State {
            let name = &self.func.values[value].name;
            Base::State(self.states.offset(name).ok_or_else(|| CompileError::UnknownState {
                func: self.func.name.clone(),
                state: name.clone(),
            })?)
        } else {
            let bytes = ty.bytes().expect("the function is specialised");
            Base::Arena(self.buffer(bytes, 0, 0))
        };
        self.views[value.index()] = Some(self.dense(base, &ty));
        Ok(())
    }

    /// Where `value` lies; a constant gets its place in the weight file here.
    fn view(&mut self, value: ValueId) -> Result<View, CompileError> {
        if let Some(view) = self.views[value.index()] {
            return Ok(view);
        }
        let Stored { constants, recipes, weights } = &mut self.stored;
        let packed = constants.packed(value).expect("every constant is a weight or its relayout");
        let offset = weights.entry(packed, recipes, self.target.weight_align()).offset;
        let view = self.dense(Base::Weight(offset), self.ty(value));
        self.views[value.index()] = Some(view);
        Ok(view)
    }

    fn node(&mut self, node: NodeId) -> Result<(), CompileError> {
        let n = &self.func.nodes[node];
        if n.outs.iter().all(|&v| self.func.is_const(v)) {
            return Ok(());
        }
        if let Some(view) = self.alias(node)? {
            self.views[n.outs[0].index()] = Some(view);
            return Ok(());
        }
        let operands = n
            .args
            .iter()
            .map(|&a| {
                let view = self.view(a)?;
                Ok(Operand { ty: self.ty(a).clone(), row_stride: view.row_stride })
            })
            .collect::<Result<Vec<_>, CompileError>>()?;
        let results: Vec<Operand> =
            n.outs.iter().map(|&o| Operand::dense(self.ty(o).clone())).collect();
        let lowered = self.target.lower(&n.op, &operands, &results)?;

        let first = self.calls.len();
        let last = first + lowered.calls.len().max(1) - 1;
        for (i, &out) in n.outs.iter().enumerate() {
            let view = match n.op.writes().filter(|_| i == 0) {
                Some(state) => self.view(n.args[state])?,
                None => {
                    let ty = self.ty(out).clone();
                    let bytes = ty.bytes().expect("the function is specialised");
                    let buffer = self.buffer(bytes, first, last);
                    self.dense(Base::Arena(buffer), &ty)
                }
            };
            self.views[out.index()] = Some(view);
        }
        let scratch: Vec<usize> =
            lowered.scratch_bytes.iter().map(|&b| self.buffer(b, first, last)).collect();
        for &a in &n.args {
            self.touch(self.views[a.index()].expect("operands were viewed above"), last);
        }
        for call in lowered.calls {
            let args = call
                .args
                .iter()
                .map(|arg| match *arg {
                    Arg::Operand(i) => self.pending(n.args[i]),
                    Arg::Result(i) => self.pending(n.outs[i]),
                    Arg::Scratch(i) => PendingArg {
                        view: View {
                            base: Base::Arena(scratch[i]),
                            offset_bytes: 0,
                            row_stride: 0,
                        },
                        bytes: lowered.scratch_bytes[i],
                    },
                })
                .collect();
            self.calls.push(PendingCall { kernel: call.kernel, args, scalars: call.scalars });
        }
        Ok(())
    }

    fn pending(&self, value: ValueId) -> PendingArg {
        let view = self.views[value.index()].expect("operands and results were viewed");
        PendingArg { view, bytes: span_bytes(self.ty(value), view.row_stride) }
    }

    fn touch(&mut self, view: View, step: usize) {
        if let Base::Arena(buffer) = view.base {
            let last = &mut self.buffers[buffer].last;
            *last = (*last).max(step as u32);
        }
    }

    /// The place of a result that is a part or another shape of its operand, if no element needs
    /// to move.
    fn alias(&mut self, node: NodeId) -> Result<Option<View>, CompileError> {
        let n = &self.func.nodes[node];
        let Some(&x) = n.args.first() else { return Ok(None) };
        let (from, to) = (self.ty(x).clone(), self.ty(n.outs[0]).clone());
        match n.op {
            Op::Reshape { .. } => {
                let view = self.view(x)?;
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
                let view = self.view(x)?;
                let inner: u64 = dims(&from).iter().skip(axis as usize + 1).product();
                let step = if axis == 0 { view.row_stride } else { inner };
                let offset_bytes = view.offset_bytes + from.dtype.bytes_for(start * step);
                Ok(Some(View { offset_bytes, ..view }))
            }
            _ => Ok(None),
        }
    }

    fn port(&self, value: ValueId, name: &str) -> (Port, View) {
        let pending = self.pending(value);
        let ty = self.ty(value);
        let at = BufferRef { space: Space::Arena, offset: 0, bytes: pending.bytes };
        (Port { name: name.to_owned(), dtype: ty.dtype, dims: dims(ty), at }, pending.view)
    }

    fn finish(mut self, name: PlanName) -> Result<Emitted, CompileError> {
        let end = self.calls.len();
        let (mut inputs, mut outputs) = (Vec::new(), Vec::new());
        for &p in &self.func.params {
            if self.ty(p).storage == Storage::Tensor {
                inputs.push(self.port(p, &self.func.values[p].name));
            }
        }
        for &r in &self.func.results {
            if self.ty(r).storage == Storage::State {
                continue;
            }
            let is_result = matches!(self.func.values[r].def, ValueDef::Result { .. });
            let view = self.view(r)?;
            if !is_result || view.row_stride != row_len(self.ty(r)) {
                return Err(CompileError::Output {
                    func: self.func.name.clone(),
                    value: self.func.values[r].name.clone(),
                });
            }
            self.touch(view, end);
            outputs.push(self.port(r, &self.func.values[r].name));
        }

        let placed = place(&self.buffers, self.target.arena_align());
        let locate = |view: &View, bytes: u64| {
            let (space, base) = match view.base {
                Base::Arena(buffer) => (Space::Arena, placed.offsets[buffer]),
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
        let mut steps = Vec::with_capacity(self.calls.len());
        for call in &self.calls {
            let kernel = kernels.iter().position(|k| *k == call.kernel).unwrap_or_else(|| {
                kernels.push(call.kernel.clone());
                kernels.len() - 1
            });
            steps.push(Step {
                kernel: kernel as u32,
                args: call.args.iter().map(|a| locate(&a.view, a.bytes)).collect(),
                scalars: call.scalars.clone(),
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
            steps,
        };
        check_plan(&plan)
            .map_err(|source| CompileError::Placement { plan: plan.name.clone(), source })?;
        let unshared_bytes = self.buffers.iter().map(|b| b.bytes).sum();
        Ok(Emitted { plan, unshared_bytes })
    }
}
