//! `cargo xtask bindings`: Rust of the declaration header of the Ascend interface.
//!
//! Types and numbers become `sys.rs`, functions a list that the table of functions is derived from.
//! Building the project needs none of this: what it writes is committed.

use crate::header::{self, Function};
use std::path::Path;

/// The declarations of ours, from the root of the workspace.
pub(crate) const HEADER: &str = "codegen-ascend/acl/include/precast_acl.h";
const TYPES: &str = "codegen-ascend/acl/src/sys.rs";
const FUNCTIONS: &str = "codegen-ascend/acl/src/functions.rs";

/// Writes both files below `root`.
pub(crate) fn run(root: &Path) -> Result<(), String> {
    let path = root.join(HEADER);
    let text = std::fs::read_to_string(&path).map_err(|e| format!("{}: {e}", path.display()))?;
    let declared = header::functions(&text)?;
    let generated = generate::bindings(&path)?;
    let functions = functions_file(&generated.functions, &declared)?;
    for (file, text) in [(TYPES, types_file(&generated.types)), (FUNCTIONS, functions)] {
        let path = root.join(file);
        std::fs::write(&path, text).map_err(|e| format!("{}: {e}", path.display()))?;
        println!("wrote {file}");
    }
    format(root, &[TYPES, FUNCTIONS])
}

fn format(root: &Path, files: &[&str]) -> Result<(), String> {
    let status = std::process::Command::new("rustfmt")
        .args(["--edition", "2024"])
        .args(files)
        .current_dir(root)
        .status()
        .map_err(|e| format!("cannot run rustfmt: {e}"))?;
    status.success().then_some(()).ok_or_else(|| "rustfmt failed".into())
}

fn types_file(generated: &str) -> String {
    format!(
        "//! Types and numbers of the C interface. Made by `cargo xtask bindings` of `include/precast_acl.h`.\n\
         #![allow(\n    clippy::allow_attributes_without_reason, missing_docs, non_camel_case_types, non_snake_case, non_upper_case_globals,\n    \
         reason = \"the names are those of the C interface\"\n)]\n\n{}",
        plain_docs(generated)
    )
}

/// `#[doc = " text"]` as `/// text`.
fn plain_docs(text: &str) -> String {
    let line = |line: &str| match line.trim().strip_prefix("#[doc = \"") {
        Some(doc) => {
            doc.trim_end_matches("\"]").split("\\n").map(|d| format!("///{d}\n")).collect()
        }
        None => format!("{line}\n"),
    };
    text.lines().map(line).collect()
}

/// The functions of `generated`, each with what its declaration says of it.
fn functions_file(generated: &str, declared: &[Function]) -> Result<String, String> {
    let mut items = Vec::new();
    let flat = generated.replace('\n', " ");
    for f in declared {
        let library = f.annotation.as_ref().ok_or_else(|| format!("{} has no ACL_FUNC", f.name))?;
        let start = flat.find(&format!("pub fn {}(", f.name));
        let rest = &flat[start.ok_or_else(|| format!("{} was not generated", f.name))? + 4..];
        let item = &rest[..rest.find(';').ok_or("a function without an end")?];
        let item = item.split_whitespace().collect::<Vec<_>>().join(" ");
        let item = item.replace("( ", "(").replace(", )", ")");
        let doc: String = f.doc.iter().map(|line| format!("/// {line}\n")).collect();
        let [library, release, need] = library;
        items.push(format!("{doc}{library} {release} {need} {item};\n"));
    }
    Ok(format!(
        "//! The list of runtime functions. Made by `cargo xtask bindings` of `include/precast_acl.h`.\n\n\
         /// Calls the macro `$callback` with every function: its documentation, its library, the first\n\
         /// release that has it, whether it is required, and its declaration. Types are those of `acl::sys`,\n\
         /// which the caller has in scope.\n\
         #[macro_export]\nmacro_rules! for_each_function {{\n    ($callback:ident) => {{\n        $callback! {{\n{}        }}\n    }};\n}}\n",
        items.concat().lines().map(|l| format!("            {l}\n")).collect::<String>()
    ))
}

