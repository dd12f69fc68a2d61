//! Plans to captured graphs: what the engine relies on is checked here, once.

use crate::{EngineError, stats::BucketCounters};
use artifact::{BufferRef, Manifest, Phase, Plan, Port, Space};
use hal::{Device, GraphSet, capture};
use std::time::Instant;
use tensor::DType;

/// A captured plan and where its inputs and outputs lie.
pub(crate) struct Bound<G> {
    pub(crate) graph: G,
    pub(crate) ports: Ports,
    /// Index among all plans, which is that of its counters.
    pub(crate) index: usize,
}

/// The ports of a plan. Those that its phase does not have are empty.
#[derive(Clone, Copy)]
pub(crate) struct Ports {
    pub(crate) token_ids: BufferRef,
    pub(crate) positions: BufferRef,
    pub(crate) slots: BufferRef,
    pub(crate) block_table: BufferRef,
    /// `window_slots` and `window_table`, where the model has layers with a window.
    pub(crate) window: Option<(BufferRef, BufferRef)>,
    /// Where the model has recurrent memory.
    pub(crate) sequences: Option<BufferRef>,
    pub(crate) rows: BufferRef,
    pub(crate) logits: BufferRef,
    pub(crate) argmax: BufferRef,
    /// Where the plan finds the most likely tokens.
    pub(crate) top: Option<TopPorts>,
}

/// `top_logits` and `top_ids`.
#[derive(Clone, Copy)]
pub(crate) struct TopPorts {
    pub(crate) logits: BufferRef,
    pub(crate) ids: BufferRef,
    /// Of each row.
    pub(crate) count: u32,
}

/// Every captured plan.
pub(crate) struct Graphs<G> {
    pub(crate) decode: Sized<G>,
    pub(crate) prefill: Sized<G>,
    pub(crate) head: Sized<G>,
}

/// The captured plans of one phase, with their sizes in ascending order.
pub(crate) struct Sized<G> {
    set: GraphSet<Bound<G>>,
    /// Context tier, then rows.
    sizes: Vec<(u32, u32)>,
}

impl<G> Sized<G> {
    fn new(phase: Phase, graphs: Vec<((u32, u32), Bound<G>)>) -> Result<Self, EngineError> {
        if graphs.is_empty() {
            return Err(EngineError::NoPlan(phase));
        }
        let mut sizes: Vec<(u32, u32)> = graphs.iter().map(|(size, _)| *size).collect();
        sizes.sort_unstable();
        Ok(Self { set: GraphSet::new(graphs), sizes })
    }

    /// The smallest size that holds `rows` rows in a context of `context` tokens; a smaller tier
    /// goes before fewer rows.
    pub(crate) fn fit(&self, context: u32, rows: u32) -> Option<(u32, u32)> {
        self.sizes.iter().copied().find(|&(tier, r)| tier >= context && r >= rows)
    }

    /// The graph of exactly this size.
    pub(crate) fn get(&self, (tier, rows): (u32, u32)) -> &Bound<G> {
        self.set.pick(tier, rows).expect("sizes come from `fit`").1
    }

    /// The longest context, in tokens.
    pub(crate) fn context_tokens(&self) -> u32 {
        self.sizes.last().map_or(0, |&(tier, _)| tier)
    }

    pub(crate) fn max_rows(&self) -> u32 {
        self.set.max_rows()
    }

    /// The most tokens of a row that a plan finds.
    pub(crate) fn most_found(&self) -> u32 {
        let found = self.sizes.iter().filter_map(|&size| self.get(size).ports.top);
        found.map(|top| top.count).max().unwrap_or(0)
    }
}

/// Every plan captured, its counters, and how long each took in milliseconds.
pub(crate) type BoundPlans<G> = (Graphs<G>, Vec<BucketCounters>, Vec<(String, f64)>);

