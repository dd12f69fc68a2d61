//! Documents that repeat what the code knows are held to it.

#[cfg(test)]
mod tests {
    use crate::crates;
    use std::{fs, path::Path};

    fn root() -> &'static Path {
        Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the workspace holds this crate")
    }

    #[test]
    fn the_architecture_page_has_the_crate_table() {
        let page = fs::read_to_string(root().join("docs/architecture.md")).unwrap();
        assert!(
            page.contains(&crates::table()),
            "docs/architecture.md differs from `cargo xtask crates`"
        );
    }

    /// Every path that the page names in backticks and that looks like a file exists.
    #[test]
    fn files_named_by_the_architecture_page_exist() {
        let page = fs::read_to_string(root().join("docs/architecture.md")).unwrap();
        let names = page.split('`').skip(1).step_by(2);
        let mut checked = 0;
        for name in names.filter(|n| n.contains('/') && !n.contains([' ', '*', '<', '{'])) {
            if name.starts_with('/') || name.starts_with("plans/") || name.starts_with("weights/") {
                continue;
            }
            assert!(root().join(name).exists(), "docs/architecture.md names {name}");
            checked += 1;
        }
        assert!(checked > 10, "the page names files");
    }
}
