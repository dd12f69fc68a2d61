//! Products of coded weights, and of one of several weights for each row.

use crate::support::*;
use artifact::Scalar;
use codegen_cpu::{InstructionSet, kernels::reference};
use proptest::prelude::*;
use tensor::{DType, Layout, layout::Panels};

/// The value of a code.
fn value(dtype: DType, code: u8) -> f32 {
    match dtype {
        DType::I8 => f32::from(code as i8),
        DType::I4 => f32::from((code << 4) as i8 >> 4),
        DType::F8E4M3 => {
            let (exponent, mantissa) = (i32::from(code >> 3 & 15), f32::from(code & 7));
            let size = match exponent {
                0 => mantissa / 8.0 * 2f32.powi(-6),
                e => (1.0 + mantissa / 8.0) * 2f32.powi(e - 7),
            };
            if code < 128 { size } else { -size }
        }
        DType::MxFp4 => {
            let size = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0][usize::from(code & 7)];
            if code & 8 == 0 { size } else { -size }
        }
        _ => unreachable!("floats are not codes"),
    }
}

/// Elements of some type: as they are in memory and what they are worth.
#[derive(Clone, Debug)]
struct Elements {
    dtype: DType,
    codes: Vec<u8>,
    values: Vec<f32>,
}

impl Elements {
    fn random(dtype: DType, seed: u64, len: usize) -> Self {
        if matches!(dtype, DType::F32 | DType::BF16) {
            let values = rounded(dtype, &noise(seed, len));
            return Self { dtype, codes: Vec::new(), values };
        }
        let byte = |v: f32| (f64::from(v + 1.0) * 128.0) as u8;
        // No NaN.
        let code = |v: &f32| match byte(*v) {
            c if dtype == DType::F8E4M3 && c & 0x7f == 0x7f => c & 0x80,
            c if dtype.bits() == 4 => c & 15,
            c => c,
        };
        let codes: Vec<u8> = noise(seed, len).iter().map(code).collect();
        let values = codes.iter().map(|&c| value(dtype, c)).collect();
        Self { dtype, codes, values }
    }

    /// Rows of `n` elements spread to a stride; what is between them is no element.
    fn rows(&self, n: usize, stride: usize) -> Vec<u8> {
        if self.codes.is_empty() {
            return encode(self.dtype, &spread(&self.values, n, stride));
        }
        let mut out = vec![0x7f; self.codes.len() / n * stride];
        for (from, to) in self.codes.chunks(n).zip(out.chunks_mut(stride)) {
            to[..n].copy_from_slice(from);
        }
        out
    }

    /// Weights `[n,k]`, one after the other, each in panels.
    fn panels(&self, n: usize, k: usize) -> Vec<u8> {
        if self.codes.is_empty() {
            return self.values.chunks(n * k).flat_map(|w| panels(self.dtype, w, n, k)).collect();
        }
        self.codes.chunks(n * k).flat_map(|w| code_panels(self.dtype, w, n, k)).collect()
    }
}

/// A weight `[n,k]` of bytes in panels.
pub(crate) fn int_panels(codes: &[i8], n: usize, k: usize) -> Vec<u8> {
    code_panels(DType::I8, &codes.iter().map(|&c| c as u8).collect::<Vec<_>>(), n, k)
}

fn code_panels(dtype: DType, codes: &[u8], n: usize, k: usize) -> Vec<u8> {
    let layout = Panels::new(n as u64, k as u64, dtype);
    let mut out = vec![0u8; dtype.bytes_for(layout.padded_len()) as usize];
    for r in 0..n {
        for c in 0..k {
            let at = layout.offset(r as u64, c as u64) as usize;
            match dtype.bits() {
                4 => out[at / 2] |= codes[r * k + c] << (4 * (at % 2)),
                _ => out[at] = codes[r * k + c],
            }
        }
    }
    for byte in &mut out {
        *byte ^= Panels::flipped(dtype);
    }
    out
}

/// Which kernel.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Kind {
    /// Floats; not grouped it is `matmul`.
    Float,
    /// The same with weights of bf16 in 12 bits an element.
    Compact,
    Quant,
    Dequant,
    /// Integers with a bias and a scale; never grouped.
    Static,
}

#[derive(Clone, Debug)]
pub(crate) struct Case {
    pub(crate) kind: Kind,
    pub(crate) x: DType,
    pub(crate) w: DType,
    pub(crate) out: DType,
    pub(crate) t: usize,
    pub(crate) n: usize,
    pub(crate) k: usize,
    pub(crate) group: usize,
    /// fp8 inputs have a scale for each group.
    pub(crate) each: bool,
    pub(crate) seed: u64,
}

