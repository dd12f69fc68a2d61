//! The matcher against one that tries everything, and each guard.

use super::{any, *};
use crate::{
    Options, Stage, Step, TargetInfo, check_numerics,
    constants::ProductWeights,
    is,
    rewrite::{Context, Decline, Rewrite},
    run_func, sample_bindings,
};
use ir::{DType, Dim, Func, NodeId, TensorType, ValueId, text};
use proptest::prelude::*;
use std::{collections::BTreeMap, sync::Arc};

/// An expression of `add`, `mul` and `silu` over four parameters.
#[derive(Clone, Debug)]
enum Tree {
    Leaf(usize),
    Silu(Box<Tree>),
    Binary { is_add: bool, parts: Box<[Tree; 2]> },
}

const NAMES: [&str; 4] = ["a", "b", "c", "d"];

impl Tree {
    fn build(&self, func: &mut Func, leaves: &[ValueId]) -> ValueId {
        let (op, args) = match self {
            Tree::Leaf(i) => return leaves[*i],
            Tree::Silu(x) => (Op::Silu {}, vec![x.build(func, leaves)]),
            Tree::Binary { is_add, parts } => {
                let args = parts.iter().map(|p| p.build(func, leaves)).collect();
                (if *is_add { Op::Add {} } else { Op::Mul {} }, args)
            }
        };
        let node = func.append(op, &args, "").expect("all values have one type");
        func.nodes[node].outs[0]
    }

    fn pattern(&self) -> Pattern {
        match self {
            Tree::Leaf(i) => any(NAMES[*i]),
            Tree::Silu(x) => op(is!(Op::Silu {}), [x.pattern()]),
            Tree::Binary { is_add, parts } => {
                let parts = parts.each_ref().map(Tree::pattern);
                if *is_add { op(is!(Op::Add {}), parts) } else { op(is!(Op::Mul {}), parts) }
            }
        }
    }

    /// Every order of every pair of operands.
    fn orders(&self) -> Vec<Tree> {
        match self {
            Tree::Leaf(_) => vec![self.clone()],
            Tree::Silu(x) => x.orders().into_iter().map(|x| Tree::Silu(Box::new(x))).collect(),
            Tree::Binary { is_add, parts } => {
                let [a, b] = parts.each_ref().map(Tree::orders);
                let pairs = a.iter().flat_map(|a| b.iter().map(move |b| [a.clone(), b.clone()]));
                let both = pairs.flat_map(|[a, b]| [[a.clone(), b.clone()], [b, a]]);
                let made = |parts| Tree::Binary { is_add: *is_add, parts: Box::new(parts) };
                both.map(made).collect()
            }
        }
    }

    /// Whether `self` as a pattern is `value`, operands in the order they are written.
    fn is(&self, func: &Func, value: ValueId, names: &mut BTreeMap<usize, ValueId>) -> bool {
        if let Tree::Leaf(i) = self {
            return *names.entry(*i).or_insert(value) == value;
        }
        let Some((_, node)) = func.def_node(value) else { return false };
        match (self, &node.op) {
            (Tree::Silu(x), Op::Silu {}) => x.is(func, node.args[0], names),
            (Tree::Binary { is_add: true, parts }, Op::Add {})
            | (Tree::Binary { is_add: false, parts }, Op::Mul {}) => {
                parts.iter().zip(&node.args).all(|(p, &a)| p.is(func, a, names))
            }
            _ => false,
        }
    }
}

fn tree() -> impl Strategy<Value = Tree> {
    let leaf = (0..NAMES.len()).prop_map(Tree::Leaf);
    let any_tree = leaf.prop_recursive(3, 12, 2, |inner| {
        let binary = (proptest::bool::ANY, inner.clone(), inner.clone())
            .prop_map(|(is_add, a, b)| Tree::Binary { is_add, parts: Box::new([a, b]) });
        let silu = inner.prop_map(|x| Tree::Silu(Box::new(x)));
        prop_oneof![3 => binary, 1 => silu]
    });
    any_tree.prop_filter("the root is an op", |t| !matches!(t, Tree::Leaf(_)))
}

