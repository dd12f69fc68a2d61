//! What `compile --dry-run` says of models whose weights are not here.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::process::{Command, Output};

fn compile(flags: &[&str]) -> Output {
    let configs = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/configs");
    let mut command = Command::new(env!("CARGO_BIN_EXE_precast"));
    command.arg("compile").args(flags).current_dir(configs).output().unwrap()
}

/// Standard output of a run that succeeds.
fn plan(flags: &[&str]) -> String {
    let output = compile(flags);
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{error}");
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn a_configuration_is_enough_for_the_memory_plan() {
    let flags = ["--dry-run", "--config-only", "--model", "qwen3-8b.json", "--graph-bs", "8"];
    let text = plan(&flags);
    assert!(text.starts_with("qwen3-8b (Qwen3ForCausalLM): 8190735360 parameters, bf16"), "{text}");
    assert!(text.contains("tokens, 147456 bytes a token"), "{text}");
    assert!(text.contains("bf16 compact") && text.contains("f32 nd"), "{text}");
    assert!(text.contains("decode-bs8-ctx40960") && text.contains("prefill-len512"), "{text}");
    let limited = [&flags[..], &["--memory", "4G"]].concat();
    let output = compile(&limited);
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && error.contains("the weights alone"), "{error}");
}

/// Weights of a kind: its type and layout, how many numbers of the checkpoint, and their bytes.
type Weights = (&'static str, u64, u64);

/// A released model as its publisher counts it.
struct Released {
    name: &'static str,
    parameters: u64,
    weights: Vec<Weights>,
    /// Memory of a token or a sequence: lines of the plan.
    memory: &'static [&'static str],
}

/// Outputs of a product in panels of 64.
fn padded(outputs: u64) -> u64 {
    outputs.next_multiple_of(64)
}

fn f32s(kind: &'static str, elements: u64) -> Weights {
    (kind, elements, 4 * elements)
}

fn bf16(kind: &'static str, elements: u64) -> Weights {
    (kind, elements, 2 * elements)
}

/// Weights of products with so many outputs, and where each panel of those begins.
fn compact(elements: u64, outputs: u64) -> Weights {
    ("bf16 compact", elements, 2 * elements + padded(outputs) / 64 * 16)
}

/// Products by the experts of a router: `layers` routers of `[experts, hidden]`.
fn routers(layers: u64, experts: u64, hidden: u64) -> Weights {
    ("f32 panels", layers * experts * hidden, 4 * layers * padded(experts) * hidden)
}

/// A dense decoder, or one with routers, whose head is not tied: all but its norms, in products with so many
/// outputs.
fn plain(
    [parameters, embedding, norms, outputs]: [u64; 4],
    routers: Option<Weights>,
) -> Vec<Weights> {
    let rest = parameters - embedding - norms - routers.map_or(0, |(_, elements, _)| elements);
    let mut all = vec![bf16("bf16 nd", embedding), compact(rest, outputs), f32s("f32 nd", norms)];
    all.extend(routers);
    all
}

/// Norms of `layers` layers with norms of the channels of a head, and the last one.
fn norms(layers: u64, hidden: u64, head: u64) -> u64 {
    layers * (2 * hidden + 2 * head) + hidden
}

/// DeepSeek-V3, or V3.2 with the products and numbers of its indexer in FP8 and in f32.
fn latent(parameters: u64, [codes, floats, vectors]: [u64; 3]) -> Vec<Weights> {
    const LAYERS: u64 = 61;
    let embedding = 129_280 * 7168;
    let absorbed = LAYERS * 128 * (128 + 128) * 512;
    let norms = LAYERS * (2 * 7168 + 1536 + 512) + 7168;
    let (_, routers, bytes) = routers(58, 256, 7168);
    let small = norms + 58 * 256 + vectors;
    let fp8 = parameters - 2 * embedding - absorbed - small - routers - floats;
    assert!(fp8 > codes);
    // A scale for each 128 inputs of an output.
    let scales = fp8 / 128 * 4;
    vec![
        bf16("bf16 nd", embedding),
        compact(embedding, 129_280),
        bf16("bf16 panels", absorbed),
        f32s("f32 nd", small),
        ("f32 panels", routers + floats, bytes + 4 * floats + scales),
        ("fp8 panels", fp8, fp8),
    ]
}

/// gpt-oss with so many layers and experts.
fn clamped(layers: u64, experts: u64) -> Vec<Weights> {
    const HIDDEN: u64 = 2880;
    let embedding = 201_088 * HIDDEN;
    let attention = layers * HIDDEN * (4096 + 512 + 512 + 4096);
    let biases = layers * (4096 + 512 + 512 + HIDDEN + 64 + experts * (1 + 3 * HIDDEN));
    let norms = layers * 2 * HIDDEN + HIDDEN;
    let codes = layers * experts * 3 * HIDDEN * HIDDEN;
    // A byte for each 32 inputs, in groups of four.
    let scales = codes / HIDDEN * (HIDDEN / 32).next_multiple_of(4);
    vec![
        bf16("bf16 nd", embedding),
        compact(embedding + attention, 201_088 + layers * (4096 + 512 + 512 + HIDDEN)),
        f32s("f32 nd", biases + norms),
        routers(layers, experts, HIDDEN),
        ("mxfp4 panels", codes, codes / 2),
        ("u8 panels", 0, scales),
    ]
}

