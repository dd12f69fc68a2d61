//! The state of writing a kernel: where values stand in local memory, and what is said of them.

use super::program::{View, cpp_type, is_param, last_axis, row_len, views};
use crate::kernels::{Declined, source::reduction_work};
use ir::{DType, Func, NodeId, Op, Storage, ValueId};
use std::{
    collections::{BTreeMap, HashMap, HashSet},
    fmt::Write,
};

/// Blocks of local memory.
pub(super) const BLOCK: u64 = 32;

pub(super) fn whole_blocks(bytes: u64) -> u64 {
    bytes.next_multiple_of(BLOCK)
}

/// Rows that are computed part by part because they do not fit local memory.
#[derive(Clone, Copy, Debug)]
pub(super) struct Tiles {
    /// Elements of a row.
    pub(super) row: u64,
    /// Elements of a part.
    pub(super) part: u64,
}

/// A temporary in the working buffer.
#[derive(Clone, Debug)]
pub(super) struct Temp {
    pub(super) name: String,
    offset: u64,
    bytes: u64,
}

/// Free and taken ranges of the working buffer.
#[derive(Default)]
struct Ranges {
    taken: BTreeMap<u64, u64>,
    high: u64,
}

impl Ranges {
    fn take(&mut self, bytes: u64) -> u64 {
        let mut at = 0;
        for (&start, &len) in &self.taken {
            if at + bytes <= start {
                break;
            }
            at = start + len;
        }
        self.taken.insert(at, bytes);
        self.high = self.high.max(at + bytes);
        at
    }
}

/// A part of the buffer of a queue.
#[derive(Clone, Copy, Debug)]
pub(super) struct Section {
    pub(super) value: ValueId,
    pub(super) offset: u64,
    pub(super) dtype: DType,
}

pub(super) struct Gen<'a> {
    pub(super) func: &'a Func,
    pub(super) tiles: Option<Tiles>,
    pub(super) views: HashMap<ValueId, View>,
    /// Names in the source.
    pub(super) names: HashMap<ValueId, String>,
    reserved: HashSet<String>,
    /// Values that stand in local memory now, with their temporary if they have one.
    vars: HashMap<ValueId, Option<Temp>>,
    /// What an alias is a part of.
    aliases: HashMap<ValueId, ValueId>,
    last_use: HashMap<ValueId, usize>,
    /// Of the op at hand in the order.
    pub(super) place: usize,
    ranges: Ranges,
    next_temp: usize,
    /// Statements of a row, or of a part of one.
    pub(super) code: String,
    pub(super) indent: usize,
    /// Statements that bring a row into local memory.
    pub(super) copies: String,
    pub(super) inputs: Vec<Section>,
    pub(super) in_bytes: u64,
    pub(super) outputs: Vec<Section>,
    pub(super) out_bytes: u64,
    /// Statements after the copies back.
    pub(super) stores: String,
    /// Statements before the first row.
    pub(super) setup: String,
    /// What stays in local memory for all rows.
    pub(super) table_bytes: u64,
    pub(super) tables: HashMap<ValueId, String>,
    /// Whether results are made in this pass.
    pub(super) makes_results: bool,
    /// Most of what is brought at once before the first row.
    pub(super) staging_bytes: u64,
}

/// Names that a value may not have.
const RESERVED: &[&str] = &[
    "in", "out", "row", "rows", "first", "last", "at", "columns", "h", "i", "work", "tables",
    "pipe", "rowsIn", "rowsOut", "share", "int", "float", "half", "const", "for", "if", "while",
    "do", "new", "this", "and", "or", "not", "default", "auto", "switch", "case", "return",
    "class", "double", "Add", "Mul", "Exp", "staging", "x_", "keep",
];

/// For each value the place of the last op that reads it.
fn last_uses(func: &Func) -> HashMap<ValueId, usize> {
    let nodes = func.order.iter().map(|&n| &func.nodes[n]).enumerate();
    nodes.flat_map(|(place, node)| node.args.iter().map(move |&a| (a, place))).collect()
}

