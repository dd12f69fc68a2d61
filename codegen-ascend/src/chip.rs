//! The chips that can be compiled for, as data. Sources: the platform files of toolkit 8.1, the
//! Ascend C programming guide and the runtime's reference of streams, events and memory.
//!
//! Which library operators exist in which release of the toolkit is in the table of the `acl` crate
//! ([`acl::Signature::since`]); [`acl::Release`] names the releases.

/// A chip.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Chip {
    /// Name as a compile target: `ascend910_93`.
    pub target: &'static str,
    /// What the runtime calls it begins with one of these.
    pub soc_prefixes: &'static [&'static str],
    /// Name as people know it.
    pub common_name: &'static str,
    /// Members that the runtime tells apart, for reports and cost models.
    pub variants: &'static [Variant],
    /// Argument of the kernel compiler that names the architecture.
    pub npu_arch: &'static str,
    /// The same for compilers before 8.5, without the `-vec` or `-cube` of the core type.
    pub legacy_arch: &'static str,
    /// Cores with a matrix unit. The least of all members, so that a launch fits any of them.
    pub cube_cores: u32,
    /// Cores with a vector unit; each cube core works with two of them.
    pub vector_cores: u32,
    /// Local memory of a vector core that kernels may use, in bytes.
    pub ub_bytes: u64,
    /// First-level memory of a cube core, in bytes.
    pub l1_bytes: u64,
    /// Left operands of the matrix unit, in bytes.
    pub l0a_bytes: u64,
    /// Right operands of the matrix unit, in bytes.
    pub l0b_bytes: u64,
    /// Accumulators of the matrix unit, in bytes.
    pub l0c_bytes: u64,
    /// Second-level cache, in bytes. The least of the members with the memory below.
    pub l2_bytes: u64,
    /// Device memory, in bytes.
    pub memory_bytes: u64,
    /// Device memory bandwidth in bytes a second.
    pub memory_bytes_per_second: u64,
    /// Products and sums of bf16 a second. Of int8 there are twice as many.
    pub bf16_flops: u64,
    /// Streams of a device, which all processes share.
    pub streams: u32,
    /// Events of a device.
    pub events: u32,
    /// Tasks that the queue of a stream holds before a capture goes on in another one.
    pub queue_tasks: u32,
    /// Streams that recorded plans may own together where each keeps its own (toolkits before 8.5,
    /// drivers before 25.5.1), a margin for the collectives of other processes left.
    pub recorded_streams: u32,
    /// What addresses and sizes must be multiples of.
    pub align: Align,
}

/// Alignment rules, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Align {
    /// Starts of buffers in device memory.
    pub buffer: u64,
    /// Lengths of buffers in device memory are rounded up to this.
    pub buffer_length: u64,
    /// What kernels may read past a rounded buffer.
    pub over_read: u64,
    /// Addresses in local memory, and lengths of plain copies.
    pub local: u64,
    /// Operands of the matrix unit.
    pub fractal: u64,
    /// Bursts from device memory are fastest where they begin at a multiple of this.
    pub burst: u64,
}

/// A member of a family of chips.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Variant {
    /// What the runtime calls it.
    pub soc: &'static str,
    /// Cores with a matrix unit.
    pub cube_cores: u32,
    /// Clock of the cores.
    pub mhz: u32,
    /// Device memory in GiB.
    pub memory_gib: u32,
}

const fn variant(soc: &'static str, cube_cores: u32, mhz: u32, memory_gib: u32) -> Variant {
    Variant { soc, cube_cores, mhz, memory_gib }
}

impl Variant {
    /// Products and sums of bf16 a second: 16 x 16 x 16 of each a cycle and core.
    pub fn bf16_flops(&self) -> u64 {
        8192 * u64::from(self.cube_cores) * u64::from(self.mhz) * 1_000_000
    }
}

impl Chip {
    /// Vector cores for each cube core.
    pub const fn core_ratio(&self) -> u32 {
        self.vector_cores / self.cube_cores
    }

