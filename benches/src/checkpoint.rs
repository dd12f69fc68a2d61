//! Random checkpoints in the shape of released models, for measurements that need no download.

use anyhow::{Context, Result};
use half::bf16;
use models::Config;
use serde_json::{Map, Value, json};
use std::{
    fs::{self, File},
    io::{BufWriter, Write},
    path::Path,
};
use tensor::DType;

/// Experts in place of the feed-forward block of every layer.
#[derive(Clone, Copy, Debug)]
pub struct Experts {
    /// How many a layer has.
    pub count: u64,
    /// How many each token uses.
    pub per_token: u64,
    /// Width between the halves of one.
    pub width: u64,
}

/// Sizes of a decoder.
#[derive(Clone, Debug)]
pub struct Shape {
    /// Class named in `config.json`, one of [`models::supported_architectures`].
    pub architecture: &'static str,
    /// `model_type` that belongs to it.
    pub model_type: &'static str,
    /// Width of the residual stream.
    pub hidden: u64,
    /// Decoder layers.
    pub layers: u64,
    /// Query heads.
    pub heads: u64,
    /// Key and value heads.
    pub kv_heads: u64,
    /// Channels of a head.
    pub head_dim: u64,
    /// Width between the halves of the feed-forward block, where there are no experts.
    pub intermediate: u64,
    /// Experts of every layer.
    pub experts: Option<Experts>,
    /// Tokens that every other layer sees at most, the first among them.
    pub window: Option<u64>,
    /// Rows of the embedding, at least [`TOKENS`].
    pub vocab_size: u64,
    /// Longest context in tokens.
    pub max_position: u64,
    /// Base of the rotary wavelengths.
    pub rope_theta: f64,
    /// Whether the head is the embedding table.
    pub tied: bool,
    /// Begin another file before one would hold more bytes of weights than this.
    pub shard_bytes: Option<u64>,
}

impl Shape {
    /// Names of the shapes that have one.
    pub const NAMES: [&str; 4] = ["qwen2.5-0.5b", "qwen3-0.6b", "qwen3-moe-small", "gpt-oss-small"];

    /// The shape of this name.
    ///
    /// # Errors
    /// When there is none; the message lists those there are.
    pub fn named(name: &str) -> Result<Self> {
        match name {
            "qwen2.5-0.5b" => Ok(Self::qwen2_5_0_5b()),
            "qwen3-0.6b" => Ok(Self::qwen3_0_6b()),
            "qwen3-moe-small" => Ok(Self::qwen3_moe_small()),
            "gpt-oss-small" => Ok(Self::gpt_oss_small()),
            other => anyhow::bail!("`{other}` is no shape; use one of {}", Self::NAMES.join(", ")),
        }
    }

    /// Qwen2.5-0.5B.
    pub fn qwen2_5_0_5b() -> Self {
        Self {
            architecture: "Qwen2ForCausalLM",
            model_type: "qwen2",
            hidden: 896,
            layers: 24,
            heads: 14,
            kv_heads: 2,
            head_dim: 64,
            intermediate: 4864,
            experts: None,
            window: None,
            vocab_size: 151_936,
            max_position: 32_768,
            rope_theta: 1e6,
            tied: true,
            shard_bytes: None,
        }
    }

    /// Qwen3-0.6B.
    pub fn qwen3_0_6b() -> Self {
        Self {
            architecture: "Qwen3ForCausalLM",
            model_type: "qwen3",
            hidden: 1024,
            layers: 28,
            heads: 16,
            kv_heads: 8,
            head_dim: 128,
            intermediate: 3072,
            experts: None,
            window: None,
            vocab_size: 151_936,
            max_position: 40_960,
            rope_theta: 1e6,
            tied: true,
            shard_bytes: None,
        }
    }