/// What bindgen makes of the header.
struct Generated {
    types: String,
    functions: String,
}

#[cfg(feature = "bindings")]
mod generate {
    use super::Generated;
    use bindgen::{CodegenConfig, RustTarget};
    use std::path::Path;

    pub(super) fn bindings(header: &Path) -> Result<Generated, String> {
        let make = |config: CodegenConfig| -> Result<String, String> {
            let target = RustTarget::stable(85, 0).map_err(|e| e.to_string())?;
            bindgen::builder()
                .header(header.display().to_string())
                .clang_args(system_headers())
                .allowlist_file(header.display().to_string())
                .with_codegen_config(config)
                .use_core()
                .ctypes_prefix("::core::ffi")
                .prepend_enum_name(false)
                .rust_target(target)
                .rust_edition(bindgen::RustEdition::Edition2024)
                .disable_header_comment()
                .generate()
                .map(|b| b.to_string())
                .map_err(|e| e.to_string())
        };
        Ok(Generated {
            types: make(CodegenConfig::TYPES | CodegenConfig::VARS)?,
            functions: make(CodegenConfig::FUNCTIONS)?,
        })
    }

    /// A libclang without the headers that clang brings finds those of the host's compiler.
    fn system_headers() -> Vec<String> {
        let out = std::process::Command::new("cc").arg("-print-file-name=include").output();
        match out {
            Ok(out) if out.status.success() => {
                vec!["-isystem".into(), String::from_utf8_lossy(&out.stdout).trim().to_owned()]
            }
            _ => Vec::new(),
        }
    }
}

#[cfg(not(feature = "bindings"))]
mod generate {
    use super::Generated;
    use std::path::Path;

    pub(super) fn bindings(_: &Path) -> Result<Generated, String> {
        Err("this build has no bindgen; run `cargo run -p precast-xtask --features bindings -- bindings` \
             with libclang installed, or LIBCLANG_PATH naming the folder of one (the package \
             `libclang` of PyPI has it)"
            .into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::PathBuf;

    fn root() -> PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("in the workspace").to_path_buf()
    }

    /// Without libclang only names can be compared; they are what is forgotten.
    #[test]
    fn the_committed_bindings_have_every_declaration() {
        let read = |file: &str| std::fs::read_to_string(root().join(file)).expect("committed");
        let (text, sys, functions) = (read(HEADER), read(TYPES), read(FUNCTIONS));
        let declared = header::functions(&text).unwrap();
        assert!(declared.len() > 90, "{}", declared.len());
        let order: Vec<usize> = declared
            .iter()
            .map(|f| {
                functions.find(&format!(" fn {}(", f.name)).unwrap_or_else(|| panic!("{}", f.name))
            })
            .collect();
        assert!(order.is_sorted(), "the list is in the order of the header");
        assert_eq!(functions.matches(" fn acl").count(), declared.len());
        for (name, value) in header::numbers(&text).unwrap() {
            let found = sys.lines().find(|l| l.contains(&format!(" {name}: ")));
            let found = found.unwrap_or_else(|| panic!("{name} is not in {TYPES}"));
            assert!(found.ends_with(&format!("= {value};")), "{found}");
        }
    }

    #[test]
    fn a_function_keeps_its_annotation() {
        let header = "/// Says it.\nACL_FUNC(ascendcl, V8_1, optional)\naclError say(int32_t a);\n";
        let text = functions_file(
            "unsafe extern \"C\" {\n pub fn say(a: i32)\n -> aclError;\n}",
            &header::functions(header).unwrap(),
        );
        let text = text.unwrap();
        assert!(text.contains(
            "/// Says it.\n            ascendcl V8_1 optional fn say(a: i32) -> aclError;"
        ));
    }
}
