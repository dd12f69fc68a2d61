//! Ops run by the interpreter and by kernels of ours on the host, side by side.
#![allow(dead_code, unreachable_pub, reason = "each test uses a part")]

use compiler::{Arg, Lowered, Operand};
use ir::{
    Bindings, Dim, Func, Op, Storage, TensorType, ValueId,
    interp::{self, Tensor},
};
use precast_codegen_ascend::{
    chip::{CHIPS, Chip},
    kernels::{Declined, Kernel, shim::Library},
};
use std::collections::BTreeMap;
use tensor::DType;

/// The chip that tests compile for.
pub fn chip() -> &'static Chip {
    &CHIPS[1]
}

/// A linear congruential generator: the same numbers on every machine.
#[derive(Clone, Debug)]
pub struct Random(pub u64);

impl Random {
    /// A number below `limit`.
    pub fn below(&mut self, limit: u64) -> u64 {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % limit
    }

    /// A number between -1 and 1.
    pub fn unit(&mut self) -> f64 {
        self.below(1 << 20) as f64 / f64::from(1 << 19) - 1.0
    }

    /// A tensor of such numbers times `size`.
    pub fn tensor(&mut self, dtype: DType, dims: &[usize], size: f64) -> Tensor {
        let data = (0..dims.iter().product()).map(|_| self.unit() * size).collect();
        Tensor::new(dtype, dims.to_vec(), data)
    }
}

/// A tensor without gaps.
pub fn dense(dtype: DType, dims: &[usize]) -> Operand {
    Operand::dense(TensorType::new(dtype, dims.iter().map(|&d| Dim::Const(d as u64))))
}

/// Whole numbers.
pub fn ints(dims: &[usize], data: impl IntoIterator<Item = i64>) -> Tensor {
    Tensor::new(DType::I32, dims.to_vec(), data.into_iter().map(|x| x as f64).collect())
}

/// An op on tensors.
#[derive(Clone, Debug)]
pub struct Case {
    pub op: Op,
    pub operands: Vec<Tensor>,
    /// Which operands are states.
    pub states: Vec<usize>,
    /// Elements between the rows of each operand, then of each result that is no state; 0 where
    /// none are given.
    pub gaps: Vec<u64>,
}

pub type Lower = fn(&Op, &[Operand], &[Operand], &Chip) -> Result<Lowered, Declined>;

impl Case {
    pub fn new(op: Op, operands: Vec<Tensor>, states: &[usize]) -> Self {
        Self { op, operands, states: states.to_vec(), gaps: Vec::new() }
    }

    fn types(&self) -> Vec<TensorType> {
        let of = |(i, t): (usize, &Tensor)| {
            let dims = t.dims().iter().map(|&d| Dim::Const(d as u64));
            let mut ty = TensorType::new(t.dtype(), dims);
            ty.storage = if self.states.contains(&i) { Storage::State } else { Storage::Tensor };
            ty
        };
        self.operands.iter().enumerate().map(of).collect()
    }

    /// What the interpreter says.
    pub fn expected(&self) -> Vec<Tensor> {
        let mut func = Func::new("case");
        let types = self.types().into_iter().enumerate();
        let params: Vec<ValueId> = types.map(|(i, ty)| func.param(&format!("p{i}"), ty)).collect();
        let node = func.append(self.op.clone(), &params, "r").unwrap();
        let outs = func.nodes[node].outs.clone();
        func.set_results(outs);
        let none = |name: &str| -> Tensor { panic!("no weight {name}") };
        interp::run(&func, &self.operands, &none, &Bindings::new()).unwrap()
    }

    fn operand(&self, ty: TensorType, place: usize) -> Operand {
        let mut operand = Operand::dense(ty);
        operand.row_stride += self.gaps.get(place).copied().unwrap_or(0);
        operand
    }

    /// Operands as a target sees them.
    pub fn operands_only(&self) -> Vec<Operand> {
        self.types().into_iter().enumerate().map(|(i, ty)| self.operand(ty, i)).collect()
    }

    /// Operands and results as a target sees them.
    pub fn sides(&self) -> (Vec<Operand>, Vec<Operand>) {
        let types = self.types();
        let refs: Vec<&TensorType> = types.iter().collect();
        let results = self.op.infer(&refs).unwrap();
        let operands = self.operands_only();
        let first = self.operands.len();
        let results =
            results.into_iter().enumerate().map(|(i, ty)| self.operand(ty, first + i)).collect();
        (operands, results)
    }

    pub fn lower(&self, lower: Lower) -> Result<Lowered, Declined> {
        let (operands, results) = self.sides();
        lower(&self.op, &operands, &results, chip())
    }
}

/// Compiled kernels of many cases.
pub struct Kernels(Library);