    /// A small Qwen3-MoE of 549 million parameters, 32 experts of which a token uses 4.
    pub fn qwen3_moe_small() -> Self {
        Self {
            architecture: "Qwen3MoeForCausalLM",
            model_type: "qwen3_moe",
            hidden: 768,
            layers: 12,
            heads: 12,
            kv_heads: 4,
            head_dim: 64,
            intermediate: 2048,
            experts: Some(Experts { count: 32, per_token: 4, width: 512 }),
            window: None,
            vocab_size: 50_000,
            max_position: 40_960,
            rope_theta: 1e6,
            tied: false,
            shard_bytes: None,
        }
    }

    /// A small gpt-oss of 1,343 million parameters, 1,208 million of them in MXFP4: 32 experts, of which a token uses 4.
    pub fn gpt_oss_small() -> Self {
        Self {
            architecture: "GptOssForCausalLM",
            model_type: "gpt_oss",
            hidden: 1024,
            layers: 12,
            heads: 16,
            kv_heads: 4,
            head_dim: 64,
            intermediate: 1024,
            experts: Some(Experts { count: 32, per_token: 4, width: 1024 }),
            window: Some(128),
            vocab_size: 50_000,
            max_position: 131_072,
            rope_theta: 150_000.0,
            tied: false,
            shard_bytes: None,
        }
    }

    fn config(&self) -> Value {
        let mut config = json!({
            "architectures": [self.architecture],
            "model_type": self.model_type,
            "hidden_act": "silu",
            "hidden_size": self.hidden,
            "num_hidden_layers": self.layers,
            "num_attention_heads": self.heads,
            "num_key_value_heads": self.kv_heads,
            "head_dim": self.head_dim,
            "intermediate_size": self.intermediate,
            "vocab_size": self.vocab_size,
            "max_position_embeddings": self.max_position,
            "rms_norm_eps": 1e-6,
            "rope_theta": self.rope_theta,
            "tie_word_embeddings": self.tied,
            "torch_dtype": "bfloat16",
            "bos_token_id": END_OF_TEXT,
            "eos_token_id": END_OF_TURN,
        });
        let Some(Experts { count, per_token, width }) = self.experts else { return config };
        if self.model_type == "gpt_oss" {
            let window = |i| if i % 2 == 0 { "sliding_attention" } else { "full_attention" };
            config["layer_types"] = (0..self.layers).map(window).collect();
            config["sliding_window"] = json!(self.window);
            config["attention_bias"] = json!(true);
            config["swiglu_limit"] = json!(7.0);
            config["num_local_experts"] = json!(count);
            config["num_experts_per_tok"] = json!(per_token);
            config["initial_context_length"] = json!(4096);
            config["rope_scaling"] = json!({
                "rope_type": "yarn", "factor": 32.0, "beta_fast": 32.0, "beta_slow": 1.0,
                "original_max_position_embeddings": 4096, "truncate": false,
            });
            config["quantization_config"] = json!({ "quant_method": "mxfp4" });
        } else {
            config["num_experts"] = json!(count);
            config["num_experts_per_tok"] = json!(per_token);
            config["moe_intermediate_size"] = json!(width);
            config["norm_topk_prob"] = json!(true);
            config["decoder_sparse_step"] = json!(1);
            config["mlp_only_layers"] = json!([]);
        }
        config
    }
}

/// Ids of the bytes and the special tokens in the tokenizer of a random checkpoint; merges follow.
pub const TOKENS: u64 = 256 + SPECIAL.len() as u64;

const SPECIAL: [&str; 3] = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"];
/// Characters of the longest merged token.
const LONGEST_TOKEN: usize = 12;
const END_OF_TEXT: u64 = 256;
const END_OF_TURN: u64 = 258;

/// Writes a checkpoint to `dir`, which is created: configuration, a byte-level tokenizer with a ChatML template, and weights
/// in bf16, experts of gpt-oss in MXFP4. Matrices and biases are drawn from N(0, 0.02), norm weights from N(1, 0.02), codes
/// evenly, with an exponent that gives them the deviation of the matrices. The same shape and seed give the same weights,
/// however they are sharded.
///
/// # Errors
/// When a file cannot be written, or `models` does not support the shape.
pub fn write_random(dir: &Path, shape: &Shape, seed: u64) -> Result<()> {
    write_config(dir, &shape.config(), shape.shard_bytes, seed)
}

