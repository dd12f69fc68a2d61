//! Reading and writing the memory that a tensor describes, in logical row-major order whatever its
//! strides, fractals or packing.

use super::host;
use crate::objects::{Element, Fault, Tensor};
use half::{bf16, f16};

/// A number of one of the element types: exact integers, or floating point.
trait Number: Copy {
    fn real(v: f32) -> Self;
    fn whole(v: i64) -> Self;
}

impl Number for f32 {
    fn real(v: f32) -> Self {
        v
    }
    fn whole(v: i64) -> Self {
        v as f32
    }
}

impl Number for i64 {
    fn real(v: f32) -> Self {
        v as i64
    }
    fn whole(v: i64) -> Self {
        v
    }
}

impl Number for i32 {
    fn real(v: f32) -> Self {
        v as i32
    }
    fn whole(v: i64) -> Self {
        v as i32
    }
}

/// `v` to the nearest whole number, ties to even, as far as `bits` bits of two's complement reach.
fn saturate(v: f32, bits: u32) -> i64 {
    let limit = (1i64 << (bits - 1)) as f32;
    let rounded = v.round_ties_even().clamp(-limit, limit);
    (rounded as i64).min((1i64 << (bits - 1)) - 1)
}

impl Tensor {
    /// That what it describes is device memory.
    pub(crate) fn check_memory(&self) -> Result<(), Fault> {
        let end = self.end();
        if end == 0 {
            return Ok(());
        }
        let first = self.offset * self.element.bits() / 8;
        let align = (self.element.bits() / 8).max(1);
        if !self.address.is_multiple_of(align) {
            return Err(Fault::exception(format!(
                "{}: the address {:#x} is not aligned to {} elements",
                self.name,
                self.address,
                self.element.name()
            )));
        }
        host::find(self.address + first, end - first).map_err(|f| f.of(self.name))
    }

    /// Calls `f` with the position of every element.
    fn visit(&self, mut f: impl FnMut(usize)) {
        if self.is_empty() {
            return;
        }
        if self.is_nz() {
            return self.visit_fractals(f);
        }
        let (width, step) = match (self.dims.last(), self.strides.last()) {
            (Some(&d), Some(&s)) => (d, s),
            _ => (1, 1),
        };
        let outer = self.dims.len().saturating_sub(1);
        let mut index = vec![0; outer];
        let mut base = self.offset;
        loop {
            for c in 0..width {
                f(base + c * step);
            }
            let mut dim = outer;
            loop {
                if dim == 0 {
                    return;
                }
                dim -= 1;
                index[dim] += 1;
                base += self.strides[dim];
                if index[dim] < self.dims[dim] {
                    break;
                }
                base -= self.strides[dim] * self.dims[dim];
                index[dim] = 0;
            }
        }
    }

    fn visit_fractals(&self, mut f: impl FnMut(usize)) {
        let (nz, transposed) = self.fractals();
        let [.., rows, cols] = self.dims[..] else { return };
        let matrices: usize = self.dims.iter().rev().skip(2).product();
        for m in 0..matrices {
            let base = self.offset + m * nz.padded_len() as usize;
            for r in 0..rows as u64 {
                for c in 0..cols as u64 {
                    let at = if transposed { nz.offset(c, r) } else { nz.offset(r, c) };
                    f(base + at as usize);
                }
            }
        }
    }

    fn pointer<T>(&self) -> *mut T {
        std::ptr::with_exposed_provenance_mut(self.address)
    }

    fn load<T: Copy, N>(&self, out: &mut Vec<N>, convert: impl Fn(T) -> N) {
        let start = self.pointer::<T>();
        // SAFETY: `check_memory` found every element in device memory before anything was read.
        self.visit(|at| out.push(convert(unsafe { start.add(at).read_unaligned() })));
    }

