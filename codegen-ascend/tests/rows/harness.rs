//! Runs a function of the text form as a composite on the host and compares it with the interpreter.

use artifact::Scalar;
use compiler::{Arg, Lowered, Operand};
use ir::{
    Bindings, Body, DType, Func, Layout, Op, Storage, TensorType, ValueId, interp, interp::Tensor,
};
use precast_codegen_ascend::{
    chip::CHIPS,
    kernels::{Declined, Kernel, rows, shim::Library},
};
use std::{borrow::Borrow, collections::BTreeMap};

/// A function whose rows are `T`.
pub(crate) struct Case {
    /// Parameters and ops of the function, as text; `T` is the number of rows.
    pub(crate) params: String,
    pub(crate) ops: String,
    pub(crate) returns: String,
    /// Largest whole number of a parameter, exclusive, by its name.
    pub(crate) limits: Vec<(&'static str, u64)>,
    /// What codes may differ by: a value before them may be rounded otherwise.
    pub(crate) codes: f64,
    /// Relative error of f32 results.
    pub(crate) error: f64,
}

pub(crate) fn case(params: &str, ops: &str, returns: &str) -> Case {
    Case {
        params: params.to_owned(),
        ops: ops.to_owned(),
        returns: returns.to_owned(),
        limits: Vec::new(),
        codes: 0.0,
        error: 1e-5,
    }
}

impl Case {
    pub(crate) fn limit(mut self, name: &'static str, below: u64) -> Self {
        self.limits.push((name, below));
        self
    }
    pub(crate) fn codes(mut self, by: f64) -> Self {
        self.codes = by;
        self
    }
    pub(crate) fn error(mut self, by: f64) -> Self {
        self.error = by;
        self
    }

    fn func(&self, rows: u64) -> Func {
        let text =
            format!("func @f({}) {{\n{}\n  return {}\n}}\n", self.params, self.ops, self.returns);
        // Types that are written with a number are easier to read with a letter.
        let text = text.replace("[T", &format!("[{rows}"));
        let mut func = ir::text::parse("case.ir", &text)
            .unwrap_or_else(|e| panic!("{e}\n{text}"))
            .funcs
            .remove(0);
        func.name = "rows.case".to_owned();
        func
    }
}

/// What was lowered, and to what.
pub(crate) struct Kernels {
    func: Func,
    operands: Vec<Operand>,
    results: Vec<Operand>,
    pub(crate) lowered: Lowered,
}

pub(crate) fn lower(case: &Case, rows: u64, padding: u64) -> Result<Kernels, Declined> {
    let func = case.func(rows);
    let op = Op::Fused { body: Body::new(func.clone()).unwrap_or_else(|e| panic!("{e:?}")) };
    lower_padded(&op, func, rows, padding)
}

/// `op`, which is all there is in `func`.
pub(crate) fn lower_op(op: &Op, func: &Func) -> Result<Kernels, Declined> {
    lower_padded(op, func.clone(), 0, 0)
}

fn lower_padded(op: &Op, func: Func, rows: u64, padding: u64) -> Result<Kernels, Declined> {
    let operand = |ty: &TensorType| {
        let mut operand = Operand::dense(ty.clone());
        let has_rows = ty.storage == Storage::Tensor && ty.rank() > 1 && ty.layout == Layout::Nd;
        if has_rows && ty.dims[0].as_const() == Some(rows) {
            operand.row_stride += padding;
        }
        operand
    };
    let operands: Vec<Operand> = func.params.iter().map(|&p| operand(&func.values[p].ty)).collect();
    let results: Vec<Operand> = func.results.iter().map(|&r| operand(&func.values[r].ty)).collect();
    let lowered = rows::lower(op, &operands, &results, &CHIPS[0])?;
    Ok(Kernels { func, operands, results, lowered })
}

/// A source of numbers that is the same each time.
pub(crate) struct Numbers(pub(crate) u64);

impl Numbers {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }
    pub(crate) fn float(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1u64 << 53) as f64 * 4.0 - 2.0
    }
}

/// What `value` may be as an index: rows of what it selects from, exclusive.
fn limit_of(func: &Func, value: ValueId) -> Option<u64> {
    let limit = |node: &ir::Node, i: usize| {
        let dims = |i: usize| func.values[node.args[i]].ty.const_dims().unwrap();
        match (&node.op, i) {
            (Op::Embed { .. }, 0) => Some(dims(1)[0]),
            (Op::GatherRows {}, 1) => Some(dims(0)[0]),
            (Op::KvWrite {}, 3) => Some(dims(0)[0] * dims(0)[3]),
            (Op::PagedWrite {}, 2) => Some(dims(0)[0] * dims(0)[1]),
            (Op::ExpertBias {}, 1) => Some(dims(2)[0]),
            (Op::Fused { body }, i) => limit_of(body.func(), body.func().params[i]),
            (Op::Reshape { .. } | Op::Slice { .. }, _) => limit_of(func, node.outs[0]),
            _ => None,
        }
    };
    let nodes = func.order.iter().map(|&n| &func.nodes[n]);
    nodes
        .flat_map(|node| (0..node.args.len()).map(move |i| (node, i)))
        .filter(|(node, i)| node.args[*i] == value)
        .filter_map(|(node, i)| limit(node, i))
        .min()
}

