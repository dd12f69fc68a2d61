//! The supported model families: how each reads its configuration. Adding one starts here.

use crate::{
    config::{
        Config,
        deepseek::{deepseek_v3, deepseek_v32},
        dense::{llama, qwen2, qwen3},
        gpt_oss::gpt_oss,
        qwen3_moe::qwen3_moe,
        qwen3_next::qwen3_next,
        shared::Names,
    },
    error::ModelError,
    fields::Fields,
};
use serde_json::{Value, json};

/// One value of `model_type` with the class that `architectures` names.
struct Family {
    model_type: &'static str,
    architecture: &'static str,
    parse: fn(Fields, Names) -> Result<Config, ModelError>,
}

const FAMILIES: &[Family] = &[
    Family { model_type: "qwen2", architecture: "Qwen2ForCausalLM", parse: qwen2 },
    Family { model_type: "qwen3", architecture: "Qwen3ForCausalLM", parse: qwen3 },
    Family { model_type: "llama", architecture: "LlamaForCausalLM", parse: llama },
    Family { model_type: "qwen3_moe", architecture: "Qwen3MoeForCausalLM", parse: qwen3_moe },
    Family { model_type: "qwen3_next", architecture: "Qwen3NextForCausalLM", parse: qwen3_next },
    Family { model_type: "deepseek_v3", architecture: "DeepseekV3ForCausalLM", parse: deepseek_v3 },
    Family {
        model_type: "deepseek_v32",
        architecture: "DeepseekV32ForCausalLM",
        parse: deepseek_v32,
    },
    Family { model_type: "gpt_oss", architecture: "GptOssForCausalLM", parse: gpt_oss },
];

/// What `architectures[0]` of a `config.json` may be.
pub fn supported_architectures() -> impl Iterator<Item = &'static str> {
    FAMILIES.iter().map(|f| f.architecture)
}

/// Reads a `config.json`: the family by `architectures[0]`, or by `model_type` where absent.
pub(crate) fn parse(mut fields: Fields) -> Result<Config, ModelError> {
    let architecture = match fields.take("architectures") {
        None => None,
        Some(Value::Array(names)) if names.len() == 1 && names[0].is_string() => {
            names[0].as_str().map(str::to_owned)
        }
        Some(v) => return Err(fields.unsupported("architectures", &v, "a list of one name")),
    };
    let model_type = fields.opt_text("model_type")?;
    let Some(found) = architecture.clone().or_else(|| model_type.clone()) else {
        return Err(fields.missing("architectures"));
    };
    let matches = |f: &&Family| {
        architecture.as_deref().unwrap_or(f.architecture) == f.architecture
            && model_type.as_deref().unwrap_or(f.model_type) == f.model_type
    };
    let known = |f: &Family| f.architecture == found || f.model_type == found;
    match FAMILIES.iter().find(matches) {
        Some(f) => (f.parse)(fields, (f.model_type, f.architecture)),
        None => match FAMILIES.iter().find(|f| known(f)) {
            // The architecture is known, so it is the type that contradicts it.
            Some(f) => Err(fields.unsupported(
                "model_type",
                &json!(model_type),
                &json!(f.model_type).to_string(),
            )),
            None => Err(ModelError::UnknownModel {
                path: fields.path().to_owned(),
                found,
                supported: supported_architectures().collect::<Vec<_>>().join(", "),
            }),
        },
    }
}
