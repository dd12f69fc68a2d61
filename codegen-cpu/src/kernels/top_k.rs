//! The largest of each row, in order.

use super::bind::{Binder, Kernel, Rows};
use super::matmul::WIDTH;
use super::simd::{Dots, LANES, Simd, Vectorised};
use super::worker::Worker;

/// The most that are found in a row.
pub(crate) const MOST: usize = 1024;

/// `top_k_f32`: the `k` largest of each row in descending order, the smaller index first among equals;
/// NaN comes last.
pub(crate) struct TopK {
    rows: usize,
    x: Rows<f32>,
    top: Top,
}

impl Kernel for TopK {
    const ROW_WISE: bool = true;

    fn bind(b: &mut Binder<'_>) -> Result<Self, String> {
        let (rows, n, k) = (b.count("T")?, b.positive("N")?, b.positive("k")?);
        let x_stride = b.count("x stride")?;
        let x = b.input("x", rows, n, x_stride)?;
        Ok(Self { rows, x, top: Top::bind(b, rows, n, k)? })
    }

    #[inline(always)]
    unsafe fn run<S: Simd>(&self, worker: &Worker<'_>) {
        // SAFETY: rows are inside what was bound.
        unsafe {
            S::enter(Find { top: &self.top, worker, rows: self.rows, x: self.x, panels: None })
        }
    }
}

/// Where the largest of rows of `n` go.
#[derive(Clone, Copy)]
pub(crate) struct Top {
    n: usize,
    k: usize,
    values: Rows<f32>,
    ids: Rows<i32>,
}

impl Top {
    /// Takes the next two buffers: values and indices.
    ///
    /// # Errors
    /// What is wrong with them.
    pub(crate) fn bind(
        b: &mut Binder<'_>,
        rows: usize,
        n: usize,
        k: usize,
    ) -> Result<Self, String> {
        if i32::try_from(n).is_err() {
            return Err(format!("`N` is {n}, too large for an index"));
        }
        let most = n.min(MOST);
        if k > most {
            return Err(format!("`k` is {k}, expected 1 to {most}"));
        }
        Ok(Self {
            n,
            k,
            values: b.output("values", rows, k, k)?,
            ids: b.output("ids", rows, k, k)?,
        })
    }
}

/// Finds the largest of this thread's rows.
///
/// # Safety
/// As [`Simd`]; rows of `x` and what was bound for them are alive. `panels` has the largest number of
/// each 64 elements of a row, `-inf` where there is none.
pub(crate) struct Find<'a, 'b> {
    pub(crate) top: &'a Top,
    pub(crate) worker: &'a Worker<'b>,
    pub(crate) rows: usize,
    pub(crate) x: Rows<f32>,
    pub(crate) panels: Option<Rows<f32>>,
}

impl Vectorised for Find<'_, '_> {
    type Output = ();
    const DOTS: Dots = Dots::NONE;

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let Self { top, worker, rows, x, panels } = self;
        let mut ranking = Ranking::new();
        for row in worker.share(rows) {
            // SAFETY: as the caller's; no two rows of the results overlap.
            unsafe {
                let x = std::slice::from_raw_parts(x.row(row).cast_const(), top.n);
                let panels = panels.map(|panels| {
                    std::slice::from_raw_parts(panels.row(row).cast_const(), top.n.div_ceil(WIDTH))
                });
                let values = std::slice::from_raw_parts_mut(top.values.row(row), top.k);
                let ids = std::slice::from_raw_parts_mut(top.ids.row(row), top.k);
                // Logits of many rows are no longer in a near cache.
                let ask = |x: &[f32]| x.chunks(LANES).for_each(|x| S::prefetch(x.as_ptr().cast()));
                ranking.rank(x, panels, top.k, ask);
                write(x, ranking.keys(), values, ids);
            }
        }
    }
}

/// Values and indices of the best, of which there may be fewer numbers than wanted.
fn write(x: &[f32], keys: &[u64], values: &mut [f32], ids: &mut [i32]) {
    for ((value, id), &key) in values.iter_mut().zip(&mut *ids).zip(keys) {
        let index = key as u32;
        (*value, *id) = (x[index as usize], index as i32);
    }
    if keys.len() == values.len() {
        return;
    }
    let all = || x.iter().copied().zip(0..);
    let lowest = all().filter(|(v, _)| *v == f32::NEG_INFINITY);
    let rest = lowest.chain(all().filter(|(v, _)| v.is_nan()));
    let places = values.iter_mut().zip(ids).skip(keys.len());
    for ((value, id), (v, index)) in places.zip(rest) {
        (*value, *id) = (v, index);
    }
}

