//! Kernels of an artifact compiled on the host that serves it, once each.
//!
//! A compiled kernel is known by its source, the compiler and the toolkit, so that artifacts share those that
//! they have in common.

mod cache;
mod host;
mod vendor;

pub(crate) use host::Host;

use cache::{Cache, short_hash};
use std::{
    collections::BTreeMap,
    fmt, fs, io,
    path::{Path, PathBuf},
    process::Output,
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
    /// Nowhere to keep what is compiled.
    #[error(
        "the kernels of the artifact must be compiled, and {} cannot be written: {source}; set PRECAST_CACHE \
         to a folder that can", folder.display()
    )]
    Cache {
        /// Where that was tried.
        folder: PathBuf,
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
    /// A library of kernels for the host that is none.
    #[error("the library of kernels cannot be loaded: {0}")]
    Load(String),
}

/// The binary of each kernel of the artifact at `root`, by name, compiled if need be. `platform` names chip
/// and toolkit; `folder` keeps what is compiled, `None` leaves that to the environment.
///
/// # Errors
/// [`BuildError`].
pub(crate) fn binaries(
    root: &Path,
    compiler: KernelCompiler,
    platform: &str,
    folder: Option<&Path>,
) -> Result<BTreeMap<String, PathBuf>, BuildError> {
    let sources = root.join("kernels");
    let kernels = kernels(&sources)?;
    if kernels.is_empty() {
        return Ok(BTreeMap::new());
    }
    let names: Vec<String> = kernels.keys().cloned().collect();
    let kernel = |name: &String| kernels.get(name).cloned().unwrap_or_default();
    let way = |folder: &Path| Way::new(folder, compiler, platform, &sources);
    let way = match folder {
        Some(folder) => way(folder)?,
        None => choose(&folders(root), way, &names)?,
    };
    let found = way.cache().find_or_make(&names, |part, missing| {
        let (kernels, of) = (missing.len(), names.len());
        tracing::info!(kernels, of, cache = %way.cache(), "compiling kernels, once");
        let wanted: Vec<String> = missing.iter().map(kernel).collect();
        let made = match &way {
            Way::Host(host) => host.compile(&sources, &wanted, part)?,
            Way::Vendor(_) => vendor::compile(&sources, &wanted, part)?,
        };
        let path = |name: &String| Some((name.clone(), made.get(&kernel(name))?.clone()));
        Ok(missing.iter().filter_map(path).collect())
    })?;
    Ok(found.into_iter().map(|(name, path)| (kernel(&name), path)).collect())
}

/// The kernels in a folder of sources, by the names of what they are compiled to; none when there is no such
/// folder.
fn kernels(folder: &Path) -> Result<BTreeMap<String, String>, BuildError> {
    let entries = match fs::read_dir(folder) {
        Ok(entries) => entries,
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(BTreeMap::new()),
        Err(e) => return Err(file(folder)(e)),
    };
    let mut kernels = BTreeMap::new();
    for entry in entries {
        let path = entry.map_err(file(folder))?.path();
        if path.extension().is_some_and(|e| e == "cpp") {
            let name = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
            let text = fs::read(&path).map_err(file(&path))?;
            kernels.insert(format!("{name}-{}", short_hash([text.as_slice()])), name);
        }
    }
    Ok(kernels)
}

/// How kernels are compiled, and where what comes of it is kept.
#[derive(Debug)]
enum Way {
    Host(Host),
    Vendor(Cache),
}

impl Way {
    fn new(
        folder: &Path,
        compiler: KernelCompiler,
        platform: &str,
        sources: &Path,
    ) -> Result<Self, BuildError> {
        if compiler == KernelCompiler::Host {
            return Ok(Self::Host(Host::new(folder)?));
        }
        let script = sources.join("build.sh");
        let text = fs::read(&script).map_err(file(&script))?;
        let form = std::env::var("PRECAST_ASCEND_FORM").unwrap_or_default();
        let key = short_hash([text.as_slice(), form.as_bytes()]);
        let plain = |c: char| if c.is_ascii_alphanumeric() || "._-".contains(c) { c } else { '_' };
        let platform: String = platform.chars().map(plain).collect();
        Ok(Self::Vendor(Cache::at(folder.join(format!("{platform}-{key}")))))
    }

    fn cache(&self) -> &Cache {
        match self {
            Self::Host(host) => &host.kernels,
            Self::Vendor(cache) => cache,
        }
    }
}

