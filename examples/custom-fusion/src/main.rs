//! `precast` with the extension: every command of it, with one fusion more.

use precast_cli::Precast;
use std::process::ExitCode;

fn main() -> ExitCode {
    match Precast::builder().register(custom_fusion::extension()).build() {
        Ok(precast) => precast.main(std::env::args_os()),
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}
