//! The pass manager: verification, budget, switches, dumps and reports.

use ir::{Func, Module, NodeId, Op, text};
use precast_passes::{
    BrokenPass, Context, Decline, Options, Phase, Quantize, Replacement, Rewrite, Stage, Step,
    TargetInfo, pipeline_of, run, run_func,
};
use std::sync::Arc;

/// Two gated activations and a sum that is read twice.
const TEXT: &str = "func @f(%g: f32[T,4], %u: f32[T,4]) {
  %a = silu %g : f32[T,4]
  %p = mul %a, %u : f32[T,4]
  %b = silu %p : f32[T,4]
  %q = mul %b, %u : f32[T,4]
  %c = silu %q : f32[T,4]
  %r = mul %c, %c : f32[T,4]
  return %r
}
";

fn module() -> Module {
    text::parse("test.ir", TEXT).expect("the text is well formed")
}

fn stage(pass: impl Rewrite + 'static, phase: Option<Phase>) -> Vec<Stage> {
    vec![Stage { phase, steps: vec![Step { pass: Arc::new(pass), why: "tested" }] }]
}

#[test]
fn the_budget_bounds_rewrites_and_repeats_exactly() {
    let target = TargetInfo::everything();
    let stages = pipeline_of(&["fuse-silu-mul", "fuse-silu-mul"]).unwrap();
    let outcome = |limit: usize| {
        let mut module = module();
        let mut options = Options { rewrite_limit: limit, ..Options::default() };
        let report = run(&mut module, &stages, &mut options, &target).unwrap();
        (report.fired("fuse-silu-mul"), text::print_module(&module))
    };
    assert_eq!(outcome(0), (0, TEXT.to_owned()));
    let one = outcome(1);
    assert_eq!(one.0, 1);
    assert!(one.1.contains("%p = silu_mul %g, %u") && one.1.contains("%q = mul %b, %u"));
    assert_eq!(outcome(usize::MAX).0, 2);
    assert_eq!(outcome(2), outcome(usize::MAX));
}

#[test]
fn a_disabled_pass_does_not_run() {
    let (mut module, target) = (module(), TargetInfo::everything());
    let mut options = Options { disabled: vec!["fuse-silu-mul".into()], ..Options::default() };
    let stages = pipeline_of(&["fuse-silu-mul"]).unwrap();
    let report = run(&mut module, &stages, &mut options, &target).unwrap();
    assert!(report.passes.is_empty());
    assert!(report.to_string().contains("fuse-silu-mul  disabled"), "{report}");
    assert_eq!(text::print_module(&module), TEXT);
}

#[test]
fn quantisation_that_cannot_be_is_refused_before_anything_runs() {
    let quantize = Some(Quantize { bits: 6, group: None, head: false });
    let mut options = Options { quantize, ..Options::default() };
    let stages = pipeline_of(&["fuse-silu-mul"]).unwrap();
    let mut module = module();
    let error = run(&mut module, &stages, &mut options, &TargetInfo::everything()).unwrap_err();
    assert!(matches!(error, BrokenPass::Quantize { .. }), "{error}");
    assert!(error.to_string().contains("bits is 6; weights are quantised to 8 or 4"), "{error}");
    assert_eq!(text::print_module(&module), TEXT);
}

#[test]
fn only_known_and_optional_passes_can_be_disabled() {
    let target = TargetInfo::everything();
    let disable = |name: &str| {
        let mut options = Options { disabled: vec![name.into()], ..Options::default() };
        run(&mut module(), &[], &mut options, &target).unwrap_err()
    };
    let unknown = disable("fuse-everything");
    assert!(matches!(&unknown, BrokenPass::Unknown { name, .. } if name == "fuse-everything"));
    assert!(unknown.to_string().contains("fuse-qkv"), "the message lists the passes: {unknown}");
    for (name, why) in [
        ("assign-layouts", "the target's kernels rely on it"),
        ("absorb-latent", "no target has a kernel for `expanded_latent_attention`"),
    ] {
        let required = disable(name);
        assert!(matches!(&required, BrokenPass::Required { name: n, .. } if n == name));
        let text = required.to_string();
        assert!(text.starts_with(&format!("`{name}` cannot be disabled: {why}")), "{text}");
    }
}

