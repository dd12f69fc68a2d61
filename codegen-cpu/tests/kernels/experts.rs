//! Routing, grouping and combining experts.

use crate::support::*;
use artifact::Scalar;
use codegen_cpu::{InstructionSet, kernels::reference};
use ir::{RouteScore, RouteSpec};
use proptest::prelude::*;
use tensor::DType;

const F: DType = DType::F32;

fn scalars(rows: usize, experts: usize, stride: usize, spec: &RouteSpec) -> Vec<Scalar> {
    let mut scalars = ints([
        rows,
        experts,
        spec.k as usize,
        usize::from(spec.score == RouteScore::Sigmoid),
        usize::from(spec.renormalize),
        spec.groups as usize,
        spec.top_groups as usize,
        stride,
    ]);
    scalars.push(Scalar::Float(spec.scale));
    scalars
}

/// Ids and weights of rows of logits.
fn routed(
    (set, threads): (InstructionSet, usize),
    logits: &[f32],
    bias: Option<&[f32]>,
    (experts, stride): (usize, usize),
    spec: &RouteSpec,
) -> (Vec<i32>, Vec<f32>) {
    let rows = logits.len() / experts;
    let pairs = rows * spec.k as usize;
    let mut buffers = vec![encode(F, &spread(logits, experts, stride))];
    buffers.extend(bias.map(|b| encode(F, b)));
    buffers.extend([bytes_of_i32(&vec![-7; pairs]), unwritten(F, pairs)]);
    let name = if bias.is_some() { "route_bias" } else { "route" };
    run(set, threads, name, &mut buffers, &scalars(rows, experts, stride, spec));
    let [.., ids, weights] = &buffers[..] else { unreachable!() };
    (to_i32(ids), decode(F, weights))
}

/// A specification and the number of experts it is for.
fn spec() -> impl Strategy<Value = (RouteSpec, usize)> {
    let shape = prop_oneof![
        (1..80u64).prop_map(|experts| (1, 1, experts)),
        (1..5u64, 2..20u64).prop_flat_map(|(groups, each)| {
            (1..=groups).prop_map(move |top| (groups, top, groups * each))
        }),
        Just((8, 4, 256)),
        Just((1, 1, 512)),
    ];
    (shape, any::<bool>(), any::<bool>(), 0.5f32..3.0, any::<u64>()).prop_map(
        |((groups, top_groups, experts), softmax, renormalize, scale, k)| {
            let score = if softmax { RouteScore::Softmax } else { RouteScore::Sigmoid };
            let k = 1 + k % (experts / groups * top_groups).min(32);
            let spec = RouteSpec { score, k, renormalize, groups, top_groups, scale };
            (spec, experts as usize)
        },
    )
}

