//! Matrix products with weights that are codes with scales, or one of several weights for each
//! row, or both. Weights are in [`tensor::layout::Panels`] and stay coded in memory.
//!
//! Threads share the panels of all weights that have rows, and a thread reads each of its panels
//! once: with more rows than one tile holds it goes block by block along `K`, decoding a block once
//! for all tiles.

mod beside;
#[cfg(target_arch = "x86_64")]
mod code_tiles;
mod codes;
mod company;
mod fold;
mod inner;
mod inputs;
#[cfg(target_arch = "x86_64")]
mod matrix;
mod method;
#[cfg(target_arch = "x86_64")]
mod pairs;
mod panel;
mod quantise;
mod source;
#[cfg(target_arch = "x86_64")]
mod squares;
mod store;
mod tile;

pub(crate) use codes::{Bf16, Fp8, I4, I8, MxFp4};
pub(crate) use inner::{Floats, Inner, Pairs};
pub(crate) use method::{Coded, CodedBytes, Compacted, Exact, Float, Fp8Fp8, Integer, Method};
pub(crate) use quantise::{ByRow, ByScale, InFp8};

use super::bind::{Binder, Kernel, Rows, product};
use super::epilogue::{End, PanelSums, Plan, ResultRows, Sizes};
#[cfg(target_arch = "x86_64")]
use super::matmul::TILE_ROWS;
use super::matmul::WIDTH;
use super::simd::{Dots, Simd};
use super::worker::{Scratch, Worker, share};
use company::{Company, Gathering, Lists, Meeting, Seen};
use fold::{Fold, InputScales, Scale};
use inputs::{Inputs, start_row};
use method::{Chosen, XScales};
use panel::{EXPANDED_BYTES, Panel, Results, Work};
use source::{Feed, Size, Source};
use store::{Store, Stored, Weights};

/// The most rows whose sums wait for the next block; more go through the panel again.
const MOST_ROWS: usize = 512;

/// `quant_matmul_*`, `static_matmul_*`, `dequant_matmul_*` and `grouped_*`.
pub(crate) struct Product<M: Method> {
    company: Company,
    weights: Weights,
    /// Panels of a weight, and words of a group for each output.
    panels: usize,
    group: usize,
    groups: usize,
    source: M::Source,
    /// Scales that a row of inputs has.
    each: usize,
    weight: Rows<u32>,
    scales: Option<Rows<u32>>,
    gathering: Gathering,
    /// Whether rows go through AMX tiles, many of bytes and all of pairs.
    tiles: bool,
    end: End,
}

impl<M: Method> Kernel for Product<M> {
    const DOTS: Dots = M::DOTS;

    fn bind(b: &mut Binder<'_>) -> Result<Self, String> {
        let (company, own) = Gathering::company(b)?;
        let Company { inputs, runs, outputs, experts } = company;
        let (n, k) = (b.positive("N")?, b.positive("K")?);
        let scaled = <M::Fold as Fold>::Scale::SOME;
        let group = if scaled { b.positive("group")? } else { k }.min(k);
        let (made, each) = M::Source::plan(b, k, M::X_SCALES)?;
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
        let mut weights = Weights { experts, n, k, words, stored: 0 };
        let len = M::Store::len(weights)?;
        // What `scratch` will ask for.
        product(&[inputs.max(outputs), k.next_multiple_of(8) + 2 * WIDTH, 8])?;

        let size = Size { rows: inputs, k, runs, stride: x_stride };
        let source = M::Source::bind(b, made, size, each)?;
        let gathering = Gathering::bind(b, company, own)?;
        let weight: Rows<u32> = b.whole("weight", len)?;
        weights.stored = weight.stride();
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
        #[cfg(target_arch = "x86_64")]
        let fits = code_tiles::fits::<M>(group, groups);
        #[cfg(not(target_arch = "x86_64"))]
        let fits = false;
        Ok(Self {
            company,
            weights,
            panels,
            group,
            groups,
            source,
            each,
            weight,
            scales,
            gathering,
            tiles: b.has_tiles() && (M::BYTES || M::PAIRS && fits),
            end,
        })
    }

