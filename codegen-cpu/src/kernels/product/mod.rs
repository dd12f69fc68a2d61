//! Matrix products with weights that are codes with scales, or one of several weights for each
//! row, or both. Weights are in [`tensor::layout::Panels`] and stay coded in memory.
//!
//! Threads share the panels of all weights that have rows, and a thread reads each of its panels
//! once: with more rows than one tile holds it goes block by block along `K`, decoding a block once
//! for all tiles.

mod codes;
mod company;
mod fold;
mod inner;
mod inputs;
mod method;
mod panel;
mod tile;

pub(crate) use codes::{Fp8, I4, I8, MxFp4};
pub(crate) use method::{Coded, CodedBytes, Exact, Float, Fp8Fp8, Integer};

use super::bind::{Binder, Kernel, Rows, product};
use super::epilogue::{End, PanelSums, Plan, ResultRows, Sizes};
use super::matmul::WIDTH;
use super::simd::Simd;
use super::worker::{Scratch, Worker};
use company::{Company, Gathering, Lists, Meeting, Seen};
use fold::{Fold, InputScales, Scale};
use inner::Inner;
use inputs::{Inputs, Stage, stage_row, start_row};
use method::{Chosen, Method, XScales};
use panel::{EXPANDED_BYTES, Panel, Results, Work};

/// The most rows whose sums wait for the next block; more go through the panel again.
const MOST_ROWS: usize = 512;
/// Up to so many rows each thread prepares the inputs for itself, which saves a barrier.
const ROWS_TO_STAGE_ALONE: usize = 8;

/// `quant_matmul_*`, `static_matmul_*`, `dequant_matmul_*` and `grouped_*`.
pub(crate) struct Product<M: Method> {
    company: Company,
    k: usize,
    /// Panels of a weight, words of a panel and of a group for each output.
    panels: usize,
    words: usize,
    group: usize,
    groups: usize,
    x: Rows<M::X>,
    /// Scales of the inputs, and how many a row has.
    x_scales: Option<(Rows<f32>, usize)>,
    weight: Rows<u32>,
    scales: Option<Rows<u32>>,
    gathering: Gathering,
    end: End,
}

impl<M: Method> Kernel for Product<M> {
    fn bind(b: &mut Binder<'_>) -> Result<Self, String> {
        let (company, own) = Gathering::company(b)?;
        let Company { inputs, outputs, experts } = company;
        let (n, k) = (b.positive("N")?, b.positive("K")?);
        let scaled = <M::Fold as Fold>::Scale::SOME;
        let group = if scaled { b.positive("group")? } else { k }.min(k);
        let each = if M::X_SCALES == XScales::None { 0 } else { b.positive("x groups")? };
        let (x_stride, out_stride) = (b.count("x stride")?, b.count("out stride")?);
        let plan = Plan::bind(b)?;
        let (groups, words) = (k.div_ceil(group), k.div_ceil(M::PER_WORD));
        if groups > 1 && !group.is_multiple_of(M::PER_WORD) {
            return Err(format!("`group` is {group}, expected a multiple of {}", M::PER_WORD));
        }
        if group > M::LONGEST {
            return Err(format!("{group} products do not fit a sum of 32 bits"));
        }
        if each > 1 && (M::X_SCALES == XScales::Last || each != groups) {
            return Err(format!("`x groups` is {each}, expected one for each row or group"));
        }
        let panels = n.div_ceil(WIDTH);
        let len = product(&[experts, panels, words, WIDTH])?;
        // What `scratch` will ask for.
        product(&[inputs.max(outputs), k.next_multiple_of(8) + 2 * WIDTH, 8])?;

        let x = b.input("x", inputs, k, x_stride)?;
        let x_scales = match M::X_SCALES {
            XScales::None => None,
            _ => Some((b.input("x scale", inputs, each, each)?, each)),
        };
        let gathering = Gathering::bind(b, company, own)?;
        let weight = b.input("weight", 1, len, len)?;
        let scales = if scaled {
            let words = <M::Fold as Fold>::Scale::words(groups);
            let len = product(&[experts, panels, words, WIDTH])?;
            Some(b.input("weight scale", 1, len, len)?)
        } else {
            None
        };
        let integers = M::INTEGERS;
        let end = plan.end(b, &Sizes { rows: outputs, n, experts, out_stride, integers })?;
        let group = if groups == 1 { words } else { group / M::PER_WORD };
        Ok(Self {
            company,
            k,
            panels,
            words,
            group,
            groups,
            x,
            x_scales,
            weight,
            scales,
            gathering,
            end,
        })
    }

