//! Why an artifact cannot be used.

use crate::{Phase, codec::FORMAT_VERSION};
use std::path::PathBuf;

/// Why an artifact cannot be written or used.
#[derive(Debug, thiserror::Error)]
pub enum ArtifactError {
    /// Not the directory or file it should be.
    #[error("{}: not an artifact: {why}; point at a directory that `precast compile` wrote", path.display())]
    NotAnArtifact {
        /// What was opened.
        path: PathBuf,
        /// What was expected there.
        why: String,
    },
    /// Another version of the container.
    #[error("{}: artifact format {found}, this build reads {FORMAT_VERSION}; run `precast compile` again", path.display())]
    Format {
        /// The file.
        path: PathBuf,
        /// Its version.
        found: u32,
    },
    /// Made for something else.
    #[error("compiled for {what} {found}, this machine has {expected}; compile for this machine")]
    Target {
        /// The field.
        what: &'static str,
        /// What the artifact says.
        found: String,
        /// What is here.
        expected: String,
    },
    /// A file is missing, short, long or altered.
    #[error("{}: {why}; the artifact is damaged, run `precast compile` again", path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        why: String,
    },
    /// A plan that would corrupt memory.
    #[error("plan {plan}: {source}; run `precast compile` again")]
    Plan {
        /// Name of the plan.
        plan: String,
        /// What is wrong.
        source: crate::PlanError,
    },
    /// No plan for some work.
    #[error("the artifact has no {0} plan; run `precast compile` again")]
    NoPlan(Phase),
    /// The operating system refused.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// What the operating system said.
        source: std::io::Error,
    },
}
