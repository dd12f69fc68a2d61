//! `compile` in two halves: [`prepare`] decides everything and knows what it costs; then
//! [`Prepared::write`] does the long work of packing weights.

use crate::{
    Buckets, CompileError, KernelFile, QueueBudget, QueueUse, Target, buckets,
    emit::{Choice, Emitted, PlanName, Stored, emit},
    memory::{self, Demand, KvBudget, PlanMemory},
    pack::WeightTable,
    pipeline::{self, Ran},
    pools::Pools,
    recipe::{Constants, Recipes, constants},
    states::StateTable,
    streams::queue_use,
};
use artifact::{
    BuildTarget, Checksum, ChoiceEntry, ExtensionEntry, FileEntry, FunctionEntry, Hasher, Kv,
    Manifest, Memory, Model, Phase, Pipeline, PlanEntry, Provenance, Recorded, SequenceMemory,
    StateEntry, WeightEntry, WindowMemory, Writer,
};
use ir::{Dim, Func, Module, Symbol};
use std::{collections::BTreeMap, path::Path};
use tensor::{TensorInfo, WeightSource};

/// Symbols of the module, see [`prepare`].
pub(crate) const ROWS: &str = "T";
pub(crate) const TABLE_BLOCKS: &str = "W";
const HIDDEN_ROWS: &str = "R";

/// What to compile for.
#[derive(Clone, Debug)]
pub struct Options {
    /// Decode batch sizes.
    pub graph_bs: Vec<u32>,
    /// The most sequences that decode at once; by default the largest batch size.
    pub max_running_requests: Option<u32>,
    /// Prefill chunk lengths.
    pub prefill_chunks: Vec<u32>,
    /// Context lengths that plans are sized for, beside the longest.
    pub context_tiers: Vec<u32>,
    /// Longest context; the model's own at most.
    pub max_context: Option<u32>,
    /// KV memory.
    pub kv: KvBudget,
    /// Bytes that weights, KV memory and arena may take together.
    pub memory_limit: Option<u64>,
    /// The most rows of a decode step for which the target's compact weights are used, where it uses them for few rows; its
    /// own number by default.
    pub compact_rows: Option<u32>,
    /// How to quantise products of floats; `None` leaves them as they are.
    pub quantize: Option<passes::Quantize>,
    /// The passes there are, and their order.
    pub catalog: passes::Catalog,
    /// Extensions of the compiler; the manifest names those kernels of theirs that plans call.
    pub extensions: Vec<ExtensionEntry>,
    /// Passes to leave out.
    pub disabled_passes: Vec<String>,
    /// Stop after this many rewrites; `usize::MAX` in production.
    pub rewrite_limit: usize,
    /// Keep the text IR after every pass that changed something.
    pub dump_ir: bool,
    /// Options of other layers, recorded in the manifest.
    pub config: BTreeMap<String, serde_json::Value>,
}

impl Options {
    pub(crate) fn is_limited(&self) -> bool {
        self.rewrite_limit != usize::MAX
    }
}

/// The checkpoint as the compiler sees it.
pub struct Checkpoint<'a> {
    /// Facts for the manifest.
    pub model: Model,
    /// Bytes of `config.json`, for the model hash.
    pub config_json: Vec<u8>,
    /// What is stored, for the model hash.
    pub tensors: Vec<TensorInfo>,
    /// Where weights come from.
    pub weights: &'a dyn WeightSource,
    /// Files that travel along, by name: tokenizer, chat template, generation defaults.
    pub files: Vec<(String, Vec<u8>)>,
}

/// Runs a finished but unpublished artifact to record reference tokens.
pub type Recorder<'a> = &'a mut dyn FnMut(&Path) -> Result<Recorded, String>;

