//! Mixture of experts.

use super::{
    Failure, Tensor,
    arith::{dot, sigmoid},
    attention::{add_scaled, softmax},
    quant::dot_of_groups,
};
use crate::attr::{RouteScore, RouteSpec};

/// Indices of the `k` largest of `scores`, ascending; the smaller index among equals.
pub(super) fn largest(scores: &[f64], k: usize) -> Vec<usize> {
    let mut order: Vec<usize> = (0..scores.len()).collect();
    // Adding zero makes one of the two zeros, which are equal.
    order.sort_by(|&a, &b| (scores[b] + 0.0).total_cmp(&(scores[a] + 0.0)));
    order.truncate(k);
    order.sort_unstable();
    order
}

/// Ids and weights.
pub(super) fn route(logits: &Tensor, bias: Option<&Tensor>, spec: &RouteSpec) -> Vec<Vec<f64>> {
    let (mut ids, mut weights) = (Vec::new(), Vec::new());
    for row in logits.rows() {
        let scores = match spec.score {
            RouteScore::Softmax => softmax(row, None),
            RouteScore::Sigmoid => row.iter().copied().map(sigmoid).collect(),
        };
        let bias = |e: usize| bias.map_or(0.0, |b| b.data()[e]);
        let choice: Vec<f64> = scores.iter().enumerate().map(|(e, s)| s + bias(e)).collect();
        let chosen = choose(&choice, spec);
        let total: f64 = chosen.iter().map(|&e| scores[e]).sum();
        let divisor = if spec.renormalize { total } else { 1.0 };
        weights.extend(chosen.iter().map(|&e| scores[e] / divisor * f64::from(spec.scale)));
        ids.extend(chosen.into_iter().map(|e| e as f64));
    }
    vec![ids, weights]
}

fn choose(choice: &[f64], spec: &RouteSpec) -> Vec<usize> {
    if spec.groups == 1 {
        return largest(choice, spec.k as usize);
    }
    let size = choice.len() / spec.groups as usize;
    let best_two = |group: &[f64]| largest(group, 2).into_iter().map(|e| group[e]).sum();
    let groups: Vec<f64> = choice.chunks_exact(size).map(best_two).collect();
    let mut eligible = vec![f64::NEG_INFINITY; choice.len()];
    for group in largest(&groups, spec.top_groups as usize) {
        let experts = group * size..(group + 1) * size;
        eligible[experts.clone()].copy_from_slice(&choice[experts]);
    }
    largest(&eligible, spec.k as usize)
}

/// Order and starts.
pub(super) fn expert_groups(ids: &Tensor, experts: usize) -> Result<Vec<Vec<f64>>, Failure> {
    let mut pairs = vec![Vec::new(); experts];
    for (pair, expert) in ids.indices(experts, "expert")?.into_iter().enumerate() {
        pairs[expert].push(pair as f64);
    }
    let mut starts = vec![0.0];
    for of_expert in &pairs {
        starts.push(starts[starts.len() - 1] + of_expert.len() as f64);
    }
    Ok(vec![pairs.concat(), starts])
}

/// The expert of every pair, from the operands `order` and `starts`.
fn experts_of(order: &Tensor, starts: &Tensor) -> Result<Vec<usize>, Failure> {
    let pairs = order.data().len();
    let (order, starts) = (order.indices(pairs, "pair")?, starts.indices(pairs + 1, "start")?);
    let mut experts = vec![None; pairs];
    for (expert, ends) in starts.windows(2).enumerate() {
        for &pair in order.get(ends[0]..ends[1]).unwrap_or_default() {
            experts[pair] = Some(expert);
        }
    }
    let each: Option<Vec<usize>> = experts.into_iter().collect();
    each.ok_or_else(|| "order and starts do not name each pair".to_owned())
}

/// For every pair, the row of `x` that it reads.
fn row_of_pair(x: &Tensor, k: usize) -> impl Fn(usize) -> usize {
    let shared = x.dims().len() == 2;
    move |pair| if shared { pair / k } else { pair }
}

