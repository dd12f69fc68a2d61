//! `precast` as the tests of this package run it: Cargo builds the programs of a package before its
//! integration tests, and only those.

fn main() -> std::process::ExitCode {
    cli::main(std::env::args_os())
}
