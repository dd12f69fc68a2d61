//! A JSON object that is read key by key, so that what nobody read can be refused.

use crate::error::ModelError;
use serde_json::{Map, Value};
use std::path::{Path, PathBuf};

/// The unread part of an object. `null` counts as absent, as it does for those who write it.
pub(crate) struct Fields {
    path: PathBuf,
    /// Keys around this object with a dot each: `rope_scaling.`.
    prefix: String,
    left: Map<String, Value>,
}

impl Fields {
    /// The object that the JSON file `path` holds.
    pub(crate) fn read(path: &Path) -> Result<Self, ModelError> {
        let bytes = std::fs::read(path)
            .map_err(|source| ModelError::Io { path: path.to_owned(), source })?;
        Self::parse(path, &bytes)
    }

    /// The object that `bytes`, read from `path`, spell.
    pub(crate) fn parse(path: &Path, bytes: &[u8]) -> Result<Self, ModelError> {
        let json = |reason: String| ModelError::Json { path: path.to_owned(), reason };
        match serde_json::from_slice(bytes).map_err(|e| json(e.to_string()))? {
            Value::Object(left) => Ok(Self { path: path.to_owned(), prefix: String::new(), left }),
            other => Err(json(format!("expected an object, found {}", shown(&other)))),
        }
    }

    /// The file, for errors.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// That `key` holds `value`, which is none of `supported`.
    pub(crate) fn unsupported(&self, key: &str, value: &Value, supported: &str) -> ModelError {
        ModelError::Value {
            path: self.path.clone(),
            key: format!("{}{key}", self.prefix),
            value: shown(value),
            supported: supported.to_owned(),
        }
    }

    /// That `key` is absent.
    pub(crate) fn missing(&self, key: &str) -> ModelError {
        ModelError::MissingKey { path: self.path.clone(), key: format!("{}{key}", self.prefix) }
    }

    /// What `key` holds, left for who takes it.
    pub(crate) fn peek(&self, key: &str) -> Option<&Value> {
        self.left.get(key).filter(|v| !v.is_null())
    }

    /// Takes `key` as it is.
    pub(crate) fn take(&mut self, key: &str) -> Option<Value> {
        self.left.remove(key).filter(|v| !v.is_null())
    }

    /// The keys that nobody took yet.
    pub(crate) fn names(&self) -> impl Iterator<Item = &str> {
        self.left.keys().map(String::as_str)
    }

    /// A whole number in `1..=max`.
    pub(crate) fn opt_count(&mut self, key: &str, max: u64) -> Result<Option<u64>, ModelError> {
        let Some(v) = self.take(key) else {
            return Ok(None);
        };
        match v.as_u64() {
            Some(n) if (1..=max).contains(&n) => Ok(Some(n)),
            _ => Err(self.unsupported(key, &v, &format!("whole numbers from 1 to {max}"))),
        }
    }

    /// A whole number in `0..=max`.
    pub(crate) fn opt_count_from_zero(
        &mut self,
        key: &str,
        max: u64,
    ) -> Result<Option<u64>, ModelError> {
        let Some(v) = self.take(key) else {
            return Ok(None);
        };
        match v.as_u64() {
            Some(n) if n <= max => Ok(Some(n)),
            _ => Err(self.unsupported(key, &v, &format!("whole numbers from 0 to {max}"))),
        }
    }

    /// A whole number in `1..=max` that must be there.
    pub(crate) fn count(&mut self, key: &str, max: u64) -> Result<u64, ModelError> {
        self.opt_count(key, max)?.ok_or_else(|| self.missing(key))
    }

    /// A number of at least `min` and at most `max`.
    pub(crate) fn opt_number(
        &mut self,
        key: &str,
        (min, max): (f64, f64),
    ) -> Result<Option<f64>, ModelError> {
        let Some(v) = self.take(key) else {
            return Ok(None);
        };
        match v.as_f64() {
            Some(n) if (min..=max).contains(&n) => Ok(Some(n)),
            _ => Err(self.unsupported(key, &v, &format!("numbers from {min} to {max}"))),
        }
    }

    /// A number between `range.0` and `range.1` that must be there.
    pub(crate) fn number(&mut self, key: &str, range: (f64, f64)) -> Result<f64, ModelError> {
        self.opt_number(key, range)?.ok_or_else(|| self.missing(key))
    }

    /// `true`, `false`, or `default` where absent.
    pub(crate) fn flag(&mut self, key: &str, default: bool) -> Result<bool, ModelError> {
        match self.take(key) {
            None => Ok(default),
            Some(Value::Bool(b)) => Ok(b),
            Some(v) => Err(self.unsupported(key, &v, "true, false")),
        }
    }

    /// Text.
    pub(crate) fn opt_text(&mut self, key: &str) -> Result<Option<String>, ModelError> {
        match self.take(key) {
            None => Ok(None),
            Some(Value::String(s)) => Ok(Some(s)),
            Some(v) => Err(self.unsupported(key, &v, "text")),
        }
    }

    /// Insists that `key`, where given, holds `only`; numbers compare by value.
    pub(crate) fn only(&mut self, key: &str, only: &Value) -> Result<(), ModelError> {
        match self.take(key) {
            Some(v) if v != *only && (v.as_f64().is_none() || v.as_f64() != only.as_f64()) => {
                Err(self.unsupported(key, &v, &only.to_string()))
            }
            _ => Ok(()),
        }
    }

    /// A nested object.
    pub(crate) fn opt_object(&mut self, key: &str) -> Result<Option<Fields>, ModelError> {
        match self.take(key) {
            None => Ok(None),
            Some(Value::Object(left)) => Ok(Some(Fields {
                path: self.path.clone(),
                prefix: format!("{}{key}.", self.prefix),
                left,
            })),
            Some(v) => Err(self.unsupported(key, &v, "an object")),
        }
    }

    /// Refuses what is left and not listed in `ignorable`. Keys set to `null` say nothing.
    pub(crate) fn finish(self, ignorable: &[&str]) -> Result<(), ModelError> {
        let mut unknown: Vec<String> = self
            .left
            .iter()
            .filter(|(k, v)| !v.is_null() && !ignorable.contains(&k.as_str()))
            .map(|(k, _)| format!("`{}{k}`", self.prefix))
            .collect();
        if unknown.is_empty() {
            return Ok(());
        }
        unknown.sort();
        let keys =
            format!("{} {}", unknown.join(", "), if unknown.len() == 1 { "is" } else { "are" });
        Err(ModelError::UnknownKeys { path: self.path, keys })
    }
}

/// `value` in JSON, cut to the length of a line.
fn shown(value: &Value) -> String {
    const LONGEST: usize = 80;
    let text = value.to_string();
    match text.char_indices().nth(LONGEST) {
        Some((cut, _)) => format!("{}...", &text[..cut]),
        None => text,
    }
}