fn random(func: &Func, param: ValueId, case: &Case, numbers: &mut Numbers) -> Tensor {
    let (ty, name) = (&func.values[param].ty, func.values[param].name.as_str());
    let dims: Vec<usize> = ty.const_dims().unwrap().iter().map(|&d| d as usize).collect();
    let limit = case.limits.iter().find(|(n, _)| *n == name).map(|l| l.1);
    let limit = limit.or_else(|| limit_of(func, param));
    let n = dims.iter().product();
    let value = |_| match ty.dtype {
        DType::I32 => (numbers.next() % limit.unwrap_or(1000)) as f64,
        DType::I8 => (numbers.next() % 255) as f64 - 127.0,
        _ if name.ends_with("scale") => numbers.float().abs() + 0.01,
        _ => numbers.float(),
    };
    Tensor::new(ty.dtype, dims, (0..n).map(value).collect())
}

fn put(bytes: &mut [u8], at: u64, dtype: DType, x: f64) {
    let at = at as usize;
    match dtype {
        DType::F32 => bytes[at * 4..at * 4 + 4].copy_from_slice(&(x as f32).to_le_bytes()),
        DType::I32 => bytes[at * 4..at * 4 + 4].copy_from_slice(&(x as i32).to_le_bytes()),
        DType::BF16 => {
            bytes[at * 2..at * 2 + 2].copy_from_slice(&half::bf16::from_f64(x).to_le_bytes())
        }
        DType::I8 => bytes[at] = x as i8 as u8,
        other => panic!("{other}"),
    }
}

fn get(bytes: &[u8], at: u64, dtype: DType) -> f64 {
    let at = at as usize;
    match dtype {
        DType::F32 => f32::from_le_bytes(bytes[at * 4..at * 4 + 4].try_into().unwrap()).into(),
        DType::I32 => i32::from_le_bytes(bytes[at * 4..at * 4 + 4].try_into().unwrap()).into(),
        DType::I64 => i64::from_le_bytes(bytes[at * 8..at * 8 + 8].try_into().unwrap()) as f64,
        DType::BF16 => {
            half::bf16::from_le_bytes(bytes[at * 2..at * 2 + 2].try_into().unwrap()).into()
        }
        DType::I8 => f64::from(bytes[at] as i8),
        other => panic!("{other}"),
    }
}

/// Where element `i` (row-major) of an operand lies.
fn place(operand: &Operand, i: u64) -> u64 {
    let dims = operand.ty.const_dims().unwrap();
    if operand.ty.layout == Layout::Nz {
        return tensor::layout::Nz::new(dims[0], dims[1], operand.ty.dtype)
            .offset(i / dims[1], i % dims[1]);
    }
    let row: u64 = dims.iter().skip(1).product();
    i / row * operand.row_stride + i % row
}

fn elements(operand: &Operand) -> u64 {
    operand.ty.const_dims().unwrap().iter().product()
}

/// The memory of an operand, which ends where it ends.
fn memory(operand: &Operand) -> Vec<u64> {
    let dims = operand.ty.const_dims().unwrap();
    let elements = match operand.ty.layout {
        Layout::Nz => tensor::layout::Nz::new(dims[0], dims[1], operand.ty.dtype).padded_len(),
        _ => place(operand, elements(operand) - 1) + 1,
    };
    // Words, so that every element is aligned.
    vec![0xcdcd_cdcd_cdcd_cdcd; (operand.ty.dtype.bytes_for(elements) as usize).div_ceil(8)]
}

fn as_bytes(words: &mut [u64]) -> &mut [u8] {
    let (start, bytes) = (words.as_mut_ptr().cast(), size_of_val(words));
    // SAFETY: plain numbers, borrowed as long as the result.
    unsafe { std::slice::from_raw_parts_mut(start, bytes) }
}

/// Lowers all cases for each number of rows, compiles all kernels at once, runs and compares.
pub(crate) fn check(cases: &[Case], row_counts: &[u64]) {
    let mut runs = Vec::new();
    for case in cases {
        for &rows in row_counts {
            let padding = rows % 2 * 8;
            let of_rows =
                lower(case, rows, padding).unwrap_or_else(|e| panic!("{}: {}", case.ops, e.0));
            runs.push((case, rows, of_rows));
        }
    }
    check_runs(&runs);
}

