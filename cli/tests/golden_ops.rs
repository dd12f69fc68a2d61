//! What one layer of each kind runs after the pipeline for the CPU, for every fixture: a fusion that
//! no longer fires changes a file of `tests/golden/ops`. `UPDATE_EXPECT=1` rewrites them.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use codegen_cpu::target::{CpuTarget, KV_BLOCK_TOKENS};
use compiler::Target;
use ir::{DType, Func, Module};
use models::{BuildOptions, Checkpoint, Precision, Published, draft::Draft};
use passes::{OpCounts, layer_kinds};
use std::{
    collections::BTreeSet,
    env,
    fmt::Write,
    fs,
    path::{Path, PathBuf},
};

fn root(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(path)
}

fn open(fixture: &str) -> Checkpoint {
    Checkpoint::open(root("tests/fixtures").join(fixture)).unwrap()
}

/// As `precast compile --dtype bf16` builds it.
fn options(quantize_activations: bool) -> BuildOptions {
    BuildOptions {
        precision: Precision { weights: DType::BF16, activations: DType::F32 },
        kv_dtype: DType::BF16,
        kv_block_tokens: u64::from(KV_BLOCK_TOKENS),
        quantize_activations,
        head_top_k: 64,
    }
}

fn ops(text: &mut String, counts: &OpCounts) {
    for (op, count) in counts {
        writeln!(text, "    {count:>2} {op}").unwrap();
    }
}

/// Every function of `module` after the pipeline, those that run the same together.
fn summary(what: &str, mut module: Module) -> String {
    let stages = passes::default_pipeline();
    let target = CpuTarget.info();
    passes::run(&mut module, &stages, &mut passes::Options::default(), &target).unwrap();
    let mut found: Vec<(Vec<String>, String)> = Vec::new();
    for func in &module.funcs {
        let (name, text) = (format!("@{}", func.name), layers(func));
        match found.iter_mut().find(|(_, other)| *other == text) {
            Some((names, _)) => names.push(name),
            None => found.push((vec![name], text)),
        }
    }
    let titled =
        |(names, text): (Vec<String>, String)| format!("{}{what}\n{text}", names.join(", "));
    found.into_iter().map(titled).collect()
}

fn layers(func: &Func) -> String {
    let (kinds, outside) = layer_kinds(func);
    let mut text = String::new();
    for kind in kinds {
        let layers: Vec<String> = kind.layers.iter().map(u64::to_string).collect();
        writeln!(text, "  layers {}", layers.join(", ")).unwrap();
        ops(&mut text, &kind.ops);
    }
    writeln!(text, "  outside of layers").unwrap();
    ops(&mut text, &outside);
    text
}

fn counted(fixture: &str) -> String {
    // Their draft heads are compiled beside the models they are drafts of.
    if let Some(target) = fixture.strip_prefix("eagle3_") {
        let draft = Draft::eagle3(root("tests/fixtures").join(fixture), &open(target)).unwrap();
        return summary("", draft.build(&options(false)));
    }
    let checkpoint = open(fixture);
    let mut text = summary("", models::build(&checkpoint, &options(false)));
    if matches!(checkpoint.config().published, Published::Fp8 { .. }) {
        text += &summary(" with quantised inputs", models::build(&checkpoint, &options(true)));
    }
    if let Some(draft) = Draft::mtp(&checkpoint).unwrap() {
        text += &summary(" of the draft", draft.build(&options(false)));
    }
    text
}

fn names(folder: &Path) -> BTreeSet<String> {
    let name = |entry: fs::DirEntry| entry.file_name().into_string().unwrap();
    let names = fs::read_dir(folder).unwrap().map(|e| name(e.unwrap()));
    names.filter(|n| n != "README.md").map(|n| n.trim_end_matches(".txt").to_owned()).collect()
}

#[test]
fn each_kind_of_layer_runs_the_ops_it_ran() {
    let folder = root("tests/golden/ops");
    let update = env::var_os("UPDATE_EXPECT").is_some();
    let fixtures = names(&root("tests/fixtures"));
    let mut failures = Vec::new();
    for fixture in &fixtures {
        let (path, found) = (folder.join(format!("{fixture}.txt")), counted(fixture));
        if update {
            fs::write(&path, found).unwrap();
        } else if fs::read_to_string(&path).unwrap_or_default() != found {
            failures.push(format!("{}, found\n{found}", path.display()));
        }
    }
    let failures = failures.join("\n");
    assert!(failures.is_empty(), "{failures}\nwhat runs has changed; UPDATE_EXPECT=1 accepts it");
    assert_eq!(names(&folder), fixtures, "one file for each fixture");
}
