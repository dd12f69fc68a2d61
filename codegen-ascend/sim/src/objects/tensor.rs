//! `aclTensor`: a description of device memory.

use super::{Element, Fault, Handles, creation, status};
use acl::sys;
use std::ffi::c_void;
use std::slice;
use tensor::layout::Nz;

/// Live tensors.
pub(crate) static TENSORS: Handles<Tensor> = Handles::new("tensor", "tensors", 0x7e00_0000_0000);

const FORMAT_NZ: i32 = 29;
/// Rows of a fractal.
const FRACTAL_ROWS: usize = 16;

/// A description of device memory. Copied when an operator takes it.
#[derive(Clone, Debug)]
pub struct Tensor {
    /// The parameter it is passed as; empty before that.
    pub name: &'static str,
    /// Element type.
    pub element: Element,
    /// Shape as operators read it.
    pub dims: Vec<usize>,
    /// Distance between neighbours along each dimension, in elements.
    pub strides: Vec<usize>,
    /// Elements between the start of the storage and the first element.
    pub offset: usize,
    /// `aclFormat`.
    pub format: i32,
    /// Shape of the storage.
    pub storage: Vec<usize>,
    /// Start of the storage in device memory.
    pub address: usize,
}

impl Tensor {
    /// Whether it is stored as fractals.
    pub fn is_nz(&self) -> bool {
        self.format == FORMAT_NZ
    }

    /// How many elements it has.
    pub fn len(&self) -> usize {
        self.dims.iter().product()
    }

    /// Whether it has no elements.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Last dimension; 1 for a scalar.
    pub fn width(&self) -> usize {
        self.dims.last().copied().unwrap_or(1)
    }

    /// Elements before the last dimension.
    pub fn rows(&self) -> usize {
        self.dims.iter().rev().skip(1).product()
    }

    /// Rows and columns of the matrices that are stored, and whether they are seen transposed. A
    /// matrix is seen transposed when neighbours in memory are neighbours in its second to last
    /// dimension.
    pub(crate) fn stored_matrix(&self) -> (usize, usize, bool) {
        let [.., h, w] = self.dims[..] else { return (1, self.width(), false) };
        let [.., down, across] = self.strides[..] else { return (h, w, false) };
        if down == 1 && across != 1 { (w, h, true) } else { (h, w, false) }
    }

    /// Where the elements of a fractal tensor lie: the layout of one matrix and whether it is seen
    /// transposed.
    pub(crate) fn fractals(&self) -> (Nz, bool) {
        let (h, w, transposed) = self.stored_matrix();
        (Nz::new(h as u64, w as u64, self.element.layout()), transposed)
    }

    /// First byte after the storage of the elements it has, counted from the start of the storage.
    pub(crate) fn end(&self) -> usize {
        let elements = if self.is_empty() {
            0
        } else if self.is_nz() {
            let matrices: usize = self.dims.iter().rev().skip(2).product();
            self.offset + matrices * self.fractals().0.padded_len() as usize
        } else {
            let reach = self.dims.iter().zip(&self.strides).map(|(d, s)| (d - 1) * s);
            self.offset + reach.sum::<usize>() + 1
        };
        (elements * self.element.bits()).div_ceil(8)
    }

    /// The same memory read as four-bit elements, where it is declared as words of eight of them.
    pub(crate) fn as_int4(&self) -> Tensor {
        if self.element != Element::I32 {
            return self.clone();
        }
        let mut t = self.clone();
        t.element = Element::I4;
        let (_, _, transposed) = self.stored_matrix();
        let packed = t.dims.len() - 1 - usize::from(transposed && t.dims.len() > 1);
        t.dims[packed] *= 8;
        for (i, stride) in t.strides.iter_mut().enumerate() {
            if i != packed {
                *stride *= 8;
            }
        }
        t.offset *= 8;
        if let Some(last) = t.storage.last_mut() {
            *last *= 8;
        }
        t
    }

