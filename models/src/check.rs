//! What a checkpoint stores against what its model calls for.

use crate::{
    checkpoint::Ignored,
    error::{ModelError, TensorProblem},
    files::Opened,
    quant::{Expected, Use, View},
    source::SafetensorsSource,
};
use std::collections::BTreeSet;

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

impl<'a> Check<'a> {
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