/// Experts that the pairs of a case go to; without them there is one weight and no pairs.
#[derive(Clone, Debug)]
pub(crate) struct Experts {
    pub(crate) count: usize,
    /// Pairs of a token.
    pub(crate) pairs: usize,
    /// Whether pairs have rows of their own in `x`.
    pub(crate) own: bool,
    pub(crate) ids: Vec<i32>,
}

fn types() -> impl Strategy<Value = (Kind, DType, DType)> {
    let float = || prop_oneof![Just(DType::F32), Just(DType::BF16)];
    let codes =
        prop_oneof![Just(DType::F8E4M3), Just(DType::MxFp4), Just(DType::I8), Just(DType::I4)];
    prop_oneof![
        1 => float().prop_map(|w| (Kind::Float, w, w)),
        1 => Just((Kind::Compact, DType::BF16, DType::BF16)),
        1 => Just((Kind::Quant, DType::I8, DType::I8)),
        1 => Just((Kind::Quant, DType::I8, DType::I4)),
        1 => Just((Kind::Quant, DType::F8E4M3, DType::F8E4M3)),
        4 => (float(), codes).prop_map(|(x, w)| (Kind::Dequant, x, w)),
    ]
}

pub(crate) fn case() -> impl Strategy<Value = Case> {
    // Rows straddle tiles; outputs are one to three panels; K straddles words, groups and blocks.
    let t = prop_oneof![4 => 1..=14usize, 1 => 30..=40usize];
    // The last straddles the block of bytes that more than two tiles share.
    let k = prop_oneof![
        3 => 1..40usize, 3 => 60..70usize, 3 => 120..140usize, 3 => 250..300usize,
        3 => 500..530usize, 1 => 2040..2060usize,
    ];
    let out = prop_oneof![Just(DType::F32), Just(DType::BF16)];
    let group = prop_oneof![Just(8usize), Just(32), Just(40), Just(128), Just(264), Just(4096)];
    ((types(), out), (t, 1..=150usize, k, group), any::<bool>(), any::<u64>()).prop_map(
        |(((kind, x, w), out), (t, n, k, group), each, seed)| {
            // Integers and floats alike: a group of all of K is one that need not be whole words.
            let group = if seed % 7 == 0 { k } else { group };
            Case { kind, x, w, out, t, n, k, group, each, seed }
        },
    )
}

pub(crate) fn experts() -> impl Strategy<Value = Experts> {
    let spread = prop_oneof![Just(1usize), Just(3), Just(100)];
    (1..=9usize, 1..=4usize, any::<bool>(), spread, proptest::collection::vec(0..100usize, 160))
        .prop_map(|(count, pairs, own, spread, picks)| {
            // Some experts have no rows; with a spread of 1 one of them has all.
            let first = picks[0];
            let ids = picks.iter().map(|p| ((first + p % spread) % count) as i32).collect();
            Experts { count, pairs, own, ids }
        })
}

/// A call of a product, up to its output.
pub(crate) struct Call {
    pub(crate) name: String,
    pub(crate) buffers: Vec<Vec<u8>>,
    pub(crate) scalars: Vec<Scalar>,
    /// Rows of the result.
    pub(crate) rows: usize,
}

/// Everything a product reads.
pub(crate) struct Data {
    x: Elements,
    x_scales: Vec<f32>,
    weight: Elements,
    /// One for each row of the weight and group, in memory as bytes for mxfp4.
    scales: Vec<f32>,
}

impl Case {
    fn scaled(&self) -> bool {
        matches!(self.kind, Kind::Quant | Kind::Dequant)
    }

    fn groups(&self) -> usize {
        if self.scaled() { self.k.div_ceil(self.group) } else { 1 }
    }

    /// Scales that a row of inputs has.
    pub(crate) fn x_groups(&self) -> usize {
        match self.kind {
            Kind::Quant if self.x == DType::F8E4M3 && self.each => self.groups(),
            Kind::Quant => 1,
            _ => 0,
        }
    }

