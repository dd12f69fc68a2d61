//! The text of this crate, so that a cache of compiled artifacts is invalidated when a pass changes.

macro_rules! files {
    ($($path:literal),* $(,)?) => { &[$(($path, include_str!($path))),*] };
}

/// Every source file with a say in what passes do: path under `passes/src` and content.
pub fn sources() -> &'static [(&'static str, &'static str)] {
    files![
        "absorb_latent.rs",
        "canonicalise.rs",
        "catalog.rs",
        "constants.rs",
        "dead.rs",
        "driver.rs",
        "fold_cast.rs",
        "fuse/add_rms_norm.rs",
        "fuse/dequantize.rs",
        "fuse/epilogues.rs",
        "fuse/gate_up.rs",
        "fuse/mla_preprocess.rs",
        "fuse/mla_prolog.rs",
        "fuse/mod.rs",
        "fuse/moe.rs",
        "fuse/new_nodes.rs",
        "fuse/product.rs",
        "fuse/qk_rope_write.rs",
        "fuse/qkv.rs",
        "fuse/quantize.rs",
        "fuse/rows.rs",
        "fuse/silu_mul.rs",
        "layouts.rs",
        "duplicates.rs",
        "manager.rs",
        "pattern/fusion.rs",
        "pattern/matcher.rs",
        "pattern/mod.rs",
        "phase.rs",
        "pipelines.rs",
        "quantize.rs",
        "rewrite.rs",
        "specialise.rs",
        "w4a8_experts.rs",
        "target.rs",
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{collections::BTreeSet, fs, path::Path};

    /// Files of the crate that passes do not depend on.
    const EXEMPT: &[&str] = &[
        "lib.rs",
        "sources.rs",
        "numerics.rs",
        "reference.rs",
        "draw.rs",
        "bisect.rs",
        "filetest.rs",
        "report.rs",
        "places.rs",
        "summary.rs",
        "tests.rs",
    ];

    #[test]
    fn every_pass_gives_the_file_it_is_in() {
        let catalog = crate::Catalog::builtin();
        for pass in catalog.names().into_iter().filter_map(|n| catalog.pass(n)) {
            let declares = format!("\"{}\"", pass.name());
            assert!(pass.source().contains(&declares), "{}", pass.name());
            assert!(sources().iter().any(|(_, s)| *s == pass.source()), "{}", pass.name());
        }
    }

    #[test]
    fn every_file_of_the_crate_is_listed() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
        let mut found = BTreeSet::new();
        for (folder, prefix) in
            [(root.clone(), ""), (root.join("fuse"), "fuse/"), (root.join("pattern"), "pattern/")]
        {
            for entry in fs::read_dir(folder).unwrap() {
                let name = entry.unwrap().file_name().into_string().unwrap();
                if name.ends_with(".rs") && !EXEMPT.contains(&name.as_str()) {
                    found.insert(format!("{prefix}{name}"));
                }
            }
        }
        let listed = sources().iter().map(|(path, _)| (*path).to_owned()).collect();
        assert_eq!(found, listed);
    }
}