fn released() -> Vec<Released> {
    let of = |name, parameters, weights: Vec<Weights>, memory| {
        // Every number of the checkpoint is one of these kinds.
        assert_eq!(weights.iter().map(|w| w.1).sum::<u64>(), parameters, "{name}");
        Released { name, parameters, weights, memory }
    };
    // The embedding is the head; biases of queries, keys and values.
    let tied = {
        let small = 24 * (2 * 896 + 896 + 2 * 128) + 896;
        let outputs = 151_936 + 24 * (896 + 2 * 128 + 896 + 2 * 4864 + 896);
        vec![compact(494_032_768 - small, outputs), f32s("f32 nd", small)]
    };
    let next = {
        let (parameters, embedding) = (79_674_391_296, 151_936 * 2048);
        let convolutions = 36 * 8192 * 4;
        let small = norms(48, 2048, 0) + 12 * 2 * 256 + 36 * (128 + 2 * 32) + convolutions;
        let attention = 12 * (2 * 16 * 256 + 2 * 2 * 256 + 2048) + 36 * (12_288 + 64 + 2048);
        let experts = 48 * (513 * (2 * 512 + 2048) + padded(1));
        let sizes = [parameters, embedding, small, 151_936 + attention + experts];
        let mut weights = plain(sizes, Some(routers(48, 512, 2048)));
        // Gates of shared experts have one output each.
        weights[1].2 += 2 * 48 * (padded(1) - 1) * 2048;
        weights
    };
    // Outputs of queries, keys and values, and of the feed-forward part but for its last product.
    let outputs = |layers: u64, experts: u64, hidden: u64, [attention, inner]: [u64; 2]| {
        151_936 + layers * (attention + hidden + experts * (inner + hidden))
    };
    let moe = |layers, experts, hidden, parameters, inner| {
        let routers = routers(layers, experts, hidden);
        let outputs = outputs(layers, experts, hidden, inner);
        plain([parameters, 151_936 * hidden, norms(layers, hidden, 128), outputs], Some(routers))
    };
    let dense = |layers, hidden, parameters, inner| {
        let outputs = outputs(layers, 1, hidden, inner);
        plain([parameters, 151_936 * hidden, norms(layers, hidden, 128), outputs], None)
    };
    vec![
        of("qwen2.5-0.5b", 494_032_768, tied, &["kv 12288 bytes a token"]),
        of(
            "qwen3-8b",
            8_190_735_360,
            dense(36, 4096, 8_190_735_360, [6144, 2 * 12_288]),
            &["kv 147456 bytes a token"],
        ),
        of(
            "qwen3-32b",
            32_762_123_264,
            dense(64, 5120, 32_762_123_264, [10_240, 2 * 25_600]),
            &["kv 262144 bytes a token"],
        ),
        of(
            "qwen3-30b-a3b",
            30_532_122_624,
            moe(48, 128, 2048, 30_532_122_624, [5120, 2 * 768]),
            &["kv 98304 bytes a token"],
        ),
        of(
            "qwen3-235b-a22b",
            235_093_634_560,
            moe(94, 128, 4096, 235_093_634_560, [9216, 2 * 1536]),
            &["kv 192512 bytes a token"],
        ),
        of(
            "qwen3-coder-480b-a35b",
            480_154_875_392,
            moe(62, 160, 6144, 480_154_875_392, [14_336, 2 * 2560]),
            &["kv 253952 bytes a token"],
        ),
        // The states of the delta rule in f32 and the last columns of the convolution in bf16.
        of(
            "qwen3-next-80b-a3b",
            79_674_391_296,
            next,
            &[
                "kv 24576 bytes a token",
                "recurrent 77266944 bytes a sequence, 8 sequences",
                "delta 75497472 bytes a sequence",
                "conv 1769472 bytes a sequence",
            ],
        ),
        of(
            "deepseek-v3",
            671_026_419_200,
            latent(671_026_419_200, [0; 3]),
            &["latent 62464 bytes a token", "rope key 7808 bytes a token"],
        ),
        of(
            "deepseek-v3.2",
            671_877_944_064,
            latent(671_877_944_064, [61 * 128 * (64 * 1536 + 7168), 61 * 64 * 7168, 61 * 2 * 128]),
            &[
                "latent 62464 bytes a token",
                "rope key 7808 bytes a token",
                "index key 15616 bytes a token",
            ],
        ),
        of(
            "gpt-oss-20b",
            20_914_757_184,
            clamped(24, 32),
            &["kv 24576 bytes a token", "window kv 3145728 bytes a sequence"],
        ),
        of(
            "gpt-oss-120b",
            116_829_156_672,
            clamped(36, 128),
            &["kv 36864 bytes a token", "window kv 4718592 bytes a sequence"],
        ),
    ]
}