    pub(crate) fn data(&self, x_rows: usize, experts: usize) -> Data {
        let scales = noise(self.seed ^ 0x5ca1e, experts * self.n * self.groups());
        let scale = |v: &f32| match self.w {
            DType::MxFp4 => 2f32.powi((v * 8.0) as i32),
            _ => v.abs() * 0.25 + 0.001,
        };
        let mut weight = Elements::random(self.w, self.seed ^ 0x5eed, experts * self.n * self.k);
        if self.kind == Kind::Compact && !self.seed.is_multiple_of(3) {
            // Some that are far larger or smaller than the others.
            weight.values.iter_mut().step_by(67).for_each(|w| *w *= 2f32.powi(20));
            weight.values.iter_mut().skip(3).step_by(131).for_each(|w| *w *= 2f32.powi(-40));
        }
        Data {
            x: Elements::random(self.x, self.seed, x_rows * self.k),
            x_scales: noise(self.seed ^ 0xaaaa, x_rows * self.x_groups()),
            weight,
            scales: scales.iter().map(scale).collect(),
        }
    }

    /// Scales of weights in panels.
    fn scale_panels(&self, scales: &[f32]) -> Vec<u8> {
        let of_one = |s: &[f32]| match self.w {
            DType::MxFp4 => {
                let exponents: Vec<u8> = s.iter().map(|s| (s.to_bits() >> 23) as u8).collect();
                code_panels(DType::U8, &exponents, self.n, self.groups())
            }
            _ => panels(DType::F32, s, self.n, self.groups()),
        };
        scales.chunks(self.n * self.groups()).flat_map(of_one).collect()
    }

    /// Runs the kernel; rows of the result are dense. `pad` is what strides add to rows.
    pub(crate) fn run(
        &self,
        (set, threads): (InstructionSet, usize),
        data: &Data,
        experts: Option<&Experts>,
        pad: usize,
    ) -> Vec<f32> {
        let out_stride = self.n + pad;
        let Call { name, mut buffers, scalars, rows } = self.call(data, experts, pad, out_stride);
        buffers.push(unwritten(self.out, rows * out_stride));
        run(set, threads, &name, &mut buffers, &scalars);
        gathered(&decode(self.out, buffers.last().unwrap()), self.n, out_stride)
    }

    /// The call with everything but its output.
    pub(crate) fn call(
        &self,
        data: &Data,
        experts: Option<&Experts>,
        pad: usize,
        out_stride: usize,
    ) -> Call {
        let (k, n) = (self.k, self.n);
        let x_stride = k + pad;
        let mut buffers = vec![data.x.rows(k, x_stride)];
        if self.x_groups() > 0 {
            buffers.push(encode(DType::F32, &data.x_scales));
        }
        let mut rows = data.x.values.len() / k;
        let mut scalars = vec![];
        match experts {
            None => scalars.extend(ints([rows, n, k])),
            Some(e) => {
                let tokens = if e.own { rows / e.pairs } else { rows };
                rows = tokens * e.pairs;
                let (order, starts) = reference::expert_groups(&e.ids[..rows], e.count);
                buffers.push(bytes_of_i32(&order));
                buffers.push(bytes_of_i32(&starts));
                scalars.extend(ints([tokens, e.pairs, usize::from(e.own), e.count, n, k]));
            }
        }
        buffers.push(match self.kind {
            Kind::Compact => {
                let (n, k, dense) = (n as u64, k as u64, encode(self.w, &data.weight.values));
                compiler::arrange(&dense, n, k, self.w, Layout::Compact)
            }
            _ => data.weight.panels(n, k),
        });
        if self.scaled() {
            buffers.push(self.scale_panels(&data.scales));
            scalars.extend(ints([self.group]));
        }
        if self.x_groups() > 0 {
            scalars.extend(ints([self.x_groups()]));
        }
        if self.kind == Kind::Static {
            let bias: Vec<i32> = noise(self.seed, n).iter().map(|v| (v * 1e4) as i32).collect();
            buffers.push(bytes_of_i32(&bias));
            buffers.push(encode(DType::F32, &noise(self.seed ^ 0x5ca1e, n)));
        }
        scalars.extend(ints([x_stride, out_stride]));
        Call { name: self.name(experts.is_some()), buffers, scalars, rows }
    }

    fn name(&self, grouped: bool) -> String {
        let prefix = if grouped { "grouped_" } else { "" };
        match self.kind {
            Kind::Float => format!("{prefix}matmul_{}_{}", self.w, self.out),
            Kind::Compact => format!("{prefix}matmul_compact_{}", self.out),
            Kind::Static => format!("static_matmul_i8_{}", self.out),
            Kind::Quant => format!("{prefix}quant_matmul_{}_{}", self.w, self.out),
            Kind::Dequant => format!("{prefix}dequant_matmul_{}_{}_{}", self.w, self.x, self.out),
        }
    }

