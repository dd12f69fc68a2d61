//! Small constants that only the reference interpreter computes.

use super::{Id, Recipe, build::Made, values};
use crate::CompileError;
use ir::{Bindings, DType, Dim, Func, Node, Op, TensorType, ValueId, interp, text};

/// Elements of an operand or a result that are few enough: the interpreter holds them all as `f64`
/// and takes its time.
const MOST_ELEMENTS: u64 = 1 << 16;

/// Result `index` of `node`, an op of `func` whose operands are `args`, as its meaning says.
pub(super) fn computed(func: &Func, node: &Node, index: usize, args: Vec<Id>) -> Made {
    let name = node.op.mnemonic();
    if let Op::AllReduce { .. } | Op::AllGather { .. } | Op::Fused { .. } = node.op {
        return Made::No(format!("`{name}` is not evaluated at compile time"));
    }
    let small = |v: &ValueId| {
        let dims = func.values[*v].ty.const_dims();
        dims.is_some_and(|dims| dims.iter().product::<u64>() <= MOST_ELEMENTS)
    };
    if !node.args.iter().chain(&node.outs).all(small) {
        return Made::No(format!(
            "`{name}` of more than {MOST_ELEMENTS} elements is not evaluated at compile time"
        ));
    }
    let mut formula = Func::new("formula");
    let param = |(i, &arg): (usize, &ValueId)| (format!("x{i}"), func.values[arg].ty.clone());
    let params: Vec<(String, TensorType)> = node.args.iter().enumerate().map(param).collect();
    let params: Vec<ValueId> = params.into_iter().map(|(n, ty)| formula.param(&n, ty)).collect();
    let made = formula.append(node.op.clone(), &params, "y").expect("the types gave the op before");
    formula.set_results(vec![formula.nodes[made].outs[index]]);
    Made::New(Recipe::Computed { formula: text::print(&formula).into(), args })
}

/// The first result of `formula`, a function as text, for operands of these bytes.
pub(super) fn compute(formula: &str, operands: &[Vec<u8>]) -> Result<Vec<u8>, CompileError> {
    let failed = |why: String| CompileError::ConstantFolding { value: "formula".to_owned(), why };
    let func = text::parse("formula", formula).map_err(|e| failed(e.to_string()))?.funcs.remove(0);
    let tensor = |(&param, raw): (&ValueId, &Vec<u8>)| {
        let ty = &func.values[param].ty;
        let dims = ty.dims.iter().filter_map(Dim::as_const).map(|d| d as usize).collect();
        Ok(interp::Tensor::new(ty.dtype, dims, exact(ty.dtype, raw)?))
    };
    let inputs: Vec<interp::Tensor> =
        func.params.iter().zip(operands).map(tensor).collect::<Result<_, CompileError>>()?;
    let none = |name: &str| -> interp::Tensor { unreachable!("a formula names no weight {name}") };
    let results = interp::run(&func, &inputs, &none, &Bindings::new());
    let results = results.map_err(|e| failed(e.to_string()))?;
    let mut out = Vec::new();
    pack(results[0].dtype(), results[0].data(), &mut out)?;
    Ok(out)
}

/// Elements as they are.
pub(super) fn exact(dtype: DType, raw: &[u8]) -> Result<Vec<f64>, CompileError> {
    Ok(match dtype {
        DType::I32 => raw.as_chunks().0.iter().map(|&b| f64::from(i32::from_le_bytes(b))).collect(),
        DType::I64 => raw.as_chunks().0.iter().map(|&b| i64::from_le_bytes(b) as f64).collect(),
        _ => values::numbers(dtype, raw)?.into_iter().map(f64::from).collect(),
    })
}

/// Appends elements that are values of `dtype`.
fn pack(dtype: DType, data: &[f64], out: &mut Vec<u8>) -> Result<(), CompileError> {
    match dtype {
        DType::F32 | DType::BF16 | DType::F16 => {
            let numbers: Vec<f32> = data.iter().map(|&v| v as f32).collect();
            values::store(dtype, &numbers, out)?;
        }
        DType::I32 => out.extend(data.iter().flat_map(|&v| (v as i32).to_le_bytes())),
        DType::I64 => out.extend(data.iter().flat_map(|&v| (v as i64).to_le_bytes())),
        DType::I8 => out.extend(data.iter().map(|&v| v as i8 as u8)),
        DType::U8 => out.extend(data.iter().map(|&v| v as u8)),
        DType::I4 => nibbles(data.iter().map(|&v| v as i8 as u8), out),
        DType::MxFp4 => nibbles(codes(dtype, data)?.into_iter(), out),
        DType::F8E4M3 => out.extend(codes(dtype, data)?),
    }
    Ok(())
}

fn nibbles(codes: impl Iterator<Item = u8>, out: &mut Vec<u8>) {
    let codes: Vec<u8> = codes.collect();
    out.extend(codes.as_chunks().0.iter().map(|&[low, high]| low & 15 | high << 4));
}

/// The codes of elements in a type of at most eight bits; all ones for what is no number.
fn codes(dtype: DType, data: &[f64]) -> Result<Vec<u8>, CompileError> {
    let all: Vec<u8> = (0..=255).collect();
    let per_byte = 8 / dtype.bits() as usize;
    let values = values::numbers(dtype, &all)?;
    // Of two codes in a byte the lower counts up.
    let values: Vec<f32> = match per_byte {
        1 => values,
        _ => values.into_iter().step_by(per_byte).take(16).collect(),
    };
    let code = |&v: &f64| {
        let same = |c: &f32| f64::from(*c) == v && c.is_sign_negative() == v.is_sign_negative();
        values.iter().position(same).map_or(0x7f, |code| code as u8)
    };
    Ok(data.iter().map(code).collect())
}
