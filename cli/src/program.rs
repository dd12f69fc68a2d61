//! What `inspect` says of how the program came to be.

use crate::report::bytes_text;
use artifact::{
    FunctionEntry, PassEntry, PassTarget, Pipeline, QuantizedProducts, StoredType, WeightLayout,
};
use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::{Display, Write},
};

/// A few lines: what ran, what did not, and what it was good for.
pub(crate) fn summary(pipeline: &Pipeline, functions: &[FunctionEntry]) -> String {
    let Pipeline { target: _, quantize, rewrite_limit, passes } = pipeline;
    let ran = || passes.iter().filter(|p| !p.disabled);
    let rewrites: u64 = ran().flat_map(|p| p.fired.values()).sum();
    let mut text = format!(
        "passes (--passes)\n  ran               {} of {}, {rewrites} rewrites\n",
        ran().count(),
        passes.len()
    );
    let mut line = |what: &str, text_: String| {
        let _ = writeln!(text, "  {what:<17} {text_}");
    };
    let disabled: BTreeSet<&str> =
        passes.iter().filter(|p| p.disabled).map(|p| p.pass.as_str()).collect();
    if !disabled.is_empty() {
        line("disabled", disabled.into_iter().collect::<Vec<_>>().join(", "));
    }
    if let Some(limit) = rewrite_limit {
        line("rewrite limit", limit.to_string());
    }
    if let Some(quantize) = quantize {
        line("quantised", quantized(quantize));
    }
    text += &steps(functions);
    text
}

/// Ops and bytes of a step of each function, before and after the passes.
fn steps(functions: &[FunctionEntry]) -> String {
    let mut text = format!(
        "{:<19} {:>6} {:>16} {:>25}\n",
        "steps (--ops)", "rows", "ops", "activations moved"
    );
    for FunctionEntry { name, rows, before, after } in functions {
        let ops = change(before.total(), after.total());
        let [from, to] = [before, after].map(|c| bytes_text(c.activation_bytes));
        let _ = writeln!(text, "  {name:<17} {rows:>6} {ops:>16} {:>25}", change(from, to));
    }
    text
}

/// The effective configuration of the pipeline, and the checksum of each pass's source.
pub(crate) fn passes(pipeline: &Pipeline) -> String {
    let Pipeline { target, quantize, rewrite_limit, passes } = pipeline;
    let PassTarget {
        name,
        matmul_weight_layout,
        layout_rules,
        weight_types,
        gate_up_block,
        scales_parts,
        fused,
        row_wise,
    } = target;
    let stored = |StoredType { op, rows, from, to }: &StoredType| {
        let rows = rows.map_or(String::new(), |t| format!(" with {t} rows"));
        format!(" ({to} for {from} of {op}{rows})")
    };
    let or_none = |n: Option<u64>| n.map_or("none".to_owned(), |n| n.to_string());
    let exception = |WeightLayout { op, dtype, layout }: &WeightLayout| {
        let dtype = dtype.map_or("all".to_owned(), |t| t.to_string());
        format!(" ({layout} for {dtype} of {op})")
    };
    let list = |ops: &[String]| if ops.is_empty() { "none".to_owned() } else { ops.join(", ") };
    let mut text = format!(
        "target {name}: weights in {matmul_weight_layout}{}{}, gate/up block {}, scales of {}\n  fused: {}\n  row by row: {}\n",
        layout_rules.iter().map(exception).collect::<String>(),
        weight_types.iter().map(stored).collect::<String>(),
        match gate_up_block {
            Some(u64::MAX) => "of all rows".to_owned(),
            block => or_none(*block),
        },
        if *scales_parts { "rows or parts of them" } else { "whole rows" },
        list(fused),
        list(row_wise),
    );
    let quantized = quantize.as_ref().map_or("none".to_owned(), quantized);
    let _ = writeln!(text, "products quantised: {quantized}");
    let _ = writeln!(text, "rewrite limit: {}", or_none(*rewrite_limit));
    let _ = writeln!(text, "sources (XXH3)");
    let mut told = BTreeSet::new();
    for PassEntry { pass, source, .. } in passes.iter().filter(|p| told.insert(&p.pass)) {
        let source = source.as_ref().map_or("not told".to_owned(), ToString::to_string);
        let _ = writeln!(text, "  {source:<32}  {pass}");
    }
    text
}

fn quantized(quantize: &QuantizedProducts) -> String {
    let QuantizedProducts { bits, group, head } = quantize;
    let group = match group {
        None => "default groups".to_owned(),
        Some(u64::MAX) => "a scale for each output".to_owned(),
        Some(group) => format!("groups of {group}"),
    };
    let head = if *head { ", the output projection too" } else { "" };
    format!("weights to {bits} bits, {group}{head}")
}

