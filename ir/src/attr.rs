//! Attribute types that are more than a number.

use crate::types::Dim;
use std::{fmt, str::FromStr};

/// Text that is no attribute of the wanted kind.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error("{0}")]
pub struct ParseAttrError(pub String);

/// Dimensions as an attribute: `[T,14,64]`.
#[derive(Clone, Debug, PartialEq)]
pub struct Dims(pub Vec<Dim>);

impl fmt::Display for Dims {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let dims: Vec<String> = self.0.iter().map(ToString::to_string).collect();
        write!(f, "[{}]", dims.join(","))
    }
}

impl FromStr for Dims {
    type Err = ParseAttrError;
    fn from_str(s: &str) -> Result<Self, Self::Err> {
        let inner = s
            .strip_prefix('[')
            .and_then(|s| s.strip_suffix(']'))
            .ok_or_else(|| ParseAttrError(format!("`{s}` is not a list of dimensions")))?;
        let dim = |d: &str| match d.trim() {
            "" => Err(ParseAttrError(format!("empty dimension in `{s}`"))),
            d if d.starts_with(|c: char| c.is_ascii_digit()) => d
                .parse()
                .map(Dim::Const)
                .map_err(|_| ParseAttrError(format!("`{d}` is not a dimension"))),
            d if d.chars().all(|c| c.is_ascii_alphanumeric() || c == '_') => Ok(Dim::sym(d)),
            d => Err(ParseAttrError(format!("`{d}` is not a dimension"))),
        };
        if inner.trim().is_empty() {
            return Ok(Dims(Vec::new()));
        }
        inner.split(',').map(dim).collect::<Result<_, _>>().map(Dims)
    }
}

/// How rotary frequencies are stretched beyond the trained context.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum RopeScaling {
    /// Not at all.
    None,
    /// Every frequency divided by `factor`.
    Linear {
        /// Divisor.
        factor: f32,
    },
    /// By wavelength (Llama 3.1): long ones divided by `factor`, short ones kept, smooth in between.
    ByWavelength {
        /// Divisor of the long wavelengths.
        factor: f32,
        /// Wavelengths above `original / low_freq` are divided.
        low_freq: f32,
        /// Wavelengths below `original / high_freq` are kept.
        high_freq: f32,
        /// Context length of the original training.
        original: u64,
    },
    /// YaRN (arXiv 2309.00071): interpolation by rotations within the original context, and a
    /// factor on cosine and sine.
    Yarn {
        /// Divisor of the interpolated frequencies.
        factor: f32,
        /// Rotations above which a frequency is kept.
        beta_fast: f32,
        /// Rotations below which a frequency is divided.
        beta_slow: f32,
        /// Context length of the original training.
        original: u64,
        /// Multiplies cosine and sine.
        attention_factor: f32,
        /// Whether the bounds of the ramp are rounded to whole channels.
        truncate: bool,
    },
}

/// Rotary position embedding: which frequencies.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RopeSpec {
    /// Base of the geometric series of wavelengths.
    pub theta: f32,
    /// Rotated channels of a head, even.
    pub dim: u64,
    /// Context extension.
    pub scaling: RopeScaling,
}

impl RopeSpec {
    /// Angle per position of each channel pair, `dim / 2` of them.
    ///
    /// Source: RoPE (arXiv 2104.09864), YaRN (arXiv 2309.00071), the Llama 3.1 model card.
    pub fn inverse_frequencies(&self) -> Vec<f64> {
        use std::f64::consts::PI;
        let (theta, dim) = (f64::from(self.theta), self.dim as f64);
        let base = (0..self.dim / 2).map(|i| theta.powf(-2.0 * i as f64 / dim));
        match self.scaling {
            RopeScaling::None => base.collect(),
            RopeScaling::Linear { factor } => base.map(|f| f / f64::from(factor)).collect(),
            RopeScaling::ByWavelength { factor, low_freq, high_freq, original } => {
                let (factor, original) = (f64::from(factor), original as f64);
                let (low, high) = (f64::from(low_freq), f64::from(high_freq));
                base.map(|f| {
                    let wavelength = 2.0 * PI / f;
                    if wavelength < original / high {
                        f
                    } else if wavelength > original / low {
                        f / factor
                    } else {
                        let smooth = (original / wavelength - low) / (high - low);
                        (1.0 - smooth) * f / factor + smooth * f
                    }
                })
                .collect()
            }
            RopeScaling::Yarn { factor, beta_fast, beta_slow, original, truncate, .. } => {
                let correction = |beta: f32| {
                    dim * (original as f64 / (2.0 * PI * f64::from(beta))).ln() / (2.0 * theta.ln())
                };
                let (mut low, mut high) = (correction(beta_fast), correction(beta_slow));
                if truncate {
                    (low, high) = (low.floor(), high.ceil());
                }
                (low, high) = (low.clamp(0.0, dim - 1.0), high.clamp(0.0, dim - 1.0));
                if low == high {
                    high += 0.001;
                }
                base.enumerate()
                    .map(|(i, f)| {
                        let ramp = ((i as f64 - low) / (high - low)).clamp(0.0, 1.0);
                        f / f64::from(factor) * ramp + f * (1.0 - ramp)
                    })
                    .collect()
            }
        }
    }

