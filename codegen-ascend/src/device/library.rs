//! The vendor's libraries: found, opened, and searched for functions by name.
//!
//! Order: libascendcl, libnnopbase, libraries of custom operators, libopapi, and what that was split
//! into in later releases. One path may be given instead, of a library that has it all. Libraries
//! stay open until the process ends, as the vendor's keep threads of their own.

use acl::{Api, Function, Release, Signature};
use std::{
    ffi::{CStr, CString, c_void},
    os::unix::ffi::OsStrExt,
    path::{Path, PathBuf},
};

/// A file that was opened, or why it was not.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Opened {
    /// What was asked for: a path, or a name that the system looks up.
    pub file: PathBuf,
    /// What the system said when it could not be opened.
    pub failure: Option<String>,
}

/// An open library, by the address that the system knows it by.
#[derive(Clone, Copy, Debug)]
struct Handle(usize);

impl Handle {
    fn open(file: &Path, global: bool) -> Result<Self, String> {
        let text = CString::new(file.as_os_str().as_bytes()).map_err(|e| e.to_string())?;
        let scope = if global { libc::RTLD_GLOBAL } else { libc::RTLD_LOCAL };
        // SAFETY: `text` ends with a zero byte. Opening runs the library's initialisers: it is one of
        // the vendor's, or one that the user named.
        let handle = unsafe { libc::dlopen(text.as_ptr(), libc::RTLD_LAZY | scope) };
        if !handle.is_null() {
            return Ok(Self(handle.addr()));
        }
        // SAFETY: the message is valid until the next call of this family on this thread.
        let message = unsafe {
            let message = libc::dlerror();
            (!message.is_null()).then(|| CStr::from_ptr(message).to_string_lossy().into_owned())
        };
        Err(message.unwrap_or_else(|| "the system does not say why".to_owned()))
    }

    fn symbol(self, name: &CStr) -> *const c_void {
        // SAFETY: the handle is open and stays so.
        unsafe { libc::dlsym(self.0 as *mut c_void, name.as_ptr()) }.cast_const()
    }
}

/// Where the environment says that libraries are.
#[derive(Clone, Debug, Default)]
struct Places {
    home: Option<PathBuf>,
    custom: Vec<PathBuf>,
    operators: Option<PathBuf>,
}

impl Places {
    fn of_environment() -> Self {
        let path = |name| std::env::var_os(name).filter(|v| !v.is_empty()).map(PathBuf::from);
        let custom = std::env::var_os("ASCEND_CUSTOM_OPP_PATH").unwrap_or_default();
        Self {
            home: path("ASCEND_HOME_PATH").or_else(|| path("ASCEND_TOOLKIT_HOME")),
            custom: std::env::split_paths(&custom).filter(|p| !p.as_os_str().is_empty()).collect(),
            operators: path("ASCEND_OPP_PATH"),
        }
    }

    /// Names to try for one of the vendor's libraries.
    fn candidates(&self, file: &str) -> Vec<PathBuf> {
        let in_home = self.home.iter().map(|home| home.join("lib64").join(file));
        std::iter::once(PathBuf::from(file)).chain(in_home).collect()
    }

    /// Libraries of custom operators, in the order in which they are searched.
    fn custom_operators(&self) -> Vec<PathBuf> {
        let vendors = self.operators.iter().flat_map(|p| folders(&p.join("vendors")));
        let roots = self.custom.iter().cloned().chain(vendors);
        let roots = roots.flat_map(|root| std::iter::once(root.clone()).chain(folders(&root)));
        let files = roots.map(|root| root.join("op_api/lib/libcust_opapi.so"));
        files.filter(|file| file.is_file()).collect()
    }

    /// What libopapi was split into.
    fn split_operators(&self) -> Vec<PathBuf> {
        let Some(home) = &self.home else { return Vec::new() };
        let files = std::fs::read_dir(home.join("lib64")).into_iter().flatten();
        let mut files: Vec<PathBuf> = files
            .filter_map(|f| Some(f.ok()?.path()))
            .filter(|f| {
                let name = f.file_name().unwrap_or_default().to_string_lossy();
                name.starts_with("libopapi_") && name.ends_with(".so")
            })
            .collect();
        files.sort();
        files
    }
}

fn folders(path: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(path).into_iter().flatten();
    let mut found: Vec<PathBuf> =
        entries.filter_map(|e| Some(e.ok()?.path())).filter(|p| p.is_dir()).collect();
    found.sort();
    found
}

/// The libraries that could be opened.
#[derive(Clone, Debug)]
pub struct Libraries {
    /// Every file that was tried.
    pub files: Vec<Opened>,
    /// In the order in which symbols are looked for.
    handles: Vec<Handle>,
}

impl Libraries {
    /// Opens the vendor's libraries, or the one at `path` that serves as all of them.
    pub fn open(path: Option<&Path>) -> Self {
        let mut libraries = Self { files: Vec::new(), handles: Vec::new() };
        if let Some(path) = path {
            libraries.add(&[path.to_owned()], false);
            return libraries;
        }
        let places = Places::of_environment();
        // Others depend on the symbols of these two.
        libraries.add(&places.candidates("libascendcl.so"), true);
        libraries.add(&places.candidates("libnnopbase.so"), true);
        for file in places.custom_operators() {
            libraries.add(&[file], false);
        }
        libraries.add(&places.candidates("libopapi.so"), false);
        for file in places.split_operators() {
            libraries.add(&[file], false);
        }
        libraries
    }

    /// Adds the first of `candidates` that opens.
    fn add(&mut self, candidates: &[PathBuf], global: bool) {
        for file in candidates {
            let failure = match Handle::open(file, global) {
                Ok(handle) => {
                    self.handles.push(handle);
                    None
                }
                Err(why) => Some(why),
            };
            let opened = failure.is_none();
            self.files.push(Opened { file: file.clone(), failure });
            if opened {
                return;
            }
        }
    }

