//! A mixture of experts with the routing operators of the library: rows are put in the order of
//! experts once, stay so from the first to the last product, and are summed from there.

use super::{
    choices,
    dequantize::Groups,
    grouped::{self, Sorted},
    library::{Library, Sequence, Tensor, decline, dims, ensure},
};
use crate::{chip::Chip, kernels::Declined};
use compiler::{Arg, Lowered, Operand};
use ir::{DType, EntityId, Func, Layout, NodeId, Op, RouteScore, RouteSpec, TensorType, ValueId};

/// The composite `moe`.
///
/// Values with a row for each pair of a token and an expert are kept in the order of experts, of
/// which ops that go row by row know nothing; everything else is computed as outside.
pub(super) fn moe(
    op: &Op,
    operands: &[Operand],
    results: &[Operand],
    chip: &Chip,
) -> Result<Lowered, Declined> {
    let Op::Fused { body } = op else { return decline("it is no composite") };
    let func = body.func();
    let mut walk =
        Walk { chip, calls: Sequence::default(), routing: Vec::new(), ids: None, said: Vec::new() };
    let mut scope = Scope::new(func);
    for (i, &param) in func.params.iter().enumerate() {
        let held = Held { arg: Arg::Operand(i), operand: operands[i].clone(), pairs: false };
        scope.set(param, held);
    }
    for (i, (&result, operand)) in func.results.iter().zip(results).enumerate() {
        ensure(super::quant::dense(operand), || "a result has gaps".to_owned())?;
        scope.wanted[result.index()] = Some(Arg::Result(i));
    }
    walk.body(&mut scope)?;
    let mut said = walk.said;
    said.dedup();
    Ok(walk.calls.finish(said.join("; ")))
}

/// Where a value lies.
#[derive(Clone)]
struct Held {
    arg: Arg,
    operand: Operand,
    /// Whether its rows are pairs in the order of experts.
    pairs: bool,
}

/// A body and the places of its values.
struct Scope<'a> {
    func: &'a Func,
    held: Vec<Option<Held>>,
    /// Buffers that values must be computed into.
    wanted: Vec<Option<Arg>>,
}

impl<'a> Scope<'a> {
    fn new(func: &'a Func) -> Self {
        let count = func.values.len();
        Self { func, held: vec![None; count], wanted: vec![None; count] }
    }

    fn set(&mut self, value: ValueId, held: Held) {
        self.held[value.index()] = Some(held);
    }

    fn get(&self, value: ValueId) -> Result<&Held, Declined> {
        let missing = || format!("%{} is read before it is computed", self.func.values[value].name);
        self.held[value.index()].as_ref().ok_or_else(|| Declined(missing()))
    }

    fn ty(&self, value: ValueId) -> &TensorType {
        &self.func.values[value].ty
    }
}

/// Rows in the order of experts.
struct Routed {
    /// The rows as they were, and their scales.
    from: (Arg, Option<Arg>),
    rows: Arg,
    scale: Option<Arg>,
    /// `i32[T*k]`: where the row of each pair is.
    places: Arg,
    groups: Groups,
}

struct Walk<'a> {
    chip: &'a Chip,
    calls: Sequence,
    routing: Vec<Routed>,
    /// The choice `i32[T,k]`, and the number of experts.
    ids: Option<(Held, u64)>,
    said: Vec<String>,
}