    /// Factor on cosine and sine.
    pub fn attention_factor(&self) -> f32 {
        match self.scaling {
            RopeScaling::Yarn { attention_factor, .. } => attention_factor,
            _ => 1.0,
        }
    }
}

/// Text form: `rope(theta=10000,dim=64)`, with `,linear=..`, `,wavelength=factor:low:high:original` or
/// `,yarn=factor:fast:slow:original:attention:truncate`.
impl fmt::Display for RopeSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "rope(theta={},dim={}", self.theta, self.dim)?;
        match self.scaling {
            RopeScaling::None => {}
            RopeScaling::Linear { factor } => write!(f, ",linear={factor}")?,
            RopeScaling::ByWavelength { factor, low_freq, high_freq, original } => {
                write!(f, ",wavelength={factor}:{low_freq}:{high_freq}:{original}")?;
            }
            RopeScaling::Yarn {
                factor,
                beta_fast,
                beta_slow,
                original,
                attention_factor,
                truncate,
            } => write!(
                f,
                ",yarn={factor}:{beta_fast}:{beta_slow}:{original}:{attention_factor}:{truncate}"
            )?,
        }
        f.write_str(")")
    }
}

impl FromStr for RopeSpec {
    type Err = ParseAttrError;
    fn from_str(s: &str) -> Result<Self, Self::Err> {
        let bad = || ParseAttrError(format!("`{s}` is not a rope(theta=..,dim=..) specification"));
        let inner = s.strip_prefix("rope(").and_then(|s| s.strip_suffix(')')).ok_or_else(bad)?;
        let (mut theta, mut dim, mut scaling) = (None, None, RopeScaling::None);
        for field in inner.split(',') {
            let (key, value) = field.split_once('=').ok_or_else(bad)?;
            let parts: Vec<&str> = value.split(':').collect();
            let number = |i: usize| -> Result<f32, ParseAttrError> {
                parts.get(i).and_then(|p| p.trim().parse().ok()).ok_or_else(bad)
            };
            let whole = |i: usize| -> Result<u64, ParseAttrError> {
                parts.get(i).and_then(|p| p.trim().parse().ok()).ok_or_else(bad)
            };
            match (key.trim(), parts.len()) {
                ("theta", 1) => theta = Some(number(0)?),
                ("dim", 1) => dim = Some(whole(0)?),
                ("linear", 1) => scaling = RopeScaling::Linear { factor: number(0)? },
                ("wavelength", 4) => {
                    scaling = RopeScaling::ByWavelength {
                        factor: number(0)?,
                        low_freq: number(1)?,
                        high_freq: number(2)?,
                        original: whole(3)?,
                    };
                }
                ("yarn", 6) => {
                    scaling = RopeScaling::Yarn {
                        factor: number(0)?,
                        beta_fast: number(1)?,
                        beta_slow: number(2)?,
                        original: whole(3)?,
                        attention_factor: number(4)?,
                        truncate: parts[5].trim().parse().map_err(|_| bad())?,
                    };
                }
                _ => return Err(bad()),
            }
        }
        Ok(RopeSpec { theta: theta.ok_or_else(bad)?, dim: dim.ok_or_else(bad)?, scaling })
    }
}

/// How experts score before the best are chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RouteScore {
    /// `softmax(logits)` over all experts.
    Softmax,
    /// `sigmoid(logits)` for each.
    Sigmoid,
}

/// How a router chooses experts.
///
/// `s` is the score of each expert. The choice is by `s`, or by `s + bias` where a bias is given.
/// With `groups` above 1, experts form that many consecutive groups; the score of a group is the
/// sum of its two largest entries, and only experts of the `top_groups` best groups are eligible.
/// The `k` largest are chosen, the smaller index among equals. Their weights are `s`, divided by
/// their sum where `renormalize`, times `scale`.
///
/// Source: DeepSeek-V3 (arXiv 2412.19437, section 2.1.2); softmax without groups is the rule of
/// Mixtral and Qwen3.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RouteSpec {
    /// Score of an expert.
    pub score: RouteScore,
    /// Experts of each token.
    pub k: u64,
    /// Whether weights are divided by their sum.
    pub renormalize: bool,
    /// Consecutive groups of experts; 1 for none.
    pub groups: u64,
    /// Groups whose experts are eligible.
    pub top_groups: u64,
    /// Factor on the weights.
    pub scale: f32,
}

