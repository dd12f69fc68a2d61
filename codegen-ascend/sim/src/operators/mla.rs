//! The way from hidden rows to latent queries and cached latent rows in one call.
//!
//! Sizes are fixed by the documentation: queries pass through 1536 columns, latent rows have 512 and
//! their rotated part 64, heads 128 before and 512 after absorption.

use super::arithmetic::{Right, product, quantise, rms_norm, round_to, whole_product};
use super::{Call, Implementation, Outcome, Prepared};
use crate::objects::{Element, Fault, Tensor};
use Element::{BF16, F16, F32, I8, I32, I64};

pub(super) const OPERATORS: &[(&str, Implementation)] =
    &[("MlaPrologV2WeightNz", prolog), ("MlaPreprocess", preprocess)];

/// Columns that queries pass through.
const QUERY: usize = 1536;
/// Columns of a latent row.
const LATENT: usize = 512;
/// Columns of a head before absorption.
const HEAD: usize = 128;
/// Columns that are rotated.
const ROPE: usize = 64;
/// Widths of hidden rows.
const HIDDEN: [usize; 9] = [1024, 2048, 3072, 4096, 5120, 6144, 7168, 7680, 8192];

/// Where the rotated halves of a row come from.
#[derive(Clone, Copy, PartialEq)]
enum Pairs {
    /// Neighbours: the result has the first of each pair in its first half. That the result is in
    /// halves is unsure; scores do not depend on it, since queries and keys agree.
    Neighbours,
    /// Halves.
    Halves,
}

fn rotate(x: &[f32], cos: &[f32], sin: &[f32], pairs: Pairs) -> Vec<f32> {
    let half = x.len() / 2;
    let at = |i: usize| match pairs {
        Pairs::Neighbours => (x[2 * i], x[2 * i + 1]),
        Pairs::Halves => (x[i], x[i + half]),
    };
    let first = (0..half).map(|i| at(i).0 * cos[i] - at(i).1 * sin[i]);
    let second = (0..half).map(|i| at(i).1 * cos[i + half] + at(i).0 * sin[i + half]);
    first.chain(second).collect()
}

/// How rows of a cache lie.
#[derive(Clone, Copy, PartialEq)]
enum Order {
    Rows,
    Fractals,
}

/// Writes `row` at `slot` of a cache of blocks.
fn store(cache: &Tensor, order: Order, slot: i64, row: &[f32]) -> Result<(), Fault> {
    let width = row.len();
    let (blocks, size) = match order {
        Order::Rows => (cache.dims[0], cache.dims[1]),
        Order::Fractals => (cache.dims[0], cache.len() / cache.dims[0].max(1) / width),
    };
    let Some(slot) = usize::try_from(slot).ok().filter(|&s| s < blocks * size) else {
        return Err(Fault::exception(format!("{}: slot {slot} of {}", cache.name, blocks * size)));
    };
    let c0 = cache.element.fractal_width();
    match order {
        Order::Rows => cache.reshaped(&[blocks * size, width]).at(slot).put(row),
        Order::Fractals => {
            let block = cache.reshaped(&[blocks, width / c0, size, c0]).at(slot / size);
            block.narrow(1, slot % size, 1).put(row);
        }
    }
    Ok(())
}

/// `[T,N,512]` and `[T,N,64]` from heads `[T,N,192]`.
struct Absorption<'a> {
    weight: &'a Tensor,
    heads: usize,
    element: Element,
    pairs: Pairs,
}

impl Absorption<'_> {
    fn heads(
        &self,
        row: &[f32],
        cos: &[f32],
        sin: &[f32],
        weights: &[Right<f32>],
    ) -> (Vec<Vec<f32>>, Vec<Vec<f32>>) {
        let round = |v: Vec<f32>| v.iter().map(|&v| round_to(self.element, v)).collect();
        row.chunks(HEAD + ROPE)
            .zip(weights)
            .map(|(head, w)| {
                let latent = product(&head[..HEAD], w, HEAD, LATENT);
                (round(latent), round(rotate(&head[HEAD..], cos, sin, self.pairs)))
            })
            .unzip()
    }

    fn weights(&self) -> Vec<Right<f32>> {
        (0..self.heads).map(|h| self.weight.at(h).right_reals()).collect()
    }
}

fn rounded(element: Element, values: Vec<f32>) -> Vec<f32> {
    values.into_iter().map(|v| round_to(element, v)).collect()
}

/// A product whose right side is in fractals, of floats or of codes with scales.
struct Projection<'a> {
    weight: &'a Tensor,
    scale: Option<&'a Tensor>,
}