impl Walk<'_> {
    fn body(&mut self, scope: &mut Scope<'_>) -> Result<(), Declined> {
        for &node in &scope.func.order {
            self.node(scope, node)?;
        }
        Ok(())
    }

    /// A buffer for a value: the one it is wanted in, or a temporary one.
    fn place(&mut self, scope: &Scope<'_>, value: ValueId) -> Arg {
        scope.wanted[value.index()].unwrap_or_else(|| {
            let ty = scope.ty(value);
            let count = (0..ty.rank()).filter_map(|i| ty.dims[i].as_const()).product();
            self.calls.scratch(ty.dtype.bytes_for(count))
        })
    }

    /// Places `value`, which a call is about to compute.
    fn made(&mut self, scope: &mut Scope<'_>, value: ValueId, pairs: bool) -> Arg {
        let arg = self.place(scope, value);
        scope.set(value, Held { arg, operand: Operand::dense(scope.ty(value).clone()), pairs });
        arg
    }

    fn node(&mut self, scope: &mut Scope<'_>, node: NodeId) -> Result<(), Declined> {
        let func = scope.func;
        let n = &func.nodes[node];
        match &n.op {
            Op::Route { spec } => self.route(scope, node, spec),
            Op::ExpertGroups { experts } => {
                self.ids = Some((scope.get(n.args[0])?.clone(), *experts));
                Ok(())
            }
            Op::GroupedMatmul { .. }
            | Op::GroupedQuantMatmul { .. }
            | Op::GroupedMixedMatmul { .. } => self.product(scope, node),
            Op::CombineExperts { .. } => self.combine(scope, node, None),
            Op::Fused { body } if body.kind() == "rows" && opens(body.func()) => {
                self.opened(scope, node, body.func())
            }
            _ => self.plain(scope, node),
        }
    }

    /// An op that is computed as outside of the composite.
    fn plain(&mut self, scope: &mut Scope<'_>, node: NodeId) -> Result<(), Declined> {
        if let Some((value, held)) = alias(scope, node)? {
            scope.set(value, held);
            return Ok(());
        }
        let func = scope.func;
        let n = &func.nodes[node];
        let held = n.args.iter().map(|&a| scope.get(a).cloned());
        let held = held.collect::<Result<Vec<Held>, Declined>>()?;
        let pairs = held.iter().any(|h| h.pairs);
        if pairs {
            by_row(&n.op, &held)?;
        }
        let operands: Vec<Operand> = held.iter().map(|h| h.operand.clone()).collect();
        let results: Vec<Operand> =
            n.outs.iter().map(|&o| Operand::dense(scope.ty(o).clone())).collect();
        let lowered = choices::lower(&n.op, &operands, &results, self.chip);
        let lowered = match (lowered, &n.op) {
            (Ok(lowered), _) => lowered,
            (Err(_), Op::Fused { body }) => return self.opened(scope, node, body.func()),
            (Err(e), _) => return decline(e.to_string()),
        };
        let args: Vec<Arg> = held.iter().map(|h| h.arg).collect();
        let outs: Vec<Arg> = n.outs.iter().map(|&o| self.made(scope, o, pairs)).collect();
        self.calls.include(lowered, &args, &outs);
        Ok(())
    }

    /// The ops of an inner body one by one.
    fn opened(&mut self, scope: &mut Scope<'_>, node: NodeId, body: &Func) -> Result<(), Declined> {
        let func = scope.func;
        let n = &func.nodes[node];
        let mut inner = Scope::new(body);
        for (&param, &arg) in body.params.iter().zip(&n.args) {
            inner.set(param, scope.get(arg)?.clone());
        }
        for (&result, &out) in body.results.iter().zip(&n.outs) {
            inner.wanted[result.index()] = scope.wanted[out.index()];
        }
        match shared_sum(body) {
            Some((combine, sum, shared)) => {
                for &node in body.order.iter().filter(|&&n| n != combine && n != sum) {
                    self.node(&mut inner, node)?;
                }
                self.combine(&mut inner, combine, Some((sum, shared)))?;
            }
            None => self.body(&mut inner)?,
        }
        for (&result, &out) in body.results.iter().zip(&n.outs) {
            scope.set(out, inner.get(result)?.clone());
        }
        Ok(())
    }

    /// The choice of experts.
    fn route(
        &mut self,
        scope: &mut Scope<'_>,
        node: NodeId,
        spec: &RouteSpec,
    ) -> Result<(), Declined> {
        let func = scope.func;
        let n = &func.nodes[node];
        let logits = scope.get(n.args[0])?.clone();
        let bias = n.args.get(1).map(|&b| scope.get(b).cloned()).transpose()?;
        let call = match gating(spec, &logits, bias.as_ref()) {
            Ok(call) => call,
            Err(Declined(why)) => {
                self.said.push(format!("the choice is made by a kernel of ours: {why}"));
                return self.plain(scope, node);
            }
        };
        let &[ids, weights] = &n.outs[..] else { return decline("a choice has two results") };
        let [ids_type, weights_type] = [ids, weights].map(|v| Operand::dense(scope.ty(v).clone()));
        let [ids, weights] = [ids, weights].map(|v| self.made(scope, v, false));
        let call = call
            .tensor(Tensor::of(weights, &weights_type))
            .tensor(Tensor::of(ids, &ids_type))
            .absent(1);
        self.calls.call(call);
        Ok(())
    }

    /// The rows that `x` gives to pairs, in the order of experts.
    fn sorted(&mut self, x: &Held, scale: Option<&Held>) -> Result<Sorted, Declined> {
        let shape = dims(&x.operand);
        let Some((ids, experts)) = self.ids.clone() else {
            return decline("the pairs have no order");
        };
        let (tokens, k) = (ids.operand.dim(0), ids.operand.dim(1));
        let rows = tokens * k;
        let dtype = x.operand.ty.dtype;
        if x.pairs {
            let Some(routed) = self.routing.first() else {
                return decline("rows come from nowhere");
            };
            let (scale, groups) = (scale.map(|s| s.arg), routed.groups);
            return Ok(Sorted { x: x.arg, dtype, scale, rows, groups });
        }
        ensure(shape.len() == 2 && super::quant::dense(&x.operand), || {
            "rows of tokens have gaps".to_owned()
        })?;
        let from = (x.arg, scale.map(|s| s.arg));
        if !self.routing.iter().any(|r| r.from == from) {
            let routed = self.expand(x, scale, (&ids, experts));
            self.routing.push(routed);
        }
        let routed = self.routing.iter().find(|r| r.from == from);
        let Some(routed) = routed else { return decline("rows come from nowhere") };
        let (scale, groups) = (routed.scale, routed.groups);
        Ok(Sorted { x: routed.rows, dtype, scale, rows, groups })
    }

    fn expand(&mut self, x: &Held, scale: Option<&Held>, (ids, experts): (&Held, u64)) -> Routed {
        const COUNTS: i64 = 1;
        const NOT_QUANTISED: i64 = -1;
        const GATHER_PLACES: i64 = 0;
        let (tokens, k) = (ids.operand.dim(0), ids.operand.dim(1));
        let (rows, width, dtype) = (tokens * k, x.operand.dim(1), x.operand.ty.dtype);
        let expanded = self.calls.temporary(dtype, &[rows, width]);
        let places = self.calls.temporary(DType::I32, &[rows]);
        let list = self.calls.temporary(DType::I64, &[experts]);
        // The operator wants a place for scales even where there are none.
        let scales = self.calls.temporary(DType::F32, &[rows]);
        let call = Library::new("MoeInitRoutingV3")
            .tensor(Tensor::of(x.arg, &x.operand))
            .tensor(Tensor::of(ids.arg, &ids.operand))
            .optional(scale.map(|s| Tensor::dense(s.arg, DType::F32, &[tokens])))
            .absent(1)
            .ints([rows as i64, 0, experts as i64, 0, COUNTS])
            .flag(true)
            .ints([NOT_QUANTISED])
            .int_list(&[0, experts as i64])
            .ints([GATHER_PLACES])
            .tensor(Tensor::dense(expanded, dtype, &[rows, width]))
            .tensor(Tensor::dense(places, DType::I32, &[rows]))
            .tensor(Tensor::dense(list, DType::I64, &[experts]))
            .tensor(Tensor::dense(scales, DType::F32, &[rows]));
        self.calls.call(call);
        Routed {
            from: (x.arg, scale.map(|s| s.arg)),
            rows: expanded,
            scale: scale.map(|_| scales),
            places,
            groups: Groups { list, experts, counts: true },
        }
    }

    fn product(&mut self, scope: &mut Scope<'_>, node: NodeId) -> Result<(), Declined> {
        let func = scope.func;
        let n = &func.nodes[node];
        let (dtype, kind) = grouped::kind(&n.op)?;
        let x = scope.get(n.args[0])?.clone();
        let scale = match kind.has_scales() {
            true => Some(scope.get(n.args[1])?.clone()),
            false => None,
        };
        let constants = n.args[kind.constants()..].iter().map(|&v| scope.get(v).cloned());
        let constants = constants.collect::<Result<Vec<Held>, Declined>>()?;
        let sorted = self.sorted(&x, scale.as_ref())?;
        let out = self.made(scope, n.outs[0], true);
        let constants: Vec<_> = constants.iter().map(|c| (c.arg, &c.operand)).collect();
        grouped::product(&mut self.calls, &sorted, &constants, (out, dtype), kind, self.chip)
    }

    /// The weighted sum over the experts of a token, plus `shared`: an `add` and its other operand.
    fn combine(
        &mut self,
        scope: &mut Scope<'_>,
        node: NodeId,
        shared: Option<(NodeId, ValueId)>,
    ) -> Result<(), Declined> {
        const BY_TOKEN: i64 = 2;
        let func = scope.func;
        let n = &func.nodes[node];
        let (x, weights) = (scope.get(n.args[0])?.clone(), scope.get(n.args[1])?.clone());
        let (dtype, out) = (x.operand.ty.dtype, scope.ty(n.outs[0]).dtype);
        ensure(x.pairs, || "the sum is over rows in another order".to_owned())?;
        ensure(dtype == out, || format!("the operator sums {dtype} to {dtype}, not to {out}"))?;
        let Some(routed) = self.routing.first() else { return decline("rows come from nowhere") };
        let places = routed.places;
        let [tokens, k, width] = dims(&x.operand)[..] else { return decline("pairs have no rows") };
        let added = shared.map(|(_, value)| scope.get(value).cloned()).transpose()?;
        let result = shared.map_or(n.outs[0], |(sum, _)| func.nodes[sum].outs[0]);
        let out = self.made(scope, result, false);
        let call = Library::new("MoeFinalizeRoutingV2")
            .tensor(Tensor::dense(x.arg, dtype, &[tokens * k, width]))
            .tensor(Tensor::dense(places, DType::I32, &[tokens * k]))
            .optional(added.map(|a| Tensor::of(a.arg, &a.operand)))
            .absent(2)
            .tensor(Tensor::of(weights.arg, &weights.operand))
            .absent(1)
            .ints([BY_TOKEN])
            .tensor(Tensor::dense(out, dtype, &[tokens, width]));
        self.calls.call(call);
        Ok(())
    }
}

