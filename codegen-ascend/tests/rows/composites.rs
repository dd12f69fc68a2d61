//! Several ops as one kernel, as they stand in real models.

use crate::harness::{case, check};

#[test]
fn of_dense_models() {
    let mut cases = Vec::new();
    for t in ["f32", "bf16"] {
        // Between a layer and the next, with quantised activations.
        cases.push(
            case(
                &format!("%x: {t}[T,200], %r: {t}[T,200], %w: {t}[200]"),
                &format!(
                    "  %s = add %x, %r : {t}[T,200]\n  %n = rms_norm %s, %w {{eps = 1e-6, out = {t}}} : {t}[T,200]\n  \
                     %q, %d = quantize_rows %n : i8[T,200], f32[T,1]"
                ),
                "%s, %q, %d",
            )
            .codes(1.0),
        );
        // The activation of the feed-forward part.
        cases.push(
            case(
                &format!("%gu: {t}[T,272]"),
                &format!(
                    "  %g = slice %gu {{axis = 1, start = 0, len = 136}} : {t}[T,136]\n  \
                     %u = slice %gu {{axis = 1, start = 136, len = 136}} : {t}[T,136]\n  \
                     %a = silu_mul %g, %u {{out = {t}}} : {t}[T,136]\n  \
                     %q, %d = quantize_rows %a : i8[T,136], f32[T,1]"
                ),
                "%q, %d",
            )
            .codes(1.0),
        );
        // From the joined projection to the cache.
        cases.push(
            case(
                &format!(
                    "%qkv: {t}[T,256], %qw: {t}[32], %kw: {t}[32], %angles: f32[T,32], %cache: state {t}[6,2,2,16,32], %slots: i32[T]"
                ),
                &format!(
                    "  %q0 = slice %qkv {{axis = 1, start = 0, len = 128}} : {t}[T,128]\n  \
                     %q1 = reshape %q0 {{dims = [T,4,32]}} : {t}[T,4,32]\n  \
                     %q2 = rms_norm %q1, %qw {{eps = 1e-6, out = {t}}} : {t}[T,4,32]\n  \
                     %q = rotary %q2, %angles {{interleaved = false}} : {t}[T,4,32]\n  \
                     %k0 = slice %qkv {{axis = 1, start = 128, len = 64}} : {t}[T,64]\n  \
                     %k1 = reshape %k0 {{dims = [T,2,32]}} : {t}[T,2,32]\n  \
                     %k2 = rms_norm %k1, %kw {{eps = 1e-6, out = {t}}} : {t}[T,2,32]\n  \
                     %k = rotary %k2, %angles {{interleaved = false}} : {t}[T,2,32]\n  \
                     %v0 = slice %qkv {{axis = 1, start = 192, len = 64}} : {t}[T,64]\n  \
                     %v = reshape %v0 {{dims = [T,2,32]}} : {t}[T,2,32]\n  \
                     %next = kv_write %cache, %k, %v, %slots : state {t}[6,2,2,16,32]"
                ),
                "%q, %next",
            )
            .limit("slots", 96),
        );
        // The start of a model: embedding, angles, first norm.
        cases.push(
            case(
                &format!("%ids: i32[T], %positions: i32[T], %table: {t}[70,72], %w: {t}[72]"),
                &format!(
                    "  %x = embed %ids, %table {{out = {t}}} : {t}[T,72]\n  \
                     %n = rms_norm %x, %w {{eps = 1e-6, out = {t}}} : {t}[T,72]\n  \
                     %a = rope_table %positions {{spec = rope(theta=10000,dim=32)}} : f32[T,32]"
                ),
                "%x, %n, %a",
            )
            .limit("ids", 70)
            .limit("positions", 5000),
        );
    }
    check(&cases, &[1, 39, 41, 85]);
}

#[test]
fn of_latent_attention_and_experts() {
    let mut cases = Vec::new();
    for t in ["f32", "bf16"] {
        // The latent and the rotated key of DeepSeek, each into its memory.
        cases.push(
            case(
                &format!(
                    "%kv: {t}[T,96], %w: {t}[64], %angles: f32[T,32], %latent: state {t}[4,16,64], %rope: state {t}[4,16,32], %slots: i32[T]"
                ),
                &format!(
                    "  %c = slice %kv {{axis = 1, start = 0, len = 64}} : {t}[T,64]\n  \
                     %n = rms_norm %c, %w {{eps = 1e-6, out = {t}}} : {t}[T,64]\n  \
                     %p = slice %kv {{axis = 1, start = 64, len = 32}} : {t}[T,32]\n  \
                     %p3 = reshape %p {{dims = [T,1,32]}} : {t}[T,1,32]\n  \
                     %r = rotary %p3, %angles {{interleaved = true}} : {t}[T,1,32]\n  \
                     %r2 = reshape %r {{dims = [T,32]}} : {t}[T,32]\n  \
                     %l1 = paged_write %latent, %n, %slots : state {t}[4,16,64]\n  \
                     %r1 = paged_write %rope, %r2, %slots : state {t}[4,16,32]"
                ),
                "%l1, %r1",
            )
            .limit("slots", 64),
        );
        // Heads of queries: a part of each rotated, joined again.
        cases.push(case(
            &format!("%q: {t}[T,4,48], %angles: f32[T,16]"),
            &format!(
                "  %a = slice %q {{axis = 2, start = 0, len = 32}} : {t}[T,4,32]\n  \
                 %b = slice %q {{axis = 2, start = 32, len = 16}} : {t}[T,4,16]\n  \
                 %r = rotary %b, %angles {{interleaved = true}} : {t}[T,4,16]\n  \
                 %o = concat %a, %r {{axis = 2}} : {t}[T,4,48]"
            ),
            "%o",
        ));
        // After the experts: combined, with the shared one, onto the residual.
        cases.push(case(
            &format!(
                "%e: {t}[T,4,56], %w: f32[T,4], %shared: {t}[T,56], %gate: {t}[T,1], %x: {t}[T,56]"
            ),
            &format!(
                "  %c = combine_experts %e, %w {{out = {t}}} : {t}[T,56]\n  \
                 %g = sigmoid %gate : {t}[T,1]\n  \
                 %s = scale_rows %shared, %g : {t}[T,56]\n  \
                 %y = add %c, %s : {t}[T,56]\n  \
                 %o = add %y, %x : {t}[T,56]"
            ),
            "%o",
        ));
    }
    check(&cases, &[1, 39, 41, 85]);
}
