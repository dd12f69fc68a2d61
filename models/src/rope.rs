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

/// Which channels of a head are rotated.
#[derive(Clone, Copy)]
pub(crate) struct Channels {
    pub(crate) head_dim: u64,
    /// `partial_rotary_factor` of a file without one, for families that have it; the others rotate
    /// all channels.
    pub(crate) factor: Option<f64>,
}

impl Channels {
    /// All of `head_dim` channels.
    pub(crate) fn all(head_dim: u64) -> Self {
        Self { head_dim, factor: None }
    }

    /// Their number, with the `partial_rotary_factor` that `outer` or `inner` give.
    fn take(self, outer: &mut Fields, inner: Option<&mut Fields>) -> Result<u64, ModelError> {
        const KEY: &str = "partial_rotary_factor";
        const FACTOR: (f64, f64) = (1e-3, 1.0);
        let Some(default) = self.factor else {
            outer.only(KEY, &json!(1.0))?;
            inner.map_or(Ok(()), |inner| inner.only(KEY, &json!(1.0)))?;
            return Ok(self.head_dim);
        };
        let given = outer.opt_number(KEY, FACTOR)?;
        let nested = inner.map_or(Ok(None), |inner| inner.opt_number(KEY, FACTOR))?;
        if let (Some(outer_factor), Some(inner_factor)) = (given, nested)
            && outer_factor != inner_factor
        {
            let supported = format!("{inner_factor}, as in `rope_parameters`");
            return Err(outer.unsupported(KEY, &json!(outer_factor), &supported));
        }
        let factor = given.or(nested).unwrap_or(default);
        let dim = (self.head_dim as f64 * factor) as u64;
        if dim == 0 || !dim.is_multiple_of(2) {
            let supported = format!("shares of {} channels that are even numbers", self.head_dim);
            return Err(outer.unsupported(KEY, &json!(factor), &supported));
        }
        Ok(dim)
    }
}

/// Rotary settings of a file.
pub(crate) struct Rope {
    pub(crate) spec: RopeSpec,
    /// The context they make of `max_position_embeddings` tokens.
    pub(crate) max_context: u64,
    /// Factor on attention scores that families with `mscale_all_dim` apply.
    pub(crate) score_factor: f64,
}

/// Takes `max_position_embeddings` and the rotary settings: `rope_theta` and `rope_scaling` at the
/// top level, or both inside `rope_parameters`.
pub(crate) fn take(fields: &mut Fields, channels: Channels) -> Result<Rope, ModelError> {
    let max_position = fields.count("max_position_embeddings", MAX_CONTEXT)?;
    fields.only("rope_interleaved", &json!(false))?;
    let outer_theta = fields.opt_number("rope_theta", THETA)?;
    let parameters = fields.opt_object("rope_parameters")?;
    let mut nested = match (parameters, fields.opt_object("rope_scaling")?) {
        (Some(_), Some(_)) => {
            let both = json!("given beside `rope_parameters`");
            return Err(fields.unsupported("rope_scaling", &both, "only one of the two"));
        }
        (one, other) => one.or(other),
    };
    let dim = channels.take(fields, nested.as_mut())?;
    let Some(mut nested) = nested else {
        let spec = spec(outer_theta, dim, RopeScaling::None);
        return Ok(Rope { spec, max_context: max_position, score_factor: 1.0 });
    };
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
    let scaling = take_scaling(&mut nested, max_position)?;
    nested.finish(&[])?;
    Ok(Rope {
        spec: spec(inner_theta.or(outer_theta), dim, scaling.kind),
        max_context: scaling.context,
        score_factor: scaling.score_factor,
    })
}

fn spec(theta: Option<f64>, dim: u64, scaling: RopeScaling) -> RopeSpec {
    RopeSpec { theta: theta.unwrap_or(DEFAULT_THETA) as f32, dim, scaling }
}

struct Scaling {
    kind: RopeScaling,
    context: u64,
    score_factor: f64,
}

fn take_scaling(fields: &mut Fields, max_position: u64) -> Result<Scaling, ModelError> {
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
    let plain = |kind| Scaling { kind, context: max_position, score_factor: 1.0 };
    match kind.as_str() {
        "default" => Ok(plain(RopeScaling::None)),
        "linear" => {
            let factor = fields.number("factor", FACTOR)? as f32;
            Ok(plain(RopeScaling::Linear { factor }))
        }
        "llama3" => Ok(plain(take_llama3(fields)?)),
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
    Ok(RopeScaling::ByWavelength {
        factor: factor as f32,
        low_freq: low_freq as f32,
        high_freq: high_freq as f32,
        original: fields.count("original_max_position_embeddings", MAX_CONTEXT)?,
    })
}

/// The context of a YaRN model is the larger of the configured one and the stretched original:
/// some checkpoints state the one, some the other.
fn take_yarn(fields: &mut Fields, max_position: u64) -> Result<Scaling, ModelError> {
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
    let kind = RopeScaling::Yarn {
        factor: factor as f32,
        beta_fast: beta_fast as f32,
        beta_slow: beta_slow as f32,
        original: original.unwrap_or(max_position),
        attention_factor: attention_factor as f32,
        truncate: fields.flag("truncate", true)?,
    };
    let stretched = original.map_or(0, |n| ((n as f64 * factor) as u64).min(MAX_CONTEXT));
    let score_factor = mscale_all_dim.map_or(1.0, |all| magnitude(all).powi(2));
    Ok(Scaling { kind, context: max_position.max(stretched), score_factor })
}
