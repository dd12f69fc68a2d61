//! The operators of [`crate::for_each_operator`] as data, and typed calls of their first phase.

use crate::{for_each_operator, sys};
use std::ffi::{c_char, c_void};

/// A release of the vendor's toolkit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Release {
    /// 8.1.
    V8_1,
    /// 8.3.
    V8_3,
    /// 8.5.
    V8_5,
    /// 9.0 and later.
    V9,
}

macro_rules! kinds {
    ($($(#[$doc:meta])* $kind:ident: $ty:ty, $is_optional:literal, $pattern:pat => $read:expr;)*) => {
        /// What a parameter of an operator is.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[allow(non_camel_case_types, reason = "spelled as in the table")]
        pub enum Kind { $($(#[$doc])* $kind,)* }

        impl Kind {
            /// Whether it may be left out.
            pub const fn is_optional(self) -> bool {
                match self { $(Kind::$kind => $is_optional,)* }
            }

            /// Whether `value` is of this kind.
            pub const fn takes(self, value: &Value) -> bool {
                match self {
                    $(Kind::$kind => {
                        #[allow(unused_variables, reason = "only the shape counts")]
                        let taken = matches!(value, $pattern);
                        taken || ($is_optional && matches!(value, Value::Absent))
                    })*
                }
            }
        }

        /// The type that a parameter of each kind has in C.
        pub mod typed {
            #![allow(non_camel_case_types, reason = "spelled as in the table")]
            use crate::sys;
            use std::ffi::c_char;
            $($(#[$doc])* pub type $kind = $ty;)*
        }

        /// Values as C parameters.
        mod read {
            use super::*;
            $(
                pub(super) fn $kind(value: &Value) -> typed::$kind {
                    match *value {
                        $pattern => $read,
                        Value::Absent if $is_optional => absent::<typed::$kind>(),
                        _ => unreachable!("values are checked against the signature"),
                    }
                }
            )*
        }
    };
}

/// A parameter that is left out: a null pointer.
fn absent<T: 'static>() -> T {
    // Only pointers are optional; all have one size, and null is a value of each.
    assert_eq!(size_of::<T>(), size_of::<*const c_void>());
    // SAFETY: `T` is one of the pointer types of `kinds`, as no other kind is optional.
    unsafe { std::mem::zeroed() }
}

kinds! {
    /// `const aclTensor*`; outputs too.
    tensor: *const sys::aclTensor, false, Value::Tensor(p) => p.cast_const();
    /// A tensor that may be null.
    optional_tensor: *const sys::aclTensor, true, Value::Tensor(p) => p.cast_const();
    /// `const aclTensorList*`.
    tensors: *const sys::aclTensorList, false, Value::Tensors(p) => p.cast_const();
    /// A list that may be null.
    optional_tensors: *const sys::aclTensorList, true, Value::Tensors(p) => p.cast_const();
    /// Integers that may be null.
    optional_ints: *const sys::aclIntArray, true, Value::Ints(p) => p.cast_const();
    /// `const aclScalar*`.
    scalar: *const sys::aclScalar, false, Value::Scalar(p) => p.cast_const();
    /// A string that may be null.
    optional_text: *const c_char, true, Value::Text(p) => p;
    /// `int64_t`.
    i64: core::primitive::i64, false, Value::Int(v) => v;
    /// `int8_t`.
    i8: core::primitive::i8, false, Value::Int(v) => v as i8;
    /// `double`.
    f64: core::primitive::f64, false, Value::Float(v) => v;
    /// `bool`.
    bool: core::primitive::bool, false, Value::Bool(v) => v;
    /// `aclDataType`.
    dtype: core::primitive::i32, false, Value::Type(v) => v;
}

/// A parameter as it is handed to an operator.
#[derive(Clone, Copy, Debug)]
pub enum Value {
    /// An optional parameter that is left out.
    Absent,
    /// A tensor.
    Tensor(*mut sys::aclTensor),
    /// Tensors.
    Tensors(*mut sys::aclTensorList),
    /// Whole numbers.
    Ints(*mut sys::aclIntArray),
    /// A number object.
    Scalar(*mut sys::aclScalar),
    /// A string that ends with a zero byte.
    Text(*const c_char),
    /// A whole number of any width.
    Int(i64),
    /// A number of either precision.
    Float(f64),
    /// A flag.
    Bool(bool),
    /// An `aclDataType`.
    Type(i32),
}

/// A parameter of a [`Signature`].
#[derive(Clone, Copy, Debug)]
pub struct Parameter {
    /// Name in the documentation, in snake case.
    pub name: &'static str,
    /// What it is.
    pub kind: Kind,
}

/// An operator.
#[derive(Debug)]
pub struct Signature {
    /// Name without prefix: `QuantMatmulWeightNz`.
    pub name: &'static str,
    /// First release that has it with these parameters.
    pub since: Release,
    /// Symbol of the first phase, with a zero byte at its end.
    pub prepare_symbol: &'static str,
    /// Symbol of the second phase, with a zero byte at its end.
    pub launch_symbol: &'static str,
    /// Parameters in order.
    pub params: &'static [Parameter],
    call: unsafe fn(
        *const c_void,
        &[Value],
        *mut u64,
        *mut *mut sys::aclOpExecutor,
    ) -> sys::aclnnStatus,
}

impl Signature {
    /// Calls the first phase, which `function` points to: checks the parameters, and returns through
    /// the pointers how many bytes of workspace the second phase needs, and the executor for it.
    ///
    /// # Panics
    /// When `values` are not as many as the parameters, or not of their kinds.
    ///
    /// # Safety
    /// `function` is the symbol [`Signature::prepare_symbol`] of a library with the documented
    /// interface, every pointer among the values is valid, and both results may be written.
    pub unsafe fn prepare(
        &self,
        function: *const c_void,
        values: &[Value],
        workspace_bytes: *mut u64,
        executor: *mut *mut sys::aclOpExecutor,
    ) -> sys::aclnnStatus {
        assert_eq!(values.len(), self.params.len(), "{}", self.name);
        for (value, param) in values.iter().zip(self.params) {
            assert!(param.kind.takes(value), "{}: {} is not {value:?}", self.name, param.name);
        }
        // SAFETY: the caller's promise; the kinds were checked.
        unsafe { (self.call)(function, values, workspace_bytes, executor) }
    }
}

macro_rules! signatures {
    ($($name:ident $since:ident ($($param:ident: $kind:ident),* $(,)?);)*) => {
        /// Every operator that plans may call.
        pub const OPERATORS: &[Signature] = &[$(Signature {
            name: stringify!($name),
            since: Release::$since,
            prepare_symbol: concat!("aclnn", stringify!($name), "GetWorkspaceSize\0"),
            launch_symbol: concat!("aclnn", stringify!($name), "\0"),
            params: &[$(Parameter { name: stringify!($param), kind: Kind::$kind }),*],
            call: {
                unsafe fn call(
                    function: *const c_void,
                    values: &[Value],
                    workspace_bytes: *mut u64,
                    executor: *mut *mut sys::aclOpExecutor,
                ) -> sys::aclnnStatus {
                    type Prepare = unsafe extern "C" fn(
                        $(typed::$kind,)* *mut u64, *mut *mut sys::aclOpExecutor,
                    ) -> sys::aclnnStatus;
                    // SAFETY: the caller's promise that this is the function of this signature.
                    let prepare: Prepare = unsafe { std::mem::transmute(function) };
                    let mut values = values.iter();
                    $(let $param = read::$kind(values.next().expect("as many as parameters"));)*
                    // SAFETY: the caller's promise that pointers are valid.
                    unsafe { prepare($($param,)* workspace_bytes, executor) }
                }
                call
            },
        }),*];
    };
}

for_each_operator!(signatures);

/// The operator called `name`.
pub fn operator(name: &str) -> Option<&'static Signature> {
    OPERATORS.iter().find(|s| s.name == name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_unique_and_spelled_like_their_symbols() {
        for (i, s) in OPERATORS.iter().enumerate() {
            assert!(OPERATORS[..i].iter().all(|t| t.name != s.name), "{}", s.name);
            assert_eq!(s.launch_symbol, format!("aclnn{}\0", s.name));
            assert!(s.params.len() > 1, "{}", s.name);
        }
    }

    unsafe extern "C" fn cast(
        input: *const sys::aclTensor,
        dtype: i32,
        out: *const sys::aclTensor,
        workspace_bytes: *mut u64,
        executor: *mut *mut sys::aclOpExecutor,
    ) -> sys::aclnnStatus {
        // SAFETY: the test passes valid pointers.
        unsafe {
            *workspace_bytes = input as u64 + out as u64 + dtype as u64;
            *executor = std::ptr::null_mut();
        }
        7
    }

    #[test]
    fn a_call_hands_over_every_value() {
        let mut bytes = 0;
        let mut executor = std::ptr::dangling_mut();
        let tensor = |address: usize| Value::Tensor(std::ptr::without_provenance_mut(address));
        let values = [tensor(1000), Value::Type(27), tensor(20)];
        let signature = operator("Cast").expect("declared");
        // SAFETY: `cast` has the parameters of `Cast` and reads no tensor.
        let status =
            unsafe { signature.prepare(cast as *const c_void, &values, &mut bytes, &mut executor) };
        assert_eq!((status, bytes, executor.is_null()), (7, 1047, true));
    }

    #[test]
    #[should_panic(expected = "Cast: dtype is not Int(1)")]
    fn a_value_of_another_kind_is_refused() {
        let tensor = Value::Tensor(std::ptr::without_provenance_mut(8));
        let values = [tensor, Value::Int(1), tensor];
        let signature = operator("Cast").expect("declared");
        // SAFETY: the values are refused before the call.
        unsafe {
            signature.prepare(
                cast as *const c_void,
                &values,
                std::ptr::null_mut(),
                std::ptr::null_mut(),
            );
        }
    }
}