/// No bisection leaves a target with ops that it has no kernels for.
#[test]
fn required_passes_run_whatever_the_limit() {
    let source = "func @f(%q: f32[T,2,4], %r: f32[T,2,2], %c: state f32[NB,4,6], %k: state f32[NB,4,2], %t: i32[T,W], %p: i32[T]) {
  weight %w : f32[2,4,6]
  %y = expanded_latent_attention %q, %r, %w, %w, %c, %k, %t, %p {scale = 1, out = f32} : f32[T,2,4]
  return %y
}
";
    let mut module = text::parse("test.ir", source).unwrap();
    let stages = pipeline_of(&["absorb-latent"]).unwrap();
    let mut options = Options { rewrite_limit: 0, ..Options::default() };
    let report = run(&mut module, &stages, &mut options, &TargetInfo::everything()).unwrap();
    assert_eq!(report.fired("absorb-latent"), 1);
}

#[test]
fn each_pass_is_dumped_with_its_index() {
    let (mut module, target) = (module(), TargetInfo::everything());
    let mut seen = Vec::new();
    let mut dump = |index: usize, pass: &str, text: &str| {
        seen.push((index, pass.to_owned(), text.contains("silu_mul")));
    };
    let mut options = Options { dump: Some(&mut dump), ..Options::default() };
    let stages = pipeline_of(&["canonicalise", "fuse-silu-mul"]).unwrap();
    run(&mut module, &stages, &mut options, &target).unwrap();
    let expected = [(0, "canonicalise".into(), false), (1, "fuse-silu-mul".into(), true)];
    assert_eq!(seen, expected);
}

#[test]
fn the_report_counts_and_explains() {
    let (mut module, target) = (module(), TargetInfo::everything());
    let stages = pipeline_of(&["fuse-silu-mul"]).unwrap();
    let report = run(&mut module, &stages, &mut Options::default(), &target).unwrap();
    assert_eq!(report.passes[0].fired, 2);
    let text = report.to_string();
    assert!(text.contains("fuse-silu-mul  fired    2  @f 2"), "{text}");
    let reason = "@f declined 1 x other-reader: the activation has another reader\n       mul %r\n";
    assert!(text.contains(reason), "{text}");
}

#[test]
fn a_function_without_a_module_runs_too() {
    let mut func: Func = module().funcs.remove(0);
    let stages = pipeline_of(&["fuse-silu-mul"]).unwrap();
    run_func(&mut func, &stages, &mut Options::default(), &TargetInfo::everything()).unwrap();
    assert!(text::print(&func).contains("silu_mul"));
}

#[test]
fn broken_input_is_refused_before_any_pass() {
    let mut module = module();
    module.funcs[0].order.reverse();
    let error = run(&mut module, &[], &mut Options::default(), &TargetInfo::everything());
    assert!(matches!(error, Err(BrokenPass::Input { .. })));
}

/// Swaps the operands of every product, for ever.
struct Restless;

impl Rewrite for Restless {
    fn name(&self) -> &'static str {
        "restless"
    }
    fn apply(
        &self,
        func: &mut Func,
        root: NodeId,
        _: &Context<'_>,
    ) -> Result<Replacement, Decline> {
        let node = func.nodes[root].clone();
        let Op::Mul {} = node.op else { return Err(Decline::NoMatch) };
        let new = func.create(node.op, &[node.args[1], node.args[0]], "");
        let new = new.map_err(|_| Decline::NoMatch)?;
        Ok(Replacement::node(func, root, new))
    }
}

#[test]
fn a_pass_that_never_stops_is_stopped() {
    let error = run(
        &mut module(),
        &stage(Restless, None),
        &mut Options::default(),
        &TargetInfo::everything(),
    );
    assert!(matches!(error, Err(BrokenPass::NoFixpoint { pass: "restless", .. })), "{error:?}");
}

/// Replaces an activation by a cast, which has another type.
struct Careless;

impl Rewrite for Careless {
    fn name(&self) -> &'static str {
        "careless"
    }
    fn apply(
        &self,
        func: &mut Func,
        root: NodeId,
        _: &Context<'_>,
    ) -> Result<Replacement, Decline> {
        let node = func.nodes[root].clone();
        let Op::Silu {} = node.op else { return Err(Decline::NoMatch) };
        let cast = func.create(Op::Cast { to: ir::DType::BF16 }, &node.args, "");
        let cast = cast.map_err(|_| Decline::NoMatch)?;
        Ok(Replacement::node(func, root, cast))
    }
}