/// Whether a body of rows has an op that is computed otherwise here.
fn opens(body: &Func) -> bool {
    let ops = body.order.iter().map(|&n| &body.nodes[n].op);
    ops.into_iter().any(|op| matches!(op, Op::Route { .. } | Op::CombineExperts { .. }))
}

/// The sum over experts of a body, the `add` that alone reads it, and what that adds.
fn shared_sum(body: &Func) -> Option<(NodeId, NodeId, ValueId)> {
    let is_combine = |&n: &NodeId| matches!(body.nodes[n].op, Op::CombineExperts { .. });
    let combine = body.order.iter().copied().find(is_combine)?;
    let sum = body.nodes[combine].outs[0];
    let add = body.users(sum).next().filter(|_| body.uses(sum) == 1)?;
    let node = &body.nodes[add];
    let &[a, b] = &node.args[..] else { return None };
    let other = if a == sum { b } else { a };
    (node.op == (Op::Add {})).then_some((combine, add, other))
}

/// Whether an op on pairs goes row by row and reads rows of pairs alone.
fn by_row(op: &Op, held: &[Held]) -> Result<(), Declined> {
    let fits = |op: &Op, pairs: &dyn Fn(usize) -> bool, count: usize| {
        let tables = op.row_wise()?;
        (0..count).all(|i| tables.contains(&i) || pairs(i)).then_some(())
    };
    let all = match op {
        Op::Fused { body } => {
            let func = body.func();
            let param = |v: ValueId| func.params.iter().position(|&p| p == v);
            func.order.iter().all(|&n| {
                let node = &func.nodes[n];
                let pairs = |i: usize| param(node.args[i]).is_none_or(|p| held[p].pairs);
                fits(&node.op, &pairs, node.args.len()).is_some()
            })
        }
        op => fits(op, &|i| held[i].pairs, held.len()).is_some(),
    };
    ensure(all, || format!("`{}` reads rows of tokens beside rows of pairs", op.kind()))
}

