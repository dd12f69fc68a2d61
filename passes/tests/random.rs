//! The whole pipeline on random graphs: the numbers stay the same, bit for bit, with every fused
//! kernel or none, and wherever a bisection stops it.

use ir::{DType, Dim, Func, Layout, Op, TensorType, ValueId, op::Dims, text};
use precast_passes::{
    Options, TargetInfo, check_numerics, default_pipeline, names, pipeline_of, run_func,
    sample_bindings,
};
use proptest::prelude::*;

/// How an op is picked: which one, three operands, and which of its variants.
type Pick = (u8, usize, usize, usize, bool);

fn f32s(dims: &str) -> TensorType {
    TensorType::new(DType::F32, dims.parse::<Dims>().expect("dimensions").0)
}

/// A function whose steps are drawn from the ops that fusions look for; a step whose operands break
/// the typing rule is left out. Recent values are likelier operands, so that chains form.
fn random_func(picks: &[Pick]) -> Func {
    let mut func = Func::new("random");
    let mut values = vec![func.param("x", f32s("[T,4]")), func.param("y", f32s("[T,4]"))];
    let mut matrices: Vec<ValueId> =
        (0..4).map(|i| func.weight(&format!("w{i}"), f32s("[4,4]"))).collect();
    matrices.push(func.weight("tall", f32s("[8,4]")));
    matrices.push(func.param("run_time", f32s("[4,4]")));
    let codes = func.weight("codes", f32s("[4,4]").with_dtype(DType::I8));
    let scales: Vec<ValueId> =
        (0..2).map(|i| func.weight(&format!("s{i}"), f32s("[4,1]"))).collect();
    let rows: Vec<ValueId> = (0..2).map(|i| func.weight(&format!("r{i}"), f32s("[4]"))).collect();
    let mut state = func.param("s", TensorType::state(DType::F32, f32s("[R,4]").dims));
    let mut paged = Paged::new(&mut func);
    for &(which, a, b, c, flag) in picks {
        let recent = |i: usize| values[values.len() - 1 - i % values.len().min(6)];
        let (x, y) = (recent(a), recent(b));
        let (matrix, row) = (matrices[c % matrices.len()], rows[c % rows.len()]);
        let out = if flag { DType::F32 } else { DType::BF16 };
        if which % 20 == 18 {
            values.extend(paged.latent_attention(&mut func, x, out));
            continue;
        }
        if which % 20 == 19 {
            values.extend(paged.attention(&mut func, x, flag));
            continue;
        }
        if which % 20 >= 13 {
            let codes = match c % 3 {
                0 => codes,
                own => func.weight(
                    &format!("codes{own}_{}", func.weights.len()),
                    f32s("[4,4]").with_dtype(DType::I8),
                ),
            };
            let made = match which % 20 {
                13 => gated(&mut func, x),
                14 => experts(&mut func, x, matrix),
                _ => quantised(&mut func, x, [codes, scales[c % 2]], which % 20, out),
            };
            values.extend(made);
            continue;
        }
        let (op, args) = match which % 20 {
            0 => (Op::Add {}, vec![x, y]),
            1 => (Op::Mul {}, vec![x, y]),
            2 => (Op::Silu {}, vec![x]),
            3 | 4 => (Op::Matmul { out: DType::F32 }, vec![x, matrix]),
            5 => (Op::Matmul { out }, vec![x, matrix]),
            6 => (Op::RmsNorm { eps: 1e-6, out }, vec![x, row]),
            7 => (Op::AddBias {}, vec![x, row]),
            8 => (Op::Cast { to: out }, vec![x]),
            9 => (Op::Slice { axis: 1, start: u64::from(flag) * 2, len: 4 }, vec![x]),
            10 => (Op::Concat { axis: 1 }, vec![x, y]),
            11 => (Op::Argmax {}, vec![x]),
            _ => (Op::StoreRows {}, vec![state, x]),
        };
        let writes = !op.writes().is_empty();
        let Ok(node) = func.append(op, &args, "") else { continue };
        match (writes, func.nodes[node].outs[0]) {
            (true, next) => state = next,
            (false, out) => values.push(out),
        }
    }
    let mut results: Vec<ValueId> = values.iter().rev().take(3).copied().collect();
    results.push(state);
    results.extend(paged.states);
    results.push(paged.kv);
    func.set_results(results);
    func
}

/// Caches of attention, latent and other, and where rows stand in them.
struct Paged {
    slots: ValueId,
    table: ValueId,
    positions: ValueId,
    states: [ValueId; 2],
    kv: ValueId,
}

