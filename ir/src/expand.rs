//! Fused ops as the primitive ops they replace. The interpreter runs these, so a fused op has no
//! meaning of its own that could drift from its parts.

use crate::{
    attr::Dims,
    entity::ValueId,
    func::Func,
    op::{Op, TypeError},
    rules::ensure,
    types::{Dim, TensorType},
};
use tensor::{DType, Layout};

impl Op {
    /// The function that this fused op stands for: its parameters are the operands, its results the
    /// results. Its ops are primitive, but for what a composite has inside. Parameters have no layout,
    /// but for those of a composite; a layout moves no element. `None` for a primitive op.
    ///
    /// # Errors
    /// [`TypeError`] when the operands break the typing rule of a part.
    pub fn expand(&self, operands: &[&TensorType]) -> Result<Option<Func>, TypeError> {
        if !self.is_fused() {
            return Ok(None);
        }
        // The typing rule checks the number of operands.
        self.infer(operands)?;
        match self {
            Op::Fused { body } => Ok(Some(body.func().clone())),
            _ => self.body(operands).map(Some),
        }
    }

    /// Types of the results of its body.
    pub(crate) fn type_of_body(
        &self,
        operands: &[&TensorType],
    ) -> Result<Vec<TensorType>, TypeError> {
        let body = self.body(operands)?;
        Ok(body.results.iter().map(|&r| body.values[r].ty.clone()).collect())
    }

    /// The body of a fused op other than a composite, for as many operands as it has.
    fn body(&self, operands: &[&TensorType]) -> Result<Func, TypeError> {
        let mut body = Builder { func: Func::new(self.mnemonic()), args: Vec::new() };
        for (i, ty) in operands.iter().enumerate() {
            let arg = body.func.param(&format!("arg{i}"), ty.with_layout(Layout::Nd));
            body.args.push(arg);
        }
        let results = match self {
            Op::AddRmsNorm { eps, out } => body.add_rms_norm(*eps, *out)?,
            Op::SiluMul { out } => {
                let (gate, up) = (body.args[0], body.args[1]);
                vec![body.silu_mul(gate, up, *out)?]
            }
            &Op::SiluMulPairs { block, out } => {
                let [gate, up] = body.halves(block, body.args[0])?;
                vec![body.silu_mul(gate, up, out)?]
            }
            &Op::SwigluClampedPairs { block, alpha, limit, out } => {
                let halves = body.halves(block, body.args[0])?;
                vec![body.op(Op::SwigluClamped { alpha, limit, out }, &halves)?]
            }
            Op::DequantMatmul { group, out } => {
                let weight = body.dequantize(*group, body.args[1], body.args[2])?;
                vec![body.op(Op::Matmul { out: *out }, &[body.args[0], weight])?]
            }
            Op::GroupedDequantMatmul { group, out } => {
                let weight = body.dequantize(*group, body.args[3], body.args[4])?;
                let args = [body.args[0], body.args[1], body.args[2], weight];
                vec![body.op(Op::GroupedMatmul { out: *out }, &args)?]
            }
            _ => unreachable!("every fused op has a body"),
        };
        body.func.set_results(results);
        Ok(body.func)
    }
}

struct Builder {
    func: Func,
    args: Vec<ValueId>,
}

impl Builder {
    fn op(&mut self, op: Op, args: &[ValueId]) -> Result<ValueId, TypeError> {
        let node = self.func.append(op, args, "")?;
        Ok(self.func.nodes[node].outs[0])
    }

    /// The values of a weight in f32.
    fn dequantize(
        &mut self,
        group: u64,
        codes: ValueId,
        scale: ValueId,
    ) -> Result<ValueId, TypeError> {
        self.op(Op::Dequantize { group, out: DType::F32 }, &[codes, scale])
    }

    fn add_rms_norm(&mut self, eps: f32, out: DType) -> Result<Vec<ValueId>, TypeError> {
        let sum = self.op(Op::Add {}, &[self.args[0], self.args[1]])?;
        let normed = self.op(Op::RmsNorm { eps, out }, &[sum, self.args[2]])?;
        Ok(vec![sum, normed])
    }

