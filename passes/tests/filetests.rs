//! Runs `tests/filetests/passes/*.ir`: text in, passes, text out, and equal numbers.
//!
//! Header comments: `; passes: a, b` or `; passes: default`; `; target: bare` or `cpu` instead of
//! one with everything; `; bind: T=6, S=3` for the numeric check; `; declines: code, code` lists
//! every reason a guard gave; `; quantize: bits=8, group=16, head=true` quantises, and numbers then
//! differ, by no more than `; distance: 0.01`. Other comments say what the case is about.
//! `UPDATE_EXPECT=1` rewrites what follows `; ==== after`.

use ir::{Bindings, DType, Layout, Module, Symbol, text};
use precast_passes::{self as passes, LayoutRule, Options, Quantize, TargetInfo};
use std::{collections::BTreeSet, env, fs, path::Path};

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

fn target(name: &str) -> Result<TargetInfo, String> {
    let everything = TargetInfo::everything();
    match name {
        "everything" => Ok(everything),
        "cpu" => Ok(TargetInfo { name: "cpu".into(), gate_up_block: Some(32), ..everything }),
        "bare" => Ok(TargetInfo {
            name: "bare".into(),
            matmul_weight_layout: Layout::Nd,
            layout_rules: Vec::new(),
            gate_up_block: None,
            fused_ops: Vec::new(),
        }),
        // Fractal weights but for tables that are looked up, products by head, and scales.
        "fractal" => {
            let nd = |op: &str, dtype| LayoutRule { op: op.into(), dtype, layout: Layout::Nd };
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

fn header(input: &str) -> Result<Case, String> {
    let mut case = Case {
        passes: Vec::new(),
        target: TargetInfo::everything(),
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
            "target" => case.target = target(value.trim())?,
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
        let mut bindings = passes::sample_bindings(old);
        bindings.extend(case.bindings.clone());
        if case.distance > 0.0 {
            let found = passes::numeric_distance(old, new, SEEDS, &bindings);
            let found = found.map_err(|e| e.to_string())?;
            if found == 0.0 || found > case.distance {
                return Err(format!("the distance is {found}, the header says {}", case.distance));
            }
            continue;
        }
        let report = passes::check_numerics(old, new, SEEDS, &bindings);
        let report = report.map_err(|e| e.to_string())?;
        if report.elements == 0 {
            return Err("nothing was compared; return something".to_owned());
        }
    }
    Ok(())
}

fn run(path: &Path) -> Result<(), String> {
    let file = path.file_name().unwrap_or_default().to_string_lossy();
    let content = fs::read_to_string(path).map_err(|e| e.to_string())?;
    let (input, expected) = content.split_once(AFTER).unwrap_or((&content, ""));
    let case = header(input)?;
    let before = parse(&file, input)?;
    let mut after = before.clone();
    let names: Vec<&str> = case.passes.iter().map(String::as_str).collect();
    let stages = match names[..] {
        ["default"] => passes::default_pipeline(),
        _ => passes::pipeline_of(&names).map_err(|e| e.to_string())?,
    };
    let mut options = Options { quantize: case.quantize, ..Options::default() };
    let report =
        passes::run(&mut after, &stages, &mut options, &case.target).map_err(|e| e.to_string())?;
    let misses = report.passes.iter().flat_map(|p| &p.near_misses);
    let codes: BTreeSet<String> = misses.map(|m| m.code.to_owned()).collect();
    if codes != case.declines {
        return Err(format!("declined for {codes:?}, the header says {:?}", case.declines));
    }
    same_numbers(&case, &before, &after)?;

    let printed = text::print_module(&after);
    if env::var_os("UPDATE_EXPECT").is_some() {
        return fs::write(path, format!("{input}{AFTER}{printed}")).map_err(|e| e.to_string());
    }
    parse(&file, expected)?;
    match printed == expected {
        true => Ok(()),
        false => Err(format!("expected\n{expected}found\n{printed}(UPDATE_EXPECT=1 accepts it)")),
    }
}

#[test]
fn every_pass_file_holds() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/filetests/passes");
    let mut paths: Vec<_> = fs::read_dir(folder).unwrap().map(|e| e.unwrap().path()).collect();
    paths.sort();
    let mut tested = BTreeSet::new();
    let mut failures = Vec::new();
    for path in &paths {
        if let Err(e) = run(path) {
            failures.push(format!("{}: {e}", path.display()));
        }
        let content = fs::read_to_string(path).unwrap();
        tested.extend(header(&content).map(|c| c.passes).unwrap_or_default());
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
    let untested: Vec<&str> =
        passes::names().into_iter().filter(|n| !tested.contains(*n)).collect();
    assert!(untested.is_empty(), "passes without a file test: {untested:?}");
}