#[test]
fn a_pass_that_breaks_a_type_is_named() {
    let error = run(
        &mut module(),
        &stage(Careless, None),
        &mut Options::default(),
        &TargetInfo::everything(),
    );
    let Err(BrokenPass::Invalid { pass: "careless", errors }) = error else { panic!("{error:?}") };
    assert!(errors[0].to_string().contains("operands must have one type"), "{errors:?}");
}

/// [`Restless`] once, inside composites of kind `block`.
struct Inside;

impl Rewrite for Inside {
    fn name(&self) -> &'static str {
        "inside"
    }
    fn enters(&self, kind: &str) -> bool {
        kind == "block"
    }
    fn apply(
        &self,
        func: &mut Func,
        root: NodeId,
        context: &Context<'_>,
    ) -> Result<Replacement, Decline> {
        let node = &func.nodes[root];
        let in_order = node.args.is_sorted();
        if in_order { Restless.apply(func, root, context) } else { Err(Decline::NoMatch) }
    }
}

#[test]
fn bodies_are_rewritten_where_a_pass_enters() {
    let body = |kind: &str, swapped: bool| {
        let operands = if swapped { "%b, %a" } else { "%a, %b" };
        format!(
            "fused @{kind}(%a: f32[T,4], %b: f32[T,4]) {{\n  %c = mul {operands} : f32[T,4]\n  \
             %d = silu %c : f32[T,4]\n  return %d\n}}\n\n"
        )
    };
    let func = "func @f(%x: f32[T,4], %y: f32[T,4]) {
  %a = fused %x, %y {body = @block} : f32[T,4]
  %b = fused %a, %x {body = @rows} : f32[T,4]
  %c = fused %b, %x {body = @block} : f32[T,4]
  return %c
}
";
    let source = format!("{}{}{func}", body("block", false), body("rows", false));
    let once = |limit: usize| {
        let mut module = text::parse("test.ir", &source).unwrap();
        let mut options = Options { rewrite_limit: limit, ..Options::default() };
        let stages = stage(Inside, None);
        let report = run(&mut module, &stages, &mut options, &TargetInfo::everything()).unwrap();
        (report.fired("inside"), text::print_module(&module))
    };
    let (fired, after) = once(usize::MAX);
    assert_eq!(fired, 2, "the body of two composites");
    let swapped = |text: &str| text.matches("mul %b, %a").count();
    assert_eq!((swapped(&after), after.matches("fused @").count()), (1, 2), "{after}");
    let (fired, after) = once(1);
    assert_eq!((fired, swapped(&after), after.matches("fused @").count()), (1, 1, 3), "{after}");
}

#[test]
fn a_stage_is_held_to_its_phase() {
    let target = TargetInfo::everything();
    let run_to = |phase| {
        let mut stages = pipeline_of(&["fuse-silu-mul"]).unwrap();
        stages[0].phase = Some(phase);
        run(&mut module(), &stages, &mut Options::default(), &target).err()
    };
    assert!(matches!(run_to(Phase::Imported), Some(BrokenPass::Phase { .. })));
    assert_eq!(run_to(Phase::Fused), None);
    assert_eq!(run_to(Phase::LaidOut), None, "there is no matrix product to lay out");
    let Some(error) = run_to(Phase::Specialised) else { panic!("T is a symbol") };
    assert!(error.to_string().contains("symbol T has no value"), "{error}");
}

#[test]
fn phases_know_the_target() {
    let source = "func @f(%x: f32[T,4]) {
  weight %w : f32[2,4]
  weight %b : f32[2]
  %p = matmul %x, %w {out = f32} : f32[T,2]
  %s = add_bias %p, %b : f32[T,2]
  %y = silu_mul %s, %s {out = f32} : f32[T,2]
  return %y
}
";
    let func = text::parse("test.ir", source).unwrap().funcs.remove(0);
    let everything = TargetInfo::everything();
    let bare = TargetInfo { name: "bare".into(), fused_ops: Vec::new(), ..everything.clone() };
    assert_eq!(Phase::Fused.check(&func, &everything), Ok(()));
    let no_kernel = Phase::Fused.check(&func, &bare).unwrap_err();
    assert!(no_kernel[0].to_string().contains("target bare has no kernel"), "{no_kernel:?}");
    let layout = Phase::LaidOut.check(&func, &everything).unwrap_err();
    assert!(layout[0].to_string().contains("weight is nd, but target everything reads panels"));
}
