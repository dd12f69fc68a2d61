//! Paged memories, latent attention, the indexer.

use super::{assert_close, f32s, failure, i32s, run, tensor, wave};
use precast_ir::{DType, interp::Tensor};

#[test]
fn rows_are_written_at_their_slots() {
    let outs = run(
        "func @f(%s: state bf16[2,2,2], %x: f32[2,2], %slots: i32[2]) {
  %n = paged_write %s, %x, %slots : state bf16[2,2,2]
  return %n
}
",
        &[
            tensor(DType::BF16, &[2, 2, 2], &[9.; 8]),
            f32s(&[2, 2], &[1., 1. + 1. / 1024., 3., 4.]),
            i32s(&[3., 0.]),
        ],
    );
    assert_eq!(outs[0].data(), [3., 4., 9., 9., 9., 9., 1., 1.], "rounded to the state's type");
}

fn latent(sparse: bool, more: &[Tensor]) -> Vec<Tensor> {
    let (param, op, arg) = match sparse {
        true => (", %sel: i32[4,3]", "sparse_latent_attention", ", %sel"),
        false => ("", "latent_attention", ""),
    };
    let source = format!(
        "func @f(%q: f32[4,2,3], %r: f32[4,2,2], %c: state f32[4,2,3], %k: state f32[4,2,2], \
         %t: i32[2,2], %p: i32[4]{param}) {{
  %y = {op} %q, %r, %c, %k, %t, %p{arg} {{scale = 0.5, out = f32}} : f32[4,2,3]
  return %y
}}
"
    );
    let mut inputs = vec![
        wave(&[4, 2, 3], 0.7),
        wave(&[4, 2, 2], 1.3),
        wave(&[4, 2, 3], 2.1),
        wave(&[4, 2, 2], 0.9),
        tensor(DType::I32, &[2, 2], &[3., 1., 0., 2.]),
        i32s(&POSITIONS.map(|p| p as f64)),
    ];
    inputs.extend(more.iter().cloned());
    run(&source, &inputs)
}

const POSITIONS: [usize; 4] = [0, 2, 1, 3];

/// Attention of row `t` over `places`, by plain loops.
fn expected(t: usize, places: &[usize]) -> Vec<f64> {
    let (q, r) = (wave(&[4, 2, 3], 0.7), wave(&[4, 2, 2], 1.3));
    let (c, k) = (wave(&[4, 2, 3], 2.1), wave(&[4, 2, 2], 0.9));
    let blocks = [[3, 1], [0, 2]][t / 2];
    let mut mixed = Vec::new();
    for h in 0..2 {
        let (mut sum, mut total) = ([0.0; 3], 0.0);
        for place in places {
            let row = blocks[place / 2] * 2 + place % 2;
            let dot = |q: &Tensor, row: &[f64]| -> f64 {
                let query = &q.data()[(t * 2 + h) * row.len()..];
                query.iter().zip(row).map(|(q, k)| q * k).sum()
            };
            let value = &c.data()[row * 3..][..3];
            let score = dot(&q, value) + dot(&r, &k.data()[row * 2..][..2]);
            let weight = (0.5 * score).exp();
            total += weight;
            for (sum, value) in sum.iter_mut().zip(value) {
                *sum += weight * value;
            }
        }
        mixed.extend(sum.map(|s| s / total));
    }
    mixed
}

#[test]
fn all_heads_read_one_latent() {
    let outs = latent(false, &[]);
    let all = POSITIONS.map(|p| (0..=p).collect::<Vec<_>>());
    let rows: Vec<f64> = (0..4).flat_map(|t| expected(t, &all[t])).collect();
    assert_close(outs[0].data(), &rows);
}

#[test]
fn selected_places_are_read_alone() {
    let selected = [0., -1., -1., 0., 2., -1., 1., -1., -1., 0., 1., 3.];
    let outs = latent(true, &[tensor(DType::I32, &[4, 3], &selected)]);
    let places: [&[usize]; 4] = [&[0], &[0, 2], &[1], &[0, 1, 3]];
    let rows: Vec<f64> = (0..4).flat_map(|t| expected(t, places[t])).collect();
    assert_close(outs[0].data(), &rows);
}

/// Keys and values of each head, `[2,2,3]` and `[2,4,3]`.
fn maps() -> [Tensor; 2] {
    [wave(&[2, 2, 3], 1.7), wave(&[2, 4, 3], 0.4)]
}

fn expanded(sparse: bool, more: &[Tensor]) -> Vec<Tensor> {
    let (param, op, arg) = match sparse {
        true => (", %sel: i32[4,3]", "sparse_expanded_latent_attention", ", %sel"),
        false => ("", "expanded_latent_attention", ""),
    };
    let source = format!(
        "func @f(%q: f32[4,2,2], %r: f32[4,2,2], %wk: f32[2,2,3], %wv: f32[2,4,3], \
         %c: state f32[4,2,3], %k: state f32[4,2,2], %t: i32[2,2], %p: i32[4]{param}) {{
  %y = {op} %q, %r, %wk, %wv, %c, %k, %t, %p{arg} {{scale = 0.5, out = f32}} : f32[4,2,4]
  return %y
}}
"
    );
    let [keys, values] = maps();
    let mut inputs = vec![wave(&[4, 2, 2], 0.7), wave(&[4, 2, 2], 1.3), keys, values];
    inputs.extend([
        wave(&[4, 2, 3], 2.1),
        wave(&[4, 2, 2], 0.9),
        tensor(DType::I32, &[2, 2], &[3., 1., 0., 2.]),
        i32s(&POSITIONS.map(|p| p as f64)),
    ]);
    inputs.extend(more.iter().cloned());
    run(&source, &inputs)
}