/// [`write_random`] of the model that a `config.json` describes, `vocab_size` at least [`TOKENS`], in
/// files of at most `shard_bytes` bytes of weights.
///
/// # Errors
/// When a file cannot be written, or `models` does not support the model.
pub fn write_config(dir: &Path, config: &Value, shard_bytes: Option<u64>, seed: u64) -> Result<()> {
    let vocab_size = config["vocab_size"].as_u64().unwrap_or_default();
    anyhow::ensure!(vocab_size >= TOKENS, "`vocab_size` must be at least {TOKENS}");
    fs::create_dir_all(dir).with_context(|| format!("creating {}", dir.display()))?;
    write_json(dir, "config.json", config)?;
    write_json(
        dir,
        "generation_config.json",
        &json!({ "eos_token_id": [END_OF_TURN, END_OF_TEXT], "pad_token_id": END_OF_TEXT }),
    )?;
    write_json(dir, "tokenizer.json", &tokenizer(vocab_size))?;
    write_json(dir, "tokenizer_config.json", &tokenizer_config())?;

    let tensors: Vec<Tensor> = Config::read(&dir.join("config.json"))?
        .tensors()
        .into_iter()
        .enumerate()
        .map(|(i, (name, dtype, dims))| {
            let elements = dims.iter().product();
            Tensor { name, dtype, dims, elements, seed: seed ^ mix(i as u64 + 1) }
        })
        .collect();
    let shards = sharded(tensors, shard_bytes.unwrap_or(u64::MAX));
    let values = bell();
    if let [only] = &shards[..] {
        return write_shard(&dir.join("model.safetensors"), only, &values);
    }
    let mut places = Map::new();
    for (i, shard) in shards.iter().enumerate() {
        let file = format!("model-{:05}-of-{:05}.safetensors", i + 1, shards.len());
        write_shard(&dir.join(&file), shard, &values)?;
        places.extend(shard.iter().map(|t| (t.name.clone(), json!(file))));
    }
    let total: u64 = shards.iter().flatten().map(Tensor::bytes).sum();
    let index = json!({ "metadata": { "total_size": total }, "weight_map": places });
    write_json(dir, "model.safetensors.index.json", &index)
}

struct Tensor {
    name: String,
    dtype: DType,
    dims: Vec<u64>,
    elements: u64,
    seed: u64,
}

impl Tensor {
    fn bytes(&self) -> u64 {
        self.dtype.bytes_for(self.elements)
    }
}

/// Cuts `tensors` into runs of at most `limit` bytes; a tensor that is larger gets its own.
fn sharded(tensors: Vec<Tensor>, limit: u64) -> Vec<Vec<Tensor>> {
    let mut shards: Vec<Vec<Tensor>> = Vec::new();
    let mut filled = 0;
    for tensor in tensors {
        let fits = filled + tensor.bytes() <= limit;
        match shards.last_mut().filter(|_| fits) {
            Some(shard) => {
                filled += tensor.bytes();
                shard.push(tensor);
            }
            None => {
                filled = tensor.bytes();
                shards.push(vec![tensor]);
            }
        }
    }
    shards
}

