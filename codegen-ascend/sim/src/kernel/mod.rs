//! Kernels: host libraries made with the kernel shim stand for device binaries, and a launch runs
//! their code over the device's memory.

pub(crate) mod arguments;
mod elf;

use crate::{
    call,
    error::{Result, code, fail},
    memory,
    stream::{Kind, Task, try_submit},
    world::{self, Key},
};
use acl::sys::{aclrtLaunchKernelCfg, aclrtStream};
use arguments::{Arguments, Values};
use std::{
    collections::BTreeMap,
    ffi::{CStr, CString, c_char, c_void},
    fs,
    mem::transmute,
    os::fd::{AsRawFd, FromRawFd, OwnedFd},
    path::Path,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

/// Room for what a kernel that failed has to say.
const MESSAGE_BYTES: usize = 2048;

/// A part of memory that a kernel may touch, as the shim takes it.
#[repr(C)]
struct Extent {
    start: u64,
    bytes: u64,
}

/// The entry of a library made with the shim: kernel, blocks, arguments and their number, extents and
/// their number, room for a message and its size; 0 is success.
type Launch = unsafe extern "C" fn(
    *const c_char,
    u32,
    *const u64,
    u32,
    *const Extent,
    u32,
    *mut c_char,
    u32,
) -> i32;

/// A loaded binary. The library stays open while one of its kernels is still captured somewhere.
pub(crate) struct Binary {
    path: String,
    /// Names of its functions.
    symbols: Vec<String>,
    library: *mut c_void,
    launch: Launch,
    /// The file of one that was loaded from memory. The loader knows libraries by their path, so the
    /// number in it must not become another file's.
    _file: Option<OwnedFd>,
}

// SAFETY: the handle of a library may be used from any thread, and its entry says the same of itself.
unsafe impl Send for Binary {}
// SAFETY: as above.
unsafe impl Sync for Binary {}

impl Drop for Binary {
    fn drop(&mut self) {
        // SAFETY: it came from `dlopen` and is closed once; nobody can launch from it any more.
        unsafe { libc::dlclose(self.library) };
    }
}

/// A kernel.
pub(crate) struct Function {
    binary: Arc<Binary>,
    of: Key,
    name: CString,
}

#[derive(Default)]
struct Registry {
    binaries: BTreeMap<Key, Arc<Binary>>,
    functions: BTreeMap<Key, Arc<Function>>,
    arguments: BTreeMap<Key, Arguments>,
}

static REGISTRY: Mutex<Registry> = Mutex::new(Registry {
    binaries: BTreeMap::new(),
    functions: BTreeMap::new(),
    arguments: BTreeMap::new(),
});

fn registry() -> MutexGuard<'static, Registry> {
    REGISTRY.lock().unwrap_or_else(PoisonError::into_inner)
}

fn fresh_key() -> Key {
    world::lock().fresh_key()
}

/// Loads a binary from a file.
///
/// # Errors
/// 107000 for a relative path, 107009 when it cannot be read, and as [`load_data`].
pub(crate) fn load_file(path: &str) -> Result<Key> {
    if !Path::new(path).is_absolute() {
        return fail(code::PARAM, format!("the path of a binary is absolute, and {path} is not"));
    }
    let bytes = match fs::read(path) {
        Ok(bytes) => bytes,
        Err(why) => return fail(code::FILE_OPEN, format!("{path}: {why}")),
    };
    load(path, path, &bytes, None)
}

/// Loads a binary from memory.
///
/// # Errors
/// 507008 for a binary of the real device, 107000 for anything else that is no host library made
/// with the shim.
pub(crate) fn load_data(bytes: &[u8]) -> Result<Key> {
    // SAFETY: the name ends with a zero byte.
    let number = unsafe { libc::memfd_create(c"kernel".as_ptr(), libc::MFD_CLOEXEC) };
    if number < 0 {
        return fail(code::HOST_MEMORY, "no memory for a file of a kernel binary");
    }
    // SAFETY: the descriptor was just made and is nobody else's.
    let file = unsafe { OwnedFd::from_raw_fd(number) };
    let path = format!("/proc/self/fd/{}", file.as_raw_fd());
    match fs::write(&path, bytes) {
        Ok(()) => load("kernel in memory", &path, bytes, Some(file)),
        Err(why) => fail(code::FILE_OPEN, format!("a kernel in memory: {why}")),
    }
}

