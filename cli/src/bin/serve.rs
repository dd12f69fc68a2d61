//! `serve`: the same as `precast serve`.

fn main() -> std::process::ExitCode {
    let mut args = vec!["precast".into(), "serve".into()];
    args.extend(std::env::args_os().skip(1));
    precast_cli::main(args)
}