fn write_shard(path: &Path, tensors: &[Tensor], values: &[bf16]) -> Result<()> {
    let mut header = Map::new();
    let mut at = 0;
    for t in tensors {
        let dtype = if t.dtype == DType::U8 { "U8" } else { "BF16" };
        let place =
            json!({ "dtype": dtype, "shape": t.dims, "data_offsets": [at, at + t.bytes()] });
        header.insert(t.name.clone(), place);
        at += t.bytes();
    }
    let mut header = Value::Object(header).to_string();
    // The format wants the data to begin at a multiple of eight bytes.
    header.extend(std::iter::repeat_n(' ', header.len().next_multiple_of(8) - header.len()));

    let write = || -> std::io::Result<()> {
        let mut out = BufWriter::with_capacity(1 << 20, File::create(path)?);
        out.write_all(&(header.len() as u64).to_le_bytes())?;
        out.write_all(header.as_bytes())?;
        for t in tensors {
            write_values(&mut out, t, values)?;
        }
        out.flush()
    };
    write().with_context(|| format!("writing {}", path.display()))
}

fn write_values(out: &mut impl Write, tensor: &Tensor, values: &[bf16]) -> std::io::Result<()> {
    const PIECE: usize = 1 << 16;
    if tensor.name.ends_with("_scales") {
        return out.write_all(&vec![MXFP4_EXPONENT; tensor.elements as usize]);
    }
    let size = tensor.dtype.bytes_for(1) as usize;
    let centred_on_one = tensor.name.ends_with("norm.weight");
    let mut state = tensor.seed;
    let mut piece = Vec::with_capacity(2 * PIECE);
    let mut left = tensor.elements as usize;
    while left > 0 {
        piece.clear();
        let n = left.min(PIECE);
        for _ in 0..n.div_ceil(4) {
            state = state.wrapping_add(GOLDEN);
            let random = mix(state);
            for lane in 0..4 {
                let random = (random >> (16 * lane)) as u16;
                if tensor.dtype == DType::U8 {
                    piece.push(random as u8);
                    continue;
                }
                let drawn = values[random as usize % values.len()];
                let value =
                    if centred_on_one { bf16::from_f32(1.0 + drawn.to_f32()) } else { drawn };
                piece.extend_from_slice(&value.to_le_bytes());
            }
        }
        out.write_all(&piece[..size * n])?;
        left -= n;
    }
    Ok(())
}

/// Values of MXFP4 have a deviation of 2.9; with this exponent one of 0.02.
const MXFP4_EXPONENT: u8 = 127 - 7;

const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;

