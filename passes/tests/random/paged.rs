//! Attention over paged caches in random functions.

use super::graph::{f32s, op};
use ir::{DType, Func, Op, TensorType, ValueId};

/// Caches of attention, latent and other, and where rows stand in them.
pub(super) struct Paged {
    slots: ValueId,
    table: ValueId,
    pub(super) positions: ValueId,
    pub(super) states: [ValueId; 2],
    pub(super) kv: ValueId,
    /// Keys of the indexer.
    pub(super) index: ValueId,
}

impl Paged {
    pub(super) fn new(func: &mut Func) -> Self {
        let i32s = |dims| f32s(dims).with_dtype(DType::I32);
        let state = |dims| TensorType::state(DType::F32, f32s(dims).dims);
        Self {
            slots: func.param("slots", i32s("[T]")),
            table: func.param("table", i32s("[T,W]")),
            positions: func.param("positions", i32s("[T]")),
            states: [
                func.param("latent", state("[NB,4,6]")),
                func.param("rope_key", state("[NB,4,2]")),
            ],
            kv: func.param("kv", state("[NB,2,1,4,4]")),
            index: func.param("index_key", state("[NB,4,2]")),
        }
    }

    /// Attention of two query heads to one key head, all parts of one projection of the rows `x`, with
    /// norms of queries and keys if `normed`.
    pub(super) fn attention(
        &mut self,
        func: &mut Func,
        x: ValueId,
        normed: bool,
    ) -> Option<ValueId> {
        if func.values[x].ty.rank() != 2 {
            return None;
        }
        let n = func.values[x].ty.dims[1].as_const()?;
        let weight = func.weight(&format!("qkv.{n}"), f32s(&format!("[16,{n}]")));
        let norm = func.weight("norm.head", f32s("[4]"));
        let spec = "rope(theta=10000,dim=2)".parse().expect("a specification");
        let rope = op(func, Op::RopeTable { spec }, &[self.positions])?;
        let joined = op(func, Op::Matmul { out: DType::F32 }, &[x, weight])?;
        let mut heads = |start: u64, n: u64| {
            let part = op(func, Op::Slice { axis: 1, start, len: 4 * n }, &[joined])?;
            let dims = format!("[T,{n},4]").parse().expect("dims");
            let part = op(func, Op::Reshape { dims }, &[part])?;
            if start == 12 {
                return Some(part);
            }
            let part = match normed {
                true => op(func, Op::RmsNorm { eps: 1e-6, out: DType::F32 }, &[part, norm])?,
                false => part,
            };
            op(func, Op::Rotary { interleaved: normed }, &[part, rope])
        };
        let (q, k, v) = (heads(0, 2)?, heads(8, 1)?, heads(12, 1)?);
        self.kv = op(func, Op::KvWrite {}, &[self.kv, k, v, self.slots])?;
        let mut args = vec![q, self.kv, self.table, self.positions];
        let attention = match n % 8 {
            0 => {
                args.push(func.weight("sinks", f32s("[2]")));
                Op::SinkAttention { scale: 0.5, window: 3 * u64::from(normed), out: DType::F32 }
            }
            _ => Op::Attention { scale: 0.5, out: DType::F32 },
        };
        let mixed = op(func, attention, &args)?;
        op(func, Op::Reshape { dims: "[T,8]".parse().expect("dims") }, &[mixed])
    }

    /// Latent attention of the rows `x`, its queries rounded to `out`; to the places alone that an
    /// indexer chooses if `sparse`, with keys and values of each head if `expanded`.
    pub(super) fn latent_attention(
        &mut self,
        func: &mut Func,
        x: ValueId,
        out: DType,
        [sparse, expanded]: [bool; 2],
    ) -> Option<ValueId> {
        if func.values[x].ty.rank() != 2 {
            return None;
        }
        let n = func.values[x].ty.dims[1].as_const()?;
        let mut weight = |name: &str, dims: &str| func.weight(&format!("{name}.{n}"), f32s(dims));
        let norms = [weight("norm.q", "[4]"), weight("norm.kv", "[6]")];
        let down = [weight("q_a", &format!("[4,{n}]")), weight("kv_a", &format!("[8,{n}]"))];
        let up = weight("q_b", "[12,4]");
        let maps = match expanded {
            true => vec![weight("k_b", "[2,4,6]"), weight("v_b", "[2,3,6]")],
            false => vec![weight("uk", "[2,6,4]")],
        };
        let matmul = Op::Matmul { out: DType::F32 };
        let norm = Op::RmsNorm { eps: 1e-6, out: DType::F32 };
        let part = |start, len| Op::Slice { axis: 1, start, len };
        let heads =
            |n: u64, d: u64| Op::Reshape { dims: format!("[T,{n},{d}]").parse().expect("dims") };
        let rotary = Op::Rotary { interleaved: true };
        let spec = "rope(theta=10000,dim=2)".parse().expect("a specification");
        let rope = op(func, Op::RopeTable { spec }, &[self.positions])?;

        let q = op(func, matmul.clone(), &[x, down[0]])?;
        let q = op(func, Op::RmsNorm { eps: 1e-6, out }, &[q, norms[0]])?;
        let q = op(func, matmul.clone(), &[q, up])?;
        let [nope, turned] = [part(0, 8), part(8, 4)].map(|p| op(func, p, &[q]));
        let nope = op(func, heads(2, 4), &[nope?])?;
        let nope = match expanded {
            true => nope,
            false => op(func, Op::HeadMatmul { out: DType::F32 }, &[nope, maps[0]])?,
        };
        let turned = op(func, heads(2, 2), &[turned?])?;
        let turned = op(func, rotary.clone(), &[turned, rope])?;
        let kv = op(func, matmul, &[x, down[1]])?;
        let [vector, key] = [part(0, 6), part(6, 2)].map(|p| op(func, p, &[kv]));
        let vector = op(func, norm, &[vector?, norms[1]])?;
        let key = op(func, heads(1, 2), &[key?])?;
        let key = op(func, rotary, &[key, rope])?;
        let flat = Op::Reshape { dims: "[T,2]".parse().expect("dims") };
        let key = op(func, flat, &[key])?;
        for (state, row) in self.states.iter_mut().zip([vector, key]) {
            *state = op(func, Op::PagedWrite {}, &[*state, row, self.slots])?;
        }
        let [latent, rope_key] = self.states;
        let mut args = vec![nope, turned];
        args.extend(maps.iter().filter(|_| expanded));
        args.extend([latent, rope_key, self.table, self.positions]);
        if sparse {
            let scores = func.weight(&format!("scores.{n}"), f32s(&format!("[2,{n}]")));
            let scores = op(func, Op::Matmul { out: DType::F32 }, &[x, scores])?;
            self.index = op(func, Op::PagedWrite {}, &[self.index, key, self.slots])?;
            let select = Op::SelectKeys { keys: 3, scale: 0.5 };
            let of = [turned, scores, self.index, self.table, self.positions];
            args.push(op(func, select, &of)?);
        }
        let (scale, out) = (0.5, DType::F32);
        let (attention, dims) = match [sparse, expanded] {
            [false, false] => (Op::LatentAttention { scale, out }, "[T,12]"),
            [true, false] => (Op::SparseLatentAttention { scale, out }, "[T,12]"),
            [false, true] => (Op::ExpandedLatentAttention { scale, out }, "[T,6]"),
            [true, true] => (Op::SparseExpandedLatentAttention { scale, out }, "[T,6]"),
        };
        let mixed = op(func, attention, &args)?;
        op(func, Op::Reshape { dims: dims.parse().expect("dims") }, &[mixed])
    }
}
