//! Log-probabilities of the model's own distribution.

use super::{
    rank::{Ranked, best},
    scan::{largest, sum_exp},
};
use crate::TokenLogprob;

/// The log-probability of `token` and of the best `top_n` tokens, from unmodified logits. `scratch`
/// is room for candidates.
pub(crate) fn of_token(
    logits: &[f32],
    token: u32,
    top_n: usize,
    scratch: &mut Vec<Ranked>,
) -> TokenLogprob {
    let max = largest(logits);
    let log_sum = f64::from(max) + sum_exp(logits, max, 1.0).ln();
    let logprob = |logit: f32| (f64::from(logit) - log_sum) as f32;
    best(logits, top_n.min(logits.len()), scratch);
    scratch.sort_unstable_by(Ranked::order);
    TokenLogprob {
        token,
        logprob: Some(logprob(logits[token as usize])),
        top: scratch.iter().map(|r| (r.token, logprob(r.logit))).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn agrees_with_the_definition(
            logits in prop::collection::vec(-30.0f32..30.0, 1..80),
            pick in any::<prop::sample::Index>(),
            top_n in 0usize..10,
        ) {
            let token = pick.index(logits.len());
            let sum: f64 = logits.iter().map(|&x| f64::from(x).exp()).sum();
            let exact = |t: usize| f64::from(logits[t]) - sum.ln();
            let got = of_token(&logits, token as u32, top_n, &mut Vec::new());
            prop_assert!((f64::from(got.logprob.unwrap()) - exact(token)).abs() < 1e-5);

            let mut order: Vec<usize> = (0..logits.len()).collect();
            order.sort_by(|&a, &b| logits[b].total_cmp(&logits[a]).then(a.cmp(&b)));
            order.truncate(top_n);
            let tokens: Vec<usize> = got.top.iter().map(|&(t, _)| t as usize).collect();
            prop_assert_eq!(tokens, order);
            for (t, logprob) in got.top {
                prop_assert!((f64::from(logprob) - exact(t as usize)).abs() < 1e-5);
            }
        }
    }
}