/// Captures every plan on `device`, whose memory is loaded.
pub(crate) fn bind<D: Device>(
    device: &mut D,
    manifest: &Manifest,
    plans: &[Plan],
) -> Result<BoundPlans<D::Graph>, EngineError> {
    let (mut decode, mut prefill, mut head) = (Vec::new(), Vec::new(), Vec::new());
    let (mut counters, mut times) = (Vec::new(), Vec::new());
    for (index, plan) in plans.iter().enumerate() {
        let start = Instant::now();
        let ports = check_driven(manifest, plan)?;
        let of_phase = match plan.phase {
            Phase::Decode => &mut decode,
            Phase::Prefill => &mut prefill,
            Phase::Head => &mut head,
        };
        let size = (plan.context_tokens, plan.rows);
        if of_phase.iter().any(|(other, _)| *other == size) {
            return Err(damaged(plan, "another plan has the same phase, rows and context"));
        }
        let graph = capture(device, plan).map_err(|source| EngineError::Device {
            doing: format!("binding plan `{}`", plan.name),
            source,
        })?;
        of_phase.push((size, Bound { graph, ports, index }));
        counters.push(BucketCounters::new(plan.phase, plan.rows, plan.context_tokens));
        times.push((plan.name.clone(), start.elapsed().as_secs_f64() * 1e3));
    }
    let graphs = Graphs {
        decode: Sized::new(Phase::Decode, decode)?,
        prefill: Sized::new(Phase::Prefill, prefill)?,
        head: Sized::new(Phase::Head, head)?,
    };
    // Heads that look back take any prompt.
    let longest = graphs.prefill.context_tokens();
    let is_short = |&&(context, _): &&(u32, u32)| context > 0 && context < longest;
    if let Some(&size) = graphs.head.sizes.iter().find(is_short) {
        let plan = &plans[graphs.head.get(size).index];
        return Err(damaged(plan, format!("its context is shorter than the {longest} of prefill")));
    }
    Ok((graphs, counters, times))
}

fn damaged(plan: &Plan, why: impl Into<String>) -> EngineError {
    EngineError::Plan { plan: plan.name.clone(), why: why.into() }
}

/// Checks what the engine relies on: sizes, ports, and that no buffer leaves its space.
fn check_driven(manifest: &Manifest, plan: &Plan) -> Result<Ports, EngineError> {
    if plan.rows == 0 {
        return Err(damaged(plan, "it has no rows"));
    }
    if plan.arena_bytes > manifest.memory.arena_bytes {
        return Err(damaged(plan, "it needs a larger arena than the manifest says"));
    }
    let block_tokens = manifest.kv.block_tokens;
    let feeds = plan.phase != Phase::Head;
    let has_context = plan.context_tokens > 0;
    if feeds && !has_context || !plan.context_tokens.is_multiple_of(block_tokens) {
        let context = plan.context_tokens;
        return Err(damaged(
            plan,
            format!("a context of {context} tokens in blocks of {block_tokens}"),
        ));
    }
    let private_bytes = plan.chains.iter().map(|c| c.private_bytes).max().unwrap_or(0);
    for buffer in plan.steps.iter().flat_map(|s| &s.args) {
        let memory = &manifest.memory;
        let bytes = match buffer.space {
            Space::Arena => memory.arena_bytes,
            Space::Weights => manifest.weights_file.bytes,
            Space::State => memory.state_bytes,
            Space::Private => private_bytes,
        };
        if buffer.offset.checked_add(buffer.bytes).is_none_or(|end| end > bytes) {
            return Err(damaged(
                plan,
                format!("a call reads or writes outside {:?}", buffer.space),
            ));
        }
    }
    let rows = u64::from(plan.rows);
    let table_width = u64::from(plan.context_tokens / block_tokens);
    let input = |name, dims: &[u64]| port(manifest, plan, plan.input(name), name, DType::I32, dims);
    let output =
        |name, dtype, dims: &[u64]| port(manifest, plan, plan.output(name), name, dtype, dims);
    let none = BufferRef { space: Space::Arena, offset: 0, bytes: 0 };
    let mut ports = Ports {
        token_ids: none,
        positions: none,
        slots: none,
        block_table: none,
        window: None,
        sequences: None,
        rows: none,
        logits: none,
        argmax: none,
        top: None,
    };
    let tables = if plan.phase == Phase::Decode { rows } else { 1 };
    if has_context {
        ports.positions = input("positions", &[rows])?;
        ports.block_table = input("block_table", &[tables, table_width])?;
    }
    if feeds {
        ports.token_ids = input("token_ids", &[rows])?;
        ports.slots = input("slots", &[rows])?;
        if manifest.window.is_some() {
            let slots = input("window_slots", &[rows])?;
            ports.window = Some((slots, input("window_table", &[tables, table_width])?));
        }
        if manifest.sequences.is_some() {
            ports.sequences = Some(input("sequences", &[rows])?);
        }
    } else {
        ports.rows = input("rows", &[rows])?;
    }
    check_known(manifest, plan)?;
    if plan.phase != Phase::Prefill {
        let vocab = u64::from(manifest.model.vocab_size);
        ports.logits = output("logits", DType::F32, &[rows, vocab])?;
        ports.argmax = output("argmax", DType::I32, &[rows])?;
        let found = [plan.output("top_logits"), plan.output("top_ids")];
        if let Some(port) = found.into_iter().flatten().next() {
            let count = port.dims.get(1).copied().filter(|count| (1..=vocab).contains(count));
            let count = count.ok_or_else(|| {
                let (name, dims) = (&port.name, &port.dims);
                damaged(plan, format!("port `{name}` has {dims:?}, not 1 to {vocab} of each row"))
            })?;
            ports.top = Some(TopPorts {
                logits: output("top_logits", DType::F32, &[rows, count])?,
                ids: output("top_ids", DType::I32, &[rows, count])?,
                // No more than the vocabulary, which is 32 bits wide.
                count: count as u32,
            });
        }
    }
    Ok(ports)
}

