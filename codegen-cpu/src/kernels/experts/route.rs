//! Which experts a token goes to.

use crate::kernels::bind::{Binder, Kernel, Rows};
use crate::kernels::exp::{exp, sigmoid};
use crate::kernels::simd::{LANES, Simd};
use crate::kernels::worker::{Scratch, Worker};
use std::marker::PhantomData;

/// What keeps a sum of sigmoids from being zero.
const SMALL: f32 = 1e-20;

/// Whether a bias takes part in the choice.
pub(crate) trait Bias: Send + Sync + 'static {
    /// Whether it does.
    const GIVEN: bool;
}

/// Experts are chosen by their scores.
pub(crate) struct Unbiased;
/// Experts are chosen by their scores plus a bias.
pub(crate) struct Biased;

impl Bias for Unbiased {
    const GIVEN: bool = false;
}
impl Bias for Biased {
    const GIVEN: bool = true;
}

/// `route`, `route_bias`: the `k` best experts of each row, in ascending order, and their weights.
///
/// Without a bias the choice is by the logits, whose order is that of the exact scores; scores
/// rounded to `f32` may be equal where logits differ.
pub(crate) struct Route<B> {
    rows: usize,
    experts: usize,
    k: usize,
    sigmoid: bool,
    renormalize: bool,
    groups: usize,
    top_groups: usize,
    scale: f32,
    logits: Rows<f32>,
    bias: Option<Rows<f32>>,
    ids: Rows<i32>,
    weights: Rows<f32>,
    biased: PhantomData<B>,
}

/// The largest keys so far, largest first, the smaller index among equals.
struct Best<'a> {
    keys: &'a mut [f32],
    ids: &'a mut [u32],
    len: usize,
}

impl Best<'_> {
    /// Indices come in ascending order.
    #[inline(always)]
    fn offer(&mut self, key: f32, id: usize) {
        let mut place = self.len;
        if place == self.keys.len() {
            if key <= self.keys[place - 1] {
                return;
            }
            place -= 1;
        } else {
            self.len += 1;
        }
        while place > 0 && key > self.keys[place - 1] {
            self.keys[place] = self.keys[place - 1];
            self.ids[place] = self.ids[place - 1];
            place -= 1;
        }
        self.keys[place] = key;
        self.ids[place] = id as u32;
    }
}

/// Working memory of a row.
struct Row<'a> {
    /// Logits, without NaN, or scores plus bias: what ranks the experts. Whole vectors.
    keys: &'a mut [f32],
    scores: &'a mut [f32],
    best: Best<'a>,
    /// Eligible groups.
    groups: Best<'a>,
}

impl<B: Bias> Route<B> {
    /// Experts, in whole vectors.
    #[inline(always)]
    fn padded(&self) -> usize {
        self.experts.next_multiple_of(LANES)
    }

    /// # Safety
    /// The working memory is as large as [`Kernel::scratch`] says and nothing else uses it.
    #[inline(always)]
    unsafe fn working<'a>(&self, scratch: *mut u8) -> Row<'a> {
        let (padded, lists) = (self.padded(), [self.k, self.top_groups]);
        // SAFETY: the parts follow one another and are as long together as the working memory;
        // every bit pattern is a number of either type.
        unsafe {
            let mut at = scratch.cast::<f32>();
            let mut next = |len: usize| {
                let part = std::slice::from_raw_parts_mut(at, len);
                at = at.add(len);
                part
            };
            let (keys, scores) = (next(padded), next(padded));
            let [best, groups] = lists.map(|len| {
                let (keys, ids) = (next(len), next(len).as_mut_ptr().cast::<u32>());
                Best { keys, ids: std::slice::from_raw_parts_mut(ids, len), len: 0 }
            });
            Row { keys, scores, best, groups }
        }
    }

    /// Logits into `keys`, scores into `scores`.
    ///
    /// # Safety
    /// As [`Simd`]; `logits` is valid for one row.
    #[inline(always)]
    unsafe fn score<S: Simd>(&self, logits: *const f32, keys: &mut [f32], scores: &mut [f32]) {
        // SAFETY: `keys` and `scores` are whole vectors, `logits` is read inside the row.
        unsafe {
            let lowest = S::splat(f32::NEG_INFINITY);
            let mut most = lowest;
            keys[self.experts..].fill(f32::NEG_INFINITY);
            logits.copy_to_nonoverlapping(keys.as_mut_ptr(), self.experts);
            for i in (0..keys.len()).step_by(LANES) {
                // The second operand where the first is NaN.
                let x = S::max(S::load(keys.as_ptr().add(i)), lowest);
                S::store(keys.as_mut_ptr().add(i), x);
                most = S::max(x, most);
            }
            let most = S::splat(S::largest(most));
            let mut total = S::splat(0.0);
            for i in (0..keys.len()).step_by(LANES) {
                let x = S::load(keys.as_ptr().add(i));
                let score = match self.sigmoid {
                    true => sigmoid::<S>(x),
                    false => exp::<S>(S::sub(x, most)),
                };
                total = S::add(total, score);
                S::store(scores.as_mut_ptr().add(i), score);
            }
            if !self.sigmoid {
                let total = S::splat(S::sum(total));
                for i in (0..scores.len()).step_by(LANES) {
                    let at = scores.as_mut_ptr().add(i);
                    S::store(at, S::div(S::load(at), total));
                }
            }
        }
    }

