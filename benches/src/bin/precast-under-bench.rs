//! `precast` as the benchmarks run it: Cargo builds the programs of a package before its benchmarks.

fn main() -> std::process::ExitCode {
    cli::main(std::env::args_os())
}
