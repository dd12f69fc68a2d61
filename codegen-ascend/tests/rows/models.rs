//! What the pipeline leaves of real models: every op and composite that goes row by row has a kernel,
//! and the kernels of the small models compute what the reference computes.

use crate::harness::{check_ops, lower_op};
use compiler::Target;
use ir::{Bindings, DType, Func, Op};
use models::{BuildOptions, Checkpoint, Precision};
use passes::{Options, TargetInfo, default_pipeline, run, sample_bindings, specialise};
use precast_codegen_ascend::{chip::CHIPS, target::AscendTarget};
use std::{collections::BTreeMap, path::PathBuf};

fn folder(path: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../tests").join(path)
}

fn info() -> TargetInfo {
    let mut info = AscendTarget::new(&CHIPS[0]).info();
    info.row_wise_ops = passes::ROW_WISE_OPS.map(str::to_owned).to_vec();
    info
}

/// Ops of `checkpoint` for `rows` rows that kernels for rows are for.
fn ops(checkpoint: &Checkpoint, dtype: DType, rows: u64) -> BTreeMap<String, (Op, Func)> {
    let options = BuildOptions {
        precision: Precision { weights: dtype, activations: dtype },
        kv_dtype: dtype,
        kv_block_tokens: 16,
        quantize_activations: false,
        head_top_k: 0,
    };
    let mut module = models::build(checkpoint, &options);
    run(&mut module, &default_pipeline(), &mut Options::default(), &info()).unwrap();
    let mut found = BTreeMap::new();
    for func in &module.funcs {
        let mut bindings: Bindings = sample_bindings(func);
        for (symbol, value) in &mut bindings {
            *value = if symbol.name() == "T" { rows } else { (*value).max(rows) };
        }
        let func = specialise(func, &bindings).unwrap();
        for &n in &func.order {
            let node = &func.nodes[n];
            let of_rows = match &node.op {
                Op::Fused { body } => matches!(body.kind(), "rows" | "qk_rope_write"),
                op => op.row_wise().is_some(),
            };
            if func.is_const(node.outs[0]) || !of_rows {
                continue;
            }
            // A function of the op alone.
            let mut alone = Func::new(node.op.kind());
            let args: Vec<_> = node
                .args
                .iter()
                .enumerate()
                .map(|(i, &a)| alone.param(&format!("a{i}"), func.values[a].ty.clone()))
                .collect();
            let made = alone.append(node.op.clone(), &args, "o").unwrap();
            let outs = alone.nodes[made].outs.clone();
            alone.set_results(outs);
            if alone.rows_of(made).is_none() && !matches!(node.op, Op::Fused { .. }) {
                continue;
            }
            let mut text = format!("{:?}", node.op);
            if let Op::Fused { body } = &node.op {
                let inner = body.func();
                let line =
                    |&n: &ir::NodeId| format!("{:?}{:?}", inner.nodes[n].op, inner.nodes[n].args);
                text = inner.order.iter().map(line).collect();
            }
            let types: Vec<String> =
                node.args.iter().map(|&a| func.values[a].ty.to_string()).collect();
            found.insert(format!("{text} {types:?}"), (node.op.clone(), alone));
        }
    }
    found
}

fn fixtures() -> Vec<String> {
    let all = std::fs::read_dir(folder("fixtures")).unwrap().map(|e| e.unwrap());
    let models = all.filter(|e| e.path().join("config.json").exists());
    let mut names: Vec<String> = models.map(|e| e.file_name().into_string().unwrap()).collect();
    names.retain(|n| !n.starts_with("eagle3"));
    names.sort();
    names
}

/// Every row-wise op of released models, at their real sizes.
#[test]
fn of_released_models_have_kernels() {
    let mut refused = BTreeMap::new();
    let mut count = 0;
    for entry in std::fs::read_dir(folder("configs")).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_none_or(|e| e != "json") {
            continue;
        }
        let checkpoint = Checkpoint::config_only(&path).unwrap();
        // The widest in f32 too.
        let wide = ["deepseek-v3.json", "qwen3-coder-480b-a35b.json"].map(|n| path.ends_with(n));
        let dtypes =
            if wide.contains(&true) { vec![DType::F32, DType::BF16] } else { vec![DType::BF16] };
        for dtype in dtypes {
            for (text, (op, func)) in ops(&checkpoint, dtype, 16) {
                count += 1;
                if let Err(why) = lower_op(&op, &func) {
                    refused.insert(
                        format!("{dtype} {text}"),
                        format!("{}: {}", path.display(), why.0),
                    );
                }
            }
        }
    }
    assert!(count > 100, "{count} ops");
    let list: Vec<String> = refused.iter().map(|(op, why)| format!("{why}\n    {op}")).collect();
    assert!(refused.is_empty(), "{} of {count}:\n{}", refused.len(), list.join("\n"));
}

/// What small models run, on the host.
#[test]
fn of_small_models_compute() {
    for dtype in [DType::F32, DType::BF16] {
        let mut all = BTreeMap::new();
        for name in fixtures() {
            let Ok(checkpoint) = Checkpoint::open(folder("fixtures").join(&name)) else { continue };
            all.extend(ops(&checkpoint, dtype, 5));
        }
        assert!(all.len() > 20, "{} ops", all.len());
        check_ops(all.into_iter().collect());
    }
}