impl Kernels {
    pub fn of<'a>(all: impl IntoIterator<Item = &'a Lowered>) -> Self {
        let mut sources = BTreeMap::new();
        for file in all.into_iter().flat_map(|l| &l.files) {
            let name = file.path.trim_start_matches("kernels/").trim_end_matches(".cpp");
            sources.insert(name.to_owned(), file.text.clone());
        }
        let kernels: Vec<Kernel> =
            sources.into_iter().map(|(name, source)| Kernel { name, source }).collect();
        Self(Library::build(&kernels.iter().collect::<Vec<_>>()).unwrap())
    }

    /// Results of `case`, or the rule that a kernel breaks.
    pub fn run(&self, case: &Case, lowered: &Lowered) -> Result<Vec<Tensor>, String> {
        let (_, results) = case.sides();
        self.run_with(case, &results, lowered).map(|(results, _)| results)
    }

    /// The same where the results are other than those of the op; also what scratch buffers hold.
    pub fn run_with(
        &self,
        case: &Case,
        results: &[Operand],
        lowered: &Lowered,
    ) -> Result<(Vec<Tensor>, Vec<Vec<u8>>), String> {
        let operands = case.operands_only();
        let mut memory: Vec<Memory> =
            case.operands.iter().zip(&operands).map(|(t, o)| Memory::of(t, o)).collect();
        let writes = case.op.writes();
        // A result that is the next version of a state is the state.
        let place =
            |result: usize, memory: &mut Vec<Memory>| match writes.iter().find(|w| w.1 == result) {
                Some(&(state, _)) => state,
                None => {
                    memory.push(Memory::empty(&results[result]));
                    memory.len() - 1
                }
            };
        let places: Vec<usize> = (0..results.len()).map(|r| place(r, &mut memory)).collect();
        let first_scratch = memory.len();
        memory.extend(lowered.scratch_bytes.iter().map(|&n| Memory::poisoned(n as usize)));
        for call in &lowered.calls {
            let index = |arg: &Arg| match *arg {
                Arg::Operand(i) => i,
                Arg::Result(i) => places[i],
                Arg::Scratch(i) => first_scratch + i,
                ref part => panic!("{part:?} of a buffer"),
            };
            let order: Vec<usize> = call.args.iter().map(index).collect();
            let scalars: Vec<u64> = call
                .scalars
                .iter()
                .map(|s| match s {
                    artifact::Scalar::Int(n) => *n,
                    other => panic!("{other:?} is no whole number"),
                })
                .collect();
            let mut slots: Vec<Option<&mut Memory>> = memory.iter_mut().map(Some).collect();
            let mut buffers: Vec<&mut [u8]> =
                order.iter().map(|&i| slots[i].take().unwrap().bytes()).collect();
            self.0.run(&call.kernel, call.blocks, &mut buffers, &scalars)?;
        }
        let tensors = places.iter().zip(results).map(|(&at, operand)| memory[at].tensor(operand));
        let tensors = tensors.collect::<Result<_, _>>()?;
        let scratch = memory[first_scratch..].iter_mut().map(|m| m.bytes().to_vec()).collect();
        Ok((tensors, scratch))
    }
}

/// Memory of a buffer, at an address that is a multiple of 64.
struct Memory {
    lines: Vec<Line>,
    bytes: usize,
}

#[derive(Clone, Copy)]
#[repr(C, align(64))]
struct Line([u8; 64]);

impl Memory {
    /// So many bytes, all of them ones: floats that are no numbers.
    fn poisoned(bytes: usize) -> Self {
        Self { lines: vec![Line([0xff; 64]); bytes.div_ceil(64)], bytes }
    }

    fn empty(operand: &Operand) -> Self {
        let elements = operand.dim(0) * operand.row_stride;
        Self::poisoned(operand.ty.dtype.bytes_for(elements) as usize)
    }

    fn of(tensor: &Tensor, operand: &Operand) -> Self {
        let mut memory = Self::empty(operand);
        let size = operand.ty.dtype.bytes_for(1) as usize;
        for (i, &x) in tensor.data().iter().enumerate() {
            let at = at(operand, i) * size;
            memory.bytes()[at..at + size].copy_from_slice(&encode(operand.ty.dtype, x)[..size]);
        }
        memory
    }

    fn bytes(&mut self) -> &mut [u8] {
        let all = self.lines.len() * 64;
        let start = self.lines.as_mut_ptr().cast::<u8>();
        // SAFETY: lines are 64 bytes each and lie behind each other.
        let bytes = unsafe { std::slice::from_raw_parts_mut(start, all) };
        &mut bytes[..self.bytes]
    }

    /// Its elements; gaps between rows must be as they were.
    fn tensor(&mut self, operand: &Operand) -> Result<Tensor, String> {
        let size = operand.ty.dtype.bytes_for(1) as usize;
        let dims: Vec<usize> = (0..operand.ty.rank()).map(|i| operand.dim(i) as usize).collect();
        let elements = dims.iter().product();
        let dtype = operand.ty.dtype;
        let bytes = self.bytes();
        let mut seen = vec![false; bytes.len()];
        let data: Vec<f64> = (0..elements)
            .map(|i| {
                let at = at(operand, i) * size;
                seen[at..at + size].fill(true);
                decode(dtype, &bytes[at..at + size])
            })
            .collect();
        match bytes.iter().zip(&seen).position(|(&b, &seen)| !seen && b != 0xff) {
            Some(at) => Err(format!("byte {at} between rows is written")),
            None => Ok(Tensor::new(dtype, dims, data)),
        }
    }
}

