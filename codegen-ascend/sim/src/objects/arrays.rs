//! Arrays, scalars and lists of tensors on the host.

use super::{Element, Fault, Handles, NULL_POINTER, TENSORS, Tensor, creation, status};
use acl::sys;
use std::{ffi::c_void, slice};

/// Live arrays of whole numbers.
pub(crate) static INTS: Handles<Vec<i64>> =
    Handles::new("array of integers", "arrays", 0x7e10_0000_0000);
/// Live arrays of floating-point numbers.
pub(crate) static FLOATS: Handles<Vec<f32>> =
    Handles::new("array of floats", "arrays", 0x7e20_0000_0000);
/// Live scalars.
pub(crate) static SCALARS: Handles<Scalar> = Handles::new("scalar", "scalars", 0x7e30_0000_0000);
/// Live lists of tensors, each the handles of its members, which it owns.
pub(crate) static LISTS: Handles<Vec<usize>> =
    Handles::new("list of tensors", "lists", 0x7e40_0000_0000);

/// A number with an element type.
#[derive(Clone, Copy, Debug)]
pub struct Scalar {
    /// Its value.
    pub value: f64,
}

/// What `values` and `count` describe, as an object of its own.
///
/// # Safety
/// `values` points to `count` of them.
unsafe fn create<T: Clone, P>(
    who: &'static str,
    handles: &Handles<Vec<T>>,
    values: *const T,
    count: u64,
) -> *mut P {
    creation(who, || {
        if count == 0 {
            return Ok(handles.insert(Vec::new()));
        }
        if values.is_null() {
            let message = "the values are null".to_owned();
            return Err(Fault { code: NULL_POINTER, message });
        }
        // SAFETY: the caller's promise; it is not null.
        Ok(handles.insert(unsafe { slice::from_raw_parts(values, count as usize) }.to_vec()))
    })
}

fn destroy<T, P>(who: &'static str, handles: &Handles<T>, handle: *const P) -> sys::aclnnStatus {
    status(who, || if handle.is_null() { Ok(()) } else { handles.remove(handle).map(drop) })
}

/// Writes how many elements an array has.
///
/// # Safety
/// `size` is null or may be written.
unsafe fn size<T, P>(
    who: &'static str,
    handles: &Handles<Vec<T>>,
    handle: *const P,
    size: *mut u64,
) -> sys::aclnnStatus {
    status(who, || {
        let n = handles.with(handle, |v| v.len() as u64)?;
        if size.is_null() {
            return Err(Fault { code: NULL_POINTER, message: "nowhere to write".to_owned() });
        }
        // SAFETY: the caller's promise; it is not null.
        unsafe { size.write(n) };
        Ok(())
    })
}

/// An array of whole numbers.
///
/// # Safety
/// `value` points to `size` numbers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn aclCreateIntArray(value: *const i64, size: u64) -> *mut sys::aclIntArray {
    // SAFETY: the caller's promise.
    unsafe { create("aclCreateIntArray", &INTS, value, size) }
}

/// Ends the life of an array.
///
/// # Safety
/// No pointers are followed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn aclDestroyIntArray(array: *const sys::aclIntArray) -> sys::aclnnStatus {
    destroy("aclDestroyIntArray", &INTS, array)
}

/// How many numbers an array has.
///
/// # Safety
/// `count` is null or may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn aclGetIntArraySize(
    array: *const sys::aclIntArray,
    count: *mut u64,
) -> sys::aclnnStatus {
    // SAFETY: the caller's promise.
    unsafe { size("aclGetIntArraySize", &INTS, array, count) }
}

/// An array of floating-point numbers.
///
/// # Safety
/// `value` points to `size` numbers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn aclCreateFloatArray(
    value: *const f32,
    size: u64,
) -> *mut sys::aclFloatArray {
    // SAFETY: the caller's promise.
    unsafe { create("aclCreateFloatArray", &FLOATS, value, size) }
}

/// Ends the life of an array.
///
/// # Safety
/// No pointers are followed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn aclDestroyFloatArray(
    array: *const sys::aclFloatArray,
) -> sys::aclnnStatus {
    destroy("aclDestroyFloatArray", &FLOATS, array)
}

