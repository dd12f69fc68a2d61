//! The plans of an artifact, replayed one by one on this machine's CPU.

use crate::feed::{Feed, Places};
use artifact::{Artifact, BufferRef, Phase, Plan, Port};
use codegen_cpu::{
    CpuOptions, InstructionSet,
    device::{CpuDevice, CpuGraph},
};
use hal::{Device, MemoryRequest};
use ir::DType;
use std::{collections::BTreeMap, sync::Arc};

/// Outputs of a step by name, live rows only.
pub type Outputs = BTreeMap<String, Vec<f64>>;

/// An artifact and the memories of one sequence.
pub struct Planned {
    device: CpuDevice,
    plans: Vec<(Plan, CpuGraph)>,
    places: Places,
    length: usize,
    /// Tokens before those of the last step.
    before: usize,
}

impl Planned {
    /// Loads `artifact` for kernels of `set`, with two threads.
    ///
    /// # Panics
    /// When it does not load.
    pub fn new(artifact: &Artifact, set: InstructionSet) -> Self {
        let manifest = artifact.manifest();
        let options =
            CpuOptions { threads: Some(2), instruction_set: Some(set), ..CpuOptions::default() };
        let mut device = CpuDevice::new(options).expect("the machine has these instructions");
        let request = MemoryRequest {
            root: artifact.root().to_owned(),
            weights: Arc::new(artifact.map_weights().expect("there is a weight file")),
            arena_bytes: manifest.memory.arena_bytes,
            state_bytes: manifest.memory.state_bytes,
        };
        device.load(request).expect("there is memory");
        let plans = artifact.plans().expect("plans can be read").into_iter();
        let mut captured = |plan: Plan| {
            let graph = hal::capture(&mut device, &plan).expect("plans can be captured");
            (plan, graph)
        };
        let plans = plans.map(&mut captured).collect();
        let places = Places {
            block_tokens: manifest.kv.block_tokens as usize,
            spare: manifest.kv.blocks as usize,
            window_spare: manifest.window.map_or(0, |w| w.blocks as usize),
            sequence_spare: manifest.sequences.map_or(0, |s| s.slots as usize),
        };
        Self { device, plans, places, length: 0, before: 0 }
    }

    /// Feeds `tokens`, which follow those in the memories, to the smallest plan of `phase` that takes
    /// as many.
    ///
    /// # Panics
    /// When there is none.
    pub fn step(&mut self, phase: Phase, tokens: &[u32]) -> Outputs {
        self.before = self.length;
        let feed = Feed { phase, tokens, before: self.before, places: self.places };
        self.length += tokens.len();
        self.replay(&feed)
    }

    /// Logits of the first `rows` rows of the last prefill, one after another.
    ///
    /// # Panics
    /// When a step fails.
    pub fn logits(&mut self, rows: usize) -> Vec<f64> {
        self.head(rows).remove("logits").expect("a head has logits")
    }

    /// What heads say of the first `rows` rows of the last prefill.
    ///
    /// # Panics
    /// When a step fails.
    pub fn head(&mut self, rows: usize) -> Outputs {
        let rows: Vec<u32> = (0..rows as u32).collect();
        let (before, places) = (self.before, self.places);
        let largest = self.plans.iter().filter(|(p, _)| p.phase == Phase::Head);
        let largest = largest.map(|(p, _)| p.rows as usize).max().expect("there is a head");
        let mut all = Outputs::new();
        for tokens in rows.chunks(largest) {
            for (name, values) in self.replay(&Feed { phase: Phase::Head, tokens, before, places })
            {
                all.entry(name).or_default().extend(values);
            }
        }
        all
    }

    fn replay(&mut self, feed: &Feed<'_>) -> Outputs {
        let live = feed.tokens.len();
        let fits = |p: &Plan| p.phase == feed.phase && p.rows as usize >= live;
        let plans = self.plans.iter().filter(|(p, _)| fits(p));
        let (plan, graph) = plans.min_by_key(|(p, _)| p.rows).expect("some plan is as large");
        for port in &plan.inputs {
            let values = feed.values(&port.name, &port.dims);
            let bytes: Vec<u8> = values.into_iter().flat_map(i32::to_le_bytes).collect();
            self.device.write(port.at, &bytes);
        }
        self.device.replay(graph).expect("the plan runs");
        let mut out = Outputs::new();
        for port in &plan.outputs {
            out.insert(port.name.clone(), read(&mut self.device, port, live));
        }
        out
    }
}

/// The first `rows` rows of an output.
fn read(device: &mut CpuDevice, port: &Port, rows: usize) -> Vec<f64> {
    let columns: u64 = port.dims[1..].iter().product();
    let mut bytes = vec![0; 4 * rows * columns as usize];
    device.read(BufferRef { bytes: bytes.len() as u64, ..port.at }, &mut bytes).expect("it ran");
    let (words, _) = bytes.as_chunks::<4>();
    let value = |&word: &[u8; 4]| match port.dtype {
        DType::F32 => f64::from(f32::from_le_bytes(word)),
        DType::I32 => f64::from(i32::from_le_bytes(word)),
        other => panic!("{} is {other}", port.name),
    };
    words.iter().map(value).collect()
}