/// Where what is compiled may be kept: the folder of the environment, and beside the artifact unless
/// `PRECAST_CACHE` names the only one.
fn folders(root: &Path) -> Vec<PathBuf> {
    let named = std::env::var_os("PRECAST_CACHE").is_some_and(|v| !v.is_empty());
    let mut beside = root.canonicalize().unwrap_or_else(|_| root.into()).into_os_string();
    beside.push(".kernels");
    let beside = (!named).then(|| beside.into());
    artifact::cache_folder().map(|f| f.join("kernels")).into_iter().chain(beside).collect()
}

/// The first of `folders` where all of `names` are, or else the first that can be written.
fn choose(
    folders: &[PathBuf],
    way: impl Fn(&Path) -> Result<Way, BuildError>,
    names: &[String],
) -> Result<Way, BuildError> {
    let mut ways = folders.iter().map(|f| way(f)).collect::<Result<Vec<Way>, _>>()?;
    let complete = |way: &Way| way.cache().find(names).len() == names.len();
    let writable = || ways.iter().position(|way| way.cache().writable().is_ok());
    // Where nothing can be written, the first says why.
    let chosen = ways.iter().position(complete).or_else(writable).unwrap_or(0);
    Ok(ways.swap_remove(chosen))
}

pub(crate) fn file(path: &Path) -> impl FnOnce(io::Error) -> BuildError {
    let path = path.to_owned();
    |source| BuildError::File { path, source }
}

