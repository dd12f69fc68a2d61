//! How sources are put together: constants first, then parts of text that name them.

use super::{Declined, Kernel, NAME};
use std::fmt::Write;
use tensor::DType;

/// A source in the making.
#[derive(Clone, Debug, Default)]
pub(crate) struct Source {
    heading: String,
    constants: String,
    parts: Vec<&'static str>,
    function: Option<String>,
}

/// What every source of these modules begins with.
const SYNC: &str = include_str!("sync.h");

impl Source {
    /// A source whose first comment is `heading`.
    pub(crate) fn new(heading: &str) -> Self {
        let mut lines = String::new();
        for line in heading.lines() {
            let _ = writeln!(lines, "// {line}");
        }
        Self { heading: lines, ..Self::default() }
    }

    /// A whole number that the parts call `name`.
    pub(crate) fn size(mut self, name: &str, value: u64, what: &str) -> Self {
        let _ = writeln!(self.constants, "constexpr uint32_t {name} = {value}; // {what}");
        self
    }

    /// A number that the parts call `name`.
    pub(crate) fn number(mut self, name: &str, value: f32, what: &str) -> Self {
        let _ = writeln!(self.constants, "constexpr float {name} = {value:e}f; // {what}");
        self
    }

    /// Whether something is there.
    pub(crate) fn flag(mut self, name: &str, value: bool, what: &str) -> Self {
        let _ = writeln!(self.constants, "constexpr bool {name} = {value}; // {what}");
        self
    }

    /// An element type that the parts call `name`.
    pub(crate) fn element(
        mut self,
        name: &str,
        dtype: DType,
        what: &str,
    ) -> Result<Self, Declined> {
        let spelling = match dtype {
            DType::F32 => "float",
            DType::BF16 => "bfloat16_t",
            DType::F16 => "half",
            DType::I32 => "int32_t",
            DType::I8 => "int8_t",
            DType::U8 => "uint8_t",
            other => return Err(Declined(format!("{what} in {other}; kernels read f32 and bf16"))),
        };
        let _ = writeln!(self.constants, "using {name} = {spelling}; // {what}");
        Ok(self)
    }

    /// Text that uses what was declared before.
    pub(crate) fn part(mut self, text: &'static str) -> Self {
        self.parts.push(text);
        self
    }

    /// The function [`NAME`], where it is no part.
    pub(crate) fn entry(mut self, text: &str) -> Self {
        self.function = Some(text.to_owned());
        self
    }

    /// The kernel. The last part defines the function [`NAME`], unless [`Self::entry`] does.
    pub(crate) fn kernel(&self, stem: &str) -> Kernel {
        let Self { heading, constants, parts, function } = self;
        let head = "#include \"kernel_operator.h\"\n\nusing namespace AscendC;\n";
        let mut text = format!("{heading}{head}\nnamespace {{\n{constants}\n{SYNC}\n");
        let (last, before) = match function {
            Some(function) => (function.as_str(), parts.as_slice()),
            None => parts.split_last().map_or(("", [].as_slice()), |(l, before)| (*l, before)),
        };
        for part in before {
            let _ = writeln!(text, "{part}");
        }
        let _ = write!(text, "}} // namespace\n\n{last}");
        debug_assert!(text.contains(NAME), "the last part defines the function");
        Kernel::new(stem, &text)
    }
}

/// Floats of work memory that the largest of `elements` floats and its place take: three rounds, each
/// with a value and a place for every 64 that it looks at, in whole blocks of eight. A sum or the
/// largest alone takes less.
pub(crate) fn reduction_work(elements: u64) -> u64 {
    let results = |n: u64| n.div_ceil(64) * 2;
    let (first, second) = (results(elements), results(results(elements)));
    [first, second, results(second)].map(|n| n.next_multiple_of(8)).iter().sum()
}

/// `f32` or `bf16`, which kernels compute with.
pub(crate) fn float(dtype: DType, what: &str) -> Result<u64, Declined> {
    match dtype {
        DType::F32 => Ok(4),
        DType::BF16 => Ok(2),
        other => Err(Declined(format!("{what} is {other}; this kernel takes f32 and bf16"))),
    }
}

/// That `condition` holds, or the reason against the kernel.
pub(crate) fn require(condition: bool, reason: impl FnOnce() -> String) -> Result<(), Declined> {
    if condition { Ok(()) } else { Err(Declined(reason())) }
}

/// Local memory of a vector core, buffer by buffer.
#[derive(Clone, Debug, Default)]
pub(crate) struct Budget(Vec<(&'static str, u64)>);

impl Budget {
    /// Adds a buffer; buffers are multiples of 32 bytes.
    pub(crate) fn buffer(mut self, name: &'static str, bytes: u64) -> Self {
        self.0.push((name, bytes.next_multiple_of(32)));
        self
    }

    /// Bytes of all buffers.
    pub(crate) fn bytes(&self) -> u64 {
        self.0.iter().map(|(_, bytes)| bytes).sum()
    }

    /// That they fit `limit` bytes.
    pub(crate) fn fits(&self, limit: u64) -> Result<(), Declined> {
        require(self.bytes() <= limit, || {
            let list: Vec<String> =
                self.0.iter().map(|(name, bytes)| format!("{name} {bytes}")).collect();
            let (bytes, list) = (self.bytes(), list.join(", "));
            format!("buffers of {bytes} bytes ({list}) do not fit a local memory of {limit}")
        })
    }
}
