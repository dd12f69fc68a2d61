//! A step as the device sees it: inputs written, a graph replayed, outputs read.

use crate::{
    bind::{Bound, Graphs},
    costs::Costs,
    inputs::{Input, Layout, Row, Staging},
    memory::Held,
    stats::{BucketCounters, Counters},
};
use artifact::{BufferRef, Manifest, Phase};
use hal::{Device, DeviceError};
use std::{
    sync::atomic::Ordering::Relaxed,
    time::{Duration, Instant},
};
use zerocopy::IntoBytes;

/// A piece of a prompt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Chunk {
    /// Context tier and rows of the graph.
    pub(crate) size: (u32, u32),
    /// Tokens it feeds; rows past them are padding.
    pub(crate) live: u32,
}

/// Where the logits of the last replay lie. Valid until the next replay.
#[derive(Clone, Copy)]
pub(crate) struct Outputs {
    logits: BufferRef,
    /// Of the replay.
    pub(crate) time: Duration,
}

/// The device, its graphs, and the bytes on their way to and from it.
pub(crate) struct Replayer<D: Device> {
    device: D,
    graphs: Graphs<D::Graph>,
    pub(crate) costs: Costs,
    /// The most prompt tokens of a step.
    max_chunk: u32,
    layout: Layout,
    vocab_size: usize,
    staging: Staging,
    /// Bytes that a replay ended with: the most probable token of each row.
    argmax: Vec<u8>,
}

impl<D: Device> Replayer<D> {
    /// `chunk` is the most prompt tokens of a step; as many as the largest plan takes when `None`.
    pub(crate) fn new(
        device: D,
        graphs: Graphs<D::Graph>,
        mut costs: Costs,
        chunk: Option<u32>,
        manifest: &Manifest,
    ) -> Self {
        let vocab_size = manifest.model.vocab_size as usize;
        let block_tokens = manifest.kv.block_tokens;
        let table = |rows: u32, context: u32| {
            (rows as usize).saturating_mul(context.div_ceil(block_tokens) as usize)
        };
        let widest = table(graphs.decode.max_rows(), graphs.decode.context_tokens())
            .max(table(1, graphs.prefill.context_tokens()))
            .max(graphs.prefill.max_rows() as usize)
            .max(graphs.head.max_rows() as usize);
        // Every input lies in the arena.
        let arena_bytes = manifest.memory.arena_bytes as usize;
        let staging = widest.min(arena_bytes / size_of::<i32>());
        if let Some(chunk) = chunk {
            costs.limit_prefill(chunk);
        }
        let output_rows = graphs.head.max_rows().max(graphs.decode.max_rows()) as usize;
        Self {
            device,
            max_chunk: chunk.unwrap_or(u32::MAX).min(costs.max_chunk()),
            graphs,
            costs,
            layout: Layout::new(manifest),
            vocab_size,
            staging: Staging::with_room(staging),
            argmax: Vec::with_capacity(output_rows * size_of::<i32>()),
        }
    }

    pub(crate) fn into_device(self) -> D {
        self.device
    }

    pub(crate) fn device_name(&self) -> String {
        self.device.name()
    }

    /// The longest context that prefill and decode both hold.
    pub(crate) fn context_tokens(&self) -> u32 {
        self.graphs.decode.context_tokens().min(self.graphs.prefill.context_tokens())
    }

    /// Whether one decode replay takes `rows` rows of up to `context` tokens.
    pub(crate) fn takes(&self, context: u32, rows: u32) -> bool {
        self.graphs.decode.fit(context, rows).is_some()
    }

    /// The most prompt tokens that one step feeds.
    pub(crate) fn max_chunk(&self) -> u32 {
        self.max_chunk
    }

    pub(crate) fn head_rows(&self) -> u32 {
        self.graphs.head.max_rows()
    }

    /// The next piece of `left` tokens from position `start` on, by the times that replays take.
    pub(crate) fn chunk(&self, start: u32, left: u32) -> Chunk {
        let (first, _) = self.costs.prefill(start + left, left);
        let rows = first.map_or(self.max_chunk, |(_, rows)| rows);
        let live = left.min(rows).min(self.max_chunk);
        // The longest tier is not needed before the end of the prompt.
        let size = self.graphs.prefill.fit(start + live, rows);
        Chunk { size: size.expect("admission keeps positions inside the longest tier"), live }
    }

