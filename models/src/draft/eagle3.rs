//! EAGLE-3 heads: a checkpoint of their own that belongs to a main model.

use super::{Capture, Draft, Form, count};
use crate::{
    Checkpoint, Config, Linear, ModelError, TensorProblem,
    check::{Check, Sound},
    checkpoint::{Ignored, quantization},
    config::{
        Attention, FeedForward, FullAttention, Gated, Layer,
        shared::{
            HeadDim, MAX_INTERMEDIATE, MAX_VOCAB, Sizes, finish, no_window, take_head_dim,
            take_kv_heads,
        },
    },
    expected::{
        Part, layer_parts,
        names::{EMBED, HEAD},
    },
    fields::Fields,
    files::Opened,
    quant::{Expected, Quantization},
    rope::{self, Channels},
};
use serde_json::{Value, json};
use std::path::Path;
use tensor::WeightSource as _;

const ARCHITECTURE: &str = "LlamaForCausalLMEagle3";
/// Values of the residual stream that a head reads.
const POINTS: usize = 3;
/// The difference between a token's id in the target and in the draft.
const DIFFERENCES: &str = "d2t";
/// Which of the target's tokens the draft has; the differences say the same.
const KNOWN: &str = "t2d";

/// What a `config.json` says.
struct Head {
    config: Config,
    /// Tokens of a vocabulary of its own.
    own_vocab: Option<u64>,
    capture: Vec<u64>,
}

/// Shape of the projection of captured values.
pub(crate) fn reduction(hidden: u64, inputs: u64) -> Linear {
    Linear { outputs: hidden, inputs, bias: false }
}

pub(super) fn open(dir: &Path, target: &Checkpoint) -> Result<Draft, ModelError> {
    let head = read(&dir.join("config.json"), target.config())?;
    let quantization = quantization(dir, &head.config)?;
    if target.quantization().is_rotated() {
        return Err(ModelError::RotatedTarget { dir: dir.to_owned() });
    }
    let opened = Opened::read(dir, matches!(quantization, Quantization::Described(_)))?;
    let (sound, ignored, ids) = stored(dir, &head, &quantization, &opened)?;
    let parameters = count(&sound);
    let vocab = target.config().vocab_size;
    let target_ids = ids.map(|ids| target_ids(dir, &ids, vocab)).transpose()?;
    let mut source = sound.source.renamed("draft.");
    let own_head = head.own_vocab.is_some();
    let shared = format!("{HEAD}.");
    source.borrow_from(target.source(), |name| {
        name == EMBED || (!own_head && name.starts_with(&shared))
    });
    Ok(Draft {
        config: Config { tied: target.config().tied, ..head.config },
        form: Form::Eagle3 { own_head },
        capture: Capture::Residuals(head.capture),
        source,
        parameters,
        ignored,
        target_ids,
    })
}

fn read(path: &Path, target: &Config) -> Result<Head, ModelError> {
    let mut fields = Fields::read(path)?;
    match fields.take("architectures") {
        Some(names) if names == json!([ARCHITECTURE]) => {}
        Some(other) => {
            return Err(fields.unsupported(
                "architectures",
                &other,
                &json!([ARCHITECTURE]).to_string(),
            ));
        }
        None => return Err(fields.missing("architectures")),
    }
    fields.only("model_type", &json!("llama"))?;
    // What the target fixes, since the head reads its states and its embedding.
    fields.only("target_hidden_size", &json!(target.hidden))?;
    same(&mut fields, "hidden_size", target.hidden)?;
    same(&mut fields, "vocab_size", target.vocab_size)?;
    no_window(&mut fields)?;
    fields.only("mlp_bias", &json!(false))?;
    fields.only("pretraining_tp", &json!(1))?;
    let bias = fields.flag("attention_bias", false)?;
    let sizes = Sizes::take(&mut fields)?;
    if sizes.layers != 1 {
        return Err(fields.unsupported("num_hidden_layers", &json!(sizes.layers), "1"));
    }
    let kv_heads = take_kv_heads(&mut fields, sizes.heads, None)?;
    let head_dim = take_head_dim(&mut fields, &sizes, HeadDim::Divided)?;
    let width = fields.count("intermediate_size", MAX_INTERMEDIATE)?;
    let layer = Layer {
        attention: Attention::Full(FullAttention {
            heads: sizes.heads,
            kv_heads,
            head_dim,
            qkv_bias: bias,
            o_bias: bias,
            qk_norm: false,
            gate: false,
            sinks: None,
        }),
        feed_forward: FeedForward::Dense(Gated { width, bias: false }),
    };
    let own_vocab = fields.opt_count("draft_vocab_size", MAX_VOCAB.min(target.vocab_size))?;
    let capture = take_capture(&mut fields, target.layers.len() as u64)?;
    fields.only("tie_word_embeddings", &json!(false))?;
    let rope = rope::take(&mut fields, Channels::all(head_dim))?;
    let config = finish(fields, ("llama", ARCHITECTURE), &sizes, &rope, vec![layer])?;
    Ok(Head { config, own_vocab, capture })
}

