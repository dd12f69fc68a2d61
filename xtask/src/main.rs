//! Repository chores. `cargo xtask crates` prints the crate diagram that the tests enforce.
#![forbid(unsafe_code)]

mod crates;
mod docs;

use std::process::ExitCode;

fn main() -> ExitCode {
    match std::env::args().nth(1).as_deref() {
        Some("crates") => {
            print!("{}", crates::table());
            ExitCode::SUCCESS
        }
        _ => {
            eprintln!(
                "usage: cargo xtask crates    print the table of crates for docs/architecture.md"
            );
            ExitCode::from(2)
        }
    }
}