    fn numbers<N: Number>(&self) -> Vec<N> {
        let mut out = Vec::with_capacity(self.len());
        match self.element {
            Element::F32 => self.load(&mut out, N::real),
            Element::F64 => self.load(&mut out, |v: f64| N::real(v as f32)),
            Element::F16 => self.load(&mut out, |v| N::real(f16::from_bits(v).to_f32())),
            Element::BF16 => self.load(&mut out, |v| N::real(bf16::from_bits(v).to_f32())),
            Element::I8 => self.load(&mut out, |v: i8| N::whole(i64::from(v))),
            Element::U8 | Element::Bool => self.load(&mut out, |v: u8| N::whole(i64::from(v))),
            Element::I16 => self.load(&mut out, |v: i16| N::whole(i64::from(v))),
            Element::I32 => self.load(&mut out, |v: i32| N::whole(i64::from(v))),
            Element::U32 => self.load(&mut out, |v: u32| N::whole(i64::from(v))),
            Element::I64 | Element::U64 => self.load(&mut out, N::whole),
            Element::I4 => {
                let start = self.pointer::<u8>();
                self.visit(|at| {
                    // SAFETY: as in `load`; two elements share a byte.
                    let byte = unsafe { start.add(at / 2).read() };
                    let nibble = if at % 2 == 0 { byte << 4 } else { byte & 0xf0 };
                    out.push(N::whole(i64::from(nibble as i8 >> 4)));
                });
            }
        }
        out
    }

    /// Its elements as `f32`.
    pub(crate) fn reals(&self) -> Vec<f32> {
        self.numbers()
    }

    /// Its elements as whole numbers.
    pub(crate) fn integers(&self) -> Vec<i64> {
        self.numbers()
    }

    /// Its elements as whole numbers of at most 32 bits.
    pub(crate) fn words(&self) -> Vec<i32> {
        self.numbers()
    }

    /// Its one element.
    pub(crate) fn only(&self) -> f32 {
        self.reals().first().copied().unwrap_or(0.0)
    }

    fn store<T: Copy>(&self, mut values: impl Iterator<Item = T>) {
        let start = self.pointer::<T>();
        self.visit(|at| {
            if let Some(value) = values.next() {
                // SAFETY: `check_memory` found every element in device memory before it is written.
                unsafe { start.add(at).write_unaligned(value) }
            }
        });
    }

    fn store_nibbles(&self, mut values: impl Iterator<Item = i64>) {
        let start = self.pointer::<u8>();
        self.visit(|at| {
            let Some(value) = values.next() else { return };
            // SAFETY: as in `store`; the other nibble of the byte stays.
            unsafe {
                let byte = start.add(at / 2);
                let nibble = (value & 0xf) as u8;
                let old = byte.read();
                byte.write(match at % 2 {
                    0 => old & 0xf0 | nibble,
                    _ => old & 0x0f | nibble << 4,
                });
            }
        });
    }

    /// Writes its elements, rounded to the nearest that its type has, ties to even.
    pub(crate) fn put(&self, values: &[f32]) {
        let values = values.iter().copied();
        match self.element {
            Element::F32 => self.store(values),
            Element::F64 => self.store(values.map(f64::from)),
            Element::F16 => self.store(values.map(|v| f16::from_f32(v).to_bits())),
            Element::BF16 => self.store(values.map(|v| bf16::from_f32(v).to_bits())),
            Element::I8 => self.store(values.map(|v| saturate(v, 8) as i8)),
            Element::I4 => self.store_nibbles(values.map(|v| saturate(v, 4))),
            Element::I16 => self.store(values.map(|v| saturate(v, 16) as i16)),
            Element::I32 => self.store(values.map(|v| saturate(v, 32) as i32)),
            Element::U8 => self.store(values.map(|v| v.round_ties_even() as u8)),
            Element::U32 => self.store(values.map(|v| v.round_ties_even() as u32)),
            Element::I64 => self.store(values.map(|v| v.round_ties_even() as i64)),
            Element::U64 => self.store(values.map(|v| v.round_ties_even() as u64)),
            Element::Bool => self.store(values.map(|v| u8::from(v != 0.0))),
        }
    }

    /// Writes its elements, which are whole numbers; those too large for its type wrap.
    pub(crate) fn put_integers(&self, values: &[i64]) {
        let values = values.iter().copied();
        match self.element {
            Element::I8 | Element::U8 => self.store(values.map(|v| v as i8)),
            Element::I16 => self.store(values.map(|v| v as i16)),
            Element::I32 | Element::U32 => self.store(values.map(|v| v as i32)),
            Element::I64 | Element::U64 => self.store(values),
            Element::Bool => self.store(values.map(|v| u8::from(v != 0))),
            Element::I4 => self.store_nibbles(values),
            Element::F32 => self.store(values.map(|v| v as f32)),
            Element::F64 => self.store(values.map(|v| v as f64)),
            Element::F16 => self.store(values.map(|v| f16::from_f32(v as f32).to_bits())),
            Element::BF16 => self.store(values.map(|v| bf16::from_f32(v as f32).to_bits())),
        }
    }