    /// A row of the result, and bounds of the error of its elements before they are stored.
    fn want(&self, data: &Data, source: usize, expert: usize) -> (Vec<f64>, Vec<f64>) {
        let (k, n) = (self.k, self.n);
        let abs = |v: &[f32]| v.iter().map(|v| v.abs()).collect::<Vec<_>>();
        let x = &data.x.values[source * k..][..k];
        let each = self.x_groups();
        let x_scales = if each == 0 { &[1.0] } else { &data.x_scales[source * each..][..each] };
        let ones = vec![1.0; n];
        let weight = reference::Scaled {
            values: &data.weight.values[expert * n * k..][..n * k],
            scales: match self.scaled() {
                true => &data.scales[expert * n * self.groups()..][..n * self.groups()],
                false => &ones,
            },
            group: if self.scaled() { self.group } else { k },
            k,
        };
        let want = reference::scaled_row(x, x_scales, weight);
        let values = abs(weight.values);
        let sizes = reference::scaled_row(
            &abs(x),
            &abs(x_scales),
            reference::Scaled { values: &values, ..weight },
        );
        // Sums of integers are exact; what is left is rounding them, and the factors and sums of
        // groups.
        let steps = if self.w == DType::I4 && self.x == DType::I8 { 0 } else { k };
        let steps = (steps + 4 * self.groups() + 4) as f64;
        (want, sizes.iter().map(|s| s * steps * 2f64.powi(-24) + 1e-30).collect())
    }

    fn check(
        &self,
        got: &[f32],
        data: &Data,
        rows: impl Iterator<Item = (usize, usize)>,
    ) -> Result<(), TestCaseError> {
        let mut checked = 0;
        for (got, (source, expert)) in got.chunks(self.n).zip(rows) {
            let (want, bounds) = self.want(data, source, expert);
            let error = worst(got, &want, |i, v| bounds[i] + v.abs() * unit(self.out));
            prop_assert!(error <= 1.0, "row {source} of expert {expert}: {error} of the bound");
            checked += 1;
        }
        prop_assert_eq!(checked * self.n, got.len());
        Ok(())
    }

    /// Runs it with weights of `four` or eight bits and compares bits: exact sums of groups, then factors
    /// and sums of `f32` in one order.
    fn check_integers(&self, four: bool, threads: usize) -> Result<(), TestCaseError> {
        let w = if four { DType::I4 } else { DType::I8 };
        let case = Case { kind: Kind::Quant, x: DType::I8, w, out: DType::F32, ..self.clone() };
        let data = case.data(case.t, 1);
        let groups = case.groups();
        let mut want = Vec::new();
        for (x, x_scale) in data.x.values.chunks(case.k).zip(&data.x_scales) {
            let rows = data.weight.values.chunks(case.k).zip(data.scales.chunks(groups));
            want.extend(rows.map(|(w, scales)| {
                let parts = x.chunks(case.group).zip(w.chunks(case.group)).zip(scales);
                let sums = parts.map(|((x, w), scale)| {
                    let sum: i32 = x.iter().zip(w).map(|(&x, &w)| x as i32 * w as i32).sum();
                    sum as f32 * scale
                });
                sums.reduce(|a, b| a + b).unwrap() * x_scale
            }));
        }
        for set in InstructionSet::available() {
            let got = case.run((set, threads), &data, None, 0);
            prop_assert_eq!(bits(&got), bits(&want), "{}", set);
        }
        Ok(())
    }
}

pub(crate) fn bits(v: &[f32]) -> Vec<u32> {
    v.iter().map(|v| v.to_bits()).collect()
}

impl Data {
    /// The row `source` alone.
    fn row(&self, source: usize, case: &Case) -> Elements {
        let (k, x) = (case.k, &self.x);
        let codes = if x.codes.is_empty() { &[] } else { &x.codes[source * k..][..k] };
        Elements {
            dtype: x.dtype,
            codes: codes.to_vec(),
            values: x.values[source * k..][..k].to_vec(),
        }
    }

    /// The same weights for other inputs. What their codes are worth is not known.
    pub(crate) fn with_codes(self, case: &Case, codes: Vec<u8>, x_scales: Vec<f32>) -> Data {
        let values = vec![f32::NAN; codes.len()];
        Data { x: Elements { dtype: case.x, codes, values }, x_scales, ..self }
    }

