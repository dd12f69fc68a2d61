//! Routing and products by expert.

use super::{assert_close, counting, f32s, failure, i32s, run, tensor};
use precast_ir::DType;

fn route(spec: &str, logits: &[f64], bias: Option<&[f64]>) -> (Vec<f64>, Vec<f64>) {
    let experts = logits.len();
    let k = spec.split("k=").nth(1).unwrap().split([',', ')']).next().unwrap();
    let (param, arg) = match bias {
        Some(_) => (format!(", %b: f32[{experts}]"), ", %b"),
        None => (String::new(), ""),
    };
    let source = format!(
        "func @f(%l: f32[1,{experts}]{param}) {{
  %ids, %w = route %l{arg} {{spec = {spec}}} : i32[1,{k}], f32[1,{k}]
  return %ids, %w
}}
"
    );
    let mut inputs = vec![f32s(&[1, experts], logits)];
    inputs.extend(bias.map(|b| f32s(&[experts], b)));
    let outs = run(&source, &inputs);
    (outs[0].data().to_vec(), outs[1].data().to_vec())
}

#[test]
fn softmax_routes_to_the_largest() {
    // Softmax of logarithms is proportion: of 10, 1, 4, 2 and 3.
    let logits = [1f64, 4., 2., 3.].map(f64::ln);
    let (ids, weights) = route("route(softmax,k=2,renormalize=false)", &logits, None);
    assert_eq!(ids, [1., 3.], "ascending");
    assert_close(&weights, &[0.4, 0.3]);
    let (_, weights) = route("route(softmax,k=2,renormalize=true,scale=7)", &logits, None);
    assert_close(&weights, &[4., 3.]);
    let (ids, _) = route("route(softmax,k=2,renormalize=true)", &[1., 2., 2., 2.], None);
    assert_eq!(ids, [1., 2.], "the smaller index among equals");
}

/// Scores .5 .9 .8 .1 | .7 .6 .2 .2 with a bias on expert 3: choice by score and bias, weights by
/// score alone.
#[test]
fn a_bias_moves_the_choice_and_groups_limit_it() {
    let scores = [0.5, 0.9, 0.8, 0.1, 0.7, 0.6, 0.2, 0.2];
    let logits = scores.map(|s: f64| (s / (1. - s)).ln());
    let bias = [0., 0., 0., 2., 0., 0., 0., 0.];
    let (ids, weights) = route("route(sigmoid,k=2,renormalize=true,scale=2)", &logits, Some(&bias));
    assert_eq!(ids, [1., 3.]);
    assert_close(&weights, &[2. * 0.9, 2. * 0.1]);
    // Pairs of experts have scores 1.4, .9 (2.9 with the bias), 1.3 and .4.
    let grouped = "route(sigmoid,k=3,renormalize=false,groups=4,top_groups=2)";
    let (ids, weights) = route(grouped, &logits, None);
    assert_eq!(ids, [1., 4., 5.]);
    assert_close(&weights, &[0.9, 0.7, 0.6]);
    assert_eq!(route(grouped, &logits, Some(&bias)).0, [1., 2., 3.]);
}

#[test]
fn pairs_are_sorted_by_expert() {
    let outs = run(
        "func @f(%ids: i32[3,2]) {
  %order, %starts = expert_groups %ids {experts = 4} : i32[3,2], i32[5]
  return %order, %starts
}
",
        &[tensor(DType::I32, &[3, 2], &[1., 3., 0., 1., 1., 3.])],
    );
    assert_eq!(outs[0].data(), [2., 0., 3., 4., 1., 5.]);
    assert_eq!(outs[1].data(), [0., 1., 4., 4., 6.]);
}

const GROUPED: &str =
    "func @f(%x: f32[2,2], %ids: i32[2,2], %w: f32[3,1,2], %b: f32[3,1], %p: f32[2,2]) {
  %order, %starts = expert_groups %ids {experts = 3} : i32[2,2], i32[4]
  %y = grouped_matmul %x, %order, %starts, %w {out = f32} : f32[2,2,1]
  %z = expert_bias %y, %ids, %b : f32[2,2,1]
  %pairs = concat %z, %y {axis = 2} : f32[2,2,2]
  %own = grouped_matmul %pairs, %order, %starts, %w {out = f32} : f32[2,2,1]
  %sum = combine_experts %own, %p {out = f32} : f32[2,1]
  return %y, %z, %own, %sum
}
";

#[test]
fn every_pair_meets_its_expert() {
    let outs = run(
        GROUPED,
        &[
            f32s(&[2, 2], &[1., 2., 3., 4.]),
            tensor(DType::I32, &[2, 2], &[0., 2., 1., 2.]),
            f32s(&[3, 1, 2], &[1., 0., 0., 1., 10., 100.]),
            f32s(&[3, 1], &[0.5, 0.25, 1000.]),
            f32s(&[2, 2], &[1., 0.5, 2., 0.25]),
        ],
    );
    assert_eq!(outs[0].data(), [1., 210., 4., 430.]);
    assert_eq!(outs[1].data(), [1.5, 1210., 4.25, 1430.]);
    assert_eq!(outs[2].data(), [1.5, 12100. + 21000., 4., 14300. + 43000.]);
    assert_eq!(outs[3].data(), [1.5 + 16550., 8. + 14325.]);
}

#[test]
fn quantised_pairs_are_scaled_by_row_and_expert() {
    let outs = run(
        "func @f(%x: i8[2,2], %s: f32[2,1], %order: i32[2,1], %starts: i32[3], %w: i8[2,1,2], %ws: f32[2,1,2]) {
  %y = grouped_quant_matmul %x, %s, %order, %starts, %w, %ws {group = 1, out = f32} : f32[2,1,1]
  return %y
}
",
        &[
            tensor(DType::I8, &[2, 2], &[1., 2., 3., 4.]),
            f32s(&[2, 1], &[0.5, 2.]),
            tensor(DType::I32, &[2, 1], &[1., 0.]),
            i32s(&[0., 1., 2.]),
            tensor(DType::I8, &[2, 1, 2], &[1., 1., 5., 7.]),
            f32s(&[2, 1, 2], &[1., 10., 2., 3.]),
        ],
    );
    // Row 0 has expert 1, row 1 expert 0.
    assert_eq!(outs[0].data(), [(5. * 2. + 14. * 3.) * 0.5, (3. + 40.) * 2.]);
}

#[test]
fn pairs_without_an_expert_are_refused() {
    let source = "func @f(%x: f32[2,1], %order: i32[2,1], %starts: i32[3], %w: f32[2,1,1]) {
  %y = grouped_matmul %x, %order, %starts, %w {out = f32} : f32[2,1,1]
  return %y
}
";
    let with = |order: [f64; 2], starts: [f64; 3]| {
        let order = tensor(DType::I32, &[2, 1], &order);
        failure(source, &[counting(&[2, 1]), order, i32s(&starts), counting(&[2, 1, 1])])
    };
    assert!(with([0., 1.], [0., 1., 1.]).contains("do not name each pair"));
    assert!(with([0., 0.], [0., 1., 2.]).contains("do not name each pair"));
    assert!(with([0., 1.], [1., 0., 1.]).contains("do not name each pair"));
    assert!(with([0., 2.], [0., 1., 2.]).contains("pair 2 is not below 2"));
    let ids = "func @f(%ids: i32[1,1]) {
  %order, %starts = expert_groups %ids {experts = 2} : i32[1,1], i32[3]
  return %order, %starts
}
";
    let two = tensor(DType::I32, &[1, 1], &[2.]);
    assert!(failure(ids, &[two]).contains("expert 2 is not below 2"));
}