/// The place of a result that is a part or another shape of its operand.
fn alias(scope: &Scope<'_>, node: NodeId) -> Result<Option<(ValueId, Held)>, Declined> {
    let n = &scope.func.nodes[node];
    let out = n.outs[0];
    if scope.wanted[out.index()].is_some() {
        return Ok(None);
    }
    let ty = scope.ty(out).clone();
    let row: u64 = (1..ty.rank()).filter_map(|i| ty.dims[i].as_const()).product();
    match n.op {
        Op::Reshape { .. } => {
            let x = scope.get(n.args[0])?;
            let dense = super::quant::dense(&x.operand);
            let same_rows = x.operand.ty.dims.first() == ty.dims.first();
            let row_stride = if same_rows { x.operand.row_stride } else { row };
            let held = Held { operand: Operand { ty, row_stride }, ..x.clone() };
            Ok((dense || same_rows).then_some((out, held)))
        }
        Op::Slice { axis: 1, start, .. } => {
            let x = scope.get(n.args[0])?;
            let inner: u64 = (2..x.operand.ty.rank()).map(|i| x.operand.dim(i)).product();
            let skipped = x.operand.ty.dtype.bytes_for(start * inner);
            let arg = x.arg.after(skipped);
            let operand = Operand { ty, row_stride: x.operand.row_stride };
            Ok((!x.pairs).then_some((out, Held { arg, operand, pairs: false })))
        }
        _ => Ok(None),
    }
}

