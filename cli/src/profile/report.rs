//! What a profile says, also as JSON. Times are microseconds, `gbs` is 10^9 bytes per second, `gops`
//! is 10^9 operations per second; a multiplication and an addition are two operations.

use super::{
    feed::Feed,
    measure::{Measured, Times},
    work::{Call, Operands, Work},
};
use artifact::{Manifest, Plan};
use codegen_cpu::{CpuDevice, device::Timeline};
use hal::Device;
use serde::Serialize;

/// The whole report.
#[derive(Serialize)]
pub(super) struct Report {
    pub(super) model: String,
    pub(super) device: String,
    /// How fast the machine multiplies, where it is known.
    pub(super) peaks: Vec<Rate>,
    pub(super) buckets: Vec<Bucket>,
}

impl Report {
    pub(super) fn new(
        manifest: &Manifest,
        device: &CpuDevice,
        peaks: [Option<Rate>; Operands::ALL.len()],
    ) -> Self {
        Self {
            model: manifest.model.name.clone(),
            device: device.name(),
            peaks: peaks.into_iter().flatten().collect(),
            buckets: Vec::new(),
        }
    }
}

/// How fast operands of a type can be multiplied, and by which instruction.
#[derive(Clone, Copy, Serialize)]
pub(super) struct Rate {
    pub(super) operands: &'static str,
    pub(super) gops: f64,
    pub(super) instruction: &'static str,
}

/// What the machine allows.
#[derive(Clone, Copy)]
pub(super) struct Limits {
    /// Bytes read from memory.
    pub(super) gbs: f64,
    /// Arithmetic, by operands.
    pub(super) rates: [Option<Rate>; Operands::ALL.len()],
}

impl Limits {
    /// Microseconds that memory needs for `work`, and those that arithmetic needs.
    fn us(&self, work: &Work) -> (f64, f64) {
        let per_us = |gs: f64| gs * 1e3;
        let arithmetic = work.ops.iter().zip(self.rates);
        let arithmetic = arithmetic.filter_map(|(ops, rate)| Some(ops / per_us(rate?.gops)));
        (work.bytes() / per_us(self.gbs), arithmetic.sum())
    }
}

/// A launch, or several.
#[derive(Clone, Debug, Default, Serialize)]
pub(super) struct Part {
    /// Of the replays; see [`Times`].
    pub(super) us: f64,
    pub(super) wait_us: f64,
    pub(super) gap_us: f64,
    pub(super) weight_bytes: f64,
    pub(super) state_bytes: f64,
    pub(super) ops: f64,
    /// What the machine would need for these bytes and operations.
    pub(super) limit_us: f64,
}

impl Part {
    fn new(times: Times, work: &Work, limits: &Limits) -> Self {
        let (memory, arithmetic) = limits.us(work);
        Self {
            us: times.wall,
            wait_us: times.wait,
            gap_us: times.gap,
            weight_bytes: work.weight_bytes,
            state_bytes: work.state_bytes,
            ops: work.all_ops(),
            limit_us: memory.max(arithmetic),
        }
    }

    fn add(&mut self, other: &Part) {
        self.us += other.us;
        self.wait_us += other.wait_us;
        self.gap_us += other.gap_us;
        self.weight_bytes += other.weight_bytes;
        self.state_bytes += other.state_bytes;
        self.ops += other.ops;
        self.limit_us += other.limit_us;
    }

    /// The share of its time that the machine would need; `None` where nothing is known to be needed.
    pub(super) fn of_limit(&self) -> Option<f64> {
        (self.limit_us > 0.0 && self.us > 0.0).then(|| self.limit_us / self.us)
    }
}

/// A launch.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Launch {
    /// The kernel, or those of a chain.
    pub(super) kernel: String,
    pub(super) shape: String,
    #[serde(flatten)]
    pub(super) part: Part,
    #[serde(skip)]
    work: Work,
}