    /// The same weights for the row `source` alone.
    pub(crate) fn alone(&self, source: usize, case: &Case) -> Data {
        let each = case.x_groups();
        Data {
            x: self.row(source, case),
            x_scales: self.x_scales[source * each..][..each].to_vec(),
            weight: self.weight.clone(),
            scales: self.scales.clone(),
        }
    }
}

proptest! {
    #![proptest_config(cases(160))]

    #[test]
    fn coded_weights_match_the_reference(case in case(), threads in 1..=3usize, pad in 0..9usize) {
        // A product of floats is `matmul`, which has tests of its own.
        let case = match case.kind {
            Kind::Float | Kind::Compact => Case { kind: Kind::Dequant, w: DType::I4, ..case },
            _ => case,
        };
        let data = case.data(case.t, 1);
        for set in InstructionSet::available() {
            let got = case.run((set, threads), &data, None, pad);
            case.check(&got, &data, (0..case.t).map(|t| (t, 0)))?;
        }
    }

    #[test]
    fn grouped_products_match_the_reference(
        case in case(), experts in experts(), threads in 1..=3usize, pad in 0..9usize,
    ) {
        let pairs = case.t * experts.pairs;
        let data = case.data(if experts.own { pairs } else { case.t }, experts.count);
        let source = |p: usize| if experts.own { p } else { p / experts.pairs };
        for set in InstructionSet::available() {
            let got = case.run((set, threads), &data, Some(&experts), pad);
            let rows = (0..pairs).map(|p| (source(p), experts.ids[p] as usize));
            case.check(&got, &data, rows)?;
        }
    }

    /// What is compact is put together exactly.
    #[test]
    fn compact_experts_give_the_bits_of_panels(
        case in case(), experts in experts(), threads in 1..=3usize,
    ) {
        let case = Case { kind: Kind::Compact, x: DType::BF16, w: DType::BF16, ..case };
        let plain = Case { kind: Kind::Float, ..case.clone() };
        let pairs = case.t * experts.pairs;
        let data = case.data(if experts.own { pairs } else { case.t }, experts.count);
        for set in InstructionSet::available() {
            let got = case.run((set, threads), &data, Some(&experts), 0);
            let want = plain.run((set, threads), &data, Some(&experts), 0);
            prop_assert_eq!(bits(&got), bits(&want), "{}", set);
        }
    }

    /// A row's bits depend on nothing but the row and its weight.
    #[test]
    fn a_row_is_the_same_in_every_company(
        case in case(), experts in experts(), threads in 1..=4usize, grouped in any::<bool>(),
    ) {
        let grouped = grouped || matches!(case.kind, Kind::Float | Kind::Compact);
        let experts = if grouped { experts } else {
            Experts { count: 1, pairs: 1, own: false, ids: vec![0; 200] }
        };
        let pairs = case.t * experts.pairs;
        let data = case.data(if experts.own { pairs } else { case.t }, experts.count);
        for set in InstructionSet::available() {
            let company = grouped.then_some(&experts);
            let together = case.run((set, threads), &data, company, 0);
            for (p, together) in together.chunks(case.n).enumerate().step_by(3) {
                let source = if experts.own { p } else { p / experts.pairs };
                let own = Experts { pairs: 1, ids: vec![experts.ids[p]], ..experts.clone() };
                let data = data.alone(source, &case);
                let alone = case.run((set, 1), &data, grouped.then_some(&own), 3);
                prop_assert_eq!(bits(together), bits(&alone), "{}", set);
            }
        }
    }

    /// Integers: exact sums of groups, then factors and sums of `f32` in one order everywhere.
    #[test]
    fn integer_products_have_the_same_bits_everywhere(
        case in case(), four in any::<bool>(), threads in 1..=3usize,
    ) {
        case.check_integers(four, threads)?;
    }

    #[test]
    fn static_products_are_exact(case in case(), threads in 1..=3usize, pad in 0..9usize) {
        let case = Case { kind: Kind::Quant, x: DType::I8, w: DType::I8, group: case.k, ..case };
        let data = case.data(case.t, 1);
        let bias: Vec<i32> = noise(case.seed ^ 1, case.n).iter().map(|v| (v * 1e6) as i32).collect();
        let scale = noise(case.seed ^ 2, case.n);
        let sums = reference::matmul(&data.x.values, &data.weight.values, case.n, case.k);
        let want: Vec<f32> = sums
            .iter()
            .enumerate()
            .map(|(i, &s)| (s as i32 + bias[i % case.n]) as f32 * scale[i % case.n])
            .collect();
        let (x_stride, out_stride) = (case.k + pad, case.n + pad);
        for set in InstructionSet::available() {
            let mut buffers = vec![
                data.x.rows(case.k, x_stride),
                data.weight.panels(case.n, case.k),
                bytes_of_i32(&bias),
                encode(DType::F32, &scale),
                unwritten(case.out, case.t * out_stride),
            ];
            let scalars = ints([case.t, case.n, case.k, x_stride, out_stride]);
            run(set, threads, &format!("static_matmul_i8_{}", case.out), &mut buffers, &scalars);
            let got = gathered(&decode(case.out, &buffers[4]), case.n, out_stride);
            prop_assert_eq!(bits(&got), bits(&rounded(case.out, &want)), "{}", set);
        }
    }
}