impl Paged {
    fn new(func: &mut Func) -> Self {
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
        }
    }

    /// Attention of two query heads to one key head, all parts of one projection of the rows `x`, with
    /// norms of queries and keys if `normed`.
    fn attention(&mut self, func: &mut Func, x: ValueId, normed: bool) -> Option<ValueId> {
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
        let attention = Op::Attention { scale: 0.5, out: DType::F32 };
        let mixed = op(func, attention, &[q, self.kv, self.table, self.positions])?;
        op(func, Op::Reshape { dims: "[T,8]".parse().expect("dims") }, &[mixed])
    }

    /// Latent attention of the rows `x`, its queries rounded to `out`.
    fn latent_attention(&mut self, func: &mut Func, x: ValueId, out: DType) -> Option<ValueId> {
        if func.values[x].ty.rank() != 2 {
            return None;
        }
        let n = func.values[x].ty.dims[1].as_const()?;
        let mut weight = |name: &str, dims: &str| func.weight(&format!("{name}.{n}"), f32s(dims));
        let norms = [weight("norm.q", "[4]"), weight("norm.kv", "[6]")];
        let down = [weight("q_a", &format!("[4,{n}]")), weight("kv_a", &format!("[8,{n}]"))];
        let (up, absorb) = (weight("q_b", "[12,4]"), weight("uk", "[2,6,4]"));
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
        let latent_query = op(func, Op::HeadMatmul { out: DType::F32 }, &[nope, absorb])?;
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
        let attention = Op::LatentAttention { scale: 0.5, out: DType::F32 };
        let args = [latent_query, turned, latent, rope_key, self.table, self.positions];
        let mixed = op(func, attention, &args)?;
        op(func, Op::Reshape { dims: "[T,12]".parse().expect("dims") }, &[mixed])
    }
}

fn op(func: &mut Func, op: Op, args: &[ValueId]) -> Option<ValueId> {
    func.append(op, args, "").ok().map(|node| func.nodes[node].outs[0])
}

/// A gate and an up projection of `x` by weights of their own, multiplied.
fn gated(func: &mut Func, x: ValueId) -> Option<ValueId> {
    if func.values[x].ty.rank() != 2 {
        return None;
    }
    let inner = func.values[x].ty.dims[1].clone();
    let weight = TensorType::new(DType::F32, [4.into(), inner]);
    let name = format!("own{}", func.weights.len());
    let (g, u) = (func.weight(&format!("{name}.g"), weight.clone()), func.weight(&name, weight));
    let matmul = Op::Matmul { out: DType::F32 };
    let (gate, up) = (op(func, matmul.clone(), &[x, g])?, op(func, matmul, &[x, u])?);
    let gate = op(func, Op::Silu {}, &[gate])?;
    op(func, Op::Mul {}, &[gate, up])
}

/// Two experts of `x` for every token, chosen by the scores of a router.
fn experts(func: &mut Func, x: ValueId, router: ValueId) -> Option<ValueId> {
    let x = op(func, Op::Cast { to: DType::F32 }, &[x])?;
    let logits = op(func, Op::Matmul { out: DType::F32 }, &[x, router])?;
    let spec = "route(softmax,k=2,renormalize=true)".parse().expect("a specification");
    let route = func.append(Op::Route { spec }, &[logits], "").ok()?;
    let &[ids, weights] = &func.nodes[route].outs[..] else { unreachable!("two results") };
    let experts = func.values[logits].ty.dims[1].as_const()?;
    let groups = func.append(Op::ExpertGroups { experts }, &[ids], "").ok()?;
    let pairs = func.nodes[groups].outs.clone();
    let ty = TensorType::new(DType::MxFp4, [experts, 4, 4].map(Dim::Const));
    let scale = TensorType::new(DType::U8, [experts, 4, 1].map(Dim::Const));
    let parts = [
        func.weight(&format!("mx{experts}"), ty),
        func.weight(&format!("mx{experts}.scale"), scale),
    ];
    let values = op(func, Op::Dequantize { group: 32, out: DType::BF16 }, &parts)?;
    let product = Op::GroupedMatmul { out: DType::F32 };
    let up = op(func, product, &[x, pairs[0], pairs[1], values])?;
    op(func, Op::CombineExperts { out: DType::F32 }, &[up, weights])
}

