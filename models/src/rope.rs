//! Rotary embedding settings, in both spellings that checkpoints use.

use crate::{error::ModelError, fields::Fields};
use ir::{RopeScaling, RopeSpec};
use serde_json::json;

/// Bases above 1 make wavelengths grow; the largest published one is 1e8.
const THETA: (f64, f64) = (1.000_001, 1e12);
const FACTOR: (f64, f64) = (1.0, 1e6);
const ROTATIONS: (f64, f64) = (1e-3, 1e6);
/// Longest context that positions in an `i32` can count.
pub(crate) const MAX_CONTEXT: u64 = i32::MAX as u64;

/// Base where a file names none; every supported family was first published with it.
const DEFAULT_THETA: f64 = 10_000.0;

/// Takes the rotary settings: `rope_theta` and `rope_scaling` at the top level, or both inside
/// `rope_parameters`. Returns them with the context they make of `max_position` tokens.
pub(crate) fn take(
    fields: &mut Fields,
    dim: u64,
    max_position: u64,
) -> Result<(RopeSpec, u64), ModelError> {
    fields.only("partial_rotary_factor", &json!(1.0))?;
    fields.only("rope_interleaved", &json!(false))?;
    let outer_theta = fields.opt_number("rope_theta", THETA)?;
    let parameters = fields.opt_object("rope_parameters")?;
    let nested = match (parameters, fields.opt_object("rope_scaling")?) {
        (Some(_), Some(_)) => {
            let both = json!("given beside `rope_parameters`");
            return Err(fields.unsupported("rope_scaling", &both, "only one of the two"));
        }
        (one, other) => one.or(other),
    };
    let Some(mut nested) = nested else {
        return Ok((spec(outer_theta, dim, RopeScaling::None), max_position));
    };
    nested.only("partial_rotary_factor", &json!(1.0))?;
    let inner_theta = nested.opt_number("rope_theta", THETA)?;
    if let (Some(outer), Some(inner)) = (outer_theta, inner_theta)
        && outer != inner
    {
        let value = json!(inner);
        return Err(nested.unsupported(
            "rope_theta",
            &value,
            "the value of the other `rope_theta`",
        ));
    }
    let (scaling, context) = take_scaling(&mut nested, max_position)?;
    nested.finish(&[])?;
    Ok((spec(inner_theta.or(outer_theta), dim, scaling), context))
}

fn spec(theta: Option<f64>, dim: u64, scaling: RopeScaling) -> RopeSpec {
    RopeSpec { theta: theta.unwrap_or(DEFAULT_THETA) as f32, dim, scaling }
}

fn take_scaling(fields: &mut Fields, max_position: u64) -> Result<(RopeScaling, u64), ModelError> {
    let old = fields.opt_text("type")?;
    let kind = match (fields.opt_text("rope_type")?, old) {
        (Some(new), Some(old)) if new != old => {
            return Err(fields.unsupported(
                "rope_type",
                &json!(new),
                &format!("`type` is {old:?}"),
            ));
        }
        (new, old) => new.or(old).ok_or_else(|| fields.missing("rope_type"))?,
    };
    match kind.as_str() {
        "default" => Ok((RopeScaling::None, max_position)),
        "linear" => {
            let factor = fields.number("factor", FACTOR)? as f32;
            Ok((RopeScaling::Linear { factor }, max_position))
        }
        "llama3" => Ok((take_llama3(fields)?, max_position)),
        "yarn" => take_yarn(fields, max_position),
        _ => Err(fields.unsupported("rope_type", &json!(kind), "default, linear, llama3, yarn")),
    }
}

fn take_llama3(fields: &mut Fields) -> Result<RopeScaling, ModelError> {
    let factor = fields.number("factor", FACTOR)?;
    let low_freq = fields.number("low_freq_factor", ROTATIONS)?;
    let high_freq = fields.number("high_freq_factor", ROTATIONS)?;
    if high_freq as f32 <= low_freq as f32 {
        let value = json!(high_freq);
        return Err(fields.unsupported("high_freq_factor", &value, "above `low_freq_factor`"));
    }
    Ok(RopeScaling::Llama3 {
        factor: factor as f32,
        low_freq: low_freq as f32,
        high_freq: high_freq as f32,
        original: fields.count("original_max_position_embeddings", MAX_CONTEXT)?,
    })
}

/// The context of a YaRN model is the larger of the configured one and the stretched original:
/// some checkpoints state the one, some the other.
fn take_yarn(fields: &mut Fields, max_position: u64) -> Result<(RopeScaling, u64), ModelError> {
    let factor = fields.number("factor", FACTOR)?;
    let beta_fast = fields.opt_number("beta_fast", ROTATIONS)?.unwrap_or(32.0);
    let beta_slow = fields.opt_number("beta_slow", ROTATIONS)?.unwrap_or(1.0);
    if beta_fast as f32 <= beta_slow as f32 {
        return Err(fields.unsupported("beta_fast", &json!(beta_fast), "above `beta_slow`"));
    }
    let original = fields.opt_count("original_max_position_embeddings", MAX_CONTEXT)?;
    let given = fields.opt_number("attention_factor", (1e-3, 1e3))?;
    let mscale = fields.opt_number("mscale", (1e-3, 1e3))?;
    let mscale_all_dim = fields.opt_number("mscale_all_dim", (1e-3, 1e3))?;
    let magnitude = |scale: f64| 0.1 * scale * factor.ln() + 1.0;
    let attention_factor = given.unwrap_or(match (mscale, mscale_all_dim) {
        (Some(m), Some(all)) => magnitude(m) / magnitude(all),
        _ => magnitude(1.0),
    });
    let scaling = RopeScaling::Yarn {
        factor: factor as f32,
        beta_fast: beta_fast as f32,
        beta_slow: beta_slow as f32,
        original: original.unwrap_or(max_position),
        attention_factor: attention_factor as f32,
        truncate: fields.flag("truncate", true)?,
    };
    let stretched = original.map_or(0, |n| ((n as f64 * factor) as u64).min(MAX_CONTEXT));
    Ok((scaling, max_position.max(stretched)))
}
