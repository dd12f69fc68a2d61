//! What comes before latent attention, in the form that a library has an operator for.

use super::{guard, kernel, new_nodes::NewNodes, producer};
use crate::rewrite::{Context, Decline, Replacement, Rewrite};
use ir::{Body, DType, Dim, Dims, Func, Layout, Node, NodeId, Op, TensorType, TypeError, ValueId};
use std::collections::BTreeSet;

/// From the normalised rows of a layer to all that `latent_attention` reads becomes a composite of
/// kind `mla_prolog` over rearranged weights, if all of it is in bf16 and has the sizes that the
/// operator is documented for:
///
/// - `x [T,H]`, with `H` one of [`HIDDEN`]
/// - `[H,1536]`, `[1536,heads*192]` and `[H,576]`, constant and in fractals: down to the compressed
///   query, up from it, and down to the compressed vector and the key. Of the 192 columns of a head
///   128 are absorbed and 64 rotated, and columns that are rotated with each other are neighbours
/// - `[heads,128,512]`, which absorbs keys
/// - weights of both norms, cosines `[T,64]` and sines `[T,64]` of the angles twice, `slots i64[T]`
/// - the paged memories `[NB,block,512]` and `[NB,block,64]`, with blocks of 16 or 128
///
/// Rotated channels are in halves, here and in the results. Angles and weights of norms are rounded
/// to bf16, in which the operator takes them. No other op may read a weight or a value in between,
/// so that nothing is stored or computed twice.
pub(crate) struct FuseMlaProlog;

/// Kind of the composite.
const KIND: &str = "mla_prolog";
/// Widths of the rows of a layer.
const HIDDEN: [u64; 9] = [1024, 2048, 3072, 4096, 5120, 6144, 7168, 7680, 8192];
/// Columns of a compressed query.
const QUERY: u64 = 1536;
/// Columns of a compressed vector.
const LATENT: u64 = 512;
/// Channels of a head that are absorbed.
const NOPE: u64 = 128;
/// Channels of a head, and of a key, that are rotated.
const ROPE: u64 = 64;
/// Most heads, which are a power of two.
const HEADS: u64 = 128;
/// Tokens in a block of a paged memory.
const BLOCKS: [u64; 2] = [16, 128];

impl Rewrite for FuseMlaProlog {
    fn name(&self) -> &'static str {
        "fuse-mla-prolog"
    }

    fn source(&self) -> &'static str {
        include_str!("mla_prolog.rs")
    }

    fn apply(
        &self,
        func: &mut Func,
        root: NodeId,
        context: &Context<'_>,
    ) -> Result<Replacement, Decline> {
        let node = &func.nodes[root];
        let (Op::LatentAttention { .. } | Op::SparseLatentAttention { .. }) = node.op else {
            return Err(Decline::NoMatch);
        };
        let &[q_latent, q_rope, latent, rope_key, ..] = &node.args[..] else {
            return Err(Decline::NoMatch);
        };
        producer(func, q_latent)?;
        let results = [q_latent, q_rope, latent, rope_key];
        let (found, nodes) = Parts::of(func, results, || kernel(context.target, KIND))?;
        found.check(func)?;
        let old = func.outline(&nodes, KIND).map_err(|_| Decline::Guard {
            code: "not-convex",
            why: "an op in between depends on some of the ops and feeds others",
        })?;
        let inside = old.results.iter().all(|v| results.contains(v));
        guard(inside, "other-reader", "the compressed query or a part of it has another reader")?;
        let mut new = NewNodes::new(func);
        let values = new.composite(&found, results).map_err(|_| Decline::NoMatch)?;
        let values = results.into_iter().zip(values).collect();
        Ok(Replacement { nodes: new.nodes, values, outlined: old.nodes })
    }
}

/// Columns of a product of rows with a constant.
#[derive(Clone, Copy)]
struct Columns {
    x: ValueId,
    /// `[N,K]`, in no layout.
    weight: ValueId,
    start: u64,
    len: u64,
    out: DType,
}

/// A norm.
#[derive(Clone, Copy)]
struct Norm {
    x: ValueId,
    weight: ValueId,
    eps: f32,
    out: DType,
}

/// What the composite is made of.
struct Parts {
    /// Of `x`: the compressed query, the compressed vector and the key.
    down: [Columns; 3],
    /// Of the compressed query: channels to be absorbed and to be rotated.
    up: [Columns; 2],
    query_norm: Norm,
    latent_norm: Norm,
    /// `[heads,512,128]`.
    absorb: ValueId,
    heads: u64,
    table: ValueId,
    slots: ValueId,
    latent: ValueId,
    rope_key: ValueId,
}

