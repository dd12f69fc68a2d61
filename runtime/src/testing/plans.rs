//! The manifest and plans of a fake model. All ports lie at the same place in every plan.

use super::{FakeModel, device};
use artifact::{
    BufferRef, BuildTarget, FORMAT_VERSION, FileEntry, Kv, Manifest, Memory, Model, Phase,
    Pipeline, Placement, Plan, PlanEntry, Port, Provenance, Scalar, SequenceMemory, Space, Step,
    checksum,
};
use std::collections::BTreeMap;
use tensor::DType;

const ALIGN: u64 = 64;

/// Where everything lies; buffers have the size that the largest plan needs.
pub(super) struct Places {
    pub(super) arena_bytes: u64,
    pub(super) state_bytes: u64,
    kv: BufferRef,
    window: BufferRef,
    recurrent: BufferRef,
    hidden: BufferRef,
    token_ids: u64,
    positions: u64,
    slots: u64,
    rows: u64,
    block_table: u64,
    window_slots: u64,
    window_table: u64,
    sequences: u64,
    logits: u64,
    argmax: u64,
    top_logits: u64,
    top_ids: u64,
}

impl Places {
    pub(super) fn new(model: &FakeModel) -> Self {
        let largest = |rows: &[u32]| u64::from(rows.iter().copied().max().unwrap_or(0));
        let decode = largest(&model.decode_rows);
        let outputs = decode.max(largest(&model.head_rows));
        let prefill = largest(&model.prefill_rows);
        let inputs = outputs.max(prefill);
        let width = largest(&model.context_tiers) / u64::from(model.block_tokens);
        let mut arena_bytes = 0;
        let mut place = |elements: u64| {
            let at = arena_bytes;
            arena_bytes = (at + elements * 4).next_multiple_of(ALIGN);
            at
        };
        let (token_ids, positions, slots) = (place(inputs), place(inputs), place(inputs));
        let rows = place(inputs);
        let block_table = place(decode.max(1) * width);
        let (window_slots, window_table) = (place(inputs), place(decode.max(1) * width));
        let sequences = place(inputs);
        let logits = place(outputs * u64::from(model.vocab_size));
        let argmax = place(outputs);
        let top = outputs * u64::from(model.found());
        let (top_logits, top_ids) = (place(top), place(top));
        let mut state_bytes = 0;
        let mut state = |entries: u64| {
            let (offset, bytes) = (state_bytes, entries * device::ENTRY_BYTES);
            state_bytes += bytes;
            BufferRef { space: Space::State, offset, bytes }
        };
        let places = |blocks: u32| u64::from(blocks + 1) * u64::from(model.block_tokens);
        let kv = state(places(model.blocks));
        let window = state(model.window_memory().map_or(0, |window| places(window.blocks)));
        let recurrent = state(model.sequence_slots.map_or(0, |slots| u64::from(slots) + 1));
        let hidden = state(prefill);
        Self {
            arena_bytes,
            state_bytes,
            kv,
            window,
            recurrent,
            hidden,
            token_ids,
            positions,
            slots,
            rows,
            block_table,
            window_slots,
            window_table,
            sequences,
            logits,
            argmax,
            top_logits,
            top_ids,
        }
    }
}

fn port(name: &str, dtype: DType, dims: &[u64], offset: u64) -> Port {
    let bytes = dtype.bytes_for(dims.iter().product());
    let at = BufferRef { space: Space::Arena, offset, bytes };
    Port { name: name.into(), dtype, dims: dims.to_vec(), at }
}