pub(super) fn grouped_matmul(args: &[&Tensor]) -> Result<Vec<f64>, Failure> {
    let (x, order, starts, weight) = (args[0], args[1], args[2], args[3]);
    let rows: Vec<&[f64]> = x.rows().collect();
    let row = row_of_pair(x, order.columns());
    let weights: Vec<&[f64]> = weight.rows().collect();
    let outputs = weight.dims()[1];
    let product = |(pair, expert): (usize, usize)| {
        let (x, of_expert) = (rows[row(pair)], &weights[expert * outputs..][..outputs]);
        of_expert.iter().map(move |w| dot(x, w))
    };
    Ok(experts_of(order, starts)?.into_iter().enumerate().flat_map(product).collect())
}

pub(super) fn grouped_quant_matmul(args: &[&Tensor], group: usize) -> Result<Vec<f64>, Failure> {
    let (x, x_scale, order, starts, weight) = (args[0], args[1], args[2], args[3], args[4]);
    let rows: Vec<_> = x.rows().zip(x_scale.rows()).collect();
    let row = row_of_pair(x, order.columns());
    let weights: Vec<_> = weight.rows().zip(args[5].rows()).collect();
    let outputs = weight.dims()[1];
    let product = |(pair, expert): (usize, usize)| {
        let (x, of_expert) = (rows[row(pair)], &weights[expert * outputs..][..outputs]);
        of_expert.iter().map(move |&w| dot_of_groups(x, w, group))
    };
    Ok(experts_of(order, starts)?.into_iter().enumerate().flat_map(product).collect())
}

pub(super) fn grouped_mixed_matmul(args: &[&Tensor]) -> Result<Vec<f64>, Failure> {
    let &[x, x_scale, order, starts, weight, scale, assist] = args else {
        return Err("an operand is missing".to_owned());
    };
    let rows: Vec<_> = x.rows().zip(x_scale.rows()).collect();
    let row = row_of_pair(x, order.columns());
    let (inputs, parts) = (weight.dims()[1], scale.dims()[1]);
    let (weights, scales): (Vec<&[f64]>, Vec<&[f64]>) =
        (weight.rows().collect(), scale.rows().collect());
    let assists: Vec<&[f64]> = assist.rows().collect();
    let product = |(pair, expert): (usize, usize)| {
        let (x, x_scale) = rows[row(pair)];
        let (weights, scales) = (&weights[expert * inputs..], &scales[expert * parts..]);
        let part = move |g: usize, n: usize| {
            let deep = inputs / parts;
            let inside = g * deep..(g + 1) * deep;
            let sum: f64 = inside.map(|k| (x[k] - 8.0) * weights[k][n]).sum();
            sum * f64::from(f32::from_bits(scales[g][n] as u32))
        };
        let assist = assists[expert].iter().enumerate();
        assist
            .map(move |(n, more)| ((0..parts).map(|g| part(g, n)).sum::<f64>() + more) * x_scale[0])
    };
    // Rows borrow `weights` and `scales`.
    let pairs = experts_of(order, starts)?;
    Ok(pairs.into_iter().enumerate().flat_map(|p| product(p).collect::<Vec<_>>()).collect())
}

pub(super) fn expert_bias(x: &Tensor, ids: &Tensor, bias: &Tensor) -> Result<Vec<f64>, Failure> {
    let biases: Vec<&[f64]> = bias.rows().collect();
    let ids = ids.indices(bias.dims()[0], "expert")?;
    let sum = |(row, id): (&[f64], usize)| {
        row.iter().zip(biases[id]).map(|(x, b)| x + b).collect::<Vec<_>>()
    };
    Ok(x.rows().zip(ids).flat_map(sum).collect())
}

pub(super) fn combine_experts(x: &Tensor, weights: &Tensor) -> Vec<f64> {
    let (k, columns) = (x.dims()[1], x.columns());
    let mut data = vec![0.0; x.dims()[0] * columns];
    for (pair, (row, &weight)) in x.rows().zip(weights.data()).enumerate() {
        add_scaled(&mut data[pair / k * columns..][..columns], row, weight);
    }
    data
}
