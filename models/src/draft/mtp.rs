//! The layer for multi-token prediction that a checkpoint stores beside its model.

use super::{Capture, Draft, Form, count};
use crate::{
    Attention, Checkpoint, Config, Linear, ModelError, TensorProblem,
    check::{Check, Sound},
    checkpoint::Ignored,
    expected::{
        Part, layer_parts,
        names::{EMBED, HEAD},
    },
    quant::{expand, usually_fp8},
};

/// Where the parts of the layer are stored.
#[derive(Clone, Debug)]
pub(crate) struct Mtp {
    /// Prefix of the decoder layer.
    pub(crate) layer: String,
    pub(crate) embedding_norm: String,
    pub(crate) hidden_norm: String,
    /// The projection of both halves, that of the embedding first.
    pub(crate) join: String,
    /// The norm before the head.
    pub(crate) norm: String,
}

impl Mtp {
    /// The names under `prefix`, which ends in a dot: those of a module of its own, or of one more
    /// layer of the model.
    fn under(prefix: &str) -> Self {
        if prefix == "mtp." {
            let part = |part: &str| format!("{prefix}{part}");
            return Self {
                layer: part("layers.0"),
                embedding_norm: part("pre_fc_norm_embedding"),
                hidden_norm: part("pre_fc_norm_hidden"),
                join: part("fc"),
                norm: part("norm"),
            };
        }
        let layer = prefix.trim_end_matches('.').to_owned();
        let part = |part: &str| format!("{layer}.{part}");
        Self {
            embedding_norm: part("enorm"),
            hidden_norm: part("hnorm"),
            join: part("eh_proj"),
            norm: part("shared_head.norm"),
            layer,
        }
    }

    /// Shape of the projection of both halves.
    pub(crate) fn join_shape(&self, hidden: u64) -> Linear {
        Linear { outputs: hidden, inputs: 2 * hidden, bias: false }
    }

    fn parts(&self, config: &Config) -> Vec<Part> {
        let hidden = config.hidden;
        let mut parts = Vec::new();
        for prefix in [&self.embedding_norm, &self.hidden_norm, &self.norm] {
            parts.push(Part::Norm { prefix: prefix.clone(), width: hidden });
        }
        parts.push(Part::Linear { prefix: self.join.clone(), linear: self.join_shape(hidden) });
        layer_parts(self.layer.clone(), &config.layers[0], hidden, hidden, &mut parts);
        parts
    }
}

pub(super) fn open(checkpoint: &Checkpoint) -> Result<Option<Draft>, ModelError> {
    let main = checkpoint.config();
    let Some(prefix) = main.draft_prefixes.first() else { return Ok(None) };
    // A layer with a recurrent memory could not take back tokens that are refused.
    let attends = |l: &&crate::Layer| !matches!(l.attention, Attention::Delta(_));
    let Some(layer) = main.layers.iter().rfind(attends) else { return Ok(None) };
    let mtp = Mtp::under(prefix);
    let config = Config { layers: vec![layer.clone()], ..main.clone() };
    let parts = mtp.parts(&config);
    let Some((sound, ignored)) = stored(checkpoint, prefix, parts)? else { return Ok(None) };
    let parameters = count(&sound);
    let mut source = sound.source;
    let head = format!("{HEAD}.");
    source.borrow_from(checkpoint.source(), |name| name == EMBED || name.starts_with(&head));
    Ok(Some(Draft {
        config,
        form: Form::Mtp(mtp),
        capture: Capture::FinalNorm,
        source,
        parameters,
        ignored,
        target_ids: None,
    }))
}

/// The tensors of `parts`; `None` where a checkpoint has nothing under `prefix`.
fn stored(
    checkpoint: &Checkpoint,
    prefix: &str,
    parts: Vec<Part>,
) -> Result<Option<(Sound, Vec<Ignored>)>, ModelError> {
    let Some(opened) = checkpoint.opened() else {
        let (expected, _) = expand(checkpoint.quantization(), parts, usually_fp8);
        return Ok(Some((Sound::promised(checkpoint.dir(), &expected), Vec::new())));
    };
    if !opened.stored.keys().any(|name| name.starts_with(prefix)) {
        return Ok(None);
    }
    let mut check = Check::new(opened);
    let sound = check.parts(checkpoint.quantization(), parts)?;
    for name in check.unseen().into_iter().filter(|n| n.starts_with(prefix)) {
        match &name[prefix.len()..] {
            "embed_tokens.weight" | "shared_head.head.weight" => {
                let reason = "a copy of the main model's tensor";
                check.ignored.push(Ignored { name, reason });
            }
            _ => check.problems.push(TensorProblem::Unused { name }),
        }
    }
    let Check { problems, mut ignored, .. } = check;
    if !problems.is_empty() {
        return Err(ModelError::Tensors { dir: checkpoint.dir().to_owned(), problems });
    }
    ignored.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(Some((sound, ignored)))
}
