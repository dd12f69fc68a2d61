//! Passes tested by text: input, passes, expected output, and equal numbers before and after.
//!
//! ```text
//! ; passes: fuse-silu-mul
//! ; What the case is about.
//! func @f(%g: f32[T,4], %u: f32[T,4]) {
//!   %a = silu %g : f32[T,4]
//!   %p = mul %a, %u : f32[T,4]
//!   return %p
//! }
//! ; ==== after
//! func @f(%g: f32[T,4], %u: f32[T,4]) {
//!   %p = silu_mul %g, %u {out = f32} : f32[T,4]
//!   return %p
//! }
//! ```
//!
//! Header comments: `; passes: a, b` or `; passes: default`; `; target: bare` or `cpu` instead of
//! one with everything; `; bind: T=6, S=3` for the numeric check; `; declines: code, code` lists
//! every reason a guard gave; `; quantize: bits=8, group=16, head=true` quantises, and numbers then
//! differ, by no more than `; distance: 0.01`. Other comments say what the case is about.
//! With `UPDATE_EXPECT=1` in the environment what follows `; ==== after` is rewritten instead of
//! compared.

use crate::{
    Catalog, LayoutRule, Options, Quantize, Report, TargetInfo, WHOLE, WeightType, check_numerics,
    numeric_distance, sample_bindings,
};
use ir::{Bindings, DType, Layout, Module, Symbol, text};
use std::{
    collections::BTreeSet,
    env, fs,
    path::{Path, PathBuf},
};

const AFTER: &str = "; ==== after\n";
const SEEDS: &[u64] = &[1, 2, 3];

struct Case {
    passes: Vec<String>,
    target: TargetInfo,
    bindings: Bindings,
    declines: BTreeSet<String>,
    quantize: Option<Quantize>,
    distance: f64,
}

/// A target for tests; all but `bare` have kernels for composites of `kinds`.
fn target(name: &str, kinds: &[&str]) -> Result<TargetInfo, String> {
    let mut everything = TargetInfo::everything();
    everything.fused_ops.extend(kinds.iter().map(|&kind| kind.to_owned()));
    match name {
        "everything" => Ok(everything),
        "cpu" => Ok(TargetInfo { name: "cpu".into(), gate_up_block: Some(32), ..everything }),
        "bare" => Ok(TargetInfo {
            name: "bare".into(),
            matmul_weight_layout: Layout::Nd,
            layout_rules: Vec::new(),
            weight_types: Vec::new(),
            gate_up_block: None,
            scales_parts: false,
            fused_ops: Vec::new(),
            row_wise_ops: Vec::new(),
        }),
        // Fractal weights but for tables that are looked up, products by head, and scales.
        "fractal" => {
            let nd = |op: &str, dtype| LayoutRule {
                op: op.into(),
                dtype,
                layout: Layout::Nd,
                most_rows: None,
            };
            Ok(TargetInfo {
                matmul_weight_layout: Layout::Nz,
                layout_rules: vec![
                    nd("embed", None),
                    nd("head_matmul", None),
                    nd("quant_matmul", Some(DType::F32)),
                ],
                ..everything
            })
        }
        // Fractals, bf16 beside bf16, codes of 8 bits, and gate and up one after the other.
        "converting" => {
            let rule = |op: &str, rows, from, to| {
                let (op, rows) = (op.to_owned(), Some(rows));
                WeightType { op, rows, from, to }
            };
            Ok(TargetInfo {
                matmul_weight_layout: Layout::Nz,
                weight_types: vec![
                    rule("matmul", DType::BF16, DType::F32, DType::BF16),
                    rule("quant_matmul", DType::I8, DType::I4, DType::I8),
                ],
                gate_up_block: Some(WHOLE),
                ..everything
            })
        }
        "no-rows" => {
            everything.fused_ops.retain(|op| op != "rows");
            Ok(everything)
        }
        "no-block" => Ok(TargetInfo { gate_up_block: None, ..everything }),
        other => Err(format!("no test target is called {other}")),
    }
}

