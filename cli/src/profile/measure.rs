//! Replays of a plan, and what each launch of it took.

use super::{feed::Feed, work::Call};
use artifact::{Chain, Plan};
use codegen_cpu::device::{CpuDevice, CpuGraph, Timeline};
use hal::{Device, DeviceError};
use std::{
    collections::BTreeMap,
    ops::Range,
    time::{Duration, Instant},
};

/// Replays before the first that counts.
const WARM_UP: usize = 2;
/// Unless asked otherwise, replays that are timed take about so long, and are no fewer and no more.
const ABOUT: Duration = Duration::from_millis(1500);
const LEAST: usize = 5;
const MOST: usize = 50;

/// What a launch took, in microseconds: medians over the replays.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Times {
    /// From its beginning to that of the next launch.
    pub(super) wall: f64,
    /// How long a thread did not work, on average, while another still did.
    pub(super) wait: f64,
    /// From the end of the last thread's work to the beginning of the next launch.
    pub(super) gap: f64,
}

/// Replays of a plan.
pub(super) struct Measured {
    /// Median of a replay that is not timed inside, in microseconds.
    pub(super) plain: f64,
    /// The same of the timed ones.
    pub(super) timed: f64,
    /// How many of either.
    pub(super) replays: usize,
    /// Of each launch.
    pub(super) launches: Vec<Times>,
    /// The timed replay that took the median.
    pub(super) typical: Timeline,
}

/// Replays a graph, `replays` times or as often as is useful. `feed` writes its inputs, whose memory
/// a replay uses for other things after it has read them.
pub(super) fn measure(
    device: &mut CpuDevice,
    graph: &CpuGraph,
    feed: impl Fn(&mut CpuDevice),
    replays: Option<usize>,
) -> Result<Measured, DeviceError> {
    let mut once = Duration::ZERO;
    for _ in 0..WARM_UP {
        feed(device);
        let began = Instant::now();
        device.replay(graph)?;
        once = began.elapsed();
    }
    let fit = ABOUT.as_nanos() / once.as_nanos().max(1);
    let replays = replays.unwrap_or((fit as usize).clamp(LEAST, MOST));
    let (mut plain, mut timelines) = (Vec::new(), Vec::new());
    // In turns, so that what the machine does meanwhile hits both.
    for _ in 0..replays {
        feed(device);
        let began = Instant::now();
        device.replay(graph)?;
        plain.push(us(began.elapsed()));
        feed(device);
        timelines.push(device.replay_timed(graph)?);
    }
    timelines.sort_by_key(end);
    let typical = timelines[timelines.len() / 2].clone();
    let launches = (0..graph.len()).map(|l| times(&timelines, l)).collect();
    Ok(Measured { plain: median(plain), timed: us(end(&typical)), replays, launches, typical })
}

/// When the last thread left the last launch.
pub(super) fn end(timeline: &Timeline) -> Duration {
    let last = timeline.launches().checked_sub(1);
    last.and_then(|l| timeline.launch(l).map(|s| s.passed).max()).unwrap_or_default()
}

/// When the first thread begins launch `launch`, or the end after the last one.
fn begin(timeline: &Timeline, launch: usize) -> Duration {
    if launch == timeline.launches() {
        return end(timeline);
    }
    timeline.launch(launch).map(|s| s.began).min().unwrap_or_default()
}

fn times(timelines: &[Timeline], launch: usize) -> Times {
    let middle = |of: &dyn Fn(&Timeline) -> f64| median(timelines.iter().map(of).collect());
    let done = |t: &Timeline| t.launch(launch).map(|s| s.ended).max().unwrap_or_default();
    Times {
        wall: middle(&|t| us(begin(t, launch + 1)) - us(begin(t, launch))),
        wait: middle(&|t| {
            let all = us(done(t)) - us(begin(t, launch));
            let worked: f64 = t.launch(launch).map(|s| us(s.ended) - us(s.began)).sum();
            all - worked / t.threads() as f64
        }),
        gap: middle(&|t| us(begin(t, launch + 1)) - us(done(t))),
    }
}