#[test]
fn places_of_no_expert_give_zeros_and_no_pair_gives_nothing() {
    let (n, k) = (70, 8);
    let weight = panels(DType::F32, &vec![1.0; 2 * n * k][..n * k], n, k).repeat(2);
    // Places 0 and 5 belong to no expert; place 2 names no pair; pair 4 is in no place.
    let (order, starts) = ([3, 0, 99, 1, -7, 5], [1, 3, 5]);
    for set in InstructionSet::available() {
        for threads in 1..=3 {
            let mut buffers = vec![
                encode(DType::F32, &vec![1.0; 3 * k]),
                bytes_of_i32(&order),
                bytes_of_i32(&starts),
                weight.clone(),
                unwritten(DType::F32, 6 * n),
            ];
            let scalars = ints([3, 2, 0, 2, n, k, k, n]);
            run(set, threads, "grouped_matmul_f32_f32", &mut buffers, &scalars);
            let rows = decode(DType::F32, &buffers[4]);
            let rows: Vec<&[f32]> = rows.chunks(n).collect();
            for (pair, want) in [(0, 8.0), (1, 8.0), (3, 0.0), (5, 0.0)] {
                assert!(rows[pair].iter().all(|&v| v == want), "{set}, pair {pair}");
            }
            for pair in [2, 4] {
                assert!(rows[pair].iter().all(|v| v.is_nan()), "{set}, pair {pair}");
            }
        }
    }
}

#[test]
fn starts_that_are_no_places_do_no_harm() {
    let (n, k) = (64, 4);
    for starts in [[i32::MIN, i32::MAX, 0], [5, 1, 3], [-1, -1, -1], [7, 8, 9]] {
        let mut buffers = vec![
            encode(DType::F32, &vec![1.0; 4 * k]),
            bytes_of_i32(&[0, 1, 2, 3]),
            bytes_of_i32(&starts),
            panels(DType::F32, &vec![1.0; n * k], n, k).repeat(2),
            unwritten(DType::F32, 4 * n),
        ];
        let set = InstructionSet::best();
        run(set, 2, "grouped_matmul_f32_f32", &mut buffers, &ints([4, 1, 0, 2, n, k, k, n]));
        let rows = decode(DType::F32, &buffers[4]);
        assert!(rows.iter().all(|&v| v == 0.0 || v == 4.0), "{starts:?}");
    }
}

/// More rows than two tiles have meet bytes that were made of nibbles, a block of 2,048 elements at a time: groups
/// that end inside blocks, at their ends and behind them.
#[test]
fn many_rows_go_through_long_weights_block_by_block() {
    for (t, k, group) in [(13, 2056, 40), (14, 2100, 264), (18, 4200, 4096), (25, 4104, 4104)] {
        let kind = Kind::Quant;
        let (x, w, out) = (DType::I8, DType::I4, DType::F32);
        let case = Case { kind, x, w, out, t, n: 70, k, group, each: false, seed: 5 };
        for (four, threads) in [(true, 1), (true, 2), (false, 2)] {
            case.check_integers(four, threads).unwrap();
        }
    }
}

/// Rows of an expert by AMX: a tile of them and less, a pair of tiles and several, sums that wait for their next block, and
/// rows that go through the panels in two parts.
#[test]
fn rows_of_an_expert_have_their_bits_in_any_number() {
    for (t, n, k) in
        [(17, 70, 200), (40, 70, 1101), (130, 200, 1028), (40, 70, 17000), (590, 70, 1412)]
    {
        for kind in [Kind::Float, Kind::Compact] {
            check_any_number((kind, DType::BF16, DType::BF16), (t, n, k), k);
        }
    }
}

