//! Which places a row attends to.

use crate::kernels::bind::{Binder, Rows};

/// A choice of places.
pub(crate) trait Places: Sized + Send + Sync + 'static {
    /// Whether rows of a sequence choose alike, up to their positions.
    const ALIKE: bool;

    /// Takes the buffers after the positions and the scalars after the strides.
    ///
    /// # Errors
    /// What is wrong with them.
    fn bind(b: &mut Binder<'_>, rows: usize) -> Result<Self, String>;

    /// The most places that are chosen among `context`.
    fn most(&self, context: usize) -> usize;

    /// The places of `row` below `context`, in order.
    ///
    /// # Safety
    /// `row` is one of those bound.
    unsafe fn of(&self, row: usize, context: usize) -> impl Iterator<Item = usize>;
}

/// Every place.
pub(crate) struct All;

impl Places for All {
    const ALIKE: bool = true;

    fn bind(_: &mut Binder<'_>, _: usize) -> Result<Self, String> {
        Ok(Self)
    }

    #[inline(always)]
    fn most(&self, context: usize) -> usize {
        context
    }

    #[inline(always)]
    unsafe fn of(&self, _: usize, context: usize) -> impl Iterator<Item = usize> {
        0..context
    }
}

/// A list of places for each row. Entries outside the context are none.
pub(crate) struct Selected {
    count: usize,
    places: Rows<i32>,
}

impl Places for Selected {
    const ALIKE: bool = false;

    fn bind(b: &mut Binder<'_>, rows: usize) -> Result<Self, String> {
        let (count, stride) = (b.positive("selected")?, b.count("selected stride")?);
        Ok(Self { count, places: b.input("selected", rows, count, stride)? })
    }

    #[inline(always)]
    fn most(&self, context: usize) -> usize {
        context.min(self.count)
    }

    #[inline(always)]
    unsafe fn of(&self, row: usize, context: usize) -> impl Iterator<Item = usize> {
        // SAFETY: as the caller's.
        let places = unsafe { std::slice::from_raw_parts(self.places.row(row), self.count) };
        let inside = move |&place: &i32| usize::try_from(place).ok().filter(|&p| p < context);
        places.iter().filter_map(inside)
    }
}
