//! The code in `docs/adding-a-fusion.md` is that of the files it names. `.ci/run` runs its commands.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use precast_tests::root;
use std::{collections::BTreeSet, fs};

const EXAMPLE: &str = "examples/custom-fusion";

/// The last file of the example that the text before a block names.
fn named(text: &str) -> Option<&str> {
    let names = text.split('`').skip(1).step_by(2);
    names.filter(|n| n.starts_with("examples/custom-fusion/") && n.contains('.')).last()
}

#[test]
fn code_is_that_of_the_files() {
    let page = fs::read_to_string(root("docs/adding-a-fusion.md")).unwrap();
    let mut shown = BTreeSet::new();
    let mut parts = page.split("\n```");
    let mut before = parts.next().unwrap().to_owned();
    while let (Some(block), after) = (parts.next(), parts.next()) {
        let (language, code) = block.split_once('\n').unwrap();
        let is_case = code.contains("; ==== after");
        if matches!(language, "rust" | "toml") || is_case {
            let name = named(&before).unwrap();
            let file = fs::read_to_string(root(name)).unwrap();
            assert_eq!(format!("{code}\n"), file, "{name} differs from the page");
            shown.insert(name.to_owned());
        }
        before = after.unwrap_or_default().to_owned();
    }
    let sources = fs::read_dir(root(EXAMPLE).join("src")).unwrap();
    for entry in sources {
        let name = format!("{EXAMPLE}/src/{}", entry.unwrap().file_name().to_str().unwrap());
        assert!(shown.contains(&name), "{name} is not on the page");
    }
    assert!(shown.len() > 5, "{shown:?}");
}

#[test]
fn ci_tests_the_example_and_follows_the_page() {
    let ci = fs::read_to_string(root(".ci/run")).unwrap();
    assert!(ci.contains("examples/custom-fusion/Cargo.toml"), "{ci}");
    assert!(ci.contains("docs/adding-a-fusion.md"), "{ci}");
    let page = fs::read_to_string(root("docs/adding-a-fusion.md")).unwrap();
    assert!(
        page.contains("```sh\ncargo test --manifest-path examples/custom-fusion/Cargo.toml\n```")
    );
}