/// How often each op runs in a step of each function, before and after the passes.
pub(crate) fn ops(functions: &[FunctionEntry]) -> String {
    let mut text = String::new();
    for FunctionEntry { name, rows, before, after } in functions {
        let _ = writeln!(text, "@{name}, {rows} rows");
        let known: BTreeSet<&String> = before.ops.keys().chain(after.ops.keys()).collect();
        let width = known.iter().map(|op| op.len()).max().unwrap_or(0).max(17);
        let mut line = |op: &str, before: &dyn Display, after: &dyn Display| {
            let _ = writeln!(text, "  {op:<width$} {before:>10} -> {after:>10}");
        };
        for op in known {
            let count =
                |ops: &BTreeMap<String, u64>| ops.get(op).map_or("-".to_owned(), u64::to_string);
            line(op, &count(&before.ops), &count(&after.ops));
        }
        line("all ops", &before.total(), &after.total());
        let [from, to] = [before, after].map(|c| bytes_text(c.activation_bytes));
        line("activations moved", &from, &to);
    }
    text
}

fn change(from: impl Display, to: impl Display) -> String {
    format!("{from} -> {to}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use artifact::{StepCosts, checksum};
    use ir::{DType, Layout};

    fn pipeline() -> Pipeline {
        let pass = |pass: &str, disabled, fired: &[(&str, u64)]| PassEntry {
            pass: pass.to_owned(),
            source: Some(checksum(pass.as_bytes())).filter(|_| pass != "fuse-mine"),
            disabled,
            fired: fired.iter().map(|&(func, n)| (func.to_owned(), n)).collect(),
        };
        Pipeline {
            target: PassTarget { name: "cpu".to_owned(), ..PassTarget::default() },
            quantize: Some(QuantizedProducts { bits: 4, group: Some(64), head: true }),
            rewrite_limit: Some(70),
            passes: vec![
                pass("canonicalise", false, &[]),
                pass("fuse-qkv", true, &[]),
                pass("fuse-mine", false, &[("decode", 3), ("prefill", 4)]),
                pass("canonicalise", false, &[("decode", 1)]),
            ],
        }
    }

    fn functions() -> Vec<FunctionEntry> {
        let costs = |ops: &[(&str, u64)], activation_bytes| StepCosts {
            ops: ops.iter().map(|&(op, n)| (op.to_owned(), n)).collect(),
            activation_bytes,
        };
        vec![FunctionEntry {
            name: "decode".to_owned(),
            rows: 8,
            before: costs(&[("silu", 28), ("mul", 28), ("matmul", 100)], 120_000),
            after: costs(&[("matmul", 72), ("fused:rows", 28)], 64_000),
        }]
    }

    #[test]
    fn the_summary_tells_what_ran_and_what_it_was_good_for() {
        let expected = "passes (--passes)
  ran               3 of 4, 8 rewrites
  disabled          fuse-qkv
  rewrite limit     70
  quantised         weights to 4 bits, groups of 64, the output projection too
steps (--ops)         rows              ops         activations moved
  decode                 8       156 -> 100       120.0 kB -> 64.0 kB
";
        assert_eq!(summary(&pipeline(), &functions()), expected);
        let plain = Pipeline { quantize: None, rewrite_limit: None, ..pipeline() };
        let text = summary(&plain, &functions());
        assert!(!text.contains("limit") && !text.contains("quantised"), "{text}");
    }

    #[test]
    fn exceptions_of_the_layout_are_told() {
        let rule = |dtype| WeightLayout { op: "matmul".to_owned(), dtype, layout: Layout::Nz };
        let mut pipeline = pipeline();
        pipeline.target.layout_rules = vec![rule(Some(DType::I8)), rule(None)];
        let text = passes(&pipeline);
        let expected = "target cpu: weights in nd (nz for i8 of matmul) (nz for all of matmul), ";
        assert!(text.starts_with(expected), "{text}");
    }

    #[test]
    fn every_pass_is_told_once_with_its_source() {
        let text = passes(&pipeline());
        assert!(text.starts_with(
            "target cpu: weights in nd, gate/up block none, scales of whole rows\n  fused: none\n"
        ));
        assert_eq!(text.matches("canonicalise").count(), 1);
        assert!(text.contains(&format!("  {}  fuse-qkv\n", checksum(b"fuse-qkv"))), "{text}");
        assert!(text.contains("  not told                          fuse-mine\n"), "{text}");
    }

    #[test]
    fn ops_stand_beside_each_other() {
        let expected = "@decode, 8 rows
  fused:rows                 - ->         28
  matmul                   100 ->         72
  mul                       28 ->          -
  silu                      28 ->          -
  all ops                  156 ->        100
  activations moved   120.0 kB ->    64.0 kB
";
        assert_eq!(ops(&functions()), expected);
    }
}