    fn silu_mul(&mut self, gate: ValueId, up: ValueId, to: DType) -> Result<ValueId, TypeError> {
        let gated = self.op(Op::Silu {}, &[gate])?;
        let product = self.op(Op::Mul {}, &[gated, up])?;
        self.op(Op::Cast { to }, &[product])
    }

    /// Columns of `x` that alternate in blocks of `block`, one side and the other.
    fn halves(&mut self, block: u64, x: ValueId) -> Result<[ValueId; 2], TypeError> {
        let ty = self.func.values[x].ty.clone();
        let mut half = ty.dims.clone();
        let columns = half.pop().and_then(|d| d.as_const()).unwrap_or_default();
        let pair = block.checked_mul(2).filter(|&pair| pair > 0 && columns.is_multiple_of(pair));
        ensure(columns > 0 && pair.is_some(), "columns must be whole pairs of blocks", &ty)?;
        let mut pairs = half.clone();
        pairs.extend([Dim::Const(columns / (2 * block)), Dim::Const(2), Dim::Const(block)]);
        let axis = pairs.len() as u64 - 2;
        half.push(Dim::Const(columns / 2));

        let pairs = self.op(Op::Reshape { dims: Dims(pairs) }, &[x])?;
        let mut halves = [pairs; 2];
        for (start, side) in (0..).zip(&mut halves) {
            let blocks = self.op(Op::Slice { axis, start, len: 1 }, &[pairs])?;
            *side = self.op(Op::Reshape { dims: Dims(half.clone()) }, &[blocks])?;
        }
        Ok(halves)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn f32s(dims: &[&str]) -> TensorType {
        let dims: Dims = format!("[{}]", dims.join(",")).parse().unwrap();
        TensorType::new(DType::F32, dims.0)
    }

    /// A layout of a weight is no matter of its meaning.
    #[test]
    fn bodies_are_primitive_and_verify() {
        let (x, row) = (f32s(&["T", "8"]), f32s(&["8"]));
        let deep = f32s(&["T", "2", "8"]);
        let out = DType::BF16;
        let codes = TensorType::new(DType::I8, [12, 8].map(Dim::Const));
        let (scale, pairs) =
            (f32s(&["12", "2"]), TensorType::new(DType::I32, [4, 2].map(Dim::Const)));
        let starts = TensorType::new(DType::I32, [Dim::Const(4)]);
        let stack = codes.with_dims([3, 12, 8].map(Dim::Const));
        let (rows, stack_scale) = (f32s(&["4", "8"]), f32s(&["3", "12", "2"]));
        let panels = |t: &TensorType| t.with_layout(Layout::Panels);
        let (codes_panels, scale_panels) = (panels(&codes), panels(&scale));
        let cases: Vec<(Op, Vec<&TensorType>, &str)> = vec![
            (Op::AddRmsNorm { eps: 1e-6, out }, vec![&x, &x, &row], "[f32[T,8], bf16[T,8]]"),
            (Op::SiluMul { out }, vec![&x, &x], "[bf16[T,8]]"),
            (Op::SiluMulPairs { block: 4, out }, vec![&x], "[bf16[T,4]]"),
            (Op::SiluMulPairs { block: 1, out }, vec![&deep], "[bf16[T,2,4]]"),
            (
                Op::SwigluClampedPairs { block: 2, alpha: 1.7, limit: 7.0, out },
                vec![&deep],
                "[bf16[T,2,4]]",
            ),
            (Op::DequantMatmul { group: 4, out }, vec![&x, &codes, &scale], "[bf16[T,12]]"),
            (
                Op::DequantMatmul { group: 4, out },
                vec![&x, &codes_panels, &scale_panels],
                "[bf16[T,12]]",
            ),
            (
                Op::GroupedDequantMatmul { group: 4, out },
                vec![&rows, &pairs, &starts, &stack, &stack_scale],
                "[bf16[4,2,12]]",
            ),
        ];
        for (op, operands, types) in cases {
            let body = op.expand(&operands).unwrap().unwrap();
            body.verify().unwrap();
            assert!(body.order.iter().all(|&n| !body.nodes[n].op.is_fused()));
            assert_eq!(format!("{:?}", op.infer(&operands).unwrap()), types, "{}", op.mnemonic());
        }
    }
}