/// A compiled model whose weights are not packed yet.
pub struct Prepared {
    /// Sizes and the reasons for them.
    pub buckets: Buckets,
    /// What the passes did.
    pub report: passes::Report,
    /// Plans in the order they are bound.
    pub plans: Vec<PlanSummary>,
    /// KV memory.
    pub kv: Kv,
    /// KV memory of layers with a sliding window.
    pub window: Option<WindowMemory>,
    /// Recurrent memory.
    pub sequences: Option<SequenceMemory>,
    /// Bytes by kind.
    pub memory: Memory,
    /// Streams and events of the device that the plans hold, where they are short.
    pub queues: Option<QueueUse>,
    extensions: Vec<ExtensionEntry>,
    pipeline: Pipeline,
    functions: Vec<FunctionEntry>,
    emitted: Vec<Emitted>,
    recipes: Recipes,
    weights: WeightTable,
    states: StateTable,
    texts: Vec<(String, String)>,
    kernel_files: Vec<KernelFile>,
    choices: Vec<ChoiceEntry>,
    build_target: BuildTarget,
    weight_align: u64,
    kernels_hash: Checksum,
    passes_hash: Checksum,
    config: BTreeMap<String, serde_json::Value>,
    max_context: u32,
}

/// A plan in numbers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlanSummary {
    /// File stem.
    pub name: String,
    /// Kernel calls.
    pub steps: usize,
    /// Arena it needs.
    pub arena_bytes: u64,
    /// Bytes the same buffers take when none share memory.
    pub unshared_bytes: u64,
}

/// What the plans of one decode batch size take beside the memory that all plans share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SizeCost {
    /// Bytes of the plans.
    pub plan_bytes: u64,
    /// Streams and events of the device that they hold, where those are short.
    pub queues: Option<QueueUse>,
}

/// Runs the passes, chooses the sizes and emits every plan. Reads no weight.
///
/// `module` has the functions `@decode`, `@prefill` and `@head` over the symbols `T` (rows of the
/// step), `W` (blocks in a block table), `R` (rows of the hidden-state memory) and, each with a
/// spare one, `NB` (KV blocks), `NW` (blocks of sliding windows) and `NS` (slots of recurrent
/// memory).
///
/// # Errors
/// [`CompileError`]; in particular when the memory limit is exceeded, with the plan that does.
pub fn prepare(
    module: Module,
    model: &Model,
    target: &dyn Target,
    options: &Options,
) -> Result<Prepared, CompileError> {
    let build_target = target.build_target();
    let block_tokens = build_target.kv_block_tokens;
    // Positions are 32-bit on devices.
    let most = model.max_context.clamp(1, i32::MAX as u32);
    let max_context = options.max_context.unwrap_or(most).clamp(1, most);
    let buckets = buckets::choose(
        &options.graph_bs,
        options.max_running_requests,
        &options.prefill_chunks,
        &options.context_tiers,
        max_context,
        block_tokens,
    );

    let mut module = module;
    let mut texts = Vec::new();
    let Ran { report, pipeline, functions } =
        pipeline::run(&mut module, target, options, &buckets, &mut texts)?;

    let pools = Pools::new(&module, model.sliding_window, &buckets, block_tokens)?;
    let mut recipes = Recipes::default();
    let program = Program::new(&module, &mut recipes)?;
    drop(module);
    let build =
        |kv_blocks| program.emit(&recipes, target, &buckets, block_tokens, &pools, kv_blocks);
    let trial = build(1)?;
    let demand = Demand {
        // The trial's states hold one block and the spare one.
        fixed_bytes: (trial.weights.bytes() + trial.states.bytes() + largest_arena(&trial.emitted))
            .saturating_sub(pools.kv_block_bytes),
        block_bytes: pools.kv_block_bytes,
        block_tokens,
        max_context,
        running: buckets.decode.last().copied().unwrap_or(1),
    };
    let blocks = demand.blocks(options.kv, options.memory_limit)?;
    let All { emitted, weights, states } = build(blocks)?;
    let memory = Memory {
        weights_bytes: weights.bytes(),
        state_bytes: states.bytes(),
        arena_bytes: largest_arena(&emitted),
    };
    let (window_bytes, sequence_bytes) = (pools.window_bytes(), pools.sequence_bytes());
    let fixed = PlanMemory {
        weights_bytes: memory.weights_bytes,
        kv_bytes: memory.state_bytes.saturating_sub(window_bytes + sequence_bytes),
        window_bytes,
        sequence_bytes,
        arena_bytes: 0,
    };
    memory::check(emitted.iter().map(|e| &e.plan), &fixed, options.memory_limit)?;

    let queues =
        target.streams().budget.map(|budget| check_queues(&emitted, budget)).transpose()?;
    let plans = emitted.iter().map(summary).collect();
    let mut passes_hash = Hasher::default();
    for (name, source) in options.catalog.sources() {
        passes_hash.update(name.as_bytes());
        passes_hash.update(source.as_bytes());
    }
    for step in &report.steps {
        passes_hash.update(step.source.as_bytes());
    }
    for pass in &report.passes {
        passes_hash.update(format!("{} {} {}\n", pass.pass, pass.func, pass.fired).as_bytes());
    }
    let mut kernels_hash = Hasher::default();
    for source in target.sources() {
        kernels_hash.update(source.as_bytes());
    }
    Ok(Prepared {
        kv: Kv {
            block_tokens,
            blocks,
            bytes_per_token: pools.kv_block_bytes / u64::from(block_tokens),
        },
        window: pools.window,
        sequences: pools.sequences,
        memory,
        plans,
        queues,
        extensions: called(&options.extensions, &emitted),
        recipes,
        weights,
        states,
        texts,
        kernel_files: kernel_files(target, &emitted),
        choices: choices(&emitted),
        emitted,
        report,
        pipeline,
        functions,
        build_target,
        weight_align: target.weight_align(),
        kernels_hash: kernels_hash.finish(),
        passes_hash: passes_hash.finish(),
        config: effective_config(options, &buckets, max_context, blocks),
        buckets,
        max_context,
    })
}

