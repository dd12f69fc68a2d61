//! Kernels of an artifact built on the host that serves it, once, into a cache beside the artifact.
//!
//! The cache is named after the chip, the toolkit, the compiler and a hash of the sources, appears as a
//! whole or not at all, and is made by one process at a time.

use crate::kernels::shim;
use std::{
    fmt, fs,
    fs::File,
    io,
    os::fd::AsRawFd,
    path::{Path, PathBuf},
    process::{Child, Command, Output, Stdio},
};

/// What builds kernels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KernelCompiler {
    /// The vendor's, by the `build.sh` of the artifact.
    Vendor,
    /// The host's C++ compiler, for the software device.
    Host,
}

impl fmt::Display for KernelCompiler {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Vendor => "vendor",
            Self::Host => "host",
        })
    }
}

/// Why there are no binaries.
#[derive(Debug, thiserror::Error)]
pub enum BuildError {
    /// A file.
    #[error("{}: {source}", path.display())]
    File {
        /// Which.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// A compiler that is not there.
    #[error("the kernels of the artifact must be built, and {what} is not there; {remedy}")]
    NoCompiler {
        /// Which.
        what: &'static str,
        /// What helps.
        remedy: &'static str,
    },
    /// A kernel that does not compile.
    #[error("the kernel {name} does not compile: {output}")]
    Compile {
        /// Name of its file.
        name: String,
        /// What the compiler said.
        output: String,
    },
}

fn file(path: &Path) -> impl FnOnce(io::Error) -> BuildError {
    let path = path.to_owned();
    |source| BuildError::File { path, source }
}

/// The folder with a binary `NAME.o` of each kernel of the artifact at `root`, built if need be.
/// `platform` names chip and toolkit.
///
/// # Errors
/// [`BuildError`].
pub(crate) fn binaries(
    root: &Path,
    compiler: KernelCompiler,
    platform: &str,
) -> Result<PathBuf, BuildError> {
    let sources = sources(&root.join("kernels"))?;
    if sources.is_empty() {
        return Ok(root.join("kernels"));
    }
    let plain = |c: char| if c.is_ascii_alphanumeric() || "._-".contains(c) { c } else { '_' };
    let platform: String = platform.chars().map(plain).collect();
    let key = format!("{platform}-{compiler}-{}", &hash(&sources, compiler)[..16]);
    let cache = cache_folder(root)?;
    let built = cache.join(&key);
    let _lock = Lock::take(&cache.join(format!("{key}.lock")))?;
    if built.is_dir() {
        return Ok(built);
    }
    tracing::info!(kernels = sources.len(), folder = %built.display(), "building kernels, once");
    let part = cache.join(format!("{key}.part"));
    if part.exists() {
        // Of a process that was stopped: whoever builds holds the lock.
        fs::remove_dir_all(&part).map_err(file(&part))?;
    }
    fs::create_dir_all(&part).map_err(file(&part))?;
    let done = match compiler {
        KernelCompiler::Host => with_host_compiler(&sources, &part),
        KernelCompiler::Vendor => with_vendor_compiler(root, &part),
    };
    let done = done.and_then(|()| every_binary(&sources, &part));
    if let Err(e) = done {
        // What is left of it is removed before the next attempt at the latest.
        let _ = fs::remove_dir_all(&part);
        return Err(e);
    }
    fs::rename(&part, &built).map_err(file(&built))?;
    Ok(built)
}

/// A kernel to build.
struct Source {
    path: PathBuf,
    name: String,
    text: Vec<u8>,
}

/// The `.cpp` files of a folder by name; none when there is no such folder.
fn sources(folder: &Path) -> Result<Vec<Source>, BuildError> {
    let entries = match fs::read_dir(folder) {
        Ok(entries) => entries,
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(e) => return Err(file(folder)(e)),
    };
    let mut sources = Vec::new();
    for entry in entries {
        let path = entry.map_err(file(folder))?.path();
        if path.extension().is_some_and(|e| e == "cpp") {
            let name = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
            let text = fs::read(&path).map_err(file(&path))?;
            sources.push(Source { path, name, text });
        }
    }
    sources.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(sources)
}

/// Of everything that decides what the binaries are.
fn hash(sources: &[Source], compiler: KernelCompiler) -> String {
    let mut hasher = artifact::Hasher::default();
    for source in sources {
        hasher.update(source.name.as_bytes());
        hasher.update(&source.text);
    }
    if compiler == KernelCompiler::Host {
        for (name, text) in shim::FILES {
            hasher.update(name.as_bytes());
            hasher.update(text.as_bytes());
        }
    }
    hasher.finish().to_string()
}

/// A folder beside the artifact, or in the user's cache where that cannot be written.
fn cache_folder(root: &Path) -> Result<PathBuf, BuildError> {
    let root = root.canonicalize().map_err(file(root))?;
    let mut beside = root.clone().into_os_string();
    beside.push(".kernels");
    let beside = PathBuf::from(beside);
    if fs::create_dir_all(&beside).is_ok() && writable(&beside) {
        return Ok(beside);
    }
    let home = std::env::var_os("HOME").map(|h| PathBuf::from(h).join(".cache"));
    let cache = std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from).or(home);
    let folder = cache.unwrap_or_else(std::env::temp_dir).join("precast/kernels");
    fs::create_dir_all(&folder).map_err(file(&folder))?;
    Ok(folder)
}

