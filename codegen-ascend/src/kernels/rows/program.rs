//! The ops of a row-wise computation in one list, and which parts of its operands are read.

use crate::kernels::Declined;
use compiler::Operand;
use ir::{DType, Func, Node, Op, ValueDef, ValueId};
use std::collections::HashMap;

/// `op` as a function of primitive ops over the rows of `operands`.
pub(super) fn inline(op: &Op, operands: &[Operand]) -> Result<Func, Declined> {
    let mut func = Func::new(op.kind());
    let names = parameter_names(op, operands.len());
    let args: Vec<ValueId> =
        operands.iter().zip(&names).map(|(o, name)| func.param(name, o.ty.clone())).collect();
    let results = append(&mut func, op, &args, &[])?;
    func.set_results(results);
    Ok(func)
}

fn parameter_names(op: &Op, count: usize) -> Vec<String> {
    let given = match op {
        Op::Fused { body } => {
            let inner = body.func();
            inner.params.iter().map(|&p| inner.values[p].name.clone()).collect()
        }
        Op::Embed { .. } => ["ids", "table"].map(str::to_owned).to_vec(),
        Op::RmsNorm { .. } | Op::LayerNorm { .. } => {
            ["x", "weight", "bias"].map(str::to_owned).to_vec()
        }
        Op::SiluMul { .. } | Op::SwigluClamped { .. } => ["gate", "up"].map(str::to_owned).to_vec(),
        Op::KvWrite {} => ["cache", "k", "v", "slots"].map(str::to_owned).to_vec(),
        Op::PagedWrite {} => ["pages", "x", "slots"].map(str::to_owned).to_vec(),
        _ => Vec::new(),
    };
    (0..count).map(|i| given.get(i).cloned().unwrap_or_else(|| format!("x{i}"))).collect()
}

fn append(
    func: &mut Func,
    op: &Op,
    args: &[ValueId],
    names: &[&str],
) -> Result<Vec<ValueId>, Declined> {
    let broken = |e: ir::TypeError| Declined(e.to_string());
    if !op.is_fused() {
        let name = names.first().copied().unwrap_or(op.mnemonic());
        let node = func.append(op.clone(), args, name).map_err(broken)?;
        return Ok(func.nodes[node].outs.clone());
    }
    let types: Vec<_> = args.iter().map(|&a| func.values[a].ty.clone()).collect();
    let types: Vec<_> = types.iter().collect();
    let Some(body) = op.expand(&types).map_err(broken)? else {
        return Err(Declined(format!("`{}` has no body", op.mnemonic())));
    };
    let mut known: HashMap<ValueId, ValueId> =
        body.params.iter().copied().zip(args.iter().copied()).collect();
    for &n in &body.order {
        let node: &Node = &body.nodes[n];
        let args: Vec<ValueId> = node.args.iter().map(|a| known[a]).collect();
        let names: Vec<&str> = node.outs.iter().map(|&o| body.values[o].name.as_str()).collect();
        let names: &[&str] = if matches!(op, Op::Fused { .. }) { &names } else { &[] };
        let outs = append(func, &node.op, &args, names)?;
        known.extend(node.outs.iter().copied().zip(outs));
    }
    Ok(body.results.iter().map(|r| known[r]).collect())
}

/// Elements of a row: all axes but the first.
pub(super) fn row_len(func: &Func, value: ValueId) -> u64 {
    func.values[value].ty.dims.iter().skip(1).map(|d| d.as_const().unwrap_or(1)).product()
}

/// Length of the last axis of a row, 1 where there is none.
pub(super) fn last_axis(func: &Func, value: ValueId) -> u64 {
    let ty = &func.values[value].ty;
    if ty.rank() < 2 { 1 } else { ty.dims[ty.rank() - 1].as_const().unwrap_or(1) }
}

/// Runs of elements at even distances.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Runs {
    /// Of the first.
    pub(super) start: u64,
    pub(super) count: u64,
    pub(super) len: u64,
    /// From the start of one to the start of the next.
    pub(super) stride: u64,
}

impl Runs {
    /// What `slice` along `axis` takes of each row of `dims` (the first axis is the rows).
    pub(super) fn of_slice(dims: &[u64], axis: usize, start: u64, len: u64) -> Self {
        let inner: u64 = dims[axis + 1..].iter().product();
        let count = dims[1..axis].iter().product();
        let (start, stride) = (start * inner, dims[axis] * inner);
        Self { start, count, len: len * inner, stride }
    }

    /// These of a row that consists of `outer`.
    fn inside(self, outer: Runs) -> Option<Self> {
        if outer.count == 1 {
            return Some(Self { start: outer.start + self.start, ..self });
        }
        if self.count == outer.count && self.stride == outer.len {
            return Some(Self { start: outer.start + self.start, stride: outer.stride, ..self });
        }
        None
    }
}

/// A value that is a part of each row of a parameter.
#[derive(Clone, Copy, Debug)]
pub(super) struct View {
    pub(super) param: ValueId,
    pub(super) runs: Runs,
}

/// Values that are parts of rows of parameters, which are copied from there when something computes
/// with them.
pub(super) fn views(func: &Func) -> HashMap<ValueId, View> {
    let mut views = HashMap::new();
    for &param in &func.params {
        let len = row_len(func, param);
        views.insert(param, View { param, runs: Runs { start: 0, count: 1, len, stride: len } });
    }
    for &n in &func.order {
        let node = &func.nodes[n];
        let from = node.args.first().and_then(|a| views.get(a)).copied();
        let Some(View { param, runs: outer }) = from else { continue };
        let runs = match &node.op {
            Op::Reshape { .. } => Some(outer),
            Op::Slice { axis, start, len } if *axis > 0 => {
                let dims = func.values[node.args[0]].ty.const_dims().unwrap_or_default();
                Runs::of_slice(&dims, *axis as usize, *start, *len).inside(outer)
            }
            _ => None,
        };
        let bytes = |runs: &Runs| runs.len * func.values[param].ty.dtype.bits() / 8;
        // Each run begins at a whole block in local memory, and rows have no gaps there.
        let packed = |runs: &Runs| runs.count == 1 || (runs.count < 4096 && bytes(runs) % 32 == 0);
        if let Some(runs) = runs.filter(packed) {
            views.insert(node.outs[0], View { param, runs });
        }
    }
    views
}

/// Whether `value` is a parameter.
pub(super) fn is_param(func: &Func, value: ValueId) -> bool {
    matches!(func.values[value].def, ValueDef::Param)
}

/// What the kernel language calls an element type.
pub(super) fn cpp_type(dtype: DType) -> Result<&'static str, Declined> {
    Ok(match dtype {
        DType::F32 => "float",
        DType::BF16 => "bfloat16_t",
        DType::F16 => "half",
        DType::I32 => "int32_t",
        DType::I8 => "int8_t",
        DType::I64 => "int64_t",
        other => return Err(Declined(format!("the vector unit has no {other}"))),
    })
}