impl Projection<'_> {
    fn check(&self, k: usize, n: usize, allowed: &[Element]) -> Result<(), Fault> {
        self.weight.of(allowed)?.nz()?.shaped(&[k, n])?;
        match (self.weight.element, self.scale) {
            (I8, Some(scale)) => scale.of(&[F32])?.shaped(&[1, n])?,
            (I8, None) => {
                let name = self.weight.name;
                return Err(Fault::invalid(format!("{name}: codes need dequant scales")));
            }
            (_, None) => self.weight,
            (_, Some(scale)) => {
                return Err(Fault::invalid(format!("{}: the weight has no codes", scale.name)));
            }
        };
        Ok(())
    }

    /// The product of rows with their scales, where they are codes.
    fn apply(&self, rows: &[f32], row_scales: Option<&[f32]>) -> Vec<f32> {
        let (k, n) = (self.weight.dims[0], self.weight.dims[1]);
        let (Some(row_scales), Some(scale)) = (row_scales, self.scale) else {
            return rounded(BF16, product(rows, &self.weight.right_reals(), k, n));
        };
        let codes: Vec<i32> = rows.iter().map(|&v| v as i32).collect();
        let scale = scale.reals();
        let sums = whole_product(&codes, &self.weight.right_words(), k, n).into_iter().enumerate();
        let real = |(i, v): (usize, i32)| v as f32 * scale[i % n] * row_scales[i / n];
        rounded(BF16, sums.map(real).collect())
    }
}

