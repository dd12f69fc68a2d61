//! The way of rows to their experts.

use super::arithmetic::quantise;
use super::{Call, Implementation, Outcome, Prepared};
use crate::objects::{Element, Fault, Tensor};
use Element::{BF16, F16, F32, I8, I32, I64};

pub(super) const OPERATORS: &[(&str, Implementation)] = &[("MoeInitRoutingV3", init_v3)];

const FLOATS: &[Element] = &[F32, F16, BF16];

/// How rows are coded while they are dispatched.
#[derive(Clone, Copy, PartialEq)]
enum Codes {
    None,
    Static,
    Dynamic,
}

/// A dispatch of rows to experts.
struct Dispatch<'a> {
    x: &'a Tensor,
    ids: &'a Tensor,
    experts: usize,
    /// The experts that are here.
    range: (usize, usize),
    /// Rows that are written at most.
    rows: usize,
    codes: Codes,
    scale: Option<&'a Tensor>,
    offset: Option<&'a Tensor>,
    out: &'a Tensor,
    out_scale: Option<&'a Tensor>,
}

/// Where pairs of token and choice go.
struct Placement {
    /// Pairs in the order of their experts, those of experts elsewhere left out.
    order: Vec<usize>,
    /// For every pair its row, or none.
    row: Vec<Option<usize>>,
    /// Pairs of each expert.
    counts: Vec<i64>,
}

impl Dispatch<'_> {
    fn check(&self) -> Result<(usize, usize, usize), Fault> {
        self.x.of(&[F32, F16, BF16, I8])?.nd()?.ranked(2, 2)?;
        self.ids.of(&[I32])?.nd()?.ranked(2, 2)?;
        let (tokens, width, k) = (self.x.dims[0], self.x.dims[1], self.ids.dims[1]);
        self.ids.shaped(&[tokens, k])?;
        let coded = self.codes != Codes::None;
        self.out.of(&[if coded { I8 } else { self.x.element }])?;
        if coded {
            self.x.of(FLOATS)?;
        }
        self.out.shaped(&[self.rows, width])?;
        if self.codes == Codes::Static {
            for (t, name) in [(self.scale, "scale"), (self.offset, "offset")] {
                let missing = || Fault::invalid(format!("{name}: static codes need it"));
                t.ok_or_else(missing)?.of(&[F32])?.shaped(&[1])?;
            }
        }
        if let (Codes::Dynamic, Some(scale)) = (self.codes, self.scale) {
            let (lo, hi) = self.range;
            let fits = scale.dims == [hi - lo, width] || scale.dims == [1, width];
            scale.of(&[F32])?.rule(fits, "one row for every expert, or one")?;
        }
        // Scales are made, or go with their rows.
        let scaled = self.codes == Codes::Dynamic || !coded && self.scale.is_some();
        if let Some(out) = self.out_scale.filter(|_| scaled) {
            let rows = self.out.rows();
            out.of(&[F32])?
                .rule(out.dims == [rows] || out.dims == [rows, 1], "one for every row")?;
        }
        Ok((tokens, width, k))
    }

    fn place(&self) -> Result<Placement, Fault> {
        let ids = self.ids.integers();
        if let Some(bad) = ids.iter().find(|&&e| e < 0 || e >= self.experts as i64) {
            let message = format!("expert_idx: {bad} of {} experts", self.experts);
            return Err(Fault::exception(message));
        }
        let here = |pair: &usize| (self.range.0..self.range.1).contains(&(ids[*pair] as usize));
        let mut order: Vec<usize> = (0..ids.len()).filter(here).collect();
        order.sort_by_key(|&pair| ids[pair]);
        let mut counts = vec![0; self.experts];
        let mut row = vec![None; ids.len()];
        for (i, &pair) in order.iter().enumerate() {
            let expert = ids[pair] as usize;
            row[pair] = Some(i).filter(|&i| i < self.rows);
            counts[expert] += 1;
        }
        Ok(Placement { order, row, counts })
    }

    /// Copies the rows of tokens to their places, coded where that is asked for.
    fn copy(&self, placement: &Placement, width: usize, k: usize) {
        let ids = self.ids.integers();
        let rows = self.x.reals();
        let scale = self.scale.map(Tensor::reals);
        let offset = self.offset.map_or(0.0, Tensor::only);
        for (pair, place) in placement.row.iter().enumerate() {
            let Some(place) = *place else { continue };
            let row = &rows[pair / k * width..][..width];
            let target = self.out.at(place);
            match self.codes {
                Codes::None => {
                    target.put(row);
                    if let (Some(out), Some(scale)) = (self.out_scale, &scale) {
                        out.at(place).put(&[scale[pair / k]]);
                    }
                }
                Codes::Static => {
                    let s = scale.as_ref().map_or(1.0, |s| s[0]);
                    target.put(&row.iter().map(|v| v * s + offset).collect::<Vec<_>>());
                }
                Codes::Dynamic => {
                    let smoothed: Vec<f32> = match &scale {
                        None => row.to_vec(),
                        Some(s) => {
                            let expert = ids[pair] as usize - self.range.0;
                            let at = if s.len() == width { 0 } else { expert * width };
                            row.iter().zip(&s[at..]).map(|(v, s)| v * s).collect()
                        }
                    };
                    let (codes, scale) = quantise(&smoothed, 127.0);
                    target.put(&codes);
                    if let Some(out) = self.out_scale {
                        out.at(place).put(&[scale]);
                    }
                }
            }
        }
    }
}

