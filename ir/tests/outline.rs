//! Any run of ops becomes a composite, and the numbers stay.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use precast_ir::{
    Bindings, DType, Func, NodeId, OutlineError, Symbol,
    interp::{self, Tensor},
    text,
};
use proptest::prelude::*;

const TEXT: &str = "func @f(%x: f32[T,4], %rows: state f32[R,4]) {
  weight %w : f32[4,4]
  weight %bias : f32[4]
  %layers.0.a = matmul %x, %w {out = f32} : f32[T,4]
  %layers.0.b = add_bias %layers.0.a, %bias : f32[T,4]
  %layers.0.c = silu %layers.0.b : f32[T,4]
  %layers.0.d = add %layers.0.c, %x : f32[T,4]
  %layers.0.q, %layers.0.s = quantize_rows %layers.0.d : i8[T,4], f32[T,1]
  %layers.0.e = scale_rows %layers.0.d, %layers.0.s : f32[T,4]
  %layers.0.rows = store_rows %rows, %layers.0.e : state f32[R,4]
  %layers.1.a = matmul %layers.0.e, %w {out = f32} : f32[T,4]
  %layers.1.b = add_bias %layers.1.a, %bias : f32[T,4]
  %layers.1.rows = store_rows %layers.0.rows, %layers.1.b : state f32[R,4]
  return %layers.0.b, %layers.1.b, %layers.0.q, %layers.1.rows
}
";

fn func() -> Func {
    text::parse("test.ir", TEXT).unwrap().funcs.remove(0)
}

fn results(func: &Func) -> Vec<Tensor> {
    let tensor = |dims: &[usize], from: f64| {
        let n = dims.iter().product::<usize>();
        let data = (0..n).map(|i| from + 0.25 * i as f64).collect();
        Tensor::new(DType::F32, dims.to_vec(), data)
    };
    let bindings: Bindings = [("T", 3), ("R", 5)].map(|(s, n)| (Symbol::new(s), n)).into();
    let weights = |name: &str| if name == "w" { tensor(&[4, 4], -1.5) } else { tensor(&[4], 0.5) };
    interp::run(func, &[tensor(&[3, 4], -1.0), tensor(&[5, 4], 0.0)], &weights, &bindings).unwrap()
}

/// Lists the composite of `nodes`, which stand together, in their place.
fn outline(func: &mut Func, nodes: &[NodeId]) -> Result<(), OutlineError> {
    let made = func.outline(nodes, "rows")?;
    func.insert(made.node, Some(made.nodes[0]));
    let outs = func.nodes[made.node].outs.clone();
    for (&old, &new) in made.results.iter().zip(&outs) {
        func.replace_uses(old, new);
        func.swap_names(old, new);
    }
    made.nodes.iter().rev().for_each(|&n| func.remove(n));
    Ok(())
}

proptest! {
    /// Twice, so that bodies stand inside bodies.
    #[test]
    fn a_composite_means_its_ops(a in 0..10usize, b in 1..=10usize, c in 0..10usize, d in 1..=10usize) {
        let (before, mut after) = (func(), func());
        for (start, len) in [(a, b), (c, d)] {
            let nodes: Vec<NodeId> = after.order.iter().copied().skip(start).take(len).collect();
            match outline(&mut after, &nodes) {
                Ok(()) => {}
                Err(e) => prop_assert_eq!(e, OutlineError::Nothing),
            }
            prop_assert_eq!(after.verify(), Ok(()));
        }
        prop_assert_eq!(results(&before), results(&after));
        let printed = text::print(&after);
        let again = text::parse("again.ir", &printed).unwrap();
        prop_assert_eq!(text::print_module(&again), printed);
    }
}
