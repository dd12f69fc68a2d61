//! Which ops compute each row from the same row of their operands.

use crate::{
    entity::{NodeId, ValueId},
    func::{Func, ValueDef},
    op::Op,
    types::{Dim, Storage, TensorType},
};
use tensor::DType;

impl Op {
    /// For an op whose row `t` (index of the first axis of its results) depends on row `t` of its
    /// operands alone: the operands that are no rows but tables, which every row may read all of. A
    /// state that is written row by row is one of them. `None` for other ops.
    pub fn row_wise(&self) -> Option<&'static [usize]> {
        match self {
            Op::Cast { .. }
            | Op::Reshape { .. }
            | Op::Add {}
            | Op::Mul {}
            | Op::Silu {}
            | Op::AddScalar { .. }
            | Op::Sigmoid {}
            | Op::ScaleRows {}
            | Op::SwigluClamped { .. }
            | Op::L2Norm { .. }
            | Op::Argmax {}
            | Op::TopK { .. }
            | Op::QuantizeRows {}
            | Op::QuantizeFp8 { .. }
            | Op::CombineExperts { .. }
            | Op::RopeTable { .. }
            | Op::Rotary { .. }
            | Op::SiluMul { .. }
            | Op::SiluMulPairs { .. }
            | Op::SwigluClampedPairs { .. } => Some(&[]),
            Op::Slice { axis, .. } | Op::Concat { axis } if *axis > 0 => Some(&[]),
            Op::StoreRows {} | Op::GatherRows {} => Some(&[0]),
            Op::Embed { .. } | Op::AddBias {} | Op::RmsNorm { .. } | Op::Route { .. } => Some(&[1]),
            Op::LayerNorm { .. } | Op::QuantizeStatic {} | Op::DeltaGate {} => Some(&[1, 2]),
            Op::AddRmsNorm { .. } | Op::ExpertBias {} => Some(&[2]),
            // The last of the rows that share a slot writes it, so each row sees all slots.
            Op::PagedWrite {} => Some(&[0, 2]),
            Op::KvWrite {} => Some(&[0, 3]),
            _ => None,
        }
    }
}

impl Func {
    /// The number of rows of `node` when it is row-wise: every operand that is no table and every
    /// result that is no state has as many.
    pub fn rows_of(&self, node: NodeId) -> Option<Dim> {
        let node = &self.nodes[node];
        let tables = node.op.row_wise()?;
        let rows = node.args.iter().enumerate().filter(|(i, _)| !tables.contains(i));
        let results = node.outs.iter().map(|&o| &self.values[o].ty);
        let results = results.filter(|ty| ty.storage == Storage::Tensor);
        let mut all = rows.map(|(_, &a)| &self.values[a].ty).chain(results);
        let found = first_axis(all.next()?)?;
        all.all(|ty| first_axis(ty) == Some(found)).then(|| found.clone())
    }

    /// The number of rows of a function whose ops are all row-wise over as many; it reads tables
    /// that its caller gives, not those that it computes.
    pub fn is_row_wise(&self) -> Option<Dim> {
        let found = self.rows_of(*self.order.first()?)?;
        let is_given = |&v: &ValueId| matches!(self.values[v].def, ValueDef::Param);
        let fits = |&n: &NodeId| {
            let node = &self.nodes[n];
            let mut tables = node.op.row_wise().unwrap_or_default().iter();
            let given = tables.all(|&i| node.args.get(i).is_none_or(is_given));
            given && self.rows_of(n).as_ref() == Some(&found)
        };
        self.order.iter().all(fits).then_some(found)
    }
}

/// The first axis of what has rows: tensors of rank 2 and more, and vectors of integers, such as
/// positions. (A vector of floats is the one row of a table.)
fn first_axis(ty: &TensorType) -> Option<&Dim> {
    let has_rows = ty.rank() > 1 || matches!(ty.dtype, DType::I32 | DType::I64);
    (ty.storage == Storage::Tensor && has_rows).then(|| ty.dims.first()).flatten()
}

#[cfg(test)]
mod tests {
    use crate::{Dim, text};

    fn rows(ops: &str) -> Option<Dim> {
        let text = format!(
            "func @f(%x: f32[T,8], %ids: i32[T], %y: f32[R,8], %kv: state f32[NB,4,8], %w: f32[8]) {{
{ops}  return %o\n}}\n"
        );
        text::parse("test.ir", &text).unwrap_or_else(|e| panic!("{e}")).funcs[0].is_row_wise()
    }

    #[test]
    fn rows_are_those_of_every_operand_and_result() {
        let t = Some(Dim::sym("T"));
        assert_eq!(rows("  %o = rms_norm %x, %w {eps = 1e-6, out = f32} : f32[T,8]\n"), t);
        assert_eq!(rows("  %o = slice %x {axis = 1, start = 0, len = 4} : f32[T,4]\n"), t);
        assert_eq!(rows("  %o = reshape %x {dims = [T,2,4]} : f32[T,2,4]\n"), t);
        assert_eq!(rows("  %o = paged_write %kv, %x, %ids : state f32[NB,4,8]\n"), t);
        assert_eq!(rows("  %o = gather_rows %x, %ids : f32[T,8]\n"), t);
        assert_eq!(rows("  %o = silu %w : f32[8]\n"), None, "a vector has no rows");
        assert_eq!(rows("  %o = reshape %x {dims = [8,T]} : f32[8,T]\n"), None, "other rows");
        assert_eq!(rows("  %o = matmul %x, %y {out = f32} : f32[T,R]\n"), None);
    }

    #[test]
    fn a_function_has_one_number_of_rows_and_is_given_its_tables() {
        let two = "  %o = silu %x : f32[T,8]\n  %p = silu %y : f32[R,8]\n";
        assert_eq!(rows(two), None);
        let table = "  %s = silu %x : f32[T,8]\n  %o = gather_rows %s, %ids : f32[T,8]\n";
        assert_eq!(rows(table), None);
    }
}
