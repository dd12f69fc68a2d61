//! Codes and scales.

use super::{assert_close, counting, f32s, i32s, run, tensor, wave};
use precast_ir::DType;

#[test]
fn rows_and_weights_are_quantised_by_their_largest() {
    let outs = run(
        "func @f(%x: f32[3,4], %w: bf16[1,4]) {
  %codes, %scale = quantize_rows %x : i8[3,4], f32[3,1]
  %c8, %s8 = quantize_weight %x {bits = 8, group = 2} : i8[3,4], f32[3,2]
  %c4, %s4 = quantize_weight %w {bits = 4, group = 4} : i4[1,4], f32[1,1]
  return %codes, %scale, %c8, %s8, %c4, %s4
}
",
        &[
            // 2.5 steps of 1 lie between 2 and 3: the even one is taken.
            f32s(&[3, 4], &[127., 2.5, -3.5, 0.4, 0., 0., 0., 0., -254., 1., 1., 127.]),
            tensor(DType::BF16, &[1, 4], &[-14., 14., 3., 4.5]),
        ],
    );
    assert_eq!(outs[0].data(), [127., 2., -4., 0., 0., 0., 0., 0., -127., 0., 0., 64.]);
    assert_eq!(outs[1].data(), [1., 0., 2.]);
    assert_eq!(outs[2].data()[..4], [127., 2., -127., 15.]);
    assert_eq!(outs[2].data()[8..], [-127., 0., 1., 127.]);
    assert_close(outs[3].data(), &[1., 3.5 / 127., 0., 0., 2., 1.]);
    assert_eq!(outs[4].data(), [-7., 7., 2., 2.], "1.5 steps are rounded to 2");
    assert_eq!(outs[5].data(), [2.]);
}

#[test]
fn a_static_scale_has_an_offset_and_saturates() {
    let outs = run(
        "func @f(%x: f32[1,5], %s: f32[1], %o: f32[1], %w: i8[2,5], %b: i32[2], %d: f32[2]) {
  %q = quantize_static %x, %s, %o : i8[1,5]
  %y = static_matmul %q, %w, %b, %d {out = f32} : f32[1,2]
  return %q, %y
}
",
        &[
            f32s(&[1, 5], &[0., 1., -1., 100., -100.]),
            f32s(&[1], &[0.5]),
            f32s(&[1], &[3.]),
            tensor(DType::I8, &[2, 5], &[1., 1., 1., 1., 1., 0., 0., 0., 0., -2.]),
            i32s(&[10, -6].map(f64::from)),
            f32s(&[2], &[0.5, 0.25]),
        ],
    );
    assert_eq!(outs[0].data(), [3., 5., 1., 127., -128.]);
    assert_eq!(outs[1].data(), [(8. + 10.) * 0.5, (256. - 6.) * 0.25]);
}

#[test]
fn fp8_scales_fill_the_range_of_the_codes() {
    let outs = run(
        "func @f(%x: f32[1,5]) {
  %codes, %scale = quantize_fp8 %x {group = 2, power_of_two = false} : fp8[1,5], f32[1,3]
  %c2, %s2 = quantize_fp8 %x {group = 2, power_of_two = true} : fp8[1,5], f32[1,3]
  return %codes, %scale, %c2, %s2
}
",
        &[f32s(&[1, 5], &[896., -31., 0., 0., 448.])],
    );
    // 31 / 2 lies between the codes 15 and 16.
    assert_eq!(outs[0].data(), [448., -16., 0., 0., 448.]);
    let floor = f64::from(1e-4f32 / 448.);
    assert_eq!(outs[1].data(), [2., floor, 1.]);
    assert_eq!(outs[2].data(), [448., -16., 0., 0., 448.]);
    assert_eq!(outs[3].data(), [2., f64::powi(2., -22), 1.], "1e-4 / 448 is a little below 2^-22");
}

#[test]
fn weights_are_codes_times_scales() {
    let outs = run(
        "func @f(%c: i8[2,3], %s: f32[2,2], %m: mxfp4[1,1,4], %e: u8[1,1,2]) {
  %w = dequantize %c, %s {group = 2, out = f32} : f32[2,3]
  %x = dequantize %m, %e {group = 2, out = bf16} : bf16[1,1,4]
  return %w, %x
}
",
        &[
            tensor(DType::I8, &[2, 3], &[1., 2., 3., 4., 5., 6.]),
            f32s(&[2, 2], &[1., 10., 0.5, -1.]),
            tensor(DType::MxFp4, &[1, 1, 4], &[6., -0.5, 1.5, 3.]),
            tensor(DType::U8, &[1, 1, 2], &[128., 126.]),
        ],
    );
    assert_eq!(outs[0].data(), [1., 2., 30., 2., 2.5, -6.]);
    assert_eq!(outs[1].data(), [12., -1., 0.75, 1.5]);
}

