//! Kernels compiled by the vendor's compiler, by the `build.sh` of the artifact.

use super::{BuildError, file, said};
use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

/// Compiles the sources called `names` in `sources` to objects in `part`, by name.
///
/// # Errors
/// [`BuildError`].
pub(super) fn compile(
    sources: &Path,
    names: &[String],
    part: &Path,
) -> Result<BTreeMap<String, PathBuf>, BuildError> {
    if std::env::var_os("ASCEND_HOME_PATH").is_none() {
        return Err(BuildError::NoCompiler {
            what: "the toolkit (ASCEND_HOME_PATH)",
            remedy: "install the toolkit package (`Ascend-cann-toolkit`, not the runtime alone) and \
                     run `source set_env.sh` of it",
        });
    }
    let script = sources.join("build.sh");
    let mut command = Command::new("bash");
    command.arg(&script).arg(part).args(names).stdin(Stdio::null());
    let output = command.output().map_err(file(&script))?;
    if !output.status.success() {
        let name = "build (kernels/build.sh)".to_owned();
        return Err(BuildError::Compile { name, output: said(&output) });
    }
    let object = |name: &String| {
        let path = part.join(format!("{name}.o"));
        if path.is_file() {
            return Ok((name.clone(), path));
        }
        let output = "it left no binary".to_owned();
        Err(BuildError::Compile { name: name.clone(), output })
    };
    names.iter().map(object).collect()
}
