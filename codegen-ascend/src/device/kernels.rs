//! Kernels of ours, loaded from the binaries of an artifact.

use super::{
    result::{AclError, check},
    safe::{Binary, Raw, Stream},
    session::Session,
};
use acl::sys;
use hal::DeviceError;
use std::{
    collections::{BTreeMap, HashMap},
    path::{Path, PathBuf},
    sync::Arc,
};

/// The line of a source that asks for all cores at once: cores that wait for each other must all
/// run.
pub const BATCH_MARKER: &str = "// precast: batch-schedule";

/// A kernel that can be launched.
#[derive(Clone, Debug)]
pub(crate) struct Kernel {
    function: Raw,
    /// Starts only when all its cores are free.
    batch: bool,
    binary: Arc<Binary>,
}

/// The kernels of an artifact.
#[derive(Debug)]
pub(crate) struct Kernels {
    sources: PathBuf,
    binaries: BTreeMap<String, PathBuf>,
    loaded: HashMap<String, Kernel>,
}

impl Kernels {
    /// Those whose sources are in `sources` and whose binaries are `binaries`, by name.
    pub(crate) fn new(sources: PathBuf, binaries: BTreeMap<String, PathBuf>) -> Self {
        Self { sources, binaries, loaded: HashMap::new() }
    }

    /// The kernel called `name`.
    pub(crate) fn get(
        &mut self,
        session: &Arc<Session>,
        name: &str,
    ) -> Result<Kernel, DeviceError> {
        if let Some(kernel) = self.loaded.get(name) {
            return Ok(kernel.clone());
        }
        let Some(path) = self.binaries.get(name) else {
            let (device, kernel) = (session.name(), name.to_owned());
            return Err(DeviceError::UnknownKernel { device, kernel });
        };
        let batch = asks_for_all_cores(&self.sources.join(format!("{name}.cpp")));
        let kernel = Binary::load(session, path).and_then(|binary| {
            Ok(Kernel { function: binary.function(name)?, batch, binary: Arc::new(binary) })
        });
        let kernel = kernel.map_err(|e| super::memory::failed(session, &e))?;
        self.loaded.insert(name.to_owned(), kernel.clone());
        Ok(kernel)
    }
}

fn asks_for_all_cores(source: &Path) -> bool {
    let text = std::fs::read_to_string(source).unwrap_or_default();
    text.lines().any(|line| line.trim() == BATCH_MARKER)
}

impl Kernel {
    /// Puts it on `stream` with `blocks` blocks. The arguments are put together by the runtime, which
    /// adds the hidden first one that kernels whose cores meet take.
    pub(crate) fn launch(
        &self,
        session: &Session,
        blocks: u32,
        arguments: &[u64],
        stream: &Stream,
    ) -> Result<(), AclError> {
        let api = &session.api;
        debug_assert!(Arc::strong_count(&self.binary) > 0, "the binary holds the function");
        let mut list = std::ptr::null_mut();
        // SAFETY: the function is of a loaded binary; `list` is written during the call.
        let code = unsafe { (api.aclrtKernelArgsInit)(self.function.0, &mut list) };
        check(api, "aclrtKernelArgsInit", code)?;
        for argument in arguments {
            let mut value = *argument;
            let mut handle = std::ptr::null_mut();
            // SAFETY: the value is copied during the call; `handle` is written during it.
            let code = unsafe {
                let value = (&raw mut value).cast();
                (api.aclrtKernelArgsAppend)(list, value, size_of::<u64>(), &mut handle)
            };
            check(api, "aclrtKernelArgsAppend", code)?;
        }
        // SAFETY: the list was begun above.
        let code = unsafe { (api.aclrtKernelArgsFinalize)(list) };
        check(api, "aclrtKernelArgsFinalize", code)?;
        let mut attributes = [sys::aclrtLaunchKernelAttr {
            id: sys::ACL_RT_LAUNCH_KERNEL_ATTR_SCHEM_MODE,
            value: sys::aclrtLaunchKernelAttrValue { rsv: [0; 4] },
        }];
        attributes[0].value.schemMode = u8::from(self.batch);
        let mut options = sys::aclrtLaunchKernelCfg {
            attrs: attributes.as_mut_ptr(),
            numAttrs: attributes.len(),
        };
        // SAFETY: function, stream and list exist; the options are read during the call.
        let code = unsafe {
            (api.aclrtLaunchKernelWithConfig)(
                self.function.0,
                blocks,
                stream.raw(),
                &mut options,
                list,
                std::ptr::null_mut(),
            )
        };
        check(api, "aclrtLaunchKernelWithConfig", code)
    }
}
