//! Parameters by value: one function per kind of parameter.

use super::Argument;
use crate::objects::{Element, Fault, INTS, NULL_POINTER, SCALARS, TENSORS, members};
use acl::typed;
use std::ffi::CStr;

type Decoded = Result<Argument, Fault>;

fn missing(name: &str) -> Fault {
    Fault { code: NULL_POINTER, message: format!("{name} is null") }
}

macro_rules! pointers {
    ($($optional:ident $(or $kind:ident)? => $read:expr;)*) => {$(
        $(pub(super) unsafe fn $kind(name: &'static str, p: typed::$kind) -> Decoded {
            if p.is_null() {
                return Err(missing(name));
            }
            // SAFETY: the caller's promise is that of the other function.
            unsafe { $optional(name, p) }
        })?

        pub(super) unsafe fn $optional(name: &'static str, p: typed::$optional) -> Decoded {
            if p.is_null() {
                return Ok(Argument::Absent);
            }
            let read: fn(&'static str, typed::$optional) -> Decoded = $read;
            read(name, p).map_err(|f| f.of(name))
        }
    )*};
}

pointers! {
    optional_tensor or tensor => |name, p| {
        let mut tensor = TENSORS.with(p, |t| t.clone())?;
        tensor.name = name;
        Ok(Argument::Tensor(tensor))
    };
    optional_tensors or tensors => |name, p| {
        let mut list = members(p)?;
        list.iter_mut().for_each(|t| t.name = name);
        Ok(Argument::Tensors(list))
    };
    optional_ints => |_, p| Ok(Argument::Ints(INTS.with(p, |v| v.clone())?));
    optional_text => |_, p| {
        // SAFETY: the caller of the first phase passes a string that ends with a zero byte.
        let text = unsafe { CStr::from_ptr(p) };
        Ok(Argument::Text(text.to_string_lossy().into_owned()))
    };
}

pub(super) unsafe fn scalar(name: &'static str, p: typed::scalar) -> Decoded {
    if p.is_null() {
        return Err(missing(name));
    }
    Ok(Argument::Scalar(SCALARS.with(p, |s| s.value).map_err(|f| f.of(name))?))
}

macro_rules! numbers {
    ($($kind:ident => $variant:ident as $wide:ty;)*) => {$(
        pub(super) unsafe fn $kind(_: &'static str, v: typed::$kind) -> Decoded {
            Ok(Argument::$variant(v as $wide))
        }
    )*};
}

numbers! {
    i64 => Int as core::primitive::i64;
    i8 => Int as core::primitive::i64;
    f64 => Float as core::primitive::f64;
    bool => Bool as core::primitive::bool;
}

pub(super) unsafe fn dtype(name: &'static str, v: typed::dtype) -> Decoded {
    let unknown = || Fault::invalid(format!("{name}: there is no data type {v}"));
    Ok(Argument::Type(Element::from_code(v).ok_or_else(unknown)?))
}