impl Launch {
    /// The launch that makes `calls`.
    pub(super) fn new<'a>(
        calls: impl Iterator<Item = (Call<'a>, Work)>,
        times: Times,
        limits: &Limits,
    ) -> Self {
        let (mut kernels, mut shape, mut work) = (Vec::new(), String::new(), Work::default());
        for (call, of_call) in calls {
            kernels.push(call.kernel);
            work += of_call;
            if shape.is_empty() {
                shape = call.shape();
            }
        }
        let kernel = match kernels.as_slice() {
            [one] => (*one).to_owned(),
            several => format!("chain: {}", several.join(", ")),
        };
        Self { kernel, shape, part: Part::new(times, &work, limits), work }
    }
}

/// Launches of a kernel.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Kind {
    pub(super) kernel: String,
    pub(super) launches: usize,
    #[serde(flatten)]
    pub(super) part: Part,
    /// Those of each shape, the longest first.
    pub(super) shapes: Vec<OfShape>,
}

/// Launches of a kernel with a shape.
#[derive(Clone, Debug, Serialize)]
pub(super) struct OfShape {
    pub(super) shape: String,
    pub(super) launches: usize,
    #[serde(flatten)]
    pub(super) part: Part,
}

/// A plan.
#[derive(Serialize)]
pub(super) struct Bucket {
    pub(super) plan: String,
    pub(super) rows: u32,
    /// Tokens that a row sees.
    pub(super) context: u64,
    pub(super) replays: usize,
    /// A replay, nothing timed inside.
    pub(super) step_us: f64,
    /// A replay with every launch timed.
    pub(super) timed_step_us: f64,
    /// Memory bandwidth just before.
    pub(super) gbs: f64,
    /// What memory needs, and what arithmetic needs.
    pub(super) memory_us: f64,
    pub(super) arithmetic_us: f64,
    /// All launches.
    pub(super) total: Part,
    /// The longest first.
    pub(super) kinds: Vec<Kind>,
    /// In order.
    pub(super) launches: Vec<Launch>,
    /// One of the timed replays.
    #[serde(skip)]
    pub(super) typical: Timeline,
}

impl Bucket {
    pub(super) fn new(
        plan: &Plan,
        feed: &Feed,
        measured: Measured,
        limits: Limits,
        launches: Vec<Launch>,
    ) -> Self {
        let (mut total, mut work) = (Part::default(), Work::default());
        let mut kinds: Vec<Kind> = Vec::new();
        for launch in &launches {
            total.add(&launch.part);
            work += launch.work;
            count(&mut kinds, launch);
        }
        let longest = |a: &Part, b: &Part| b.us.total_cmp(&a.us);
        kinds.sort_by(|a, b| longest(&a.part, &b.part));
        for kind in &mut kinds {
            kind.shapes.sort_by(|a, b| longest(&a.part, &b.part));
        }
        let (memory_us, arithmetic_us) = limits.us(&work);
        Self {
            plan: plan.name.clone(),
            rows: plan.rows,
            context: feed.context(),
            replays: measured.replays,
            step_us: measured.plain,
            timed_step_us: measured.timed,
            gbs: limits.gbs,
            memory_us,
            arithmetic_us,
            total,
            kinds,
            launches,
            typical: measured.typical,
        }
    }

    /// The share of a step that the machine would need, were memory and arithmetic used at the same
    /// time throughout.
    pub(super) fn of_limit(&self) -> f64 {
        self.memory_us.max(self.arithmetic_us) / self.step_us
    }
}

/// Adds a launch to those of its kernel and shape.
fn count(kinds: &mut Vec<Kind>, launch: &Launch) {
    let at = kinds.iter().position(|k| k.kernel == launch.kernel).unwrap_or(kinds.len());
    if at == kinds.len() {
        let (kernel, part) = (launch.kernel.clone(), Part::default());
        kinds.push(Kind { kernel, launches: 0, part, shapes: Vec::new() });
    }
    let kind = &mut kinds[at];
    kind.launches += 1;
    kind.part.add(&launch.part);
    let shapes = &mut kind.shapes;
    let at = shapes.iter().position(|s| s.shape == launch.shape).unwrap_or(shapes.len());
    if at == shapes.len() {
        shapes.push(OfShape { shape: launch.shape.clone(), launches: 0, part: Part::default() });
    }
    shapes[at].launches += 1;
    shapes[at].part.add(&launch.part);
}
