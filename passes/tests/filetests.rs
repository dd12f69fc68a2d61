//! Runs `tests/filetests/passes/*.ir`, see `filetest`.

use precast_passes::{Catalog, filetest};
use std::path::Path;

#[test]
fn every_pass_file_holds() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/filetests/passes");
    let catalog = Catalog::builtin();
    let tested = filetest::run_folder(&folder, &catalog, &[]).unwrap_or_else(|e| panic!("{e}"));
    let untested: Vec<&str> =
        catalog.names().into_iter().filter(|n| !tested.contains(*n)).collect();
    assert!(untested.is_empty(), "passes without a file test: {untested:?}");
}
