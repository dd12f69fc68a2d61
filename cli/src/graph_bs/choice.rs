//! Why `--graph-bs auto` chose as it did.

use compiler::{Rates, SizeList, StepWork};
use serde::{Deserialize, Serialize};
use std::fmt;

/// Where the manifest's configuration keeps the choice.
pub(super) const KEY: &str = "graph_bs_auto";

/// A list and what speaks for it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Choice {
    pub(crate) sizes: Vec<u32>,
    pub(crate) expected_seconds: f64,
    /// With a plan for every size.
    pub(crate) every_size_seconds: f64,
    pub(crate) fewer: Option<Neighbour>,
    pub(crate) more: Option<Neighbour>,
    pub(crate) ceiling: u32,
    pub(crate) limit: u32,
    pub(crate) limited_by: String,
    pub(crate) multiple_of: u32,
    /// In words, or where it is from.
    pub(crate) histogram: String,
    /// Where measured times are from.
    pub(crate) times: Option<String>,
    pub(crate) work: StepWork,
    pub(crate) rates: Rates,
    /// Tokens of the sequences in `work`.
    pub(crate) context: u32,
}

/// The best list with one size fewer or more.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Neighbour {
    pub(crate) sizes: Vec<u32>,
    pub(crate) expected_seconds: f64,
}

impl From<SizeList> for Neighbour {
    fn from(SizeList { sizes, seconds }: SizeList) -> Self {
        Self { sizes, expected_seconds: seconds }
    }
}

impl Choice {
    /// That of an artifact, if its sizes were chosen.
    pub(crate) fn of(manifest: &artifact::Manifest) -> Option<Self> {
        serde_json::from_value(manifest.config.get(KEY)?.clone()).ok()
    }

    fn percent_above(&self, seconds: f64) -> f64 {
        (seconds / self.expected_seconds - 1.0) * 100.0
    }
}

fn joined(sizes: &[u32]) -> String {
    sizes.iter().map(u32::to_string).collect::<Vec<_>>().join(" ")
}

impl fmt::Display for Choice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "batch sizes (--graph-bs auto)")?;
        writeln!(f, "  chosen            {}", joined(&self.sizes))?;
        let multiples = match self.multiple_of {
            1 => String::new(),
            n => format!(", multiples of {n}"),
        };
        writeln!(
            f,
            "  of                at most {} up to {}{multiples} ({})",
            self.limit, self.ceiling, self.limited_by
        )?;
        writeln!(f, "  requests at once  {}", self.histogram)?;
        let Rates { bytes_per_second, flops_per_second, step_seconds } = self.rates;
        let experts: f64 = self.work.experts.iter().map(|e| e.bytes).sum();
        if let Some(source) = &self.times {
            writeln!(f, "  step times        {source}, by the model below where it has none")?;
        }
        writeln!(
            f,
            "  model             {:.1} MB of weights, {:.1} MB of experts, a row {:.1} kB at context {} and {:.1} Mflop; \
             {:.0} GB/s, {:.1} Tflop/s, {:.0} us a step",
            self.work.weight_bytes / 1e6,
            experts / 1e6,
            self.work.row_bytes / 1e3,
            self.context,
            self.work.row_flops / 1e6,
            bytes_per_second / 1e9,
            flops_per_second / 1e12,
            step_seconds * 1e6
        )?;
        writeln!(
            f,
            "  expected step     {:.4} ms; {:.2} % less with a plan for every size",
            self.expected_seconds * 1e3,
            -self.percent_above(self.every_size_seconds),
        )?;
        for (what, neighbour) in [("one fewer", &self.fewer), ("one more", &self.more)] {
            match neighbour {
                Some(n) => writeln!(
                    f,
                    "  {what:<17} {:+.2} %: {}",
                    self.percent_above(n.expected_seconds),
                    joined(&n.sizes)
                )?,
                None if what == "one more" => writeln!(f, "  {what:<17} gains nothing")?,
                None => {}
            }
        }
        Ok(())
    }
}
