//! Runs pipelines: verifies after every pass, counts, times, dumps and bisects.

use crate::{
    Catalog, Phase, TargetInfo,
    constants::ProductWeights,
    driver::{self, Failure},
    pipelines::Stage,
    quantize::Quantize,
    report::{PassReport, Report, StepReport},
    rewrite::{Context, Rewrite},
};
use ir::{Func, Module, VerifyError, text};
use std::time::Instant;

/// Receives the index of a pass, its name, and the module's text after it.
pub type Dump<'a> = &'a mut dyn FnMut(usize, &str, &str);

/// How to run a pipeline.
pub struct Options<'a> {
    /// The passes that names refer to.
    pub catalog: Catalog,
    /// Stop after this many rewrites, to bisect a miscompile. `usize::MAX` in production.
    pub rewrite_limit: usize,
    /// Passes to leave out, by name.
    pub disabled: Vec<String>,
    /// Quantises products of floats; `None` leaves them as they are.
    pub quantize: Option<Quantize>,
    /// Called after each pass.
    pub dump: Option<Dump<'a>>,
}

impl Default for Options<'_> {
    fn default() -> Self {
        Self {
            catalog: Catalog::builtin(),
            rewrite_limit: usize::MAX,
            disabled: Vec::new(),
            quantize: None,
            dump: None,
        }
    }
}

/// A pipeline that could not run, or a pass that broke the program.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum BrokenPass {
    /// No such pass.
    #[error("no pass is called `{name}`; the passes are {}", known.join(", "))]
    Unknown {
        /// What was asked for.
        name: String,
        /// What there is.
        known: Vec<&'static str>,
    },
    /// A pass that the target needs was disabled.
    #[error("`{name}` cannot be disabled: {why}")]
    Required {
        /// Pass.
        name: String,
        /// What needs it.
        why: &'static str,
    },
    /// Quantisation that no kernel could be asked for.
    #[error("products cannot be quantised so: {what}")]
    Quantize {
        /// The option that cannot be.
        what: String,
    },
    /// The program does not verify before the first pass.
    #[error("the input does not verify: {}", list(errors))]
    Input {
        /// Every broken rule.
        errors: Vec<VerifyError>,
    },
    /// The program does not verify after a pass.
    #[error("pass `{pass}` broke the program: {}", list(errors))]
    Invalid {
        /// Pass.
        pass: &'static str,
        /// Every broken rule.
        errors: Vec<VerifyError>,
    },
    /// A pass does not terminate.
    #[error("pass `{pass}` still fires after {fired} rewrites; it undoes or repeats its own work")]
    NoFixpoint {
        /// Pass.
        pass: &'static str,
        /// Replacements made before giving up.
        fired: usize,
    },
    /// A stage did not establish its phase.
    #[error("phase {phase} does not hold at the end of its stage: {}", list(errors))]
    Phase {
        /// Phase.
        phase: Phase,
        /// Every place where it does not hold.
        errors: Vec<VerifyError>,
    },
}

fn list(errors: &[VerifyError]) -> String {
    errors.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ")
}

/// Runs `stages` over every function, in place. Verifies after each pass that fired, in every
/// build: it is linear in the program, and a wrong graph is compiled once and served a million
/// times.
///
/// # Errors
/// [`BrokenPass`]; `module` is then in the state that the error describes.
pub fn run(
    module: &mut Module,
    stages: &[Stage],
    options: &mut Options<'_>,
    target: &TargetInfo,
) -> Result<Report, BrokenPass> {
    check_disabled(&options.catalog, &options.disabled)?;
    let quantize = options.quantize;
    quantize.map_or(Ok(()), |q| q.check()).map_err(|what| BrokenPass::Quantize { what })?;
    verify(module).map_err(|errors| BrokenPass::Input { errors })?;
    let mut budget = options.rewrite_limit;
    let (mut report, mut index) = (Report::default(), 0);
    for stage in stages {
        for step in &stage.steps {
            let pass = &*step.pass;
            let disabled = options.disabled.iter().any(|d| d == pass.name());
            report.steps.push(StepReport {
                index,
                pass: pass.name(),
                source: pass.source(),
                disabled,
            });
            if !disabled {
                let product_weights = ProductWeights::of(module);
                let context = Context { target, product_weights: &product_weights, quantize };
                for func in &mut module.funcs {
                    report.passes.push(run_pass(index, pass, func, &context, &mut budget)?);
                }
                if let Some(dump) = &mut options.dump {
                    dump(index, pass.name(), &text::print_module(module));
                }
            }
            index += 1;
        }
        if let Some(phase) = stage.phase {
            let checks = module.funcs.iter().filter_map(|f| phase.check(f, target).err());
            let errors: Vec<VerifyError> = checks.flatten().collect();
            if !errors.is_empty() {
                return Err(BrokenPass::Phase { phase, errors });
            }
        }
    }
    Ok(report)
}

/// [`run`] for one function.
///
/// # Errors
/// As [`run`]; `func` is then in the state that the error describes.
pub fn run_func(
    func: &mut Func,
    stages: &[Stage],
    options: &mut Options<'_>,
    target: &TargetInfo,
) -> Result<Report, BrokenPass> {
    let mut module = Module { funcs: vec![std::mem::take(func)] };
    let result = run(&mut module, stages, options, target);
    *func = module.funcs.pop().expect("the module has one function");
    result
}

fn check_disabled(catalog: &Catalog, disabled: &[String]) -> Result<(), BrokenPass> {
    for name in disabled {
        let pass = catalog.pass(name).ok_or_else(|| catalog.unknown(name))?;
        if let Some(why) = pass.required() {
            return Err(BrokenPass::Required { name: name.clone(), why });
        }
    }
    Ok(())
}

fn verify(module: &Module) -> Result<(), Vec<VerifyError>> {
    let errors: Vec<VerifyError> =
        module.funcs.iter().filter_map(|f| f.verify().err()).flatten().collect();
    if errors.is_empty() { Ok(()) } else { Err(errors) }
}

fn run_pass(
    index: usize,
    pass: &dyn Rewrite,
    func: &mut Func,
    context: &Context<'_>,
    budget: &mut usize,
) -> Result<PassReport, BrokenPass> {
    let start = Instant::now();
    let required = pass.required().is_some();
    let limit = if required { usize::MAX } else { *budget };
    let outcome = driver::run(pass, func, context, limit).map_err(|e| match e {
        Failure::NoFixpoint { fired } => BrokenPass::NoFixpoint { pass: pass.name(), fired },
        Failure::Body(errors) => BrokenPass::Invalid { pass: pass.name(), errors },
    })?;
    if !required {
        *budget -= outcome.fired;
    }
    if outcome.fired > 0 {
        func.verify().map_err(|errors| BrokenPass::Invalid { pass: pass.name(), errors })?;
    }
    Ok(PassReport {
        index,
        pass: pass.name(),
        func: func.name.clone(),
        fired: outcome.fired,
        took: start.elapsed(),
        near_misses: outcome.near_misses,
        last_root: outcome.last_root,
    })
}