    /// Bytes that a buffer of `bytes` takes in memory that is divided by us: the documented rule for
    /// second-level allocators.
    pub const fn slot_bytes(&self, bytes: u64) -> u64 {
        bytes.next_multiple_of(self.align.buffer_length) + self.align.over_read
    }
}

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;

/// What both generations have in common: cores of NPU architecture 2201.
const A2: Chip = Chip {
    target: "ascend910b",
    soc_prefixes: &["Ascend910B"],
    common_name: "Atlas A2 (910B)",
    variants: &[
        variant("Ascend910B1", 24, 1850, 64),
        variant("Ascend910B2", 24, 1800, 64),
        variant("Ascend910B3", 20, 1800, 64),
        variant("Ascend910B4", 20, 1500, 32),
    ],
    npu_arch: "dav-2201",
    legacy_arch: "dav-c220",
    cube_cores: 20,
    vector_cores: 40,
    // 192 KiB, of which the compiler keeps 8 KiB and the framework 256 bytes.
    ub_bytes: 184 * KIB - 256,
    l1_bytes: 512 * KIB - 256,
    l0a_bytes: 64 * KIB,
    l0b_bytes: 64 * KIB,
    l0c_bytes: 128 * KIB,
    l2_bytes: 192 * MIB,
    memory_bytes: 64 * GIB,
    memory_bytes_per_second: 1_600_000_000_000,
    bf16_flops: 294_900_000_000_000,
    streams: 1984,
    events: 65536,
    queue_tasks: 2048,
    recorded_streams: 1800,
    align: Align {
        buffer: 64,
        buffer_length: 32,
        over_read: 32,
        local: 32,
        fractal: 512,
        burst: 512,
    },
};

/// Every chip that can be compiled for.
pub const CHIPS: &[Chip] = &[
    A2,
    Chip {
        target: "ascend910_93",
        soc_prefixes: &["Ascend910_93"],
        common_name: "Atlas A3 (910C), one die",
        variants: &[
            variant("Ascend910_9391", 24, 1850, 64),
            variant("Ascend910_9392", 24, 1850, 64),
            variant("Ascend910_9381", 24, 1800, 64),
            variant("Ascend910_9382", 24, 1800, 64),
            variant("Ascend910_9372", 20, 1800, 64),
            variant("Ascend910_9362", 20, 1500, 32),
        ],
        bf16_flops: 353_900_000_000_000,
        ..A2
    },
];

/// The chip of a compile target.
pub fn chip(target: &str) -> Option<&'static Chip> {
    CHIPS.iter().find(|c| c.target == target)
}

/// The chip that the runtime calls `soc`.
pub fn chip_of_soc(soc: &str) -> Option<&'static Chip> {
    CHIPS.iter().find(|c| c.soc_prefixes.iter().any(|p| soc.starts_with(p)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_chip_says_holds_for_its_members() {
        for chip in CHIPS {
            assert_eq!(chip.core_ratio() * chip.cube_cores, chip.vector_cores);
            for v in chip.variants {
                assert_eq!(chip_of_soc(v.soc), Some(chip), "{}", v.soc);
                assert!(v.cube_cores >= chip.cube_cores, "{}", v.soc);
            }
            let near =
                |v: &&Variant| v.bf16_flops().abs_diff(chip.bf16_flops) < chip.bf16_flops / 1000;
            assert!(chip.variants.iter().any(|v| near(&v)), "{}", chip.target);
        }
        assert_eq!(
            chip("ascend910b").and_then(|c| chip_of_soc(c.variants[0].soc)),
            chip("ascend910b")
        );
        assert_eq!(chip("ascend310p"), None);
    }

    /// `ceil32(n) + 32`, as `aclrtMalloc` gives.
    #[test]
    fn slots_hold_what_kernels_read_past_the_end() {
        assert_eq!([0, 1, 32, 33].map(|n| A2.slot_bytes(n)), [32, 64, 64, 96]);
    }
}
