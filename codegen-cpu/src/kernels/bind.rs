//! From the buffers and scalars of a plan to a kernel's own arguments, every size checked once.

use super::simd::{Dots, LINE_BYTES, Simd, Vectorised};
use super::uses::{Split, Use};
use super::worker::{Scratch, Worker};
use artifact::Scalar;

/// A buffer of a call at its final address.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Buffer {
    /// First byte.
    pub(crate) ptr: *mut u8,
    /// Length in bytes.
    pub(crate) bytes: usize,
    /// Whether kernels may write to it.
    pub(crate) writable: bool,
    /// Whether it is memory of one thread that holds one row: every row is that row then.
    pub(crate) private: bool,
}

/// A kernel with its arguments: the same work for every instruction set.
pub(crate) trait Kernel: Sized + Send + Sync + 'static {
    /// Whether an output may be the very buffer of an input of the same type and stride.
    const IN_PLACE: bool = false;
    /// Whether it runs row by row: a worker `r` of as many as there are rows (or of a part of them that divides their number)
    /// computes row `r` (or its rows) alone, from row `r` of its rows and from what no call of the chain writes, meets no
    /// other worker and uses no shared memory.
    const ROW_WISE: bool = false;
    /// As [`Vectorised::DOTS`].
    const DOTS: Dots = if Self::ROW_WISE { Dots::NONE } else { Dots::ALL };

    /// Takes buffers and scalars in the order of `KERNELS.md`.
    ///
    /// # Errors
    /// What is wrong with them, in words.
    fn bind(binder: &mut Binder<'_>) -> Result<Self, String>;

    /// Working memory it needs when compiled for `S`.
    fn scratch<S: Simd>(&self) -> Scratch {
        Scratch::default()
    }

    /// The weights that thread `index` of `count` reads first, if that does not depend on what other launches
    /// compute.
    fn first_weights(&self, _index: usize, _count: usize) -> Option<*const u8> {
        None
    }

    /// Asks for what the share of `worker` writes where that is in no near cache. A chain does so before its first call
    /// runs on a row.
    ///
    /// # Safety
    /// As [`Kernel::run`].
    #[inline(always)]
    unsafe fn ask<S: Simd>(&self, _worker: &Worker<'_>) {}

    /// Does this thread's share. Must be `#[inline(always)]`.
    ///
    /// # Safety
    /// The machine has the instructions of `S`, the buffers are alive, no one else touches them,
    /// and the scratch memory is as large as [`Kernel::scratch`] says.
    unsafe fn run<S: Simd>(&self, worker: &Worker<'_>);
}

/// A bound call, ready to run on every thread.
pub(crate) trait Run: Send + Sync {
    /// Working memory it needs.
    fn scratch(&self) -> Scratch;

    /// As [`Kernel::first_weights`].
    fn first_weights(&self, _index: usize, _count: usize) -> Option<*const u8> {
        None
    }

    /// As [`Kernel::ask`].
    ///
    /// # Safety
    /// As [`Run::run`].
    unsafe fn ask(&self, _worker: &Worker<'_>) {}

    /// Does this thread's share.
    ///
    /// # Safety
    /// As [`Kernel::run`], without the instructions, which were checked.
    unsafe fn run(&self, worker: &Worker<'_>);
}

/// A kernel compiled for `S`.
struct Compiled<K, S>(K, std::marker::PhantomData<S>);

impl<K: Kernel, S: Simd> Run for Compiled<K, S> {
    fn scratch(&self) -> Scratch {
        self.0.scratch::<S>()
    }

    fn first_weights(&self, index: usize, count: usize) -> Option<*const u8> {
        self.0.first_weights(index, count)
    }

    unsafe fn ask(&self, worker: &Worker<'_>) {
        // SAFETY: the caller's promise.
        unsafe { self.0.ask::<S>(worker) }
    }

    unsafe fn run(&self, worker: &Worker<'_>) {
        struct Share<'a, K>(&'a K, &'a Worker<'a>);
        impl<K: Kernel> Vectorised for Share<'_, K> {
            type Output = ();
            const DOTS: Dots = K::DOTS;
            #[inline(always)]
            unsafe fn run<S: Simd>(self) {
                // SAFETY: the caller's promise.
                unsafe { self.0.run::<S>(self.1) }
            }
        }
        // SAFETY: `S` is only ever chosen among what the machine has; the rest is the caller's
        // promise.
        unsafe { S::enter(Share(&self.0, worker)) }
    }
}

/// Binds `K` for `S`.
///
/// # Errors
/// As [`Kernel::bind`], or when arguments are left over or overlap.
pub(crate) fn compiled<K: Kernel, S: Simd>(
    binder: &mut Binder<'_>,
) -> Result<Box<dyn Run>, String> {
    // The rest is for tests of the crate as it is used: compiled for these too, it takes minutes.
    if const { cfg!(test) && !K::ROW_WISE } {
        return Err("unit tests have kernels that run row by row alone".to_owned());
    }
    let kernel = K::bind(binder)?;
    binder.finish(K::IN_PLACE)?;
    Ok(Box::new(Compiled::<K, S>(kernel, std::marker::PhantomData)))
}

/// Rows of elements, a stride apart. Checked when it was bound.
pub(crate) struct Rows<T> {
    ptr: *mut T,
    stride: usize,
}

impl<T> Clone for Rows<T> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<T> Copy for Rows<T> {}

// SAFETY: kernels split rows and columns between threads so that no element is written by one
// thread while another uses it.
unsafe impl<T> Send for Rows<T> {}
// SAFETY: as above.
unsafe impl<T> Sync for Rows<T> {}

impl<T> Rows<T> {
    /// The first element of row `r`.
    ///
    /// # Safety
    /// `r` is one of the rows that were bound.
    #[inline(always)]
    pub(crate) unsafe fn row(&self, r: usize) -> *mut T {
        // SAFETY: inside the buffer by the check in `Binder::rows`.
        unsafe { self.ptr.add(r * self.stride) }
    }

    /// The first row in the place of every row.
    pub(crate) fn repeated(self) -> Self {
        Self { stride: 0, ..self }
    }

    /// The same rows from element `n` of each on.
    ///
    /// # Safety
    /// Every row that is used is valid for `n` elements and those that are read after them.
    #[inline(always)]
    pub(crate) unsafe fn skip(self, n: usize) -> Self {
        // SAFETY: as the caller's.
        Self { ptr: unsafe { self.ptr.add(n) }, ..self }
    }

    /// Asks for `n` elements of row `r` from element `at` on. There need not be such a row.
    ///
    /// # Safety
    /// As [`Simd`].
    #[inline(always)]
    pub(crate) unsafe fn ask<S: Simd>(&self, r: usize, at: usize, n: usize) {
        let from: *const u8 = self.ptr.wrapping_add(r * self.stride + at).cast();
        for line in (0..n * size_of::<T>()).step_by(LINE_BYTES) {
            // SAFETY: the caller's promise; any address may be given.
            unsafe { S::prefetch(from.wrapping_add(line)) };
        }
    }

    /// Elements between rows.
    #[inline(always)]
    pub(crate) fn stride(&self) -> usize {
        self.stride
    }
}

/// Hands out buffers and scalars in order.
pub(crate) struct Binder<'a> {
    args: &'a [Buffer],
    scalars: &'a [Scalar],
    next_arg: usize,
    next_scalar: usize,
    uses: Vec<Use>,
    name: &'static str,
    linear: bool,
    tiles: bool,
}

impl<'a> Binder<'a> {
    pub(crate) fn new(args: &'a [Buffer], scalars: &'a [Scalar]) -> Self {
        let uses = Vec::with_capacity(args.len());
        Self {
            args,
            scalars,
            next_arg: 0,
            next_scalar: 0,
            uses,
            name: "",
            linear: false,
            tiles: false,
        }
    }

    /// Says that the kernel may use AMX tiles.
    pub(crate) fn allow_tiles(&mut self) {
        self.tiles = true;
    }

    /// Whether the kernel may use AMX tiles.
    pub(crate) fn has_tiles(&self) -> bool {
        self.tiles
    }

    /// Says which kernel is bound, for those that serve several names.
    /// `linear` says that it is a product whose scalars describe its end.
    pub(crate) fn call(&mut self, name: &'static str, linear: bool) {
        self.name = name;
        self.linear = linear;
    }

    /// Whether the scalars of the product that is bound describe its end.
    pub(crate) fn is_linear(&self) -> bool {
        self.linear
    }

    /// The kernel that is bound, without `linear_`.
    pub(crate) fn name(&self) -> &'static str {
        self.name
    }

    /// The next scalar, a count.
    pub(crate) fn count(&mut self, what: &str) -> Result<usize, String> {
        match self.scalar(what)? {
            Scalar::Int(n) => usize::try_from(n)
                .ok()
                .filter(|&n| n <= isize::MAX as usize)
                .ok_or_else(|| format!("`{what}` is {n}, too large")),
            Scalar::Float(x) => Err(format!("`{what}` is the factor {x}, expected a count")),
        }
    }

    /// The next scalar, a count that is not zero.
    pub(crate) fn positive(&mut self, what: &str) -> Result<usize, String> {
        let n = self.count(what)?;
        if n == 0 { Err(format!("`{what}` is 0")) } else { Ok(n) }
    }

    /// The next scalar, a factor.
    pub(crate) fn factor(&mut self, what: &str) -> Result<f32, String> {
        match self.scalar(what)? {
            Scalar::Float(x) => Ok(x),
            Scalar::Int(n) => Err(format!("`{what}` is the count {n}, expected a factor")),
        }
    }

    fn scalar(&mut self, what: &str) -> Result<Scalar, String> {
        let got = self.scalars.get(self.next_scalar).copied();
        self.next_scalar += 1;
        got.ok_or_else(|| format!("{} scalars, `{what}` is missing", self.scalars.len()))
    }

    /// The next buffer, read only: `rows` of `n` elements, each for the row of its number.
    pub(crate) fn input<T>(
        &mut self,
        what: &str,
        rows: usize,
        n: usize,
        stride: usize,
    ) -> Result<Rows<T>, String> {
        self.rows(what, rows, n, stride, false)
    }

    /// The next buffer, read only: `rows` of `n` elements, of which every row may read all.
    pub(crate) fn table<T>(
        &mut self,
        what: &str,
        rows: usize,
        n: usize,
        stride: usize,
    ) -> Result<Rows<T>, String> {
        let found = self.rows(what, rows, n, stride, false)?;
        self.split(what, Split::Whole)?;
        Ok(found)
    }

    /// The next buffer, read only, all of it, of which every row may read all: at least `least` elements. Its stride is
    /// how many it has.
    pub(crate) fn whole<T>(&mut self, what: &str, least: usize) -> Result<Rows<T>, String> {
        let held = self.args.get(self.next_arg).map_or(0, |buffer| buffer.bytes / size_of::<T>());
        self.table(what, 1, held.max(least), held.max(least))
    }

    /// The next buffer, read only: one element for each of `rows` rows.
    pub(crate) fn column<T>(&mut self, what: &str, rows: usize) -> Result<Rows<T>, String> {
        let found = self.rows(what, 1, rows, rows, false)?;
        self.split(what, Split::Rows { rows, len: size_of::<T>(), stride: size_of::<T>() })?;
        Ok(found)
    }

    /// The next buffer, written: one element for each of `rows` rows.
    pub(crate) fn output_column<T>(&mut self, what: &str, rows: usize) -> Result<Rows<T>, String> {
        let found = self.rows(what, 1, rows, rows, true)?;
        self.split(what, Split::Rows { rows, len: size_of::<T>(), stride: size_of::<T>() })?;
        Ok(found)
    }

    /// Says how rows divide the buffer that was handed out last.
    fn split(&mut self, what: &str, split: Split) -> Result<(), String> {
        let used = self.uses.last_mut().expect("a buffer was handed out");
        if used.split == Split::Private {
            return Err(format!("`{what}` is private memory, which holds rows alone"));
        }
        used.split = split;
        Ok(())
    }

    /// What the call does with its buffers.
    pub(crate) fn into_uses(self) -> Vec<Use> {
        self.uses
    }

    /// The next buffer, written: `rows` of `n` elements, each by the row of its number.
    pub(crate) fn output<T>(
        &mut self,
        what: &str,
        rows: usize,
        n: usize,
        stride: usize,
    ) -> Result<Rows<T>, String> {
        self.rows(what, rows, n, stride, true)
    }

    fn buffer(&mut self, what: &str) -> Result<Buffer, String> {
        let got = self.args.get(self.next_arg).copied();
        self.next_arg += 1;
        got.ok_or_else(|| format!("{} buffers, `{what}` is missing", self.args.len()))
    }

    /// The next buffer as whole blocks of `len` elements, and their number.
    pub(crate) fn blocks<T>(
        &mut self,
        what: &str,
        len: usize,
        written: bool,
    ) -> Result<(usize, Rows<T>), String> {
        let Buffer { ptr, bytes, writable, private } = self.buffer(what)?;
        let blocks = bytes / (len * size_of::<T>());
        if !writable || private || blocks == 0 {
            return Err(format!(
                "`{what}` has {bytes} bytes, too few for one block, or is no memory that lasts"
            ));
        }
        Ok((blocks, self.used(what, ptr, bytes, len, (written, Split::Whole))?))
    }

    fn rows<T>(
        &mut self,
        what: &str,
        rows: usize,
        n: usize,
        stride: usize,
        written: bool,
    ) -> Result<Rows<T>, String> {
        let Buffer { ptr, bytes, writable, private } = self.buffer(what)?;
        if written && !writable {
            return Err(format!("`{what}` is written and lies in the weights"));
        }
        if rows > 1 && n == 0 {
            return Err(format!("{rows} rows of `{what}` are empty"));
        }
        if rows > 1 && stride < n {
            return Err(format!("rows of `{what}` have {n} elements and are {stride} apart"));
        }
        let (held, stride) = if private { (rows.min(1), 0) } else { (rows, stride) };
        let needed = match held {
            0 => Some(0),
            _ => (held - 1)
                .checked_mul(stride)
                .and_then(|e| e.checked_add(n))
                .and_then(|e| e.checked_mul(size_of::<T>())),
        };
        let Some(needed) = needed.filter(|&needed| needed <= bytes) else {
            let element = size_of::<T>();
            return Err(format!(
                "`{what}` has {bytes} bytes, too few for {held} rows of {n} elements of {element} \
                 bytes, {stride} apart"
            ));
        };
        let element = size_of::<T>();
        let split = match private {
            true => Split::Private,
            false => Split::Rows {
                rows,
                len: n.saturating_mul(element),
                stride: stride.saturating_mul(element),
            },
        };
        self.used(what, ptr, needed, stride, (written, split))
    }

    fn used<T>(
        &mut self,
        what: &str,
        ptr: *mut u8,
        bytes: usize,
        stride: usize,
        (written, split): (bool, Split),
    ) -> Result<Rows<T>, String> {
        let (start, shape) = (ptr.addr(), (size_of::<T>(), stride));
        self.uses.push(Use { start, end: start + bytes, written, shape, split });
        let ptr = ptr.cast::<T>();
        if !ptr.is_aligned() {
            return Err(format!("`{what}` is not aligned to {} bytes", align_of::<T>()));
        }
        Ok(Rows { ptr, stride })
    }

    /// All scalars that are left.
    pub(crate) fn remaining_factors(&mut self, what: &str, n: usize) -> Result<Vec<f32>, String> {
        (0..n).map(|_| self.factor(what)).collect()
    }

    /// All scalars that are left, whatever they are.
    pub(super) fn remaining_scalars(&mut self) -> Vec<Scalar> {
        let rest = self.scalars.get(self.next_scalar..).unwrap_or_default().to_vec();
        self.next_scalar = self.scalars.len();
        rest
    }

    /// # Errors
    /// When arguments are left over or overlap.
    pub(super) fn finish(&self, in_place: bool) -> Result<(), String> {
        if self.next_arg != self.args.len() || self.next_scalar != self.scalars.len() {
            return Err(format!(
                "{} buffers and {} scalars, expected {} and {}",
                self.args.len(),
                self.scalars.len(),
                self.next_arg,
                self.next_scalar
            ));
        }
        for (i, a) in self.uses.iter().enumerate() {
            for (j, b) in self.uses.iter().enumerate().take(i) {
                if a.conflicts(b, in_place) {
                    return Err(format!("buffers {j} and {i} overlap and one is written"));
                }
            }
        }
        Ok(())
    }
}

/// Refuses a product of sizes that does not fit.
pub(crate) fn product(factors: &[usize]) -> Result<usize, String> {
    factors
        .iter()
        .try_fold(1usize, |p, &f| p.checked_mul(f))
        .ok_or_else(|| format!("sizes {factors:?} are too large"))
}