pub(super) fn us(time: Duration) -> f64 {
    time.as_secs_f64() * 1e6
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(0.0)
}

/// The steps of each launch.
pub(super) fn launches(plan: &Plan) -> Vec<Range<usize>> {
    let mut found = Vec::new();
    let (mut at, mut chains) = (0, plan.chains.iter().peekable());
    while at < plan.steps.len() {
        let steps = chains.next_if(|c| c.first as usize == at).map_or(1, |c| c.steps as usize);
        found.push(at..at + steps.max(1));
        at += steps.max(1);
    }
    found
}

/// How many experts have rows in each product by expert: replays `plan` up to each of them and looks.
pub(super) fn experts_met(
    device: &mut CpuDevice,
    plan: &Plan,
    feed: &Feed,
    manifest: &artifact::Manifest,
) -> Result<BTreeMap<usize, usize>, DeviceError> {
    let mut met = BTreeMap::new();
    feed.write(device, manifest, plan);
    let mut done = 0;
    for (i, step) in plan.steps.iter().enumerate() {
        let call = Call { kernel: &plan.kernels[step.kernel as usize], step };
        let Some((at, experts)) = call.expert_starts() else { continue };
        let graph = hal::capture(device, &part(plan, done..i))?;
        device.replay(&graph)?;
        done = i;
        let mut bytes = vec![0; (experts + 1) * size_of::<i32>()];
        device.read(step.args[at], &mut bytes)?;
        let starts = bytes.as_chunks::<4>().0.iter().map(|b| i32::from_le_bytes(*b));
        let with_rows = starts.clone().zip(starts.skip(1)).filter(|(a, b)| a < b).count();
        met.insert(i, with_rows);
    }
    Ok(met)
}

/// The steps `steps` of a plan; no chain is cut.
fn part(plan: &Plan, steps: Range<usize>) -> Plan {
    let inside = plan.chains.iter().filter(|c| steps.contains(&(c.first as usize)));
    let moved = |c: &Chain| Chain { first: c.first - steps.start as u32, ..c.clone() };
    Plan {
        chains: inside.map(moved).collect(),
        steps: plan.steps[steps.clone()].to_vec(),
        ..plan.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use artifact::{BufferRef, Scalar, Space};
    use codegen_cpu::CpuOptions;
    use hal::{Launch, MemoryRequest};
    use std::{cell::Cell, io::Write, sync::Arc};
    use tensor::MappedFile;

    /// A replay that writes over its input sees the input of every replay all the same.
    #[test]
    fn inputs_are_written_before_each_replay() {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(&[0; 64]).unwrap();
        let weights = Arc::new(MappedFile::open(file.path()).unwrap());
        let options = CpuOptions { threads: Some(1), ..CpuOptions::default() };
        let mut device = CpuDevice::new(options).unwrap();
        let (root, arena_bytes) = (Default::default(), 4096);
        device.load(MemoryRequest { root, weights, arena_bytes, state_bytes: 0 }).unwrap();

        let at = BufferRef { space: Space::Arena, offset: 0, bytes: 64 };
        let sizes = [1, 16, 16, 16, 16].map(Scalar::Int);
        device.begin_capture().unwrap();
        device.launch(&Launch::new("add_f32", &[at, at, at], &sizes)).unwrap();
        let graph = device.end_capture().unwrap();
        let fed = Cell::new(0);
        let feed = |device: &mut CpuDevice| {
            fed.set(fed.get() + 1);
            device.write(at, 1f32.to_le_bytes().repeat(16).as_slice());
        };
        let measured = measure(&mut device, &graph, feed, Some(3)).unwrap();
        assert_eq!((measured.replays, measured.launches.len(), fed.get()), (3, 1, WARM_UP + 6));
        let mut out = [0; 4];
        device.read(at, &mut out).unwrap();
        assert_eq!(f32::from_le_bytes(out), 2.0);
    }
}
