//! What our own command line accepts.

use std::ffi::OsString;

/// A command that is printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ours {
    Compile,
    Serve,
}

impl Ours {
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Compile => "compile",
            Self::Serve => "serve",
        }
    }

    /// The least that it takes.
    fn minimal(self) -> &'static [&'static str] {
        match self {
            Self::Compile => &["precast", "compile", "--model", "m"],
            Self::Serve => &["precast", "serve", "artifact"],
        }
    }

    fn has(self, flag: &str) -> bool {
        let program = <crate::Cli as clap::CommandFactory>::command();
        let command = program.find_subcommand(self.name());
        let long = flag.trim_start_matches('-');
        command.is_some_and(|c| c.get_arguments().any(|a| a.get_long() == Some(long)))
    }
}

/// The command that has `flag`, if any.
pub(super) fn command_of(flag: &str) -> Option<Ours> {
    [Ours::Serve, Ours::Compile].into_iter().find(|o| o.has(flag))
}

/// Why `command` would refuse `flag` with `values`.
pub(super) fn refusal(command: Ours, flag: &str, values: &[String]) -> Option<String> {
    let words = command.minimal().iter().map(OsString::from).chain([OsString::from(flag)]);
    let error = crate::parse(words.chain(values.iter().map(OsString::from))).err()?;
    let text = error.to_string();
    let first = text.lines().next().unwrap_or_default();
    Some(first.trim_start_matches("error: ").to_owned())
}
