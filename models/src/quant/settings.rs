//! `quantization_config` of a `config.json`.

use super::FP8_BLOCK;
use crate::{error::ModelError, fields::Fields};
use serde_json::{Value, json};

/// How the publisher of a model quantised it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Published {
    /// Not at all.
    #[default]
    Float,
    /// Projections in FP8 E4M3 blocks of 128 by 128; those that are not are known by their stored
    /// type.
    Fp8 {
        /// Whether activations, where they are quantised too, get scales that are powers of two.
        power_of_two: bool,
    },
    /// Experts in MXFP4.
    MxFp4,
}

impl Published {
    /// `quant_method` of a file whose `quantization_config` is not yet taken.
    pub(crate) fn peek_method(fields: &Fields) -> Option<String> {
        let method = fields.peek("quantization_config")?.get("quant_method")?;
        method.as_str().map(str::to_owned)
    }

    /// Takes `quantization_config`.
    pub(crate) fn take(fields: &mut Fields) -> Result<Self, ModelError> {
        let Some(mut own) = fields.opt_object("quantization_config")? else {
            return Ok(Self::Float);
        };
        let method = own.opt_text("quant_method")?.ok_or_else(|| own.missing("quant_method"))?;
        exceptions(&mut own)?;
        let published = match &method[..] {
            "fp8" => fp8(&mut own)?,
            "mxfp4" => Self::MxFp4,
            _ => {
                let supported = "fp8 and mxfp4; the description of modelslim checkpoints stands in \
                                 quant_model_description.json";
                return Err(own.unsupported("quant_method", &json!(method), supported));
            }
        };
        own.finish(&[])?;
        Ok(published)
    }
}

fn fp8(own: &mut Fields) -> Result<Published, ModelError> {
    own.only("fmt", &json!("e4m3"))?;
    own.only("activation_scheme", &json!("dynamic"))?;
    let block = json!([FP8_BLOCK, FP8_BLOCK]);
    match own.take("weight_block_size") {
        Some(found) if found == block => {}
        Some(found) => {
            return Err(own.unsupported("weight_block_size", &found, &block.to_string()));
        }
        None => return Err(own.missing("weight_block_size")),
    }
    match own.opt_text("scale_fmt")?.as_deref() {
        None => Ok(Published::Fp8 { power_of_two: false }),
        Some("ue8m0") => Ok(Published::Fp8 { power_of_two: true }),
        Some(other) => {
            Err(own.unsupported("scale_fmt", &json!(other), "\"ue8m0\", or no such key"))
        }
    }
}

/// Takes the list of what stayed in floating point. Stored names and types say the same.
fn exceptions(own: &mut Fields) -> Result<(), ModelError> {
    match own.take("modules_to_not_convert") {
        None => Ok(()),
        Some(Value::Array(names)) if names.iter().all(Value::is_string) => Ok(()),
        Some(other) => {
            Err(own.unsupported("modules_to_not_convert", &other, "a list of module names"))
        }
    }
}
