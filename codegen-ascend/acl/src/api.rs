//! The functions of [`crate::for_each_function`] as data, and as a table of typed pointers.

use crate::{Release, for_each_function, sys::*};
use std::ffi::{CStr, c_void};

/// A library of the vendor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(non_camel_case_types, reason = "spelled as in the list")]
pub enum Library {
    /// The runtime: devices, streams, memory, captures, kernels.
    ascendcl,
    /// What library operators have in common: their parameters and executors.
    nnopbase,
}

impl Library {
    /// Name of its file.
    pub const fn file(self) -> &'static str {
        match self {
            Library::ascendcl => "libascendcl.so",
            Library::nnopbase => "libnnopbase.so",
        }
    }
}

/// A function of the runtime.
#[derive(Clone, Copy, Debug)]
pub struct Function {
    /// Name with a zero byte at its end.
    pub symbol: &'static CStr,
    /// The library whose symbol it is.
    pub library: Library,
    /// First release that has it with these parameters.
    pub since: Release,
    /// Whether nothing works without it.
    pub required: bool,
}

impl Function {
    /// Its name.
    pub fn name(&self) -> &'static str {
        self.symbol.to_str().unwrap_or_default()
    }
}

macro_rules! need {
    (is required) => { true };
    (is optional) => { false };
    (type required $ty:ty) => { $ty };
    (type optional $ty:ty) => { Option<$ty> };
    (cast required $pointer:expr, $ty:ty) => {
        // SAFETY: the caller's promise that the symbol is the function of this name; it is not null,
        // as every required one was looked at before.
        unsafe { std::mem::transmute::<*const c_void, $ty>($pointer) }
    };
    (cast optional $pointer:expr, $ty:ty) => {
        // SAFETY: the caller's promise, and null is `None`.
        unsafe { std::mem::transmute::<*const c_void, Option<$ty>>($pointer) }
    };
    (gate required $field:expr, $drop:expr) => {};
    (gate optional $field:expr, $drop:expr) => { if $drop { $field = None; } };
}

macro_rules! api {
    ($(
        $(#[doc = $doc:literal])*
        $library:ident $release:ident $need:ident
        fn $name:ident($($param:ident: $ty:ty),*) -> $returns:ty;
    )*) => {
        /// Every function, in the order of the header.
        pub const FUNCTIONS: &[Function] = &[$(Function {
            symbol: match CStr::from_bytes_with_nul(concat!(stringify!($name), "\0").as_bytes()) {
                Ok(symbol) => symbol,
                Err(_) => unreachable!(),
            },
            library: Library::$library,
            since: Release::$release,
            required: need!(is $need),
        }),*];

        /// The functions as pointers. Those that a release may lack are `None` where it does.
        #[allow(non_snake_case, reason = "the names are those of the C interface")]
        #[derive(Clone, Debug)]
        pub struct Api {
            $(
                $(#[doc = $doc])*
                pub $name: need!(type $need unsafe extern "C" fn($($param: $ty),*) -> $returns),
            )*
        }

        impl Api {
            /// The table of the symbols that `find` knows; null for those that it does not.
            ///
            /// # Errors
            /// The required functions that are missing.
            ///
            /// # Safety
            /// Every symbol that `find` returns is a function with the declaration of its name, and
            /// stays callable for as long as the table is used.
            pub unsafe fn resolve(
                mut find: impl FnMut(&Function) -> *const c_void,
            ) -> Result<Self, Vec<&'static Function>> {
                let found: Vec<*const c_void> = FUNCTIONS.iter().map(&mut find).collect();
                let missing = FUNCTIONS.iter().zip(&found);
                let missing: Vec<_> =
                    missing.filter(|(f, p)| f.required && p.is_null()).map(|(f, _)| f).collect();
                if !missing.is_empty() {
                    return Err(missing);
                }
                let mut found = found.into_iter();
                let mut next = || found.next().unwrap_or(std::ptr::null());
                Ok(Self {
                    $($name: need!(
                        cast $need next(), unsafe extern "C" fn($($param: $ty),*) -> $returns
                    ),)*
                })
            }

            /// Drops optional functions that came after `release`: a symbol of that name may have
            /// had other parameters.
            pub fn keep_until(&mut self, release: Release) {
                $(need!(gate $need self.$name, Release::$release > release);)*
            }
        }
    };
}

for_each_function!(api);

impl Release {
    /// The release whose runtime reports version `major.minor` of its interface. Which minors 8.2
    /// and 8.3 report is not sure: all between those of 8.1 and 8.5 count as 8.3.
    pub const fn of_interface(major: i32, minor: i32) -> Self {
        match (major, minor) {
            (..=0, _) | (1, ..=13) => Release::V8_1,
            (1, 14 | 15) => Release::V8_3,
            (1, 16) => Release::V8_5,
            _ => Release::V9,
        }
    }

    /// As people say it.
    pub const fn name(self) -> &'static str {
        match self {
            Release::V8_1 => "8.1",
            Release::V8_3 => "8.3",
            Release::V8_5 => "8.5",
            Release::V9 => "9.0",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    extern "C" fn anything() {}

    fn address() -> *const c_void {
        anything as *const c_void
    }

    #[test]
    fn every_required_function_that_is_missing_is_named() {
        let find = |f: &Function| match f.name() {
            "aclInit" | "aclrtMalloc" | "aclrtGetDeviceInfo" => std::ptr::null(),
            _ => address(),
        };
        // SAFETY: nothing of the table is called.
        let missing = unsafe { Api::resolve(find) }.expect_err("two are missing");
        let names: Vec<&str> = missing.iter().map(|f| f.name()).collect();
        assert_eq!(names, ["aclInit", "aclrtMalloc"]);
    }

    #[test]
    fn functions_newer_than_the_release_are_dropped() {
        // SAFETY: nothing of the table is called.
        let mut api = unsafe { Api::resolve(|_| address()) }.expect("all are there");
        assert!(api.aclmdlRIBuildBegin.is_some());
        api.keep_until(Release::V8_3);
        assert!(api.aclmdlRIBuildBegin.is_none());
        assert!(api.aclrtSetStreamAttribute.is_some());
        api.keep_until(Release::V8_1);
        assert!(api.aclrtSetStreamAttribute.is_none());
    }

    #[test]
    fn required_functions_are_in_the_oldest_release() {
        for f in FUNCTIONS.iter().filter(|f| f.required) {
            assert_eq!(f.since, Release::V8_1, "{}", f.name());
        }
        let unique: std::collections::BTreeSet<_> = FUNCTIONS.iter().map(Function::name).collect();
        assert_eq!(unique.len(), FUNCTIONS.len());
    }

    #[test]
    fn interface_versions_are_releases() {
        let of = |minor| Release::of_interface(1, minor);
        assert_eq!(
            [13, 14, 15, 16, 17].map(of).map(Release::name),
            ["8.1", "8.3", "8.3", "8.5", "9.0"]
        );
        assert_eq!(Release::of_interface(2, 0), Release::V9);
    }
}
