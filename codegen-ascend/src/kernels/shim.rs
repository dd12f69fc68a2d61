//! Kernels on the host: their sources compiled against a header of ours that implements the part of
//! the kernel language we emit, and reports every rule that they break.

use super::Kernel;
use crate::build::{BuildError, Host, file};
use std::{
    ffi::{CString, c_char, c_int, c_void},
    path::Path,
    sync::atomic::{AtomicU64, Ordering},
};

/// The header and its parts, by name. `shim.cpp` is what is compiled once, and linked to every kernel.
pub const FILES: &[(&str, &str)] = &[
    ("kernel_operator.h", include_str!("../../shim/kernel_operator.h")),
    ("core.h", include_str!("../../shim/core.h")),
    ("tensors.h", include_str!("../../shim/tensors.h")),
    ("sync.h", include_str!("../../shim/sync.h")),
    ("queues.h", include_str!("../../shim/queues.h")),
    ("copies.h", include_str!("../../shim/copies.h")),
    ("vector.h", include_str!("../../shim/vector.h")),
    ("cast.h", include_str!("../../shim/cast.h")),
    ("reduce.h", include_str!("../../shim/reduce.h")),
    ("sort.h", include_str!("../../shim/sort.h")),
    ("more.h", include_str!("../../shim/more.h")),
    ("cube.h", include_str!("../../shim/cube.h")),
    ("instances.h", include_str!("../../shim/instances.h")),
    ("run.h", include_str!("../../shim/run.h")),
    ("core.cpp", include_str!("../../shim/core.cpp")),
    ("sync.cpp", include_str!("../../shim/sync.cpp")),
    ("queues.cpp", include_str!("../../shim/queues.cpp")),
    ("launch.cpp", include_str!("../../shim/launch.cpp")),
    ("instances.cpp", include_str!("../../shim/instances.cpp")),
    ("shim.cpp", include_str!("../../shim/shim.cpp")),
];

/// Arguments of the host's C++ compiler. More optimisation takes twice the time, and what runs here is small.
/// Each library has variables of its own: nothing but kernels and [`LAUNCH`] is seen from outside.
pub const COMPILE: &[&str] =
    &["-O1", "-std=c++17", "-fPIC", "-fvisibility=hidden", "-pthread", "-Wall", "-Werror"];

/// What [`Library::run`] calls in the library, the same for all of them.
pub const LAUNCH: &str = "precast_shim_launch";

/// A range of memory that a kernel may touch.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
struct Extent {
    start: u64,
    bytes: u64,
}

/// Kernel, blocks, arguments and how many, extents and how many, message and its bytes.
type Launch = unsafe extern "C" fn(
    *const c_char,
    u32,
    *const u64,
    u32,
    *const Extent,
    u32,
    *mut c_char,
    u32,
) -> c_int;

/// Compiled kernels.
#[derive(Debug)]
pub struct Library {
    handle: *mut c_void,
    launch: Launch,
}

// SAFETY: a launch keeps what it knows in variables of its own thread.
unsafe impl Send for Library {}
// SAFETY: see above.
unsafe impl Sync for Library {}

/// A source that is all of the kernels called `names`, whose files are `NAME.cpp`: the header is read
/// once. Kernels have names of their own, and everything else in them stands in a namespace.
pub fn unit<'a>(names: impl IntoIterator<Item = &'a str>) -> String {
    let mut all = "#include \"kernel_operator.h\"\n".to_owned();
    for name in names {
        all += &format!("namespace of_{name} {{\n#include \"{name}.cpp\"\n}}\n");
    }
    all
}

impl Library {
    /// Compiles `kernels`, with the names they have.
    ///
    /// # Errors
    /// [`BuildError`], with what the compiler says.
    pub fn build(kernels: &[&Kernel]) -> Result<Self, BuildError> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let (process, number) = (std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let folder = std::env::temp_dir().join(format!("precast-shim-{process}-{number}"));
        let library = Self::build_in(&folder, kernels);
        // The loaded library stays mapped; a folder that cannot be removed is no reason to fail.
        let _ = std::fs::remove_dir_all(&folder);
        library
    }