fn writable(folder: &Path) -> bool {
    let probe = folder.join(format!(".{}", std::process::id()));
    let written = fs::write(&probe, "").is_ok();
    // Only a probe.
    let _ = fs::remove_file(&probe);
    written
}

/// One process at a time.
struct Lock(File);

impl Lock {
    fn take(path: &Path) -> Result<Self, BuildError> {
        let lock = File::create(path).map_err(file(path))?;
        // SAFETY: the descriptor is open for as long as the file.
        if unsafe { libc::flock(lock.as_raw_fd(), libc::LOCK_EX) } != 0 {
            return Err(file(path)(io::Error::last_os_error()));
        }
        Ok(Self(lock))
    }
}

impl Drop for Lock {
    fn drop(&mut self) {
        // SAFETY: as in `take`. Closing the file would do it too.
        unsafe { libc::flock(self.0.as_raw_fd(), libc::LOCK_UN) };
    }
}

fn every_binary(sources: &[Source], folder: &Path) -> Result<(), BuildError> {
    let missing = sources.iter().find(|s| !folder.join(format!("{}.o", s.name)).is_file());
    missing.map_or(Ok(()), |s| {
        Err(BuildError::Compile { name: s.name.clone(), output: "it left no binary".to_owned() })
    })
}

fn with_vendor_compiler(root: &Path, out: &Path) -> Result<(), BuildError> {
    let no_compiler = |what| BuildError::NoCompiler {
        what,
        remedy: "install the toolkit package (`Ascend-cann-toolkit`, not the runtime alone) and run \
                 `source set_env.sh` of it",
    };
    if std::env::var_os("ASCEND_HOME_PATH").is_none() {
        return Err(no_compiler("the toolkit (ASCEND_HOME_PATH)"));
    }
    let script = root.join("kernels/build.sh");
    let output = Command::new("bash").arg(&script).arg(out).stdin(Stdio::null()).output();
    let output = output.map_err(file(&script))?;
    if output.status.success() {
        return Ok(());
    }
    Err(BuildError::Compile { name: "build (kernels/build.sh)".to_owned(), output: said(&output) })
}

/// The last lines of what a compiler said: the first of them may be thousands of a header.
fn said(output: &Output) -> String {
    const LINES: usize = 30;
    let text = String::from_utf8_lossy(&output.stderr);
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(LINES)..].join("\n")
}

/// The host's compiler: `CXX`, or one of the usual names.
fn host_compiler() -> Option<String> {
    let named = std::env::var("CXX").ok().filter(|c| !c.is_empty());
    let usual = ["c++", "g++", "clang++"].map(str::to_owned);
    named.into_iter().chain(usual).find(|name| {
        let run = Command::new(name).arg("--version").stdin(Stdio::null()).output();
        run.is_ok_and(|o| o.status.success())
    })
}

fn with_host_compiler(sources: &[Source], out: &Path) -> Result<(), BuildError> {
    let compiler = host_compiler().ok_or(BuildError::NoCompiler {
        what: "a C++ compiler",
        remedy: "install one (Debian: `apt-get install g++`) or name it in CXX",
    })?;
    let headers = out.join("include");
    fs::create_dir_all(&headers).map_err(file(&headers))?;
    for (name, text) in shim::FILES {
        let path = headers.join(name);
        fs::write(&path, text).map_err(file(&path))?;
    }
    let jobs = std::thread::available_parallelism().map_or(1, usize::from);
    let mut running: Vec<(&[Source], PathBuf, Child)> = Vec::new();
    let mut failure = None;
    // A library for each job: the header takes longer to compile than a kernel.
    for (i, part) in sources.chunks(sources.len().div_ceil(jobs)).enumerate() {
        let unit = headers.join(format!("unit{i}.cpp"));
        let text = shim::unit(part.iter().map(|s| s.name.as_str()));
        fs::write(&unit, text).map_err(file(&unit))?;
        let library = out.join(format!("unit{i}.so"));
        let child = Command::new(&compiler)
            .args(shim::COMPILE)
            .arg("-I")
            .arg(&headers)
            .arg("-I")
            .arg(part[0].path.parent().unwrap_or(Path::new(".")))
            .arg(&unit)
            .arg("-o")
            .arg(&library)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn();
        running.push((part, library, child.map_err(file(Path::new(&compiler)))?));
    }
    for (part, library, child) in running {
        failure = failure.or(finish(part, &library, child).err());
    }
    fs::remove_dir_all(&headers).map_err(file(&headers))?;
    failure.map_or(Ok(()), Err)
}

