//! Composites whose ops go row by row: which of their values no other row needs.

use crate::place::{Placed, Request, place};
use artifact::{Chain, Placement};
use ir::{EntityId, Func, Op, ValueDef, ValueId};
use passes::TargetInfo;

/// A chain whose steps are known.
pub(crate) struct PendingChain {
    /// First step and the one past the last.
    pub(crate) steps: std::ops::Range<usize>,
    pub(crate) rows: u64,
    /// Buffers of the private memory, one row each.
    pub(crate) private: Vec<Request>,
}

impl PendingChain {
    /// Offsets of the private buffers.
    pub(crate) fn place(&mut self, align: u64) -> Placed {
        place(&mut self.private, 0, align)
    }

    /// The chain of the plan, with private buffers at the offsets of `placed`.
    pub(crate) fn finish(&self, placed: &Placed) -> Chain {
        let placements = self.private.iter().zip(&placed.offsets).map(|(r, &offset)| Placement {
            offset,
            bytes: r.bytes,
            first: r.first,
            last: r.last,
        });
        Chain {
            first: self.steps.start as u32,
            steps: self.steps.len() as u32,
            rows: self.rows as u32,
            private_bytes: placed.arena_bytes,
            placements: placements.collect(),
        }
    }
}

/// The rows of `body` when the target runs all of its ops row by row.
pub(crate) fn rows(body: &Func, target: &TargetInfo) -> Option<u64> {
    let runs = body.order.iter().all(|&n| target.runs_rows_of(&body.nodes[n].op));
    let rows = body.is_row_wise().filter(|_| runs)?.as_const()?;
    (1..=u64::from(u32::MAX)).contains(&rows).then_some(rows)
}

/// For each value of `body`, which goes row by row: whether only its ops use it. Vectors, whose rows
/// are single elements, stay in the arena.
pub(crate) fn private(body: &Func) -> Vec<bool> {
    let mut private: Vec<bool> = body
        .values
        .iter()
        .map(|(_, v)| matches!(v.def, ValueDef::Result { .. }) && v.ty.rank() > 1)
        .collect();
    for &result in &body.results {
        let mut value: ValueId = result;
        // A result may be a part of another value.
        loop {
            private[value.index()] = false;
            match body.def_node(value) {
                Some((_, node)) if matches!(node.op, Op::Reshape { .. } | Op::Slice { .. }) => {
                    value = node.args[0];
                }
                _ => break,
            }
        }
    }
    private
}

#[cfg(test)]
mod tests {
    use super::*;

    const BODY: &str = "func @rows(%x: f32[3,8], %ids: i32[3], %kv: state f32[4,16,8]) {
  %a = silu %x : f32[3,8]
  %b = mul %a, %x : f32[3,8]
  %c = reshape %b {dims = [3,2,4]} : f32[3,2,4]
  %i = argmax %a : i32[3]
  %kv_1 = paged_write %kv, %a, %ids : state f32[4,16,8]
  return %c, %kv_1
}
";

    fn body() -> Func {
        ir::text::parse("body.ir", BODY).unwrap().funcs.remove(0)
    }

    #[test]
    fn values_that_nothing_outside_sees_are_private() {
        let body = body();
        let private = private(&body);
        let named: Vec<&str> = body
            .values
            .iter()
            .filter(|(v, value)| private[v.index()] && value.ty.storage == ir::Storage::Tensor)
            .map(|(_, v)| v.name.as_str())
            .collect();
        assert_eq!(named, ["a"], "b is what c shows, i has no rows");
    }

    #[test]
    fn the_target_decides_which_ops_go_row_by_row() {
        let mut target = TargetInfo::everything();
        assert_eq!(rows(&body(), &target), Some(3));
        target.row_wise_ops.retain(|op| op != "argmax");
        assert_eq!(rows(&body(), &target), None);
    }
}
