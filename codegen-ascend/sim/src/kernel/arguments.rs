//! Arguments of launches: values in slots of 8 bytes, and blocks of data that some of them point to.

use super::Function;
use crate::{
    error::{Result, code, fail},
    memory::{self, Allocation},
    world,
};
use std::{ffi::c_void, sync::Arc};

/// Bytes of a slot.
const SLOT: usize = 8;
/// What stands for the address at which cores meet. Kernels compiled for the host do not take it.
const SYNC_ADDRESS: u64 = 0xFF75_0000_0000;

/// The address at which cores meet.
pub(crate) fn sync_address() -> *mut c_void {
    SYNC_ADDRESS as *mut c_void
}

/// Arguments as a kernel of the host takes them: without the address at which cores meet.
pub(crate) fn without_sync_address(values: &[u64]) -> &[u64] {
    match values {
        [SYNC_ADDRESS, rest @ ..] => rest,
        _ => values,
    }
}

/// Reads arguments out of device memory.
///
/// # Errors
/// When the memory is gone.
pub(crate) fn read_device(start: u64, count: usize) -> std::result::Result<Vec<u64>, String> {
    if memory::find(start as *const c_void, (count * SLOT) as u64).is_none() {
        return Err(format!("the {count} arguments at {start:#x} lie in freed memory"));
    }
    // SAFETY: the memory is live with this many bytes; values need no alignment to be read so.
    Ok((0..count).map(|slot| unsafe { (start as *const u64).add(slot).read_unaligned() }).collect())
}

/// Data of a launch on the device, for as long as the launch may run.
pub(crate) struct Block(Allocation);

impl Block {
    /// Puts data on the device of the current context.
    ///
    /// # Errors
    /// 107002, 207018.
    pub(crate) fn new(data: &[u8]) -> Result<Self> {
        let device = world::lock().current()?.1.device;
        let bytes = data.len() as u64;
        let start = memory::allocate(device, bytes, memory::padded(bytes))?;
        // SAFETY: the memory was just made with this many bytes.
        unsafe { std::ptr::copy_nonoverlapping(data.as_ptr(), start.cast(), data.len()) };
        match memory::find(start, bytes) {
            Some(allocation) => Ok(Self(allocation)),
            None => fail(code::INTERNAL, "memory that was just made is not there"),
        }
    }

    pub(crate) fn address(&self) -> u64 {
        self.0.start
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        memory::free_this(&self.0);
    }
}

/// Arguments of a launch.
pub(crate) struct Values {
    slots: Vec<u64>,
    /// Slots that point into the block, and where.
    pointers: Vec<(usize, u64)>,
    block: Option<Block>,
}

impl Values {
    /// The slots, pointers filled in.
    pub(crate) fn read(&self) -> Vec<u64> {
        let mut slots = self.slots.clone();
        if let Some(block) = &self.block {
            for (slot, offset) in &self.pointers {
                slots[*slot] = block.address() + offset;
            }
        }
        slots
    }
}

/// Arguments that are put together one by one.
pub(crate) struct Arguments {
    pub(crate) function: Arc<Function>,
    bytes: Vec<u8>,
    /// Where each argument starts, and its size.
    params: Vec<(usize, usize)>,
    /// Slots that are to point to data.
    holders: Vec<Holder>,
    is_final: bool,
}

struct Holder {
    slot: usize,
    /// Whole words, so that the caller may write any type there.
    data: Vec<u64>,
    bytes: usize,
}

impl Arguments {
    pub(crate) fn new(function: Arc<Function>) -> Self {
        Self {
            function,
            bytes: Vec::new(),
            params: Vec::new(),
            holders: Vec::new(),
            is_final: false,
        }
    }

    /// Adds a value, in whole slots; its number tells it from the others.
    ///
    /// # Errors
    /// 107000 for no bytes or after the end.
    pub(crate) fn append(&mut self, value: &[u8]) -> Result<usize> {
        if self.is_final || value.is_empty() {
            return fail(code::PARAM, "an empty argument, or one after aclrtKernelArgsFinalize");
        }
        self.params.push((self.bytes.len(), value.len()));
        self.bytes.extend_from_slice(value);
        self.bytes.resize(self.bytes.len().next_multiple_of(SLOT), 0);
        Ok(self.params.len())
    }

    /// Adds a pointer to data that [`Arguments::holder`] gives room for.
    ///
    /// # Errors
    /// As [`Arguments::append`].
    pub(crate) fn append_holder(&mut self) -> Result<usize> {
        let param = self.append(&[0; SLOT])?;
        self.holders.push(Holder { slot: self.params[param - 1].0, data: Vec::new(), bytes: 0 });
        Ok(param)
    }

