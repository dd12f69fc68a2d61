//! Moving elements, arithmetic, paged attention, stored rows.

use super::{assert_close, counting, f32s, func, i32s, no_weights, run, tensor, wave};
use precast_ir::{
    Bindings, DType, Symbol,
    interp::{self, Tensor},
};

#[test]
fn elements_move_where_they_should() {
    let outs = run(
        "func @f(%x: f32[2,3], %y: f32[2,3], %i: i32[3]) {
  %rows = gather_rows %x, %i : f32[3,3]
  %e = embed %i, %y {out = bf16} : bf16[3,3]
  %part = slice %x {axis = 1, start = 1, len = 2} : f32[2,2]
  %wide = concat %part, %y {axis = 1} : f32[2,5]
  %tall = concat %x, %y {axis = 0} : f32[4,3]
  %mixed = interleave %tall, %tall {block = 2} : f32[8,3]
  return %rows, %e, %part, %wide, %mixed
}
",
        &[counting(&[2, 3]), f32s(&[2, 3], &[10., 11., 12., 13., 14., 15.]), i32s(&[1., 0., 1.])],
    );
    assert_eq!(outs[0].data(), [3., 4., 5., 0., 1., 2., 3., 4., 5.]);
    assert_eq!(outs[1].data(), [13., 14., 15., 10., 11., 12., 13., 14., 15.]);
    assert_eq!(outs[2].data(), [1., 2., 4., 5.]);
    assert_eq!(outs[3].data(), [1., 2., 10., 11., 12., 4., 5., 13., 14., 15.]);
    let (x, y) = ([0., 1., 2., 3., 4., 5.], [10., 11., 12., 13., 14., 15.]);
    assert_eq!(outs[4].data(), [x, x, y, y].concat());
}

#[test]
fn arithmetic_follows_its_formulas() {
    let outs = run(
        "func @f(%x: f32[2,2], %w: f32[3,2], %b: f32[3], %n: f32[2]) {
  %m = matmul %x, %w {out = f32} : f32[2,3]
  %y = add_bias %m, %b : f32[2,3]
  %i = argmax %y : i32[2]
  %r = rms_norm %x, %n {eps = 0, out = f32} : f32[2,2]
  %s = silu %x : f32[2,2]
  return %m, %y, %i, %r, %s
}
",
        &[
            f32s(&[2, 2], &[3., 4., 0., 1.]),
            f32s(&[3, 2], &[1., 0., 0., 1., 1., 1.]),
            f32s(&[3], &[4., 0., 0.]),
            f32s(&[2], &[1., 2.]),
        ],
    );
    assert_eq!(outs[0].data(), [3., 4., 7., 0., 1., 1.]);
    assert_eq!(outs[1].data(), [7., 4., 7., 4., 1., 1.]);
    assert_eq!(outs[2].data(), [0., 0.], "the smallest index among equals");
    let root = f64::from(12.5f32.sqrt());
    for (found, expected) in outs[3].data().iter().zip([3. / root, 8. / root]) {
        assert!((found - expected).abs() < 1e-6);
    }
    let sigmoid_of_3 = 0.952_574_126_822_433_3;
    assert!((outs[4].data()[0] - 3. * sigmoid_of_3).abs() < 1e-6);
}

/// A rotation by the angle of the position: channel pairs `i, i + r/2`, or `2i, 2i + 1`; channels
/// past the table pass through.
#[test]
fn rotary_rotates_pairs() {
    for (interleaved, pairs) in [(false, [(0, 2), (1, 3)]), (true, [(0, 1), (2, 3)])] {
        let source = format!(
            "func @f(%x: f32[1,2,5], %p: i32[1]) {{
  %t = rope_table %p {{spec = rope(theta=100,dim=4)}} : f32[1,4]
  %y = rotary %x, %t {{interleaved = {interleaved}}} : f32[1,2,5]
  return %y
}}
"
        );
        let x = counting(&[1, 2, 5]);
        let outs = run(&source, &[x.clone(), i32s(&[3.])]);
        for head in 0..2 {
            let (x, y) = (&x.data()[head * 5..][..5], &outs[0].data()[head * 5..][..5]);
            // Wavelengths are 100^(-2i/4): angles 3 and 0.3.
            for ((a, b), angle) in pairs.into_iter().zip([3.0f64, 0.3]) {
                assert!((y[a] - (x[a] * angle.cos() - x[b] * angle.sin())).abs() < 1e-5);
                assert!((y[b] - (x[b] * angle.cos() + x[a] * angle.sin())).abs() < 1e-5);
            }
            assert_eq!(y[4], x[4]);
        }
    }
}