/// The operator that chooses experts, its outputs still to come.
fn gating(spec: &RouteSpec, logits: &Held, bias: Option<&Held>) -> Result<Library, Declined> {
    let &RouteSpec { score, k, renormalize, groups, top_groups, scale } = spec;
    let experts = logits.operand.dim(1);
    ensure(logits.operand.ty.layout == Layout::Nd, || "logits are no rows".to_owned())?;
    let x = Tensor::of(logits.arg, &logits.operand);
    let padded = (experts / groups).next_multiple_of(32) * groups;
    match score {
        RouteScore::Softmax => {
            ensure(groups == 1 && scale == 1.0, || {
                "MoeGatingTopKSoftmaxV2 knows no groups and no factor".to_owned()
            })?;
            ensure(bias.is_none(), || "MoeGatingTopKSoftmaxV2 takes no bias".to_owned())?;
            let call = Library::new("MoeGatingTopKSoftmaxV2").tensor(x).absent(1);
            Ok(call.ints([k as i64, i64::from(renormalize)]).flag(false))
        }
        RouteScore::Sigmoid => {
            const SUM_OF_TWO: i64 = 1;
            const LARGEST: i64 = 0;
            const SIGMOID: i64 = 1;
            ensure(renormalize, || {
                "MoeGatingTopK always divides sigmoids by their sum".to_owned()
            })?;
            ensure(experts <= 2048 && padded <= 2048, || {
                format!("MoeGatingTopK takes 2048 experts at most, groups padded to 32: {padded}")
            })?;
            let select = if groups > 1 { SUM_OF_TWO } else { LARGEST };
            Ok(Library::new("MoeGatingTopK")
                .tensor(x)
                .optional(bias.map(|b| Tensor::of(b.arg, &b.operand)))
                .ints([k as i64, top_groups as i64, groups as i64, select, 1, SIGMOID])
                .flag(false)
                .float(f64::from(scale))
                .float(1e-20))
        }
    }
}
