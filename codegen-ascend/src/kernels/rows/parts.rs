//! Rows that local memory does not hold: part by part, once for each level of numbers that are made
//! of whole rows, and once for the results.

use super::{
    Draft, buffers,
    emit::{Gen, Tiles},
    head, ops,
    program::cpp_type,
    reduce::{self, Cells, is_reduction},
    results,
};
use crate::kernels::Declined;
use ir::{EntityId, Func, NodeId, Op, Storage, ValueId};
use std::{
    collections::{HashMap, HashSet},
    fmt::Write,
};

/// A kernel for parts of `part` elements.
pub(super) fn kernel(func: &Func, part: u64) -> Result<Draft, Declined> {
    let row = widest(func);
    if row <= part {
        return Err(Declined(format!("parts of {part} elements are no smaller than a row")));
    }
    let mut g = Gen::new(func, Some(Tiles { row, part }));
    let levels = Levels::of(func);
    for &n in &func.order {
        let last = func.nodes[n].args.iter().chain(&func.nodes[n].outs);
        for &v in last {
            let len = g.row_len(v);
            let heads = g.func.values[v].ty.rank() > 2 && g.last_axis(v) != len;
            if heads && is_reduction(&func.nodes[n].op) {
                return Err(Declined("heads of rows that do not fit local memory".to_owned()));
            }
        }
    }

    let mut passes = String::new();
    let mut cells: HashMap<NodeId, Cells> = HashMap::new();
    let (mut in_bytes, mut out_bytes) = (0, 0);
    for pass in 0..=levels.last {
        let makes_results = pass == levels.last;
        let starts: Vec<NodeId> =
            func.order.iter().copied().filter(|&n| levels.begins(func, n) == Some(pass)).collect();
        let wanted: Vec<ValueId> = match makes_results {
            true => results(&g)
                .into_iter()
                .map(|(_, v)| v)
                .filter(|&v| g.in_parts(g.row_len(v)))
                .collect(),
            false => starts.iter().map(|&n| func.nodes[n].args[0]).collect(),
        };
        if makes_results && wanted.is_empty() {
            continue;
        }
        g.begin_pass(makes_results);
        g.keep(&wanted);
        g.code.clear();
        g.indent = 3;
        let mut before = String::new();
        for &n in &starts {
            let of = reduce::begin(&mut g, n, &mut before)?;
            cells.insert(n, of);
        }
        let needed = needed(func, &wanted, &g);
        for (place, &n) in func.order.iter().enumerate() {
            if !needed.contains(&n) {
                continue;
            }
            match cells.get(&n).cloned() {
                Some(of) if is_reduction(&func.nodes[n].op) => {
                    g.place = place;
                    reduce::apply_part(&mut g, n, &of)?;
                    g.release(place);
                }
                _ => ops::op(&mut g, n, place)?,
            }
        }
        for &n in &starts {
            reduce::take(&mut g, n, &cells[&n])?;
        }
        for &value in &wanted {
            if makes_results && g.views.contains_key(&value) {
                g.arg(value)?;
                g.finish(value)?;
            }
        }
        if !g.stores.is_empty() {
            return Err(Declined("stores of rows that do not fit local memory".to_owned()));
        }
        let _ = write!(
            passes,
            "{before}        for (uint32_t at = 0; at < {row}; at += {part}) {{\n            \
             const uint32_t columns = {row} - at < {part} ? {row} - at : {part};\n            {{\n            \
             LocalTensor<uint8_t> in = rowsIn.AllocTensor<uint8_t>();\n{}            rowsIn.EnQue(in);\n            }}\n            \
             LocalTensor<uint8_t> in = rowsIn.DeQue<uint8_t>();\n",
            g.copies
        );
        if makes_results {
            passes += "            LocalTensor<uint8_t> out = rowsOut.AllocTensor<uint8_t>();\n";
        }
        passes += &g.code;
        passes += "            rowsIn.FreeTensor(in);\n";
        if makes_results {
            passes +=
                "            rowsOut.EnQue(out);\n            out = rowsOut.DeQue<uint8_t>();\n";
            for (name, value) in results(&g).into_iter().filter(|(_, v)| wanted.contains(v)) {
                let dtype = g.dtype(value);
                let Some(s) = g.outputs.iter().find(|s| s.value == value && s.dtype == dtype)
                else {
                    return Err(Declined(format!("%{} is not made", func.values[value].name)));
                };
                let _ = writeln!(
                    passes,
                    "            CopyOut({name}_rows[row * {name}_stride + at], out[{}].ReinterpretCast<{}>(), 1, columns, 0);",
                    s.offset,
                    cpp_type(dtype)?
                );
            }
            passes += "            rowsOut.FreeTensor(out);\n";
        }
        passes += "        }\n";
        g.code.clear();
        g.indent = 2;
        for &n in &starts {
            reduce::end(&mut g, n, &cells[&n])?;
        }
        passes += &g.code;
        in_bytes = g.in_bytes.max(in_bytes);
        out_bytes = g.out_bytes.max(out_bytes);
        g.out_bytes = 0;
        g.outputs.clear();
    }
    passes += &numbers(&mut g, &cells)?;
    g.in_bytes = in_bytes;
    g.out_bytes = out_bytes.max(g.out_bytes);
    let head = head(&g)?;
    let (buffers, bytes) = buffers(&g, 2);
    let body = format!(
        "{head}{buffers}    for (uint64_t row = first; row < last; ++row) {{\n{passes}    }}\n}}\n"
    );
    Ok(Draft { body, bytes })
}