/// Paged attention against attention over plain rows: two sequences of two tokens each, pages in an
/// order of their own, two query heads per cache head.
#[test]
fn paged_attention_is_attention() {
    const PAGED: &str = "func @f(%q: f32[4,4,2], %k: f32[4,2,2], %v: f32[4,2,2], %s: i32[4], \
                         %t: i32[2,2], %p: i32[4], %kv: state f32[5,2,2,2,2]) {
  %next = kv_write %kv, %k, %v, %s : state f32[5,2,2,2,2]
  %y = attention %q, %next, %t, %p {scale = 0.5, out = f32} : f32[4,4,2]
  return %y, %next
}
";
    let (q, k, v) = (wave(&[4, 4, 2], 0.7), wave(&[4, 2, 2], 1.3), wave(&[4, 2, 2], 2.1));
    let kv = wave(&[5, 2, 2, 2, 2], 0.9);
    // Sequence 0 has pages 3, 1 and writes places 1 and 2; sequence 1 has pages 0, 4, places 2, 3.
    let table = Tensor::new(DType::I32, vec![2, 2], vec![3., 1., 0., 4.]);
    let (slots, positions) = ([3 * 2 + 1, 2, 4 * 2, 4 * 2 + 1], [1usize, 2, 2, 3]);
    let as_i32 = |x: &[usize]| i32s(&x.iter().map(|&x| x as f64).collect::<Vec<_>>());
    let inputs =
        [q.clone(), k.clone(), v.clone(), as_i32(&slots), table, as_i32(&positions), kv.clone()];
    let outs = run(PAGED, &inputs);
    let at = |block: usize, side: usize, head: usize, place: usize| {
        (((block * 2 + side) * 2 + head) * 2 + place) * 2
    };
    let mut cache = kv.data().to_vec();
    for (t, slot) in slots.into_iter().enumerate() {
        for head in 0..2 {
            for c in 0..2 {
                cache[at(slot / 2, 0, head, slot % 2) + c] = k.data()[(t * 2 + head) * 2 + c];
                cache[at(slot / 2, 1, head, slot % 2) + c] = v.data()[(t * 2 + head) * 2 + c];
            }
        }
    }
    assert_eq!(outs[1].data(), cache);
    for t in 0..4 {
        let pages = [[3, 1], [0, 4]][t / 2];
        for head in 0..4 {
            let row = |side: usize, place: usize| {
                let from = at(pages[place / 2], side, head / 2, place % 2);
                [cache[from], cache[from + 1]]
            };
            let query = &q.data()[(t * 4 + head) * 2..][..2];
            let (mut sum, mut total) = ([0.0; 2], 0.0);
            for place in 0..=positions[t] {
                let [a, b] = row(0, place);
                let weight = (0.5 * (query[0] * a + query[1] * b)).exp();
                total += weight;
                let value = row(1, place);
                sum = [sum[0] + weight * value[0], sum[1] + weight * value[1]];
            }
            let found = &outs[0].data()[(t * 4 + head) * 2..][..2];
            for (found, sum) in found.iter().zip(sum) {
                assert!((found - sum / total).abs() < 1e-6, "token {t} head {head}");
            }
        }
    }
}

/// Codes and the bytes of their scale, and attention over what they stand for.
#[test]
fn a_cache_of_codes_keeps_scales() {
    const CODES: &str = "func @f(%q: f32[1,1,4], %k: f32[1,1,4], %v: f32[1,1,4], %s: i32[1], \
                         %t: i32[1,1], %p: i32[1], %kv: state i8[1,2,1,1,8]) {
  %next = kv_write %kv, %k, %v, %s : state i8[1,2,1,1,8]
  %y = attention %q, %next, %t, %p {scale = 1, out = f32} : f32[1,1,4]
  return %y, %next
}
";
    let heads = |x: [f64; 4]| Tensor::new(DType::F32, vec![1, 1, 4], x.to_vec());
    let kv = Tensor::new(DType::I8, vec![1, 2, 1, 1, 8], vec![9.0; 16]);
    let table = Tensor::new(DType::I32, vec![1, 1], vec![0.0]);
    let [k, v] = [heads([0.0; 4]), heads([-254.0, 1.0, 127.0, 3.1])];
    let inputs = [heads([1.0; 4]), k, v, i32s(&[0.0]), table, i32s(&[0.0]), kv];
    let outs = run(CODES, &inputs);
    // The scales are 0 and 2, which is 0x4000_0000.
    let keys = [0.0; 8];
    let values = [-127.0, 0.0, 64.0, 2.0, 0.0, 0.0, 0.0, 64.0];
    assert_eq!(outs[1].data(), [keys, values].concat());
    assert_eq!(outs[0].data(), [-254.0, 0.0, 128.0, 4.0]);
}

