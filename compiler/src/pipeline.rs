//! Runs the passes and records how the program came to be.

use crate::{Buckets, CompileError, Options, Target};
use artifact::{
    FunctionEntry, PassEntry, PassTarget, Pipeline, QuantizedProducts, StepCosts, StoredType,
    WeightLayout, checksum,
};
use ir::{Bindings, Func, Module, Symbol};
use passes::{LayoutRule, Report, TargetInfo, WeightType};

/// The pass that quantises products.
const QUANTIZE: &str = "quantize-matmuls";

/// What the passes did, for people and for the manifest.
pub(crate) struct Ran {
    pub(crate) report: Report,
    pub(crate) pipeline: Pipeline,
    pub(crate) functions: Vec<FunctionEntry>,
}

/// Runs the pipeline over `module` and adds the texts that travel with the artifact to `texts`.
pub(crate) fn run(
    module: &mut Module,
    target: &dyn Target,
    options: &Options,
    buckets: &Buckets,
    texts: &mut Vec<(String, String)>,
) -> Result<Ran, CompileError> {
    let sizes: Vec<Sizes> = module.funcs.iter().map(|f| Sizes::of(f, buckets, target)).collect();
    let costs = |module: &Module| -> Vec<StepCosts> {
        module.funcs.iter().zip(&sizes).map(|(func, sizes)| sizes.costs(func)).collect()
    };
    let before = costs(module);
    let mut dump = |index: usize, pass: &str, text: &str| {
        texts.push((format!("ir/passes/{index:02}-{pass}.ir"), text.to_owned()));
    };
    let mut pass_options = passes::Options {
        catalog: options.catalog.clone(),
        rewrite_limit: options.rewrite_limit,
        disabled: options.disabled_passes.clone(),
        quantize: options.quantize,
        dump: if options.dump_ir { Some(&mut dump) } else { None },
    };
    let rows = buckets.decode.last().copied().unwrap_or(1);
    let (stages, mut info) = (options.catalog.pipeline(), target.info());
    if let Some(most) = options.compact_rows {
        info = info.with_compact_rows(most);
    }
    let info = info.with_rows(rows);
    let report = passes::run(module, &stages, &mut pass_options, &info)?;
    for func in &module.funcs {
        texts.push((format!("ir/{}.ir", func.name), ir::text::print(func)));
    }
    texts.push(("passes.txt".into(), report.clone().without_times().to_string()));

    let after = costs(module);
    let entry = |((func, sizes), (before, after)): ((&Func, &Sizes), _)| FunctionEntry {
        name: func.name.clone(),
        rows: sizes.rows,
        before,
        after,
    };
    let funcs = module.funcs.iter().zip(&sizes);
    let functions = funcs.zip(before.into_iter().zip(after)).map(entry).collect();
    Ok(Ran { pipeline: pipeline(&report, options, info), functions, report })
}

fn pipeline(report: &Report, options: &Options, info: TargetInfo) -> Pipeline {
    let TargetInfo {
        name,
        matmul_weight_layout,
        layout_rules,
        weight_types,
        gate_up_block,
        scales_parts,
        fused_ops,
        row_wise_ops,
    } = info;
    let rule = |LayoutRule { op, dtype, layout, .. }| WeightLayout { op, dtype, layout };
    let stored = |WeightType { op, rows, from, to }: WeightType| StoredType { op, rows, from, to };
    let target = PassTarget {
        name,
        matmul_weight_layout,
        layout_rules: layout_rules.into_iter().map(rule).collect(),
        weight_types: weight_types.into_iter().map(stored).collect(),
        gate_up_block,
        scales_parts,
        fused: fused_ops,
        row_wise: row_wise_ops,
    };
    let quantized = |q: passes::Quantize| {
        let passes::Quantize { bits, group, head } = q;
        QuantizedProducts { bits, group, head }
    };
    let passes = report.steps.iter().map(|step| {
        let ran = report.passes.iter().filter(|p| p.index == step.index && p.fired > 0);
        PassEntry {
            pass: step.pass.to_owned(),
            source: Some(step.source).filter(|s| !s.is_empty()).map(|s| checksum(s.as_bytes())),
            disabled: step.disabled,
            fired: ran.map(|p| (p.func.clone(), p.fired as u64)).collect(),
        }
    });
    Pipeline {
        target,
        quantize: options.quantize.filter(|_| report.fired(QUANTIZE) > 0).map(quantized),
        rewrite_limit: Some(options.rewrite_limit as u64).filter(|_| options.is_limited()),
        passes: passes.collect(),
    }
}

/// The step that a function is measured by: the largest batch or chunk with the shortest context,
/// and one row of a head.
struct Sizes {
    rows: u32,
    bindings: Bindings,
}

impl Sizes {
    fn of(func: &Func, buckets: &Buckets, target: &dyn Target) -> Self {
        let last = |sizes: &[u32]| sizes.last().copied().unwrap_or(1);
        let rows = match func.name.as_str() {
            "decode" => last(&buckets.decode),
            "prefill" => last(&buckets.prefill),
            _ => 1,
        };
        let tier = buckets.tiers.first().copied().unwrap_or_default();
        let blocks = tier / target.build_target().kv_block_tokens.max(1);
        let sizes = [(crate::driver::ROWS, rows), (crate::driver::TABLE_BLOCKS, blocks)];
        let bindings = sizes.map(|(symbol, n)| (Symbol::new(symbol), u64::from(n))).into();
        Self { rows, bindings }
    }

    fn costs(&self, func: &Func) -> StepCosts {
        // An activation whose size is unknown here is refused when the function is specialised.
        let activation_bytes = passes::activation_bytes(func, &self.bindings).unwrap_or_default();
        StepCosts { ops: passes::count_ops(func), activation_bytes }
    }
}
