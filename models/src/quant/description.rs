//! `quant_model_description.json`, which modelslim writes: a type for each tensor.

use crate::{error::ModelError, fields::Fields};
use serde_json::{Value, json};
use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};

/// Name of the file.
pub(crate) const DESCRIPTION: &str = "quant_model_description.json";

/// What a tensor belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Not quantised.
    Float,
    /// A projection with inputs quantised by recorded numbers.
    W8A8,
    /// A projection with int8 codes and inputs quantised row by row.
    W8A8Dynamic,
    /// The same with int4 codes, two rows to a byte.
    W4A8Dynamic,
}

const KINDS: [(&str, Kind); 4] = [
    ("FLOAT", Kind::Float),
    ("W8A8", Kind::W8A8),
    ("W8A8_DYNAMIC", Kind::W8A8Dynamic),
    ("W4A8_DYNAMIC", Kind::W4A8Dynamic),
];

/// The type of every tensor of a checkpoint.
#[derive(Debug)]
pub(crate) struct Description {
    path: PathBuf,
    kinds: BTreeMap<String, Kind>,
    rotated: bool,
}

impl Description {
    /// Reads the description in `dir`, if there is one.
    ///
    /// # Errors
    /// [`ModelError`] when it is no JSON object or holds a type or setting that is not supported.
    pub(crate) fn read(dir: &Path) -> Result<Option<Self>, ModelError> {
        let path = dir.join(DESCRIPTION);
        if !path.exists() {
            return Ok(None);
        }
        Self::parse(Fields::read(&path)?).map(Some)
    }

    fn parse(mut fields: Fields) -> Result<Self, ModelError> {
        let model = fields.opt_text("model_quant_type")?;
        if let Some(model) = model {
            kind(&fields, "model_quant_type", &json!(model))?;
        }
        fields.opt_text("version")?;
        // Who made it, and how; rotations of whole weights are already in them.
        fields.opt_object("metadata")?;
        let rotated = takes_rotation(&mut fields)?;
        // Scales are per row in all supported types; the older two-stage 4-bit files have groups.
        fields.only("group_size", &json!(0))?;
        let path = fields.path().to_owned();
        let mut kinds = BTreeMap::new();
        for name in
            fields.names().filter(|n| n.contains('.')).map(str::to_owned).collect::<Vec<_>>()
        {
            if let Some(value) = fields.take(&name) {
                let kind = kind(&fields, &name, &value)?;
                kinds.insert(name, kind);
            }
        }
        fields.finish(&[])?;
        Ok(Self { path, kinds, rotated })
    }

    /// The type of tensor `name`, if it is described.
    pub(crate) fn kind(&self, name: &str) -> Option<Kind> {
        self.kinds.get(name).copied()
    }

    /// Whether all states were rotated before quantising.
    pub(crate) fn is_rotated(&self) -> bool {
        self.rotated
    }

    /// The file, for errors.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }
}

/// Takes `optional` and says whether it names a rotation of the residual stream.
fn takes_rotation(fields: &mut Fields) -> Result<bool, ModelError> {
    let Some(mut optional) = fields.opt_object("optional")? else { return Ok(false) };
    let Some(mut quarot) = optional.opt_object("quarot")? else { return Ok(false) };
    let Some(mut map) = quarot.opt_object("rotation_map")? else { return Ok(false) };
    Ok(map.take("global_rotation").is_some())
}

fn kind(fields: &Fields, name: &str, value: &Value) -> Result<Kind, ModelError> {
    let found = KINDS.iter().find(|(spelling, _)| value == spelling);
    let supported = || {
        let names: Vec<&str> = KINDS.iter().map(|(spelling, _)| *spelling).collect();
        format!("{}; quantise the model with one of these recipes", names.join(", "))
    };
    found.map(|&(_, kind)| kind).ok_or_else(|| fields.unsupported(name, value, &supported()))
}
