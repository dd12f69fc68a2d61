//! What a binary is and which functions it has, read from its headers.

use crate::error::{Result, code, fail};

/// Machine number of device binaries.
const DEVICE_MACHINE: u16 = 0x1029;
/// Kind of section that lists the symbols a library offers.
const DYNAMIC_SYMBOLS: u32 = 11;
/// Bytes of a section header and of a symbol.
const SECTION_BYTES: usize = 64;
const SYMBOL_BYTES: usize = 24;

/// Names of the functions that a host library offers.
///
/// # Errors
/// 507008 for a binary of the device; 107000 for what is no library of 64 bits at all.
pub(crate) fn functions(name: &str, bytes: &[u8]) -> Result<Vec<String>> {
    let no_library = || fail(code::PARAM, format!("{name} is no ELF library of 64 bits"));
    if bytes.get(..6) != Some(b"\x7fELF\x02\x01") {
        return no_library();
    }
    let Some(machine) = u16_at(bytes, 18) else { return no_library() };
    if machine == DEVICE_MACHINE {
        let message = format!(
            "{name} is compiled for the device; the software device runs kernels that the host's compiler made with the kernel shim"
        );
        return fail(code::SOC_VERSION, message);
    }
    match symbols(bytes) {
        Some(symbols) => Ok(symbols),
        None => no_library(),
    }
}

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_le_bytes(bytes.get(at..at.checked_add(2)?)?.try_into().ok()?))
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(bytes.get(at..at.checked_add(4)?)?.try_into().ok()?))
}

fn size_at(bytes: &[u8], at: usize) -> Option<usize> {
    let value = u64::from_le_bytes(bytes.get(at..at.checked_add(8)?)?.try_into().ok()?);
    usize::try_from(value).ok()
}

/// Contents of section `index`, its kind and the number of the section it refers to.
fn section(bytes: &[u8], index: usize) -> Option<(&[u8], u32, usize)> {
    let at = size_at(bytes, 0x28)?.checked_add(index.checked_mul(SECTION_BYTES)?)?;
    let kind = u32_at(bytes, at.checked_add(4)?)?;
    let (start, size) =
        (size_at(bytes, at.checked_add(0x18)?)?, size_at(bytes, at.checked_add(0x20)?)?);
    let link = u32_at(bytes, at.checked_add(0x28)?)? as usize;
    // Sections without contents may lie anywhere.
    let contents = bytes.get(start..start.checked_add(size)?).unwrap_or_default();
    Some((contents, kind, link))
}

fn symbols(bytes: &[u8]) -> Option<Vec<String>> {
    let count = usize::from(u16_at(bytes, 0x3C)?);
    let (table, _, link) = (0..count)
        .filter_map(|index| section(bytes, index))
        .find(|(_, kind, _)| *kind == DYNAMIC_SYMBOLS)?;
    let (names, ..) = section(bytes, link)?;
    let name_of = |symbol: &[u8]| {
        let is_function = symbol[4] & 0xF == 2;
        let is_defined = u16_at(symbol, 6)? != 0;
        let name = names.get(u32_at(symbol, 0)? as usize..)?;
        let name = &name[..name.iter().position(|byte| *byte == 0)?];
        (is_function && is_defined).then(|| String::from_utf8_lossy(name).into_owned())
    };
    Some(table.chunks_exact(SYMBOL_BYTES).filter_map(name_of).collect())
}