/// Ends of runs whose lengths are `counts`.
fn running(counts: &[i64]) -> Vec<i64> {
    let mut sum = 0;
    let add = |c: &i64| {
        sum += c;
        sum
    };
    counts.iter().map(add).collect()
}

/// Rows of a dispatch that is not padded: all pairs, or as many as `active_num` says.
fn active_rows(call: &Call, pairs: usize) -> Result<usize, Fault> {
    let active = call.int_in("active_num", 0..=i64::MAX)? as usize;
    Ok(if active == 0 { pairs } else { pairs.min(active) })
}

/// What the sort of `pairs` pairs takes.
fn sort_workspace(pairs: usize) -> u64 {
    (pairs * 2 * size_of::<i32>()).next_multiple_of(512) as u64
}

fn init_v3(call: &Call) -> Outcome<'_> {
    let (x, ids) = (call.tensor("x")?, call.tensor("expert_idx")?);
    let pairs = ids.len();
    let experts = call.int_in("expert_num", 1..=10240)? as usize;
    call.int_in("drop_pad_mode", 0..=0)?;
    let codes = match call.int_in("quant_mode", -1..=1)? {
        -1 => Codes::None,
        0 => Codes::Static,
        _ => Codes::Dynamic,
    };
    let range = match call.ints("active_expert_range")? {
        None | Some([]) => (0, experts),
        Some(&[lo, hi]) if 0 <= lo && lo < hi && hi <= experts as i64 => (lo as usize, hi as usize),
        Some(other) => {
            return Err(Fault::invalid(format!(
                "active_expert_range: {other:?} is no range of {experts} experts"
            )));
        }
    };
    let dispatch = Dispatch {
        x,
        ids,
        experts,
        range,
        rows: active_rows(call, pairs)?,
        codes,
        scale: call.optional("scale")?,
        offset: call.optional("offset")?,
        out: call.tensor("expanded_x_out")?,
        out_scale: call.optional("expanded_scale_out")?,
    };
    let (tokens, width, k) = dispatch.check()?;
    if codes == Codes::Dynamic && dispatch.out_scale.is_none() {
        return Err(Fault::invalid("expanded_scale_out: dynamic codes need it"));
    }
    if codes == Codes::None {
        call.unsupported(&["offset"])?;
        if let Some(scale) = dispatch.scale {
            scale.of(&[F32])?.shaped(&[tokens])?;
        }
    }
    let row_ids = call.tensor("expanded_row_idx_out")?;
    row_ids.of(&[I32])?.shaped(&[pairs])?;
    let scattered = call.int_in("row_idx_type", 0..=1)? == 1;
    let kind = call.int_in("expert_tokens_num_type", 0..=2)?;
    let counts_out = call.tensor("expert_tokens_count_or_cumsum_out")?;
    let counted = call.flag("expert_tokens_num_flag")?;
    if counted {
        counts_out.of(&[I64])?;
        match kind {
            2 => counts_out.shaped(&[experts, 2])?,
            _ => counts_out.shaped(&[range.1 - range.0])?,
        };
        counts_out.rule(kind != 2 || experts <= 5120, "pairs are of at most 5120 experts")?;
    }
    Ok(Prepared::new(sort_workspace(pairs), move || {
        let placement = dispatch.place()?;
        dispatch.copy(&placement, width, k);
        if scattered {
            let order: Vec<i64> = placement.order.iter().map(|&p| p as i64).collect();
            row_ids.range(0, order.len()).put_integers(&order);
        } else {
            let rows = placement.row.iter().map(|r| r.map_or(-1, |r| r as i64));
            row_ids.put_integers(&rows.collect::<Vec<_>>());
        }
        if counted {
            let here = &placement.counts[range.0..range.1];
            match kind {
                0 => counts_out.put_integers(&running(here)),
                1 => counts_out.put_integers(here),
                _ => {
                    let busy = (range.0..range.1).filter(|&e| placement.counts[e] > 0);
                    let mut pairs: Vec<i64> =
                        busy.flat_map(|e| [e as i64, placement.counts[e]]).collect();
                    pairs.resize(2 * experts, 0);
                    counts_out.put_integers(&pairs);
                }
            }
        }
        Ok(())
    }))
}