fn prolog(call: &Call) -> Outcome<'_> {
    let x = call.tensor("token_x")?;
    let dq = Projection {
        weight: call.tensor("weight_dq")?,
        scale: call.optional("dequant_scale_w_dq")?,
    };
    let uq = Projection {
        weight: call.tensor("weight_uq_qr")?,
        scale: call.optional("dequant_scale_w_uq_qr")?,
    };
    let dkv = Projection {
        weight: call.tensor("weight_dkv_kr")?,
        scale: call.optional("dequant_scale_w_dkv_kr")?,
    };
    let uk = call.tensor("weight_uk")?;
    x.of(&[BF16, I8])?.nd()?.contiguous()?.ranked(2, 3)?;
    let (tokens, hidden) = (x.rows(), x.width());
    x.rule(HIDDEN.contains(&hidden), "the width is one of 1024 to 8192 that are documented")?;
    uk.of(&[BF16])?.nd()?.ranked(3, 3)?.shaped(&[uk.dims[0], HEAD, LATENT])?;
    let heads = uk.dims[0];
    uk.rule(heads.is_power_of_two() && heads <= 128, "a power of two of at most 128 heads")?;
    let coded = x.element == I8;
    let own: &[Element] = if coded { &[I8] } else { &[BF16] };
    dq.check(hidden, QUERY, own)?;
    dkv.check(hidden, LATENT + ROPE, own)?;
    let inner: &[Element] = if coded { &[I8] } else { &[BF16, I8] };
    uq.check(QUERY, heads * (HEAD + ROPE), inner)?;
    let x_scale = call.optional("dequant_scale_x")?;
    match (coded, x_scale) {
        (true, Some(scale)) => {
            scale.of(&[F32])?.shaped(&[tokens, 1])?;
        }
        (true, None) => return Err(Fault::invalid("dequant_scale_x: codes need it")),
        (false, Some(_)) => return Err(Fault::invalid("dequant_scale_x: token_x has no codes")),
        (false, None) => {}
    }
    call.unsupported(&["quant_scale_ckv", "quant_scale_ckr", "dequant_scale_q_nope_out"])?;
    let smooth = call.optional("smooth_scales_cq")?;
    if let Some(smooth) = smooth {
        smooth.of(&[F32])?.shaped(&[1, QUERY])?;
    }
    let (gamma_q, gamma_kv) = (call.tensor("rmsnorm_gamma_cq")?, call.tensor("rmsnorm_gamma_ckv")?);
    gamma_q.of(&[BF16])?.shaped(&[QUERY])?;
    gamma_kv.of(&[BF16])?.shaped(&[LATENT])?;
    let (sin, cos) = (call.tensor("rope_sin")?, call.tensor("rope_cos")?);
    let outer = &x.dims[..x.dims.len() - 1];
    for t in [sin, cos] {
        t.of(&[BF16])?.contiguous()?.shaped(&[outer, &[ROPE]].concat())?;
    }
    let index = call.tensor("cache_index")?;
    index.of(&[I64])?.shaped(outer)?;
    let order = match call.text("cache_mode")? {
        None | Some("PA_BSND") => Order::Rows,
        Some("PA_NZ") => Order::Fractals,
        Some(other) => {
            return Err(Fault::invalid(format!("cache_mode: {other} is not PA_BSND or PA_NZ")));
        }
    };
    let (kv, kr) = (call.tensor("kv_cache_ref")?, call.tensor("kr_cache_ref")?);
    for (cache, width) in [(kv, LATENT), (kr, ROPE)] {
        cache.of(&[BF16])?.nd()?.contiguous()?.ranked(4, 4)?;
        cache.shaped(&[kv.dims[0], kv.dims[1], 1, width])?;
        cache.rule(matches!(kv.dims[1], 16 | 128), "blocks of 16 or 128 rows")?;
    }
    let (out, rope_out) = (call.tensor("query_out")?, call.tensor("query_rope_out")?);
    for (t, width) in [(out, LATENT), (rope_out, ROPE)] {
        t.of(&[BF16])?.contiguous()?.shaped(&[outer, &[heads, width]].concat())?;
    }
    let epsilon_q = call.float("rmsnorm_epsilon_cq")? as f32;
    let epsilon_kv = call.float("rmsnorm_epsilon_ckv")? as f32;
    let workspace = (tokens * (QUERY + heads * (HEAD + ROPE)) * 4) as u64;
    Ok(Prepared::new(workspace, move || {
        let rows = x.reals();
        let x_scales = x_scale.map(Tensor::reals);
        let compressed = dq.apply(&rows, x_scales.as_deref());
        let gamma = gamma_q.reals();
        let smooth = smooth.map(Tensor::reals);
        let (mut queries, mut query_scales) = (Vec::new(), Vec::new());
        for row in compressed.chunks(QUERY) {
            let mut normed = rounded(BF16, rms_norm(row, &gamma, epsilon_q).0);
            if uq.weight.element == I8 {
                if let Some(smooth) = &smooth {
                    normed.iter_mut().zip(smooth).for_each(|(v, s)| *v *= s);
                }
                let (codes, scale) = quantise(&normed, 127.0);
                queries.extend(codes);
                query_scales.push(scale);
            } else {
                queries.extend(normed);
            }
        }
        let scales = (uq.weight.element == I8).then_some(&query_scales[..]);
        let queries = uq.apply(&queries, scales);
        let latent = dkv.apply(&rows, x_scales.as_deref());
        let (cos, sin) = (cos.reals(), sin.reals());
        let absorption = Absorption { weight: uk, heads, element: BF16, pairs: Pairs::Neighbours };
        let weights = absorption.weights();
        let gamma = gamma_kv.reals();
        let index = index.integers();
        let out = out.reshaped(&[tokens, heads, LATENT]);
        let rope_out = rope_out.reshaped(&[tokens, heads, ROPE]);
        for t in 0..tokens {
            let (cos, sin) = (&cos[t * ROPE..][..ROPE], &sin[t * ROPE..][..ROPE]);
            let row = &queries[t * heads * (HEAD + ROPE)..][..heads * (HEAD + ROPE)];
            let (absorbed, rotated) = absorption.heads(row, cos, sin, &weights);
            out.at(t).put(&absorbed.concat());
            rope_out.at(t).put(&rotated.concat());
            let row = &latent[t * (LATENT + ROPE)..][..LATENT + ROPE];
            store(kv, order, index[t], &rms_norm(&row[..LATENT], &gamma, epsilon_kv).0)?;
            store(kr, order, index[t], &rotate(&row[LATENT..], cos, sin, Pairs::Neighbours))?;
        }
        Ok(())
    }))
}

/// A norm whose result is moved, scaled and rounded to codes.
struct NormCodes<'a> {
    gamma: &'a Tensor,
    beta: Option<&'a Tensor>,
    scale: &'a Tensor,
    offset: &'a Tensor,
    norm: bool,
}

impl<'a> NormCodes<'a> {
    fn check(call: &'a Call, at: usize, width: usize, element: Element) -> Result<Self, Fault> {
        let this = Self {
            gamma: call.tensor(["gamma0", "gamma1"][at])?,
            beta: call.optional(["beta0", "beta1"][at])?,
            scale: call.tensor(["quant_scale0", "quant_scale1"][at])?,
            offset: call.tensor(["quant_offset0", "quant_offset1"][at])?,
            norm: at == 1 || call.flag("do_rms_norm")?,
        };
        this.gamma.of(&[element])?.shaped(&[width])?;
        if let Some(beta) = this.beta {
            beta.of(&[element])?.shaped(&[width])?;
        }
        this.scale.of(&[element])?.shaped(&[1])?;
        this.offset.of(&[I8])?.shaped(&[1])?;
        Ok(this)
    }