/// The best of a row so far, as keys: the smaller one is of the larger number, or of the smaller index
/// among equals.
struct Ranking {
    count: usize,
    /// Only what is above it counts.
    floor: f32,
    len: usize,
    /// Twice as many as are kept: each cut then drops as many, so that cuts cost a constant per entry.
    keys: [u64; 2 * MOST],
}

impl Ranking {
    fn new() -> Self {
        Self { count: 0, floor: 0.0, len: 0, keys: [0; 2 * MOST] }
    }

    /// Finds the best `k` of `x`, in order: all that are above `-inf`. What is looked at soon is asked for.
    #[inline(always)]
    fn rank(&mut self, x: &[f32], panels: Option<&[f32]>, k: usize, ask: impl Fn(&[f32])) {
        self.begin(k, f32::NEG_INFINITY);
        let Some(panels) = panels.filter(|panels| panels.len() > k) else {
            self.offer(x, 0);
            return self.finish();
        };
        // Whatever is in another panel comes after the largest of each of the best `k`.
        self.offer(panels, 0);
        self.finish();
        let mut best = [0u32; MOST];
        let best = &mut best[..self.len];
        for (panel, &key) in best.iter_mut().zip(self.keys()) {
            *panel = key as u32;
        }
        // Indices ascend.
        best.sort_unstable();
        let lowest = self.keys().last().filter(|_| self.len == k);
        let floor = lowest.map_or(f32::NEG_INFINITY, |&key| value(key).next_down());
        self.begin(k, floor);
        let columns = |panel: u32| {
            let start = panel as usize * WIDTH;
            start..x.len().min(start + WIDTH)
        };
        best.iter().for_each(|&panel| ask(&x[columns(panel)]));
        for &panel in &*best {
            self.offer(&x[columns(panel)], panel * WIDTH as u32);
        }
        self.finish();
    }

    fn begin(&mut self, count: usize, floor: f32) {
        (self.count, self.floor, self.len) = (count, floor, 0);
    }

    /// Takes values whose indices begin at `first` and are above those that were taken before.
    #[inline(always)]
    fn offer(&mut self, values: &[f32], first: u32) {
        for (block, first) in values.chunks(WIDTH).zip((first..).step_by(WIDTH)) {
            // Nearly none after a while. Without branches, so that it becomes vector code.
            if !block.iter().fold(false, |any, &v| any | (v > self.floor)) {
                continue;
            }
            for (&v, id) in block.iter().zip(first..) {
                if v > self.floor {
                    self.keys[self.len] = key(v, id);
                    self.len += 1;
                    if self.len == 2 * self.count {
                        self.cut();
                    }
                }
            }
        }
    }

    /// Drops all but the best. An equal value that comes later ranks after those that are kept.
    #[inline(never)]
    fn cut(&mut self) {
        let keys = &mut self.keys[..self.len];
        if keys.len() > self.count {
            let (_, &mut last, _) = keys.select_nth_unstable(self.count - 1);
            (self.len, self.floor) = (self.count, value(last));
        }
    }

    #[inline(never)]
    fn finish(&mut self) {
        self.cut();
        self.keys[..self.len].sort_unstable();
    }

    fn keys(&self) -> &[u64] {
        &self.keys[..self.len]
    }
}

const SIGN: u32 = 1 << 31;

/// The key of a number; zeros are equal.
#[inline(always)]
fn key(x: f32, id: u32) -> u64 {
    let bits = (x + 0.0).to_bits();
    let descending = if bits & SIGN == 0 { !(bits | SIGN) } else { bits };
    u64::from(descending) << 32 | u64::from(id)
}

/// The number of a key.
fn value(key: u64) -> f32 {
    let descending = (key >> 32) as u32;
    f32::from_bits(if descending & SIGN == 0 { !descending & !SIGN } else { descending })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_have_the_opposite_order_of_numbers() {
        let ordered = [f32::NEG_INFINITY, -2.0, -1e-40, 0.0, 1e-40, 1.0, f32::INFINITY];
        assert!(ordered.windows(2).all(|w| key(w[0], 0) > key(w[1], u32::MAX)));
        assert!(ordered.iter().all(|&x| value(key(x, 7)) == x));
        assert_eq!(key(-0.0, 3), key(0.0, 3));
        assert!(key(1.0, 3) < key(1.0, 4));
    }
}