fn built(tree: &Tree) -> (Func, NodeId) {
    let mut func = Func::new("f");
    let ty = TensorType::new(DType::F32, [Dim::sym("T"), Dim::Const(4)]);
    let leaves: Vec<ValueId> = NAMES.iter().map(|n| func.param(n, ty.clone())).collect();
    let result = tree.build(&mut func, &leaves);
    func.set_results(vec![result]);
    let root = func.def(result).expect("the root is an op");
    (func, root)
}

/// What the names of the first match stand for.
fn found(func: &Func, root: NodeId, pattern: &Pattern) -> Option<BTreeMap<usize, ValueId>> {
    let mut names = None;
    matcher::each_match(func, pattern, root, &mut |m| {
        let known = |(i, name): (usize, &&str)| pattern.has(name).then(|| (i, m[*name]));
        names = Some(NAMES.iter().enumerate().filter_map(known).collect());
        true
    });
    names
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    /// The matcher finds a pattern exactly where trying every order of operands does.
    #[test]
    fn matching_is_trying_every_order(subject in tree(), pattern in tree(), same in proptest::bool::ANY) {
        let pattern = if same { subject.orders().pop().unwrap() } else { pattern };
        let (func, root) = built(&subject);
        let value = func.nodes[root].outs[0];
        let expected: Vec<BTreeMap<usize, ValueId>> = pattern
            .orders()
            .iter()
            .filter_map(|order| {
                let mut names = BTreeMap::new();
                order.is(&func, value, &mut names).then_some(names)
            })
            .collect();
        let found = found(&func, root, &pattern.pattern());
        prop_assert_eq!(found.is_some(), !expected.is_empty());
        prop_assert!(found.is_none_or(|f| expected.contains(&f)));
        prop_assert!(!same || !expected.is_empty(), "a tree matches itself");
    }
}

fn func(body: &str) -> Func {
    let text = format!("func @f(%x: f32[T,4], %y: f32[T,4]) {{\n{body}\n}}\n");
    text::parse("test.ir", &text).unwrap().funcs.remove(0)
}

/// `add(x, silu(x))`, the activation possibly rounded on the way.
fn gelu_like() -> FusionBuilder {
    let rounded = optional(is!(Op::Cast { .. }), any("inner")).named("outer");
    let sum = op(is!(Op::Add {}), [any("x"), op(is!(Op::Silu {}), [rounded])]).named("sum");
    fusion("try", sum)
}

fn applied(pass: &Fusion, func: &mut Func, target: &TargetInfo) -> Result<String, Decline> {
    let context = Context { target, product_weights: &ProductWeights::default(), quantize: None };
    let root = *func.order.last().unwrap();
    let made = pass.apply(func, root, &context)?;
    let node = &func.nodes[made.nodes[0]];
    let names: Vec<&str> = node.args.iter().map(|&a| func.values[a].name.as_str()).collect();
    Ok(format!("{} {}", node.op.mnemonic(), names.join(" ")))
}

#[test]
fn a_wrapper_is_there_or_not() {
    let pass = gelu_like().replace(["sum"], ["x", "outer"], |_| Some(Op::Mul {}));
    let everything = TargetInfo::everything();
    let mut plain = func("%s = silu %y : f32[T,4]\n%r = add %s, %x : f32[T,4]\nreturn %r");
    assert_eq!(applied(&pass, &mut plain, &everything), Ok("mul x y".to_owned()));
    let mut cast = func(
        "%c = cast %y {to = f32} : f32[T,4]\n%s = silu %c : f32[T,4]\n\
         %r = add %x, %s : f32[T,4]\nreturn %r",
    );
    assert_eq!(applied(&pass, &mut cast, &everything), Ok("mul x c".to_owned()));
    let inner = gelu_like().replace(["sum"], ["x", "inner"], |_| Some(Op::Mul {}));
    assert_eq!(applied(&inner, &mut cast, &everything), Ok("mul x y".to_owned()));
}

