//! `cargo xtask check-acl`: our declarations of the Ascend interface against the public headers that
//! a torch-npu package brings.

use crate::{
    bindings::HEADER,
    header::{self, Function},
};
use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    process::Command,
};

/// The package whose headers are complete (those of older ones are cut down by hand).
const PACKAGE: &str = "torch-npu==2.12.0.post3";

/// What the headers of a package declare.
struct Vendor {
    functions: BTreeMap<String, Function>,
    numbers: BTreeMap<String, i64>,
}

/// How our declarations compare.
#[derive(Debug, Default, PartialEq, Eq)]
struct Comparison {
    /// Declarations that are the same.
    same: usize,
    /// Lines that say how one differs.
    different: Vec<String>,
    /// Names that the package does not declare.
    absent: Vec<String>,
}

/// Checks the wheel that follows `--wheel`, else one that it downloads.
pub(crate) fn run(root: &Path, arguments: &[String]) -> Result<(), String> {
    let scratch = Scratch::new()?;
    let wheel = match arguments {
        [] => download(&scratch.0)?,
        [flag, file] if flag == "--wheel" => PathBuf::from(file),
        _ => return Err("usage: cargo xtask check-acl [--wheel FILE]".into()),
    };
    let vendor = vendor(&unpack(&wheel, &scratch.0.join("headers"))?)?;
    let ours = std::fs::read_to_string(root.join(HEADER)).map_err(|e| format!("{HEADER}: {e}"))?;
    let compared = compare(&ours, &vendor)?;
    println!("{}: {} declarations are the same", wheel.display(), compared.same);
    println!("{} are not in its headers: {}", compared.absent.len(), compared.absent.join(", "));
    for line in &compared.different {
        println!("DIFFERENT {line}");
    }
    if compared.same == 0 {
        return Err("the package has no headers that could be compared".into());
    }
    match compared.different.len() {
        0 => Ok(()),
        n => Err(format!("{n} declarations differ; correct {HEADER}")),
    }
}

fn compare(ours: &str, vendor: &Vendor) -> Result<Comparison, String> {
    let mut result = Comparison::default();
    for f in header::functions(ours)? {
        let Some(theirs) = vendor.functions.get(&f.name) else {
            result.absent.push(f.name);
            continue;
        };
        if (&f.returns, &f.params) == (&theirs.returns, &theirs.params) {
            result.same += 1;
        } else {
            let text = |f: &Function| format!("{} ({})", f.returns, f.params.join(", "));
            result.different.push(format!("{}: {} here, {} there", f.name, text(&f), text(theirs)));
        }
    }
    for (name, value) in header::numbers(ours)? {
        match vendor.numbers.get(&name) {
            Some(&theirs) if theirs == value => result.same += 1,
            Some(theirs) => result.different.push(format!("{name}: {value} here, {theirs} there")),
            None => result.absent.push(name),
        }
    }
    Ok(result)
}

fn vendor(headers: &[PathBuf]) -> Result<Vendor, String> {
    let mut vendor = Vendor { functions: BTreeMap::new(), numbers: BTreeMap::new() };
    for path in headers {
        let text = std::fs::read(path).map_err(|e| format!("{}: {e}", path.display()))?;
        let text = String::from_utf8_lossy(&text);
        let place = |e| format!("{}: {e}", path.display());
        let declared = header::functions(&text).map_err(place)?;
        let declared = declared.into_iter().filter(|f| f.returns != "return");
        vendor.functions.extend(declared.map(|f| (f.name.clone(), f)));
        vendor.numbers.extend(header::numbers(&text).map_err(place)?);
    }
    Ok(vendor)
}

/// A folder that is removed afterwards.
struct Scratch(PathBuf);

impl Scratch {
    fn new() -> Result<Self, String> {
        let path = std::env::temp_dir().join(format!("precast-check-acl-{}", std::process::id()));
        std::fs::create_dir_all(&path).map_err(|e| format!("{}: {e}", path.display()))?;
        Ok(Self(path))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // What cannot be removed is left to the system.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn python(arguments: &[&str]) -> Result<(), String> {
    let status = Command::new("python3").args(arguments).status();
    match status {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(format!("python3 {} ended with {status}", arguments.join(" "))),
        Err(e) => Err(format!("cannot run python3: {e}")),
    }
}

fn download(into: &Path) -> Result<PathBuf, String> {
    let folder = into.display().to_string();
    let platform = ["--python-version", "3.11", "--platform", "manylinux_2_28_x86_64"];
    let what = ["--quiet", "--no-deps", "--only-binary=:all:", "--dest", &folder, PACKAGE];
    python(&[&["-m", "pip", "download"][..], &platform, &what].concat())?;
    let files = std::fs::read_dir(into).map_err(|e| e.to_string())?;
    let mut files = files.filter_map(|f| Some(f.ok()?.path()));
    let wheel = files.find(|f| f.extension().is_some_and(|e| e == "whl"));
    wheel.ok_or_else(|| "pip downloaded no wheel".into())
}

/// Unpacks the headers of the runtime interface.
fn unpack(wheel: &Path, into: &Path) -> Result<Vec<PathBuf>, String> {
    const SCRIPT: &str = "\
import os, sys, zipfile
wheel, into = sys.argv[1:]
os.makedirs(into)
for i, name in enumerate(zipfile.ZipFile(wheel).namelist()):
    base = os.path.basename(name)
    if '/acl/' in name and base.endswith('.h') and base.startswith(('acl', 'rt_error_codes')):
        with open(os.path.join(into, f'{i}-{base}'), 'wb') as f:
            f.write(zipfile.ZipFile(wheel).read(name))
";
    python(&["-c", SCRIPT, &wheel.display().to_string(), &into.display().to_string()])?;
    let files = std::fs::read_dir(into).map_err(|e| e.to_string())?;
    let mut files: Vec<PathBuf> = files.filter_map(|f| Some(f.ok()?.path())).collect();
    files.sort();
    Ok(files)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn differences_are_found() {
        let ours = "aclError same(void *a, uint32_t b);\naclError other(size_t a);\n\
            aclError gone(void);\nstatic const int CODE = 5;\nenum { A = 1, B = 3 };";
        let theirs = "ACL_FUNC_VISIBILITY aclError same(void *x, uint32_t y);\n\
            ACL_FUNC_VISIBILITY aclError other(int32_t a, size_t b);\n\
            #define CODE 5 // five\ntypedef enum { A = 1, B } t;";
        let functions = header::functions(theirs).unwrap();
        let vendor = Vendor {
            functions: functions.into_iter().map(|f| (f.name.clone(), f)).collect(),
            numbers: header::numbers(theirs).unwrap(),
        };
        let found = compare(ours, &vendor).unwrap();
        assert_eq!(found.same, 3, "same, CODE, A");
        assert_eq!(found.absent, ["gone"]);
        let different = [
            "other: aclError (size_t) here, aclError (int32_t, size_t) there",
            "B: 3 here, 2 there",
        ];
        assert_eq!(found.different, different);
    }
}
