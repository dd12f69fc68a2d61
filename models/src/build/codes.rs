//! Products with weights that are stored as codes and scales.

use super::linear::Rows;
use super::{Builder, experts::Pairs};
use crate::quant::{Codes, FP8_BLOCK, Published, Scheme};
use ir::{DType, Op, ValueId};
use tensor::WeightSource;

/// A quantised matrix `[N,K]`, or a stack of them.
#[derive(Clone, Copy)]
pub(super) struct Matrix {
    pub(super) codes: ValueId,
    /// `f32 [..,N,G]`.
    pub(super) scale: ValueId,
}

impl Builder<'_> {
    /// Pairs through the matrices of their experts.
    pub(super) fn grouped(
        &mut self,
        matrix: Matrix,
        (codes, group): (Codes, u64),
        x: ValueId,
        pairs: Pairs,
        name: &str,
    ) -> ValueId {
        let out = self.options.precision.activations;
        match self.quantized_inputs(codes, x, name) {
            Some([x, x_scale]) => {
                let args = [x, x_scale, pairs.order, pairs.starts, matrix.codes, matrix.scale];
                self.op(Op::GroupedQuantMatmul { group, out }, &args, name)
            }
            None => {
                let weight = self.values_of(matrix, group, DType::F32, name);
                self.op(Op::GroupedMatmul { out }, &[x, pairs.order, pairs.starts, weight], name)
            }
        }
    }

    /// The values of the matrix stored under `prefix` in the type of weights, for products whose
    /// inputs are never quantised.
    pub(super) fn matrix(&mut self, prefix: &str) -> ValueId {
        let weights = self.options.precision.weights;
        match Scheme::of(self.source, prefix) {
            Scheme::StaticInt8 => unreachable!("opening the checkpoint refused it"),
            Scheme::Float => self.weight(&format!("{prefix}.weight"), weights),
            Scheme::Codes { codes, group } => {
                let matrix = self.codes(prefix, codes, &[], prefix);
                self.values_of(matrix, group, weights, prefix)
            }
        }
    }

    /// Codes and scales of the rows `choice` of a projection.
    pub(super) fn codes(
        &mut self,
        prefix: &str,
        codes: Codes,
        choice: &[Rows],
        name: &str,
    ) -> Matrix {
        let stored = self.stored(&format!("{prefix}.weight"));
        let scale = match codes {
            Codes::Fp8 => {
                let rows = self.f.values[stored].ty.dims[0].as_const().unwrap_or_default();
                let blocks = self.stored(&format!("{prefix}.weight_scale_inv"));
                let op = Op::RepeatRows { times: FP8_BLOCK, rows };
                self.op(op, &[blocks], &format!("{prefix}.weight_scale"))
            }
            Codes::Int => self.weight(&format!("{prefix}.weight_scale"), DType::F32),
        };
        Matrix {
            codes: self.rows(stored, choice, &format!("{name}.weight")),
            scale: self.rows(scale, choice, &format!("{name}.weight_scale")),
        }
    }

    /// Codes and scales of the inputs `x` of a product with `codes`; `None` where inputs stay as
    /// they are.
    pub(super) fn quantized_inputs(
        &mut self,
        codes: Codes,
        x: ValueId,
        name: &str,
    ) -> Option<[ValueId; 2]> {
        let op = match codes {
            Codes::Int => Op::QuantizeRows {},
            Codes::Fp8 if self.options.quantize_activations => {
                let power_of_two =
                    matches!(self.config.published, Published::Fp8 { power_of_two: true });
                Op::QuantizeFp8 { group: FP8_BLOCK, power_of_two }
            }
            Codes::Fp8 => return None,
        };
        let x = self.unrounded(x);
        Some(self.ops(op, &[x], [&format!("{name}.codes"), &format!("{name}.scales")]))
    }

    /// Codes of the inputs `x` of the projection stored under `prefix`, with the scale and the offset
    /// that it stores for them.
    ///
    /// Projections of one input each store these, and what wrote them measured the input once: where
    /// they are equal bit for bit, the input is quantised once, and the products are siblings.
    pub(super) fn static_codes(&mut self, prefix: &str, x: ValueId, name: &str) -> ValueId {
        let stored = ["input_scale", "input_offset"].map(|part| format!("{prefix}.{part}"));
        let key = self.stored_bits(&stored).map(|bits| (x, bits));
        if let Some(&known) = key.as_ref().and_then(|key| self.static_codes.get(key)) {
            return known;
        }
        let [scale, offset] = stored.map(|part| self.weight(&part, DType::F32));
        let args = [self.unrounded(x), scale, offset];
        let codes = self.op(Op::QuantizeStatic {}, &args, &format!("{name}.codes"));
        if let Some(key) = key {
            self.static_codes.insert(key, codes);
        }
        codes
    }

    /// Element types and bytes of small tensors; `None` where one cannot be read, as of a
    /// configuration without weights.
    fn stored_bits(&self, names: &[String; 2]) -> Option<[(DType, Vec<u8>); 2]> {
        let [a, b] = names.each_ref().map(|name| {
            let info = self.source.info(name)?;
            let mut bytes = vec![0; usize::try_from(info.bytes()).ok()?];
            self.source.read(name, 0, &mut bytes).ok()?;
            Some((info.dtype, bytes))
        });
        Some([a?, b?])
    }

    /// The values of a quantised matrix.
    pub(super) fn values_of(&mut self, m: Matrix, group: u64, out: DType, name: &str) -> ValueId {
        let op = Op::Dequantize { group, out };
        self.op(op, &[m.codes, m.scale], &format!("{name}.values"))
    }

    /// The constants `part` of each projection as one tensor.
    pub(super) fn stack(
        &mut self,
        prefixes: &[String],
        mut part: impl FnMut(&mut Self, &String) -> ValueId,
        name: &str,
    ) -> ValueId {
        let parts: Vec<ValueId> = prefixes.iter().map(|p| part(self, p)).collect();
        self.op(Op::Stack {}, &parts, name)
    }
}