/// The output function of SplitMix64 (Steele, Lea, Flood 2014).
fn mix(x: u64) -> u64 {
    let x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

/// 65,536 draws from N(0, 0.02) by Box and Muller, in pairs of opposite sign so that their mean is
/// zero. A weight is one of them, picked at random: two bytes of randomness instead of a logarithm.
fn bell() -> Vec<bf16> {
    const DEVIATION: f64 = 0.02;
    let uniform = |i: u64| (mix(i.wrapping_mul(GOLDEN)) >> 11) as f64 / (1u64 << 53) as f64;
    let draw = |i: u64| {
        let radius = (-2.0 * (1.0 - uniform(2 * i + 1)).ln()).sqrt();
        let value = DEVIATION * radius * (std::f64::consts::TAU * uniform(2 * i + 2)).cos();
        bf16::from_f64(value)
    };
    (0..1 << 15).map(draw).flat_map(|v| [v, -v]).collect()
}

fn write_json(dir: &Path, name: &str, value: &Value) -> Result<()> {
    let path = dir.join(name);
    let text = serde_json::to_string_pretty(value)?;
    fs::write(&path, text).with_context(|| format!("writing {}", path.display()))
}

/// A byte-level BPE tokenizer: one token for each byte, the special tokens, then random merges up to
/// the size of the vocabulary, so that loading it costs what loading a released one costs.
fn tokenizer(vocab_size: u64) -> Value {
    let bytes: Vec<String> = byte_alphabet().into_iter().map(String::from).collect();
    let mut vocab: Map<String, Value> =
        bytes.iter().enumerate().map(|(id, c)| (c.clone(), json!(id))).collect();
    let (mut tokens, mut merges) = (bytes, Vec::new());
    let mut draw = 0u64;
    for id in TOKENS..vocab_size {
        loop {
            draw += 2;
            let pick = |n: u64| &tokens[(mix(n) % tokens.len() as u64) as usize];
            let (a, b) = (pick(draw.wrapping_mul(GOLDEN)), pick((draw + 1).wrapping_mul(GOLDEN)));
            let token = format!("{a}{b}");
            if token.chars().count() <= LONGEST_TOKEN && !vocab.contains_key(&token) {
                merges.push(json!(format!("{a} {b}")));
                vocab.insert(token.clone(), json!(id));
                tokens.push(token);
                break;
            }
        }
    }
    let special = |(i, text): (usize, &&str)| {
        json!({
            "id": 256 + i, "content": text, "single_word": false, "lstrip": false,
            "rstrip": false, "normalized": false, "special": true,
        })
    };
    json!({
        "version": "1.0",
        "truncation": null,
        "padding": null,
        "added_tokens": SPECIAL.iter().enumerate().map(special).collect::<Vec<_>>(),
        "normalizer": null,
        "pre_tokenizer": {
            "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": false, "use_regex": false,
        },
        "post_processor": null,
        "decoder": {
            "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": false, "use_regex": false,
        },
        "model": {
            "type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
            "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false,
            "ignore_merges": false, "vocab": vocab, "merges": merges,
        },
    })
}

fn tokenizer_config() -> Value {
    json!({
        "tokenizer_class": "Qwen2Tokenizer",
        "add_bos_token": false,
        "bos_token": null,
        "eos_token": "<|im_end|>",
        "pad_token": "<|endoftext|>",
        "chat_template": "{%- for message in messages %}{{- '<|im_start|>' + message.role + '\\n' \
            + message.content + '<|im_end|>' + '\\n' }}{%- endfor %}\
            {%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}",
    })
}

/// The character that stands for each byte in byte-level vocabularies: itself where it is visible
/// Latin-1, otherwise the next free one from U+0100 on.
fn byte_alphabet() -> Vec<char> {
    let mut next = 0x100;
    (0..=255u8)
        .map(|b| match b {
            b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff => char::from(b),
            _ => {
                next += 1;
                char::from_u32(next - 1).expect("far below the surrogates")
            }
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::PathBuf;
    use tensor::WeightSource;

    struct Scratch(PathBuf);

    impl Scratch {
        fn new(name: &str) -> Self {
            let id = std::process::id();
            Self(std::env::temp_dir().join(format!("precast-benches-{name}-{id}")))
        }
    }

    impl Drop for Scratch {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    fn small() -> Shape {
        Shape {
            hidden: 64,
            layers: 2,
            heads: 4,
            kv_heads: 2,
            head_dim: 16,
            intermediate: 96,
            vocab_size: 320,
            ..Shape::qwen3_0_6b()
        }
    }

    fn written(name: &str, shape: &Shape, seed: u64) -> (Scratch, models::Checkpoint) {
        let scratch = Scratch::new(name);
        write_random(&scratch.0, shape, seed).unwrap();
        let checkpoint = models::Checkpoint::open(&scratch.0).unwrap();
        (scratch, checkpoint)
    }

    fn bytes(checkpoint: &models::Checkpoint) -> Vec<u8> {
        let mut all = Vec::new();
        for tensor in checkpoint.source().tensors() {
            checkpoint.source().stream(&tensor.name, |b| all.extend_from_slice(b)).unwrap();
        }
        all
    }

    #[test]
    fn sharding_does_not_change_a_weight_and_the_seed_does() {
        let (_one, single) = written("single", &small(), 1);
        let cut = Shape { shard_bytes: Some(20_000), ..small() };
        let (two, sharded) = written("sharded", &cut, 1);
        let (_three, other) = written("other", &small(), 2);
        assert!(!two.0.join("model.safetensors").exists());
        assert_eq!(bytes(&single), bytes(&sharded));
        assert_ne!(bytes(&single), bytes(&other));
    }

    #[test]
    fn weights_have_the_stated_distribution() {
        let (_dir, checkpoint) = written("bell", &small(), 3);
        let values = |name: &str| -> Vec<f64> {
            let mut raw = vec![0; checkpoint.source().info(name).unwrap().bytes() as usize];
            checkpoint.source().read(name, 0, &mut raw).unwrap();
            raw.chunks_exact(2).map(|b| bf16::from_le_bytes([b[0], b[1]]).to_f64()).collect()
        };
        let moments = |v: &[f64]| {
            let mean = v.iter().sum::<f64>() / v.len() as f64;
            let square = v.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / v.len() as f64;
            (mean, square.sqrt())
        };
        let (mean, deviation) = moments(&values("model.embed_tokens.weight"));
        assert!(mean.abs() < 1e-3 && (deviation - 0.02).abs() < 1e-3, "{mean} {deviation}");
        let (mean, _) = moments(&values("model.norm.weight"));
        assert!((mean - 1.0).abs() < 0.02, "{mean}");
    }

    #[test]
    fn experts_of_gpt_oss_are_codes_with_the_stated_deviation() {
        let Shape { architecture, model_type, window, .. } = Shape::gpt_oss_small();
        let experts = Some(Experts { count: 4, per_token: 2, width: 64 });
        let shape =
            Shape { architecture, model_type, window, experts, intermediate: 64, ..small() };
        let (_dir, checkpoint) = written("gpt-oss", &shape, 4);
        let read = |name: &str| {
            let name = format!("model.layers.1.mlp.experts.gate_up_proj_{name}");
            let mut raw = vec![0; checkpoint.source().info(&name).unwrap().bytes() as usize];
            checkpoint.source().read(&name, 0, &mut raw).unwrap();
            raw
        };
        let (codes, exponents) = (read("blocks"), read("scales"));
        assert_eq!((codes.len(), exponents.len()), (4 * 128 * 2 * 16, 4 * 128 * 2));
        assert!(exponents.iter().all(|&exponent| exponent == exponents[0]));
        let scale = 2f64.powi(i32::from(exponents[0]) - 127);
        let value = |code: u8| [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0][usize::from(code & 7)];
        let squares =
            codes.iter().flat_map(|byte| [byte & 15, byte >> 4]).map(|c| value(c) * value(c));
        let deviation = scale * (squares.sum::<f64>() / (2 * codes.len()) as f64).sqrt();
        assert!((deviation - 0.02).abs() < 4e-3, "{deviation}");
    }

    #[test]
    fn released_shapes_have_the_published_sizes() {
        for (shape, parameters) in [
            (Shape::qwen2_5_0_5b(), 494_032_768),
            (Shape::qwen3_0_6b(), 596_049_920),
            (Shape::qwen3_moe_small(), 548_974_848),
            (Shape::gpt_oss_small(), 1_343_446_592),
        ] {
            let text = shape.config().to_string();
            let config = Config::parse(Path::new("config.json"), text.as_bytes()).unwrap();
            // A byte of codes is two parameters, one of exponents none.
            let count = |(name, dtype, dims): &(String, DType, Vec<u64>)| match dtype {
                DType::U8 if name.ends_with("_scales") => 0,
                DType::U8 => 2 * dims.iter().product::<u64>(),
                _ => dims.iter().product::<u64>(),
            };
            assert_eq!(config.tensors().iter().map(count).sum::<u64>(), parameters);
        }
    }

    #[test]
    fn every_name_has_a_shape() {
        assert!(Shape::NAMES.iter().all(|name| Shape::named(name).is_ok()));
        assert!(Shape::named("qwen").unwrap_err().to_string().contains("qwen3-moe-small"));
    }

    #[test]
    fn every_byte_has_its_own_character() {
        let alphabet: std::collections::BTreeSet<char> = byte_alphabet().into_iter().collect();
        assert_eq!(alphabet.len(), 256);
        assert!(alphabet.contains(&'Ġ') && alphabet.contains(&'Ċ'));
    }
}