impl<'a> Gen<'a> {
    pub(super) fn new(func: &'a Func, tiles: Option<Tiles>) -> Self {
        let mut gen_ = Self {
            func,
            tiles,
            views: views(func),
            names: HashMap::new(),
            reserved: RESERVED.iter().map(|&s| s.to_owned()).collect(),
            vars: HashMap::new(),
            aliases: HashMap::new(),
            last_use: last_uses(func),
            place: 0,
            ranges: Ranges::default(),
            next_temp: 0,
            code: String::new(),
            indent: 2,
            copies: String::new(),
            inputs: Vec::new(),
            in_bytes: 0,
            outputs: Vec::new(),
            out_bytes: 0,
            stores: String::new(),
            setup: String::new(),
            table_bytes: 0,
            tables: HashMap::new(),
            makes_results: true,
            staging_bytes: 0,
        };
        let values: Vec<ValueId> = func.values.iter().map(|(v, _)| v).collect();
        for value in values {
            let name = gen_.fresh(&func.values[value].name);
            gen_.names.insert(value, name);
        }
        gen_
    }

    /// `wanted` as a name of the source that nothing else has.
    pub(super) fn fresh(&mut self, wanted: &str) -> String {
        let mut name: String =
            wanted.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '_' }).collect();
        if name.is_empty() || name.starts_with(|c: char| c.is_ascii_digit()) {
            name.insert(0, 'v');
        }
        let stem = name.clone();
        let mut number = 1;
        while !self.reserved.insert(name.clone()) {
            number += 1;
            name = format!("{stem}_{number}");
        }
        name
    }

    pub(super) fn name(&self, value: ValueId) -> String {
        self.names[&value].clone()
    }
    pub(super) fn dtype(&self, value: ValueId) -> DType {
        self.func.values[value].ty.dtype
    }
    pub(super) fn row_len(&self, value: ValueId) -> u64 {
        row_len(self.func, value)
    }
    pub(super) fn last_axis(&self, value: ValueId) -> u64 {
        last_axis(self.func, value)
    }
    pub(super) fn dims(&self, value: ValueId) -> Vec<u64> {
        self.func.values[value].ty.const_dims().unwrap_or_default()
    }

    pub(super) fn line(&mut self, text: impl AsRef<str>) {
        let pad = "    ".repeat(self.indent);
        let _ = writeln!(self.code, "{pad}{}", text.as_ref());
    }

    /// Whether a row of `len` elements comes part by part.
    pub(super) fn in_parts(&self, len: u64) -> bool {
        self.tiles.is_some_and(|t| t.row == len)
    }
    /// Elements that local memory holds of a row of `len`.
    pub(super) fn held(&self, len: u64) -> u64 {
        match self.tiles {
            Some(t) if t.row == len => t.part,
            _ => len,
        }
    }
    /// The number of elements at hand, as an expression.
    pub(super) fn count_of(&self, len: u64) -> String {
        if self.in_parts(len) { "columns".to_owned() } else { len.to_string() }
    }
    pub(super) fn count(&self, value: ValueId) -> String {
        self.count_of(self.row_len(value))
    }

    /// Room for `elements` of `cpp` in the working buffer, declared.
    pub(super) fn temp_of(&mut self, cpp: &str, elements: u64, size: u64, name: &str) -> Temp {
        let bytes = whole_blocks(elements * size);
        let offset = self.ranges.take(bytes);
        self.next_temp += 1;
        let name = self.fresh(name);
        self.line(format!(
            "const LocalTensor<{cpp}> {name} = work.GetWithOffset<{cpp}>({}, {offset});",
            bytes / size
        ));
        Temp { name, offset, bytes }
    }
    pub(super) fn temp(&mut self, elements: u64, name: &str) -> Temp {
        self.temp_of("float", elements, 4, name)
    }
    /// Work memory of a reduction of `elements`, which may give a place too: its rounds keep a value
    /// and a place for each repeat, side by side.
    pub(super) fn reduction_work(&mut self, elements: u64) -> Temp {
        self.temp(reduction_work(elements), "partial")
    }
    pub(super) fn free(&mut self, temp: Temp) {
        debug_assert!(self.ranges.taken.get(&temp.offset) == Some(&temp.bytes));
        self.ranges.taken.remove(&temp.offset);
    }
    pub(super) fn work_bytes(&self) -> u64 {
        self.ranges.high
    }

    /// A part of what stays in local memory for all rows: a declared tensor of `elements`.
    pub(super) fn table(&mut self, cpp: &str, elements: u64, size: u64, name: &str) -> String {
        let bytes = whole_blocks(elements * size);
        let offset = self.table_bytes;
        self.table_bytes += bytes;
        let name = self.fresh(name);
        let _ = writeln!(
            self.setup,
            "    const LocalTensor<{cpp}> {name} = tables.GetWithOffset<{cpp}>({}, {offset});",
            bytes / size
        );
        name
    }

    /// Its elements in local memory, as f32, or i32 where it is that.
    pub(super) fn arg(&mut self, value: ValueId) -> Result<String, Declined> {
        if !self.vars.contains_key(&value) {
            if !self.views.contains_key(&value) {
                let name = &self.func.values[value].name;
                return Err(Declined(format!("%{name} is read where it does not stand")));
            }
            self.load(value)?;
        }
        Ok(self.name(value))
    }

    /// Where `value` stands is known.
    pub(super) fn define_as(&mut self, value: ValueId, temp: Option<Temp>) {
        self.vars.insert(value, temp);
    }
    pub(super) fn is_defined(&self, value: ValueId) -> bool {
        self.vars.contains_key(&value)
    }

    /// Room for a part of the buffer that copies fill.
    pub(super) fn in_section(&mut self, value: ValueId, dtype: DType, elements: u64) -> u64 {
        let offset = self.in_bytes;
        self.in_bytes += whole_blocks(dtype.bytes_for(elements));
        self.inputs.push(Section { value, offset, dtype });
        offset
    }

    /// Brings a part of each row of a parameter.
    fn load(&mut self, value: ValueId) -> Result<(), Declined> {
        let View { param, runs } = self.views[&value];
        let dtype = self.dtype(value);
        let cpp = cpp_type(dtype)?;
        let len = self.row_len(value);
        let held = self.held(len);
        if self.in_parts(len) && runs.count > 1 {
            return Err(Declined("rows that do not fit local memory have gaps".to_owned()));
        }
        let offset = self.in_section(value, dtype, held);
        let from = self.name(param);
        let start = if self.in_parts(len) {
            format!("{} + at", runs.start)
        } else {
            runs.start.to_string()
        };
        let (count, length) = match runs.count {
            1 => (1, self.count_of(len)),
            n => (n, runs.len.to_string()),
        };
        let gap = runs.stride - runs.len.min(runs.stride);
        let gap = if count == 1 { 0 } else { gap };
        let _ = writeln!(
            self.copies,
            "            CopyIn(in[{offset}].ReinterpretCast<{cpp}>(), {from}_rows[row * {from}_stride + {start}], {count}, {length}, {gap});"
        );
        self.unpack(value, dtype, offset, held)
    }

    /// What a copy has brought, in f32.
    pub(super) fn unpack(
        &mut self,
        value: ValueId,
        dtype: DType,
        offset: u64,
        held: u64,
    ) -> Result<(), Declined> {
        let (name, cpp) = (self.name(value), cpp_type(dtype)?);
        let raw = format!("in[{offset}].ReinterpretCast<{cpp}>()");
        let n = self.count(value);
        match dtype {
            DType::F32 | DType::I32 => {
                self.line(format!("const LocalTensor<{cpp}> {name} = {raw};"));
                self.define_as(value, None);
            }
            DType::I64 => return Err(Declined("computations with i64".to_owned())),
            DType::I8 => {
                let temp = self.temp(held, &format!("{name}_f32"));
                let halves = self.temp_of("half", held, 2, &format!("{name}_half"));
                self.line(format!("Cast({}, {raw}, RoundMode::CAST_NONE, {n});", halves.name));
                self.line("Step();");
                self.line(format!(
                    "Cast({}, {}, RoundMode::CAST_NONE, {n});",
                    temp.name, halves.name
                ));
                self.line("Step();");
                self.free(halves);
                self.line(format!("const LocalTensor<float> {name} = {};", temp.name));
                self.define_as(value, Some(temp));
            }
            _ => {
                let temp = self.temp(held, &format!("{name}_f32"));
                self.line(format!("Cast({}, {raw}, RoundMode::CAST_NONE, {n});", temp.name));
                self.line("Step();");
                self.line(format!("const LocalTensor<float> {name} = {};", temp.name));
                self.define_as(value, Some(temp));
            }
        }
        Ok(())
    }

    pub(super) fn is_result(&self, value: ValueId) -> bool {
        self.makes_results && self.func.results.contains(&value)
    }

    /// Room for a part of the buffer that is copied back.
    pub(super) fn out_section(&mut self, value: ValueId, dtype: DType) -> u64 {
        if let Some(s) = self.outputs.iter().find(|s| s.value == value && s.dtype == dtype) {
            return s.offset;
        }
        let offset = self.out_bytes;
        let held = self.held(self.row_len(value));
        self.out_bytes += whole_blocks(dtype.bytes_for(held));
        self.outputs.push(Section { value, offset, dtype });
        offset
    }

    /// [`Gen::define`] for an op that may write over what it reads: the room of the first of `args`
    /// that nothing else reads, if it is as large.
    pub(super) fn define_over(&mut self, value: ValueId, args: &[ValueId]) -> String {
        let float = |v: ValueId| self.dtype(v) != DType::I32;
        let over = args.iter().copied().find(|&a| {
            let last = self.last_use.get(&a) == Some(&self.place);
            let alike = self.row_len(a) == self.row_len(value) && float(a) && float(value);
            last && alike && matches!(self.vars.get(&a), Some(Some(_)))
        });
        let direct = self.is_result(value) && self.dtype(value) == DType::F32;
        let Some(over) = over.filter(|_| !direct) else { return self.define(value) };
        let temp = self.vars.insert(over, None).flatten();
        let (name, from) = (self.name(value), self.name(over));
        self.line(format!("const LocalTensor<float> {name} = {from};"));
        self.define_as(value, temp);
        name
    }

    /// Room for the result of an op, declared under its name; the op writes it.
    pub(super) fn define(&mut self, value: ValueId) -> String {
        let held = self.held(self.row_len(value));
        if self.is_result(value) && self.dtype(value) == DType::F32 {
            let name = self.name(value);
            let offset = self.out_section(value, DType::F32);
            self.line(format!(
                "const LocalTensor<float> {name} = out[{offset}].ReinterpretCast<float>();"
            ));
            self.define_as(value, None);
            return name;
        }
        let (name, int) = (self.name(value), self.dtype(value) == DType::I32);
        let cpp = if int { "int32_t" } else { "float" };
        let temp = self.temp_of(cpp, held, 4, &format!("{name}_held"));
        self.line(format!("const LocalTensor<{cpp}> {name} = {};", temp.name));
        self.define_as(value, Some(temp));
        name
    }

    /// After `define` and the op: rounds to the type of the value, and keeps what is returned.
    pub(super) fn finish(&mut self, value: ValueId) -> Result<(), Declined> {
        let (name, n, dtype) = (self.name(value), self.count(value), self.dtype(value));
        let result = self.is_result(value);
        let held = self.held(self.row_len(value));
        match dtype {
            DType::F32 if result && !self.outputs.iter().any(|s| s.value == value) => {
                let offset = self.out_section(value, dtype);
                let whole = held.next_multiple_of(8);
                let n = if self.in_parts(self.row_len(value)) {
                    "(columns + 7) / 8 * 8".to_owned()
                } else {
                    whole.to_string()
                };
                self.line(format!(
                    "DataCopy(out[{offset}].ReinterpretCast<float>(), {name}, {n});"
                ));
                self.line("Step();");
            }
            DType::F32 => {}
            DType::I32 if result => {
                let offset = self.out_section(value, dtype);
                let whole = held.next_multiple_of(8);
                self.line(format!(
                    "DataCopy(out[{offset}].ReinterpretCast<int32_t>(), {name}, {whole});"
                ));
                self.line("Step();");
            }
            DType::I32 => {}
            DType::BF16 | DType::F16 => {
                let cpp = cpp_type(dtype)?;
                let (rounded, temp) = if result {
                    let offset = self.out_section(value, dtype);
                    (format!("out[{offset}].ReinterpretCast<{cpp}>()"), None)
                } else {
                    let temp = self.temp_of(cpp, held, 2, &format!("{name}_rounded"));
                    (temp.name.clone(), Some(temp))
                };
                self.line(format!("Cast({rounded}, {name}, RoundMode::CAST_RINT, {n});"));
                self.line("Step();");
                if self.last_use.contains_key(&value) {
                    self.line(format!("Cast({name}, {rounded}, RoundMode::CAST_NONE, {n});"));
                    self.line("Step();");
                }
                if let Some(temp) = temp {
                    self.free(temp);
                }
            }
            DType::I8 => {
                let halves = self.temp_of("half", held, 2, &format!("{name}_half"));
                self.line(format!("Cast({}, {name}, RoundMode::CAST_NONE, {n});", halves.name));
                self.line("Step();");
                if result {
                    let offset = self.out_section(value, dtype);
                    self.line(format!(
                        "Cast(out[{offset}].ReinterpretCast<int8_t>(), {}, RoundMode::CAST_NONE, {n});",
                        halves.name
                    ));
                    self.line("Step();");
                }
                self.free(halves);
            }
            other => return Err(Declined(format!("the vector unit has no {other}"))),
        }
        Ok(())
    }

    /// `value` is a part of `of` from element `start` on.
    pub(super) fn alias(
        &mut self,
        value: ValueId,
        of: ValueId,
        start: u64,
    ) -> Result<(), Declined> {
        let from = self.arg(of)?;
        let cpp = if self.dtype(value) == DType::I32 { "int32_t" } else { "float" };
        let part = if start == 0 { from } else { format!("{from}[{start}]") };
        let name = self.name(value);
        self.line(format!("const LocalTensor<{cpp}> {name} = {part};"));
        self.define_as(value, None);
        let root = self.aliases.get(&of).copied().unwrap_or(of);
        self.aliases.insert(value, root);
        let last = self.last_use.get(&value).copied().unwrap_or(0);
        let of_root = self.last_use.entry(root).or_insert(0);
        *of_root = last.max(*of_root);
        Ok(())
    }

    /// Gives back what no op after place `done` reads.
    pub(super) fn release(&mut self, done: usize) {
        let last_use = &self.last_use;
        let mut over: Vec<ValueId> = self
            .vars
            .iter()
            .filter(|(v, temp)| temp.is_some() && last_use.get(v).is_none_or(|&l| l <= done))
            .map(|(&v, _)| v)
            .collect();
        over.sort_unstable();
        for value in over {
            if let Some(Some(temp)) = self.vars.insert(value, None) {
                self.free(temp);
            }
        }
    }

    /// A new pass over the parts of a row begins: nothing stands in local memory.
    pub(super) fn begin_pass(&mut self, makes_results: bool) {
        self.vars.clear();
        self.ranges.taken.clear();
        self.in_bytes = 0;
        self.inputs.clear();
        self.copies.clear();
        self.makes_results = makes_results;
    }

    /// `values` are read after the last op of this pass.
    pub(super) fn keep(&mut self, values: &[ValueId]) {
        self.last_use = last_uses(self.func);
        self.last_use.extend(values.iter().map(|&v| (v, usize::MAX)));
    }

    /// A parameter that an op reads as an index of each row: its number in this row.
    pub(super) fn index(&mut self, value: ValueId, at: &str) -> Result<String, Declined> {
        let Some(view) = self.views.get(&value) else {
            return Err(Declined("indices that are computed in the same kernel".to_owned()));
        };
        if view.runs.count != 1 {
            return Err(Declined("indices with gaps".to_owned()));
        }
        let (param, start) = (self.name(view.param), view.runs.start);
        Ok(format!("{param}_rows.GetValue(row * {param}_stride + {start} + {at})"))
    }

    /// A vector that every row reads, in f32, brought before the first row.
    pub(super) fn vector(&mut self, value: ValueId) -> Result<String, Declined> {
        let elements: u64 = self.dims(value).iter().product();
        if self.in_parts(elements) {
            return self.vector_part(value, elements);
        }
        if let Some(name) = self.tables.get(&value) {
            return Ok(name.clone());
        }
        if !is_param(self.func, value) {
            return Err(Declined("a table that is computed in the same kernel".to_owned()));
        }
        let (dtype, param) = (self.dtype(value), self.name(value));
        let cpp = cpp_type(dtype)?;
        let name = self.table("float", elements, 4, &format!("{param}_f32"));
        if dtype == DType::F32 {
            let _ = writeln!(
                self.setup,
                "    CopyIn({name}, {param}_rows, 1, {elements}, 0);\n    CopyToVector();"
            );
        } else {
            self.staging_bytes = self.staging_bytes.max(whole_blocks(dtype.bytes_for(elements)));
            let _ = writeln!(
                self.setup,
                "    VectorToCopy();\n    CopyIn(staging.Get<{cpp}>(), {param}_rows, 1, {elements}, 0);\n    CopyToVector();\n    \
                 Cast({name}, staging.Get<{cpp}>(), RoundMode::CAST_NONE, {elements});\n    Step();"
            );
        }
        self.tables.insert(value, name.clone());
        Ok(name)
    }

    /// The part of such a vector that belongs to the part of the row at hand.
    fn vector_part(&mut self, value: ValueId, elements: u64) -> Result<String, Declined> {
        if self.is_defined(value) {
            return Ok(self.name(value));
        }
        let (dtype, param, held) = (self.dtype(value), self.name(value), self.held(elements));
        let cpp = cpp_type(dtype)?;
        let offset = self.in_section(value, dtype, held);
        let _ = writeln!(
            self.copies,
            "            CopyIn(in[{offset}].ReinterpretCast<{cpp}>(), {param}_rows[at], 1, columns, 0);"
        );
        let raw = format!("in[{offset}].ReinterpretCast<{cpp}>()");
        if dtype == DType::F32 {
            self.line(format!("const LocalTensor<float> {param} = {raw};"));
            self.define_as(value, None);
        } else {
            let temp = self.temp(held, &format!("{param}_f32"));
            self.line(format!("Cast({}, {raw}, RoundMode::CAST_NONE, columns);", temp.name));
            self.line("Step();");
            self.line(format!("const LocalTensor<float> {param} = {};", temp.name));
            self.define_as(value, Some(temp));
        }
        Ok(param)
    }

    /// Element types as the parameters have them, for what the kernel is called with.
    pub(super) fn is_state(&self, value: ValueId) -> bool {
        self.func.values[value].ty.storage == Storage::State
    }

    pub(super) fn node(&self, node: NodeId) -> (&'a Op, &'a [ValueId], &'a [ValueId]) {
        let node = &self.func.nodes[node];
        (&node.op, &node.args, &node.outs)
    }
}