    fn scratch<S: Simd>(&self) -> Scratch {
        let staged = self.company.inputs * self.staged_bytes();
        let alone = if self.stages_alone() { staged } else { 0 };
        Scratch { private: self.private_bytes() + alone, shared: staged - alone }
    }

    fn first_weights(&self, index: usize, count: usize) -> Option<*const u8> {
        if !matches!(self.gathering, Gathering::All(_)) {
            return None;
        }
        let at = (0, share(self.panels, index, count).start.min(self.panels - 1));
        // SAFETY: the weight was bound, and the panel exists.
        Some(unsafe { M::Store::panel(self.weight.row(0), self.weights, at) }.at(0).cast())
    }

    #[inline(always)]
    unsafe fn run<S: Simd>(&self, worker: &Worker<'_>) {
        struct Run<'a, M: Method>(&'a Product<M>, &'a Worker<'a>);
        impl<M: Method> Chosen<M::Source> for Run<'_, M> {
            #[inline(always)]
            unsafe fn go<S: Simd, P: Inner>(self)
            where
                M::Source: Feed<P::X>,
            {
                // SAFETY: as the caller's.
                unsafe {
                    let inputs = self.0.stage::<S, P>(self.1);
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
        self.company.inputs <= M::Source::ALONE
    }

    /// Elements between staged rows: no multiple of a page, so that rows do not share cache sets.
    #[inline(always)]
    fn staged_stride(&self) -> usize {
        self.weights.k.next_multiple_of(WIDTH) + WIDTH
    }

    /// Bytes of a staged row of the longest elements, of where its sums begin, and of its scales.
    #[inline(always)]
    fn staged_bytes(&self) -> usize {
        (self.staged_stride() + self.each) * size_of::<f32>() + self.groups * size_of::<i32>()
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
    fn blocks_bytes(&self) -> usize {
        let lists = 2 * self.company.outputs * size_of::<u32>();
        EXPANDED_BYTES + 2 * self.sums_bytes() + lists.next_multiple_of(WIDTH)
    }

    /// That, and what [`squares`] or [`pairs`] need.
    #[inline(always)]
    fn private_bytes(&self) -> usize {
        #[cfg(target_arch = "x86_64")]
        if self.tiles && M::PAIRS {
            return self.blocks_bytes()
                + pairs::bytes(self.company.outputs, self.weights.words * M::PER_WORD);
        }
        #[cfg(target_arch = "x86_64")]
        if self.tiles && self.groups == 1 && self.company.outputs > TILE_ROWS {
            let groups = self.weights.words * M::PER_WORD / size_of::<u32>();
            return self.blocks_bytes() + squares::bytes(self.company.outputs, groups);
        }
        self.blocks_bytes()
    }

    /// Inputs as `P` wants them: where they are, or made of what is there.
    ///
    /// # Safety
    /// As [`Kernel::run`].
    #[inline(always)]
    unsafe fn stage<S: Simd, P: Inner>(&self, worker: &Worker<'_>) -> Inputs<P::X>
    where
        M::Source: Feed<P::X>,
    {
        let (rows, alone) = (self.company.inputs, self.stages_alone());
        let fits = !P::CROSSED && self.weights.k.is_multiple_of(P::GROUP);
        let given = self.source.given().filter(|_| fits);
        let group = self.group * P::GROUP;
        // SAFETY: scratch memory is as large as `scratch` says.
        unsafe {
            let base = if alone { worker.private.add(self.private_bytes()) } else { worker.shared };
            let starts: *mut i32 = base.cast();
            let made: *mut f32 = starts.add(rows * self.groups).cast();
            let to: *mut P::X = made.add(rows * self.each).cast();
            let (x, stride) = given.unwrap_or((to, self.staged_stride()));
            let scales = self.source.scales();
            let scales = scales.unwrap_or(InputScales { first: made, each: self.each });
            let inputs = Inputs { x, stride, starts, groups: self.groups, scales };
            if given.is_some() && P::OFFSET == 0 {
                return inputs;
            }
            for row in if alone { 0..rows } else { worker.share(rows) } {
                let x = x.add(row * stride);
                if given.is_none() {
                    self.source.stage::<S, P>(row, self.weights.k, x, made.add(row * self.each));
                }
                if P::OFFSET != 0 {
                    start_row::<P>(x, self.weights.k, group, starts.add(row * self.groups));
                }
            }
            if !alone {
                worker.barrier.wait();
            }
            inputs
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
                words: self.weights.words,
                group: self.group,
                tiles: self.tiles,
                expanded: worker.private.cast(),
                sums: sums.cast(),
                partial: sums.add(self.sums_bytes()).cast(),
            };
            let last = M::X_SCALES == XScales::Last;
            let factors = last.then_some(inputs.scales.first);
            let mut seen = Seen::default();
            let weights = (self.weight.row(0).cast_const(), self.weights);
            let stored = |at| M::Store::panel(weights.0, weights.1, at);
            let ask = |at| M::Store::ask::<S>(weights.0, weights.1, at);
            while let Some(meeting) = self.gathering.next(worker, self.panels, &mut seen, lists) {
                let Meeting { expert, panels, rows, next } = meeting;
                next.map(ask);
                let sources = std::slice::from_raw_parts(lists.sources, rows);
                let results = std::slice::from_raw_parts(lists.results, rows);
                #[cfg(target_arch = "x86_64")]
                if const { M::PAIRS && S::PAIR_DOT } && self.tiles {
                    let after = next.map_or(worker.upcoming, |at| stored(at).at(0).cast());
                    let memory = worker.private.add(self.blocks_bytes());
                    S::enter(pairs::Pairs {
                        product: self,
                        inputs,
                        expert,
                        panels,
                        sources,
                        results,
                        after,
                        memory,
                    });
                    continue;
                }
                #[cfg(target_arch = "x86_64")]
                if const { panel::in_tiles::<S, P>() }
                    && self.tiles
                    && self.groups == 1
                    && rows > TILE_ROWS
                {
                    let after = next.map_or(worker.upcoming.cast(), |at| stored(at).at(0));
                    let memory = worker.private.add(self.blocks_bytes());
                    S::enter(squares::Squares::<M, P> {
                        product: self,
                        inputs,
                        expert,
                        panels,
                        sources,
                        results,
                        factors,
                        after,
                        memory,
                    });
                    continue;
                }
                let mut weight = stored((expert, panels.start));
                for panel in panels.clone() {
                    // What is read of the panels after this one before their words.
                    let next =
                        if panel + 1 < panels.end { Some((expert, panel + 1)) } else { next };
                    let following = next.map(|at| {
                        ask((at.0, at.1 + 1));
                        stored(at)
                    });
                    following.as_ref().inspect(|panel| panel.ask::<S>());
                    let after =
                        following.as_ref().map_or(worker.upcoming.cast(), |panel| panel.at(0));
                    let fold = self.fold(expert * self.panels + panel, inputs.scales);
                    for first in (0..rows).step_by(MOST_ROWS) {
                        let part = first..rows.min(first + MOST_ROWS);
                        S::enter(Panel::<P, M::Fold, _> {
                            work: &work,
                            weight: &weight,
                            after,
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
                    let Some(following) = following else { break };
                    weight = following;
                }
            }
            self.clear_alone::<S>(worker);
        }
    }

    /// Where the scales of a panel, counted through all experts, begin.
    ///
    /// # Safety
    /// The panel exists.
    #[inline(always)]
    unsafe fn scales(&self, panel: usize) -> *const u32 {
        // SAFETY: inside what was bound.
        self.scales.map_or(std::ptr::null(), |scales| unsafe {
            let words = <M::Fold as Fold>::Scale::words(self.groups);
            scales.row(0).add(panel * words * WIDTH).cast_const()
        })
    }

    /// What to do with the groups of a panel, counted through all experts.
    ///
    /// # Safety
    /// The panel exists.
    #[inline(always)]
    unsafe fn fold(&self, panel: usize, inputs: InputScales) -> M::Fold {
        // SAFETY: the caller's promise.
        M::Fold::new(unsafe { self.scales(panel) }, inputs)
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