    /// The rules that hold for every operator: formats, and storage that fits the view.
    pub(crate) fn check(&self) -> Result<(), Fault> {
        let name = self.name;
        if !matches!(self.format, 0..=2 | FORMAT_NZ) {
            return Err(Fault::invalid(format!("{name}: format {} is not taken", self.format)));
        }
        if !self.is_nz() {
            let elements: usize = self.storage.iter().product();
            let held = (elements * self.element.bits()).div_ceil(8);
            if self.end() > held {
                return Err(Fault::invalid(format!(
                    "{name}: the view {:?} with strides {:?} from {} ends at byte {}, the storage {:?} at {held}",
                    self.dims,
                    self.strides,
                    self.offset,
                    self.end(),
                    self.storage
                )));
            }
            return Ok(());
        }
        if self.dims.len() < 2 || self.offset != 0 {
            return Err(Fault::invalid(format!(
                "{name}: FRACTAL_NZ takes at least two dimensions and no offset, not {:?} from {}",
                self.dims, self.offset
            )));
        }
        let (h, w, _) = self.stored_matrix();
        let c0 = self.element.fractal_width();
        let mut expected = self.dims[..self.dims.len() - 2].to_vec();
        expected.extend([w.div_ceil(c0), h.div_ceil(FRACTAL_ROWS), FRACTAL_ROWS, c0]);
        if self.storage != expected {
            return Err(Fault::invalid(format!(
                "{name}: the storage of FRACTAL_NZ {} {:?} is {expected:?}, not {:?}",
                self.element.name(),
                self.dims,
                self.storage
            )));
        }
        Ok(())
    }
}

/// The numbers that `count` and `values` describe, none of them negative.
///
/// # Safety
/// `values` points to `count` numbers.
unsafe fn sizes(values: *const i64, count: u64) -> Option<Vec<usize>> {
    if count == 0 {
        return Some(Vec::new());
    }
    if values.is_null() {
        return None;
    }
    // SAFETY: the caller's promise.
    let values = unsafe { slice::from_raw_parts(values, count as usize) };
    values.iter().map(|&v| usize::try_from(v).ok()).collect()
}

/// Describes device memory; null with a message when the description is none. A null `stride` means
/// dense rows.
///
/// # Safety
/// `view_dims` and `stride` point to `view_dims_num` numbers, `storage_dims` to `storage_dims_num`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn aclCreateTensor(
    view_dims: *const i64,
    view_dims_num: u64,
    data_type: i32,
    stride: *const i64,
    offset: i64,
    format: i32,
    storage_dims: *const i64,
    storage_dims_num: u64,
    tensor_data: *mut c_void,
) -> *mut sys::aclTensor {
    creation("aclCreateTensor", || {
        let element = Element::from_code(data_type)
            .ok_or_else(|| Fault::invalid(format!("there is no data type {data_type}")))?;
        let missing = |what: &str| Fault::invalid(format!("{what} that are null or negative"));
        // SAFETY: the caller's promise.
        let dims =
            unsafe { sizes(view_dims, view_dims_num) }.ok_or_else(|| missing("view dims"))?;
        let strides = if stride.is_null() {
            dense(&dims)
        } else {
            // SAFETY: the caller's promise.
            unsafe { sizes(stride, view_dims_num) }.ok_or_else(|| missing("strides"))?
        };
        // SAFETY: the caller's promise.
        let storage = unsafe { sizes(storage_dims, storage_dims_num) }
            .ok_or_else(|| missing("storage dims"))?;
        let offset = usize::try_from(offset)
            .map_err(|_| Fault::invalid(format!("an offset of {offset} elements")))?;
        let address = tensor_data.expose_provenance();
        let name = "";
        Ok(TENSORS.insert(Tensor {
            name,
            element,
            dims,
            strides,
            offset,
            format,
            storage,
            address,
        }))
    })
}

/// Strides of dense rows.
pub(crate) fn dense(dims: &[usize]) -> Vec<usize> {
    let mut strides = vec![1; dims.len()];
    for i in (0..dims.len().saturating_sub(1)).rev() {
        strides[i] = strides[i + 1] * dims[i + 1];
    }
    strides
}

/// Ends the life of a tensor; null is allowed.
///
/// # Safety
/// No pointers are followed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn aclDestroyTensor(tensor: *const sys::aclTensor) -> sys::aclnnStatus {
    status("aclDestroyTensor", || {
        if tensor.is_null() { Ok(()) } else { TENSORS.remove(tensor).map(drop) }
    })
}

fn nowhere() -> Fault {
    Fault { code: super::NULL_POINTER, message: "nowhere to write".to_owned() }
}

