//! A step as the device sees it: inputs written, a graph replayed, outputs read.

use crate::{
    ahead::Ahead,
    bind::{Bound, Graphs, Sized, TopPorts},
    costs::Costs,
    inputs::{Layout, Row, Staging},
    memory::Held,
    sampler::Ranked,
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
    top: Option<TopPorts>,
    /// Of the replay.
    pub(crate) time: Duration,
}

impl Outputs {
    /// How many of the most likely tokens of a row the device found.
    pub(crate) fn ranked(&self) -> u32 {
        self.top.map_or(0, |top| top.count)
    }
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
    ahead: Ahead,
    /// Bytes that a replay ended with: the most probable token of each row.
    argmax: Vec<u8>,
    /// Bytes of the most likely tokens of a row: logits, then ids.
    top: Vec<u8>,
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
        // Four or five inputs have an integer for each row; there is one table, or two.
        let inputs = |rows: u32, tables: u32, context: u32| {
            let tables = table(tables, context) * (1 + usize::from(manifest.window.is_some()));
            rows as usize * 5 + tables
        };
        let (decode, prefill) = (&graphs.decode, &graphs.prefill);
        let decode = inputs(decode.max_rows(), decode.max_rows(), decode.context_tokens());
        let prefill = inputs(prefill.max_rows(), 1, prefill.context_tokens());
        let head = inputs(graphs.head.max_rows(), 1, graphs.head.context_tokens());
        // Every input lies in the arena.
        let most = manifest.memory.arena_bytes as usize / size_of::<i32>();
        let widest = decode.max(prefill).max(head).min(most);
        let ahead = match device.runs_beside_host() {
            true => Ahead::with_room(graphs.decode.max_rows() as usize, decode.min(most)),
            false => Ahead::with_room(0, 0),
        };
        if let Some(chunk) = chunk {
            costs.limit_prefill(chunk);
        }
        let found = |bound: &Sized<D::Graph>| bound.most_found() as usize;
        let most_found = found(&graphs.decode).max(found(&graphs.head));
        let output_rows = graphs.head.max_rows().max(graphs.decode.max_rows()) as usize;
        Self {
            device,
            max_chunk: chunk.unwrap_or(u32::MAX).min(costs.max_chunk()),
            graphs,
            costs,
            layout: Layout::new(manifest),
            vocab_size,
            staging: Staging::with_room(widest),
            ahead,
            argmax: Vec::with_capacity(output_rows * size_of::<i32>()),
            top: Vec::with_capacity(most_found * (size_of::<f32>() + size_of::<i32>())),
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

    /// Starts feeding `live` rows; [`Replayer::finish`] waits for the end. `context` is the most tokens
    /// that a row attends to.
    pub(crate) fn start_decode<'a>(
        &mut self,
        (context, live): (u32, u32),
        rows: impl Iterator<Item = Row<'a>> + Clone,
        counters: &Counters,
    ) -> Result<Started, DeviceError> {
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
        if self.ahead.send(&mut self.device, size, rows.clone()) {
            counters.prepared_steps.fetch_add(1, Relaxed);
        } else {
            let width = self.layout.table_width(tier);
            let padded = (rows, (total - live) as usize);
            self.staging.feed(&bound.ports, &self.layout, padded.clone(), padded, width);
            self.staging.send(&mut self.device);
        }
        Started::new(&mut self.device, bound, live, bound.ports.argmax)
    }

    /// Whether it pays to call [`Replayer::prepare_decode`] between [`Replayer::start_decode`] and
    /// [`Replayer::finish`].
    pub(crate) fn prepares(&self) -> bool {
        self.device.runs_beside_host()
    }