    /// Fills `row.best`.
    #[inline(always)]
    fn choose(&self, row: &mut Row<'_>) {
        let Row { keys, scores, best, groups } = row;
        (best.len, groups.len) = (0, 0);
        let per_group = self.experts / self.groups;
        let of_groups = if B::GIVEN { &**keys } else { &**scores };
        if self.groups == self.top_groups {
            for (e, &key) in keys[..self.experts].iter().enumerate() {
                best.offer(key, e);
            }
            return;
        }
        for (g, entries) in of_groups[..self.experts].chunks_exact(per_group).enumerate() {
            let (mut first, mut second) = (f32::NEG_INFINITY, f32::NEG_INFINITY);
            for &entry in entries {
                if entry > first {
                    (first, second) = (entry, first);
                } else if entry > second {
                    second = entry;
                }
            }
            groups.offer(first + second, g);
        }
        groups.ids.sort_unstable();
        for &g in groups.ids.iter() {
            let start = g as usize * per_group;
            for (i, &key) in keys[start..start + per_group].iter().enumerate() {
                best.offer(key, start + i);
            }
        }
    }
}

impl<B: Bias> Kernel for Route<B> {
    const ROW_WISE: bool = true;

    fn bind(b: &mut Binder<'_>) -> Result<Self, String> {
        let (rows, experts, k) = (b.count("T")?, b.positive("E")?, b.positive("k")?);
        let (sigmoid, renormalize) = (b.count("score")?, b.count("renormalize")?);
        let (groups, top_groups) = (b.positive("groups")?, b.positive("top groups")?);
        let stride = b.count("logits stride")?;
        let scale = b.factor("scale")?;
        if i32::try_from(experts).is_err() {
            return Err(format!("`E` is {experts}, too large for an index"));
        }
        if sigmoid > 1 || renormalize > 1 {
            return Err(format!("score {sigmoid}, renormalize {renormalize}: expected 0 or 1"));
        }
        let divided = experts.is_multiple_of(groups) && top_groups <= groups;
        if !divided || k > experts / groups * top_groups {
            return Err(format!(
                "{k} of {experts} experts cannot come from {top_groups} of {groups} groups"
            ));
        }
        Ok(Self {
            rows,
            experts,
            k,
            sigmoid: sigmoid == 1,
            renormalize: renormalize == 1,
            groups,
            top_groups,
            scale,
            logits: b.input("logits", rows, experts, stride)?,
            bias: if B::GIVEN { Some(b.table("bias", 1, experts, experts)?) } else { None },
            ids: b.output("ids", rows, k, k)?,
            weights: b.output("weights", rows, k, k)?,
            biased: PhantomData,
        })
    }

    fn scratch<S: Simd>(&self) -> Scratch {
        let elements = 2 * (self.padded() + self.k + self.top_groups);
        Scratch { private: elements * size_of::<f32>(), shared: 0 }
    }

    #[inline(always)]
    unsafe fn run<S: Simd>(&self, worker: &Worker<'_>) {
        // SAFETY: rows are inside what was bound, experts are indices into slices, and the
        // working memory is as large as this kernel asked for.
        unsafe {
            let mut row = self.working(worker.private);
            for r in worker.share(self.rows) {
                self.score::<S>(self.logits.row(r), row.keys, row.scores);
                if let Some(bias) = &self.bias {
                    for (e, (key, score)) in
                        row.keys.iter_mut().zip(&*row.scores).enumerate().take(self.experts)
                    {
                        let biased = score + *bias.row(0).add(e);
                        *key = if biased.is_nan() { f32::NEG_INFINITY } else { biased };
                    }
                }
                self.choose(&mut row);
                row.best.ids.sort_unstable();
                let sum = row.best.ids.iter().fold(0.0, |sum, &e| sum + row.scores[e as usize]);
                let sum = if self.sigmoid { sum + SMALL } else { sum };
                let divisor = if self.renormalize { sum } else { 1.0 };
                for (j, &e) in row.best.ids.iter().enumerate() {
                    *self.ids.row(r).add(j) = e as i32;
                    *self.weights.row(r).add(j) = row.scores[e as usize] / divisor * self.scale;
                }
            }
        }
    }
}