    fn scratch<S: Simd>(&self) -> Scratch {
        let staged = self.company.inputs * self.staged_bytes();
        let alone = if self.stages_alone() { staged } else { 0 };
        Scratch { private: self.private_bytes() + alone, shared: staged - alone }
    }

    #[inline(always)]
    unsafe fn run<S: Simd>(&self, worker: &Worker<'_>) {
        struct Run<'a, M: Method>(&'a Product<M>, &'a Worker<'a>);
        impl<M: Method> Chosen<M::X> for Run<'_, M> {
            #[inline(always)]
            unsafe fn go<S: Simd, P: Inner>(self)
            where
                M::X: Stage<P::X>,
            {
                // SAFETY: as the caller's.
                unsafe {
                    let inputs = self.0.stage::<P>(self.1);
                    self.0.meet::<S, P>(self.1, &inputs);
                    self.0.end.finish::<S>(self.1);
                }
            }
        }
        // SAFETY: as the caller's.
        unsafe { M::choose::<S>(Run(self, worker)) }
    }
}

impl<M: Method> Product<M> {
    fn stages_alone(&self) -> bool {
        self.company.inputs <= ROWS_TO_STAGE_ALONE
    }

    /// Elements between staged rows: no multiple of a page, so that rows do not share cache sets.
    #[inline(always)]
    fn staged_stride(&self) -> usize {
        self.k.next_multiple_of(WIDTH) + WIDTH
    }

    /// Bytes of a staged row of the longest elements, and of where its sums begin.
    #[inline(always)]
    fn staged_bytes(&self) -> usize {
        self.staged_stride() * size_of::<f32>() + self.groups * size_of::<i32>()
    }

    /// Rows whose sums are made together.
    #[inline(always)]
    fn most_rows(&self) -> usize {
        self.company.outputs.min(MOST_ROWS)
    }

    /// Bytes of a panel's sums.
    #[inline(always)]
    fn sums_bytes(&self) -> usize {
        self.most_rows() * WIDTH * size_of::<f32>()
    }

    /// An expanded block, sums of panels and of groups, lists of rows.
    #[inline(always)]
    fn private_bytes(&self) -> usize {
        let lists = 2 * self.company.outputs * size_of::<u32>();
        EXPANDED_BYTES + 2 * self.sums_bytes() + lists.next_multiple_of(WIDTH)
    }

