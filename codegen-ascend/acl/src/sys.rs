//! Types of the C interface.
#![allow(non_camel_case_types, reason = "the names are those of the C interface")]

/// What every function of the runtime returns; 0 is success.
pub type aclError = i32;
/// What operators return; 0 is success.
pub type aclnnStatus = i32;

macro_rules! opaque {
    ($($(#[$doc:meta])* $name:ident;)*) => {
        $($(#[$doc])* #[repr(C)] pub struct $name { _private: [u8; 0] })*
    };
}

opaque! {
    /// A described buffer.
    aclTensor;
    /// A number with an element type.
    aclScalar;
    /// Whole numbers on the host.
    aclIntArray;
    /// Numbers on the host.
    aclFloatArray;
    /// A list of tensors, which it owns.
    aclTensorList;
    /// An operator bound to its parameters, between its two phases.
    aclOpExecutor;
}
