//! Repository chores: the crate diagram that the tests enforce, and the declarations of the Ascend
//! interface.
#![forbid(unsafe_code)]

mod bindings;
mod check_acl;
mod crates;
mod docs;
mod families;
mod header;

use std::{path::Path, process::ExitCode};

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let done = match arguments.first().map(String::as_str) {
        Some("crates") => {
            print!("{}", crates::table());
            Ok(())
        }
        Some("bindings") => bindings::run(Path::new(".")),
        Some("check-acl") => check_acl::run(Path::new("."), &arguments[1..]),
        _ => {
            eprintln!(
                "usage, in the root of the workspace:\n\
                 cargo xtask crates      print the table of crates for docs/architecture.md\n\
                 cargo xtask bindings    make codegen-ascend/acl/src/{{sys,functions}}.rs of the header there\n\
                 cargo xtask check-acl [--wheel FILE]    compare that header with those of a torch-npu package"
            );
            return ExitCode::from(2);
        }
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("{why}");
            ExitCode::FAILURE
        }
    }
}