#[test]
fn rows_are_stored_over_the_first_rows() {
    let outs = run(
        "func @f(%x: f32[1,2], %s: state f32[3,2]) {
  %n = store_rows %s, %x : state f32[3,2]
  return %n
}
",
        &[f32s(&[1, 2], &[7., 8.]), counting(&[3, 2])],
    );
    assert_eq!(outs[0].data(), [7., 8., 2., 3., 4., 5.]);
}

/// Columns `g0 g1 u0 u1 g2 g3 u2 u3`: the gate of the first pair meets the first of the up side.
#[test]
fn columns_of_pairs_meet_those_of_their_block() {
    let x = f32s(&[1, 8], &[1., 2., 0.5, 20., 3., 8., 30., -9.]);
    let outs = run(
        "func @f(%x: f32[1,8]) {
  %a = silu_mul_pairs %x {block = 2, out = f32} : f32[1,4]
  %b = swiglu_clamped_pairs %x {block = 2, alpha = 2, limit = 7, out = f32} : f32[1,4]
  return %a, %b
}
",
        &[x],
    );
    let sigmoid = |x: f64| 1. / (1. + (-x).exp());
    let pairs = [(1., 0.5), (2., 20.), (3., 30.), (8., -9.)];
    let silu = pairs.map(|(g, u): (f64, f64)| g * sigmoid(g) * u);
    let clamped = pairs.map(|(g, u): (f64, f64)| {
        let g = g.min(7.);
        (u.clamp(-7., 7.) + 1.) * g * sigmoid(2. * g)
    });
    for (found, expected) in outs.iter().zip([silu, clamped]) {
        for (found, expected) in found.data().iter().zip(expected) {
            assert!((found - expected).abs() < 1e-4 * expected.abs(), "{found} {expected}");
        }
    }
}

#[test]
fn what_cannot_run_says_why() {
    let embed = "func @f(%i: i32[T], %t: f32[3,2]) {
  %y = embed %i, %t {out = f32} : f32[T,2]
  return %y
}
";
    let error = |source: &str, inputs: &[Tensor], bindings: &Bindings| {
        interp::run(&func(source), inputs, &no_weights, bindings).unwrap_err().to_string()
    };
    let table = counting(&[3, 2]);
    let unbound = Bindings::new();
    let bound = Bindings::from([(Symbol::new("T"), 2)]);
    let ids = i32s(&[0., 3.]);
    let cases = [
        (error(embed, &[ids.clone(), table.clone()], &unbound), "%i: type i32[T] has a symbol"),
        (error(embed, &[ids.clone(), table.clone()], &bound), "embed %y: row 3 is not below 3"),
        (
            error(embed, &[table.clone(), table.clone()], &bound),
            "%i: expected i32[2], found f32[3, 2]",
        ),
        (error(embed, &[ids], &bound), "the call: 1 inputs for 2 parameters"),
    ];
    for (found, expected) in cases {
        assert!(found.contains(expected), "{found}");
    }
}

#[test]
fn constant_expressions_move_elements() {
    let outs = run(
        "func @f(%x: f32[2,3], %y: f32[2,3], %d: f32[2,2,2]) {
  %s = stack %x, %y : f32[2,2,3]
  %t = transpose %s : f32[2,3,2]
  %r = repeat_rows %x {times = 2, rows = 3} : f32[3,3]
  %i = interleave %d, %d {block = 1} : f32[2,4,2]
  %a = add_scalar %x {value = 0.5} : f32[2,3]
  return %s, %t, %r, %i, %a
}
",
        &[counting(&[2, 3]), f32s(&[2, 3], &[10., 11., 12., 13., 14., 15.]), counting(&[2, 2, 2])],
    );
    assert_eq!(outs[0].data(), [0., 1., 2., 3., 4., 5., 10., 11., 12., 13., 14., 15.]);
    assert_eq!(outs[1].data(), [0., 3., 1., 4., 2., 5., 10., 13., 11., 14., 12., 15.]);
    assert_eq!(outs[2].data(), [0., 1., 2., 0., 1., 2., 3., 4., 5.]);
    let alternating = [0., 1., 0., 1., 2., 3., 2., 3., 4., 5., 4., 5., 6., 7., 6., 7.];
    assert_eq!(outs[3].data(), alternating);
    assert_eq!(outs[4].data(), [0.5, 1.5, 2.5, 3.5, 4.5, 5.5]);
}

