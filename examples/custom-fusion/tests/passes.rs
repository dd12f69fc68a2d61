//! The pass, before and after in text, and the kernel against every body that the pass made there.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use custom_fusion::{GatedOutput, extension};
use precast_cli::Precast;
use precast_codegen_cpu::external::distance;
use precast_ir::text;
use precast_passes::filetest;
use std::{fs, path::Path};

fn folder() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/passes"))
}

#[test]
fn every_file_holds() {
    let precast = Precast::builder().register(extension()).build().unwrap();
    let tested = filetest::run_folder(folder(), precast.catalog(), &["gated_output"]);
    assert!(tested.unwrap_or_else(|e| panic!("{e}")).contains("fuse-gated-output"));
}

#[test]
fn the_kernel_computes_what_the_bodies_say() {
    for (file, bound) in [("fires.ir", 1e-6), ("rounded.ir", 4e-3)] {
        let source = fs::read_to_string(folder().join(file)).unwrap();
        let (_, after) = source.split_once("; ==== after\n").unwrap();
        let module = text::parse(file, after).unwrap();
        for seed in 1..=3 {
            let found = distance(&GatedOutput, &module, seed).unwrap();
            assert!(found < bound, "{file}: {found}");
        }
    }
}