/// The last lines of what a compiler said: the first of them may be thousands of a header.
fn said(output: &Output) -> String {
    const LINES: usize = 30;
    let text = String::from_utf8_lossy(&output.stderr);
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(LINES)..].join("\n")
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

    fn build(folder: &tempfile::TempDir) -> Result<BTreeMap<String, PathBuf>, BuildError> {
        binaries(&folder.path().join("art"), KernelCompiler::Host, "chip", Some(&cache(folder)))
    }

    fn cache(folder: &tempfile::TempDir) -> PathBuf {
        folder.path().join("cache")
    }

    /// When each kernel was compiled.
    fn times(built: &BTreeMap<String, PathBuf>) -> Vec<std::time::SystemTime> {
        built.values().map(|p| fs::metadata(p).expect("built").modified().expect("known")).collect()
    }

    #[test]
    fn a_kernel_is_compiled_once_and_again_when_its_source_changed() {
        let folder = artifact(&[("a.cpp", "int a;\n"), ("b.cpp", "int b;\n")]);
        let first = build(&folder).expect("builds");
        assert_eq!(first.keys().collect::<Vec<_>>(), ["a", "b"]);
        assert!(first.values().all(|p| p.starts_with(cache(&folder))));
        let second = build(&folder).expect("there");
        assert_eq!((times(&second), &second), (times(&first), &first), "not compiled again");
        fs::write(folder.path().join("art/kernels/b.cpp"), "int c;\n").expect("written");
        let third = build(&folder).expect("builds");
        assert_eq!(third["a"], first["a"], "only what changed");
        assert_eq!(times(&third)[0], times(&first)[0], "only what changed");
        assert_ne!(third["b"], first["b"]);
        // Another artifact with the same kernel has it already.
        let other = artifact(&[("a.cpp", "int a;\n")]);
        let root = other.path().join("art");
        let shared = binaries(&root, KernelCompiler::Host, "chip", Some(&cache(&folder)));
        assert_eq!(shared.expect("there")["a"], first["a"]);
    }

    #[test]
    fn a_damaged_file_is_compiled_again() {
        let folder = artifact(&[("a.cpp", "extern \"C\" int a() { return 1; }\n")]);
        let first = build(&folder).expect("builds");
        let whole = fs::read(&first["a"]).expect("read");
        let mut flipped = whole.clone();
        flipped[whole.len() / 2] ^= 1;
        for damaged in [&whole[..whole.len() / 2], &flipped, &[]] {
            fs::write(&first["a"], damaged).expect("written");
            let again = build(&folder).expect("builds");
            let checksum = again["a"].file_stem().expect("a name").to_string_lossy().into_owned();
            let found = short_hash([fs::read(&again["a"]).expect("read").as_slice()]);
            assert!(checksum.ends_with(&found), "{checksum} has {found}");
        }
    }

    #[test]
    fn a_kernel_that_does_not_compile_is_named_and_leaves_nothing() {
        let folder = artifact(&[("good.cpp", "int a;\n"), ("bad.cpp", "int a = nonsense;\n")]);
        let error = build(&folder).expect_err("does not compile").to_string();
        assert!(error.contains("bad") && error.contains("nonsense"), "{error}");
        let host = Host::new(&cache(&folder)).expect("a compiler");
        let left = fs::read_dir(host.kernels.folder()).expect("there");
        let left: Vec<_> = left.filter_map(|e| Some(e.ok()?.file_name())).collect();
        assert_eq!(left, ["lock"]);
        fs::write(folder.path().join("art/kernels/bad.cpp"), "int b;\n").expect("written");
        build(&folder).expect("builds now");
    }

    #[test]
    fn several_at_a_time_compile_once() {
        let folder = artifact(&[("a.cpp", "int a;\n")]);
        let built: Vec<_> = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..4).map(|_| scope.spawn(|| build(&folder))).collect();
            let join = |t: std::thread::ScopedJoinHandle<'_, _>| t.join().expect("no panic");
            threads.into_iter().map(|t| join(t).expect("builds")).collect()
        });
        assert!(built.iter().all(|b| *b == built[0] && b["a"].is_file()));
    }

    /// What a process left that was stopped while it compiled is in nobody's way.
    #[test]
    fn what_a_stopped_process_left_is_removed() {
        let folder = artifact(&[("a.cpp", "int a;\n")]);
        let host = Host::new(&cache(&folder)).expect("a compiler");
        let part = host.kernels.folder().join("part");
        fs::create_dir_all(&part).expect("made");
        fs::write(part.join("unit0.so"), "half").expect("written");
        build(&folder).expect("builds");
        assert!(!part.exists());
    }

    #[test]
    fn a_folder_that_cannot_be_written_is_named_with_the_remedy_or_left_for_another() {
        let folder = artifact(&[("a.cpp", "int a;\n")]);
        let root = folder.path().join("art");
        // A file where the folder should be: root may write everywhere else.
        let blocked = folder.path().join("file");
        fs::write(&blocked, "").expect("written");
        let error = binaries(&root, KernelCompiler::Host, "chip", Some(&blocked.join("kernels")));
        let error = error.expect_err("refused").to_string();
        assert!(error.contains("file/kernels") && error.contains("PRECAST_CACHE"), "{error}");
        let way = |f: &Path| Way::new(f, KernelCompiler::Host, "chip", &root);
        let place = |folders: &[PathBuf], names: &[String]| {
            choose(folders, way, names).expect("a place").cache().folder().to_owned()
        };
        let names = ["x".to_owned()];
        let free = folder.path().join("free");
        assert!(place(&[blocked.clone(), free.clone()], &names).starts_with(&free));
        assert!(place(&[cache(&folder), free.clone()], &names).starts_with(cache(&folder)));
        // Where all is there already nothing is written.
        build(&folder).expect("builds");
        let names: Vec<String> =
            kernels(&root.join("kernels")).expect("read").into_keys().collect();
        assert!(place(&[free, cache(&folder)], &names).starts_with(cache(&folder)));
    }

    #[test]
    fn an_artifact_without_kernels_needs_no_compiler() {
        let folder = artifact(&[]);
        for root in [folder.path().join("art"), PathBuf::new()] {
            let built = binaries(&root, KernelCompiler::Vendor, "chip", None);
            assert_eq!(built.expect("nothing to do"), BTreeMap::new());
        }
    }

    /// A compiler of the vendor's that copies, and what `build.sh` makes of it.
    #[test]
    fn the_script_of_the_artifact_compiles_what_is_missing() {
        let folder = artifact(&[("a.cpp", "a"), ("b.cpp", "b")]);
        let sources = folder.path().join("art/kernels");
        let part = folder.path().join("part");
        fs::create_dir(&part).expect("made");
        let home = folder.path().join("toolkit");
        fs::create_dir_all(home.join("bin")).expect("made");
        let compiler = home.join("bin/bisheng");
        // `--help` names the new form; the last arguments are SOURCE -o OBJECT.
        let text = "#!/bin/bash\necho --npu-arch\n(($# < 3)) || cp \"${@: -3:1}\" \"${@: -1}\"\n";
        fs::write(&compiler, text).expect("written");
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        fs::set_permissions(&compiler, mode).expect("set");
        let script = include_str!("../target/build.sh")
            .replace("@NPU_ARCH@", "x")
            .replace("@LEGACY_ARCH@", "y");
        fs::write(sources.join("build.sh"), script).expect("written");
        let run = |names: &[&str]| {
            let mut command = std::process::Command::new("bash");
            command.arg(sources.join("build.sh")).arg(&part).args(names);
            let output =
                command.env("ASCEND_HOME_PATH", &home).env("PATH", "/usr/bin:/bin").output();
            let output = output.expect("runs");
            assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        };
        run(&["b"]);
        assert!(part.join("b.o").is_file() && !part.join("a.o").exists());
        run(&[]);
        assert_eq!(fs::read(part.join("a.o")).expect("there"), b"a");
    }
}
