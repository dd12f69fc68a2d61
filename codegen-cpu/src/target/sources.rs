//! What the hash of the kernels covers.

macro_rules! sources {
    ($($path:literal),* $(,)?) => {
        #[cfg(test)]
        const PATHS: &[&str] = &[$($path),*];

        /// Every source file that decides what a call in a plan computes. (The slow reference
        /// kernels compute nothing that is served.)
        pub(super) const TEXTS: &[&str] =
            &[$(include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/", $path))),*];
    };
}

sources! {
    "KERNELS.md",
    "src/kernels/argmax.rs",
    "src/kernels/attention/ahead.rs",
    "src/kernels/attention/amx.rs",
    "src/kernels/attention/bytes.rs",
    "src/kernels/attention/codes.rs",
    "src/kernels/attention/item.rs",
    "src/kernels/attention/mod.rs",
    "src/kernels/attention/numbers.rs",
    "src/kernels/attention/seen.rs",
    "src/kernels/attention/sinks.rs",
    "src/kernels/attention/soften.rs",
    "src/kernels/attention/tile.rs",
    "src/kernels/attention/turns.rs",
    "src/kernels/attention/whole.rs",
    "src/kernels/barrier.rs",
    "src/kernels/bind.rs",
    "src/kernels/concat.rs",
    "src/kernels/element.rs",
    "src/kernels/elementwise/functions.rs",
    "src/kernels/elementwise/mod.rs",
    "src/kernels/epilogue/largest.rs",
    "src/kernels/epilogue/mod.rs",
    "src/kernels/epilogue/out.rs",
    "src/kernels/exp.rs",
    "src/kernels/experts/combine.rs",
    "src/kernels/experts/groups.rs",
    "src/kernels/experts/mod.rs",
    "src/kernels/experts/route.rs",
    "src/kernels/external/bind.rs",
    "src/kernels/external/check.rs",
    "src/kernels/external/mod.rs",
    "src/kernels/external/row.rs",
    "src/kernels/head_matmul.rs",
    "src/kernels/kv.rs",
    "src/kernels/l2_norm.rs",
    "src/kernels/latent/amx.rs",
    "src/kernels/latent/attention.rs",
    "src/kernels/latent/chunk.rs",
    "src/kernels/latent/mod.rs",
    "src/kernels/latent/pack.rs",
    "src/kernels/latent/places.rs",
    "src/kernels/latent/select.rs",
    "src/kernels/latent/tile.rs",
    "src/kernels/latent/write.rs",
    "src/kernels/layer_norm.rs",
    "src/kernels/matmul/amx.rs",
    "src/kernels/matmul/compact/along.rs",
    "src/kernels/matmul/compact/coded.rs",
    "src/kernels/matmul/compact/mod.rs",
    "src/kernels/matmul/compact/octets.rs",
    "src/kernels/matmul/compact/weight.rs",
    "src/kernels/matmul/mod.rs",
    "src/kernels/matmul/squares.rs",
    "src/kernels/matmul/tile.rs",
    "src/kernels/matmul/tiled/many.rs",
    "src/kernels/matmul/tiled/mod.rs",
    "src/kernels/matmul/tiled/one.rs",
    "src/kernels/matmul/tiled/weight.rs",
    "src/kernels/mod.rs",
    "src/kernels/norm.rs",
    "src/kernels/product/beside.rs",
    "src/kernels/product/code_tiles.rs",
    "src/kernels/product/codes.rs",
    "src/kernels/product/company.rs",
    "src/kernels/product/fold.rs",
    "src/kernels/product/inner.rs",
    "src/kernels/product/inputs.rs",
    "src/kernels/product/matrix.rs",
    "src/kernels/product/method.rs",
    "src/kernels/product/mod.rs",
    "src/kernels/product/pairs.rs",
    "src/kernels/product/panel.rs",
    "src/kernels/product/quantise.rs",
    "src/kernels/product/source.rs",
    "src/kernels/product/squares.rs",
    "src/kernels/product/store.rs",
    "src/kernels/product/tile.rs",
    "src/kernels/quantize/codes.rs",
    "src/kernels/quantize/fp8.rs",
    "src/kernels/quantize/mod.rs",
    "src/kernels/quantize/rows.rs",
    "src/kernels/recurrent/conv.rs",
    "src/kernels/recurrent/delta.rs",
    "src/kernels/recurrent/gate.rs",
    "src/kernels/recurrent/mod.rs",
    "src/kernels/recurrent/slab.rs",
    "src/kernels/registry/dense.rs",
    "src/kernels/registry/experts.rs",
    "src/kernels/registry/latent.rs",
    "src/kernels/registry/mod.rs",
    "src/kernels/registry/product.rs",
    "src/kernels/registry/quant.rs",
    "src/kernels/registry/recurrent.rs",
    "src/kernels/registry/sample.rs",
    "src/kernels/registry/tests.rs",
    "src/kernels/rope.rs",
    "src/kernels/rows.rs",
    "src/kernels/simd/avx2.rs",
    "src/kernels/simd/avx512.rs",
    "src/kernels/simd/mod.rs",
    "src/kernels/simd/neon.rs",
    "src/kernels/simd/portable.rs",
    "src/kernels/simd/tests.rs",
    "src/kernels/top_k.rs",
    "src/kernels/uses.rs",
    "src/kernels/worker.rs",
    "src/target/external.rs",
    "src/target/lower/dense.rs",
    "src/target/lower/experts.rs",
    "src/target/lower/latent.rs",
    "src/target/lower/linear.rs",
    "src/target/lower/mod.rs",
    "src/target/lower/product.rs",
    "src/target/lower/quant.rs",
    "src/target/lower/recurrent.rs",
    "src/target/mod.rs",
    "src/target/sources.rs",
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    fn collect(dir: &Path, root: &Path, found: &mut Vec<String>) {
        for entry in std::fs::read_dir(dir).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                collect(&path, root, found);
            } else {
                let inside = path.strip_prefix(root).unwrap();
                let parts: Vec<_> = inside.iter().map(|part| part.to_str().unwrap()).collect();
                found.push(parts.join("/"));
            }
        }
    }

    #[test]
    fn every_kernel_source_is_listed() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR"));
        let mut found = vec!["KERNELS.md".to_owned()];
        for dir in ["src/kernels", "src/target"] {
            collect(&root.join(dir), root, &mut found);
        }
        found.retain(|path| !path.starts_with("src/kernels/reference/"));
        found.sort();
        assert_eq!(PATHS, found);
        assert_eq!(PATHS.len(), TEXTS.len());
    }
}
