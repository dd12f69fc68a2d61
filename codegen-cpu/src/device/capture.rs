//! A capture in progress: calls are bound to addresses, those of a chain once for each thread.

use super::InstructionSet;
use super::graph::{Chain, Launch, Work};
use super::memory::{Mapping, Memory};
use crate::kernels::{
    self, Binder, Run, Scratch, Use, check_chain,
    external::{self, ExternalKernels},
    share,
};
use artifact::{BufferRef, Scalar, Space};
use hal::DeviceError;
use std::sync::Arc;

/// The launches so far.
pub(super) struct Capture {
    pub(super) launches: Vec<Launch>,
    chain: Option<OpenChain>,
}

/// A chain in progress.
struct OpenChain {
    chain: Chain,
    weights: Vec<(u64, u64)>,
    /// What each call does with its buffers, as one of the threads runs it.
    uses: Vec<Vec<Use>>,
    /// Bytes of private memory of a thread.
    private_bytes: usize,
}

/// What calls are bound to.
pub(super) struct Binding<'a> {
    pub(super) set: InstructionSet,
    pub(super) memory: &'a Memory,
    pub(super) external: &'a ExternalKernels,
    /// Name of the device.
    pub(super) device: &'a dyn Fn() -> String,
}

impl Capture {
    pub(super) fn new() -> Self {
        Self { launches: Vec::new(), chain: None }
    }

    pub(super) fn in_chain(&self) -> bool {
        self.chain.is_some()
    }

    /// Begins a chain whose threads have parts of `private`, `private_bytes` each.
    pub(super) fn begin_chain(
        &mut self,
        (rows, threads): (usize, usize),
        private: Arc<Mapping>,
        private_bytes: usize,
    ) {
        let calls = (0..threads).map(|_| Vec::new()).collect();
        let chain = Chain { rows, calls, _private: private };
        let open = OpenChain { chain, weights: Vec::new(), uses: Vec::new(), private_bytes };
        self.chain = Some(open);
    }

    /// Adds a call.
    ///
    /// # Errors
    /// [`DeviceError::UnknownKernel`], [`DeviceError::BadCall`].
    pub(super) fn launch(
        &mut self,
        binding: &Binding<'_>,
        kernel: &str,
        args: &[BufferRef],
        scalars: &[Scalar],
    ) -> Result<(), DeviceError> {
        let weights = args.iter().filter(|at| at.space == Space::Weights);
        let weights = weights.map(|at| (at.offset, at.bytes));
        let Some(open) = &mut self.chain else {
            let (call, _) = binding.bind(kernel, args, scalars, None)?;
            self.add(Work::Call(call), weights.collect());
            return Ok(());
        };
        let bad = |why: &str| DeviceError::BadCall { kernel: kernel.into(), why: why.into() };
        if !kernels::row_wise().any(|name| name == kernel) {
            return Err(bad("it does not run row by row and cannot be in a chain"));
        }
        let (rows, threads) = (open.chain.rows, open.chain.calls.len());
        let mut uses = Vec::new();
        for (thread, calls) in open.chain.calls.iter_mut().enumerate() {
            if share(rows, thread, threads).is_empty() {
                continue;
            }
            let start = open.chain._private.ptr().wrapping_add(thread * open.private_bytes);
            let (call, used) =
                binding.bind(kernel, args, scalars, Some((start, open.private_bytes)))?;
            if call.scratch().shared > 0 {
                return Err(bad("it has working memory for all threads and cannot be in a chain"));
            }
            calls.push(call);
            uses = used;
        }
        open.weights.extend(weights);
        open.uses.push(uses);
        Ok(())
    }

    /// Ends the chain.
    ///
    /// # Errors
    /// [`DeviceError::Misuse`] when none is open, [`DeviceError::BadCall`] when a row of it could
    /// see another.
    pub(super) fn end_chain(&mut self) -> Result<(), DeviceError> {
        let open = self.chain.take().ok_or(DeviceError::Misuse("no chain is open"))?;
        check_chain(open.chain.rows, &open.uses)
            .map_err(|why| DeviceError::BadCall { kernel: "a chain".into(), why })?;
        self.add(Work::Chain(open.chain), open.weights);
        Ok(())
    }

    fn add(&mut self, work: Work, weights: Vec<(u64, u64)>) {
        self.launches.push(Launch { work, weights, upcoming: Vec::new() });
    }

    /// The most working memory that any call wants.
    pub(super) fn scratch(&self) -> Scratch {
        self.launches.iter().map(Launch::scratch).fold(Scratch::default(), Scratch::most)
    }
}

impl Binding<'_> {
    /// Binds a call; `private` is the private memory of the thread that runs it.
    fn bind(
        &self,
        kernel: &str,
        args: &[BufferRef],
        scalars: &[Scalar],
        private: Option<(*mut u8, usize)>,
    ) -> Result<(Box<dyn Run>, Vec<Use>), DeviceError> {
        let bad = |why| DeviceError::BadCall { kernel: kernel.into(), why };
        let mut buffers = Vec::with_capacity(args.len());
        for (i, &at) in args.iter().enumerate() {
            let buffer = match (at.space, private) {
                (Space::Private, None) => {
                    return Err(bad(format!("buffer {i} is private memory outside a chain")));
                }
                (Space::Private, Some((start, bytes))) => super::memory::private(start, bytes, at),
                _ => self.memory.resolve(at),
            };
            let space = match at.space {
                Space::Private => private.map_or(0, |(_, bytes)| bytes),
                space => self.memory.bytes(space),
            };
            buffers.push(buffer.ok_or_else(|| bad(outside(i, at, space)))?);
        }
        let mut binder = Binder::new(&buffers, scalars);
        let bound = match kernel.strip_prefix(external::PREFIX) {
            Some(kind) => {
                let known = self.external.get(kind).cloned();
                let missing = || DeviceError::MissingExtension { kind: kind.into() };
                external::bind(known.ok_or_else(missing)?, &mut binder)
            }
            None => kernels::bind(self.set, kernel, &mut binder).ok_or_else(|| {
                let (device, kernel) = ((self.device)(), kernel.into());
                DeviceError::UnknownKernel { device, kernel }
            })?,
        };
        Ok((bound.map_err(bad)?, binder.into_uses()))
    }
}

/// Refuses a buffer outside its space.
fn outside(index: usize, at: BufferRef, space: usize) -> String {
    format!(
        "buffer {index} ends at byte {} of {:?}, which has {space}",
        u128::from(at.offset) + u128::from(at.bytes),
        at.space
    )
}
