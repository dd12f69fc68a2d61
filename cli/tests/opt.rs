//! `precast opt`: what it prints, and what it says of a pass that is wrong.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use ir::{Func, NodeId, Op, text};
use passes::{Context, Decline, Place, Replacement, Rewrite};
use precast_cli::{Command, Extension, Precast};
use std::{fs, path::PathBuf, process};

const LAYER: &str = "func @f(%x: f32[T,4], %r: f32[T,4]) {
  weight %norm : f32[4]
  %0.s = silu %x : f32[T,4]
  %0.p = mul %0.s, %r : f32[T,4]
  %0.sum = add %0.p, %r : f32[T,4]
  %0.n = rms_norm %0.sum, %norm {eps = 0.000001, out = f32} : f32[T,4]
  %1.s = silu %0.n : f32[T,4]
  %1.p = mul %1.s, %0.sum : f32[T,4]
  %1.b = add_bias %1.p, %norm : f32[T,4]
  return %1.b
}
";

/// A file with `text`, removed when the test ends.
struct File(PathBuf);

impl File {
    fn new(name: &str, text: &str) -> Self {
        let path = std::env::temp_dir().join(format!("precast-opt-{}-{name}", process::id()));
        fs::write(&path, text).unwrap();
        Self(path)
    }

    fn opt(&self, flags: &str) -> (bool, String, String) {
        let mut command = process::Command::new(env!("CARGO_BIN_EXE_precast"));
        let output =
            command.arg("opt").arg(&self.0).args(flags.split_whitespace()).output().unwrap();
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
        (output.status.success(), text(output.stdout), text(output.stderr))
    }
}

impl Drop for File {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

#[test]
fn every_printed_step_can_be_read_again() {
    let file = File::new("steps.ir", LAYER);
    let (ok, out, _) = file.opt("--print-after-all");
    assert!(ok);
    let steps: Vec<(&str, &str)> =
        out.split("; ==== ").skip(1).map(|s| s.split_once('\n').unwrap()).collect();
    let names: Vec<&str> = steps.iter().map(|(title, _)| &title[3..]).collect();
    let fired = ["fuse-silu-mul", "fuse-add-rms-norm", "fuse-rows"];
    assert_eq!(names, fired, "only passes that changed something");
    assert!(steps.windows(2).all(|w| w[0].0[..2] < w[1].0[..2]), "numbers grow");
    for (title, ir) in steps {
        let module = text::parse(title, ir).unwrap();
        assert_eq!(text::print_module(&module).trim_end(), ir.trim_end());
        let passes = format!("--passes {}", fired.join(","));
        let rest = File::new("step.ir", ir).opt(&passes).1;
        assert_eq!(rest, file.opt("").1, "{title}: going on from a step gives the same program");
    }
}

/// Absorbed latent attention rounds elsewhere: its replacement is compared by itself, and what follows
/// must keep every bit of it, though the choice at the end turns on bits.
#[test]
fn numbers_are_checked_around_a_pass_that_rounds_elsewhere() {
    let text = "func @f(%q: bf16[T,2,4], %r: f32[T,2,2], %c: state bf16[NB,4,6], %k: state bf16[NB,4,2], %t: i32[T,W], %p: i32[T]) {
  weight %keys : bf16[2,4,6]
  weight %values : bf16[2,4,6]
  %attn = expanded_latent_attention %q, %r, %keys, %values, %c, %k, %t, %p {scale = 0.5, out = f32} : f32[T,2,4]
  %flat = reshape %attn {dims = [T,8]} : f32[T,8]
  %codes, %scales = quantize_rows %flat : i8[T,8], f32[T,1]
  %best = argmax %flat : i32[T]
  return %codes, %scales, %best
}
";
    let file = File::new("absorbed.ir", text);
    let (ok, out, error) = file.opt("--check-numerics");
    assert!(ok && out.contains("latent_attention %attn.q_latent"), "{error}");
    let (ok, _, error) = file.opt("--disable-pass absorb-latent");
    assert!(!ok && error.contains("`absorb-latent` cannot be disabled"), "{error}");
}

#[test]
fn passes_can_be_chosen_left_out_and_drawn() {
    let file = File::new("chosen.ir", LAYER);
    let (_, out, _) = file.opt("--passes fuse-add-rms-norm");
    assert!(out.contains("add_rms_norm") && !out.contains("silu_mul"), "{out}");
    let (_, out, _) = file.opt("--disable-pass fuse-add-rms-norm");
    assert!(!out.contains("add_rms_norm") && out.contains("silu_mul"), "{out}");
    let (ok, _, error) = file.opt("--passes fuse-add-norm");
    assert!(!ok && error.contains("fuse-add-rms-norm"), "{error}");
    let (_, dot, _) = file.opt("--dot");
    assert!(dot.starts_with("digraph module {") && dot.contains("label=\"add_rms_norm"), "{dot}");
    assert_eq!(dot, file.opt("--dot").1, "equal input gives equal text");
    let (ok, out, error) = file.opt("--check-numerics");
    assert!(ok && out.contains("add_rms_norm"), "{error}");
}

