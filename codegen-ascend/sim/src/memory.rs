//! Memory of the device and pinned memory of the host: really allocated, with the documented padding
//! and guard bytes beyond it.

use crate::{
    call, config,
    error::{Failure, Result, code, fail},
};
use std::{
    alloc::{Layout, alloc, dealloc},
    collections::BTreeMap,
    ffi::c_void,
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
};

/// Bytes before and after an allocation that nobody may write.
const GUARD_BYTES: usize = 64;
const GUARD: u8 = 0xC7;
/// What fresh device memory holds: not-a-number in every float format, so that a read of memory that
/// nobody wrote shows.
const FRESH: u8 = 0xFF;
/// Larger allocations stay as the system gives them, or filling them would cost real memory.
const FRESH_LIMIT: usize = 256 << 20;

/// Where memory lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// On the device with this number.
    Device(i32),
    /// On the host, pinned.
    Pinned,
}

/// A live allocation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Allocation {
    /// First byte.
    pub start: u64,
    /// Bytes asked for.
    pub bytes: u64,
    /// Bytes that kernels may touch: with the documented padding.
    pub usable: u64,
    /// Where it is.
    pub place: Place,
    /// Given by us, rather than registered by the caller.
    owned: bool,
    /// Tells it from others that had the same address before.
    serial: u64,
}

impl Allocation {
    fn contains(&self, start: u64, bytes: u64) -> bool {
        start >= self.start
            && start.checked_add(bytes).is_some_and(|end| end <= self.start + self.usable)
    }
}

static SERIAL: AtomicU64 = AtomicU64::new(1);

/// Live allocations by address.
static TABLE: Mutex<BTreeMap<u64, Allocation>> = Mutex::new(BTreeMap::new());

fn table() -> MutexGuard<'static, BTreeMap<u64, Allocation>> {
    TABLE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What `aclrtMalloc` reserves for `size` bytes: whole 32-byte blocks and one more, which kernels may
/// read beyond the end.
pub fn padded(size: u64) -> u64 {
    size.next_multiple_of(32) + 32
}

fn layout(usable: u64) -> Option<Layout> {
    let bytes = usize::try_from(usable).ok()?.checked_add(2 * GUARD_BYTES)?;
    // 128 and an offset of 64 make the start a multiple of 64 and of nothing more, so that code which
    // relies on more than is documented is found here.
    Layout::from_size_align(bytes, 2 * GUARD_BYTES).ok()
}

/// Allocates `size` bytes on a device, with `usable` of them open to kernels.
///
/// # Errors
/// 107000 for zero bytes, 207018 when the device is full.
pub(crate) fn allocate(device: i32, size: u64, usable: u64) -> Result<*mut c_void> {
    if size == 0 {
        return fail(code::PARAM, "an allocation of zero bytes");
    }
    let used = used(device);
    let total = config::memory_bytes();
    if usable > total.saturating_sub(used) {
        let message = format!(
            "device {device} is out of memory: {size} bytes asked for, {used} of {total} in use"
        );
        return fail(code::DEVICE_MEMORY, message);
    }
    reserve(Place::Device(device), size, usable).ok_or_else(|| {
        Failure::new(code::DEVICE_MEMORY, format!("no host memory for {size} bytes of the device"))
    })
}

/// Allocates pinned host memory.
///
/// # Errors
/// 107000 for zero bytes, 207001 when there is none.
pub(crate) fn allocate_pinned(size: u64) -> Result<*mut c_void> {
    if size == 0 {
        return fail(code::PARAM, "an allocation of zero bytes");
    }
    reserve(Place::Pinned, size, size).ok_or_else(|| {
        Failure::new(code::HOST_MEMORY, format!("no host memory for {size} pinned bytes"))
    })
}

fn reserve(place: Place, bytes: u64, usable: u64) -> Option<*mut c_void> {
    let layout = layout(usable)?;
    let base = from_system(layout)?;
    let inner = layout.size() - 2 * GUARD_BYTES;
    // SAFETY: guard, contents and guard lie in the allocation just made.
    let start = unsafe {
        base.write_bytes(GUARD, GUARD_BYTES);
        let start = base.add(GUARD_BYTES);
        if inner <= FRESH_LIMIT {
            start.write_bytes(FRESH, inner);
        }
        start.add(inner).write_bytes(GUARD, GUARD_BYTES);
        start
    };
    let serial = SERIAL.fetch_add(1, Ordering::Relaxed);
    let allocation = Allocation { start: start as u64, bytes, usable, place, owned: true, serial };
    table().insert(allocation.start, allocation);
    call::live(kind(place), 1);
    Some(start.cast())
}

/// Memory from the system. What is large takes room only where it is written, so that a device may have
/// more of it than the host.
fn from_system(layout: Layout) -> Option<*mut u8> {
    if layout.size() <= FRESH_LIMIT {
        // SAFETY: the layout is never of zero bytes.
        let base = unsafe { alloc(layout) };
        return (!base.is_null()).then_some(base);
    }
    let (access, how) = (
        libc::PROT_READ | libc::PROT_WRITE,
        libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
    );
    // SAFETY: a new mapping touches nothing that exists; pages are aligned more than any layout here.
    let base = unsafe { libc::mmap(std::ptr::null_mut(), layout.size(), access, how, -1, 0) };
    (base != libc::MAP_FAILED).then_some(base.cast())
}

/// # Safety
/// `base` is of [`from_system`] with this layout, and nobody uses it any more.
unsafe fn to_system(base: *mut u8, layout: Layout) {
    if layout.size() <= FRESH_LIMIT {
        // SAFETY: the caller's promise.
        unsafe { dealloc(base, layout) };
    } else {
        // SAFETY: the caller's promise.
        unsafe { libc::munmap(base.cast(), layout.size()) };
    }
}

