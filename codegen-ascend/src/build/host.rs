//! Kernels compiled by the host's C++ compiler, for the software device and for tests.

use super::{
    BuildError,
    cache::{Cache, short_hash},
    file, said,
};
use crate::kernels::shim;
use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
};

/// What the shim's own object is called in the cache.
const SHIM: &str = "shim";

/// The compiler, and what it compiled before.
#[derive(Debug)]
pub(crate) struct Host {
    compiler: String,
    shim: Cache,
    pub(super) kernels: Cache,
}

impl Host {
    /// The compiler of this host, which keeps what it makes below `folder`.
    ///
    /// # Errors
    /// [`BuildError::NoCompiler`].
    pub(crate) fn new(folder: &Path) -> Result<Self, BuildError> {
        let (compiler, version) = compiler().ok_or(BuildError::NoCompiler {
            what: "a C++ compiler",
            remedy: "install one (Debian: `apt-get install g++`) or name it in CXX",
        })?;
        let flags = shim::COMPILE.iter().map(|f| f.as_bytes());
        let texts = shim::FILES.iter().flat_map(|(name, text)| [name.as_bytes(), text.as_bytes()]);
        let key = short_hash([compiler.as_bytes(), &version].into_iter().chain(flags).chain(texts));
        let cache = |what: &str| Cache::at(folder.join(format!("{what}-{key}")));
        Ok(Self { compiler, shim: cache(SHIM), kernels: cache("host") })
    }

    /// The shim's own object, compiled once.
    ///
    /// # Errors
    /// [`BuildError`].
    fn shim(&self) -> Result<PathBuf, BuildError> {
        let made = self.shim.find_or_make(&[SHIM.to_owned()], |part, _| {
            write_shim(part)?;
            let object = part.join("shim.o");
            let child = self.start(part, &["-c".as_ref(), "shim.cpp".as_ref()], &object)?;
            finish(SHIM, child)?;
            Ok(BTreeMap::from([(SHIM.to_owned(), object)]))
        });
        made.map(|mut made| made.remove(SHIM).unwrap_or_default())
    }

    /// Compiles the sources `NAME.cpp` in `sources` to libraries in `part`, as many as there are processors:
    /// the header takes as long as several kernels. Returns the library of each name.
    ///
    /// # Errors
    /// [`BuildError`].
    pub(super) fn compile(
        &self,
        sources: &Path,
        names: &[String],
        part: &Path,
    ) -> Result<BTreeMap<String, PathBuf>, BuildError> {
        let shim = self.shim()?;
        write_shim(part)?;
        let jobs = std::thread::available_parallelism().map_or(1, usize::from);
        let units = names.chunks(names.len().div_ceil(jobs)).enumerate();
        let running = units.map(|(i, names)| self.start_unit(&shim, sources, names, part, i));
        let running: Vec<_> = running.collect::<Result<_, _>>()?;
        let (mut made, mut failure) = (BTreeMap::new(), None);
        for (unit, (library, child)) in names.chunks(names.len().div_ceil(jobs)).zip(running) {
            failure = failure.or(finish(&unit.join(", "), child).err());
            made.extend(unit.iter().map(|name| (name.clone(), library.clone())));
        }
        failure.map_or(Ok(made), Err)
    }

    /// The same as one library.
    ///
    /// # Errors
    /// [`BuildError`].
    pub(crate) fn library(
        &self,
        sources: &Path,
        names: &[String],
        part: &Path,
    ) -> Result<PathBuf, BuildError> {
        let shim = self.shim()?;
        write_shim(part)?;
        let (library, child) = self.start_unit(&shim, sources, names, part, 0)?;
        finish(&names.join(", "), child)?;
        Ok(library)
    }

    /// Begins to compile unit `i`, and says which library it becomes.
    fn start_unit(
        &self,
        shim: &Path,
        sources: &Path,
        names: &[String],
        part: &Path,
        i: usize,
    ) -> Result<(PathBuf, Child), BuildError> {
        let unit = part.join(format!("unit{i}.cpp"));
        fs::write(&unit, shim::unit(names.iter().map(String::as_str))).map_err(file(&unit))?;
        let library = part.join(format!("unit{i}.so"));
        let sources = fs::canonicalize(sources).map_err(file(sources))?;
        let inputs = ["-shared".as_ref(), "-I".as_ref(), sources.as_ref(), unit.as_ref(), shim];
        let child = self.start(part, &inputs, &library)?;
        Ok((library, child))
    }

    fn start(&self, part: &Path, inputs: &[&Path], out: &Path) -> Result<Child, BuildError> {
        let mut command = Command::new(&self.compiler);
        command.current_dir(part).args(shim::COMPILE).args(["-I", "."]).args(inputs);
        command.arg("-o").arg(out).stdin(Stdio::null());
        let child = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn();
        child.map_err(file(Path::new(&self.compiler)))
    }
}

fn finish(name: &str, child: Child) -> Result<(), BuildError> {
    let output = child.wait_with_output().map_err(file(Path::new(name)))?;
    if output.status.success() {
        return Ok(());
    }
    Err(BuildError::Compile { name: name.to_owned(), output: said(&output) })
}

fn write_shim(folder: &Path) -> Result<(), BuildError> {
    for (name, text) in shim::FILES {
        let path = folder.join(name);
        fs::write(&path, text).map_err(file(&path))?;
    }
    Ok(())
}

/// The host's compiler, `CXX` or one of the usual names, and what it says of its version.
fn compiler() -> Option<(String, Vec<u8>)> {
    let named = std::env::var("CXX").ok().filter(|c| !c.is_empty());
    let usual = ["c++", "g++", "clang++"].map(str::to_owned);
    named.into_iter().chain(usual).find_map(|name| {
        let run = Command::new(&name).arg("--version").stdin(Stdio::null()).output();
        let version = run.ok().filter(|o| o.status.success())?.stdout;
        Some((name, version))
    })
}
