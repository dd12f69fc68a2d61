//! Checkpoints that tests write, and the ones that come with the repository.

#![allow(dead_code, reason = "each test file uses its own part")]

use ir::DType;
use precast_models::{BuildOptions, Checkpoint, Config, ModelError, Precision};
use serde_json::{Value, json};
use std::{
    fs,
    path::{Path, PathBuf},
    sync::atomic::{AtomicU32, Ordering},
};

/// Directory `name` of the fixtures.
pub(crate) fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures").join(name)
}

/// A directory that goes with the test.
pub(crate) struct Scratch(PathBuf);

impl Scratch {
    pub(crate) fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let unique = format!(
            "precast-models-{}-{}",
            std::process::id(),
            NEXT.fetch_add(1, Ordering::Relaxed)
        );
        let dir = std::env::temp_dir().join(unique);
        fs::create_dir_all(&dir).unwrap();
        Self(dir)
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }

    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    pub(crate) fn write_json(&self, name: &str, value: &Value) {
        fs::write(self.file(name), value.to_string()).unwrap();
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// A tensor to store: name, element type in the file's spelling, shape, bytes.
pub(crate) type Stored = (String, &'static str, Vec<u64>, Vec<u8>);

/// Bytes of a safetensors file, written here by hand so that the reader is tested against the
/// format and not against its own library.
pub(crate) fn safetensors(tensors: &[Stored]) -> Vec<u8> {
    let mut header = serde_json::Map::new();
    let mut data = Vec::new();
    for (name, dtype, dims, bytes) in tensors {
        let place = [data.len(), data.len() + bytes.len()];
        header
            .insert(name.clone(), json!({ "dtype": dtype, "shape": dims, "data_offsets": place }));
        data.extend_from_slice(bytes);
    }
    let header = Value::Object(header).to_string();
    let mut file = (header.len() as u64).to_le_bytes().to_vec();
    file.extend_from_slice(header.as_bytes());
    file.extend_from_slice(&data);
    file
}

/// Deterministic values in (-1, 1).
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn next(&mut self) -> f32 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (self.0 >> 40) as f32 / (1u64 << 23) as f32 - 1.0
    }
}

/// The tensors that `config` calls for as f32: norm weights around 1, the rest in ±0.3.
pub(crate) fn random_weights(config: &Config, seed: u64) -> Vec<Stored> {
    let mut random = Random(seed);
    config
        .tensors()
        .into_iter()
        .map(|(name, _, dims)| {
            let norm = name.ends_with("norm.weight");
            let mut value = || if norm { 1.0 + 0.2 * random.next() } else { 0.3 * random.next() };
            let bytes = (0..dims.iter().product::<u64>()).flat_map(|_| value().to_le_bytes());
            let bytes = bytes.collect();
            (name, "F32", dims, bytes)
        })
        .collect()
}

/// A `config.json` of a llama of two small layers.
pub(crate) fn llama_config() -> Value {
    json!({
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": 24,
        "intermediate_size": 40,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "vocab_size": 48,
        "max_position_embeddings": 256,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "hidden_act": "silu",
        "tie_word_embeddings": false,
        "eos_token_id": [1, 2],
    })
}

/// Writes `config` with weights from [`random_weights`].
pub(crate) fn write_checkpoint(config: &Value) -> (Scratch, Vec<Stored>) {
    let scratch = Scratch::new();
    scratch.write_json("config.json", config);
    let parsed = Config::read(&scratch.file("config.json")).unwrap();
    let weights = random_weights(&parsed, 7);
    fs::write(scratch.file("model.safetensors"), safetensors(&weights)).unwrap();
    (scratch, weights)
}

/// What opening `dir` says is wrong.
pub(crate) fn refusal(dir: &Path) -> String {
    match Checkpoint::open(dir) {
        Ok(_) => panic!("{} opens", dir.display()),
        Err(e) => e.to_string().replace(&format!("{}/", dir.display()), ""),
    }
}

/// `config` read as if it were a file called `config.json`.
pub(crate) fn parsed(config: &Value) -> Result<Config, ModelError> {
    Config::parse(Path::new("config.json"), config.to_string().as_bytes())
}

/// `llama_config()` with `changes` made to it; `null` removes nothing, it is written.
pub(crate) fn llama_with(changes: Value) -> Value {
    let mut config = llama_config();
    for (key, value) in changes.as_object().unwrap() {
        config[key] = value.clone();
    }
    config
}

/// Everything in f32.
pub(crate) const F32: BuildOptions = BuildOptions {
    precision: Precision { weights: DType::F32, activations: DType::F32 },
    kv_dtype: DType::F32,
    kv_block_tokens: 16,
    quantize_activations: false,
    head_top_k: 0,
};
