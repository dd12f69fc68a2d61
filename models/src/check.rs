//! What a checkpoint stores against what its model calls for.

use crate::{
    checkpoint::Ignored,
    error::{ModelError, TensorProblem},
    expected::{
        Part,
        names::{ABSORBED, HEAD},
    },
    files::Opened,
    quant::{Expected, Quantization, Use, View, expand},
    source::SafetensorsSource,
};
use std::{
    collections::{BTreeMap, BTreeSet},
    path::Path,
};
use tensor::{DType, TensorInfo};

/// Compares tensors that are expected with those that are stored, and collects what is wrong.
pub(crate) struct Check<'a> {
    opened: &'a Opened,
    /// Every name that something expected.
    seen: BTreeSet<String>,
    pub(crate) problems: Vec<TensorProblem>,
    pub(crate) ignored: Vec<Ignored>,
}

/// Tensors that are as they should be.
pub(crate) struct Sound {
    pub(crate) source: SafetensorsSource,
    /// The names among them that are parameters.
    pub(crate) parameters: BTreeSet<String>,
}

impl Sound {
    /// What `expected` would hold if it were stored; `config` says that it would.
    pub(crate) fn promised(config: &Path, expected: &[Expected]) -> Self {
        let parameters = expected.iter().filter(|e| e.used == Use::Parameter);
        Self {
            parameters: parameters.map(|e| e.name.clone()).collect(),
            source: SafetensorsSource::promised(
                config,
                expected.iter().filter_map(Expected::usual),
            ),
        }
    }

    /// The parameters among the tensors.
    pub(crate) fn counted(&self) -> impl Iterator<Item = &TensorInfo> {
        self.source.tensors().filter(|t| self.parameters.contains(&t.name))
    }
}

impl<'a> Check<'a> {
    /// Checks what `parts` call for under `quantization` and returns those tensors that are used.
    ///
    /// # Errors
    /// [`ModelError`] when a tensor that must hold zeros cannot be read.
    pub(crate) fn parts(
        &mut self,
        quantization: &Quantization,
        parts: Vec<Part>,
    ) -> Result<Sound, ModelError> {
        let stored = &self.opened.stored;
        let is_fp8 = |name: &str| {
            stored.get(name).is_some_and(|(_, tensor)| tensor.dtype == Ok(DType::F8E4M3))
        };
        let (expected, undescribed) = expand(quantization, parts, is_fp8);
        let sound = self.tensors(expected)?;
        self.problems.extend(unusable(&sound.source));
        for name in undescribed {
            self.seen.insert(name.clone());
            self.problems.push(TensorProblem::Undescribed { name });
        }
        Ok(sound)
    }

    pub(crate) fn new(opened: &'a Opened) -> Self {
        Self { opened, seen: BTreeSet::new(), problems: Vec::new(), ignored: Vec::new() }
    }

    /// Checks `expected` and returns those that are used.
    ///
    /// # Errors
    /// [`ModelError`] when a tensor that must hold zeros cannot be read.
    pub(crate) fn tensors(&mut self, mut expected: Vec<Expected>) -> Result<Sound, ModelError> {
        expected.sort_by(|a, b| a.name.cmp(&b.name));
        let (mut used, mut parameters, mut zeros) = (Vec::new(), BTreeSet::new(), Vec::new());
        for tensor in &expected {
            self.seen.insert(tensor.name.clone());
            let stored = self.opened.stored.contains_key(&tensor.name);
            match tensor.used {
                Use::Spare(reason) | Use::Zeros(reason) if stored => {
                    self.ignored.push(Ignored { name: tensor.name.clone(), reason });
                    zeros.extend(matches!(tensor.used, Use::Zeros(_)).then_some(&tensor.name[..]));
                }
                Use::Spare(_) | Use::Zeros(_) => {}
                Use::Parameter | Use::Scale => {
                    self.problems.extend(self.problem(tensor));
                    used.push((&tensor.name[..], tensor.view));
                    if tensor.used == Use::Parameter {
                        parameters.insert(tensor.name.clone());
                    }
                }
            }
        }
        self.problems.extend(not_zero(self.opened, &zeros)?);
        Ok(Sound { source: SafetensorsSource::new(self.opened, used), parameters })
    }

