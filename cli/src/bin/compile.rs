//! `compile`: the same as `precast compile`.

fn main() -> std::process::ExitCode {
    let mut args = vec!["precast".into(), "compile".into()];
    args.extend(std::env::args_os().skip(1));
    precast_cli::main(args)
}
