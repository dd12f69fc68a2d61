//! The way from hidden rows to latent queries and cached latent rows.

use crate::support::*;
use acl::Value::{Bool as Flag, Float, Int, Text};
use half::bf16;

const HEADS: usize = 2;

fn round(v: f64) -> f64 {
    bf16::from_f64(v).to_f64()
}

fn rounded(v: Vec<f64>) -> Vec<f64> {
    v.into_iter().map(round).collect()
}

fn norm(row: &[f64], gamma: &[f64]) -> Vec<f64> {
    let mean = row.iter().map(|v| v * v).sum::<f64>() / row.len() as f64;
    row.iter().zip(gamma).map(|(v, g)| v / (mean + 1e-6).sqrt() * g).collect()
}

fn rotate(x: &[f64], cos: &[f64], sin: &[f64], neighbours: bool) -> Vec<f64> {
    let at = |i: usize| if neighbours { (x[2 * i], x[2 * i + 1]) } else { (x[i], x[i + 32]) };
    let first = (0..32).map(|i| at(i).0 * cos[i] - at(i).1 * sin[i]);
    first.chain((0..32).map(|i| at(i).1 * cos[i + 32] + at(i).0 * sin[i + 32])).collect()
}

/// Numbers from -0.05 to 0.05, so that sums over a thousand stay near one.
fn small(rng: &mut Rng, n: usize) -> Vec<f64> {
    rng.reals(n).iter().map(|v| v / 20.0).collect()
}

#[test]
fn a_prolog_writes_queries_and_caches() {
    let mut rng = Rng::new(51);
    let (tokens, hidden, columns) = (3, 1024, HEADS * 192);
    let x = Tensor::new(BF16, &[tokens, hidden], &rng.reals(tokens * hidden));
    let dq = Tensor::nz(BF16, &[hidden, 1536], false, &small(&mut rng, hidden * 1536));
    let dkv = Tensor::nz(BF16, &[hidden, 576], false, &small(&mut rng, hidden * 576));
    let uk = Tensor::new(BF16, &[HEADS, 128, 512], &small(&mut rng, HEADS * 128 * 512));
    let gamma_q = Tensor::new(BF16, &[1536], &rng.reals(1536));
    let gamma_kv = Tensor::new(BF16, &[512], &rng.reals(512));
    let sin = Tensor::new(BF16, &[tokens, 64], &rng.reals(tokens * 64));
    let cos = Tensor::new(BF16, &[tokens, 64], &rng.reals(tokens * 64));
    let slots = [17.0, 3.0, 31.0];
    let index = Tensor::new(I64, &[tokens], &slots);
    let out = Tensor::out(BF16, &[tokens, HEADS, 512]);
    let rope = Tensor::out(BF16, &[tokens, HEADS, 64]);
    for (codes, fractals) in [(false, false), (true, true)] {
        let kv = Tensor::new(BF16, &[2, 16, 1, 512], &vec![2.0; 2 * 16 * 512]);
        let kr = Tensor::new(BF16, &[2, 16, 1, 64], &vec![2.0; 2 * 16 * 64]);
        let uq = match codes {
            false => Tensor::nz(BF16, &[1536, columns], false, &small(&mut rng, 1536 * columns)),
            true => Tensor::nz(I8, &[1536, columns], false, &rng.codes(1536 * columns, 128)),
        };
        let scales: Vec<f64> = rng.reals(columns).iter().map(|v| v.abs() / 2048.0).collect();
        let scale = Tensor::new(F32, &[1, columns], &scales);
        let mode = if fractals { c"PA_NZ" } else { c"PA_BSND" };
        let mut args = [
            x.value(),
            dq.value(),
            uq.value(),
            uk.value(),
            dkv.value(),
            gamma_q.value(),
            gamma_kv.value(),
            sin.value(),
            cos.value(),
            index.value(),
            kv.value(),
            kr.value(),
            NONE,
            NONE,
            if codes { scale.value() } else { NONE },
            NONE,
            NONE,
            NONE,
            NONE,
            Float(1e-6),
            Float(1e-6),
            Text(mode.as_ptr()),
            out.value(),
            rope.value(),
            NONE,
        ];
        run("MlaPrologV2WeightNz", &args);
        let xs = x.values();
        let (w1, w2, w3, w4) = (dq.values(), uq.values(), uk.values(), dkv.values());
        let s = scale.values();
        let (got, got_rope) = (out.values(), rope.values());
        let (kvs, krs) = (kv.values(), kr.values());
        for t in 0..tokens {
            let row = &xs[t * hidden..][..hidden];
            let (sin, cos) = (&sin.values()[t * 64..][..64], &cos.values()[t * 64..][..64]);
            let compressed = rounded(product(row, &w1, (1, hidden, 1536)));
            let compressed = rounded(norm(&compressed, &gamma_q.values()));
            let heads = match codes {
                false => product(&compressed, &w2, (1, 1536, columns)),
                true => {
                    let step = compressed.iter().fold(0.0f64, |m, v| m.max(v.abs())) / 127.0;
                    let q: Vec<f64> =
                        compressed.iter().map(|v| (v / step).round_ties_even()).collect();
                    let sums = product(&q, &w2, (1, 1536, columns));
                    (0..columns).map(|i| sums[i] * s[i] * step).collect()
                }
            };
            let heads = rounded(heads);
            for h in 0..HEADS {
                let head = &heads[h * 192..][..192];
                let latent = product(&head[..128], &w3[h * 128 * 512..], (1, 128, 512));
                near(&got[(t * HEADS + h) * 512..][..512], &latent, 2e-2);
                let rotated = rotate(&head[128..], cos, sin, true);
                near(&got_rope[(t * HEADS + h) * 64..][..64], &rotated, 2e-2);
            }
            let latent = rounded(product(row, &w4, (1, hidden, 576)));
            let slot = slots[t] as usize;
            let place = |c: usize, width: usize| match fractals {
                false => slot * width + c,
                true => slot / 16 * 16 * width + (c / 16 * 16 + slot % 16) * 16 + c % 16,
            };
            let stored: Vec<f64> = (0..512).map(|c| kvs[place(c, 512)]).collect();
            near(&stored, &norm(&latent[..512], &gamma_kv.values()), 2e-2);
            let stored: Vec<f64> = (0..64).map(|c| krs[place(c, 64)]).collect();
            near(&stored, &rotate(&latent[512..], cos, sin, true), 2e-2);
        }
        let untouched = kvs.iter().filter(|&&v| v == 2.0).count();
        assert!(untouched >= 29 * 512, "only the rows of three slots are written");
        args[0] = uk.value();
        refused("MlaPrologV2WeightNz", &args, 161002, "token_x: [2, 128, 512] breaks the rule");
        args[0] = x.value();
        args[1] = x.value();
        refused("MlaPrologV2WeightNz", &args, 161002, "weight_dq: has to be FRACTAL_NZ");
    }
}