fn load(name: &str, path: &str, bytes: &[u8], file: Option<OwnedFd>) -> Result<Key> {
    let symbols = elf::functions(name, bytes)?;
    let Ok(path) = CString::new(path) else {
        return fail(code::PARAM, format!("{name}: a zero byte in the path"));
    };
    // SAFETY: the path ends with a zero byte; the library is one that the caller wants to run.
    let library = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
    if library.is_null() {
        return fail(code::FILE_OPEN, format!("{name}: {}", loader_message()));
    }
    // SAFETY: the library is open and the name ends with a zero byte.
    let launch = unsafe { libc::dlsym(library, c"precast_shim_launch".as_ptr()) };
    if launch.is_null() {
        // SAFETY: it was opened above and nothing of it was used.
        unsafe { libc::dlclose(library) };
        return fail(
            code::PARAM,
            format!("{name} was not made with the kernel shim: it lacks precast_shim_launch"),
        );
    }
    // SAFETY: this is the signature of that symbol.
    let launch = unsafe { transmute::<*mut c_void, Launch>(launch) };
    let key = fresh_key();
    registry().binaries.insert(
        key,
        Arc::new(Binary { path: name.to_owned(), symbols, library, launch, _file: file }),
    );
    call::live("binaries", 1);
    Ok(key)
}

fn loader_message() -> String {
    // SAFETY: `dlerror` gives null or a text that is valid until this thread's next call.
    let text = unsafe { libc::dlerror() };
    if text.is_null() {
        return "cannot be loaded".to_owned();
    }
    // SAFETY: as above.
    unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
}

/// Unloads a binary; handles of its kernels and arguments end with it.
///
/// # Errors
/// 107017.
pub(crate) fn unload(key: Key) -> Result {
    let mut registry = registry();
    if registry.binaries.remove(&key).is_none() {
        return fail(code::INVALID_HANDLE, format!("{key:#x} is no loaded binary"));
    }
    registry.functions.retain(|_, function| function.of != key);
    registry.arguments.retain(|_, arguments| arguments.function.of != key);
    call::live("binaries", -1);
    Ok(())
}

/// A kernel by name.
///
/// # Errors
/// 107017; 507027 with the kernels that there are.
pub(crate) fn function(binary: Key, name: &str) -> Result<Key> {
    find_function(binary, name, |symbol| symbol == name)
}

/// The kernel whose name ends with `_` and this number.
///
/// # Errors
/// 107017; 507027 with the kernels that there are.
pub(crate) fn function_by_entry(binary: Key, entry: u64) -> Result<Key> {
    let ending = format!("_{entry}");
    find_function(binary, &ending, |symbol| symbol.ends_with(&ending))
}

fn find_function(binary: Key, wanted: &str, is_it: impl Fn(&str) -> bool) -> Result<Key> {
    let key = fresh_key();
    let mut registry = registry();
    let Some(found) = registry.binaries.get(&binary).cloned() else {
        return fail(code::INVALID_HANDLE, format!("{binary:#x} is no loaded binary"));
    };
    let symbol = found.symbols.iter().find(|symbol| is_it(symbol));
    let Some(name) = symbol.and_then(|symbol| CString::new(symbol.as_str()).ok()) else {
        let ours = found.symbols.iter().filter(|symbol| !symbol.starts_with('_'));
        let names = ours.cloned().collect::<Vec<_>>().join(", ");
        return fail(
            code::KERNEL_LOOKUP,
            format!("{} has no kernel `{wanted}`; it has {names}", found.path),
        );
    };
    registry.functions.insert(key, Arc::new(Function { binary: found, of: binary, name }));
    Ok(key)
}

/// The kernel that a handle means.
///
/// # Errors
/// 107017.
pub(crate) fn known_function(key: Key) -> Result<Arc<Function>> {
    match registry().functions.get(&key) {
        Some(function) => Ok(function.clone()),
        None => fail(code::INVALID_HANDLE, format!("{key:#x} is no kernel of a loaded binary")),
    }
}