impl Parts {
    fn of(
        func: &Func,
        [q_latent, q_rope, latent, rope_key]: [ValueId; 4],
        kernel: impl FnOnce() -> Result<(), Decline>,
    ) -> Result<(Self, Vec<NodeId>), Decline> {
        let mut walk = Walk { func, nodes: BTreeSet::new() };
        let absorbed = walk.one(q_latent, |op| matches!(op, Op::HeadMatmul { .. }))?;
        let rotated = walk.one(q_rope, |op| matches!(op, Op::Rotary { .. }))?;
        let latent = walk.one(latent, |op| matches!(op, Op::PagedWrite {}))?;
        let rope_key = walk.one(rope_key, |op| matches!(op, Op::PagedWrite {}))?;
        let key = walk.reshaped(rope_key.args[1]);
        let key = walk.one(key, |op| matches!(op, Op::Rotary { .. }))?;
        kernel()?;
        let latent_norm = walk.norm(latent.args[1])?;
        let heads = [absorbed.args[0], rotated.args[0]];
        let [nope, rope] = heads.map(|v| walk.columns(v));
        let up = [nope?, rope?];
        guard(up[0].x == up[1].x, "other-query", "parts of the query have different inputs")?;
        let query_norm = walk.norm(up[0].x).map_err(|_| Decline::Guard {
            code: "no-query-norm",
            why: "queries are not compressed and normalised first",
        })?;
        let down = [query_norm.x, latent_norm.x, key.args[0]].map(|v| walk.columns(v));
        let [query, vector, key_columns] = down;
        let down = [query?, vector?, key_columns?];
        guard(
            down.iter().all(|c| c.x == down[0].x),
            "other-input",
            "queries and keys are made of different rows",
        )?;
        let halves = |node: &Node| node.op == Op::Rotary { interleaved: false };
        guard(
            halves(rotated) && halves(key),
            "neighbours",
            "rotated channels are neighbours, and the operator leaves them in halves",
        )?;
        guard(
            rotated.args[1] == key.args[1],
            "other-angles",
            "queries and keys are rotated by different tables",
        )?;
        guard(
            latent.args[2] == rope_key.args[2],
            "other-input",
            "compressed vectors and keys are written to different places",
        )?;
        let heads = func.values[absorbed.args[0]].ty.dims[1].as_const().unwrap_or_default();
        let parts = Self {
            down,
            up,
            query_norm,
            latent_norm,
            absorb: absorbed.args[1],
            heads,
            table: rotated.args[1],
            slots: latent.args[2],
            latent: latent.args[0],
            rope_key: rope_key.args[0],
        };
        Ok((parts, walk.nodes.into_iter().collect()))
    }

    fn check(&self, func: &Func) -> Result<(), Decline> {
        let ty = |v: ValueId| &func.values[v].ty;
        let last = |v: ValueId| ty(v).dims.last().and_then(Dim::as_const).unwrap_or_default();
        let products = || self.down.iter().chain(&self.up);
        let mut floats: Vec<DType> = products().map(|c| c.out).collect();
        floats.extend(products().flat_map(|c| [ty(c.x).dtype, ty(c.weight).dtype]));
        floats.extend([self.query_norm.out, self.latent_norm.out]);
        floats.extend([self.absorb, self.latent, self.rope_key].map(|v| ty(v).dtype));
        let bf16 = floats.iter().all(|&t| t == DType::BF16);
        guard(bf16, "other-type", "the operator computes in bf16, and this is in another type")?;
        let constants = [self.absorb, self.query_norm.weight, self.latent_norm.weight];
        guard(
            constants.iter().all(|&v| func.is_const(v) && ty(v).layout == Layout::Nd),
            "weight-not-constant",
            "a weight is computed at run time",
        )?;
        let lens = |columns: &[Columns]| columns.iter().map(|c| c.len).collect::<Vec<u64>>();
        let blocks = [self.latent, self.rope_key].map(|v| ty(v).dims[1].as_const());
        let sizes = HIDDEN.contains(&last(self.down[0].x))
            && lens(&self.down) == [QUERY, LATENT, ROPE]
            && self.heads.is_power_of_two()
            && self.heads <= HEADS
            && lens(&self.up) == [self.heads * NOPE, self.heads * ROPE]
            && ty(self.absorb).const_dims() == Some(vec![self.heads, LATENT, NOPE])
            && last(self.table) == ROPE
            && blocks[0] == blocks[1]
            && blocks[0].is_some_and(|tokens| BLOCKS.contains(&tokens));
        let why = "sizes are none that the operator is documented for: 1024 to 8192 hidden columns, \
                   1536 of a compressed query, 512 of a compressed vector, up to 128 heads of 128 \
                   and 64 channels, blocks of 16 or 128";
        guard(sizes, "other-size", why)
    }
}

