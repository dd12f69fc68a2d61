//! Every op alone.

use crate::harness::{Case, case, check};

/// One row, around the number of cores, several for each.
const ROWS: &[u64] = &[1, 39, 41, 85];

#[test]
fn elementwise() {
    let mut cases = Vec::new();
    for n in [13, 200] {
        for t in ["f32", "bf16"] {
            let x = format!("%x: {t}[T,{n}]");
            let xy = format!("%x: {t}[T,{n}], %y: {t}[T,{n}]");
            let ty = format!("{t}[T,{n}]");
            let one = |op: &str| case(&x, &format!("  %o = {op} : {ty}"), "%o");
            let two = |op: &str| case(&xy, &format!("  %o = {op} : {ty}"), "%o");
            cases.extend([
                two("add %x, %y"),
                two("mul %x, %y"),
                one("silu %x"),
                one("sigmoid %x"),
                one("add_scalar %x {value = 0.25}"),
                two("swiglu_clamped %x, %y {alpha = 1.702, limit = 0.75, out = f32}")
                    .returning("f32", n),
                two("silu_mul %x, %y {out = bf16}").returning("bf16", n),
                one("cast %x {to = bf16}").returning("bf16", n),
                one("cast %x {to = f32}").returning("f32", n),
                case(
                    &format!("{x}, %b: {t}[{n}]"),
                    &format!("  %o = add_bias %x, %b : {ty}"),
                    "%o",
                ),
                case(
                    &format!("{x}, %s: {t}[T,1]"),
                    &format!("  %o = scale_rows %x, %s : {ty}"),
                    "%o",
                ),
            ]);
        }
    }
    check(&cases, &[1, 41]);
}

impl Case {
    /// The only result has another element type.
    fn returning(mut self, dtype: &str, n: u64) -> Self {
        let (ops, _) = self.ops.rsplit_once(" : ").unwrap();
        self.ops = format!("{ops} : {dtype}[T,{n}]");
        self
    }
}

#[test]
fn norms() {
    let mut cases = Vec::new();
    for t in ["f32", "bf16"] {
        for n in [13, 896] {
            let (x, ty) = (format!("%x: {t}[T,{n}]"), format!("{t}[T,{n}]"));
            cases.extend([
                case(
                    &format!("{x}, %w: {t}[{n}]"),
                    &format!("  %o = rms_norm %x, %w {{eps = 1e-6, out = {t}}} : {ty}"),
                    "%o",
                ),
                case(
                    &format!("{x}, %w: f32[{n}], %b: f32[{n}]"),
                    &format!("  %o = layer_norm %x, %w, %b {{eps = 1e-5, out = {t}}} : {ty}"),
                    "%o",
                ),
                case(&x, &format!("  %o = l2_norm %x {{eps = 1e-6, scale = 0.125}} : {ty}"), "%o"),
                case(
                    &format!("{x}, %y: {t}[T,{n}], %w: {t}[{n}]"),
                    &format!(
                        "  %s, %o = add_rms_norm %x, %y, %w {{eps = 1e-6, out = {t}}} : {ty}, {ty}"
                    ),
                    "%s, %o",
                ),
            ]);
        }
        cases.push(case(
            &format!("%x: {t}[T,3,16], %w: {t}[16]"),
            "  %o = rms_norm %x, %w {eps = 1e-6, out = f32} : f32[T,3,16]",
            "%o",
        ));
        cases.push(case(
            &format!("%x: {t}[T,3,24]"),
            &format!("  %o = l2_norm %x {{eps = 1e-6, scale = 1}} : {t}[T,3,24]"),
            "%o",
        ));
    }
    check(&cases, &[1, 41]);
}

#[test]
fn quantisation() {
    let mut cases = Vec::new();
    for t in ["f32", "bf16"] {
        for n in [13, 256] {
            let x = format!("%x: {t}[T,{n}]");
            cases.push(case(
                &x,
                &format!("  %q, %s = quantize_rows %x : i8[T,{n}], f32[T,1]"),
                "%q, %s",
            ));
            cases.push(case(
                &format!("{x}, %scale: f32[1], %offset: f32[1]"),
                &format!("  %q = quantize_static %x, %scale, %offset : i8[T,{n}]"),
                "%q",
            ));
        }
        cases.push(case(
            &format!("%x: {t}[T,4,32]"),
            "  %q, %s = quantize_rows %x : i8[T,4,32], f32[T,4,1]",
            "%q, %s",
        ));
    }
    check(&cases, &[1, 41]);
}