/// Attention of row `t` over `places` with keys and values of each head, by plain loops.
fn by_heads(t: usize, places: &[usize]) -> Vec<f64> {
    let (q, r) = (wave(&[4, 2, 2], 0.7), wave(&[4, 2, 2], 1.3));
    let (c, k) = (wave(&[4, 2, 3], 2.1), wave(&[4, 2, 2], 0.9));
    let ([keys, values], blocks) = (maps(), [[3, 1], [0, 2]][t / 2]);
    let mut mixed = Vec::new();
    for h in 0..2 {
        let (mut sum, mut total) = ([0.0; 4], 0.0);
        for place in places {
            let row = blocks[place / 2] * 2 + place % 2;
            let map = |w: &Tensor, rows: usize, i: usize| -> f64 {
                (0..3).map(|j| w.data()[(h * rows + i) * 3 + j] * c.data()[row * 3 + j]).sum()
            };
            let of = |x: &Tensor, i: usize| x.data()[(t * 2 + h) * 2 + i];
            let score: f64 = (0..2)
                .map(|i| of(&q, i) * map(&keys, 2, i) + of(&r, i) * k.data()[row * 2 + i])
                .sum();
            let weight = (0.5 * score).exp();
            total += weight;
            for (i, sum) in sum.iter_mut().enumerate() {
                *sum += weight * map(&values, 4, i);
            }
        }
        mixed.extend(sum.map(|s| s / total));
    }
    mixed
}

#[test]
fn each_head_expands_the_latents() {
    let outs = expanded(false, &[]);
    let all = POSITIONS.map(|p| (0..=p).collect::<Vec<_>>());
    let rows: Vec<f64> = (0..4).flat_map(|t| by_heads(t, &all[t])).collect();
    assert_close(outs[0].data(), &rows);
}

#[test]
fn selected_places_are_expanded_alone() {
    let selected = [0., -1., -1., 0., 2., -1., 1., -1., -1., 0., 1., 3.];
    let outs = expanded(true, &[tensor(DType::I32, &[4, 3], &selected)]);
    let places: [&[usize]; 4] = [&[0], &[0, 2], &[1], &[0, 1, 3]];
    let rows: Vec<f64> = (0..4).flat_map(|t| by_heads(t, places[t])).collect();
    assert_close(outs[0].data(), &rows);
}

const SELECT: &str =
    "func @f(%q: f32[2,2,1], %w: f32[2,2], %s: state f32[2,2,1], %t: i32[1,2], %p: i32[2]) {
  %places = select_keys %q, %w, %s, %t, %p {keys = 3, scale = 2} : i32[2,3]
  return %places
}
";

#[test]
fn the_indexer_takes_the_best_keys() {
    let inputs = |weights: [f64; 4]| {
        [
            f32s(&[2, 2, 1], &[1., -1., 1., -1.]),
            f32s(&[2, 2], &weights),
            // Keys at places 0 to 3: -1, 2, -3, 4.
            f32s(&[2, 2, 1], &[-3., 4., -1., 2.]),
            tensor(DType::I32, &[1, 2], &[1., 0.]),
            i32s(&[1., 3.]),
        ]
    };
    // Row 1 scores 0, 4, 0, 8 by the first head alone: 0 is the smaller of the equals.
    let outs = run(SELECT, &inputs([1., 1., 1., 0.]));
    assert_eq!(outs[0].data(), [0., 1., -1., 0., 1., 3.]);
    // With the second head negated: -2, 4, -6, 8; with the first negated: 2, -4, 6, -8.
    assert_eq!(run(SELECT, &inputs([1., 1., 1., -1.]))[0].data()[3..], [0., 1., 3.]);
    assert_eq!(run(SELECT, &inputs([1., 1., -1., 1.]))[0].data()[3..], [0., 1., 2.]);
    // Zeros of either sign are equal: -4 and -8 are below them.
    let outs = run(SELECT, &inputs([1., 1., -1., 0.]));
    assert_eq!(outs[0].data()[3..], [0., 1., 2.]);
}

#[test]
fn places_past_the_position_are_refused() {
    let source =
        "func @f(%q: f32[1,1,1], %r: f32[1,1,1], %c: state f32[1,4,1], %k: state f32[1,4,1], \
                  %t: i32[1,1], %p: i32[1], %s: i32[1,1]) {
  %y = sparse_latent_attention %q, %r, %c, %k, %t, %p, %s {scale = 1, out = f32} : f32[1,1,1]
  return %y
}
";
    let row = || f32s(&[1, 1, 1], &[1.]);
    let paged = || f32s(&[1, 4, 1], &[1.; 4]);
    let place = |n: f64| tensor(DType::I32, &[1, 1], &[n]);
    let inputs = [row(), row(), paged(), paged(), place(0.), i32s(&[1.]), place(2.)];
    assert!(failure(source, &inputs).contains("place 2 is selected at position 1"));
}