    /// Room for the data of a place holder; stays valid until the end.
    ///
    /// # Errors
    /// 107000 for no bytes or a number that is no place holder.
    pub(crate) fn holder(&mut self, param: usize, bytes: usize) -> Result<*mut c_void> {
        let slot = self.slot(param)?.0;
        match self.holders.iter_mut().find(|holder| holder.slot == slot) {
            Some(holder) if bytes > 0 => {
                holder.data = vec![0; bytes.div_ceil(SLOT)];
                holder.bytes = bytes;
                Ok(holder.data.as_mut_ptr().cast())
            }
            _ => {
                fail(code::PARAM, format!("argument {param} is no place holder for {bytes} bytes"))
            }
        }
    }

    /// Replaces a value by one of the same size.
    ///
    /// # Errors
    /// 107000.
    pub(crate) fn update(&mut self, param: usize, value: &[u8]) -> Result {
        let (start, bytes) = self.slot(param)?;
        if bytes != value.len() {
            return fail(
                code::PARAM,
                format!("argument {param} has {bytes} bytes, not {}", value.len()),
            );
        }
        self.bytes[start..start + bytes].copy_from_slice(value);
        self.is_final = false;
        Ok(())
    }

    fn slot(&self, param: usize) -> Result<(usize, usize)> {
        match param.checked_sub(1).and_then(|index| self.params.get(index)) {
            Some(found) => Ok(*found),
            None => fail(code::INVALID_HANDLE, format!("there is no argument {param}")),
        }
    }

    pub(crate) fn finalise(&mut self) {
        self.is_final = true;
    }

    /// The slots, with data put on the device.
    ///
    /// # Errors
    /// 107000 before the end or when a place holder has no data; 207018.
    pub(crate) fn resolve(&self) -> Result<Values> {
        if !self.is_final {
            return fail(
                code::PARAM,
                "the arguments of a launch were not ended by aclrtKernelArgsFinalize",
            );
        }
        let mut data = Vec::new();
        let mut pointers = Vec::new();
        for holder in &self.holders {
            if holder.bytes == 0 {
                return fail(code::PARAM, "a place holder has no data");
            }
            pointers.push((holder.slot / SLOT, data.len() as u64));
            let bytes = holder.data.iter().flat_map(|word| word.to_ne_bytes());
            data.extend(bytes);
            data.resize(data.len().next_multiple_of(32), 0);
        }
        let block = if data.is_empty() { None } else { Some(Block::new(&data)?) };
        Ok(Values { slots: words(&self.bytes), pointers, block })
    }
}

/// Bytes as slots; what is short of a slot is filled with zero.
fn words(bytes: &[u8]) -> Vec<u64> {
    let word = |chunk: &[u8]| {
        let mut word = [0; SLOT];
        word[..chunk.len()].copy_from_slice(chunk);
        u64::from_ne_bytes(word)
    };
    bytes.chunks(SLOT).map(word).collect()
}

/// A block of arguments of the host, copied to the device, with pointers into itself: each pair is
/// the place of a pointer and the place that it is to point to.
///
/// # Errors
/// 107000 for sizes that are no slots and places outside of the block; 207018.
pub(crate) fn from_host(bytes: &[u8], holders: &[(u32, u32)]) -> Result<Values> {
    if bytes.is_empty() || !bytes.len().is_multiple_of(SLOT) {
        return fail(code::PARAM, format!("{} bytes of arguments are not slots of 8", bytes.len()));
    }
    if holders.is_empty() {
        return Ok(Values { slots: words(bytes), pointers: Vec::new(), block: None });
    }
    // What is pointed to comes after the arguments themselves.
    let data = holders.iter().map(|(_, data)| *data as usize).min().unwrap_or(bytes.len());
    let is_inside = |(slot, data): &(u32, u32)| {
        (*slot as usize).is_multiple_of(SLOT)
            && *slot as usize + SLOT <= bytes.len()
            && (*data as usize) < bytes.len()
    };
    if !holders.iter().all(is_inside) || !data.is_multiple_of(SLOT) {
        return fail(
            code::PARAM,
            "a place holder is not a slot, or points outside of the arguments",
        );
    }
    let slots = words(&bytes[..data]);
    let pointers = holders.iter().map(|(slot, data)| (*slot as usize / SLOT, u64::from(*data)));
    let pointers: Vec<_> = pointers.collect();
    if pointers.iter().any(|(slot, _)| *slot >= slots.len()) {
        return fail(code::PARAM, "a place holder lies behind the data that it points to");
    }
    Ok(Values { slots, pointers, block: Some(Block::new(bytes)?) })
}