    /// Makes the inputs for `live` rows, whose tokens are not known yet, of up to `context` tokens.
    /// The next decode replay uses them if it feeds these rows.
    pub(crate) fn prepare_decode<'a>(
        &mut self,
        (context, live): (u32, u32),
        rows: impl Iterator<Item = Row<'a>> + Clone,
    ) {
        if let Some(size) = self.graphs.decode.fit(context, live) {
            let ports = &self.graphs.decode.get(size).ports;
            let width = self.layout.table_width(size.0);
            self.ahead.make((ports, &self.layout), size, rows, width);
        }
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
        let width = self.layout.table_width(tier);
        let rows = tokens.iter().zip(start..);
        let rows = rows.map(|(&token, position)| Row { token, position, held });
        let last = rows.clone().last();
        let tables = (last.into_iter(), 0);
        self.staging.feed(&bound.ports, &self.layout, (rows, padding), tables, width);
        self.staging.send(&mut self.device);
        // Nothing of it is needed; reading waits, and so its time is known.
        let any = BufferRef { bytes: 4, ..bound.ports.token_ids };
        let started = Started::new(&mut self.device, bound, chunk.live, any)?;
        self.finish(&started, counters).map(|_| ())
    }

    /// Logits of the rows `first..first + count` of the last prefill, which fed a sequence that holds
    /// `held` from position `start` on; `count` is at most [`Replayer::head_rows`].
    pub(crate) fn head(
        &mut self,
        (first, count): (u32, u32),
        start: u32,
        held: &Held,
        counters: &Counters,
    ) -> Result<Outputs, DeviceError> {
        let size = self.graphs.head.fit(0, count).expect("the caller asks `head_rows`");
        let bound = self.graphs.head.get(size);
        let (tier, total) = size;
        // Padding repeats a row that holds a hidden state.
        let padding = (total - count) as usize;
        self.staging.put(bound.ports.rows, first..first + count, padding, first);
        if tier > 0 {
            let width = self.layout.table_width(tier);
            let positions = start + first..start + first + count;
            self.staging.look_back(&bound.ports, &self.layout, (positions, padding), held, width);
        }
        self.staging.send(&mut self.device);
        let started = Started::new(&mut self.device, bound, count, bound.ports.argmax)?;
        self.finish(&started, counters)
    }

    /// Waits for a replay.
    pub(crate) fn finish(
        &mut self,
        started: &Started,
        counters: &Counters,
    ) -> Result<Outputs, DeviceError> {
        let &Started { index, live, read, logits, top, at } = started;
        self.argmax.clear();
        self.argmax.resize((live as usize * size_of::<i32>()).min(read.bytes as usize), 0);
        self.device.read(read, &mut self.argmax)?;
        let ns = at.elapsed().as_nanos() as u64;
        self.costs.record(index, ns);
        counters.device_ns.fetch_add(ns, Relaxed);
        let bucket = &counters.buckets[index];
        bucket.count(live, ns);
        if bucket.rows > live.saturating_mul(2) {
            counters.fallback_padding.note(1, || padding(bucket, live));
        }
        Ok(Outputs { logits, top, time: Duration::from_nanos(ns) })
    }

    /// The most probable token of `row` of the last replay; `None` where the device gave no token id.
    pub(crate) fn most_probable(&self, row: u32) -> Option<u32> {
        let (ids, _) = self.argmax.as_chunks::<4>();
        let id = u32::try_from(i32::from_le_bytes(*ids.get(row as usize)?)).ok();
        id.filter(|&id| (id as usize) < self.vocab_size)
    }

    /// Reads the `count` most likely tokens of `row` into `out`, in order: as many as [`Outputs::ranked`]
    /// at most. Those whose logit is no number, or `-inf`, are left out. Returns whether all are tokens
    /// of the vocabulary.
    ///
    /// # Errors
    /// When the replay failed.
    pub(crate) fn best(
        &mut self,
        from: Outputs,
        row: u32,
        count: u32,
        out: &mut Vec<Ranked>,
    ) -> Result<bool, DeviceError> {
        out.clear();
        let Some(top) = from.top.filter(|top| count <= top.count) else { return Ok(false) };
        let bytes = u64::from(count) * 4;
        let first = u64::from(row) * u64::from(top.count) * 4;
        self.top.clear();
        self.top.resize(2 * bytes as usize, 0);
        let (logits, ids) = self.top.split_at_mut(bytes as usize);
        for (port, to) in [(top.logits, &mut *logits), (top.ids, &mut *ids)] {
            let at = BufferRef { offset: port.offset + first, bytes, ..port };
            self.device.read(at, to)?;
        }
        let (logits, ids) = (logits.as_chunks::<4>().0, ids.as_chunks::<4>().0);
        for (&logit, &id) in logits.iter().zip(ids) {
            let (logit, id) = (f32::from_le_bytes(logit), i32::from_le_bytes(id));
            let token = u32::try_from(id).ok().filter(|&id| (id as usize) < self.vocab_size);
            let Some(token) = token else { return Ok(false) };
            if logit > f32::NEG_INFINITY {
                out.push(Ranked::new(logit, token));
            }
        }
        Ok(true)
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

/// A replay under way.
pub(crate) struct Started {
    /// Of the plan.
    index: usize,
    /// Rows that are no padding.
    live: u32,
    /// Has 4 bytes to read for each of the first rows.
    read: BufferRef,
    logits: BufferRef,
    top: Option<TopPorts>,
    at: Instant,
}

impl Started {
    fn new<D: Device>(
        device: &mut D,
        bound: &Bound<D::Graph>,
        live: u32,
        read: BufferRef,
    ) -> Result<Self, DeviceError> {
        let at = Instant::now();
        device.replay(&bound.graph)?;
        let &Bound { index, ref ports, .. } = bound;
        Ok(Self { index, live, read, logits: ports.logits, top: ports.top, at })
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