#[test]
fn rows_by_index() {
    let mut cases = Vec::new();
    for t in ["f32", "bf16"] {
        for n in [36, 64] {
            for layout in ["", " nz"] {
                let params = format!("%ids: i32[T], %table: {t}[50,{n}]{layout}");
                for out in ["f32", "bf16"] {
                    let ops = format!("  %o = embed %ids, %table {{out = {out}}} : {out}[T,{n}]");
                    cases.push(case(&params, &ops, "%o").limit("ids", 50));
                }
            }
            let params = format!("%x: {t}[50,{n}], %ids: i32[T]");
            cases.push(
                case(&params, &format!("  %o = gather_rows %x, %ids : {t}[T,{n}]"), "%o")
                    .limit("ids", 50),
            );
            let params = format!("%state: state {t}[90,{n}], %x: {t}[T,{n}]");
            cases.push(case(
                &params,
                &format!("  %o = store_rows %state, %x : state {t}[90,{n}]"),
                "%o",
            ));
            // More rows than slots: the last of those that share one writes it.
            let params = format!("%state: state {t}[5,16,{n}], %x: f32[T,{n}], %slots: i32[T]");
            let ops = format!("  %o = paged_write %state, %x, %slots : state {t}[5,16,{n}]");
            cases.push(case(&params, &ops, "%o").limit("slots", 60));
        }
        let params = format!(
            "%kv: state {t}[5,2,3,16,32], %k: {t}[T,3,32], %v: {t}[T,3,32], %slots: i32[T]"
        );
        let ops = format!("  %o = kv_write %kv, %k, %v, %slots : state {t}[5,2,3,16,32]");
        cases.push(case(&params, &ops, "%o").limit("slots", 80));
    }
    check(&cases, ROWS);
}

#[test]
fn shapes() {
    let mut cases = Vec::new();
    for t in ["f32", "bf16"] {
        let x = format!("%x: {t}[T,48]");
        let reshaped = format!("  %o = reshape %x {{dims = [T,6,8]}} : {t}[T,6,8]");
        cases.push(case(&x, &reshaped, "%o"));
        for (start, len) in [(16, 32), (5, 9)] {
            cases.push(case(
                &x,
                &format!(
                    "  %o = slice %x {{axis = 1, start = {start}, len = {len}}} : {t}[T,{len}]"
                ),
                "%o",
            ));
            // Of what is computed, not of an operand.
            cases.push(case(
                &x,
                &format!("  %y = silu %x : {t}[T,48]\n  %o = slice %y {{axis = 1, start = {start}, len = {len}}} : {t}[T,{len}]"),
                "%o",
            ));
        }
        let heads = format!("%x: {t}[T,3,20], %y: {t}[T,3,12]");
        let parts = [(0, 16), (4, 16), (3, 5)];
        for (start, len) in parts {
            cases.push(case(
                &heads,
                &format!(
                    "  %o = slice %x {{axis = 2, start = {start}, len = {len}}} : {t}[T,3,{len}]"
                ),
                "%o",
            ));
        }
        cases.push(case(&heads, &format!("  %o = concat %x, %y {{axis = 2}} : {t}[T,3,32]"), "%o"));
        let columns = format!("%x: {t}[T,16], %y: {t}[T,20]");
        cases.push(case(&columns, &format!("  %o = concat %x, %y {{axis = 1}} : {t}[T,36]"), "%o"));
        cases.push(case(&columns, &format!("  %o = concat %y, %x {{axis = 1}} : {t}[T,36]"), "%o"));
        for block in [1, 16, 32] {
            let ops =
                format!("  %o = silu_mul_pairs %x {{block = {block}, out = {t}}} : {t}[T,32]");
            cases.push(case(&format!("%x: {t}[T,64]"), &ops, "%o"));
        }
        let ops = format!(
            "  %o = swiglu_clamped_pairs %x {{block = 1, alpha = 1.702, limit = 0.75, out = {t}}} : {t}[T,32]"
        );
        cases.push(case(&format!("%x: {t}[T,64]"), &ops, "%o"));
    }
    check(&cases, &[1, 41]);
}