fn plan(model: &FakeModel, places: &Places, phase: Phase, rows: u32, context_tokens: u32) -> Plan {
    let t = u64::from(rows);
    let width = u64::from(context_tokens / model.block_tokens);
    let tables = if phase == Phase::Decode { t } else { 1 };
    let mut inputs = match phase {
        Phase::Head if model.head_attends() => vec![
            port("rows", DType::I32, &[t], places.rows),
            port("positions", DType::I32, &[t], places.positions),
            port("block_table", DType::I32, &[tables, width], places.block_table),
        ],
        Phase::Head => vec![port("rows", DType::I32, &[t], places.rows)],
        Phase::Decode | Phase::Prefill => vec![
            port("token_ids", DType::I32, &[t], places.token_ids),
            port("positions", DType::I32, &[t], places.positions),
            port("slots", DType::I32, &[t], places.slots),
            port("block_table", DType::I32, &[tables, width], places.block_table),
        ],
    };
    let feeds = phase != Phase::Head;
    if feeds && model.sliding_window.is_some() {
        inputs.push(port("window_slots", DType::I32, &[t], places.window_slots));
        inputs.push(port("window_table", DType::I32, &[tables, width], places.window_table));
    }
    if feeds && model.sequence_slots.is_some() {
        inputs.push(port("sequences", DType::I32, &[t], places.sequences));
    }
    let mut outputs = Vec::new();
    if phase != Phase::Prefill {
        outputs.push(port("logits", DType::F32, &[t, model.vocab_size.into()], places.logits));
        outputs.push(port("argmax", DType::I32, &[t], places.argmax));
        if model.found() > 0 {
            let top = [t, model.found().into()];
            outputs.push(port("top_logits", DType::F32, &top, places.top_logits));
            outputs.push(port("top_ids", DType::I32, &top, places.top_ids));
        }
    }
    let mut state = Vec::new();
    if feeds || model.head_attends() {
        state.push(places.kv);
    }
    if feeds {
        state.extend(model.sliding_window.map(|_| places.window));
        state.extend(model.sequence_slots.map(|_| places.recurrent));
    }
    if phase != Phase::Decode {
        state.push(places.hidden);
    }
    let ports = |ports: &[Port]| ports.iter().map(|p| p.at).collect::<Vec<_>>();
    let args = [ports(&inputs), state, ports(&outputs)].concat();
    let placed = |port: &Port| {
        let BufferRef { offset, bytes, .. } = port.at;
        Placement { offset, bytes, first: 0, last: 1 }
    };
    let placements = inputs.iter().chain(&outputs).map(placed).collect();
    let scalars = [rows, context_tokens / model.block_tokens].map(|n| Scalar::Int(n.into()));
    Plan {
        name: match phase {
            Phase::Head => format!("head-bs{rows}"),
            Phase::Decode | Phase::Prefill => format!("{phase}-bs{rows}-ctx{context_tokens}"),
        },
        phase,
        rows,
        context_tokens,
        arena_bytes: places.arena_bytes,
        inputs,
        outputs,
        placements,
        kernels: vec![format!("fake_{phase}")],
        operators: vec![],
        steps: vec![Step { args, scalars: scalars.to_vec(), ..Step::default() }],
        chains: vec![],
    }
}

pub(super) fn plans(model: &FakeModel) -> Vec<Plan> {
    let places = Places::new(model);
    let with_context = |phase, rows: &[u32]| {
        let sizes = model.context_tiers.iter().flat_map(|&c| rows.iter().map(move |&r| (r, c)));
        sizes.map(|(r, c)| plan(model, &places, phase, r, c)).collect::<Vec<_>>()
    };
    let mut plans = with_context(Phase::Decode, &model.decode_rows);
    plans.extend(with_context(Phase::Prefill, &model.prefill_rows));
    let seen = model.context_tiers.iter().copied().max().filter(|_| model.head_attends());
    let head = |&r| plan(model, &places, Phase::Head, r, seen.unwrap_or(0));
    plans.extend(model.head_rows.iter().map(head));
    plans
}

pub(super) fn manifest(model: &FakeModel) -> Manifest {
    let places = Places::new(model);
    let empty = checksum(&[]);
    let file = |path: String| FileEntry { path, bytes: 0, checksum: empty.clone() };
    let entry = |plan: Plan| PlanEntry {
        file: file(format!("plans/{}.plan", plan.name)),
        phase: plan.phase,
        rows: plan.rows,
        context_tokens: plan.context_tokens,
        arena_bytes: plan.arena_bytes,
        unshared_bytes: plan.arena_bytes,
        steps: 1,
    };
    Manifest {
        format_version: FORMAT_VERSION,
        target: BuildTarget {
            device: "fake".into(),
            instruction_set: "none".into(),
            tensor_parallel: 1,
            kv_block_tokens: model.block_tokens,
        },
        model: Model {
            name: "fake".into(),
            model_type: "fake".into(),
            architecture: "FakeForCausalLM".into(),
            vocab_size: model.vocab_size,
            max_context: model.max_context,
            eos_token_ids: model.eos_token_ids.clone(),
            dtype: DType::F32,
            parameters: 0,
            sliding_window: model.sliding_window,
        },
        provenance: Provenance {
            compiler: env!("CARGO_PKG_VERSION").into(),
            model_hash: empty.clone(),
            passes_hash: empty.clone(),
            kernels_hash: empty.clone(),
        },
        extensions: Vec::new(),
        config: BTreeMap::new(),
        pipeline: Pipeline::default(),
        functions: Vec::new(),
        choices: Vec::new(),
        max_running_requests: model.max_running_requests,
        buckets: Vec::new(),
        plans: plans(model).into_iter().map(entry).collect(),
        kv: Kv {
            block_tokens: model.block_tokens,
            blocks: model.blocks,
            bytes_per_token: device::ENTRY_BYTES,
        },
        window: model.window_memory(),
        sequences: model
            .sequence_slots
            .map(|slots| SequenceMemory { slots, bytes_per_slot: device::ENTRY_BYTES }),
        memory: Memory {
            weights_bytes: 0,
            state_bytes: places.state_bytes,
            arena_bytes: places.arena_bytes,
        },
        states: Vec::new(),
        weights_file: file("weights/weights.bin".into()),
        weights: Vec::new(),
        files: Vec::new(),
        recorded: None,
    }
}
