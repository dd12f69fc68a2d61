//! Rows that local memory does not hold.

use crate::harness::{case, check};

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