/// Puts `get` of the tensor where `out` points.
///
/// # Safety
/// `out` is null or may be written.
unsafe fn get<T>(
    who: &'static str,
    tensor: *const sys::aclTensor,
    out: *mut T,
    get: impl FnOnce(&Tensor) -> T,
) -> sys::aclnnStatus {
    status(who, || {
        let value = TENSORS.with(tensor, |t| get(t))?;
        if out.is_null() {
            return Err(nowhere());
        }
        // SAFETY: the caller's promise; it is not null.
        unsafe { out.write(value) };
        Ok(())
    })
}

/// The element type.
///
/// # Safety
/// `data_type` is null or may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn aclGetDataType(
    tensor: *const sys::aclTensor,
    data_type: *mut i32,
) -> sys::aclnnStatus {
    // SAFETY: the caller's promise.
    unsafe { get("aclGetDataType", tensor, data_type, |t| t.element.code()) }
}

/// The format.
///
/// # Safety
/// `format` is null or may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn aclGetFormat(
    tensor: *const sys::aclTensor,
    format: *mut i32,
) -> sys::aclnnStatus {
    // SAFETY: the caller's promise.
    unsafe { get("aclGetFormat", tensor, format, |t| t.format) }
}

/// The offset of the view in elements.
///
/// # Safety
/// `offset` is null or may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn aclGetViewOffset(
    tensor: *const sys::aclTensor,
    offset: *mut i64,
) -> sys::aclnnStatus {
    // SAFETY: the caller's promise.
    unsafe { get("aclGetViewOffset", tensor, offset, |t| t.offset as i64) }
}

/// The address of the storage.
///
/// # Safety
/// `address` is null or may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn aclGetRawTensorAddr(
    tensor: *const sys::aclTensor,
    address: *mut *mut c_void,
) -> sys::aclnnStatus {
    let read = |t: &Tensor| std::ptr::with_exposed_provenance_mut(t.address);
    // SAFETY: the caller's promise.
    unsafe { get("aclGetRawTensorAddr", tensor, address, read) }
}

/// Moves a tensor to other memory; executors that were made with it keep theirs.
///
/// # Safety
/// No pointers are followed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn aclSetRawTensorAddr(
    tensor: *mut sys::aclTensor,
    address: *mut c_void,
) -> sys::aclnnStatus {
    status("aclSetRawTensorAddr", || {
        TENSORS.with(tensor, |t| t.address = address.expose_provenance())
    })
}

/// A copy of a shape or of strides that the caller owns, as the interface hands them out.
///
/// # Safety
/// `values` and `count` may be written.
unsafe fn hand_out(
    who: &'static str,
    tensor: *const sys::aclTensor,
    values: *mut *mut i64,
    count: *mut u64,
    list: impl FnOnce(&Tensor) -> Vec<usize>,
) -> sys::aclnnStatus {
    status(who, || {
        let list = TENSORS.with(tensor, |t| list(t))?;
        if values.is_null() || count.is_null() {
            return Err(nowhere());
        }
        let list: Box<[i64]> = list.iter().map(|&v| v as i64).collect();
        // SAFETY: the caller's promise; neither is null.
        unsafe {
            count.write(list.len() as u64);
            values.write(Box::leak(list).as_mut_ptr());
        }
        Ok(())
    })
}

/// The shape of the view.
///
/// # Safety
/// `dims` and `count` are null or may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn aclGetViewShape(
    tensor: *const sys::aclTensor,
    dims: *mut *mut i64,
    count: *mut u64,
) -> sys::aclnnStatus {
    // SAFETY: the caller's promise.
    unsafe { hand_out("aclGetViewShape", tensor, dims, count, |t| t.dims.clone()) }
}

/// The strides of the view.
///
/// # Safety
/// `strides` and `count` are null or may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn aclGetViewStrides(
    tensor: *const sys::aclTensor,
    strides: *mut *mut i64,
    count: *mut u64,
) -> sys::aclnnStatus {
    // SAFETY: the caller's promise.
    unsafe { hand_out("aclGetViewStrides", tensor, strides, count, |t| t.strides.clone()) }
}

/// The shape of the storage.
///
/// # Safety
/// `dims` and `count` are null or may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn aclGetStorageShape(
    tensor: *const sys::aclTensor,
    dims: *mut *mut i64,
    count: *mut u64,
) -> sys::aclnnStatus {
    // SAFETY: the caller's promise.
    unsafe { hand_out("aclGetStorageShape", tensor, dims, count, |t| t.storage.clone()) }
}