fn quantize(value: &str) -> Result<Quantize, String> {
    let mut found = Quantize { bits: 8, group: None, head: false };
    for pair in value.split(',') {
        let (key, value) = pair.trim().split_once('=').ok_or("quantize: bits=8")?;
        let number = || value.parse().map_err(|e| format!("quantize: {e}"));
        match key {
            "bits" => found.bits = number()?,
            "group" => found.group = Some(number()?),
            "head" => found.head = value == "true",
            other => return Err(format!("quantize has no {other}")),
        }
    }
    Ok(found)
}

fn header(input: &str, kinds: &[&str]) -> Result<Case, String> {
    let mut case = Case {
        passes: Vec::new(),
        target: target("everything", kinds)?,
        bindings: Bindings::new(),
        declines: BTreeSet::new(),
        quantize: None,
        distance: 0.0,
    };
    for line in input.lines().map_while(|l| l.strip_prefix(';')) {
        let Some((key, value)) = line.split_once(':') else { continue };
        let words = || value.split(',').map(|w| w.trim().to_owned());
        match key.trim() {
            "passes" => case.passes = words().collect(),
            "target" => case.target = target(value.trim(), kinds)?,
            "declines" => case.declines = words().collect(),
            "bind" => {
                for pair in words() {
                    let (symbol, number) = pair.split_once('=').ok_or("bind: T=4")?;
                    let number = number.parse().map_err(|e| format!("bind: {e}"))?;
                    case.bindings.insert(Symbol::new(symbol), number);
                }
            }
            "quantize" => case.quantize = Some(quantize(value)?),
            "distance" => case.distance = value.trim().parse().map_err(|e| format!("{e}"))?,
            _ => {}
        }
    }
    if case.passes.is_empty() { Err("no `; passes:` line".to_owned()) } else { Ok(case) }
}

fn parse(file: &str, source: &str) -> Result<Module, String> {
    let module = text::parse(file, source).map_err(|e| e.to_string())?;
    let printed = text::print_module(&module);
    let again = text::parse(file, &printed).map_err(|e| format!("printed text: {e}"))?;
    match text::print_module(&again) == printed {
        true => Ok(module),
        false => Err("print and parse disagree".to_owned()),
    }
}

fn same_numbers(case: &Case, before: &Module, after: &Module) -> Result<(), String> {
    for (old, new) in before.funcs.iter().zip(&after.funcs) {
        let mut bindings = sample_bindings(old);
        bindings.extend(case.bindings.clone());
        if case.distance > 0.0 {
            let found = numeric_distance(old, new, SEEDS, &bindings);
            let found = found.map_err(|e| e.to_string())?;
            if found == 0.0 || found > case.distance {
                return Err(format!("the distance is {found}, the header says {}", case.distance));
            }
            continue;
        }
        let report = check_numerics(old, new, SEEDS, &bindings);
        let report = report.map_err(|e| e.to_string())?;
        if report.elements == 0 {
            return Err("nothing was compared; return something".to_owned());
        }
    }
    Ok(())
}

/// The input of the file at `path`, what its header says, and the text after.
fn open(path: &Path, kinds: &[&str]) -> Result<(Case, Module, String, String), String> {
    let file = path.file_name().unwrap_or_default().to_string_lossy();
    let content = fs::read_to_string(path).map_err(|e| e.to_string())?;
    let (input, expected) = content.split_once(AFTER).unwrap_or((&content, ""));
    let case = header(input, kinds)?;
    let before = parse(&file, input)?;
    Ok((case, before, input.to_owned(), expected.to_owned()))
}

fn rewritten(case: &Case, before: &Module, catalog: &Catalog) -> Result<(Module, Report), String> {
    let mut after = before.clone();
    let names: Vec<&str> = case.passes.iter().map(String::as_str).collect();
    let stages = match names[..] {
        ["default"] => catalog.pipeline(),
        _ => catalog.pipeline_of(&names).map_err(|e| e.to_string())?,
    };
    let (quantize, catalog) = (case.quantize, catalog.clone());
    let mut options = Options { catalog, quantize, ..Options::default() };
    let report =
        crate::run(&mut after, &stages, &mut options, &case.target).map_err(|e| e.to_string())?;
    Ok((after, report))
}

/// What the passes that the file at `path` names do to its input: how often each fires and what it
/// declines. Compares nothing; [`run_file`] does.
///
/// # Errors
/// What is wrong with the file.
pub fn report_of(path: &Path, catalog: &Catalog, kinds: &[&str]) -> Result<Report, String> {
    let (case, before, ..) = open(path, kinds)?;
    rewritten(&case, &before, catalog).map(|(_, report)| report)
}