/// Goes against the data flow and takes along what it passes.
struct Walk<'a> {
    func: &'a Func,
    nodes: BTreeSet<NodeId>,
}

impl<'a> Walk<'a> {
    /// What makes `value`, which must be an op that `is_it`.
    fn one(&mut self, value: ValueId, is_it: impl Fn(&Op) -> bool) -> Result<&'a Node, Decline> {
        let (id, node) = producer(self.func, value)?;
        if !is_it(&node.op) {
            return Err(Decline::NoMatch);
        }
        self.nodes.insert(id);
        Ok(node)
    }

    /// What `value` is another shape of.
    fn reshaped(&mut self, mut value: ValueId) -> ValueId {
        while let Ok(node) = self.one(value, |op| matches!(op, Op::Reshape { .. })) {
            value = node.args[0];
        }
        value
    }

    fn norm(&mut self, value: ValueId) -> Result<Norm, Decline> {
        let node = self.one(value, |op| matches!(op, Op::RmsNorm { .. }))?;
        match (&node.op, &node.args[..]) {
            (&Op::RmsNorm { eps, out }, &[x, weight]) => Ok(Norm { x, weight, eps, out }),
            _ => Err(Decline::NoMatch),
        }
    }

    /// The columns of a product that `value` is another shape of.
    fn columns(&mut self, value: ValueId) -> Result<Columns, Decline> {
        let mut value = self.reshaped(value);
        let mut range = None;
        while let Ok(node) = self.one(value, |op| matches!(op, Op::Slice { axis: 1, .. })) {
            let Op::Slice { start, len, .. } = node.op else { return Err(Decline::NoMatch) };
            let (inner, len) = range.unwrap_or((0, len));
            range = Some((start + inner, len));
            value = node.args[0];
        }
        let not_a_product = Decline::Guard {
            code: "no-projection",
            why: "a part of the query or the key is not a projection with a constant weight of floats",
        };
        let node =
            self.one(value, |op| matches!(op, Op::Matmul { .. })).map_err(|_| not_a_product)?;
        let (&Op::Matmul { out }, &[x, mut weight]) = (&node.op, &node.args[..]) else {
            return Err(not_a_product);
        };
        if !self.func.is_const(weight) {
            return Err(not_a_product);
        }
        while let Some((_, node)) = self.func.def_node(weight)
            && matches!(node.op, Op::Relayout { .. })
        {
            weight = node.args[0];
        }
        let rows = self.func.values[weight].ty.dims[0].as_const().unwrap_or_default();
        let (start, len) = range.unwrap_or((0, rows));
        Ok(Columns { x, weight, start, len, out })
    }
}