/// Codes by AMX, as above: groups of one step, of some, of as many as a block has, and of all of `K`.
#[cfg(target_arch = "x86_64")]
#[test]
fn rows_that_meet_codes_have_their_bits_in_any_number() {
    let kinds = [
        (Kind::Dequant, DType::BF16, DType::MxFp4),
        (Kind::Dequant, DType::BF16, DType::I4),
        (Kind::Dequant, DType::BF16, DType::F8E4M3),
        (Kind::Quant, DType::F8E4M3, DType::F8E4M3),
    ];
    for (types, groups) in kinds.into_iter().zip([[32, 8], [128, 4096], [1024, 32], [128, 4096]]) {
        for (t, n, k) in [(17, 70, 200), (50, 70, 1101), (130, 200, 1030), (590, 70, 2412)] {
            for group in groups {
                check_any_number(types, (t, n, k), group);
            }
        }
    }
}

/// Rows of two experts, most of them of the first, are right and have the bits that they have alone.
fn check_any_number(
    (kind, x, w): (Kind, DType, DType),
    (t, n, k): (usize, usize, usize),
    group: usize,
) {
    let case = Case { kind, x, w, out: DType::F32, t, n, k, group, each: true, seed: 7 };
    let ids: Vec<i32> = (0..t).map(|t| i32::from(t % 9 == 0)).collect();
    let experts = Experts { count: 2, pairs: 1, own: false, ids };
    let data = case.data(t, 2);
    for set in InstructionSet::available() {
        let together = case.run((set, 2), &data, Some(&experts), 0);
        case.check(&together, &data, (0..t).map(|t| (t, experts.ids[t] as usize))).unwrap();
        for row in (0..t).step_by(t / 4) {
            let own = Experts { ids: vec![experts.ids[row]], ..experts.clone() };
            let alone = case.run((set, 1), &data.alone(row, &case), Some(&own), 3);
            assert_eq!(bits(&together[row * n..][..n]), bits(&alone), "{set}, row {row} of {t}");
        }
    }
}

/// More rows than a tile of AMX has, one group: a single pair of tiles and several, steps that are not whole, sums that wait for
/// their next block, and rows that go through the panels in two parts.
#[test]
fn rows_of_many_tiles_have_exact_sums() {
    for (t, n, k) in
        [(17, 70, 200), (40, 70, 1100), (130, 70, 1028), (40, 200, 17000), (530, 70, 1412)]
    {
        let (kind, x, w, out) = (Kind::Quant, DType::I8, DType::I4, DType::F32);
        let case = Case { kind, x, w, out, t, n, k, group: k, each: false, seed: 6 };
        for (four, threads) in [(true, 2), (false, 1)] {
            case.check_integers(four, threads).unwrap();
        }
    }
}

#[test]
fn extreme_codes_and_scales() {
    // All of -128, whose square does not fit 16 bits twice; exponents at their ends.
    let (n, k) = (65, 1024);
    let low = Elements { dtype: DType::I8, codes: vec![0x80; n * k], values: vec![-128.0; n * k] };
    let x = Elements { dtype: DType::I8, codes: vec![0x80; k], values: vec![-128.0; k] };
    let fp4 = Elements { dtype: DType::MxFp4, codes: vec![2; 32], values: vec![1.0; 32] };
    for set in InstructionSet::available() {
        let mut buffers = vec![
            x.rows(k, k),
            low.panels(n, k),
            bytes_of_i32(&vec![0; n]),
            encode(DType::F32, &vec![1.0; n]),
            unwritten(DType::F32, n),
        ];
        run(set, 1, "static_matmul_i8_f32", &mut buffers, &ints([1, n, k, k, n]));
        assert_eq!(decode(DType::F32, &buffers[4]), vec![16_777_216.0; n], "{set}");
        // Nibbles are stored with 8 added: the largest with the smallest inputs, for few rows and many.
        let high = Elements { dtype: DType::I4, codes: vec![7; n * k], values: vec![7.0; n * k] };
        for rows in [1, 4, 9] {
            let x = Elements { codes: vec![0x80; rows * k], ..Elements::random(DType::I8, 1, 0) };
            let mut buffers = vec![
                x.rows(k, k),
                encode(DType::F32, &vec![1.0; rows]),
                high.panels(n, k),
                panels(DType::F32, &vec![1.0; n], n, 1),
                unwritten(DType::F32, rows * n),
            ];
            run(set, 1, "quant_matmul_i4_f32", &mut buffers, &ints([rows, n, k, k, 1, k, n]));
            assert_eq!(decode(DType::F32, &buffers[4]), vec![-917_504.0; rows * n], "{set}");
        }
        for (exponent, want) in [(0u8, 2f32.powi(-122)), (1, 2f32.powi(-121)), (254, f32::INFINITY)]
        {
            let mut buffers = vec![
                encode(DType::F32, &[1.0; 32]),
                fp4.panels(1, 32),
                code_panels(DType::U8, &[exponent], 1, 1),
                unwritten(DType::F32, 1),
            ];
            let scalars = ints([1, 1, 32, 32, 32, 1]);
            run(set, 1, "dequant_matmul_mxfp4_f32_f32", &mut buffers, &scalars);
            assert_eq!(decode(DType::F32, &buffers[3]), [want], "{set}, exponent {exponent}");
        }
    }
}

