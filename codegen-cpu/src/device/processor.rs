//! What differs between processors that have the same instructions.

use std::sync::OnceLock;

/// Whether memory that is read as fast as it comes is better asked for into the first-level cache than into the
/// second: so on AMD's family 1Ah (Zen 5). On a Zen 4 such requests seem to keep the loads of what is in use waiting;
/// attention over codes takes a fifth longer, and one row of compact weights too.
pub(crate) fn asks_near() -> bool {
    static ZEN_5: OnceLock<bool> = OnceLock::new();
    *ZEN_5.get_or_init(|| amd_family() == Some(0x1a))
}

/// The family of an AMD processor.
#[cfg(target_arch = "x86_64")]
pub(super) fn amd_family() -> Option<u32> {
    use std::arch::x86_64::__cpuid;
    let vendor = __cpuid(0);
    let name = [vendor.ebx, vendor.edx, vendor.ecx].map(u32::to_le_bytes).concat();
    (name == b"AuthenticAMD").then(|| family(__cpuid(1).eax))
}

#[cfg(not(target_arch = "x86_64"))]
pub(super) fn amd_family() -> Option<u32> {
    None
}

/// The family in `CPUID.1:EAX`: a base in bits 8 to 11, to which bits 20 to 27 are added where it is 15 (AMD64
/// Architecture Programmer's Manual, volume 3, appendix E).
#[cfg_attr(not(target_arch = "x86_64"), allow(dead_code))]
fn family(eax: u32) -> u32 {
    let (base, more) = (eax >> 8 & 0xf, eax >> 20 & 0xff);
    if base == 0xf { base + more } else { base }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_family_is_a_base_and_what_exceeds_it() {
        assert_eq!(family(0x00a1_0f11), 0x19, "a Zen 4 (Genoa)");
        assert_eq!(family(0x00b0_0f21), 0x1a, "a Zen 5 (Turin)");
        assert_eq!(family(0x0000_06f0), 6, "a base alone");
        assert_eq!(family(0x00a0_06f0), 6, "the rest counts only above 15");
    }
}
