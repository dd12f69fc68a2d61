//! Rows that local memory does not hold, and the epilogue of products of codes.

use crate::harness::{Numbers, case, check};
use ir::DType;
use precast_codegen_ascend::{
    chip::CHIPS,
    kernels::{
        rows::{Dequantize, dequantize},
        shim::Library,
    },
};

#[test]
fn part_by_part() {
    let mut cases = Vec::new();
    for (t, n) in [("f32", 20001), ("bf16", 40000)] {
        let (x, ty) = (format!("%x: {t}[T,{n}]"), format!("{t}[T,{n}]"));
        cases.extend([
            case(&x, &format!("  %o = silu %x : {ty}"), "%o"),
            case(&x, "  %o = argmax %x : i32[T]", "%o"),
            case(&x, &format!("  %q, %s = quantize_rows %x : i8[T,{n}], f32[T,1]"), "%q, %s"),
            case(
                &format!("{x}, %y: {ty}, %w: {t}[{n}]"),
                &format!(
                    "  %s, %o = add_rms_norm %x, %y, %w {{eps = 1e-6, out = {t}}} : {ty}, {ty}\n  \
                     %q, %d = quantize_rows %o : i8[T,{n}], f32[T,1]"
                ),
                "%s, %q, %d",
            )
            .codes(1.0),
            case(
                &format!("%x: {ty}, %y: {ty}"),
                &format!("  %a = silu_mul %x, %y {{out = {t}}} : {ty}\n  %q, %s = quantize_rows %a : i8[T,{n}], f32[T,1]"),
                "%q, %s",
            )
            .codes(1.0),
        ]);
    }
    cases.push(case("%x: f32[T,151936]", "  %o = argmax %x : i32[T]", "%o"));
    check(&cases, &[1, 3]);
}

#[test]
fn scales_of_products() {
    let mut kernels = Vec::new();
    for columns in [13, 4096, 5001] {
        for (row_scales, bias) in [(true, false), (true, true), (false, true)] {
            for out in [DType::F32, DType::BF16] {
                let spec = Dequantize { columns, row_scales, bias, out };
                kernels.push((spec, dequantize(&spec, &CHIPS[0]).unwrap()));
            }
        }
    }
    let library = Library::build(&kernels.iter().map(|k| &k.1).collect::<Vec<_>>()).unwrap();
    let mut numbers = Numbers(77);
    for (spec, kernel) in &kernels {
        let (rows, n) = (43usize, spec.columns as usize);
        let acc: Vec<i32> =
            (0..rows * n).map(|_| (numbers.next() % 2_000_001) as i32 - 1_000_000).collect();
        let mut floats =
            |n: usize| -> Vec<f32> { (0..n).map(|_| numbers.float() as f32).collect() };
        let (xs, ws, bias) = (floats(rows), floats(n), floats(n));
        let bytes = |v: &[f32]| -> Vec<u8> { v.iter().flat_map(|x| x.to_le_bytes()).collect() };
        let mut a: Vec<u8> = acc.iter().flat_map(|x| x.to_le_bytes()).collect();
        let (mut x, mut w, mut b) = (bytes(&xs), bytes(&ws), bytes(&bias));
        let mut result = vec![0u8; rows * n * spec.out.bits() as usize / 8];
        let mut buffers: Vec<&mut [u8]> = vec![&mut a];
        if spec.row_scales {
            buffers.push(&mut x);
        }
        buffers.push(&mut w);
        if spec.bias {
            buffers.push(&mut b);
        }
        buffers.push(&mut result);
        library.run(&kernel.name, 40, &mut buffers, &[rows as u64, n as u64, n as u64]).unwrap();
        for i in 0..rows * n {
            let scale = if spec.row_scales { f64::from(xs[i / n]) } else { 1.0 };
            let bias = if spec.bias { f64::from(bias[i % n]) } else { 0.0 };
            let want = f64::from(acc[i]) * scale * f64::from(ws[i % n]) + bias;
            let (got, error) = match spec.out {
                DType::F32 => (
                    f64::from(f32::from_le_bytes(result[i * 4..i * 4 + 4].try_into().unwrap())),
                    1e-6,
                ),
                _ => (
                    half::bf16::from_le_bytes(result[i * 2..i * 2 + 2].try_into().unwrap()).into(),
                    1.0 / 250.0,
                ),
            };
            assert!(
                (got - want).abs() <= error * (want.abs() + 1.0),
                "{spec:?} {i}: {got}, expected {want}"
            );
        }
    }
}
