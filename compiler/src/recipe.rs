//! Weight recipes: what a packed weight is made of, evaluated a few rows at a time so that memory
//! stays near one tensor.

use crate::CompileError;
use half::bf16;
use ir::{DType, Func, Layout, Op, ValueDef, ValueId};
use std::fmt;
use tensor::WeightSource;

/// An expression over checkpoint tensors. Vectors count as matrices of one row.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Recipe {
    /// A tensor of the checkpoint.
    Tensor { name: String, dtype: DType, rows: u64, cols: u64 },
    /// The same values in another element type.
    Cast { to: DType, x: Box<Recipe> },
    /// Parts one below the other.
    Rows { parts: Vec<Recipe> },
    /// Vectors one after the other.
    Columns { parts: Vec<Recipe> },
    /// Rows of `a` and `b` in alternating blocks.
    Interleave { block: u64, a: Box<Recipe>, b: Box<Recipe> },
}

/// A recipe with the arrangement it is stored in.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Packed {
    pub(crate) recipe: Recipe,
    pub(crate) layout: Layout,
    pub(crate) dims: Vec<u64>,
}

impl fmt::Display for Recipe {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let list = |f: &mut fmt::Formatter<'_>, name: &str, parts: &[Recipe]| {
            write!(f, "{name}(")?;
            for (i, p) in parts.iter().enumerate() {
                write!(f, "{}{p}", if i > 0 { ", " } else { "" })?;
            }
            f.write_str(")")
        };
        match self {
            Recipe::Tensor { name, .. } => f.write_str(name),
            Recipe::Cast { to, x } => write!(f, "{to}({x})"),
            Recipe::Rows { parts } => list(f, "rows", parts),
            Recipe::Columns { parts } => list(f, "columns", parts),
            Recipe::Interleave { block, a, b } => write!(f, "interleave{block}({a}, {b})"),
        }
    }
}

impl Packed {
    /// The recipe of constant `value`.
    pub(crate) fn of(func: &Func, value: ValueId) -> Result<Self, CompileError> {
        let ty = &func.values[value].ty;
        let dims = ty.const_dims().ok_or_else(|| not_foldable(func, value, "has a symbol"))?;
        let mut root = value;
        while let Some(node) = func.def(root) {
            match &func.nodes[node].op {
                Op::Relayout { .. } => root = func.nodes[node].args[0],
                _ => break,
            }
        }
        Ok(Self { recipe: recipe(func, root)?, layout: ty.layout, dims })
    }
}

fn not_foldable(func: &Func, value: ValueId, why: &str) -> CompileError {
    CompileError::ConstantFolding { value: func.values[value].name.clone(), why: why.to_owned() }
}

fn recipe(func: &Func, value: ValueId) -> Result<Recipe, CompileError> {
    let Value { rows, cols } = shape(func, value)?;
    let node = match &func.values[value].def {
        ValueDef::Weight(name) => {
            let dtype = func.values[value].ty.dtype;
            return Ok(Recipe::Tensor { name: name.clone(), dtype, rows, cols });
        }
        ValueDef::Param => return Err(not_foldable(func, value, "is a parameter")),
        ValueDef::Result { node, .. } => &func.nodes[*node],
    };
    let arg = |i: usize| recipe(func, node.args[i]);
    let all = || node.args.iter().map(|&a| recipe(func, a)).collect::<Result<Vec<_>, _>>();
    match &node.op {
        Op::Cast { to } => Ok(Recipe::Cast { to: *to, x: Box::new(arg(0)?) }),
        Op::Concat { axis: 0 } if func.values[value].ty.rank() == 1 => {
            Ok(Recipe::Columns { parts: all()? })
        }
        Op::Concat { axis: 0 } => Ok(Recipe::Rows { parts: all()? }),
        Op::Interleave { block } => {
            Ok(Recipe::Interleave { block: *block, a: Box::new(arg(0)?), b: Box::new(arg(1)?) })
        }
        Op::Relayout { .. } => Err(not_foldable(func, value, "a layout inside an expression")),
        other => Err(not_foldable(
            func,
            value,
            &format!("`{}` is not evaluated at compile time", other.mnemonic()),
        )),
    }
}

struct Value {
    rows: u64,
    cols: u64,
}

fn shape(func: &Func, value: ValueId) -> Result<Value, CompileError> {
    match func.values[value].ty.const_dims().as_deref() {
        Some([cols]) => Ok(Value { rows: 1, cols: *cols }),
        Some([rows, cols]) => Ok(Value { rows: *rows, cols: *cols }),
        _ => Err(not_foldable(func, value, "is no vector or matrix")),
    }
}

impl Recipe {
    /// Rows and columns.
    pub(crate) fn shape(&self) -> (u64, u64) {
        match self {
            Recipe::Tensor { rows, cols, .. } => (*rows, *cols),
            Recipe::Cast { x, .. } => x.shape(),
            Recipe::Rows { parts } => (parts.iter().map(|p| p.shape().0).sum(), parts[0].shape().1),
            Recipe::Columns { parts } => (1, parts.iter().map(|p| p.shape().1).sum()),
            Recipe::Interleave { a, .. } => (2 * a.shape().0, a.shape().1),
        }
    }

