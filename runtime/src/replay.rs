//! A step as the device sees it: inputs written, a graph replayed, outputs read.

use crate::{
    bind::{Bound, Graphs},
    inputs::{Input, Layout, Row},
    memory::Held,
    stats::{BucketCounters, Counters},
};
use artifact::{BufferRef, Manifest};
use hal::{Device, DeviceError};

/// A piece of a prompt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Chunk {
    /// Context tier and rows of the graph.
    pub(crate) size: (u32, u32),
    /// Tokens it feeds; rows past them are padding.
    pub(crate) live: u32,
}

/// Where the outputs of the last replay lie. Valid until the next replay.
#[derive(Clone, Copy)]
pub(crate) struct Outputs {
    logits: BufferRef,
    argmax: BufferRef,
}

/// The device, its graphs, and the bytes on their way to and from it.
pub(crate) struct Replayer<D: Device> {
    device: D,
    graphs: Graphs<D::Graph>,
    layout: Layout,
    vocab_size: usize,
    staging: Vec<u8>,
    logits: Vec<u8>,
}

impl<D: Device> Replayer<D> {
    pub(crate) fn new(device: D, graphs: Graphs<D::Graph>, manifest: &Manifest) -> Self {
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
        let staging = widest.saturating_mul(size_of::<i32>()).min(arena_bytes);
        Self {
            device,
            graphs,
            layout: Layout::new(manifest),
            vocab_size,
            staging: Vec::with_capacity(staging),
            logits: vec![0; vocab_size * size_of::<f32>()],
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

    /// The most of `rows` rows that one decode replay takes when the longest holds `context`
    /// tokens.
    pub(crate) fn decode_rows(&self, context: u32, rows: u32) -> u32 {
        self.graphs.decode.most(context, rows)
    }

    /// The most tokens that one prefill replay feeds.
    pub(crate) fn max_chunk(&self) -> u32 {
        self.graphs.prefill.max_rows()
    }

    pub(crate) fn head_rows(&self) -> u32 {
        self.graphs.head.max_rows()
    }

    /// The most rows that any replay gives logits for.
    pub(crate) fn max_output_rows(&self) -> u32 {
        self.graphs.head.max_rows().max(self.graphs.decode.max_rows())
    }

    /// The next piece of `left` tokens from position `start` on: the smallest graph that takes them
    /// all when no more than a third of it is padding, else the largest that they fill. (Every
    /// replay reads all weights once, so several small ones cost more than a little padding.)
    pub(crate) fn chunk(&self, start: u32, left: u32) -> Chunk {
        let prefill = &self.graphs.prefill;
        let whole = prefill.fit(start + left, left);
        let filled = prefill.filled(start, left);
        match (whole, filled) {
            (Some(size), Some(_)) if u64::from(size.1) * 2 <= u64::from(left) * 3 => {
                Chunk { size, live: left }
            }
            (_, Some(size)) => Chunk { size, live: size.1 },
            (whole, None) => {
                let size = whole.expect("admission keeps positions inside the longest tier");
                Chunk { size, live: left }
            }
        }
    }

    /// Feeds one token of each sequence. `context` is the most tokens that a row attends to.
    pub(crate) fn decode<'a>(
        &mut self,
        context: u32,
        rows: impl ExactSizeIterator<Item = Row<'a>> + Clone,
        counters: &Counters,
    ) -> Result<Outputs, DeviceError> {
        let live = rows.len() as u32;
        let size = self
            .graphs
            .decode
            .fit(context, live)
            .expect("the caller asks `decode_rows` and admission keeps contexts inside a tier");
        let bound = self.graphs.decode.get(size);
        let (tier, total) = size;
        let padding = (total - live) as usize;
        let width = (tier / self.layout.block_tokens) as usize;
        let mut input = Input { device: &mut self.device, staging: &mut self.staging };
        let padded = (rows, padding);
        input.feed(&bound.ports, &self.layout, padded.clone(), padded, width);
        replay(&mut self.device, bound, live, &counters.buckets)
    }

    /// Feeds `tokens`, `chunk.live` of one sequence from position `start` on, and leaves their hidden states for
    /// [`Replayer::head`].
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

        replay(&mut self.device, bound, chunk.live, &counters.buckets).map(|_| ())
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
        replay(&mut self.device, bound, count, &counters.buckets)
    }

    /// The most probable token of each of the first `out.len()` rows; `None` where the device gave
    /// no token id.
    ///
    /// # Errors
    /// When the replay failed.
    pub(crate) fn argmax(
        &mut self,
        from: Outputs,
        out: &mut [Option<u32>],
    ) -> Result<(), DeviceError> {
        self.staging.clear();
        self.staging.resize(out.len() * size_of::<i32>(), 0);
        self.device.read(from.argmax, &mut self.staging)?;
        let (ids, _) = self.staging.as_chunks::<4>();
        for (token, id) in out.iter_mut().zip(ids) {
            let id = usize::try_from(i32::from_le_bytes(*id)).ok();
            *token = id.filter(|&id| id < self.vocab_size).map(|id| id as u32);
        }
        Ok(())
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
        let bytes = self.logits.len() as u64;
        let at =
            BufferRef { offset: from.logits.offset + u64::from(row) * bytes, bytes, ..from.logits };
        self.device.read(at, &mut self.logits)?;
        let (values, _) = self.logits.as_chunks::<4>();
        for (out, value) in out.iter_mut().zip(values) {
            *out = f32::from_le_bytes(*value);
        }
        Ok(())
    }
}

fn replay<D: Device>(
    device: &mut D,
    bound: &Bound<D::Graph>,
    live: u32,
    buckets: &[BucketCounters],
) -> Result<Outputs, DeviceError> {
    device.replay(&bound.graph)?;
    buckets[bound.index].count(live);
    Ok(Outputs { logits: bound.ports.logits, argmax: bound.ports.argmax })
}
