//! Random functions of chains that fusions look for.

use super::{paged::Paged, recurrent::Recurrent, steps};
use ir::{DType, Dim, Func, Op, TensorType, ValueId, op::Dims};

/// How an op is picked: which one, three operands, and which of its variants.
pub(super) type Pick = (u8, usize, usize, usize, bool);

pub(super) fn f32s(dims: &str) -> TensorType {
    TensorType::new(DType::F32, dims.parse::<Dims>().expect("dimensions").0)
}

/// Which ops are drawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Forms {
    /// Those of a model's definition.
    Model,
    /// Those that passes make too.
    All,
}

/// Forms of a step here; those of [`steps`] and of [`Recurrent`] come after.
const FORMS: u8 = 20;

/// A function whose steps are drawn from the ops that fusions look for; a step whose operands break
/// the typing rule is left out. Recent values are likelier operands, so that chains form.
pub(super) fn random_func(picks: &[Pick], forms: Forms) -> Func {
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
    let mut recurrent = Recurrent::new(&mut func, paged.positions);
    for &(which, a, b, c, flag) in picks {
        let recent = |i: usize| values[values.len() - 1 - i % values.len().min(6)];
        let (x, y) = (recent(a), recent(b));
        let (matrix, row) = (matrices[c % matrices.len()], rows[c % rows.len()]);
        let out = if flag { DType::F32 } else { DType::BF16 };
        let form = which % (FORMS + steps::FORMS + 2);
        if forms == Forms::Model && form >= FORMS && steps::of_passes(form - FORMS) {
            continue;
        }
        if form >= FORMS {
            match form - FORMS {
                form if form < steps::FORMS => {
                    let made = steps::step(&mut func, form, [x, y], [matrix, row], out);
                    for value in made {
                        let ty = &func.values[value].ty;
                        // Constants are matrices for later products.
                        match func.is_const(value) && ty.rank() == 2 {
                            true => matrices.push(value),
                            false => values.push(value),
                        }
                    }
                }
                form if form == steps::FORMS => values.extend(recurrent.layer(&mut func, x)),
                _ => {
                    let forms = [true, b % 2 == 0];
                    values.extend(paged.latent_attention(&mut func, x, out, forms));
                }
            }
            continue;
        }
        if form == 18 {
            values.extend(paged.latent_attention(&mut func, x, out, [false, b % 2 == 0]));
            continue;
        }
        if form == 19 {
            values.extend(paged.attention(&mut func, x, flag));
            continue;
        }
        if form >= 13 {
            let codes = match c % 3 {
                0 => codes,
                own => func.weight(
                    &format!("codes{own}_{}", func.weights.len()),
                    f32s("[4,4]").with_dtype(DType::I8),
                ),
            };
            let made = match form {
                13 => gated(&mut func, x),
                14 => experts(&mut func, x, matrix),
                _ => quantised(&mut func, x, [codes, scales[c % 2]], form, out),
            };
            values.extend(made);
            continue;
        }
        let (op, args) = match form {
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
            11 => {
                // Joined with a product alone, together, and of another value.
                values.extend(op(&mut func, Op::Argmax {}, &[x]).filter(|_| flag));
                (Op::TopK { k: 1 + c as u64 % 4 }, vec![if b % 3 == 0 { y } else { x }])
            }
            _ => (Op::StoreRows {}, vec![state, x]),
        };
        let writes = !op.writes().is_empty();
        let Ok(node) = func.append(op, &args, "") else { continue };
        match (writes, func.nodes[node].outs[0]) {
            (true, next) => state = next,
            (false, _) => values.extend(&func.nodes[node].outs),
        }
    }
    let mut results: Vec<ValueId> = values.iter().rev().take(3).copied().collect();
    results.push(state);
    results.extend(paged.states);
    results.extend([paged.kv, paged.index]);
    results.extend(recurrent.states);
    func.set_results(results);
    func
}

pub(super) fn op(func: &mut Func, op: Op, args: &[ValueId]) -> Option<ValueId> {
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