    /// The part at `index` of the first dimension.
    pub(crate) fn at(&self, index: usize) -> Tensor {
        let mut part = self.range(index, 1);
        part.dims.remove(0);
        part.strides.remove(0);
        if part.is_nz() && !part.storage.is_empty() {
            part.storage.remove(0);
        }
        part
    }

    /// `count` parts from `start` of the first dimension; of fractals that is an outer one.
    pub(crate) fn range(&self, start: usize, count: usize) -> Tensor {
        let mut part = self.clone();
        part.dims[0] = count;
        part.offset += if self.is_nz() {
            let inner: usize = self.dims[1..self.dims.len() - 2].iter().product();
            start * inner * self.fractals().0.padded_len() as usize
        } else {
            start * self.strides[0]
        };
        part
    }

    /// The same elements in the shape `[rows, width]`, where the outer dimensions lie densely.
    pub(crate) fn matrix(&self) -> Result<Tensor, Fault> {
        let [.., width] = self.dims[..] else {
            return Err(Fault::invalid(format!("{}: a scalar has no rows", self.name)));
        };
        let mut flat = self.clone();
        let outer = self.dims.len() - 1;
        let mut row_stride = width;
        if outer > 0 {
            row_stride = self.strides[outer - 1];
            for i in (0..outer - 1).rev() {
                if self.dims[i] > 1 && self.strides[i] != self.strides[i + 1] * self.dims[i + 1] {
                    return Err(Fault::invalid(format!(
                        "{}: strides {:?} of {:?} do not make rows",
                        self.name, self.strides, self.dims
                    )));
                }
            }
        }
        flat.dims = vec![self.rows(), width];
        flat.strides = vec![row_stride, self.strides[outer]];
        Ok(flat)
    }

    /// It seen with its last two dimensions exchanged.
    pub(crate) fn transposed(&self) -> Tensor {
        let mut t = self.clone();
        if let [.., a, b] = &mut t.dims[..] {
            std::mem::swap(a, b);
        }
        if let [.., a, b] = &mut t.strides[..] {
            std::mem::swap(a, b);
        }
        t
    }

    /// `len` places from `start` of dimension `dim`.
    pub(crate) fn narrow(&self, dim: usize, start: usize, len: usize) -> Tensor {
        let mut t = self.clone();
        t.dims[dim] = len;
        t.offset += start * t.strides[dim];
        t
    }

    /// It seen in the shape `dims`: dimensions of one element, and those it lacks in front, repeat.
    pub(crate) fn broadcast(&self, dims: &[usize]) -> Result<Tensor, Fault> {
        let missing = dims.len().checked_sub(self.dims.len());
        let fits = missing.is_some_and(|missing| {
            self.dims.iter().zip(&dims[missing..]).all(|(&own, &d)| own == d || own == 1)
        });
        let Some(missing) = missing.filter(|_| fits) else {
            return Err(Fault::invalid(format!(
                "{}: {:?} cannot be seen as {dims:?}",
                self.name, self.dims
            )));
        };
        let mut t = self.clone();
        t.strides = (0..dims.len())
            .map(|i| match i.checked_sub(missing) {
                Some(own) if self.dims[own] == dims[i] => self.strides[own],
                _ => 0,
            })
            .collect();
        t.dims = dims.to_vec();
        Ok(t)
    }

    /// A dense tensor in another shape with as many elements.
    pub(crate) fn reshaped(&self, dims: &[usize]) -> Tensor {
        let mut t = self.clone();
        t.dims = dims.to_vec();
        t.strides = crate::objects::dense(dims);
        t
    }

    /// Writes the elements of `from`, which are as many, converted: what has a fraction loses it
    /// where whole numbers are kept.
    pub(crate) fn copy(&self, from: &Tensor) {
        if !from.element.is_float() && !self.element.is_float() {
            self.put_integers(&from.integers());
        } else if from.element.is_float() && !self.element.is_float() {
            let whole: Vec<f32> = from.reals().iter().map(|v| v.trunc()).collect();
            self.put(&whole);
        } else {
            self.put(&from.reals());
        }
    }
}