/// Insists that `key` is the target's `value`; [`Sizes`] and [`finish`] read it afterwards.
fn same(fields: &mut Fields, key: &str, value: u64) -> Result<(), ModelError> {
    match fields.peek(key) {
        Some(found) if found.as_u64() != Some(value) => {
            let found = found.clone();
            Err(fields.unsupported(key, &found, &format!("{value}, as in the model it drafts for")))
        }
        _ => Ok(()),
    }
}

/// Takes the layers whose outputs are read: those of `eagle_config`, else the second, the one
/// before the middle and the fourth from the end.
fn take_capture(fields: &mut Fields, layers: u64) -> Result<Vec<u64>, ModelError> {
    const LAYERS: &str = "eagle_aux_hidden_state_layer_ids";
    let Some(mut own) = fields.opt_object("eagle_config")? else {
        return usual_capture(layers).ok_or_else(|| fields.missing("eagle_config"));
    };
    own.only("use_aux_hidden_state", &json!(true))?;
    let given = own.take(LAYERS);
    let points = match &given {
        None => usual_capture(layers).ok_or_else(|| own.missing(LAYERS))?,
        Some(value) => {
            let id = |v: &Value| v.as_u64().filter(|&l| l < layers).map(|l| l + 1);
            let points: Option<Vec<u64>> =
                value.as_array().and_then(|ids| ids.iter().map(id).collect());
            points.filter(|p| p.len() == POINTS).ok_or_else(|| {
                let supported = format!("a list of {POINTS} layers of the model, below {layers}");
                own.unsupported(LAYERS, value, &supported)
            })?
        }
    };
    own.finish(&[])?;
    Ok(points)
}

/// The points that are read where a head names none; a model of fewer layers has no such points.
fn usual_capture(layers: u64) -> Option<Vec<u64>> {
    (layers >= 4).then(|| vec![2, layers / 2, layers - 3])
}

type Stored = (Sound, Vec<Ignored>, Option<Vec<i64>>);

fn stored(
    dir: &Path,
    head: &Head,
    quantization: &Quantization,
    opened: &Opened,
) -> Result<Stored, ModelError> {
    let h = head.config.hidden;
    let mut parts = vec![
        Part::Linear { prefix: "fc".to_owned(), linear: reduction(h, POINTS as u64 * h) },
        Part::Norm { prefix: "norm".to_owned(), width: h },
        Part::Norm { prefix: "midlayer.hidden_norm".to_owned(), width: h },
    ];
    layer_parts("midlayer".to_owned(), &head.config.layers[0], 2 * h, h, &mut parts);
    let mut check = Check::new(opened);
    let mut ids = None;
    if let Some(vocab) = head.own_vocab {
        let linear = Linear { outputs: vocab, inputs: h, bias: false };
        parts.push(Part::Linear { prefix: HEAD.to_owned(), linear });
        let differences = check.tensors(Expected::integers(DIFFERENCES, vocab))?;
        // Read only once it is known to be stored as it should be.
        if check.problems.is_empty() {
            ids = Some(integers(&differences, vocab)?);
        }
    }
    let sound = check.parts(quantization, parts)?;
    for name in check.unseen() {
        let reason = match &name[..] {
            KNOWN => "`d2t` says the same",
            DIFFERENCES => "the head has the target's vocabulary",
            "embed_tokens.weight" | "model.embed_tokens.weight" => "the target's embedding is read",
            _ => {
                check.problems.push(TensorProblem::Unused { name });
                continue;
            }
        };
        check.ignored.push(Ignored { name, reason });
    }
    let Check { problems, mut ignored, .. } = check;
    if !problems.is_empty() {
        return Err(ModelError::Tensors { dir: dir.to_owned(), problems });
    }
    ignored.sort_by(|a, b| a.name.cmp(&b.name));
    Ok((sound, ignored, ids))
}

fn integers(sound: &Sound, count: u64) -> Result<Vec<i64>, ModelError> {
    let mut bytes = vec![0; count as usize * 8];
    sound.source.read(DIFFERENCES, 0, &mut bytes)?;
    let number = |b: &[u8]| i64::from_le_bytes([b[0], b[1], b[2], b[3], b[4], b[5], b[6], b[7]]);
    Ok(bytes.chunks_exact(8).map(number).collect())
}

/// The target's id of each of the draft's tokens, from their differences.
fn target_ids(dir: &Path, differences: &[i64], vocab: u64) -> Result<Vec<u32>, ModelError> {
    let id = |(own, difference): (usize, &i64)| {
        let id = (own as i64).checked_add(*difference).and_then(|id| u32::try_from(id).ok());
        id.filter(|&id| u64::from(id) < vocab).ok_or_else(|| ModelError::Damaged {
            path: dir.to_owned(),
            reason: format!(
                "`{DIFFERENCES}` moves token {own} by {difference}, out of the {vocab} of the target"
            ),
        })
    };
    differences.iter().enumerate().map(id).collect()
}
