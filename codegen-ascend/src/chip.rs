//! The chips that can be compiled for, as data. Sources: the platform files of toolkit 8.1 and the
//! Ascend C programming guide.

/// A chip.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Chip {
    /// Name as a compile target: `ascend910_93`.
    pub target: &'static str,
    /// What the runtime calls it begins with one of these.
    pub soc_prefixes: &'static [&'static str],
    /// Name as people know it.
    pub common_name: &'static str,
    /// Argument of the kernel compiler that names the architecture.
    pub npu_arch: &'static str,
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
    /// Second-level cache, in bytes.
    pub l2_bytes: u64,
    /// Device memory, in bytes.
    pub memory_bytes: u64,
    /// Device memory bandwidth in bytes a second.
    pub memory_bytes_per_second: u64,
    /// Products and sums of bf16 a second.
    pub bf16_flops: u64,
    /// Streams of a device, which all processes share.
    pub streams: u32,
    /// Events of a device.
    pub events: u32,
}

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;

/// What both generations have in common: cores of NPU architecture 2201.
const A2: Chip = Chip {
    target: "ascend910b",
    soc_prefixes: &["Ascend910B"],
    common_name: "Atlas A2 (910B)",
    npu_arch: "dav-2201",
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
};

/// Every chip that can be compiled for.
pub const CHIPS: &[Chip] = &[
    A2,
    Chip {
        target: "ascend910_93",
        soc_prefixes: &["Ascend910_93"],
        common_name: "Atlas A3 (910C), one die",
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