/// Two groups of two and one of one; the second operand has a scale for each group of a row.
#[test]
fn products_of_groups_are_scaled_one_by_one() {
    let source = |groups: usize| {
        format!(
            "func @f(%x: i8[1,5], %s: f32[1,{groups}], %w: i4[2,5], %ws: f32[2,3]) {{
  %y = quant_matmul %x, %s, %w, %ws {{group = 2, out = f32}} : f32[1,2]
  return %y
}}
"
        )
    };
    let x = tensor(DType::I8, &[1, 5], &[100., -3., 2., 4., 10.]);
    let weight = tensor(DType::I4, &[2, 5], &[1., 1., 2., -8., 7., 0., 0., 0., 0., -1.]);
    let scale = f32s(&[2, 3], &[1., 2., 0.5, 9., 9., 4.]);
    let groups = [97., -28., 70.];
    let one = run(&source(1), &[x.clone(), f32s(&[1, 1], &[0.5]), weight.clone(), scale.clone()]);
    let sum = groups[0] + groups[1] * 2. + groups[2] * 0.5;
    assert_eq!(one[0].data(), [sum * 0.5, -10. * 4. * 0.5]);
    let each = run(&source(3), &[x, f32s(&[1, 3], &[1., 10., 100.]), weight, scale]);
    let sum = groups[0] + groups[1] * 20. + groups[2] * 50.;
    assert_eq!(each[0].data(), [sum, -10. * 400.]);
}

#[test]
fn fp8_products_are_products_of_their_values() {
    let outs = run(
        "func @f(%x: fp8[2,2,3], %s: f32[2,2,1], %w: fp8[1,3], %ws: f32[1,1]) {
  %y = quant_matmul %x, %s, %w, %ws {group = 3, out = f32} : f32[2,2,1]
  return %y
}
",
        &[
            tensor(DType::F8E4M3, &[2, 2, 3], counting(&[2, 2, 3]).data()),
            f32s(&[2, 2, 1], &[1., 2., 3., 4.]),
            tensor(DType::F8E4M3, &[1, 3], &[1., 0.5, -2.]),
            f32s(&[1, 1], &[2.]),
        ],
    );
    // 0 + .5 - 4, 3 + 2 - 10, 6 + 3.5 - 16, 9 + 5 - 22 (11 and 10 are codes).
    assert_eq!(outs[0].data(), [-3.5 * 2., -5. * 4., -6.5 * 6., -8. * 8.]);
}

#[test]
fn dequantised_products_are_products_with_the_values() {
    let outs = run(
        "func @f(%x: f32[2,4], %c: i8[3,4], %s: f32[3,2], %o: i32[2,1], %n: i32[3], %c3: i8[2,3,4], %s3: f32[2,3,2]) {
  %y = dequant_matmul %x, %c, %s {group = 2, out = f32} : f32[2,3]
  %w = dequantize %c, %s {group = 2, out = f32} : f32[3,4]
  %z = matmul %x, %w {out = f32} : f32[2,3]
  %g = grouped_dequant_matmul %x, %o, %n, %c3, %s3 {group = 2, out = f32} : f32[2,1,3]
  return %y, %z, %g
}
",
        &[
            wave(&[2, 4], 0.7),
            tensor(DType::I8, &[3, 4], counting(&[3, 4]).data()),
            wave(&[3, 2], 1.1),
            tensor(DType::I32, &[2, 1], &[0., 1.]),
            i32s(&[0., 2., 2.]),
            tensor(DType::I8, &[2, 3, 4], counting(&[2, 3, 4]).data()),
            wave(&[2, 3, 2], 1.1),
        ],
    );
    assert_eq!(outs[0], outs[1]);
    assert_eq!(outs[0].data(), outs[2].data(), "all pairs are of expert 0, which is the matrix");
    assert!(outs[0].data().iter().all(|&y| y != 0.0));
}