proptest! {
    #![proptest_config(cases(96))]

    /// Logits and biases are multiples of a 32nd, so that equal keys are common where only the
    /// index decides, and keys that are not equal are well apart.
    #[test]
    fn the_best_experts_are_chosen(
        (spec, experts) in spec(),
        (rows, pad, biased) in (1..6usize, 0..5usize, any::<bool>()),
        threads in 1..=3usize,
        seed in any::<u64>(),
    ) {
        let coarse = |seed, len| -> Vec<f32> {
            noise(seed, len).iter().map(|v| (v * 64.0).round() / 32.0).collect()
        };
        let logits = coarse(seed, rows * experts);
        // Sums of a score and a bias are rounded, so equal ones must come from equal terms.
        let bias = vec![coarse(seed ^ 1, 1)[0]; experts];
        let bias = biased.then_some(&bias[..]);
        let want: Vec<_> =
            logits.chunks(experts).flat_map(|row| reference::route(row, bias, &spec)).collect();
        let want_ids: Vec<i32> = want.iter().map(|&(e, _)| e as i32).collect();
        let want_weights: Vec<f64> = want.iter().map(|&(_, w)| w).collect();
        for set in InstructionSet::available() {
            let (ids, weights) =
                routed((set, threads), &logits, bias, (experts, experts + pad), &spec);
            prop_assert_eq!(&ids, &want_ids, "{}", set);
            // The exponential, two sums and two quotients.
            let error = worst(&weights, &want_weights, |_, w| w.abs() * 2e-6);
            prop_assert!(error <= 1.0, "{set}: {error} of the bound");
        }
    }

    /// A bias of its own for each expert. Keys are random, so that close ones are rare; where two
    /// differ by less than rounding either may be chosen.
    #[test]
    fn a_bias_moves_the_choice_and_not_the_weights(
        (spec, experts) in spec(),
        threads in 1..=3usize,
        seed in any::<u64>(),
    ) {
        let (logits, bias) = (noise(seed, experts), noise(seed ^ 1, experts));
        let want = reference::route(&logits, Some(&bias), &spec);
        let shifted = |by: f32| -> Vec<usize> {
            let moved = |(e, b): (usize, &f32)| b + by * if e % 2 == 0 { 1.0 } else { -1.0 };
            let bias: Vec<f32> = bias.iter().enumerate().map(moved).collect();
            reference::route(&logits, Some(&bias), &spec).iter().map(|&(e, _)| e).collect()
        };
        prop_assume!(shifted(1e-5) == shifted(-1e-5));
        for set in InstructionSet::available() {
            let (ids, weights) =
                routed((set, threads), &logits, Some(&bias), (experts, experts), &spec);
            let want_ids: Vec<i32> = want.iter().map(|&(e, _)| e as i32).collect();
            prop_assert_eq!(&ids, &want_ids, "{}", set);
            let want: Vec<f64> = want.iter().map(|&(_, w)| w).collect();
            let error = worst(&weights, &want, |_, w| w.abs() * 2e-6);
            prop_assert!(error <= 1.0, "{set}: {error} of the bound");
        }
    }

    #[test]
    fn no_logit_leads_outside_the_experts(
        (spec, experts) in spec(),
        values in prop::collection::vec(
            prop_oneof![
                Just(f32::NAN), Just(f32::INFINITY), Just(f32::NEG_INFINITY), Just(f32::MAX),
                Just(-0.0f32), Just(1e-40f32),
            ],
            1..9,
        ),
        biased in any::<bool>(),
    ) {
        let logits: Vec<f32> = values.iter().copied().cycle().take(2 * experts).collect();
        let bias: Vec<f32> = values.iter().rev().copied().cycle().take(experts).collect();
        let bias = biased.then_some(&bias[..]);
        for set in InstructionSet::available() {
            let (ids, _) = routed((set, 2), &logits, bias, (experts, experts), &spec);
            for ids in ids.chunks(spec.k as usize) {
                prop_assert!(ids.windows(2).all(|w| w[0] < w[1]), "{set}: {ids:?}");
                prop_assert!(ids.iter().all(|&e| (0..experts as i32).contains(&e)), "{set}");
            }
        }
    }

    #[test]
    fn pairs_are_sorted_by_expert(
        (rows, k, experts, pad) in (1..40usize, 1..9usize, 1..70usize, 0..3usize),
        threads in 1..=3usize,
        seed in any::<u64>(),
    ) {
        let id = |v: &f32| (v * (experts as f32 / 2.0 + 2.0)) as i32 + experts as i32 / 2;
        let ids: Vec<i32> = noise(seed, rows * k).iter().map(id).collect();
        let (order, starts) = reference::expert_groups(&ids, experts);
        let stride = k + pad;
        let mut strided = vec![-9; rows * stride];
        for (from, to) in ids.chunks(k).zip(strided.chunks_mut(stride)) {
            to[..k].copy_from_slice(from);
        }
        for set in InstructionSet::available() {
            let mut buffers = vec![
                bytes_of_i32(&strided),
                bytes_of_i32(&vec![-1; rows * k]),
                bytes_of_i32(&vec![-1; experts + 1]),
            ];
            run(set, threads, "expert_groups", &mut buffers, &ints([rows, k, experts, stride]));
            prop_assert_eq!(&to_i32(&buffers[1]), &order, "{}", set);
            prop_assert_eq!(&to_i32(&buffers[2]), &starts, "{}", set);
        }
    }

    #[test]
    fn biases_go_to_the_pairs_of_their_expert(
        ids in prop::collection::vec(-2..9i32, 1..12),
        (k, n, pad) in (1..4usize, 1..70usize, 0..3usize),
        threads in 1..=3usize,
        seed in any::<u64>(),
    ) {
        let (rows, experts) = (ids.len().div_ceil(k), 6);
        let ids: Vec<i32> = ids.iter().copied().cycle().take(rows * k).collect();
        let (x, bias) = (noise(seed, rows * k * n), noise(seed ^ 1, experts * n));
        let want = reference::expert_bias(&x, &ids, &bias, n);
        let stride = k * n + pad;
        for set in InstructionSet::available() {
            let mut buffers = vec![
                encode(F, &spread(&x, k * n, stride)),
                bytes_of_i32(&ids),
                encode(F, &bias),
                unwritten(F, rows * stride),
            ];
            let scalars = ints([rows, k, n, experts, stride, k, stride]);
            run(set, threads, "expert_bias_f32", &mut buffers, &scalars);
            let got = gathered(&decode(F, &buffers[3]), k * n, stride);
            prop_assert_eq!(&got, &want, "{}", set);
        }
    }

    #[test]
    fn experts_are_combined(
        (rows, k, n, pad) in (1..5usize, 1..10usize, 1..150usize, 0..3usize),
        out in prop_oneof![Just(DType::F32), Just(DType::BF16)],
        threads in 1..=3usize,
        seed in any::<u64>(),
    ) {
        let (x, weights) = (noise(seed, rows * k * n), noise(seed ^ 1, rows * k));
        let want: Vec<f64> = x
            .chunks(k * n)
            .zip(weights.chunks(k))
            .flat_map(|(x, w)| reference::combine_experts(x, w))
            .collect();
        let stride = k * n + pad;
        for set in InstructionSet::available() {
            let mut buffers = vec![
                encode(F, &spread(&x, k * n, stride)),
                encode(F, &weights),
                unwritten(out, rows * (n + pad)),
            ];
            let scalars = ints([rows, k, n, stride, k, n + pad]);
            run(set, threads, &format!("combine_experts_{out}"), &mut buffers, &scalars);
            let got = gathered(&decode(out, &buffers[2]), n, n + pad);
            let error = worst(&got, &want, |_, v| {
                // Each of `k` products below 1 and each sum is rounded.
                (k * k) as f64 * unit(F) + v.abs() * unit(out)
            });
            prop_assert!(error <= 1.0, "{set}: {error} of the bound");
        }
    }
}