#[test]
fn the_first_guard_that_fails_is_told() {
    let everything = TargetInfo::everything();
    let bare = TargetInfo { fused_ops: Vec::new(), ..everything.clone() };
    let make = || {
        gelu_like()
            .kernel("silu_mul")
            .only_reader("outer", "read twice")
            .constant("x", "computed")
            .typed("inner", "not-bf16", "wide", |ty| ty.dtype == DType::BF16)
            .typed("x", "not-a-matrix", "deep", |ty| ty.rank() == 2)
            .replace(["sum"], ["x", "outer"], |_| Some(Op::Mul {}))
    };
    let declined =
        |pass: &Fusion, func: &mut Func, target: &TargetInfo| match applied(pass, func, target) {
            Err(Decline::Guard { code, .. }) => code,
            other => panic!("{other:?}"),
        };
    let twice = "%s = silu %y : f32[T,4]\n%u = silu %y : f32[T,4]\n%r = add %s, %x : f32[T,4]\nreturn %r, %u";
    let once = "%s = silu %y : f32[T,4]\n%r = add %s, %x : f32[T,4]\nreturn %r";
    let constant =
        "weight %w : f32[T,4]\n%s = silu %y : f32[T,4]\n%r = add %s, %w : f32[T,4]\nreturn %r";
    assert_eq!(declined(&make(), &mut func(twice), &bare), "no-kernel");
    assert_eq!(declined(&make(), &mut func(twice), &everything), "other-reader");
    assert_eq!(declined(&make(), &mut func(once), &everything), "weight-not-constant");
    assert_eq!(declined(&make(), &mut func(constant), &everything), "not-bf16");
    let mut other = func("%s = sigmoid %y : f32[T,4]\n%r = add %s, %x : f32[T,4]\nreturn %r");
    assert_eq!(applied(&make(), &mut other, &bare), Err(Decline::NoMatch), "no guard is asked");
    let wrong = gelu_like().replace(["sum"], ["x"], |_| Some(Op::Mul {}));
    assert_eq!(declined(&wrong, &mut func(once), &everything), "type-rule");
}

/// Where one way to match is declined, another is taken.
#[test]
fn guards_choose_among_ways_to_match() {
    let pass = || {
        let sides = ["a", "b"].map(|n| op(is!(Op::Silu {}), [any(n)]));
        fusion("try", op(is!(Op::Mul {}), sides).named("product"))
    };
    let mut both = func(
        "%s = silu %x : f32[T,4]\n%t = silu %y : f32[T,4]\n%r = mul %s, %t : f32[T,4]\nreturn %r, %x",
    );
    let everything = TargetInfo::everything();
    let first = pass().replace(["product"], ["a", "b"], |_| Some(Op::Add {}));
    assert_eq!(applied(&first, &mut both, &everything), Ok("add x y".to_owned()));
    let guarded = pass().only_reader("a", "read twice");
    let second = guarded.replace(["product"], ["a", "b"], |_| Some(Op::Add {}));
    assert_eq!(applied(&second, &mut both, &everything), Ok("add y x".to_owned()));
}

