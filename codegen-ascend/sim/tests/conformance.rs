//! The library offers what the interface declares, under the same types, and counts its calls.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod support;

use acl::{FUNCTIONS, Library, for_each_function, sys::*};
use ascend_sim::api;
use std::{
    collections::BTreeMap,
    ffi::{CStr, CString},
};
use support::*;

/// Every function of the runtime library, by name.
mod exported {
    pub(super) use ascend_sim::api::{
        context::*, device::*, event::*, graph::*, kernel::*, memory::*, stream::*, system::*,
    };
}

/// Coerces each function of the runtime library to the type that the interface declares.
macro_rules! coerce {
    ($(
        $(#[doc = $doc:literal])*
        $library:ident $release:ident $need:ident
        fn $name:ident($($param:ident: $ty:ty),*) -> $returns:ty;
    )*) => {
        #[test]
        fn every_function_has_the_declared_type() {
            let mut count = 0;
            $(coerce!(@ $library $name, unsafe extern "C" fn($($ty),*) -> $returns, count);)*
            let declared = FUNCTIONS.iter().filter(|f| f.library == Library::ascendcl).count();
            assert_eq!(count, declared);
        }
    };
    (@ ascendcl $name:ident, $ty:ty, $count:ident) => {
        let _: $ty = exported::$name;
        $count += 1;
    };
    (@ nnopbase $name:ident, $ty:ty, $count:ident) => {};
}
for_each_function!(coerce);

/// The shared library that the tests' build made beside them.
fn shared_library() -> *mut std::ffi::c_void {
    let tests = std::env::current_exe().unwrap();
    let folders = tests.ancestors().skip(1).take(2);
    let path =
        folders.map(|folder| folder.join("libascend_sim.so")).find(|path| path.exists()).unwrap();
    let path = CString::new(path.to_str().unwrap()).unwrap();
    // SAFETY: the path ends with a zero byte, and the library is ours.
    let library = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
    assert!(!library.is_null(), "{path:?} cannot be loaded");
    library
}

#[test]
fn the_shared_library_has_every_symbol() {
    let library = shared_library();
    // SAFETY: the library is open, and names end with a zero byte.
    let has = |name: &CStr| !unsafe { libc::dlsym(library, name.as_ptr()) }.is_null();
    let wanted = FUNCTIONS.iter().filter(|f| f.required || f.library == Library::ascendcl);
    let missing: Vec<_> = wanted.filter(|f| !has(f.symbol)).map(|f| f.name()).collect();
    assert!(missing.is_empty(), "{missing:?}");
    let ours = api::exports().map(|(name, _)| name);
    for name in
        ours.chain(["ascendSimFail", "ascendSimReset", "ascendSimReport", "aclGetRecentErrMsg"])
    {
        assert!(has(&CString::new(name).unwrap()), "{name}");
    }
}

#[test]
fn functions_appear_in_the_declared_releases() {
    let declared: BTreeMap<_, _> = FUNCTIONS.iter().map(|f| (f.name(), f.since)).collect();
    for (name, since) in api::exports() {
        if let Some(declared) = declared.get(name) {
            assert_eq!(*declared, since, "{name}");
        }
    }
}

#[test]
fn every_call_is_counted_and_can_be_made_to_fail() {
    let _sim = Sim::new();
    let text = {
        let needed = api::sim::ascendSimReport as unsafe extern "C" fn(_, _) -> usize;
        let mut text = vec![0_u8; 1 << 16];
        stream();
        // SAFETY: the buffer has that much room.
        let bytes = unsafe { needed(text.as_mut_ptr().cast(), text.len()) };
        text.truncate(bytes - 1);
        String::from_utf8(text).unwrap()
    };
    for line in
        ["calls/aclInit 1", "calls/aclrtSetDevice 1", "calls/aclrtCreateStream 1", "live/streams 2"]
    {
        assert!(text.lines().any(|found| found == line), "{line} in\n{text}");
    }
    fail_call("aclrtMalloc", 1, 207018);
    let mut memory = std::ptr::null_mut();
    // SAFETY: the result is writable.
    unsafe {
        assert_eq!(api::memory::aclrtMalloc(&mut memory, 64, 0), 207018);
        assert!(memory.is_null(), "a call that is made to fail does nothing");
        assert_eq!(api::memory::aclrtMalloc(&mut memory, 64, 0), 0);
    }
}
