//! What others add to the program: passes at places in the pipeline, and kernels for what they make.

use artifact::Hasher;
use codegen_cpu::{
    external::{ExternalKernel, ExternalKernels, PREFIX},
    target::CpuTarget,
};
use compiler::Target;
use passes::{Catalog, Place, RegisterError, Rewrite};
use std::sync::Arc;

type AddPass = Box<dyn FnOnce(&mut Catalog) -> Result<(), RegisterError>>;

/// Passes and kernels that belong together, under a name. Artifacts that call its kernels say so and
/// are served only by a program with the same extension.
pub struct Extension {
    name: String,
    sources: Vec<(String, String)>,
    passes: Vec<AddPass>,
    kernels: Vec<Arc<dyn ExternalKernel>>,
}

/// An extension that does not fit the program.
#[derive(Debug, thiserror::Error)]
pub enum ExtensionError {
    /// A pass cannot be registered.
    #[error("extension `{extension}`: {source}")]
    Pass {
        /// Extension.
        extension: String,
        /// Why not.
        source: RegisterError,
    },
    /// A kind of composites has two kernels.
    #[error("extension `{extension}`: there is a kernel for `{kind}` already; choose another kind")]
    Kind {
        /// Extension.
        extension: String,
        /// Kind.
        kind: String,
    },
    /// A name that is no kind: the label of a body is its kind and a number, apart by `.`.
    #[error("extension `{extension}`: `{kind}` is no kind; use letters, digits, `_` and `-`")]
    BadKind {
        /// Extension.
        extension: String,
        /// Kind.
        kind: String,
    },
    /// Two extensions have one name.
    #[error("there are two extensions called `{0}`; register each once")]
    Twice(String),
}

impl Extension {
    /// An extension that adds nothing yet.
    pub fn new(name: &str) -> Self {
        let name = name.to_owned();
        Self { name, sources: Vec::new(), passes: Vec::new(), kernels: Vec::new() }
    }

    /// A text that decides what passes and kernels do, `include_str!` of a source file. Artifacts
    /// carry the hash of all of them, so that one which was compiled with other sources is refused.
    pub fn source(mut self, name: &str, text: &str) -> Self {
        self.sources.push((name.to_owned(), text.to_owned()));
        self
    }

    /// Adds `pass` to the pipeline at `place`; `why` says in a line why it stands there.
    pub fn pass(mut self, pass: impl Rewrite + 'static, place: Place, why: &'static str) -> Self {
        self.passes.push(Box::new(move |catalog| catalog.register(pass, place, why)));
        self
    }

    /// Adds a CPU kernel for composites of its kind.
    pub fn kernel(mut self, kernel: impl ExternalKernel + 'static) -> Self {
        self.kernels.push(Arc::new(kernel));
        self
    }

    /// Adds everything to `catalog` and `kernels`; returns what manifests say of it.
    pub(crate) fn register(
        self,
        catalog: &mut Catalog,
        kernels: &mut ExternalKernels,
    ) -> Result<artifact::ExtensionEntry, ExtensionError> {
        let mut hasher = Hasher::default();
        for (name, text) in &self.sources {
            hasher.update(name.as_bytes());
            hasher.update(text.as_bytes());
            catalog.add_source(&format!("{}/{name}", self.name), text);
        }
        for add in self.passes {
            add(catalog)
                .map_err(|source| ExtensionError::Pass { extension: self.name.clone(), source })?;
        }
        let mut names = Vec::new();
        for kernel in self.kernels {
            let (extension, kind) = (self.name.clone(), kernel.kind().to_owned());
            let is_name = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
            if kind.is_empty() || !kind.chars().all(is_name) {
                return Err(ExtensionError::BadKind { extension, kind });
            }
            names.push(format!("{PREFIX}{kind}"));
            if CpuTarget.info().has(&kind) || kernels.add(kernel).is_err() {
                return Err(ExtensionError::Kind { extension, kind });
            }
        }
        Ok(artifact::ExtensionEntry { name: self.name, hash: hasher.finish(), kernels: names })
    }
}
