//! What decides how ops are computed: artifacts made with other texts are other artifacts.

/// The texts.
pub(super) const TEXTS: &[&str] = &[
    include_str!("../../acl/src/table.rs"),
    include_str!("../chip.rs"),
    include_str!("../kernels/copy/copy.cpp"),
    include_str!("../kernels/copy/mod.rs"),
    include_str!("../kernels/experts/copy_row.h"),
    include_str!("../kernels/experts/gather.cpp"),
    include_str!("../kernels/experts/gather.h"),
    include_str!("../kernels/experts/gather_and_list.cpp"),
    include_str!("../kernels/experts/group_list.h"),
    include_str!("../kernels/experts/groups.cpp"),
    include_str!("../kernels/experts/groups.h"),
    include_str!("../kernels/experts/mod.rs"),
    include_str!("../kernels/experts/scatter.cpp"),
    include_str!("../kernels/mod.rs"),
    include_str!("../kernels/paged/cache.h"),
    include_str!("../kernels/paged/combine.h"),
    include_str!("../kernels/paged/cube.rs"),
    include_str!("../kernels/paged/fold.h"),
    include_str!("../kernels/paged/index_scores.cpp"),
    include_str!("../kernels/paged/index_scores.h"),
    include_str!("../kernels/paged/latent.h"),
    include_str!("../kernels/paged/mod.rs"),
    include_str!("../kernels/paged/piece.h"),
    include_str!("../kernels/paged/pieces.h"),
    include_str!("../kernels/paged/problem.rs"),
    include_str!("../kernels/paged/products.h"),
    include_str!("../kernels/paged/results_pieces.h"),
    include_str!("../kernels/paged/results_whole.h"),
    include_str!("../kernels/paged/rows_of_cache.h"),
    include_str!("../kernels/paged/rows_of_latent.h"),
    include_str!("../kernels/paged/rows_of_selected.h"),
    include_str!("../kernels/paged/select.cpp"),
    include_str!("../kernels/paged/select.h"),
    include_str!("../kernels/paged/select.rs"),
    include_str!("../kernels/paged/selected.h"),
    include_str!("../kernels/paged/signature.rs"),
    include_str!("../kernels/paged/steps.h"),
    include_str!("../kernels/paged/vector.rs"),
    include_str!("../kernels/paged/weights.h"),
    include_str!("../kernels/paged/whole.h"),
    include_str!("../kernels/recurrent/conv.cpp"),
    include_str!("../kernels/recurrent/conv.h"),
    include_str!("../kernels/recurrent/delta.cpp"),
    include_str!("../kernels/recurrent/delta.h"),
    include_str!("../kernels/recurrent/mod.rs"),
    include_str!("../kernels/rows/emit.rs"),
    include_str!("../kernels/rows/mod.rs"),
    include_str!("../kernels/rows/moves.rs"),
    include_str!("../kernels/rows/ops.rs"),
    include_str!("../kernels/rows/parts.rs"),
    include_str!("../kernels/rows/program.rs"),
    include_str!("../kernels/rows/reduce.rs"),
    include_str!("../kernels/rows/rope.rs"),
    include_str!("../kernels/rows/route.rs"),
    include_str!("../kernels/rows/states.rs"),
    include_str!("../kernels/rows/text.rs"),
    include_str!("../kernels/rows/whole.rs"),
    include_str!("../kernels/sampling/mod.rs"),
    include_str!("../kernels/sampling/sample.cpp"),
    include_str!("../kernels/sampling/sample.h"),
    include_str!("../kernels/sampling/top_k.cpp"),
    include_str!("../kernels/sampling/top_k.h"),
    include_str!("../kernels/source.rs"),
    include_str!("../kernels/sync.h"),
    include_str!("../kernels/threshold.h"),
    include_str!("../kernels/vector.h"),
    include_str!("activation.rs"),
    include_str!("build.sh"),
    include_str!("choices.rs"),
    include_str!("collective.rs"),
    include_str!("dense.rs"),
    include_str!("dequantize/dequantize.cpp"),
    include_str!("dequantize/mod.rs"),
    include_str!("grouped.rs"),
    include_str!("library.rs"),
    include_str!("mla.rs"),
    include_str!("mod.rs"),
    include_str!("moe.rs"),
    include_str!("quant.rs"),
    include_str!("sparse/lengths.cpp"),
    include_str!("sparse/mod.rs"),
];

#[cfg(test)]
mod tests {
    use std::{fs, path::Path};

    /// Every file of kernels that are generated is listed.
    #[test]
    fn no_kernel_is_missing() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/kernels");
        let (mut folders, mut files) = (vec![folder], Vec::new());
        while let Some(folder) = folders.pop() {
            for entry in fs::read_dir(folder).expect("a folder") {
                let path = entry.expect("an entry").path();
                if path.is_dir() { folders.push(path) } else { files.push(path) }
            }
        }
        // The header for the host decides nothing.
        files.retain(|path| !path.ends_with("kernels/shim.rs"));
        assert!(files.len() > 50, "{files:?}");
        for path in files {
            let text = fs::read_to_string(&path).expect("a text");
            assert!(super::TEXTS.contains(&text.as_str()), "{} is not listed", path.display());
        }
    }
}