#[test]
fn a_follower_comes_along_when_it_alone_reads() {
    let make = || {
        let silu = op(is!(Op::Silu {}), [any("gate")]).named("activated");
        let product = op(is!(Op::Mul {}), [silu, any("up")]);
        let pass = fusion("try", product).followed_by(is!(Op::Cast { .. }), "rounded");
        pass.replace(["rounded"], ["gate", "up"], |m| {
            Some(Op::SiluMul { out: m.func().values[m["rounded"]].ty.dtype })
        })
    };
    let run = |body: &str| {
        let before = func(body);
        let mut after = before.clone();
        let steps = vec![Step { pass: Arc::new(make()), why: "tested" }];
        let stages = [Stage { phase: None, steps }];
        let report =
            run_func(&mut after, &stages, &mut Options::default(), &TargetInfo::everything());
        report.unwrap();
        check_numerics(&before, &after, &[1, 2], &sample_bindings(&before)).unwrap();
        let ops = after.order.iter().map(|&n| after.describe(n));
        ops.collect::<Vec<_>>().join(", ")
    };
    let cast =
        "%s = silu %x : f32[T,4]\n%p = mul %s, %y : f32[T,4]\n%c = cast %p {to = bf16} : bf16[T,4]";
    assert_eq!(run(&format!("{cast}\nreturn %c")), "silu_mul %c");
    assert_eq!(run(&format!("{cast}\nreturn %c, %p")), "silu_mul %p, cast %c");
    assert_eq!(
        run("%s = silu %x : f32[T,4]\n%p = mul %s, %y : f32[T,4]\nreturn %p"),
        "silu_mul %p"
    );
}

#[test]
#[should_panic(expected = "nothing in the pattern is called `wieght`")]
fn a_misspelt_name_is_found_when_the_pass_is_made() {
    let _ = gelu_like().constant("wieght", "misspelt");
}

/// A value made by another result of the op is not the one that is looked for.
#[test]
fn results_are_told_apart() {
    let codes = |index| {
        let rows = op(is!(Op::QuantizeRows {}), [any("x")]).result(index);
        let cast = op(is!(Op::Cast { .. }), [rows]).named("cast");
        fusion("try", cast).replace(["cast"], ["x"], |_| Some(Op::Silu {}))
    };
    let mut reads_scales = func(
        "%q, %s = quantize_rows %x : i8[T,4], f32[T,1]\n%c = cast %s {to = bf16} : bf16[T,1]\n\
         return %c",
    );
    let everything = TargetInfo::everything();
    let none = applied(&codes(0), &mut reads_scales, &everything);
    assert_eq!(none, Err(Decline::NoMatch));
    assert_eq!(applied(&codes(1), &mut reads_scales, &everything), Ok("silu x".to_owned()));
}

/// The ops become a body; what others read of them becomes a result, and constants stay outside.
#[test]
fn matched_ops_become_a_composite() {
    let silu = op(is!(Op::Silu {}), [any("gate")]).named("activated");
    let bias = optional(is!(Op::Cast { .. }), any("bias"));
    let biased = op(is!(Op::AddBias {}), [silu, bias]);
    let pass = || fusion("try", biased.clone()).only_reader("gate", "read twice").outline("mine");
    let body = "weight %b : bf16[4]\n%g = add %x, %y : f32[T,4]\n%s = silu %g : f32[T,4]\n\
                %w = cast %b {to = f32} : f32[4]\n%r = add_bias %s, %w : f32[T,4]\nreturn %r, %s";
    let before = func(body);
    let run = |target: &TargetInfo| {
        let mut after = before.clone();
        let steps = vec![Step { pass: Arc::new(pass()), why: "tested" }];
        let stages = [Stage { phase: None, steps }];
        let report = run_func(&mut after, &stages, &mut Options::default(), target).unwrap();
        check_numerics(&before, &after, &[1, 2], &sample_bindings(&before)).unwrap();
        (text::print(&after), report)
    };
    let mut target = TargetInfo::everything();
    let (unchanged, report) = run(&target);
    assert_eq!(unchanged, text::print(&before));
    assert_eq!(report.passes[0].near_misses[0].code, "no-kernel");
    target.fused_ops.push("mine".to_owned());
    let (fused, _) = run(&target);
    assert!(fused.starts_with("fused @mine(%g: f32[T,4], %w: f32[4]) {"), "{fused}");
    assert!(fused.contains("%s, %r = fused %g, %w {body = @mine}"), "{fused}");
}