impl RouteSpec {
    /// Whether `experts` experts can be routed so.
    pub fn fits(&self, experts: u64) -> bool {
        let grouped = self.groups > 0
            && experts.is_multiple_of(self.groups)
            && (1..=self.groups).contains(&self.top_groups)
            // The score of a group is a sum of two.
            && (self.groups == 1 || experts / self.groups >= 2);
        grouped && self.k > 0 && self.k <= experts / self.groups * self.top_groups
    }
}

/// Text form: `route(softmax,k=8,renormalize=true)`, with `,groups=8,top_groups=4` where there are
/// groups and `,scale=2.5` where it is not 1.
impl fmt::Display for RouteSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let score = match self.score {
            RouteScore::Softmax => "softmax",
            RouteScore::Sigmoid => "sigmoid",
        };
        write!(f, "route({score},k={},renormalize={}", self.k, self.renormalize)?;
        if (self.groups, self.top_groups) != (1, 1) {
            write!(f, ",groups={},top_groups={}", self.groups, self.top_groups)?;
        }
        if self.scale != 1.0 {
            write!(f, ",scale={}", self.scale)?;
        }
        f.write_str(")")
    }
}

impl FromStr for RouteSpec {
    type Err = ParseAttrError;
    fn from_str(s: &str) -> Result<Self, Self::Err> {
        let bad = || ParseAttrError(format!("`{s}` is not a route(..,k=..) specification"));
        let inner = s.strip_prefix("route(").and_then(|s| s.strip_suffix(')')).ok_or_else(bad)?;
        let mut fields = inner.split(',').map(str::trim);
        let score = match fields.next() {
            Some("softmax") => RouteScore::Softmax,
            Some("sigmoid") => RouteScore::Sigmoid,
            _ => return Err(bad()),
        };
        let mut spec =
            Self { score, k: 0, renormalize: false, groups: 1, top_groups: 1, scale: 1.0 };
        for field in fields {
            let (key, value) = field.split_once('=').ok_or_else(bad)?;
            match key {
                "k" => spec.k = value.parse().map_err(|_| bad())?,
                "renormalize" => spec.renormalize = value.parse().map_err(|_| bad())?,
                "groups" => spec.groups = value.parse().map_err(|_| bad())?,
                "top_groups" => spec.top_groups = value.parse().map_err(|_| bad())?,
                "scale" => spec.scale = value.parse().map_err(|_| bad())?,
                _ => return Err(bad()),
            }
        }
        if spec.k == 0 { Err(bad()) } else { Ok(spec) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rope_specs_print_and_parse() {
        let specs = [
            RopeScaling::None,
            RopeScaling::Linear { factor: 4.0 },
            RopeScaling::ByWavelength {
                factor: 8.0,
                low_freq: 1.0,
                high_freq: 4.0,
                original: 8192,
            },
            RopeScaling::Yarn {
                factor: 40.0,
                beta_fast: 32.0,
                beta_slow: 1.0,
                original: 4096,
                attention_factor: 1.0,
                truncate: true,
            },
        ];
        for scaling in specs {
            let spec = RopeSpec { theta: 1e6, dim: 64, scaling };
            assert_eq!(spec.to_string().parse(), Ok(spec));
        }
    }

    #[test]
    fn route_specs_print_and_parse() {
        let plain = RouteSpec {
            score: RouteScore::Softmax,
            k: 8,
            renormalize: true,
            groups: 1,
            top_groups: 1,
            scale: 1.0,
        };
        let grouped = RouteSpec {
            score: RouteScore::Sigmoid,
            groups: 8,
            top_groups: 4,
            scale: 2.5,
            renormalize: false,
            ..plain
        };
        assert_eq!(plain.to_string(), "route(softmax,k=8,renormalize=true)");
        for spec in [plain, grouped] {
            assert_eq!(spec.to_string().parse(), Ok(spec));
        }
        assert!("route(softmax)".parse::<RouteSpec>().is_err(), "k is needed");
        assert!(grouped.fits(256) && !grouped.fits(8) && !grouped.fits(12));
        assert!(plain.fits(8) && !plain.fits(7));
    }

    /// Short wavelengths are kept, long ones divided by the factor: the two ends of each rule.
    #[test]
    fn scaling_leaves_fast_channels_and_stretches_slow_ones() {
        let plain = RopeSpec { theta: 5e5, dim: 128, scaling: RopeScaling::None };
        let base = plain.inverse_frequencies();
        for scaling in [
            RopeScaling::ByWavelength {
                factor: 8.0,
                low_freq: 1.0,
                high_freq: 4.0,
                original: 8192,
            },
            RopeScaling::Yarn {
                factor: 8.0,
                beta_fast: 32.0,
                beta_slow: 1.0,
                original: 8192,
                attention_factor: 1.0,
                truncate: true,
            },
        ] {
            let scaled = RopeSpec { scaling, ..plain }.inverse_frequencies();
            assert_eq!(scaled[0], base[0]);
            assert!((scaled[63] - base[63] / 8.0).abs() < 1e-12);
            assert!(scaled.windows(2).all(|w| w[1] < w[0]));
        }
    }
}