/// How many numbers an array has.
///
/// # Safety
/// `count` is null or may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn aclGetFloatArraySize(
    array: *const sys::aclFloatArray,
    count: *mut u64,
) -> sys::aclnnStatus {
    // SAFETY: the caller's promise.
    unsafe { size("aclGetFloatArraySize", &FLOATS, array, count) }
}

/// A number with an element type; the number is copied.
///
/// # Safety
/// `value` points to a value of the type.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn aclCreateScalar(
    value: *mut c_void,
    data_type: i32,
) -> *mut sys::aclScalar {
    creation("aclCreateScalar", || {
        if value.is_null() {
            return Err(Fault { code: NULL_POINTER, message: "the value is null".to_owned() });
        }
        let element = Element::from_code(data_type)
            .ok_or_else(|| Fault::invalid(format!("there is no data type {data_type}")))?;
        // SAFETY: the caller's promise: a value of that type lies there.
        let value = unsafe {
            match element {
                Element::F32 => f64::from(value.cast::<f32>().read_unaligned()),
                Element::F64 => value.cast::<f64>().read_unaligned(),
                Element::F16 => half::f16::from_bits(value.cast::<u16>().read_unaligned()).to_f64(),
                Element::BF16 => {
                    half::bf16::from_bits(value.cast::<u16>().read_unaligned()).to_f64()
                }
                Element::I8 => f64::from(value.cast::<i8>().read()),
                Element::U8 | Element::Bool => f64::from(value.cast::<u8>().read()),
                Element::I16 => f64::from(value.cast::<i16>().read_unaligned()),
                Element::I32 => f64::from(value.cast::<i32>().read_unaligned()),
                Element::U32 => f64::from(value.cast::<u32>().read_unaligned()),
                Element::I64 => value.cast::<i64>().read_unaligned() as f64,
                Element::U64 => value.cast::<u64>().read_unaligned() as f64,
                Element::I4 => return Err(Fault::invalid("INT4 is no scalar type")),
            }
        };
        Ok(SCALARS.insert(Scalar { value }))
    })
}

/// Ends the life of a scalar.
///
/// # Safety
/// No pointers are followed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn aclDestroyScalar(scalar: *const sys::aclScalar) -> sys::aclnnStatus {
    destroy("aclDestroyScalar", &SCALARS, scalar)
}

/// A list of tensors, which owns them from then on.
///
/// # Safety
/// `value` points to `size` pointers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn aclCreateTensorList(
    value: *const *const sys::aclTensor,
    size: u64,
) -> *mut sys::aclTensorList {
    // SAFETY: the caller's promise; pointers are read as the numbers they are.
    unsafe { create("aclCreateTensorList", &LISTS, value.cast::<usize>(), size) }
}

/// Ends the life of a list and of the tensors in it.
///
/// # Safety
/// No pointers are followed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn aclDestroyTensorList(list: *const sys::aclTensorList) -> sys::aclnnStatus {
    status("aclDestroyTensorList", || {
        if list.is_null() {
            return Ok(());
        }
        LISTS.remove(list)?.into_iter().filter(|&m| m != 0).try_for_each(|member| {
            TENSORS.remove(std::ptr::without_provenance::<sys::aclTensor>(member)).map(drop)
        })
    })
}

/// How many tensors a list has.
///
/// # Safety
/// `count` is null or may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn aclGetTensorListSize(
    list: *const sys::aclTensorList,
    count: *mut u64,
) -> sys::aclnnStatus {
    // SAFETY: the caller's promise.
    unsafe { size("aclGetTensorListSize", &LISTS, list, count) }
}

/// The tensors of a list.
pub(crate) fn members(list: *const sys::aclTensorList) -> Result<Vec<Tensor>, Fault> {
    let members = LISTS.with(list, |l| l.clone())?;
    members
        .into_iter()
        .map(|m| TENSORS.with(std::ptr::without_provenance::<sys::aclTensor>(m), |t| t.clone()))
        .collect()
}