/// Waits for a library and gives each of its kernels a name for it.
fn finish(part: &[Source], library: &Path, child: Child) -> Result<(), BuildError> {
    let output = child.wait_with_output().map_err(file(library))?;
    if !output.status.success() {
        let names: Vec<&str> = part.iter().map(|s| s.name.as_str()).collect();
        return Err(BuildError::Compile { name: names.join(", "), output: said(&output) });
    }
    for source in part {
        let binary = library.with_file_name(format!("{}.o", source.name));
        fs::hard_link(library, &binary).map_err(file(&binary))?;
    }
    fs::remove_file(library).map_err(file(library))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn artifact(kernels: &[(&str, &str)]) -> tempfile::TempDir {
        let folder = tempfile::tempdir().expect("a folder");
        let sources = folder.path().join("art/kernels");
        fs::create_dir_all(&sources).expect("made");
        for (name, text) in kernels {
            fs::write(sources.join(name), text).expect("written");
        }
        folder
    }

    fn build(folder: &tempfile::TempDir, platform: &str) -> Result<PathBuf, BuildError> {
        binaries(&folder.path().join("art"), KernelCompiler::Host, platform)
    }

    #[test]
    fn kernels_are_built_once_and_again_when_something_changed() {
        let folder =
            artifact(&[("a.cpp", "extern \"C\" int a() { return 1; }\n"), ("b.cpp", "int b;\n")]);
        let built = build(&folder, "chip 1").expect("builds");
        let name = built.file_name().expect("a name").to_string_lossy().into_owned();
        assert!(name.starts_with("chip_1-host-"), "{name}");
        assert!(built.parent().expect("a parent").ends_with("art.kernels"));
        let time =
            |p: &Path| fs::metadata(p.join("a.o")).expect("built").modified().expect("known");
        let first = time(&built);
        assert!(!built.join("include").exists());
        assert_eq!(time(&build(&folder, "chip 1").expect("there")), first, "not built again");
        assert_ne!(build(&folder, "chip 2").expect("builds"), built);
        fs::write(folder.path().join("art/kernels/b.cpp"), "int c;\n").expect("written");
        assert_ne!(build(&folder, "chip 1").expect("builds"), built);
    }

    #[test]
    fn a_kernel_that_does_not_compile_is_named_and_leaves_nothing() {
        let folder = artifact(&[("good.cpp", "int a;\n"), ("bad.cpp", "int a = nonsense;\n")]);
        let error = build(&folder, "chip").expect_err("does not compile").to_string();
        assert!(error.contains("bad") && error.contains("nonsense"), "{error}");
        let left = fs::read_dir(folder.path().join("art.kernels")).expect("there");
        let left: Vec<_> = left.filter_map(|e| Some(e.ok()?.file_name())).collect();
        assert!(left.iter().all(|n| n.to_string_lossy().ends_with(".lock")), "{left:?}");
        fs::write(folder.path().join("art/kernels/bad.cpp"), "int b;\n").expect("written");
        build(&folder, "chip").expect("builds now");
    }

    #[test]
    fn two_at_a_time_build_once() {
        let folder = artifact(&[("a.cpp", "int a;\n")]);
        let built: Vec<PathBuf> = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..4).map(|_| scope.spawn(|| build(&folder, "c"))).collect();
            let join = |t: std::thread::ScopedJoinHandle<'_, _>| t.join().expect("no panic");
            threads.into_iter().map(|t| join(t).expect("builds")).collect()
        });
        assert!(built.iter().all(|b| *b == built[0] && b.join("a.o").is_file()));
    }

    #[test]
    fn an_artifact_without_kernels_needs_no_compiler() {
        let folder = artifact(&[]);
        binaries(&folder.path().join("art"), KernelCompiler::Vendor, "chip")
            .expect("nothing to do");
        binaries(Path::new(""), KernelCompiler::Vendor, "chip").expect("no artifact");
    }
}