    fn codes(&self, rows: &[f32], epsilon: f32) -> Vec<i32> {
        let (gamma, beta) = (self.gamma.reals(), self.beta.map(Tensor::reals));
        let (scale, offset) = (self.scale.only(), self.offset.only());
        let mut out = Vec::with_capacity(rows.len());
        for row in rows.chunks(gamma.len()) {
            let normed = match self.norm {
                true => rms_norm(row, &gamma, epsilon).0,
                false => row.to_vec(),
            };
            out.extend(normed.iter().enumerate().map(|(i, v)| {
                let moved = v + beta.as_ref().map_or(0.0, |b| b[i]);
                (moved / scale + offset).round_ties_even().clamp(-128.0, 127.0) as i32
            }));
        }
        out
    }
}

/// A product of codes with a weight `[N,K]` in fractals, a bias and a scale for each column.
struct CodeProjection<'a> {
    weight: &'a Tensor,
    scale: &'a Tensor,
    bias: &'a Tensor,
    element: Element,
}

impl<'a> CodeProjection<'a> {
    fn check(
        call: &'a Call,
        at: usize,
        (n, k): (usize, usize),
        element: Element,
    ) -> Result<Self, Fault> {
        let this = Self {
            weight: call.tensor(["wdqkv", "wuq"][at])?,
            scale: call.tensor(["de_scale0", "de_scale1"][at])?,
            bias: call.tensor(["bias0", "bias1"][at])?,
            element,
        };
        this.weight.of(&[I8])?.nz()?.shaped(&[n, k])?;
        this.scale.of(&[if element == BF16 { F32 } else { I64 }])?.shaped(&[n])?;
        this.bias.of(&[I32])?.shaped(&[n])?;
        Ok(this)
    }

    fn apply(&self, codes: &[i32]) -> Vec<f32> {
        let (n, k) = (self.weight.dims[0], self.weight.dims[1]);
        let scales: Vec<f32> = match self.scale.element {
            I64 => self.scale.integers().iter().map(|&s| f32::from_bits(s as u32)).collect(),
            _ => self.scale.reals(),
        };
        let bias = self.bias.words();
        let sums = whole_product(codes, &self.weight.transposed().right_words(), k, n);
        let real = |(i, v): (usize, i32)| (v + bias[i % n]) as f32 * scales[i % n];
        rounded(self.element, sums.into_iter().enumerate().map(real).collect())
    }
}