/// Where element `i` of a tensor without gaps is.
fn at(operand: &Operand, i: usize) -> usize {
    let row: u64 = (1..operand.ty.rank()).map(|axis| operand.dim(axis)).product();
    i / row as usize * operand.row_stride as usize + i % row as usize
}

fn encode(dtype: DType, x: f64) -> [u8; 8] {
    let mut bytes = [0; 8];
    match dtype {
        DType::F32 => bytes[..4].copy_from_slice(&(x as f32).to_le_bytes()),
        DType::BF16 => bytes[..2].copy_from_slice(&(x as f32).to_le_bytes()[2..]),
        DType::I32 => bytes[..4].copy_from_slice(&(x as i32).to_le_bytes()),
        DType::I64 => bytes.copy_from_slice(&(x as i64).to_le_bytes()),
        DType::I8 => bytes[0] = x as i8 as u8,
        other => panic!("no test uses {other}"),
    }
    bytes
}

fn decode(dtype: DType, bytes: &[u8]) -> f64 {
    let mut whole = [0; 8];
    whole[..bytes.len()].copy_from_slice(bytes);
    let low = u64::from_le_bytes(whole);
    match dtype {
        DType::F32 => f64::from(f32::from_bits(low as u32)),
        DType::BF16 => f64::from(f32::from_bits((low as u32) << 16)),
        DType::I32 => f64::from(low as i32),
        DType::I64 => low as i64 as f64,
        DType::I8 => f64::from(low as i8),
        other => panic!("no test uses {other}"),
    }
}

/// How far `found` may be from `expected`: a part of the largest element of `expected`, and for
/// `bf16` one step of each element besides.
pub fn near(found: &Tensor, expected: &Tensor, relative: f64) -> Result<(), String> {
    if found.dims() != expected.dims() || found.dtype() != expected.dtype() {
        return Err(format!("dimensions {:?}, expected {:?}", found.dims(), expected.dims()));
    }
    let largest = expected.data().iter().fold(0.0f64, |m, x| m.max(x.abs()));
    for (i, (f, e)) in found.data().iter().zip(expected.data()).enumerate() {
        let step = if found.dtype() == DType::BF16 { e.abs() / 128.0 } else { 0.0 };
        // A comparison that a NaN fails.
        let close = (f - e).abs() <= relative * largest + step;
        if !close {
            return Err(format!("element {i} of {:?}: {f}, expected {e}", found.dims()));
        }
    }
    Ok(())
}

/// Lowers, compiles and runs `cases`, and compares all results with the interpreter's.
pub fn check(lower: Lower, cases: &[Case], relative: f64) {
    let lowered: Vec<Lowered> = cases.iter().map(|c| c.lower(lower).unwrap()).collect();
    let kernels = Kernels::of(&lowered);
    for (case, lowered) in cases.iter().zip(&lowered) {
        let dims: Vec<_> = case.operands.iter().map(|t| (t.dtype(), t.dims().to_vec())).collect();
        let context = format!("{} of {dims:?}, {}", case.op.mnemonic(), lowered.why);
        let found = kernels.run(case, lowered).unwrap_or_else(|e| panic!("{context}: {e}"));
        for (found, expected) in found.iter().zip(&case.expected()) {
            near(found, expected, relative).unwrap_or_else(|e| panic!("{context}: {e}"));
        }
    }
}

/// `right` with `to` in the place of `from`, under names of its own.
pub fn seeded(right: &Lowered, from: &str, to: &str) -> Lowered {
    let mut lowered = right.clone();
    let mut found = false;
    for (file, call) in lowered.files.iter_mut().zip(&mut lowered.calls) {
        found |= file.text.contains(from);
        let name = format!("{}_{}_{}", call.kernel, from.len(), to.len());
        file.text = file.text.replace(from, to).replace(&call.kernel, &name);
        file.path = file.path.replace(&call.kernel, &name);
        call.kernel = name;
    }
    assert!(found, "`{from}` is not in the kernel");
    lowered
}

/// What tells that a kernel is wrong: a rule that it breaks, or the comparison.
pub fn told(kernels: &Kernels, case: &Case, lowered: &Lowered, relative: f64) -> String {
    let found = match kernels.run(case, lowered) {
        Err(error) => return error,
        Ok(found) => found,
    };
    let compared = found.iter().zip(&case.expected()).try_for_each(|(f, e)| near(f, e, relative));
    let name = &lowered.calls[0].kernel;
    compared.expect_err(&format!("nothing tells that {name} is wrong"))
}