#[test]
fn rotation() {
    let mut cases = Vec::new();
    for (d, r) in [(32, 32), (32, 16), (32, 24), (128, 128), (256, 256), (64, 20)] {
        for interleaved in [false, true] {
            for t in ["f32", "bf16"] {
                let ops =
                    format!("  %o = rotary %x, %a {{interleaved = {interleaved}}} : {t}[T,3,{d}]");
                cases.push(case(&format!("%x: {t}[T,3,{d}], %a: f32[T,{r}]"), &ops, "%o"));
            }
        }
    }
    check(&cases, &[1, 41]);
}

#[test]
fn angles() {
    let specs = [
        "rope(theta=10000,dim=64)",
        "rope(theta=1000000,dim=20)",
        "rope(theta=500000,dim=128,wavelength=8:1:4:8192)",
        "rope(theta=10000,dim=64,yarn=40:32:1:4096:1.3:true)",
    ];
    let mut cases = Vec::new();
    for spec in specs {
        let dim = spec.split("dim=").nth(1).unwrap().split([',', ')']).next().unwrap();
        for limit in [4096, 1 << 20] {
            let ops = format!("  %o = rope_table %p {{spec = {spec}}} : f32[T,{dim}]");
            cases.push(case("%p: i32[T]", &ops, "%o").limit("p", limit).error(8e-6));
        }
    }
    check(&cases, &[1, 41, 200]);
}

#[test]
fn experts() {
    let mut cases = Vec::new();
    for (spec, e, bias) in [
        ("route(softmax,k=4,renormalize=true)", 60, false),
        ("route(softmax,k=8,renormalize=false)", 128, false),
        ("route(sigmoid,k=8,renormalize=true,groups=8,top_groups=4,scale=2.5)", 256, true),
        ("route(sigmoid,k=2,renormalize=true,groups=4,top_groups=2)", 13 * 4, true),
    ] {
        let k = spec.split("k=").nth(1).unwrap().split(',').next().unwrap();
        let (param, arg) =
            if bias { (format!(", %b: f32[{e}]"), ", %b") } else { (String::new(), "") };
        let ops = format!("  %i, %w = route %x{arg} {{spec = {spec}}} : i32[T,{k}], f32[T,{k}]");
        cases.push(case(&format!("%x: f32[T,{e}]{param}"), &ops, "%i, %w"));
    }
    for t in ["f32", "bf16"] {
        let params = format!("%x: {t}[T,4,48], %ids: i32[T,4], %b: {t}[9,48]");
        cases.push(
            case(&params, &format!("  %o = expert_bias %x, %ids, %b : {t}[T,4,48]"), "%o")
                .limit("ids", 9),
        );
        for k in [1, 4, 10] {
            let params = format!("%x: {t}[T,{k},40], %w: f32[T,{k}]");
            cases.push(case(
                &params,
                &format!("  %o = combine_experts %x, %w {{out = {t}}} : {t}[T,40]"),
                "%o",
            ));
        }
    }
    cases.push(case(
        "%a: f32[T,12], %l: f32[12], %d: f32[12]",
        "  %o = delta_gate %a, %l, %d : f32[T,12]",
        "%o",
    ));
    check(&cases, &[1, 41]);
}

#[test]
fn largest() {
    let cases = ["f32", "bf16"]
        .map(|t| case(&format!("%x: {t}[T,1003]"), "  %o = argmax %x : i32[T]", "%o"));
    check(&cases, ROWS);
}

/// Cosines and sines of angles twice, and places, in the types in which the operator that prepares
/// latent attention takes them.
#[test]
fn angles_and_places_for_an_operator() {
    let params = "%angles: f32[T,64], %slots: i32[T]";
    let mut ops = String::new();
    for (part, start) in [("cos", 0), ("sin", 32)] {
        ops += &format!(
            "  %{part}_half = slice %angles {{axis = 1, start = {start}, len = 32}} : f32[T,32]
  %{part}_both = concat %{part}_half, %{part}_half {{axis = 1}} : f32[T,64]
  %{part} = cast %{part}_both {{to = bf16}} : bf16[T,64]\n"
        );
    }
    ops += "  %index = cast %slots {to = i64} : i64[T]";
    check(&[case(params, &ops, "%cos, %sin, %index").limit("slots", 1 << 31)], ROWS);
}