fn preprocess(call: &Call) -> Outcome<'_> {
    let x = call.tensor("input")?;
    x.of(&[BF16, F16])?.nd()?.contiguous()?.ranked(2, 2)?;
    let element = x.element;
    let (tokens, hidden) = (x.dims[0], x.dims[1]);
    for (name, value) in [
        ("wdq_dim", QUERY as i64),
        ("q_rope_dim", ROPE as i64),
        ("k_rope_dim", ROPE as i64),
        ("wdkv_split_count", 1),
        ("quant_mode", 0),
    ] {
        call.int_in(name, value..=value)?;
    }
    for name in ["transpose_wdq", "transpose_wuq", "transpose_wuk"] {
        if !call.flag(name)? {
            return Err(Fault::invalid(format!("{name}: has to be true")));
        }
    }
    let down = CodeProjection::check(call, 0, (LATENT + ROPE + QUERY, hidden), element)?;
    let uk = call.tensor("wuk")?;
    uk.of(&[element])?.ranked(3, 3)?.shaped(&[uk.dims[0], HEAD, LATENT])?;
    let heads = uk.dims[0];
    let up = CodeProjection::check(call, 1, (heads * (HEAD + ROPE), QUERY), element)?;
    let first = NormCodes::check(call, 0, hidden, element)?;
    let second = NormCodes::check(call, 1, QUERY, element)?;
    let gamma = call.tensor("gamma2")?.of(&[element])?.shaped(&[LATENT])?;
    let (cos, sin) = (call.tensor("cos")?, call.tensor("sin")?);
    for t in [cos, sin] {
        t.of(&[element])?.shaped(&[tokens, ROPE])?;
    }
    let slots = call.tensor("slot_mapping")?.of(&[I32])?.shaped(&[tokens])?;
    let mode = call.int_in("cache_mode", 0..=3)?;
    let (cache, rope_cache) = (call.tensor("kv_cache_out")?, call.tensor("kr_cache_out")?);
    let (out, rope_out) = (call.tensor("q_out")?, call.tensor("q_rope_out")?);
    let (ckv_scale, nope_scale) = (call.optional("ctkv_scale")?, call.optional("q_nope_scale")?);
    let order = if mode < 2 { Order::Rows } else { Order::Fractals };
    let codes = if mode == 2 { I8 } else { element };
    let c0 = codes.fractal_width();
    cache.of(&[codes])?.contiguous()?.ranked(4, 4)?;
    let blocks = cache.dims[0];
    match mode {
        0 => cache.shaped(&[blocks, cache.dims[1], 1, LATENT + ROPE])?,
        1 => cache.shaped(&[blocks, cache.dims[1], 1, LATENT])?,
        _ => cache.shaped(&[blocks, LATENT / c0, cache.dims[2], c0])?,
    };
    if mode == 0 {
        out.of(&[element])?.contiguous()?.shaped(&[tokens, heads, LATENT + ROPE])?;
    } else {
        rope_cache.of(&[element])?.contiguous()?;
        match mode {
            1 => rope_cache.shaped(&[blocks, cache.dims[1], 1, ROPE])?,
            _ => rope_cache.shaped(&[blocks, ROPE / 16, cache.dims[2], 16])?,
        };
        out.of(&[codes])?.contiguous()?.shaped(&[tokens, heads, LATENT])?;
        rope_out.of(&[element])?.contiguous()?.shaped(&[tokens, heads, ROPE])?;
    }
    if mode == 2 {
        let missing = |name: &str| Fault::invalid(format!("{name}: cache_mode 2 needs it"));
        let scale = ckv_scale.ok_or_else(|| missing("ctkv_scale"))?;
        scale.of(&[element])?.shaped(&[1])?;
        let scale = nope_scale.ok_or_else(|| missing("q_nope_scale"))?;
        scale.of(&[element])?.shaped(&[heads])?;
    }
    let epsilon = call.float("epsilon")? as f32;
    let workspace = (tokens * (hidden + LATENT + ROPE + QUERY) * 4) as u64;
    Ok(Prepared::new(workspace, move || {
        let projected = down.apply(&first.codes(&x.reals(), epsilon));
        let width = LATENT + ROPE + QUERY;
        let queries: Vec<f32> =
            projected.chunks(width).flat_map(|row| &row[LATENT + ROPE..]).copied().collect();
        let queries = up.apply(&second.codes(&queries, epsilon));
        let absorption = Absorption { weight: uk, heads, element, pairs: Pairs::Halves };
        let weights = absorption.weights();
        let (cos, sin, gamma) = (cos.reals(), sin.reals(), gamma.reals());
        let slots = slots.integers();
        let ckv_scale = ckv_scale.map_or(1.0, Tensor::only);
        let nope_scale = nope_scale.map(Tensor::reals).unwrap_or_default();
        for t in 0..tokens {
            let (cos, sin) = (&cos[t * ROPE..][..ROPE], &sin[t * ROPE..][..ROPE]);
            let row = &queries[t * heads * (HEAD + ROPE)..][..heads * (HEAD + ROPE)];
            let (mut absorbed, rotated) = absorption.heads(row, cos, sin, &weights);
            let kv = &projected[t * width..][..LATENT + ROPE];
            let mut latent = rms_norm(&kv[..LATENT], &gamma, epsilon).0;
            let key_rope = rotate(&kv[LATENT..], cos, sin, Pairs::Halves);
            if mode == 0 {
                let whole = absorbed.iter().zip(&rotated).flat_map(|(a, r)| a.iter().chain(r));
                out.at(t).put(&whole.copied().collect::<Vec<_>>());
                latent.extend(key_rope);
                store(cache, order, slots[t], &latent)?;
                continue;
            }
            if mode == 2 {
                latent.iter_mut().for_each(|v| *v /= ckv_scale);
                for (head, scale) in absorbed.iter_mut().zip(&nope_scale) {
                    head.iter_mut().for_each(|v| *v /= scale);
                }
            }
            out.at(t).put(&absorbed.concat());
            rope_out.at(t).put(&rotated.concat());
            store(cache, order, slots[t], &latent)?;
            store(rope_cache, order, slots[t], &key_rope)?;
        }
        Ok(())
    }))
}