/// `x` through a matrix of codes, in one of three ways.
fn quantised(
    func: &mut Func,
    x: ValueId,
    matrix: [ValueId; 2],
    way: u8,
    out: DType,
) -> Option<ValueId> {
    if way == 15 {
        let values = op(func, Op::Dequantize { group: 4, out }, &matrix)?;
        return op(func, Op::Matmul { out: DType::F32 }, &[x, values]);
    }
    let rows = func.append(Op::QuantizeRows {}, &[x], "").ok()?;
    let [codes, scales] = func.nodes[rows].outs[..] else { unreachable!("two results") };
    let product = Op::QuantMatmul { group: 4, out: DType::F32 };
    let y = op(func, product, &[codes, scales, matrix[0], matrix[1]])?;
    op(func, Op::Cast { to: out }, &[y])
}

fn bare() -> TargetInfo {
    TargetInfo {
        name: "bare".to_owned(),
        matmul_weight_layout: Layout::Nd,
        layout_rules: Vec::new(),
        weight_types: Vec::new(),
        gate_up_block: None,
        fused_ops: Vec::new(),
        row_wise_ops: Vec::new(),
    }
}

fn picks() -> impl Strategy<Value = Vec<Pick>> {
    prop::collection::vec(any::<Pick>(), 1..40)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn the_pipeline_keeps_every_bit(
        picks in picks(),
        everything in any::<bool>(),
        limit in prop_oneof![Just(usize::MAX), 0..12usize],
    ) {
        let before = random_func(&picks);
        let mut after = before.clone();
        let target = if everything { TargetInfo::everything() } else { bare() };
        let mut options = Options { rewrite_limit: limit, ..Options::default() };
        let report = run_func(&mut after, &default_pipeline(), &mut options, &target);
        let texts = || format!("{}{}", text::print(&before), text::print(&after));
        prop_assert!(report.is_ok(), "{report:?}\n{}", texts());
        let numbers = check_numerics(&before, &after, &[7], &sample_bindings(&before));
        prop_assert!(numbers.is_ok(), "{numbers:?}\n{}", texts());

        let mut again = after.clone();
        let report = run_func(&mut again, &default_pipeline(), &mut Options::default(), &target);
        let is_final = limit == usize::MAX && !everything;
        prop_assert!(!is_final || report.is_ok(), "{report:?}\n{}", texts());
        let fired: Vec<_> = report.iter().flat_map(|r| &r.passes).filter(|p| p.fired > 0).collect();
        prop_assert!(!is_final || fired.is_empty(), "{fired:?}\n{}", texts());
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    /// By itself, and after what comes before layouts in the pipeline.
    #[test]
    fn every_pass_keeps_every_bit(picks in picks(), which in any::<usize>(), piped in any::<bool>()) {
        let before = random_func(&picks);
        let target = TargetInfo::everything();
        let mut after = before.clone();
        if piped {
            let limit = which / 64 % 16;
            let mut options = Options { rewrite_limit: limit, ..Options::default() };
            let stages = &default_pipeline()[..2];
            run_func(&mut after, stages, &mut options, &target).expect("it runs");
        }
        let name = names()[which % names().len()];
        let stages = pipeline_of(&[name]).expect("a pass");
        let report = run_func(&mut after, &stages, &mut Options::default(), &target);
        let texts = || format!("{name}\n{}{}", text::print(&before), text::print(&after));
        prop_assert!(report.is_ok(), "{report:?}\n{}", texts());
        let numbers = check_numerics(&before, &after, &[11], &sample_bindings(&before));
        prop_assert!(numbers.is_ok(), "{numbers:?}\n{}", texts());
    }
}

/// The graphs above contain what fusions look for.
#[test]
fn random_graphs_make_every_fusion_fire() {
    let mut random = 1u64;
    let mut draw = move || {
        random =
            random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (random >> 33) as usize
    };
    let mut fired = std::collections::BTreeMap::new();
    for _ in 0..400 {
        let picks: Vec<Pick> =
            (0..40).map(|_| (draw() as u8, draw(), draw(), draw(), draw() % 2 == 0)).collect();
        let mut func = random_func(&picks);
        let target = TargetInfo::everything();
        let report = run_func(&mut func, &default_pipeline(), &mut Options::default(), &target);
        for pass in report.expect("the pipeline runs").passes {
            *fired.entry(pass.pass).or_insert(0) += pass.fired;
        }
    }
    // Nothing is quantised unless asked for.
    assert_eq!(fired.remove("quantize-matmuls"), Some(0));
    // This one takes the sizes of released models alone.
    assert_eq!(fired.remove("fuse-mla-prolog"), Some(0));
    // No graph has weights of 4 bits.
    assert_eq!(fired.remove("w4a8-experts"), Some(0));
    assert!(fired.values().all(|&n| n > 0), "{fired:?}");
}