struct All {
    emitted: Vec<Emitted>,
    weights: WeightTable,
    states: StateTable,
}

/// The functions of a module with their constants taken out.
struct Program(Vec<Constants>);

impl Program {
    fn new(module: &Module, recipes: &mut Recipes) -> Result<Self, CompileError> {
        module.funcs.iter().map(|f| constants(f, recipes)).collect::<Result<_, _>>().map(Self)
    }

    fn func(&self, name: &'static str) -> Result<&Constants, CompileError> {
        self.0.iter().find(|c| c.func.name == name).ok_or(CompileError::NoFunction(name))
    }

    /// Emits every plan: decode, prefill, head, each for every tier and size, so that the weight
    /// file is in the order decode reads it.
    fn emit(
        &self,
        recipes: &Recipes,
        target: &dyn Target,
        buckets: &Buckets,
        block_tokens: u32,
        pools: &Pools,
        kv_blocks: u32,
    ) -> Result<All, CompileError> {
        let hidden_rows = buckets.prefill.last().copied().unwrap_or(1);
        let mut shared = pools.bindings(kv_blocks);
        shared.insert(Symbol::new(HIDDEN_ROWS), u64::from(hidden_rows));
        let states = StateTable::new(self.0.iter().map(|c| &c.func), &shared)?;
        let mut weights = WeightTable::default();
        let mut emitted = Vec::new();
        let mut add = |constants: &Constants, phase: Phase, rows: u32, tier: u32| {
            let mut bindings = shared.clone();
            bindings.insert(Symbol::new(ROWS), u64::from(rows));
            bindings.insert(Symbol::new(TABLE_BLOCKS), u64::from(tier / block_tokens));
            let special = passes::specialise(&constants.func, &bindings)?;
            let name = match phase {
                Phase::Head => format!("{phase}-bs{rows}"),
                Phase::Decode => format!("{phase}-bs{rows}-ctx{tier}"),
                Phase::Prefill => format!("{phase}-len{rows}-ctx{tier}"),
            };
            let name = PlanName { name, phase, rows, context_tokens: tier };
            let stored = Stored { constants, recipes, weights: &mut weights };
            emitted.push(emit(&special, name, target, stored, &states)?);
            Ok::<_, CompileError>(())
        };
        for (phase, name, sizes) in [
            (Phase::Decode, "decode", &buckets.decode),
            (Phase::Prefill, "prefill", &buckets.prefill),
        ] {
            for &tier in &buckets.tiers {
                for &rows in sizes {
                    add(self.func(name)?, phase, rows, tier)?;
                }
            }
        }
        // Heads are few, and their attention reads as far as their rows see: the longest tier is enough.
        let head = self.func("head")?;
        let tier = if reads_tables(&head.func) { buckets.tiers.last().copied() } else { None };
        for &rows in &buckets.head {
            add(head, Phase::Head, rows, tier.unwrap_or(0))?;
        }
        Ok(All { emitted, weights, states })
    }
}