#[test]
fn gates_and_norms_follow_their_formulas() {
    let outs = run(
        "func @f(%x: f32[2,2], %s: f32[2,1], %w: f32[2], %b: f32[2], %g: f32[1,3], %u: f32[1,3]) {
  %sigmoid = sigmoid %x : f32[2,2]
  %scaled = scale_rows %x, %s : f32[2,2]
  %normed = layer_norm %x, %w, %b {eps = 3, out = f32} : f32[2,2]
  %unit = l2_norm %x {eps = 11, scale = 2} : f32[2,2]
  %gated = swiglu_clamped %g, %u {alpha = 1.5, limit = 2, out = f32} : f32[1,3]
  return %sigmoid, %scaled, %normed, %unit, %gated
}
",
        &[
            f32s(&[2, 2], &[3., 5., 0., 0.]),
            f32s(&[2, 1], &[2., -1.]),
            f32s(&[2], &[1., 10.]),
            f32s(&[2], &[0., 7.]),
            f32s(&[1, 3], &[5., -5., 1.]),
            f32s(&[1, 3], &[5., -5., 0.5]),
        ],
    );
    assert_close(outs[0].data(), &[0.952_574_127, 0.993_307_149, 0.5, 0.5]);
    assert_eq!(outs[1].data(), [6., 10., 0., 0.]);
    // Mean 4, variance 1, and 1 + 3 has the root 2.
    assert_close(outs[2].data(), &[-0.5, 12., 0., 7.]);
    // 9 + 25 + 11 = 45.
    assert_close(outs[3].data(), &[6. / 45f64.sqrt(), 10. / 45f64.sqrt(), 0., 0.]);
    let sigmoid = |x: f64| 1. / (1. + (-x).exp());
    let gated = [3. * 2. * sigmoid(3.), -(-5. * sigmoid(-7.5)), 1.5 * sigmoid(1.5)];
    assert_close(outs[4].data(), &gated);
}

#[test]
fn each_head_has_a_weight() {
    let outs = run(
        "func @f(%x: f32[2,2,2], %w: f32[2,1,2]) {
  %y = head_matmul %x, %w {out = f32} : f32[2,2,1]
  return %y
}
",
        &[counting(&[2, 2, 2]), f32s(&[2, 1, 2], &[1., 0., 1., 10.])],
    );
    assert_eq!(outs[0].data(), [0., 32., 4., 76.]);
}

/// Windows and sinks: keys of zeros make every score 0, so probabilities are counted.
#[test]
fn sinks_take_probability_and_windows_hide_places() {
    let outs = run(
        "func @f(%q: f32[2,2,1], %kv: state f32[2,2,1,2,1], %t: i32[1,2], %p: i32[2], %s: f32[2]) {
  %all = sink_attention %q, %kv, %t, %p, %s {scale = 1, window = 0, out = f32} : f32[2,2,1]
  %two = sink_attention %q, %kv, %t, %p, %s {scale = 1, window = 2, out = f32} : f32[2,2,1]
  return %all, %two
}
",
        &[
            counting(&[2, 2, 1]),
            // Block 1 comes first: values 1 and 10, then 100 and 1000.
            f32s(&[2, 2, 1, 2, 1], &[0., 0., 100., 1000., 0., 0., 1., 10.]),
            tensor(DType::I32, &[1, 2], &[1., 0.]),
            i32s(&[0., 3.]),
            f32s(&[2], &[0., 2f64.ln()]),
        ],
    );
    let (one, four) = ([1. / 2., 1. / 3.], [1111. / 5., 1111. / 6.]);
    assert_close(outs[0].data(), &[one[0], one[1], four[0], four[1]].map(|x| f64::from(x as f32)));
    let last_two = [1100. / 3., 1100. / 4.].map(|x| f64::from(x as f32));
    assert_close(outs[1].data(), &[one[0], one[1], last_two[0], last_two[1]]);
}

/// Equal numbers in order of their indices, zeros among them; NaN after what is infinite.
#[test]
fn the_largest_come_in_order() {
    let outs = run(
        "func @f(%x: f32[2,6]) {
  %v, %i = top_k %x {k = 6} : f32[2,6], i32[2,6]
  %w, %j = top_k %x {k = 2} : f32[2,2], i32[2,2]
  return %v, %i, %w, %j
}
",
        &[f32s(
            &[2, 6],
            &[
                1.,
                f64::NAN,
                3.,
                1.,
                f64::NEG_INFINITY,
                3.,
                -0.,
                0.,
                -1.,
                f64::NAN,
                f64::INFINITY,
                0.,
            ],
        )],
    );
    assert_eq!(outs[1].data(), [2., 5., 0., 3., 4., 1., 4., 0., 1., 5., 2., 3.]);
    assert_eq!(outs[0].data()[..5], [3., 3., 1., 1., f64::NEG_INFINITY]);
    assert!(outs[0].data()[5].is_nan() && outs[0].data()[6..8] == [f64::INFINITY, -0.]);
    assert_eq!(outs[2].data(), [3., 3., f64::INFINITY, 0.]);
    assert_eq!(outs[3].data(), [2., 5., 4., 0.]);
}