/// Drops the activation of the second gated product: wrong, and well typed.
struct DropActivation;

impl Rewrite for DropActivation {
    fn name(&self) -> &'static str {
        "drop-activation"
    }
    fn apply(
        &self,
        func: &mut Func,
        root: NodeId,
        _: &Context<'_>,
    ) -> Result<Replacement, Decline> {
        let node = &func.nodes[root];
        let is_second = func.values[node.outs[0]].name.starts_with("1.");
        match (&node.op, &node.args[..]) {
            (Op::SiluMul { .. }, &[gate, _]) if is_second => {
                Ok(Replacement::value(node.outs[0], gate))
            }
            // Right, so that the wrong rewrite is not the only one of the pass.
            (Op::AddBias {}, args) => {
                let args = args.to_vec();
                let cast = func.create(Op::Cast { to: ir::DType::F32 }, &args[..1], "").unwrap();
                let cast_out = func.nodes[cast].outs[0];
                if matches!(func.def_node(args[0]), Some((_, n)) if matches!(n.op, Op::Cast { .. }))
                {
                    return Err(Decline::NoMatch);
                }
                let new = func.create(Op::AddBias {}, &[cast_out, args[1]], "").unwrap();
                let made = Replacement::node(func, root, new);
                Ok(Replacement { nodes: vec![cast, new], ..made })
            }
            _ => Err(Decline::NoMatch),
        }
    }
}

#[test]
fn the_wrong_rewrite_is_named() {
    let file = File::new("wrong.ir", LAYER);
    let wrong = Extension::new("wrong").pass(
        DropActivation,
        Place::Before("fuse-add-rms-norm"),
        "so that other passes fire before and after it",
    );
    let precast = Precast::builder().register(wrong).build().unwrap();
    let opt = |flags: &str| {
        let words = ["precast", "opt", file.0.to_str().unwrap()].into_iter();
        let line = words.chain(flags.split_whitespace()).map(Into::into);
        let command = precast_cli::parse(line).unwrap().command;
        assert!(matches!(command, Command::Opt(_)));
        precast.run(command)
    };
    let error = opt("--check-numerics").unwrap_err().to_string();
    assert!(error.contains("@f: result 0 (%1.b) differs at element [0, 0]"), "{error}");
    // Two products were fused before it; the right rewrite of the same pass and the fused norm come
    // after it.
    let blamed = "rewrite 3, by drop-activation at silu_mul %1.p, is to blame";
    assert!(error.contains(blamed), "{error}");
    assert!(error.contains("--rewrite-limit 2 is right"), "{error}");
    opt("--check-numerics --rewrite-limit 2").unwrap();
    assert!(opt("--check-numerics --rewrite-limit 3").is_err());
    opt("--check-numerics --disable-pass drop-activation").unwrap();
}

#[test]
fn extensions_that_do_not_fit_are_refused() {
    let pass = |name| Extension::new(name).pass(DropActivation, Place::After("fuse-qkv"), "tested");
    let refused = |first: Extension, second: Extension| {
        let built = Precast::builder().register(first).register(second).build().map(drop);
        built.expect_err("two do not fit").to_string()
    };
    let twice = refused(pass("a"), pass("b"));
    assert!(twice.contains("`b`") && twice.contains("`drop-activation`"), "{twice}");
    let names = refused(Extension::new("a"), Extension::new("a"));
    assert!(names.contains("two extensions called `a`"), "{names}");
    let place = Extension::new("c").pass(DropActivation, Place::Before("fuse-nothing"), "tested");
    let unknown = refused(Extension::new("a"), place);
    assert!(unknown.contains("`fuse-nothing`") && unknown.contains("fuse-qkv"), "{unknown}");
}

/// Layouts and composites are those of the target; without the flag, of the CPU.
#[test]
fn a_target_can_be_named() {
    let file = File::new(
        "target.ir",
        "func @f(%x: bf16[T,64]) {
  weight %w : bf16[64,64]
  %y = matmul %x, %w {out = bf16} : bf16[T,64]
  return %y
}
",
    );
    let layout = |flags: &str| {
        let (ok, out, error) = file.opt(flags);
        assert!(ok, "{error}");
        let line = out.lines().find(|l| l.contains("relayout")).unwrap_or_default().to_owned();
        line.rsplit("layout = ").next().unwrap_or_default().to_owned()
    };
    let (cpu, npu) = (layout("--target cpu"), layout("--target ascend910b --check-numerics"));
    assert!(cpu.starts_with("compact") && npu.starts_with("nz"), "{cpu} {npu}");
    assert_eq!(layout(""), cpu);
    let (ok, _, error) = file.opt("--target tpu");
    assert!(!ok && error.contains("ascend910b"), "{error}");
}
