//! What the reference computed, from the files beside the fixtures.

#![allow(dead_code, reason = "each test file uses its own part")]

use crate::{run::floats, support::fixture};
use ir::DType;
use safetensors::{Dtype, SafeTensors};
use std::{collections::HashMap, fs};

/// `oracle.safetensors` of a fixture, by name.
pub(crate) struct Oracle(HashMap<String, Vec<f64>>);

impl Oracle {
    pub(crate) fn of(name: &str) -> Self {
        let bytes = fs::read(fixture(name).join("oracle.safetensors")).unwrap();
        let file = SafeTensors::deserialize(&bytes).unwrap();
        let values = |view: &safetensors::tensor::TensorView<'_>| match view.dtype() {
            Dtype::F32 => floats(view.data(), DType::F32),
            Dtype::BF16 => floats(view.data(), DType::BF16),
            Dtype::U8 | Dtype::BOOL => floats(view.data(), DType::U8),
            Dtype::I32 => view
                .data()
                .chunks_exact(4)
                .map(|b| f64::from(i32::from_le_bytes(b.try_into().unwrap())))
                .collect(),
            Dtype::I64 => view
                .data()
                .chunks_exact(8)
                .map(|b| i64::from_le_bytes(b.try_into().unwrap()) as f64)
                .collect(),
            other => panic!("{other:?}"),
        };
        Self(file.iter().map(|(name, view)| (name.to_owned(), values(&view))).collect())
    }

    pub(crate) fn get(&self, name: &str) -> &[f64] {
        &self.0[name]
    }

    pub(crate) fn has(&self, name: &str) -> bool {
        self.0.contains_key(name)
    }

    pub(crate) fn ids(&self, name: &str) -> Vec<usize> {
        self.get(name).iter().map(|&id| id as usize).collect()
    }
}