fn kind(place: Place) -> &'static str {
    match place {
        Place::Device(_) => "device_memory",
        Place::Pinned => "pinned_memory",
    }
}

/// Frees memory. The guards are looked at one last time.
///
/// # Errors
/// 107000 when it is not the start of a live allocation of that kind, 507015 when somebody wrote
/// beyond it.
pub(crate) fn free(pointer: *mut c_void, pinned: bool) -> Result {
    let key = pointer as u64;
    let mut table = table();
    match table.get(&key) {
        Some(found) if found.owned && pinned == (found.place == Place::Pinned) => {}
        _ => {
            let what = if pinned { "pinned" } else { "device" };
            return fail(code::PARAM, format!("{key:#x} is not the start of live {what} memory"));
        }
    }
    let Some(found) = table.remove(&key) else { return Ok(()) };
    drop(table);
    release(&found)
}

/// Frees this allocation of ours, unless a reset has already.
pub(crate) fn free_this(allocation: &Allocation) {
    let mut table = table();
    if table.get(&allocation.start) == Some(allocation) {
        table.remove(&allocation.start);
        drop(table);
        // Its guards are looked at by synchronisations; here there is no one to tell.
        drop(release(allocation));
    }
}

fn release(found: &Allocation) -> Result {
    let verdict = check_guards(found);
    if let Some(layout) = layout(found.usable) {
        // SAFETY: it was made by `reserve` with this layout, and the table no longer knows it.
        unsafe { to_system((found.start as *mut u8).sub(GUARD_BYTES), layout) };
    }
    call::live(kind(found.place), -1);
    verdict
}

/// Looks at the guards of an allocation, and mends them so that a breach is told once.
fn check_guards(of: &Allocation) -> Result {
    let usable = usize::try_from(of.usable).unwrap_or(usize::MAX);
    let start = of.start as *mut u8;
    // SAFETY: the allocation is live, and its guards belong to it.
    let guards = unsafe { [start.sub(GUARD_BYTES), start.add(usable)] };
    for (guard, where_) in guards.into_iter().zip(["before the start", "beyond the end"]) {
        // SAFETY: as above; nobody else has business with these bytes.
        let bytes = unsafe { std::slice::from_raw_parts_mut(guard, GUARD_BYTES) };
        if let Some(at) = bytes.iter().position(|byte| *byte != GUARD) {
            bytes.fill(GUARD);
            let message = format!(
                "memory was written {where_} of the allocation of {} bytes at {:#x} ({} usable): byte {at} of the guard changed",
                of.bytes, of.start, of.usable
            );
            return fail(code::AICORE_EXCEPTION, message);
        }
    }
    Ok(())
}

/// Looks at the guards of every live allocation.
///
/// # Errors
/// 507015 naming the first allocation around which somebody wrote.
pub fn check_all() -> Result {
    let table = table();
    table.values().filter(|found| found.owned).try_for_each(check_guards)
}

/// The live allocation, of the device or pinned, that holds `bytes` bytes at `pointer`.
pub fn find(pointer: *const c_void, bytes: u64) -> Option<Allocation> {
    let start = pointer as u64;
    let table = table();
    let (_, found) = table.range(..=start).next_back()?;
    found.contains(start, bytes).then_some(*found)
}

/// Whether `pointer` lies in device memory, however long what it points to is.
pub fn is_device(pointer: *const c_void) -> bool {
    find(pointer, 0).is_some_and(|found| matches!(found.place, Place::Device(_)))
}

/// Every live allocation of every device, as start and usable bytes.
pub fn device_extents() -> Vec<(u64, u64)> {
    let table = table();
    let on_device = table.values().filter(|found| matches!(found.place, Place::Device(_)));
    on_device.map(|found| (found.start, found.usable)).collect()
}

/// Bytes in use on a device, padding included.
pub fn used(device: i32) -> u64 {
    let table = table();
    table
        .values()
        .filter(|found| found.place == Place::Device(device))
        .map(|found| found.usable)
        .sum()
}

/// Notes host memory of the caller as pinned.
///
/// # Errors
/// 107000 when it is null, empty or overlaps memory known already.
pub(crate) fn register(pointer: *mut c_void, bytes: u64) -> Result {
    let start = pointer as u64;
    let mut table = table();
    let overlaps = table
        .range(..start.saturating_add(bytes))
        .next_back()
        .is_some_and(|(_, found)| found.start + found.usable > start);
    if start == 0 || bytes == 0 || overlaps {
        return fail(code::PARAM, format!("{bytes} bytes at {start:#x} cannot be registered"));
    }
    table.insert(
        start,
        Allocation { start, bytes, usable: bytes, place: Place::Pinned, owned: false, serial: 0 },
    );
    Ok(())
}

/// Undoes [`register`].
///
/// # Errors
/// 107000 when it is not registered.
pub(crate) fn unregister(pointer: *mut c_void) -> Result {
    let mut table = table();
    match table.get(&(pointer as u64)) {
        Some(found) if !found.owned => {
            table.remove(&(pointer as u64));
            Ok(())
        }
        _ => fail(code::PARAM, format!("{pointer:p} is not registered")),
    }
}

/// Frees everything on a device (or, with `None`, everything there is) and says how many there were.
pub(crate) fn release_all(device: Option<i32>) -> u64 {
    let mut table = table();
    let all = std::mem::take(&mut *table);
    let (gone, kept): (BTreeMap<_, _>, BTreeMap<_, _>) = all
        .into_iter()
        .partition(|(_, found)| device.is_none_or(|device| found.place == Place::Device(device)));
    *table = kept;
    drop(table);
    for found in gone.values().filter(|found| found.owned) {
        // A breach of guards has no one left to be told to.
        drop(release(found));
    }
    gone.len() as u64
}
