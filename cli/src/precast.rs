//! The program as a value: the commands with what extensions add to them.

use crate::{
    args::{BenchCommand, Command},
    bench, compile, doctor,
    extension::{Extension, ExtensionError},
    from_sglang::{self, NoLaunchLine},
    generate, inspect, log, opt, selfcheck, serve,
};
use anyhow::bail;
use artifact::Artifact;
use codegen_cpu::{external::ExternalKernels, target::ExtendedTarget};
use passes::Catalog;
use std::{ffi::OsString, process::ExitCode};

/// The program. [`Precast::builder`] makes one with extensions; the default has none.
#[derive(Debug, Default)]
pub struct Precast {
    pub(crate) catalog: Catalog,
    pub(crate) kernels: ExternalKernels,
    pub(crate) target: ExtendedTarget,
    pub(crate) extensions: Vec<artifact::ExtensionEntry>,
}

/// Collects extensions for [`Precast`].
#[derive(Default)]
pub struct Builder {
    extensions: Vec<Extension>,
}

impl Builder {
    /// Adds an extension. Those registered later may refer to passes of those before.
    pub fn register(mut self, extension: Extension) -> Self {
        self.extensions.push(extension);
        self
    }

    /// The program.
    ///
    /// # Errors
    /// [`ExtensionError`] when an extension does not fit.
    pub fn build(self) -> Result<Precast, ExtensionError> {
        let (mut catalog, mut kernels) = (Catalog::builtin(), ExternalKernels::default());
        let mut extensions: Vec<artifact::ExtensionEntry> = Vec::new();
        for extension in self.extensions {
            let made = extension.register(&mut catalog, &mut kernels)?;
            if extensions.iter().any(|e| e.name == made.name) {
                return Err(ExtensionError::Twice(made.name));
            }
            extensions.push(made);
        }
        let target = ExtendedTarget::new(kernels.clone());
        Ok(Precast { catalog, kernels, target, extensions })
    }
}

impl Precast {
    /// A program with extensions.
    pub fn builder() -> Builder {
        Builder::default()
    }

    /// The passes, with those of extensions.
    pub fn catalog(&self) -> &Catalog {
        &self.catalog
    }

    /// Runs the command that `args` (with the program name first) describe. The exit status is 0
    /// when it succeeded, 1 when it failed and 2 when the arguments were wrong.
    pub fn main(&self, args: impl IntoIterator<Item = OsString>) -> ExitCode {
        let cli = match crate::parse(args) {
            Ok(cli) => cli,
            Err(error) => {
                // Help and version are errors of clap's that print to stdout and succeed.
                let _ = error.print();
                return if error.use_stderr() { ExitCode::from(2) } else { ExitCode::SUCCESS };
            }
        };
        log::init(cli.log_format);
        match self.run(cli.command) {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) if log::is_closed_pipe(&error) => ExitCode::SUCCESS,
            Err(error) => {
                log::failure(&error);
                if error.is::<NoLaunchLine>() { ExitCode::from(2) } else { ExitCode::FAILURE }
            }
        }
    }

    /// Runs a command to its end.
    ///
    /// # Errors
    /// Whatever went wrong.
    pub fn run(&self, command: Command) -> anyhow::Result<()> {
        match command {
            Command::Compile(args) => compile::compile(self, &args).map(|_| ()),
            Command::Serve(args) => serve::serve(self, &args),
            Command::Run(args) => serve::run(self, &args),
            Command::Generate(args) => generate::generate(self, &args),
            Command::Inspect(args) => inspect::inspect(self, &args),
            Command::Selfcheck(args) => selfcheck::selfcheck(self, &args),
            Command::Opt(args) => opt::opt(self, &args),
            Command::Doctor(args) => doctor::doctor(&args),
            Command::FromSglang(args) => from_sglang::from_sglang(&args),
            Command::Bench(BenchCommand::Serving(args)) => bench::serving(&args),
        }
    }

    /// Refuses an artifact that calls kernels of extensions which this program has not, or has in
    /// another version.
    pub(crate) fn check_extensions(&self, artifact: &Artifact) -> anyhow::Result<()> {
        let used = artifact.manifest().extensions.iter().filter(|e| !e.kernels.is_empty());
        for wanted in used {
            let (name, kernels) = (&wanted.name, wanted.kernels.join("`, `"));
            let root = artifact.root().display();
            match self.extensions.iter().find(|e| e.name == *name) {
                None => bail!(
                    "{root}: calls `{kernels}` of the extension `{name}`, which this program lacks; \
                     use the program that compiled it, or run `precast compile` again with this one"
                ),
                Some(here) if here.hash != wanted.hash => bail!(
                    "{root}: was compiled with another version of the extension `{name}` (sources {}, \
                     here {}); run `compile` again with this program",
                    wanted.hash,
                    here.hash
                ),
                Some(_) => {}
            }
        }
        Ok(())
    }
}