impl NewNodes<'_> {
    fn ty(&self, value: ValueId) -> &TensorType {
        &self.func.values[value].ty
    }

    fn cast(&mut self, x: ValueId, to: DType, name: &str) -> Result<ValueId, TypeError> {
        if self.ty(x).dtype == to { Ok(x) } else { self.op(Op::Cast { to }, &[x], name) }
    }

    fn shaped(&mut self, x: ValueId, dims: &[u64], name: &str) -> Result<ValueId, TypeError> {
        let dims = Dims(dims.iter().copied().map(Dim::Const).collect());
        self.op(Op::Reshape { dims }, &[x], name)
    }

    /// The composite, for values with the names of `results`.
    fn composite(
        &mut self,
        parts: &Parts,
        results: [ValueId; 4],
    ) -> Result<[ValueId; 4], TypeError> {
        let stem = self.func.values[results[0]].name.clone();
        let name = |part: &str| format!("{stem}.{part}");
        let [query, vector, key] = parts.down;
        let [nope, rope] = parts.up;
        let heads = parts.heads;

        let dq = self.rows(query, &name("dq"))?;
        let dq = self.right(dq, &name("dq"))?;
        let vector = self.rows(vector, &name("dkv"))?;
        let key = self.rows(key, &name("kr"))?;
        let key = self.neighbours(key, 0, &name("kr"))?;
        let dkv_kr = self.op(Op::Concat { axis: 0 }, &[vector, key], &name("dkv_kr"))?;
        let dkv_kr = self.right(dkv_kr, &name("dkv_kr"))?;
        let nope = self.rows(nope, &name("uq"))?;
        let nope = self.shaped(nope, &[heads, NOPE, QUERY], &name("uq.heads"))?;
        let rope = self.rows(rope, &name("qr"))?;
        let rope = self.shaped(rope, &[heads, ROPE, QUERY], &name("qr.heads"))?;
        let rope = self.neighbours(rope, 1, &name("qr"))?;
        let uq_qr = self.op(Op::Concat { axis: 1 }, &[nope, rope], &name("uq_qr.heads"))?;
        let uq_qr = self.shaped(uq_qr, &[heads * (NOPE + ROPE), QUERY], &name("uq_qr"))?;
        let uq_qr = self.right(uq_qr, &name("uq_qr"))?;
        let uk = self.op(Op::Transpose {}, &[parts.absorb], &name("uk"))?;
        let gammas = [("gamma_q", parts.query_norm.weight), ("gamma_kv", parts.latent_norm.weight)];
        let [gamma_q, gamma_kv] = gammas.map(|(part, w)| self.cast(w, DType::BF16, &name(part)));

        // Alike in all layers, for `merge-duplicates`.
        let table = self.func.values[parts.table].name.clone();
        let [cos, sin] = [("cos", 0), ("sin", ROPE / 2)].map(|(part, start)| {
            let half = Op::Slice { axis: 1, start, len: ROPE / 2 };
            let half = self.op(half, &[parts.table], &format!("{table}.{part}_half"))?;
            let both = Op::Concat { axis: 1 };
            let both = self.op(both, &[half, half], &format!("{table}.{part}_f32"))?;
            self.cast(both, DType::BF16, &format!("{table}.{part}"))
        });
        let index = format!("{}.i64", self.func.values[parts.slots].name);
        let index = self.cast(parts.slots, DType::I64, &index)?;
        let args = [
            query.x,
            dq,
            uq_qr,
            uk,
            dkv_kr,
            gamma_q?,
            gamma_kv?,
            cos?,
            sin?,
            index,
            parts.latent,
            parts.rope_key,
        ];
        let types = args.map(|v| self.ty(v).clone());
        let eps = [parts.query_norm.eps, parts.latent_norm.eps];
        let body = body(types, heads, eps)?;
        let node = self.func.create(Op::Fused { body }, &args, &stem)?;
        self.nodes.push(node);
        let outs = &self.func.nodes[node].outs;
        Ok([outs[0], outs[1], outs[2], outs[3]])
    }

    /// The rows of a weight that make `columns`.
    fn rows(&mut self, columns: Columns, name: &str) -> Result<ValueId, TypeError> {
        let Columns { weight, start, len, .. } = columns;
        if self.ty(weight).dims[0].as_const() == Some(len) {
            return Ok(weight);
        }
        self.op(Op::Slice { axis: 0, start, len }, &[weight], &format!("{name}.rows"))
    }

    /// `[..,64,K]` with what is `32` rows apart side by side.
    fn neighbours(&mut self, w: ValueId, axis: u64, name: &str) -> Result<ValueId, TypeError> {
        let half = ROPE / 2;
        let [first, second] = [("first", 0), ("second", half)].map(|(part, start)| {
            self.op(Op::Slice { axis, start, len: half }, &[w], &format!("{name}.{part}"))
        });
        let block = Op::Interleave { block: 1 };
        self.op(block, &[first?, second?], &format!("{name}.neighbours"))
    }

    /// `[N,K]` as `[K,N]` in fractals.
    fn right(&mut self, w: ValueId, name: &str) -> Result<ValueId, TypeError> {
        let w = self.op(Op::Transpose {}, &[w], &format!("{name}.t"))?;
        self.op(Op::Relayout { layout: Layout::Nz }, &[w], &format!("{name}.t.nz"))
    }
}