    /// Feeds `live` rows. `context` is the most tokens that a row attends to.
    pub(crate) fn decode<'a>(
        &mut self,
        (context, live): (u32, u32),
        rows: impl Iterator<Item = Row<'a>> + Clone,
        counters: &Counters,
    ) -> Result<Outputs, DeviceError> {
        let size = self.graphs.decode.fit(context, live).expect("the caller asks `takes`");
        let bound = self.graphs.decode.get(size);
        let (tier, total) = size;
        let shortest = rows.clone().map(|r| r.position + 1).min().unwrap_or(0);
        if let Some((shorter, _)) = self.graphs.decode.fit(shortest, live)
            && shorter < tier
        {
            counters.fallback_context.note(1, || {
                format!(
                    "a request with a context of {context} tokens decodes together with shorter ones, \
                     in a plan for {tier} tokens where {shorter} would do for some; compile with a tier \
                     between them (`--context-tiers`) if that is common"
                )
            });
        }
        let padding = (total - live) as usize;
        let width = (tier / self.layout.block_tokens) as usize;
        let mut input = Input { device: &mut self.device, staging: &mut self.staging };
        let padded = (rows, padding);
        input.feed(&bound.ports, &self.layout, padded.clone(), padded, width);
        let mut run = Run { device: &mut self.device, costs: &mut self.costs, counters };
        run.replay(bound, live, bound.ports.argmax, &mut self.argmax)
    }

    /// Feeds `tokens`, `chunk.live` of one sequence from position `start` on, and leaves their hidden
    /// states for [`Replayer::head`].
    pub(crate) fn prefill(
        &mut self,
        chunk: Chunk,
        start: u32,
        tokens: &[u32],
        held: &Held,
        counters: &Counters,
    ) -> Result<(), DeviceError> {
        let bound = self.graphs.prefill.get(chunk.size);
        let (tier, total) = chunk.size;
        let padding = (total - chunk.live) as usize;
        let width = (tier / self.layout.block_tokens) as usize;
        let rows = tokens.iter().zip(start..);
        let rows = rows.map(|(&token, position)| Row { token, position, held });
        let last = rows.clone().last();
        let mut input = Input { device: &mut self.device, staging: &mut self.staging };
        input.feed(&bound.ports, &self.layout, (rows, padding), (last.into_iter(), 0), width);
        let mut run = Run { device: &mut self.device, costs: &mut self.costs, counters };
        // Nothing of it is needed; reading waits, and so its time is known.
        let any = BufferRef { bytes: 4, ..bound.ports.token_ids };
        run.replay(bound, chunk.live, any, &mut self.argmax).map(|_| ())
    }

    /// Logits of the rows `first..first + count` of the last prefill; `count` is at most
    /// [`Replayer::head_rows`].
    pub(crate) fn head(
        &mut self,
        first: u32,
        count: u32,
        counters: &Counters,
    ) -> Result<Outputs, DeviceError> {
        let size = self.graphs.head.fit(0, count).expect("the caller asks `head_rows`");
        let bound = self.graphs.head.get(size);
        let mut input = Input { device: &mut self.device, staging: &mut self.staging };
        // Padding repeats a row that holds a hidden state.
        input.write(bound.ports.rows, first..first + count, (size.1 - count) as usize, first);
        let mut run = Run { device: &mut self.device, costs: &mut self.costs, counters };
        run.replay(bound, count, bound.ports.argmax, &mut self.argmax)
    }

    /// The most probable token of `row` of the last replay; `None` where the device gave no token id.
    pub(crate) fn most_probable(&self, row: u32) -> Option<u32> {
        let (ids, _) = self.argmax.as_chunks::<4>();
        let id = u32::try_from(i32::from_le_bytes(*ids.get(row as usize)?)).ok();
        id.filter(|&id| (id as usize) < self.vocab_size)
    }

    /// Reads the logits of `row`; `out` has one entry for each token.
    ///
    /// # Errors
    /// When the replay failed.
    pub(crate) fn logits(
        &mut self,
        from: Outputs,
        row: u32,
        out: &mut [f32],
    ) -> Result<(), DeviceError> {
        let bytes = size_of_val(out) as u64;
        let at =
            BufferRef { offset: from.logits.offset + u64::from(row) * bytes, bytes, ..from.logits };
        self.device.read(at, out.as_mut_bytes())?;
        // Devices are little-endian; so are hosts, and then this is nothing.
        for value in out {
            *value = f32::from_bits(u32::from_le(value.to_bits()));
        }
        Ok(())
    }
}

/// What a replay leaves its marks on.
struct Run<'a, D: Device> {
    device: &'a mut D,
    costs: &'a mut Costs,
    counters: &'a Counters,
}

impl<D: Device> Run<'_, D> {
    /// Replays a graph, waits for it and reads the 4 bytes of each of its first rows from `read` into
    /// `out`; `live` rows are no padding.
    fn replay(
        &mut self,
        bound: &Bound<D::Graph>,
        live: u32,
        read: BufferRef,
        out: &mut Vec<u8>,
    ) -> Result<Outputs, DeviceError> {
        out.clear();
        out.resize((live as usize * size_of::<i32>()).min(read.bytes as usize), 0);
        let start = Instant::now();
        self.device.replay(&bound.graph)?;
        self.device.read(read, out)?;
        let ns = start.elapsed().as_nanos() as u64;
        self.costs.record(bound.index, ns);
        self.counters.device_ns.fetch_add(ns, Relaxed);
        let bucket = &self.counters.buckets[bound.index];
        bucket.count(live, ns);
        if bucket.rows > live.saturating_mul(2) {
            self.counters.fallback_padding.note(1, || padding(bucket, live));
        }
        Ok(Outputs { logits: bound.ports.logits, time: Duration::from_nanos(ns) })
    }
}

/// What more padding than work in a replay of a plan means.
fn padding(plan: &BucketCounters, live: u32) -> String {
    let (phase, rows) = (plan.phase.name(), plan.rows);
    let remedy = match plan.phase {
        Phase::Decode => format!("compile with `--graph-bs` ... {live} if that is common"),
        Phase::Prefill => format!("compile with `--prefill-chunks` ... {live} if that is common"),
        Phase::Head => "few log-probabilities of a prompt are left for it".to_owned(),
    };
    format!("{} of the {rows} rows of a {phase} replay are padding: {remedy}", rows - live)
}