    fn problem(&self, expected: &Expected) -> Option<TensorProblem> {
        let name = expected.name.clone();
        let Some((_, stored)) = self.opened.stored.get(&name) else {
            return Some(TensorProblem::Missing { name, expected: expected.dims.clone() });
        };
        if stored.dims != expected.dims {
            let (expected, found) = (expected.dims.clone(), stored.dims.clone());
            return Some(TensorProblem::Shape { name, expected, found });
        }
        let found = match &stored.dtype {
            Ok(dtype) if expected.types.contains(dtype) => {
                let fits = expected.view.of(*dtype, &stored.dims).is_some();
                let found = stored.dims.clone();
                return (!fits).then_some(TensorProblem::Packing { name, found });
            }
            Ok(dtype) => dtype.to_string(),
            Err(spelling) => spelling.clone(),
        };
        Some(TensorProblem::DType { name, found, supported: expected.types })
    }

    /// Stored names that nothing expected.
    pub(crate) fn unseen(&self) -> Vec<String> {
        self.opened.stored.keys().filter(|&n| !self.seen.contains(n)).cloned().collect()
    }
}

/// Those of `names` that hold anything but zeros.
fn not_zero(opened: &Opened, names: &[&str]) -> Result<Vec<TensorProblem>, ModelError> {
    let source = SafetensorsSource::new(opened, names.iter().map(|&n| (n, View::Plain)));
    let mut problems = Vec::new();
    for &name in names {
        // An element type without a name here is no offset; it has no sign bits to look past.
        let Some(dtype) = tensor::WeightSource::info(&source, name).map(|i| i.dtype) else {
            problems.push(TensorProblem::NotZero { name: name.to_owned() });
            continue;
        };
        let element = (dtype.bits() / 8) as usize;
        let mut zero = true;
        let look = |piece: &[u8]| {
            zero &= piece.chunks(element).all(|value| match value.split_last() {
                // Minus zero is zero.
                Some((high, low)) => low.iter().all(|&b| b == 0) && (*high == 0 || *high == 0x80),
                None => true,
            });
        };
        source.stream(name, look).map_err(ModelError::Weight)?;
        problems.extend((!zero).then(|| TensorProblem::NotZero { name: name.to_owned() }));
    }
    Ok(problems)
}

/// Tensors that are quantised soundly, and not in a way that the model can use.
fn unusable(source: &SafetensorsSource) -> Vec<TensorProblem> {
    let mut problems = Vec::new();
    let mut first: BTreeMap<String, DType> = BTreeMap::new();
    for TensorInfo { name, dtype, .. } in source.tensors() {
        let expert = expert_free(name);
        let prefix = name.strip_suffix(".deq_scale");
        if prefix.is_some_and(|p| expert.is_some() || p == HEAD || p.ends_with(ABSORBED)) {
            problems.push(TensorProblem::Static { name: name.clone() });
        }
        let Some(expert) = expert else { continue };
        let first = *first.entry(expert).or_insert(*dtype);
        if first != *dtype {
            let (name, found) = (name.clone(), *dtype);
            problems.push(TensorProblem::MixedExperts { name, found, first });
        }
        if name.ends_with(".bias") {
            problems.push(TensorProblem::ExpertBias { name: name.clone() });
        }
    }
    problems
}

/// `name` without the number of the expert that it belongs to.
fn expert_free(name: &str) -> Option<String> {
    let (before, after) = name.split_once(".experts.")?;
    let (number, part) = after.split_once('.')?;
    number.parse::<u64>().ok().map(|_| format!("{before}.{part}"))
}