#[test]
fn preprocessing_does_the_same_with_static_codes() {
    let mut rng = Rng::new(52);
    let (tokens, hidden, columns) = (2, 48, HEADS * 192);
    let x = Tensor::new(BF16, &[tokens, hidden], &rng.reals(tokens * hidden));
    let vector = |rng: &mut Rng, n: usize| Tensor::new(BF16, &[n], &rng.reals(n));
    let (gamma0, beta0) = (vector(&mut rng, hidden), vector(&mut rng, hidden));
    let (gamma1, beta1) = (vector(&mut rng, 1536), vector(&mut rng, 1536));
    let gamma2 = vector(&mut rng, 512);
    let step = Tensor::new(BF16, &[1], &[0.03125]);
    let offset = Tensor::new(I8, &[1], &[5.0]);
    let down = Tensor::nz(I8, &[2112, hidden], false, &rng.codes(2112 * hidden, 128));
    let up = Tensor::nz(I8, &[columns, 1536], false, &rng.codes(columns * 1536, 128));
    let scale = |rng: &mut Rng, n: usize, by: f64| {
        let values: Vec<f64> = rng.reals(n).iter().map(|v| (v.abs() + 0.1) / by).collect();
        Tensor::new(F32, &[n], &values)
    };
    let (scale0, scale1) = (scale(&mut rng, 2112, 40000.0), scale(&mut rng, columns, 200000.0));
    let bias0 = Tensor::new(I32, &[2112], &rng.codes(2112, 500));
    let bias1 = Tensor::new(I32, &[columns], &rng.codes(columns, 500));
    let (cos, sin) = (
        Tensor::new(BF16, &[tokens, 64], &rng.reals(tokens * 64)),
        Tensor::new(BF16, &[tokens, 64], &rng.reals(tokens * 64)),
    );
    let uk = Tensor::new(BF16, &[HEADS, 128, 512], &small(&mut rng, HEADS * 128 * 512));
    let slots = Tensor::new(I32, &[tokens], &[18.0, 1.0]);
    for mode in 0..4usize {
        let element = if mode == 2 { I8 } else { BF16 };
        let cache = match mode {
            0 => Tensor::out(BF16, &[2, 16, 1, 576]),
            1 => Tensor::out(BF16, &[2, 16, 1, 512]),
            2 => Tensor::out(I8, &[2, 16, 16, 32]),
            _ => Tensor::out(BF16, &[2, 32, 16, 16]),
        };
        let rope_cache = match mode {
            0 | 1 => Tensor::out(BF16, &[2, 16, 1, 64]),
            _ => Tensor::out(BF16, &[2, 4, 16, 16]),
        };
        let out = Tensor::out(element, &[tokens, HEADS, if mode == 0 { 576 } else { 512 }]);
        let rope = Tensor::out(BF16, &[tokens, HEADS, 64]);
        let ckv_scale = Tensor::new(BF16, &[1], &[0.0625]);
        let nope_scale = Tensor::new(BF16, &[HEADS], &[0.125, 0.25]);
        let mut args = vec![x.value(), gamma0.value(), beta0.value(), step.value()];
        args.extend([offset.value(), down.value(), scale0.value(), bias0.value()]);
        args.extend([gamma1.value(), beta1.value(), step.value(), offset.value()]);
        args.extend([up.value(), scale1.value(), bias1.value(), gamma2.value()]);
        args.extend([cos.value(), sin.value(), uk.value(), cache.value()]);
        args.extend([rope_cache.value(), slots.value()]);
        match mode {
            2 => args.extend([ckv_scale.value(), nope_scale.value()]),
            _ => args.extend([NONE, NONE]),
        }
        args.extend([Int(1536), Int(64), Int(64), Float(1e-6), Int(2), Int(2)]);
        args.extend([Flag(true), Flag(true), Flag(true), Int(mode as i64), Int(0), Flag(true)]);
        args.extend([Int(1), out.value(), cache.value(), rope.value(), rope_cache.value()]);
        run("MlaPreprocess", &args);

        let code = |row: &[f64], gamma: &Tensor, beta: &Tensor| -> Vec<f64> {
            let normed = norm(row, &gamma.values()).into_iter().zip(beta.values());
            normed
                .map(|(v, b)| ((v + b) / 0.03125 + 5.0).round_ties_even().clamp(-128.0, 127.0))
                .collect()
        };
        let multiply = |codes: &[f64], w: &Tensor, bias: &Tensor, scale: &Tensor| -> Vec<f64> {
            let (w, b, s, k) = (w.values(), bias.values(), scale.values(), codes.len());
            let sum = |n: usize| codes.iter().zip(&w[n * k..]).map(|(c, w)| c * w).sum::<f64>();
            (0..s.len()).map(|n| round((sum(n) + b[n]) * s[n])).collect()
        };
        let (got, got_rope) = (out.values(), rope.values());
        let (cached, cached_rope) = (cache.values(), rope_cache.values());
        for (t, slot) in [(0usize, 18usize), (1, 1)] {
            let row = &x.values()[t * hidden..][..hidden];
            let projected = multiply(&code(row, &gamma0, &beta0), &down, &bias0, &scale0);
            let queries = multiply(&code(&projected[576..], &gamma1, &beta1), &up, &bias1, &scale1);
            let (sin, cos) = (&sin.values()[t * 64..][..64], &cos.values()[t * 64..][..64]);
            let width = out.dims[2];
            for h in 0..HEADS {
                let head = &queries[h * 192..][..192];
                let weights = &uk.values()[h * 128 * 512..];
                let mut latent = product(&head[..128], weights, (1, 128, 512));
                let own = &got[(t * HEADS + h) * width..][..width];
                let rotated = rotate(&head[128..], cos, sin, false);
                let own_rope = match mode {
                    0 => own[512..].to_vec(),
                    _ => got_rope[(t * HEADS + h) * 64..][..64].to_vec(),
                };
                near(&own_rope, &rotated, 3e-2);
                if mode == 2 {
                    let scale = [0.125, 0.25][h];
                    latent.iter_mut().for_each(|v| *v = (*v / scale).clamp(-128.0, 127.0));
                    let off = own.iter().zip(&latent).map(|(a, b)| (a - b).abs());
                    assert!(off.fold(0.0, f64::max) < 1.6);
                } else {
                    near(&own[..512], &latent, 3e-2);
                }
            }
            let latent = norm(&projected[..512], &gamma2.values());
            let rotated = rotate(&projected[512..576], cos, sin, false);
            let place = |c: usize, width: usize, c0: usize| match mode {
                0 | 1 => slot * width + c,
                _ => slot / 16 * 16 * width + (c / c0 * 16 + slot % 16) * c0 + c % c0,
            };
            if mode == 2 {
                let stored = (0..512).map(|c| cached[place(c, 512, 32)]);
                let off = stored.zip(&latent).map(|(a, b)| (a - b / 0.0625).abs());
                assert!(off.fold(0.0, f64::max) < 1.1);
            } else {
                let width = if mode == 0 { 576 } else { 512 };
                let stored: Vec<f64> = (0..512).map(|c| cached[place(c, width, 16)]).collect();
                near(&stored, &latent, 2e-2);
            }
            let stored: Vec<f64> = (0..64)
                .map(|c| match mode {
                    0 => cached[slot * 576 + 512 + c],
                    _ => cached_rope[place(c, 64, 16)],
                })
                .collect();
            near(&stored, &rotated, 2e-2);
        }
        let mut wrong = args.clone();
        wrong[34] = Int(1);
        refused("MlaPreprocess", &wrong, 161002, "quant_mode: 1");
    }
}