/// The same for ops that are given, each with the function that has nothing else.
pub(crate) fn check_ops(ops: Vec<(String, (Op, Func))>) {
    let lowered = |(text, (op, func)): (String, (Op, Func))| {
        let of_rows = lower_op(&op, &func).unwrap_or_else(|e| panic!("{text}: {}", e.0));
        (case("", &text, "").codes(1.0), of_rows)
    };
    let all: Vec<(Case, Kernels)> = ops.into_iter().map(lowered).collect();
    let runs: Vec<(&Case, u64, &Kernels)> = all.iter().map(|(c, k)| (c, 0, k)).collect();
    check_runs(&runs);
}

fn check_runs<K: Borrow<Kernels>>(runs: &[(&Case, u64, K)]) {
    let mut kernels: BTreeMap<String, Kernel> = BTreeMap::new();
    for (_, _, of_rows) in runs {
        let lowered = &of_rows.borrow().lowered;
        for file in &lowered.files {
            let name = lowered.calls[0].kernel.clone();
            kernels.insert(name.clone(), Kernel { name, source: file.text.clone() });
        }
    }
    let library =
        Library::build(&kernels.values().collect::<Vec<_>>()).unwrap_or_else(|e| panic!("{e}"));
    if let Ok(folder) = std::env::var("KERNELS_OUT") {
        for kernel in kernels.values() {
            std::fs::write(format!("{folder}/{}.cpp", kernel.name), &kernel.source).unwrap();
        }
    }
    let mut failures = Vec::new();
    for (case, rows, of_rows) in runs {
        if let Err(what) = run(case, *rows, of_rows.borrow(), &library) {
            failures.push(format!("{} with {rows} rows: {what}", case.ops.trim()));
        }
    }
    assert!(
        failures.is_empty(),
        "{} of {} runs:\n{}",
        failures.len(),
        runs.len(),
        failures.join("\n")
    );
}

fn run(case: &Case, rows: u64, of_rows: &Kernels, library: &Library) -> Result<(), String> {
    let Kernels { func, operands, results, lowered } = of_rows;
    let mut numbers = Numbers(0x9e37_79b9_7f4a_7c15 ^ rows);
    let inputs: Vec<Tensor> =
        func.params.iter().map(|&p| random(func, p, case, &mut numbers)).collect();
    let none = |name: &str| -> Tensor { panic!("{name}") };
    let expected =
        interp::run(func, &inputs, &none, &Bindings::new()).map_err(|e| e.to_string())?;

    let mut buffers: Vec<Vec<u64>> = Vec::new();
    for (operand, input) in operands.iter().zip(&inputs) {
        let mut words = memory(operand);
        for (i, &x) in input.data().iter().enumerate() {
            put(as_bytes(&mut words), place(operand, i as u64), operand.ty.dtype, x);
        }
        buffers.push(words);
    }
    // A result that is the next version of a state is that state.
    let origin = |mut value| {
        while let ir::ValueDef::Result { node, index } = func.values[value].def {
            let node = &func.nodes[node];
            let write = node.op.writes().iter().find(|(_, result)| *result == index);
            value = node.args[write.unwrap().0];
        }
        func.params.iter().position(|&p| p == value).unwrap()
    };
    let mut of_result = Vec::new();
    for (i, result) in results.iter().enumerate() {
        if result.ty.storage == Storage::State {
            of_result.push(origin(func.results[i]));
        } else {
            of_result.push(buffers.len());
            buffers.push(memory(result));
        }
    }
    let call = &lowered.calls[0];
    let order: Vec<usize> = call
        .args
        .iter()
        .map(|a| match a {
            Arg::Operand(i) => *i,
            Arg::Result(i) => of_result[*i],
            other => panic!("{other:?}"),
        })
        .collect();
    let mut slots: Vec<Option<&mut [u8]>> = buffers.iter_mut().map(|b| Some(as_bytes(b))).collect();
    let mut args: Vec<&mut [u8]> = order.iter().map(|&i| slots[i].take().unwrap()).collect();
    let scalars: Vec<u64> = call
        .scalars
        .iter()
        .map(|s| if let Scalar::Int(n) = s { *n } else { panic!("{s:?}") })
        .collect();
    library.run(&call.kernel, call.blocks, &mut args, &scalars)?;
    drop(slots);

    for (r, (result, expected)) in results.iter().zip(&expected).enumerate() {
        let bytes = as_bytes(&mut buffers[of_result[r]]);
        for (i, &want) in expected.data().iter().enumerate() {
            let got = get(bytes, place(result, i as u64), result.ty.dtype);
            let allowed = match result.ty.dtype {
                DType::I32 | DType::I64 => 0.0,
                DType::I8 => case.codes,
                DType::BF16 => want.abs() / 128.0 + 1e-6 + case.error * 0.1,
                _ => case.error * want.abs() + case.error * 0.2,
            };
            if !((got - want).abs() <= allowed || (got.is_nan() && want.is_nan())) {
                return Err(format!("result {r}, element {i}: {got}, expected {want}"));
            }
        }
    }
    Ok(())
}