    /// Inputs as `P` wants them: where they are, or copied.
    ///
    /// # Safety
    /// As [`Kernel::run`].
    #[inline(always)]
    unsafe fn stage<P: Inner>(&self, worker: &Worker<'_>) -> Inputs<P::X>
    where
        M::X: Stage<P::X>,
    {
        let (rows, alone) = (self.company.inputs, self.stages_alone());
        let as_they_are =
            <M::X as Stage<P::X>>::SAME && !P::CROSSED && self.k.is_multiple_of(P::GROUP);
        let group = self.group * P::GROUP;
        // SAFETY: scratch memory is as large as `scratch` says.
        unsafe {
            let base = if alone { worker.private.add(self.private_bytes()) } else { worker.shared };
            let starts: *mut i32 = base.cast();
            let to: *mut P::X = base.add(rows * self.groups * size_of::<i32>()).cast();
            let (first, stride) = if as_they_are {
                (self.x.row(0).cast::<P::X>(), self.x.stride())
            } else {
                (to, self.staged_stride())
            };
            if as_they_are && P::OFFSET == 0 {
                return Inputs { x: first, stride, starts, groups: self.groups };
            }
            for row in if alone { 0..rows } else { worker.share(rows) } {
                let x = first.add(row * stride);
                if !as_they_are {
                    stage_row::<P, M::X>(self.x.row(row), self.k, x);
                }
                if P::OFFSET != 0 {
                    start_row::<P>(x, self.k, group, starts.add(row * self.groups));
                }
            }
            if !alone {
                worker.barrier.wait();
            }
            Inputs { x: first, stride, starts, groups: self.groups }
        }
    }

    /// Multiplies and stores this thread's panels.
    ///
    /// # Safety
    /// As [`Kernel::run`].
    #[inline(always)]
    unsafe fn meet<S: Simd, P: Inner>(&self, worker: &Worker<'_>, inputs: &Inputs<P::X>) {
        // SAFETY: experts, panels and rows are among those bound; scratch is large enough.
        unsafe {
            let sums = worker.private.add(EXPANDED_BYTES);
            let lists: *mut u32 = sums.add(2 * self.sums_bytes()).cast();
            let lists = Lists { sources: lists, results: lists.add(self.company.outputs) };
            let work = Work {
                inputs,
                words: self.words,
                group: self.group,
                expanded: worker.private.cast(),
                sums: sums.cast(),
                partial: sums.add(self.sums_bytes()).cast(),
            };
            let mut seen = Seen::default();
            while let Some(meeting) = self.gathering.next(worker, self.panels, &mut seen, lists) {
                let Meeting { expert, panels, rows } = meeting;
                let sources = std::slice::from_raw_parts(lists.sources, rows);
                let results = std::slice::from_raw_parts(lists.results, rows);
                for panel in panels {
                    let (weights, fold) = self.weights(expert * self.panels + panel);
                    for first in (0..rows).step_by(MOST_ROWS) {
                        let part = first..rows.min(first + MOST_ROWS);
                        let factors = match (M::X_SCALES, &self.x_scales) {
                            (XScales::Last, Some((scales, _))) => Some(scales.row(0).cast_const()),
                            _ => None,
                        };
                        S::enter(Panel::<P, M::Fold> {
                            work: &work,
                            weights,
                            fold,
                            rows: &sources[part.clone()],
                            results: Results {
                                end: &self.end,
                                panel,
                                rows: &results[part],
                                factors,
                            },
                        });
                    }
                }
            }
            self.clear_alone::<S>(worker);
        }
    }

    /// The weights of a panel, counted through all experts, and what to do with its groups.
    ///
    /// # Safety
    /// The panel exists.
    #[inline(always)]
    unsafe fn weights(&self, panel: usize) -> (*const u32, M::Fold) {
        // SAFETY: inside what was bound.
        unsafe {
            let scales = self.scales.map_or(std::ptr::null(), |scales| {
                let words = <M::Fold as Fold>::Scale::words(self.groups);
                scales.row(0).add(panel * words * WIDTH).cast_const()
            });
            let input_scales = match self.x_scales {
                Some((scales, each)) => InputScales { first: scales.row(0), each },
                None => InputScales { first: std::ptr::null(), each: 0 },
            };
            let weights = self.weight.row(0).add(panel * self.words * WIDTH);
            (weights, M::Fold::new(scales, input_scales))
        }
    }

    /// Zeros in the rows that meet no weight.
    ///
    /// # Safety
    /// As [`Kernel::run`].
    #[inline(always)]
    unsafe fn clear_alone<S: Simd>(&self, worker: &Worker<'_>) {
        // SAFETY: the rows and panels exist.
        unsafe {
            for place in self.gathering.alone().into_iter().flatten() {
                if let Some(row) = self.gathering.at(place) {
                    for panel in worker.share(self.panels) {
                        let mut zeros = [0.0; WIDTH];
                        let (sums, rows) = (zeros.as_mut_ptr(), ResultRows::From(row, 1));
                        self.end.store::<S>(PanelSums { panel, sums, rows, factors: None });
                    }
                }
            }
        }
    }
}