/// Bytes in a line that ends in a size with its unit, and half of its last digit.
fn size(text: &str) -> (f64, f64) {
    let (number, unit) = text.split_once(' ').unwrap();
    let unit = match unit {
        "B" => 1.0,
        "kB" => 1e3,
        "MB" => 1e6,
        "GB" => 1e9,
        other => panic!("{other} is no unit"),
    };
    (number.parse::<f64>().unwrap() * unit, 0.05 * unit + 0.5)
}

/// Parameters, weights by type, what a token and a sequence take, and plans, with the sizes that
/// `compile` chooses by itself.
#[test]
fn released_models_need_the_published_memory() {
    for Released { name, parameters, weights, memory } in released() {
        let file = format!("{name}.json");
        let text = plan(&["--dry-run", "--config-only", "--model", &file]);
        assert!(text.contains(&format!("{parameters} parameters")), "{name}: {text}");
        let words = |line: &str| line.split_whitespace().collect::<Vec<_>>().join(" ");
        let lines: Vec<String> = text.lines().map(words).collect();
        for line in memory {
            assert!(lines.iter().any(|l| l == line), "{name} should have `{line}`: {text}");
        }
        let mut told = 0;
        for line in lines.iter().filter(|l| l.ends_with(" tensors")) {
            let (kind, expected) = weights
                .iter()
                .find_map(|&(kind, _, bytes)| line.starts_with(kind).then_some((kind, bytes)))
                .unwrap_or_else(|| panic!("{name} has no {line}"));
            let (found, half) = size(line[kind.len()..].trim().split_once(',').unwrap().0);
            assert!((found - expected as f64).abs() <= half, "{name}: {line}, expected {expected}");
            told += 1;
        }
        assert_eq!(told, weights.len(), "{name}: {text}");
        let sum: u64 = weights.iter().map(|w| w.2).sum();
        let line = lines.iter().find_map(|l| l.strip_prefix("memory: weights ")).unwrap();
        let line = line.strip_suffix(" in").unwrap();
        let is_compact = weights.iter().any(|(kind, ..)| kind.ends_with(" compact"));
        let total = if is_compact { line.strip_prefix("at most ").unwrap() } else { line };
        let (found, half) = size(total);
        // Each weight begins at a multiple of 64 bytes.
        assert!((found - sum as f64).abs() <= half + 1e6, "{name}: {line}, expected {sum}");
        assert!(lines.iter().any(|l| l.starts_with("decode-bs8-ctx")), "{name}: {text}");
        assert!(lines.iter().any(|l| l.starts_with("prefill-len512-ctx")), "{name}: {text}");
    }
}

#[test]
fn weights_are_compact_up_to_the_rows_that_are_asked_for() {
    for (rows, most, kind) in [(24, 24, "compact"), (24, 23, "panels"), (1, 0, "panels")] {
        let (rows, most) = (rows.to_string(), most.to_string());
        let flags = ["--graph-bs", &rows, "--compact-rows", &most, "--model", "qwen3-8b.json"];
        let text = plan(&[&["--dry-run", "--config-only"][..], &flags].concat());
        assert!(text.contains(&format!("bf16 {kind}")), "{rows} rows, {most}: {text}");
    }
}

#[test]
fn options_without_effect_are_refused() {
    let model = ["--dry-run", "--config-only", "--model", "qwen3-8b.json"];
    for (flags, said) in [
        (&["--quantize-activations"][..], "--quantize-activations is for checkpoints in FP8"),
        (&["--quantize", "w8a8", "--disable-pass", "quantize-matmuls"], "--disable-pass"),
    ] {
        let output = compile(&[&model[..], flags].concat());
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && error.contains(said), "{error}");
    }
    for (model, target, said) in [
        ("deepseek-v3.json", "cpu", "no layer of"),
        ("qwen3-8b.json", "ascend910_93", "--kv-cache-dtype int8 is for --target cpu"),
    ] {
        let flags = ["--kv-cache-dtype", "int8", "--target", target, "--model", model];
        let output = compile(&[&["--dry-run", "--config-only"][..], &flags].concat());
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && error.contains(said), "{error}");
    }
    let flags = ["--compact-rows", "8", "--target", "ascend910b", "--model", "qwen3-8b.json"];
    let output = compile(&[&["--dry-run", "--config-only"][..], &flags].concat());
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(error.contains("--compact-rows is for --target cpu"), "{error}");
    let output = compile(&["--config-only", "--model", "qwen3-8b.json"]);
    assert_eq!(output.status.code(), Some(2), "--config-only needs --dry-run");
}
