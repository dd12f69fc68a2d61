//! Latent attention and the indexer, over paged memories `[blocks, block, C]`.

use super::{
    Failure, Tensor,
    arith::dot,
    attention::{Pages, add_scaled, softmax},
    experts::largest,
};
use std::collections::HashMap;

pub(super) fn paged_write(state: &mut Tensor, x: &Tensor, slots: &Tensor) -> Result<(), Failure> {
    let (places, columns) = (state.dims()[0] * state.dims()[1], state.columns());
    for (slot, row) in slots.indices(places, "slot")?.into_iter().zip(x.rows()) {
        state.write(slot * columns, row);
    }
    Ok(())
}

/// Row `place` of `block`.
fn row_at(state: &Tensor, (block, place): (usize, usize)) -> &[f64] {
    let columns = state.columns();
    &state.data()[(block * state.dims()[1] + place) * columns..][..columns]
}

/// The last operand, if there is a seventh, is the places that each row reads.
pub(super) fn attention(args: &[&Tensor], scale: f64) -> Result<Vec<f64>, Failure> {
    let (q_latent, q_rope, latent, rope) = (args[0], args[1], args[2], args[3]);
    let pages = Pages::new(args[4], args[5], latent.dims()[0], latent.dims()[1])?;
    let places = visible(&pages, args.get(6).copied())?;

    let (heads, columns) = (q_latent.dims()[1], q_latent.columns());
    let mut data = vec![0.0; q_latent.data().len()];
    let queries = q_latent.rows().zip(q_rope.rows()).enumerate();
    for ((row, (q, q_rotated)), mixed) in queries.zip(data.chunks_exact_mut(columns.max(1))) {
        let t = row / heads;
        let score = |&place: &usize| {
            let at = pages.at(t, place);
            scale * (dot(q, row_at(latent, at)) + dot(q_rotated, row_at(rope, at)))
        };
        let scores: Vec<f64> = places[t].iter().map(score).collect();
        for (&place, weight) in places[t].iter().zip(softmax(&scores, None)) {
            add_scaled(mixed, row_at(latent, pages.at(t, place)), weight);
        }
    }
    Ok(data)
}

/// Of one head at one place: the key before its rotated part, and the value.
type Expanded = (Vec<f64>, Vec<f64>);

/// The last operand, if there is a ninth, is the places that each row reads.
pub(super) fn expanded_attention(args: &[&Tensor], scale: f64) -> Result<Vec<f64>, Failure> {
    let &[q_nope, q_rope, keys, values, latent, rope, table, positions, ..] = args else {
        unreachable!("the typing rule checks the number of operands")
    };
    let pages = Pages::new(table, positions, latent.dims()[0], latent.dims()[1])?;
    let places = visible(&pages, args.get(8).copied())?;

    let (heads, width) = (q_nope.dims()[1], values.dims()[1]);
    let mut known: HashMap<(usize, (usize, usize)), Expanded> = HashMap::new();
    let mut data = vec![0.0; q_nope.dims()[0] * heads * width];
    let queries = q_nope.rows().zip(q_rope.rows()).enumerate();
    for ((row, (q, q_rotated)), mixed) in queries.zip(data.chunks_exact_mut(width.max(1))) {
        let (t, h) = (row / heads, row % heads);
        let at: Vec<(usize, usize)> = places[t].iter().map(|&p| pages.at(t, p)).collect();
        for &at in &at {
            let expand = |w: &Tensor| -> Vec<f64> {
                let of_head = w.rows().skip(h * w.dims()[1]).take(w.dims()[1]);
                of_head.map(|w| dot(w, row_at(latent, at))).collect()
            };
            known.entry((h, at)).or_insert_with(|| (expand(keys), expand(values)));
        }
        let score = |at: &(usize, usize)| {
            let (key, _) = &known[&(h, *at)];
            scale * (dot(q, key) + dot(q_rotated, row_at(rope, *at)))
        };
        let scores: Vec<f64> = at.iter().map(score).collect();
        for (&at, weight) in at.iter().zip(softmax(&scores, None)) {
            add_scaled(mixed, &known[&(h, at)].1, weight);
        }
    }
    Ok(data)
}

/// The places that each row reads: those of `selected`, or all up to its position.
fn visible(pages: &Pages, selected: Option<&Tensor>) -> Result<Vec<Vec<usize>>, Failure> {
    let of_row = |(t, &position): (usize, &usize)| match selected {
        None => Ok((0..=position).collect()),
        Some(selected) => selected_places(selected, t, position),
    };
    pages.positions.iter().enumerate().map(of_row).collect()
}

/// The places that row `t` of `selected` names, none of them past `position`.
fn selected_places(selected: &Tensor, t: usize, position: usize) -> Result<Vec<usize>, Failure> {
    let row = &selected.data()[t * selected.columns()..][..selected.columns()];
    let named = row.iter().copied().take_while(|&place| place >= 0.0);
    let within = |place: f64| match place <= position as f64 {
        true => Ok(place as usize),
        false => Err(format!("place {place} is selected at position {position}")),
    };
    named.map(within).collect()
}

pub(super) fn select_keys(args: &[&Tensor], keys: usize, scale: f64) -> Result<Vec<f64>, Failure> {
    let (q, weights, state) = (args[0], args[1], args[2]);
    let pages = Pages::new(args[3], args[4], state.dims()[0], state.dims()[1])?;
    let queries: Vec<&[f64]> = q.rows().collect();
    let mut data = Vec::with_capacity(q.dims()[0] * keys);
    for (t, weights) in weights.rows().enumerate() {
        let heads = &queries[t * q.dims()[1]..][..weights.len()];
        let score = |place: usize| {
            let key = row_at(state, pages.at(t, place));
            let relu = |(q, w): (&&[f64], &f64)| w * (scale * dot(q, key)).max(0.0);
            heads.iter().zip(weights).map(relu).sum()
        };
        let scores: Vec<f64> = (0..=pages.positions[t]).map(score).collect();
        let places = largest(&scores, keys).into_iter().map(|p| p as f64);
        data.extend(places.chain(std::iter::repeat(-1.0)).take(keys));
    }
    Ok(data)
}
