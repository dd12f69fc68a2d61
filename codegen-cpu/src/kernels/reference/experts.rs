//! The definitions of routing, grouping and combining experts.

use ir::{RouteScore, RouteSpec};

/// The chosen experts of one row of logits without NaN, ascending, and their weights.
pub fn route(logits: &[f32], bias: Option<&[f32]>, spec: &RouteSpec) -> Vec<(usize, f64)> {
    let scores = scores(logits, spec.score);
    let bias = |e: usize| bias.map_or(0.0, |b| f64::from(b[e]));
    let keys: Vec<f64> = scores.iter().enumerate().map(|(e, s)| s + bias(e)).collect();

    let per_group = logits.len() / spec.groups as usize;
    let of_group = |keys: &[f64]| {
        let best = largest(keys, 2.min(keys.len()));
        best.iter().map(|&i| keys[i]).sum()
    };
    let of_groups: Vec<f64> = keys.chunks(per_group).map(of_group).collect();
    let groups = largest(&of_groups, spec.top_groups as usize);
    let eligible = |e: usize| groups.contains(&(e / per_group));
    let keys: Vec<f64> = keys
        .iter()
        .enumerate()
        .map(|(e, &key)| if eligible(e) { key } else { f64::NEG_INFINITY })
        .collect();

    let mut chosen = largest(&keys, spec.k as usize);
    chosen.sort_unstable();
    let sum: f64 = chosen.iter().map(|&e| scores[e]).sum();
    let divisor = match (spec.renormalize, spec.score) {
        (false, _) => 1.0,
        (true, RouteScore::Softmax) => sum,
        (true, RouteScore::Sigmoid) => sum + 1e-20,
    };
    chosen.into_iter().map(|e| (e, scores[e] / divisor * f64::from(spec.scale))).collect()
}

fn scores(logits: &[f32], score: RouteScore) -> Vec<f64> {
    let logits = logits.iter().map(|&x| f64::from(x));
    match score {
        RouteScore::Sigmoid => logits.map(super::sigmoid).collect(),
        RouteScore::Softmax => {
            let most = logits.clone().fold(f64::NEG_INFINITY, f64::max);
            let total: f64 = logits.clone().map(|x| (x - most).exp()).sum();
            logits.map(|x| (x - most).exp() / total).collect()
        }
    }
}

/// Indices of the `k` largest keys, largest first, the smaller index among equals.
fn largest(keys: &[f64], k: usize) -> Vec<usize> {
    let mut order: Vec<usize> = (0..keys.len()).collect();
    order.sort_by(|&a, &b| keys[b].total_cmp(&keys[a]));
    order.truncate(k);
    order
}

/// Pairs by expert and where each expert's begin. An id outside `0..experts` counts as the
/// nearest one.
pub fn expert_groups(ids: &[i32], experts: usize) -> (Vec<i32>, Vec<i32>) {
    let (mut order, mut starts) = (Vec::new(), vec![0]);
    for e in 0..experts {
        let pairs = ids.iter().enumerate().filter(|&(_, &id)| nearest(id, experts) == e);
        order.extend(pairs.map(|(pair, _)| pair as i32));
        starts.push(order.len() as i32);
    }
    (order, starts)
}

fn nearest(id: i32, experts: usize) -> usize {
    id.clamp(0, experts as i32 - 1) as usize
}

/// Row `ids[p]` of `bias [experts,n]` on every pair `p` of `x`.
pub fn expert_bias(x: &[f32], ids: &[i32], bias: &[f32], n: usize) -> Vec<f32> {
    let experts = bias.len() / n;
    let row = |id: i32| &bias[nearest(id, experts) * n..][..n];
    let pairs = x.chunks(n).zip(ids);
    pairs.flat_map(|(x, &id)| x.iter().zip(row(id)).map(|(x, b)| x + b)).collect()
}

/// The sum over `j` of `weights[j]` times row `j` of `x`, for one token.
pub fn combine_experts(x: &[f32], weights: &[f32]) -> Vec<f64> {
    let n = x.len() / weights.len();
    let of = |i| x.chunks(n).zip(weights).map(|(x, &w)| super::product(x[i], w)).sum();
    (0..n).map(of).collect()
}