/// Starts the arguments of a launch.
///
/// # Errors
/// 107017.
pub(crate) fn start_arguments(function: Key) -> Result<Key> {
    let function = known_function(function)?;
    let key = fresh_key();
    registry().arguments.insert(key, Arguments::new(function));
    Ok(key)
}

/// Does something with the arguments that a handle means.
///
/// # Errors
/// 107017, and those of `with`.
pub(crate) fn with_arguments<T>(
    key: Key,
    with: impl FnOnce(&mut Arguments) -> Result<T>,
) -> Result<T> {
    match registry().arguments.get_mut(&key) {
        Some(arguments) => with(arguments),
        None => fail(code::INVALID_HANDLE, format!("{key:#x} is no list of arguments")),
    }
}

/// Where the arguments of a launch come from.
pub(crate) enum Source {
    /// Values of the host.
    Values(Values),
    /// In device memory, read when the kernel starts.
    Device(u64, usize),
}

/// Launches a kernel on a stream.
///
/// # Errors
/// 107000 for no blocks or options that do not exist; what the stream says.
///
/// # Safety
/// `options` is null or as the interface says.
pub(crate) unsafe fn launch(
    function: Arc<Function>,
    blocks: u32,
    stream: aclrtStream,
    options: *const aclrtLaunchKernelCfg,
    source: Source,
) -> Result {
    if blocks == 0 || blocks > u32::from(u16::MAX) {
        return fail(code::PARAM, format!("a launch of {blocks} blocks"));
    }
    // SAFETY: the caller's pointer.
    unsafe { check_options(options) }?;
    let name = function.name.to_string_lossy().into_owned();
    let work = move || {
        let values = match &source {
            Source::Values(values) => values.read(),
            Source::Device(start, count) => arguments::read_device(*start, *count)?,
        };
        run(&function, blocks, arguments::without_sync_address(&values))
    };
    try_submit(stream, Task::new(name, Kind::Kernel, work))
}

/// # Safety
/// `options` is null or points to attributes as the interface says.
unsafe fn check_options(options: *const aclrtLaunchKernelCfg) -> Result {
    if options.is_null() {
        return Ok(());
    }
    // SAFETY: not null; the caller vouches for the rest.
    let options = unsafe { &*options };
    if options.attrs.is_null() {
        return if options.numAttrs == 0 {
            Ok(())
        } else {
            fail(code::INVALID_PARAM, "the launch options are null")
        };
    }
    // SAFETY: as above.
    let attributes = unsafe { std::slice::from_raw_parts(options.attrs, options.numAttrs) };
    for attribute in attributes {
        let is_known = match attribute.id {
            // SAFETY: every member of the union is plain bytes.
            acl::sys::ACL_RT_LAUNCH_KERNEL_ATTR_SCHEM_MODE => unsafe {
                attribute.value.schemMode <= 1
            },
            id => (2..=8).contains(&id),
        };
        if !is_known {
            return fail(
                code::PARAM,
                format!("launch option {} or its value does not exist", attribute.id),
            );
        }
    }
    Ok(())
}

fn run(function: &Function, blocks: u32, values: &[u64]) -> std::result::Result<(), String> {
    let extents = memory::device_extents().into_iter();
    let extents: Vec<_> = extents.map(|(start, bytes)| Extent { start, bytes }).collect();
    let mut message = vec![0_u8; MESSAGE_BYTES];
    // SAFETY: the entry has this signature, and every pointer is valid for the number beside it.
    let code = unsafe {
        (function.binary.launch)(
            function.name.as_ptr(),
            blocks,
            values.as_ptr(),
            values.len() as u32,
            extents.as_ptr(),
            extents.len() as u32,
            message.as_mut_ptr().cast(),
            MESSAGE_BYTES as u32,
        )
    };
    call::count("kernels", 1);
    if code == 0 {
        return Ok(());
    }
    let end = message.iter().position(|byte| *byte == 0).unwrap_or(MESSAGE_BYTES);
    Err(String::from_utf8_lossy(&message[..end]).into_owned())
}

/// Forgets every binary.
pub(crate) fn clear() {
    *registry() = Registry::default();
}