/// Elements of the largest row that something is computed with: parts of operands are read where they
/// stand.
fn widest(func: &Func) -> u64 {
    let views = super::program::views(func);
    let computed = func.order.iter().map(|&n| &func.nodes[n]);
    let computed = computed.filter(|node| !views.contains_key(&node.outs[0]));
    let values = computed.flat_map(|node| node.args.iter().chain(&node.outs));
    let rows = values.chain(&func.results).map(|&v| (v, &func.values[v].ty));
    let rows = rows.filter(|(_, ty)| ty.rank() > 1 && ty.storage == Storage::Tensor);
    rows.map(|(v, _)| super::program::row_len(func, v)).max().unwrap_or(1)
}

/// Copies back the results that are one number for each row.
fn numbers(g: &mut Gen<'_>, cells: &HashMap<NodeId, Cells>) -> Result<String, Declined> {
    let all: Vec<(String, ValueId)> =
        results(g).into_iter().filter(|(_, v)| !g.in_parts(g.row_len(*v))).collect();
    if all.is_empty() {
        return Ok(String::new());
    }
    g.code.clear();
    g.makes_results = true;
    let mut made: Vec<&NodeId> = cells.keys().collect();
    made.sort_unstable_by_key(|n| n.index());
    for node in made {
        let outs = &g.func.nodes[*node].outs;
        if all.iter().any(|(_, v)| outs.contains(v)) {
            reduce::number(g, *node, &cells[node])?;
        }
    }
    let mut text =
        "        LocalTensor<uint8_t> out = rowsOut.AllocTensor<uint8_t>();\n".to_owned();
    text += &g.code;
    text += "        rowsOut.EnQue(out);\n        out = rowsOut.DeQue<uint8_t>();\n";
    for (name, value) in all {
        let dtype = g.dtype(value);
        let Some(s) = g.outputs.iter().find(|s| s.value == value) else {
            return Err(Declined(format!(
                "%{} is neither a part of a row nor a number made of one",
                g.func.values[value].name
            )));
        };
        let _ = writeln!(
            text,
            "        CopyOut({name}_rows[row * {name}_stride], out[{}].ReinterpretCast<{}>(), 1, {}, 0);",
            s.offset,
            cpp_type(dtype)?,
            g.row_len(value)
        );
    }
    text += "        rowsOut.FreeTensor(out);\n";
    Ok(text)
}

/// In which pass a value can be computed.
struct Levels {
    of: HashMap<ValueId, usize>,
    last: usize,
}

impl Levels {
    fn of(func: &Func) -> Self {
        let mut of: HashMap<ValueId, usize> = HashMap::new();
        for &n in &func.order {
            let node = &func.nodes[n];
            let level = node.args.iter().filter_map(|a| of.get(a)).copied().max().unwrap_or(0);
            let level = level + usize::from(is_reduction(&node.op));
            of.extend(node.outs.iter().map(|&o| (o, level)));
        }
        let last = of.values().copied().max().unwrap_or(0);
        Self { of, last }
    }

    /// The pass that makes the number of `node`, if it is a reduction.
    fn begins(&self, func: &Func, node: NodeId) -> Option<usize> {
        let node = &func.nodes[node];
        is_reduction(&node.op).then(|| self.of[&node.outs[0]] - 1)
    }
}

/// The ops that make `wanted`.
fn needed(func: &Func, wanted: &[ValueId], g: &Gen<'_>) -> HashSet<NodeId> {
    let mut nodes = HashSet::new();
    let mut open = wanted.to_vec();
    while let Some(value) = open.pop() {
        if g.views.contains_key(&value) {
            continue;
        }
        if let Some((n, node)) = func.def_node(value)
            && nodes.insert(n)
        {
            let index = matches!(node.op, Op::Embed { .. } | Op::GatherRows {});
            if !index {
                open.extend(node.args.iter().copied());
            }
        }
    }
    nodes
}