/// Checks that there is no input that the engine would leave unwritten.
fn check_known(manifest: &Manifest, plan: &Plan) -> Result<(), EngineError> {
    for name in plan.inputs.iter().map(|port| port.name.as_str()) {
        let missing = match (plan.phase, name) {
            (Phase::Head, "rows") => continue,
            (Phase::Head, "positions" | "block_table") if plan.context_tokens > 0 => continue,
            (Phase::Head, _) => None,
            (_, "token_ids" | "positions" | "slots" | "block_table") => continue,
            (_, "window_slots" | "window_table") => Some(("window", manifest.window.is_none())),
            (_, "sequences") => Some(("sequences", manifest.sequences.is_none())),
            _ => None,
        };
        let why = match missing {
            Some((_, false)) => continue,
            Some((field, true)) => format!("port `{name}` needs a `{field}` in the manifest"),
            None => format!("its port `{name}` is not one that this version writes"),
        };
        return Err(damaged(plan, why));
    }
    Ok(())
}

fn port(
    manifest: &Manifest,
    plan: &Plan,
    found: Option<&Port>,
    name: &str,
    dtype: DType,
    dims: &[u64],
) -> Result<BufferRef, EngineError> {
    let port = found.ok_or_else(|| damaged(plan, format!("it has no port `{name}`")))?;
    if port.dtype != dtype || port.dims != dims {
        let (found_dtype, found_dims) = (port.dtype, &port.dims);
        return Err(damaged(
            plan,
            format!("port `{name}` is {found_dtype}{found_dims:?}, expected {dtype}{dims:?}"),
        ));
    }
    let BufferRef { space, offset, bytes } = port.at;
    let end = offset.checked_add(bytes);
    let inside = end.is_some_and(|end| end <= manifest.memory.arena_bytes);
    let long_enough = bytes >= dtype.bytes_for(dims.iter().product());
    if space != Space::Arena || !inside || !long_enough {
        return Err(damaged(plan, format!("port `{name}` does not lie in the arena")));
    }
    Ok(port.at)
}
