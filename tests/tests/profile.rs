//! `inspect --profile`: what it counts is what the artifact says, and the picture can be read.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use precast_tests::{compile, fixture, precast};
use serde_json::Value;
use std::{fs, path::Path};
use tempfile::TempDir;

const PRECAST: &str = env!("CARGO_BIN_EXE_precast-under-test");

/// What `inspect ARTIFACT --profile` prints with further `flags`.
fn profile(artifact: &Path, flags: &str) -> String {
    let line = ["inspect", artifact.to_str().unwrap(), "--profile", "--replays", "2"];
    let output = precast(PRECAST, line.into_iter().chain(flags.split_whitespace()));
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

fn json(artifact: &Path, flags: &str) -> Value {
    serde_json::from_str(&profile(artifact, &format!("{flags} --json"))).unwrap()
}

fn sum(parts: &Value, field: &str) -> f64 {
    parts.as_array().unwrap().iter().map(|part| part[field].as_f64().unwrap()).sum()
}

fn close(a: f64, b: f64) -> bool {
    (a - b).abs() <= 1e-6 * a.abs().max(b.abs())
}

/// The elements that are opened, in order; every one is closed where it should be.
fn elements(xml: &str) -> Vec<&str> {
    let (mut open, mut all, mut rest) = (Vec::new(), Vec::new(), xml);
    while let Some(begin) = rest.find('<') {
        assert!(!rest[..begin].contains('>'), "{}", &rest[..begin]);
        let end = begin + rest[begin..].find('>').unwrap();
        let tag = &rest[begin + 1..end];
        rest = &rest[end + 1..];
        if let Some(name) = tag.strip_prefix('/') {
            assert_eq!(open.pop(), Some(name));
            continue;
        }
        assert_eq!(tag.matches('"').count() % 2, 0, "{tag}");
        all.push(tag);
        if !tag.ends_with('/') {
            open.push(tag.split_whitespace().next().unwrap());
        }
    }
    assert!(open.is_empty() && rest.trim().is_empty(), "{open:?} {rest}");
    all
}

#[test]
fn every_launch_and_every_weight_is_counted_once() {
    let dir = TempDir::new().unwrap();
    let (out, picture) = (dir.path().join("artifact"), dir.path().join("step.svg"));
    let options = "--graph-bs 1 3 --max-context 64 --prefill-chunks 16 --dtype bf16";
    compile(PRECAST, &fixture("qwen2"), &out, options);
    let artifact = artifact::Artifact::open(&out).unwrap();
    let flags = format!("--threads 2 --context 40 --timeline {}", picture.display());
    let report = json(&out, &flags);
    let buckets = report["buckets"].as_array().unwrap();
    let names: Vec<_> = buckets.iter().map(|b| b["plan"].as_str().unwrap()).collect();
    let plans = artifact.plans().unwrap();
    assert_eq!(names.len(), plans.len(), "{names:?}");
    let weights = &artifact.manifest().weights;
    let embeddings = weights.iter().find(|w| w.dims == [512, 96]).unwrap();
    assert_eq!(embeddings.layout, tensor::Layout::Compact);
    let row = embeddings.bytes as f64 / 512.0;
    let weights: u64 = weights.iter().map(|w| w.bytes).sum();
    let mut boxes = 0;
    for bucket in buckets {
        let plan = plans.iter().find(|p| bucket["plan"] == *p.name).unwrap();
        let launches = bucket["launches"].as_array().unwrap().len();
        assert_eq!(launches, plan.launches(), "{}", plan.name);
        boxes += 2 * launches;
        for kind in bucket["kinds"].as_array().unwrap() {
            assert_eq!(sum(&kind["shapes"], "launches"), kind["launches"].as_f64().unwrap());
        }
        assert_eq!(sum(&bucket["kinds"], "launches"), launches as f64);
        for field in ["us", "weight_bytes", "state_bytes", "ops", "limit_us", "wait_us", "gap_us"] {
            let total = bucket["total"][field].as_f64().unwrap();
            assert!(close(sum(&bucket["kinds"], field), total), "{field} {}", plan.name);
            assert!(close(sum(&bucket["launches"], field), total), "{field} {}", plan.name);
        }
        if plan.phase == artifact::Phase::Decode {
            let rows = f64::from(plan.rows);
            // The head reads the table that the embedding takes its rows from.
            let once = weights as f64 + rows * row;
            assert!(close(bucket["total"]["weight_bytes"].as_f64().unwrap(), once), "{bucket}");
            // Of 3 layers, 2 heads of 16: keys and values of 40 tokens read and of one written.
            let state = rows * 3.0 * 2.0 * 2.0 * 16.0 * 2.0 * 41.0;
            assert_eq!(bucket["total"]["state_bytes"], state, "{bucket}");
            assert_eq!(bucket["context"], 40);
        }
        if plan.phase == artifact::Phase::Head {
            // Of the last layer what the last row sees, once for all rows.
            let attention = bucket["kinds"].as_array().unwrap().iter();
            let attention =
                attention.filter(|k| k["kernel"].as_str().unwrap().contains("attention"));
            let state: f64 = attention.map(|k| k["state_bytes"].as_f64().unwrap()).sum();
            assert_eq!(state, 2.0 * 2.0 * 16.0 * 2.0 * 40.0, "{bucket}");
        }
    }
    let svg = fs::read_to_string(&picture).unwrap();
    let elements = elements(&svg);
    let of = |class: &str| elements.iter().filter(|e| e.contains(class)).count();
    assert_eq!(of("class=\"work\""), boxes);
    assert_eq!(of("title"), boxes);
}

#[test]
fn the_table_has_kernels_shapes_and_single_launches() {
    let dir = TempDir::new().unwrap();
    let out = dir.path().join("artifact");
    compile(PRECAST, &fixture("qwen2"), &out, "--graph-bs 1 3 --max-context 64 --dtype bf16");
    let text = profile(&out, "--batch 3 --slowest 4 --threads 1");
    assert!(text.contains("decode-bs3-ctx64: 3 rows, context 64"), "{text}");
    assert!(!text.contains("decode-bs1-"), "{text}");
    for part in ["weight MB", "tok/s", "  linear_matmul_compact_f32\n", "    3 x 96 -> 160", "#"] {
        assert!(text.contains(part), "{part}: {text}");
    }
    let singles = text.lines().filter(|l| l.contains("  #")).count();
    assert_eq!(singles, 4 * text.matches("the slowest launches").count(), "{text}");
    let one = profile(&out, "--plan decode-bs1-ctx64");
    assert!(one.contains("decode-bs1-ctx64: 1 rows") && !one.contains("prefill"), "{one}");
}

/// Only experts that have rows are read: two rows with two experts each meet two to four.
#[test]
fn experts_without_rows_are_not_counted() {
    let dir = TempDir::new().unwrap();
    let out = dir.path().join("artifact");
    compile(PRECAST, &fixture("qwen3_moe"), &out, "--graph-bs 1 2 --max-context 64 --dtype bf16");
    let report = json(&out, "--batch 1 2 --threads 2");
    let config = fs::read_to_string(fixture("qwen3_moe").join("config.json")).unwrap();
    let config: Value = serde_json::from_str(&config).unwrap();
    let chosen = config["num_experts_per_tok"].as_f64().unwrap();
    let all = config["num_experts"].as_f64().unwrap();
    let manifest = artifact::Artifact::open(&out).unwrap().manifest().clone();
    let experts = manifest.weights.iter().filter(|w| w.dims.len() == 3).map(|w| w.bytes);
    let experts: Vec<u64> = experts.collect();
    assert!(chosen * 2.0 < all && experts.len() > 2);
    for bucket in report["buckets"].as_array().unwrap() {
        let launches = bucket["launches"].as_array().unwrap().iter();
        let by_expert = launches.filter(|l| l["kernel"].as_str().unwrap().contains("grouped_"));
        let read: f64 = by_expert.map(|l| l["weight_bytes"].as_f64().unwrap()).sum();
        // A head has those of the last layer alone: gate and up in one, and down.
        let is_head = bucket["plan"].as_str().unwrap().starts_with("head");
        let held = if is_head { &experts[experts.len() - 2..] } else { &experts };
        let met = read / held.iter().sum::<u64>() as f64 * all;
        if bucket["rows"] == 1 {
            assert!(close(met, chosen), "{met}");
        } else {
            assert!(chosen <= met && met <= 2.0 * chosen, "{met}");
        }
    }
}

#[test]
fn flags_that_do_not_fit_are_refused() {
    let dir = TempDir::new().unwrap();
    let out = dir.path().join("artifact");
    compile(PRECAST, &fixture("qwen2"), &out, "--graph-bs 1 --max-context 64");
    let fail = |flags: &str| {
        let line = ["inspect", out.to_str().unwrap()];
        let output = precast(PRECAST, line.into_iter().chain(flags.split_whitespace()));
        (output.status.code().unwrap(), String::from_utf8(output.stderr).unwrap())
    };
    for flags in [
        "--batch 1",
        "--context 16",
        "--timeline x.svg",
        "--threads 2",
        "--profile --ir decode",
        "--profile --batch 1 --plan decode-bs1-ctx64",
        "--profile --replays 0",
        "--profile --context 0",
    ] {
        let (status, error) = fail(flags);
        assert_eq!(status, 2, "{flags}: {error}");
    }
    for (flags, said) in [
        ("--profile --batch 7", "--batch 7: no plan has so many rows; there are 1, "),
        ("--profile --context 65", "--context 65: the artifact has a context of 64 tokens"),
        ("--profile --plan decode", "--plan decode: there is no such plan; there are decode-bs1"),
        ("--profile --instruction-set sve", "--instruction-set"),
        ("--profile --timeline /nowhere/step.svg", "--timeline /nowhere/step.svg"),
    ] {
        let (status, error) = fail(flags);
        assert!(status == 1 && error.contains(said), "{flags}: {status} {error}");
    }
}

/// Weights of bf16 are compact where few rows meet them: all for small batches, those of experts always.
#[test]
fn the_largest_batch_decides_how_weights_are_stored() {
    let dir = TempDir::new().unwrap();
    let (compact, plain) = (tensor::Layout::Compact, tensor::Layout::Panels);
    // How many rows are few, where nothing is asked for, is for the processor to say.
    let few = codegen_cpu::target::compact_rows(codegen_cpu::InstructionSet::best());
    let most = if few > 0 { compact } else { plain };
    for (sizes, dense) in [
        (&*few.max(1).to_string(), most),
        (&*(few + 1).to_string(), plain),
        ("1 17 --compact-rows 16", plain),
        ("1 17 --compact-rows 17", compact),
    ] {
        let out = dir.path().join(sizes);
        let options = format!("--max-context 64 --dtype bf16 --graph-bs {sizes}");
        compile(PRECAST, &fixture("qwen3_moe"), &out, &options);
        let artifact = artifact::Artifact::open(&out).unwrap();
        let of = |rank: usize| -> Vec<tensor::Layout> {
            let weights = artifact.manifest().weights.iter();
            let floats = weights.filter(|w| w.dtype == tensor::DType::BF16);
            let matrices = floats.filter(|w| w.dims.len() == rank);
            matrices.map(|w| w.layout).filter(|&l| l != tensor::Layout::Nd).collect()
        };
        let (dense_weights, experts) = (of(2), of(3));
        assert!(!dense_weights.is_empty() && dense_weights.iter().all(|&l| l == dense), "{sizes}");
        assert!(!experts.is_empty() && experts.iter().all(|&l| l == compact), "{sizes}");
    }
}