/// What the composite stands for, for operands of these types.
fn body(types: [TensorType; 12], heads: u64, [eps_q, eps_kv]: [f32; 2]) -> Result<Body, TypeError> {
    const NAMES: [&str; 12] = [
        "x", "dq", "uq_qr", "uk", "dkv_kr", "gamma_q", "gamma_kv", "cos", "sin", "index", "latent",
        "rope_key",
    ];
    let mut f = Func::new(KIND);
    let mut at = 0;
    let params = types.map(|ty| {
        at += 1;
        f.param(NAMES[at - 1], ty)
    });
    let [x, dq, uq_qr, uk, dkv_kr, gamma_q, gamma_kv, cos, sin, index, latent, rope_key] = params;
    let rows = f.values[x].ty.dims[0].clone();
    let mut b = Steps { f: &mut f, rows };
    let out = DType::BF16;
    let q_a = b.product(x, dq, "q_a")?;
    let q_a = b.op(Op::RmsNorm { eps: eps_q, out }, &[q_a, gamma_q], "q_a_norm")?;
    let q = b.product(q_a, uq_qr, "q")?;
    let q = b.shaped(q, &[heads, NOPE + ROPE], "q_heads")?;
    let nope = b.op(Op::Slice { axis: 2, start: 0, len: NOPE }, &[q], "q_nope")?;
    let rope = b.op(Op::Slice { axis: 2, start: NOPE, len: ROPE }, &[q], "q_rope")?;
    let uk = b.op(Op::Transpose {}, &[uk], "uk_t")?;
    let q_latent = b.op(Op::HeadMatmul { out }, &[nope, uk], "q_latent")?;
    let [cos, sin] = [(cos, "cos_half"), (sin, "sin_half")]
        .map(|(v, name)| b.op(Op::Slice { axis: 1, start: 0, len: ROPE / 2 }, &[v], name));
    let table = b.op(Op::Concat { axis: 1 }, &[cos?, sin?], "angles_bf16")?;
    let table = b.op(Op::Cast { to: DType::F32 }, &[table], "angles")?;
    let q_rotary = b.rotated(rope, table, heads, "q")?;
    let kv = b.product(x, dkv_kr, "kv")?;
    let slots = b.op(Op::Cast { to: DType::I32 }, &[index], "slots")?;
    let vector = b.op(Op::Slice { axis: 1, start: 0, len: LATENT }, &[kv], "kv_a")?;
    let vector = b.op(Op::RmsNorm { eps: eps_kv, out }, &[vector, gamma_kv], "kv_a_norm")?;
    let latent = b.op(Op::PagedWrite {}, &[latent, vector, slots], "latent_out")?;
    let key = b.op(Op::Slice { axis: 1, start: LATENT, len: ROPE }, &[kv], "k_rope")?;
    let key = b.shaped(key, &[1, ROPE], "k_head")?;
    let key = b.rotated(key, table, 1, "k")?;
    let key = b.shaped(key, &[ROPE], "k_flat")?;
    let rope_key = b.op(Op::PagedWrite {}, &[rope_key, key, slots], "rope_key_out")?;
    f.set_results(vec![q_latent, q_rotary, latent, rope_key]);
    Body::new(f).map_err(|errors| TypeError::Rule {
        rule: "the ops make a function",
        found: errors.first().map_or_else(String::new, ToString::to_string),
    })
}

/// Ops of a body in the making.
struct Steps<'a> {
    f: &'a mut Func,
    rows: Dim,
}

impl Steps<'_> {
    fn op(&mut self, op: Op, args: &[ValueId], name: &str) -> Result<ValueId, TypeError> {
        let node = self.f.append(op, args, name)?;
        Ok(self.f.nodes[node].outs[0])
    }

    fn shaped(&mut self, x: ValueId, dims: &[u64], name: &str) -> Result<ValueId, TypeError> {
        let dims = dims.iter().copied().map(Dim::Const);
        let dims = Dims([self.rows.clone()].into_iter().chain(dims).collect());
        self.op(Op::Reshape { dims }, &[x], name)
    }

    /// Rows times `w [K,N]` in fractals.
    fn product(&mut self, x: ValueId, w: ValueId, name: &str) -> Result<ValueId, TypeError> {
        let nd = Op::Relayout { layout: Layout::Nd };
        let w = self.op(nd, &[w], &format!("{name}_weight_nd"))?;
        let w = self.op(Op::Transpose {}, &[w], &format!("{name}_weight"))?;
        self.op(Op::Matmul { out: DType::BF16 }, &[x, w], name)
    }

    /// `x [T,heads,64]`, whose neighbours are rotated with each other, rotated and in halves.
    fn rotated(
        &mut self,
        x: ValueId,
        table: ValueId,
        heads: u64,
        name: &str,
    ) -> Result<ValueId, TypeError> {
        let half = ROPE / 2;
        let pairs = self.shaped(x, &[heads, half, 2], &format!("{name}_pairs"))?;
        let [first, second] = [("first", 0), ("second", 1)].map(|(part, start)| {
            let one = Op::Slice { axis: 3, start, len: 1 };
            let one = self.op(one, &[pairs], &format!("{name}_{part}s"))?;
            self.shaped(one, &[heads, half], &format!("{name}_{part}"))
        });
        let halves = Op::Concat { axis: 2 };
        let halves = self.op(halves, &[first?, second?], &format!("{name}_halves"))?;
        let rotary = Op::Rotary { interleaved: false };
        self.op(rotary, &[halves, table], &format!("{name}_rotary"))
    }
}
