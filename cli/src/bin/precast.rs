//! `precast`: see `precast --help`.

fn main() -> std::process::ExitCode {
    cli::main(std::env::args_os())
}