    fn build_in(folder: &Path, kernels: &[&Kernel]) -> Result<Self, BuildError> {
        let sources = folder.join("sources");
        std::fs::create_dir_all(&sources).map_err(file(&sources))?;
        for kernel in kernels {
            let path = sources.join(format!("{}.cpp", kernel.name));
            std::fs::write(&path, &kernel.source).map_err(file(&path))?;
        }
        let cache =
            artifact::cache_folder().map_or_else(|| folder.to_owned(), |f| f.join("kernels"));
        let names: Vec<String> = kernels.iter().map(|k| k.name.clone()).collect();
        Self::open(&Host::new(&cache)?.library(&sources, &names, folder)?)
    }

    /// Loads a library of kernels.
    ///
    /// # Errors
    /// [`BuildError::Load`] when it is none.
    pub fn open(path: &Path) -> Result<Self, BuildError> {
        let load = |what: &str| BuildError::Load(format!("{}: {what}", path.display()));
        let name =
            CString::new(path.as_os_str().as_encoded_bytes()).map_err(|_| load("its path"))?;
        // SAFETY: the path is a string; the library's initialisers touch nothing but its own flags.
        let handle = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        if handle.is_null() {
            // SAFETY: after a failure `dlerror` gives a string that lives until the next call.
            let text = unsafe { std::ffi::CStr::from_ptr(libc::dlerror()) };
            return Err(load(&text.to_string_lossy()));
        }
        let symbol = CString::new(LAUNCH).map_err(|_| load("its symbol"))?;
        // SAFETY: the handle is open and the name a string.
        let found = unsafe { libc::dlsym(handle, symbol.as_ptr()) };
        if found.is_null() {
            // SAFETY: the handle is open, and nothing of the library is in use.
            unsafe { libc::dlclose(handle) };
            return Err(load("it has no kernels for the host"));
        }
        // SAFETY: the header declares this symbol with exactly this type.
        let launch = unsafe { std::mem::transmute::<*mut c_void, Launch>(found) };
        Ok(Self { handle, launch })
    }

    /// Runs `kernel` on `blocks` blocks with `buffers`, which are all it may touch, and `scalars`.
    ///
    /// # Errors
    /// The rule that the kernel breaks, by which core and where.
    pub fn run(
        &self,
        kernel: &str,
        blocks: u32,
        buffers: &mut [&mut [u8]],
        scalars: &[u64],
    ) -> Result<(), String> {
        let extent =
            |b: &mut &mut [u8]| Extent { start: b.as_mut_ptr() as u64, bytes: b.len() as u64 };
        let extents: Vec<Extent> = buffers.iter_mut().map(extent).collect();
        let args: Vec<u64> =
            extents.iter().map(|e| e.start).chain(scalars.iter().copied()).collect();
        let name = CString::new(kernel).map_err(|_| format!("`{kernel}` is no name"))?;
        let mut message = vec![0u8; 2048];
        // SAFETY: pointers and lengths belong together; the kernel touches memory inside the extents
        // only, which the exclusive borrows of `buffers` cover; the launch checks that.
        let status = unsafe {
            (self.launch)(
                name.as_ptr(),
                blocks,
                args.as_ptr(),
                args.len() as u32,
                extents.as_ptr(),
                extents.len() as u32,
                message.as_mut_ptr().cast(),
                message.len() as u32,
            )
        };
        if status == 0 {
            return Ok(());
        }
        let end = message.iter().position(|&b| b == 0).unwrap_or(message.len());
        Err(String::from_utf8_lossy(&message[..end]).into_owned())
    }
}

impl Drop for Library {
    fn drop(&mut self) {
        // SAFETY: the handle is open, and nobody runs a kernel while the library is dropped.
        unsafe { libc::dlclose(self.handle) };
    }
}
