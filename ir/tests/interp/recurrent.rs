//! Memory of each sequence.

use super::{assert_close, f32s, i32s, run, tensor, wave};
use precast_ir::{DType, interp::Tensor};

const CONV: &str =
    "func @f(%s: state bf16[3,2,1], %x: f32[4,1], %w: f32[1,3], %q: i32[4], %p: i32[4]) {
  %n, %y = causal_conv %s, %x, %w, %q, %p : state bf16[3,2,1], f32[4,1]
  return %n, %y
}
";

/// Slot 2 goes on from rows 5 and 6; slot 0 begins, whatever it held; slot 1 is left alone.
#[test]
fn a_convolution_remembers_its_last_rows() {
    let outs = run(
        CONV,
        &[
            tensor(DType::BF16, &[3, 2, 1], &[90., 91., 92., 93., 5., 6.]),
            f32s(&[4, 1], &[7., 1., 2., 3.]),
            f32s(&[1, 3], &[100., 10., 1.]),
            i32s(&[2., 0., 0., 0.]),
            i32s(&[9., 0., 1., 2.]),
        ],
    );
    assert_eq!(outs[1].data(), [567., 1., 12., 123.]);
    assert_eq!(outs[0].data(), [2., 3., 92., 93., 6., 7.]);
}

/// What is remembered is what was read: a row is rounded once, before both.
#[test]
fn rows_of_a_convolution_are_rounded_to_its_memory() {
    let fine = 1. + 1. / 1024.;
    let outs = run(
        CONV,
        &[
            tensor(DType::BF16, &[3, 2, 1], &[0.; 6]),
            f32s(&[4, 1], &[fine; 4]),
            f32s(&[1, 3], &[100., 10., 1.]),
            i32s(&[1.; 4]),
            i32s(&[0., 1., 2., 3.]),
        ],
    );
    assert_eq!(outs[1].data(), [1., 11., 111., 111.]);
}

#[test]
fn the_gate_is_a_decay() {
    let outs = run(
        "func @f(%a: f32[2,2], %l: f32[2], %b: f32[2]) {
  %g = delta_gate %a, %l, %b : f32[2,2]
  return %g
}
",
        &[
            f32s(&[2, 2], &[0., 1., 999., -999.]),
            f32s(&[2], &[0., 2f64.ln()]),
            f32s(&[2], &[1., -1.]),
        ],
    );
    assert_close(outs[0].data(), &[-1.313_261_687, -2. * 2f64.ln(), -1000., 0.]);
}

fn delta(rows: std::ops::Range<usize>, memory: &Tensor) -> Vec<Tensor> {
    let t = rows.len();
    let source = format!(
        "func @f(%s: state f32[2,4,2,3], %q: f32[{t},2,2], %k: f32[{t},2,2], %v: f32[{t},4,3], \
         %g: f32[{t},4], %b: f32[{t},4], %slots: i32[{t}], %p: i32[{t}]) {{
  %n, %o = gated_delta %s, %q, %k, %v, %g, %b, %slots, %p : state f32[2,4,2,3], f32[{t},4,3]
  return %n, %o
}}
"
    );
    let part = |all: Tensor| {
        let row = all.data().len() / all.dims()[0];
        let dims = [&[t], &all.dims()[1..]].concat();
        f32s(&dims, &all.data()[rows.start * row..rows.end * row])
    };
    let inputs = [
        memory.clone(),
        part(wave(&[5, 2, 2], 0.7)),
        part(wave(&[5, 2, 2], 1.3)),
        part(wave(&[5, 4, 3], 2.1)),
        part(wave(&[5, 4], 0.9)),
        part(wave(&[5, 4], 0.4)),
        i32s(&vec![1.; t]),
        i32s(&rows.map(|p| p as f64).collect::<Vec<_>>()),
    ];
    run(&source, &inputs)
}

/// One token from zeros: `S = beta k v^T`, `o = (q . k) beta v`; key head 1 serves heads 2 and 3.
#[test]
fn the_first_token_leaves_an_outer_product() {
    let outs = delta(0..1, &wave(&[2, 4, 2, 3], 0.3));
    let (q, k) = (wave(&[5, 2, 2], 0.7), wave(&[5, 2, 2], 1.3));
    let (v, beta) = (wave(&[5, 4, 3], 2.1), wave(&[5, 4], 0.4));
    let (mut memory, mut outputs) = (Vec::new(), Vec::new());
    for h in 0..4 {
        let (q, k) = (&q.data()[h / 2 * 2..][..2], &k.data()[h / 2 * 2..][..2]);
        let (v, beta) = (&v.data()[h * 3..][..3], beta.data()[h]);
        memory.extend(k.iter().flat_map(|k| v.iter().map(move |v| beta * k * v)));
        outputs.extend(v.iter().map(|v| (q[0] * k[0] + q[1] * k[1]) * beta * v));
    }
    assert_close(outs[1].data(), &outputs);
    assert_close(&outs[0].data()[24..], &memory);
    assert_eq!(outs[0].data()[..24], wave(&[2, 4, 2, 3], 0.3).data()[..24], "the other slot");
}

/// The second token of head 0, by the formula, element by element.
#[test]
fn later_tokens_decay_and_correct_the_memory() {
    let memory = wave(&[2, 4, 2, 3], 0.3);
    let outs = delta(1..2, &memory);
    let (q, k) = (wave(&[5, 2, 2], 0.7), wave(&[5, 2, 2], 1.3));
    let (v, gate, beta) = (wave(&[5, 4, 3], 2.1), wave(&[5, 4], 0.9), wave(&[5, 4], 0.4));
    let (q, k, v) = (&q.data()[4..6], &k.data()[4..6], &v.data()[12..15]);
    let (decay, beta) = (gate.data()[4].exp(), beta.data()[4]);
    for (c, v) in v.iter().enumerate() {
        let old = [memory.data()[24 + c] * decay, memory.data()[27 + c] * decay];
        let correction = beta * (v - (k[0] * old[0] + k[1] * old[1]));
        let new = [old[0] + k[0] * correction, old[1] + k[1] * correction];
        assert_close(&[outs[0].data()[24 + c], outs[0].data()[27 + c]], &new);
        assert_close(&outs[1].data()[c..=c], &[q[0] * new[0] + q[1] * new[1]]);
    }
}

/// A prompt in one piece and in two leaves the same memory and the same rows.
#[test]
fn where_a_prompt_is_cut_does_not_matter() {
    let memory = wave(&[2, 4, 2, 3], 0.3);
    let whole = delta(0..5, &memory);
    let first = delta(0..2, &memory);
    let second = delta(2..5, &first[0]);
    assert_eq!(whole[0], second[0]);
    assert_eq!(whole[1].data(), [first[1].data(), second[1].data()].concat());
}
