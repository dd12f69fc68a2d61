//! The command line: what each command of `precast` does, callable from tests.

#![forbid(unsafe_code)]

mod args;
mod cache;
mod compile;
mod engine;
mod generate;
mod inspect;
mod log;
mod matches;
mod opt;
mod program;
mod recorded;
mod report;
mod serve;

pub use args::{Cli, Command, CompileArgs, EngineArgs, MatchFloor, ServeArgs, parse};
pub use compile::compile;
pub use engine::load_engine;

use std::process::ExitCode;

/// Runs the command that `args` (with the program name first) describe. The exit status is 0 when
/// it succeeded, 1 when it failed and 2 when the arguments were wrong.
pub fn main(args: impl IntoIterator<Item = std::ffi::OsString>) -> ExitCode {
    let cli = match parse(args) {
        Ok(cli) => cli,
        Err(error) => {
            // Help and version are errors of clap's that print to stdout and succeed.
            let _ = error.print();
            return if error.use_stderr() { ExitCode::from(2) } else { ExitCode::SUCCESS };
        }
    };
    log::init(cli.log_format);
    match run(cli.command) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) if log::is_closed_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => {
            log::failure(&error);
            ExitCode::FAILURE
        }
    }
}

fn run(command: Command) -> anyhow::Result<()> {
    match command {
        Command::Compile(args) => compile(&args).map(|_| ()),
        Command::Serve(args) => serve::serve(&args),
        Command::Run(args) => serve::run(&args),
        Command::Generate(args) => generate::generate(&args),
        Command::Inspect(args) => inspect::inspect(&args),
        Command::Opt(args) => opt::opt(&args),
    }
}
