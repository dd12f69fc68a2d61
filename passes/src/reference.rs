//! What a pipeline must equal bit for bit, when some of its passes round elsewhere.

use crate::{
    BrokenPass, NumericError, Options, TargetInfo,
    constants::ProductWeights,
    manager, numerics,
    pipelines::{Stage, Step},
    rewrite::{Context, Rewrite},
    sample_bindings,
};
use ir::{Func, Module, ValueId};

/// A module without a reference.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum ReferenceError {
    /// A pass could not run.
    #[error(transparent)]
    Pass(#[from] BrokenPass),
    /// A function could not be interpreted.
    #[error(transparent)]
    Numeric(#[from] NumericError),
    /// A replacement is not what it replaces.
    #[error(
        "{pass} in @{func}: what replaces %{name} is {found} from it, and {most} is allowed (seed {seed})"
    )]
    Far {
        /// Pass.
        pass: &'static str,
        /// Function.
        func: String,
        /// Name of the replaced value.
        name: String,
        /// Seed of the inputs.
        seed: u64,
        /// Distance, as [`numeric_distance`](crate::numeric_distance) measures.
        found: f64,
        /// [`Rewrite::distance`].
        most: f64,
    },
}

/// `before` after those passes of `stages` alone that round elsewhere ([`Rewrite::distance`]). All
/// others keep every bit, so the end of the pipeline must equal it in
/// [`check_numerics`](crate::check_numerics).
///
/// Each replacement of these passes is compared with what it replaces, on the operands that both have
/// in the function: a choice later on, of experts or keys, cannot enlarge a rounding.
///
/// # Errors
/// [`ReferenceError`], naming the first replacement that is too far from what it replaces.
pub fn numeric_reference(
    before: &Module,
    stages: &[Stage],
    options: &Options<'_>,
    target: &TargetInfo,
    seeds: &[u64],
) -> Result<Module, ReferenceError> {
    let mut module = before.clone();
    let runs =
        |s: &&Step| s.pass.distance() > 0.0 && !options.disabled.iter().any(|d| d == s.pass.name());
    for step in stages.iter().flat_map(|s| &s.steps).filter(runs) {
        let product_weights = ProductWeights::of(&module);
        let quantize = options.quantize;
        let context = Context { target, product_weights: &product_weights, quantize };
        for func in &module.funcs {
            compare(&*step.pass, func, &context, seeds)?;
        }
        let stage = Stage { phase: None, steps: vec![step.clone()] };
        let mut alone = Options { quantize, ..Options::default() };
        manager::run(&mut module, &[stage], &mut alone, target)?;
    }
    Ok(module)
}

/// Compares each value that `pass` replaces in `func` with what takes its place.
fn compare(
    pass: &dyn Rewrite,
    func: &Func,
    context: &Context<'_>,
    seeds: &[u64],
) -> Result<(), ReferenceError> {
    let (both, pairs) = beside(pass, func, context);
    if pairs.is_empty() {
        return Ok(());
    }
    for &seed in seeds {
        let results = numerics::results(&both, seed, &sample_bindings(func))?;
        let (old, new) = results.split_at(pairs.len());
        for ((&pair, old), new) in pairs.iter().zip(old).zip(new) {
            let (found, most) = (numerics::distance(old, new), pass.distance());
            if found > most || found.is_nan() {
                let (func, name) = (func.name.clone(), func.values[pair].name.clone());
                let pass = pass.name();
                return Err(ReferenceError::Far { pass, func, name, seed, found, most });
            }
        }
    }
    Ok(())
}

/// `func` with the values that `pass` replaces as its results, and after them what would take their
/// places; and these values.
fn beside(pass: &dyn Rewrite, func: &Func, context: &Context<'_>) -> (Func, Vec<ValueId>) {
    let mut both = func.clone();
    let (mut old, mut new) = (Vec::new(), Vec::new());
    for &root in &func.order {
        let Ok(replacement) = pass.apply(&mut both, root, context) else { continue };
        for &node in &replacement.nodes {
            both.insert(node, Some(root));
        }
        old.extend(replacement.values.iter().map(|v| v.0));
        new.extend(replacement.values.iter().map(|v| v.1));
    }
    both.set_results([&old[..], &new].concat());
    (both, old)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Decline, Replacement, pipelines, rewrite};
    use ir::{NodeId, Op, text};
    use std::sync::Arc;

    /// Puts `x * sigmoid(x)` in the place of `silu(x)`, or without `times_x` the second factor alone.
    struct Other {
        times_x: bool,
    }

    impl Rewrite for Other {
        fn name(&self) -> &'static str {
            "other"
        }

        fn distance(&self) -> f64 {
            0.01
        }

        fn apply(
            &self,
            func: &mut Func,
            root: NodeId,
            _: &rewrite::Context<'_>,
        ) -> Result<Replacement, Decline> {
            let node = func.nodes[root].clone();
            let Op::Silu {} = node.op else { return Err(Decline::NoMatch) };
            let x = node.args[0];
            let mut nodes = vec![func.create(Op::Sigmoid {}, &[x], "").unwrap()];
            let mut new = func.nodes[nodes[0]].outs[0];
            if self.times_x {
                nodes.push(func.create(Op::Mul {}, &[x, new], "").unwrap());
                new = func.nodes[nodes[1]].outs[0];
            }
            Ok(Replacement { nodes, ..Replacement::value(node.outs[0], new) })
        }
    }

    const TEXT: &str = "func @f(%x: f32[T,4]) {
  %s = silu %x : f32[T,4]
  %l = argmax %s : i32[T]
  return %l
}
";

    fn reference(pass: Other) -> Result<Module, ReferenceError> {
        let module = text::parse("test.ir", TEXT).unwrap();
        let step = Step { pass: Arc::new(pass), why: "tested" };
        let mut stages = pipelines::default_pipeline();
        stages[1].steps.push(step);
        let options = Options::default();
        numeric_reference(&module, &stages, &options, &TargetInfo::everything(), &[1, 2])
    }

    #[test]
    fn a_replacement_may_round_and_no_more() {
        let rounded = text::print_module(&reference(Other { times_x: true }).unwrap());
        assert!(rounded.contains("sigmoid") && rounded.contains("mul"), "{rounded}");
        let far = reference(Other { times_x: false }).unwrap_err();
        assert!(
            matches!(&far, ReferenceError::Far { name, found, .. } if name == "s" && *found > 0.1),
            "{far}"
        );
    }

    /// Nothing that the pipeline does later is part of it.
    #[test]
    fn passes_that_keep_every_bit_do_not_run() {
        let source = "func @f(%x: f32[T,4]) {
  %a = silu %x : f32[T,4]
  %y = mul %a, %x : f32[T,4]
  return %y
}
";
        let module = text::parse("test.ir", source).unwrap();
        let (stages, options) = (pipelines::default_pipeline(), Options::default());
        let found =
            numeric_reference(&module, &stages, &options, &TargetInfo::everything(), &[1]).unwrap();
        assert_eq!(text::print_module(&found), source);
    }
}