/// Every value of MXFP4 with scales from end to end of what `f32` and bf16 hold of all of them; beyond, none becomes
/// something else.
#[test]
fn mxfp4_values_and_scales_are_exact() {
    let codes: Vec<u8> = (0..16).flat_map(|code| [vec![code], vec![8; 31]].concat()).collect();
    let scaled = |exponent: u8| -> [Vec<u8>; 2] {
        [code_panels(DType::MxFp4, &codes, 16, 32), code_panels(DType::U8, &[exponent; 16], 16, 1)]
    };
    for set in InstructionSet::available() {
        for exponent in [0u8, 1, 2, 3, 100, 126, 127, 128, 200, 251, 252, 253, 254] {
            let [weight, scales] = scaled(exponent);
            let mut buffers =
                vec![encode(DType::BF16, &[1.0; 32]), weight, scales, unwritten(DType::F32, 16)];
            let scalars = ints([1, 16, 32, 32, 32, 16]);
            run(set, 1, "dequant_matmul_mxfp4_bf16_f32", &mut buffers, &scalars);
            for (code, got) in decode(DType::F32, &buffers[3]).into_iter().enumerate() {
                let want = value(DType::MxFp4, code as u8) * 2f32.powi(i32::from(exponent) - 127);
                let says = format!("{set}, code {code} by 2^({exponent} - 127) is {got}");
                match exponent {
                    2..=252 => assert_eq!(got, want, "{says}"),
                    0..2 => assert!(got == 0.0 || got == want || got == 2.0 * want, "{says}"),
                    _ if want == 0.0 => assert_eq!(got, 0.0, "{says}"),
                    _ => assert!(got / want > 0.0 || got.abs() >= 2f32.powi(124), "{says}"),
                }
            }
        }
    }
}

#[test]
fn bad_sizes_are_refused() {
    use codegen_cpu::CpuDevice;
    use hal::{Device, DeviceError, MemoryRequest};
    let mut device: CpuDevice = device(InstructionSet::best(), 1);
    let (refs, arena_bytes) = place([1 << 20; 5]);
    device
        .load(MemoryRequest {
            root: Default::default(),
            weights: no_weights(),
            arena_bytes,
            state_bytes: 0,
        })
        .unwrap();
    device.begin_capture().unwrap();
    let mut why = |kernel: &str, args: usize, scalars: &[Scalar]| match device
        .launch(&hal::Launch::new(kernel, &refs[..args], scalars))
    {
        Err(DeviceError::BadCall { why, .. }) => why,
        other => panic!("{kernel}: {other:?}"),
    };
    let of_words = why("quant_matmul_i8_f32", 5, &ints([1, 64, 64, 6, 1, 64, 64]));
    assert!(of_words.contains("multiple of 4"), "{of_words}");
    let last = why("quant_matmul_i8_f32", 5, &ints([1, 64, 64, 32, 2, 64, 64]));
    assert!(last.contains("`x groups` is 2"), "{last}");
    let own = why("grouped_matmul_f32_f32", 5, &ints([1, 1, 2, 1, 64, 64, 64, 64]));
    assert!(own.contains("`own` is 2"), "{own}");
    let long = why("static_matmul_i8_f32", 5, &ints([1, 1, 1 << 17, 1 << 17, 1]));
    assert!(long.contains("131072 products"), "{long}");
    // Eleven panels of octets and their table are longer than the buffer.
    let short = why("matmul_compact_f32", 3, &ints([1, 11 * 64, 1024, 1024, 11 * 64]));
    assert!(short.contains("`weight`"), "{short}");
}