/// Runs the test in the file `path` with the passes of `catalog` on targets that have kernels for
/// composites of `kinds`; returns the passes that it names.
///
/// # Errors
/// How what came out differs from what the file says.
pub fn run_file(path: &Path, catalog: &Catalog, kinds: &[&str]) -> Result<Vec<String>, String> {
    let (case, before, input, expected) = open(path, kinds)?;
    let (after, report) = rewritten(&case, &before, catalog)?;
    let misses = report.passes.iter().flat_map(|p| &p.near_misses);
    let codes: BTreeSet<String> = misses.map(|m| m.code.to_owned()).collect();
    if codes != case.declines {
        return Err(format!("declined for {codes:?}, the header says {:?}", case.declines));
    }
    same_numbers(&case, &before, &after)?;

    let printed = text::print_module(&after);
    if env::var_os("UPDATE_EXPECT").is_some() {
        fs::write(path, format!("{input}{AFTER}{printed}")).map_err(|e| e.to_string())?;
        return Ok(case.passes);
    }
    parse("the expected text", &expected)?;
    match printed == expected {
        true => Ok(case.passes),
        false => Err(format!("expected\n{expected}found\n{printed}(UPDATE_EXPECT=1 accepts it)")),
    }
}

/// Runs every file of `folder`, see [`run_file`]; returns the passes that were tested.
///
/// # Errors
/// Every file that does not hold, with the reason; or that there is none.
pub fn run_folder(
    folder: &Path,
    catalog: &Catalog,
    kinds: &[&str],
) -> Result<BTreeSet<String>, String> {
    let entries = fs::read_dir(folder).map_err(|e| format!("{}: {e}", folder.display()))?;
    let mut paths: Vec<PathBuf> = entries.filter_map(|e| Some(e.ok()?.path())).collect();
    paths.sort();
    if paths.is_empty() {
        return Err(format!("{}: no files", folder.display()));
    }
    let (mut tested, mut failures) = (BTreeSet::new(), Vec::new());
    for path in paths {
        match run_file(&path, catalog, kinds) {
            Ok(passes) => tested.extend(passes),
            Err(e) => failures.push(format!("{}: {e}", path.display())),
        }
    }
    if failures.is_empty() { Ok(tested) } else { Err(failures.join("\n")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CASE: &str = "; passes: fuse-silu-mul
func @f(%g: f32[T,4], %u: f32[T,4]) {
  %a = silu %g : f32[T,4]
  %p = mul %a, %u : f32[T,4]
  return %p
}
; ==== after
func @f(%g: f32[T,4], %u: f32[T,4]) {
  %p = silu_mul %g, %u {out = f32} : f32[T,4]
  return %p
}
";

    /// A folder with one file, removed at the end.
    fn held(text: &str) -> Result<BTreeSet<String>, String> {
        let folder = env::temp_dir().join(format!("precast-filetest-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        fs::write(folder.join("case.ir"), text).unwrap();
        let result = run_folder(&folder, &Catalog::builtin(), &[]);
        fs::remove_dir_all(&folder).unwrap();
        result
    }

    #[test]
    fn a_file_says_what_must_come_out() {
        assert_eq!(held(CASE), Ok(BTreeSet::from(["fuse-silu-mul".to_owned()])));
        let fails = |from: &str, to: &str| held(&CASE.replacen(from, to, 1)).unwrap_err();
        assert!(fails("after\nfunc @f", "after\nfunc @g").contains("UPDATE_EXPECT=1"));
        assert!(fails("; passes: fuse-silu-mul", "; passes: fuse-mul").contains("fuse-silu-mul"));
        assert!(fails("; passes: fuse-silu-mul\n", "").contains("no `; passes:` line"));
        assert!(fails("mul\nfunc", "mul\n; declines: other-reader\nfunc").contains("declined for"));
        let bare = "mul\n; target: bare\n; declines: no-kernel\nfunc";
        assert!(fails("mul\nfunc", bare).contains("expected"));
        assert!(fails("  return %p\n}\n;", "  return\n}\n;").contains("nothing was compared"));
    }
}