/// Whether some input is a block table.
fn reads_tables(func: &Func) -> bool {
    let width = Dim::sym(TABLE_BLOCKS);
    func.params.iter().any(|&p| func.values[p].ty.dims.contains(&width))
}

/// `extensions`, each with those of its kernels that some plan calls.
fn called(extensions: &[ExtensionEntry], emitted: &[Emitted]) -> Vec<ExtensionEntry> {
    let is_called = |kernel: &String| emitted.iter().any(|e| e.plan.kernels.contains(kernel));
    let entry = |e: &ExtensionEntry| {
        let kernels = e.kernels.iter().filter(|k| is_called(k)).cloned().collect();
        ExtensionEntry { kernels, ..e.clone() }
    };
    extensions.iter().map(entry).collect()
}

/// What all plans hold, when the device has as much.
fn check_queues(emitted: &[Emitted], budget: QueueBudget) -> Result<QueueUse, CompileError> {
    let used = queue_use(emitted.iter().map(|e| &e.plan), budget.steps_per_stream);
    let counts =
        [("streams", used.streams, budget.streams), ("events", used.events, budget.events)];
    match counts.into_iter().find(|&(_, used, limit)| used > limit) {
        Some((what, used, limit)) => Err(CompileError::Queues { what, used, limit }),
        None => Ok(used),
    }
}

/// Files that calls of any plan need, and those the target adds, each once.
fn kernel_files(target: &dyn Target, emitted: &[Emitted]) -> Vec<KernelFile> {
    let all = emitted.iter().flat_map(|e| &e.files).map(|f| (f.path.clone(), f.clone()));
    let mut files: Vec<KernelFile> = all.collect::<BTreeMap<_, _>>().into_values().collect();
    files.extend(target.files(&files));
    files
}

/// Why ops are computed as they are, each reason once with the steps of all plans it stands for.
fn choices(emitted: &[Emitted]) -> Vec<ChoiceEntry> {
    let mut counted: BTreeMap<&Choice, u32> = BTreeMap::new();
    for choice in emitted.iter().flat_map(|e| &e.choices) {
        *counted.entry(choice).or_default() += 1;
    }
    let entry = |(Choice { op, calls, why }, count): (&Choice, u32)| ChoiceEntry {
        op: op.clone(),
        calls: calls.clone(),
        why: why.clone(),
        count,
    };
    counted.into_iter().map(entry).collect()
}

fn largest_arena(emitted: &[Emitted]) -> u64 {
    emitted.iter().map(|e| e.plan.arena_bytes).max().unwrap_or(0)
}

fn summary(e: &Emitted) -> PlanSummary {
    PlanSummary {
        name: e.plan.name.clone(),
        steps: e.plan.steps.len(),
        arena_bytes: e.plan.arena_bytes,
        unshared_bytes: e.unshared_bytes,
    }
}

fn effective_config(
    options: &Options,
    buckets: &Buckets,
    max_context: u32,
    kv_blocks: u32,
) -> BTreeMap<String, serde_json::Value> {
    let mut config = options.config.clone();
    let mut set = |key: &str, value: serde_json::Value| config.insert(key.to_owned(), value);
    set("graph_bs", buckets.decode.clone().into());
    set("prefill_chunks", buckets.prefill.clone().into());
    set("context_tiers", buckets.tiers.clone().into());
    set("max_context", max_context.into());
    set("kv_blocks", kv_blocks.into());
    set("memory_limit_bytes", options.memory_limit.into());
    set("disabled_passes", options.disabled_passes.clone().into());
    if let Some(passes::Quantize { bits, group, head }) = options.quantize {
        set("quantize", serde_json::json!({ "bits": bits, "group": group, "head": head }));
    }
    if options.is_limited() {
        set("rewrite_limit", options.rewrite_limit.into());
    }
    config
}

impl Prepared {
    /// The plans as they will be written.
    pub fn emitted(&self) -> impl Iterator<Item = &artifact::Plan> {
        self.emitted.iter().map(|e| &e.plan)
    }