    /// The symbol of the first library that has it; null when none does.
    fn symbol(&self, name: &CStr) -> *const c_void {
        let found = self.handles.iter().map(|h| h.symbol(name));
        found.into_iter().find(|p| !p.is_null()).unwrap_or(std::ptr::null())
    }

    /// The table of functions.
    ///
    /// # Errors
    /// The required functions that no library has.
    pub fn api(&self) -> Result<Api, Vec<&'static Function>> {
        // SAFETY: the symbols come from libraries with the vendor's interface, which stay open; their
        // declarations are compared with the vendor's own by `cargo xtask check-acl`.
        unsafe { Api::resolve(|function| self.symbol(function.symbol)) }
    }

    /// Whether a library has the function.
    pub fn has(&self, function: &Function) -> bool {
        !self.symbol(function.symbol).is_null()
    }

    /// Both phases of an operator; `None` when a library lacks one of them.
    pub fn operator(&self, signature: &Signature) -> Option<OperatorFunctions> {
        let find = |name: &str| {
            let symbol = self.symbol(CStr::from_bytes_with_nul(name.as_bytes()).ok()?);
            (!symbol.is_null()).then_some(symbol)
        };
        let (prepare, launch) = (find(signature.prepare_symbol)?, find(signature.launch_symbol)?);
        Some(OperatorFunctions {
            prepare,
            // SAFETY: the second phase of every operator has this type.
            launch: unsafe { std::mem::transmute::<*const c_void, LaunchFunction>(launch) },
        })
    }

    /// Why nothing can be called, where that is so.
    pub fn failure(&self, missing: &[&Function]) -> String {
        if self.handles.is_empty() {
            let tried = self.files.iter();
            let tried: Vec<&str> = tried.filter_map(|f| f.failure.as_deref()).collect();
            return format!(
                "the Ascend runtime cannot be loaded ({}); install the toolkit and run `source set_env.sh` of it, \
                 or try `--device ascend-sim`, which needs none",
                tried.join("; ")
            );
        }
        let names: Vec<String> =
            missing.iter().map(|f| format!("{} ({})", f.name(), f.library.file())).collect();
        format!(
            "the Ascend runtime lacks {}; toolkit {} or newer is needed",
            names.join(", "),
            Release::V8_1.name()
        )
    }
}

/// Type of the second phase of every operator.
pub type LaunchFunction = unsafe extern "C" fn(
    workspace: *mut c_void,
    workspace_bytes: u64,
    executor: *mut acl::sys::aclOpExecutor,
    stream: acl::sys::aclrtStream,
) -> acl::sys::aclnnStatus;

/// The two phases of an operator.
#[derive(Clone, Copy, Debug)]
pub struct OperatorFunctions {
    /// The first phase, for [`Signature::prepare`].
    pub prepare: *const c_void,
    /// The second.
    pub launch: LaunchFunction,
}

// SAFETY: addresses of functions, which may be called on every thread with the right context.
unsafe impl Send for OperatorFunctions {}
// SAFETY: as above.
unsafe impl Sync for OperatorFunctions {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_library_that_is_not_there_is_named_with_the_remedy() {
        let libraries = Libraries::open(Some(Path::new("/nowhere/libnothing.so")));
        let missing = libraries.api().expect_err("nothing is there");
        let why = libraries.failure(&missing);
        assert!(why.contains("/nowhere/libnothing.so"), "{why}");
        assert!(why.contains("set_env.sh"), "{why}");
    }

    #[test]
    fn a_library_without_the_functions_is_told_from_none() {
        let libraries = Libraries::open(Some(Path::new("libc.so.6")));
        let why = libraries.failure(&libraries.api().expect_err("the C library has none"));
        assert!(why.contains("aclInit (libascendcl.so)"), "{why}");
        assert!(why.contains("aclCreateTensor (libnnopbase.so)"), "{why}");
        assert!(!why.contains("aclrtGetDeviceInfo"), "optional ones are not asked for: {why}");
    }

    #[test]
    fn places_follow_the_environment() {
        let scratch = tempfile::tempdir().expect("a folder");
        let home = scratch.path().join("home");
        for file in [
            "home/lib64/libopapi_nn.so",
            "home/lib64/libopapi_math.so",
            "home/lib64/libopapi.so",
            "custom/op_api/lib/libcust_opapi.so",
            "opp/vendors/b/op_api/lib/libcust_opapi.so",
            "opp/vendors/a/op_api/lib/libcust_opapi.so",
        ] {
            let file = scratch.path().join(file);
            std::fs::create_dir_all(file.parent().expect("in a folder")).expect("made");
            std::fs::write(file, "").expect("written");
        }
        let places = Places {
            home: Some(home.clone()),
            custom: vec![scratch.path().join("custom")],
            operators: Some(scratch.path().join("opp")),
        };
        let short = |files: Vec<PathBuf>| -> Vec<String> {
            let strip =
                |f: &PathBuf| f.strip_prefix(scratch.path()).unwrap_or(f).display().to_string();
            files.iter().map(strip).collect()
        };
        assert_eq!(
            short(places.candidates("libopapi.so")),
            ["libopapi.so", "home/lib64/libopapi.so"]
        );
        assert_eq!(
            short(places.custom_operators()),
            ["custom", "opp/vendors/a", "opp/vendors/b"]
                .map(|p| format!("{p}/op_api/lib/libcust_opapi.so"))
        );
        assert_eq!(
            short(places.split_operators()),
            ["home/lib64/libopapi_math.so", "home/lib64/libopapi_nn.so"]
        );
    }
}