    /// Element type.
    pub(crate) fn dtype(&self) -> DType {
        match self {
            Recipe::Tensor { dtype, .. } => *dtype,
            Recipe::Cast { to, .. } => *to,
            Recipe::Rows { parts } | Recipe::Columns { parts } => parts[0].dtype(),
            Recipe::Interleave { a, .. } => a.dtype(),
        }
    }

    /// Rows `start .. start + count`, row-major and dense, appended to `out`.
    pub(crate) fn read(
        &self,
        source: &dyn WeightSource,
        start: u64,
        count: u64,
        out: &mut Vec<u8>,
    ) -> Result<(), CompileError> {
        match self {
            Recipe::Tensor { name, dtype, cols, .. } => {
                let row_bytes = dtype.bytes_for(*cols);
                let at = out.len();
                out.resize(at + (count * row_bytes) as usize, 0);
                source.read(name, start * row_bytes, &mut out[at..])?;
            }
            Recipe::Cast { to, x } => {
                let mut raw = Vec::new();
                x.read(source, start, count, &mut raw)?;
                cast(x.dtype(), *to, &raw, out)?;
            }
            Recipe::Columns { parts } => {
                for part in parts {
                    part.read(source, 0, 1, out)?;
                }
            }
            Recipe::Rows { parts } => {
                let (mut begin, mut at, end) = (0, start, start + count);
                for part in parts {
                    let rows = part.shape().0;
                    let take = (begin + rows).min(end).saturating_sub(at);
                    if at >= begin && take > 0 {
                        part.read(source, at - begin, take, out)?;
                        at += take;
                    }
                    begin += rows;
                }
            }
            Recipe::Interleave { block, a, b } => {
                let (mut at, end) = (start, start + count);
                while at < end {
                    let (pair, inside) = (at / (2 * block), at % (2 * block));
                    let from = if inside < *block { a } else { b };
                    let take = (block - inside % block).min(end - at);
                    from.read(source, pair * block + inside % block, take, out)?;
                    at += take;
                }
            }
        }
        Ok(())
    }
}

fn cast(from: DType, to: DType, raw: &[u8], out: &mut Vec<u8>) -> Result<(), CompileError> {
    if from == to {
        out.extend_from_slice(raw);
        return Ok(());
    }
    let pair = |b: &[u8]| [b[0], b[1]];
    let widen: fn(&[u8]) -> f32 = match from {
        DType::F32 => |b| f32::from_le_bytes([b[0], b[1], b[2], b[3]]),
        DType::BF16 => |b| bf16::from_le_bytes([b[0], b[1]]).to_f32(),
        DType::F16 => |b| half::f16::from_le_bytes([b[0], b[1]]).to_f32(),
        _ => return Err(CompileError::Conversion { from, to }),
    };
    let values = raw.chunks_exact(from.bytes_for(1) as usize).map(widen);
    match to {
        DType::F32 => out.extend(values.flat_map(f32::to_le_bytes)),
        DType::BF16 => out.extend(values.flat_map(|v| pair(&bf16::from_f32(v).to_le_bytes()))),
        DType::F16 => out.extend(values.flat_map(|v| half::f16::from_f32(v).to_le_bytes())),
        _ => return Err(CompileError::Conversion { from, to }),
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashMap;
    use tensor::{TensorInfo, WeightError};

    struct Rows(HashMap<String, Vec<u8>>);

    impl WeightSource for Rows {
        fn info(&self, _: &str) -> Option<&TensorInfo> {
            None
        }
        fn read(&self, name: &str, start: u64, out: &mut [u8]) -> Result<(), WeightError> {
            let bytes = &self.0[name];
            out.copy_from_slice(&bytes[start as usize..start as usize + out.len()]);
            Ok(())
        }
    }

    fn tensor(name: &str, rows: u64) -> Recipe {
        Recipe::Tensor { name: name.into(), dtype: DType::U8, rows, cols: 1 }
    }

    /// Reading any range gives the same bytes as reading everything and cutting.
    #[test]
    fn every_range_agrees_with_the_whole() {
        let source = Rows(HashMap::from([
            ("a".into(), (0..6).collect()),
            ("b".into(), (10..16).collect()),
            ("c".into(), (20..23).collect()),
        ]));
        let gate_up =
            Recipe::Interleave { block: 2, a: tensor("a", 6).into(), b: tensor("b", 6).into() };
        let all = Recipe::Rows { parts: vec![gate_up, tensor("c", 3)] };
        let mut whole = Vec::new();
        all.read(&source, 0, 15, &mut whole).unwrap();
        assert_eq!(whole, [0, 1, 10, 11, 2, 3, 12, 13, 4, 5, 14, 15, 20, 21, 22]);
        for start in 0..15 {
            for count in 0..=15 - start {
                let mut part = Vec::new();
                all.read(&source, start, count, &mut part).unwrap();
                assert_eq!(part, whole[start as usize..(start + count) as usize]);
            }
        }
    }

    #[test]
    fn casts_round_to_nearest_even() {
        let mut out = Vec::new();
        let bits = [0x3f80_8000u32, 0x3f81_8000];
        let raw: Vec<u8> = bits.iter().flat_map(|b| b.to_le_bytes()).collect();
        cast(DType::F32, DType::BF16, &raw, &mut out).unwrap();
        assert_eq!(out, [0x80, 0x3f, 0x82, 0x3f]);
    }
}