    /// What the plans of one decode batch size take, for all context lengths together; that of the
    /// largest.
    pub fn size_cost(&self, target: &dyn Target) -> SizeCost {
        let rows = self.buckets.decode.last().copied();
        let plans = || self.emitted().filter(|p| p.phase == Phase::Decode && Some(p.rows) == rows);
        SizeCost {
            plan_bytes: plans().map(artifact::plan_bytes).sum(),
            queues: target.streams().budget.map(|b| queue_use(plans(), b.steps_per_stream)),
        }
    }

    /// Sources of kernels, and what builds them.
    pub fn kernel_files(&self) -> &[KernelFile] {
        &self.kernel_files
    }

    /// What the weight file will hold, in the order plans read it, each with the most bytes it may take.
    pub fn weights(&self) -> &[WeightEntry] {
        self.weights.entries()
    }

    /// Persistent memories in the order of their places.
    pub fn states(&self) -> &[StateEntry] {
        self.states.entries()
    }

    /// Packs the weights and writes the artifact at `out`, which appears whole or not at all.
    /// `progress` gets the bytes of weights dealt with so far, out of the [`Memory::weights_bytes`] of [`Prepared::memory`].
    ///
    /// # Errors
    /// [`CompileError`] when reading, writing or recording fails.
    pub fn write(
        mut self,
        checkpoint: &Checkpoint<'_>,
        out: &Path,
        progress: &mut dyn FnMut(u64),
        recorder: Option<Recorder<'_>>,
    ) -> Result<Manifest, CompileError> {
        let writer = Writer::create(out)?;
        let mut files: Vec<FileEntry> = Vec::new();
        for (path, bytes) in &checkpoint.files {
            files.push(writer.file(path, bytes)?);
        }
        let kernels = self.kernel_files.iter().map(|f| (&f.path, &f.text));
        for (path, text) in self.texts.iter().map(|(path, text)| (path, text)).chain(kernels) {
            files.push(writer.file(path, text.as_bytes())?);
        }
        let mut stream = writer.stream("weights/weights.bin")?;
        let align = self.weight_align;
        let weights =
            self.weights.write(&self.recipes, checkpoint.weights, &mut stream, align, progress)?;
        let weights_file = stream.finish()?;
        let mut plans = Vec::with_capacity(self.emitted.len());
        for e in &mut self.emitted {
            weights.place(&mut e.plan.steps);
            plans.push(PlanEntry {
                file: writer.plan(&e.plan)?,
                phase: e.plan.phase,
                rows: e.plan.rows,
                context_tokens: e.plan.context_tokens,
                arena_bytes: e.plan.arena_bytes,
                unshared_bytes: e.unshared_bytes,
                steps: e.plan.steps.len() as u32,
            });
        }

        let mut model_hash = Hasher::default();
        model_hash.update(&checkpoint.config_json);
        for t in &checkpoint.tensors {
            model_hash.update(format!("{} {} {:?}\n", t.name, t.dtype, t.dims).as_bytes());
        }
        model_hash.update(weights_file.checksum.to_string().as_bytes());
        let mut manifest = Manifest {
            format_version: artifact::FORMAT_VERSION,
            target: self.build_target,
            model: Model { max_context: self.max_context, ..checkpoint.model.clone() },
            provenance: Provenance {
                compiler: concat!("precast ", env!("CARGO_PKG_VERSION")).into(),
                model_hash: model_hash.finish(),
                passes_hash: self.passes_hash,
                kernels_hash: self.kernels_hash,
            },
            extensions: self.extensions,
            config: self.config,
            pipeline: self.pipeline,
            functions: self.functions,
            choices: self.choices,
            max_running_requests: self.buckets.decode.last().copied().unwrap_or(1),
            buckets: self.buckets.notes,
            plans,
            kv: self.kv,
            window: self.window,
            sequences: self.sequences,
            memory: Memory { weights_bytes: weights_file.bytes, ..self.memory },
            states: self.states.into_entries(),
            weights_file,
            weights: weights.into_entries(),
            files,
            recorded: None,
        };
        if let Some(record) = recorder {
            writer.manifest(&manifest)?;
            manifest.recorded = Some(record(writer.staging()).map_err(CompileError::Record)?);
        }
        writer.finish(&manifest)?;
        Ok(manifest)
    }
}
