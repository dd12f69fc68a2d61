//! What a pipeline did, for people and for `--require-match`.

use crate::{places::summarise, rewrite::NearMiss};
use std::{collections::BTreeMap, fmt, time::Duration};

/// What one pass did to one function.
#[derive(Clone, Debug)]
pub struct PassReport {
    /// Place in the pipeline, from 0.
    pub index: usize,
    /// Pass.
    pub pass: &'static str,
    /// Function.
    pub func: String,
    /// Replacements made.
    pub fired: usize,
    /// Time spent, verification included.
    pub took: Duration,
    /// Matches that a guard declined.
    pub near_misses: Vec<NearMiss>,
    /// Where the last replacement was made: the op that it began at, and its first result.
    pub last_root: Option<String>,
}

/// A step of the pipeline, whether it ran or not.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StepReport {
    /// Place in the pipeline, from 0.
    pub index: usize,
    /// Pass.
    pub pass: &'static str,
    /// [`crate::Rewrite::source`] of the pass.
    pub source: &'static str,
    /// Whether the options left it out.
    pub disabled: bool,
}

/// What a pipeline did.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// Every step in order.
    pub steps: Vec<StepReport>,
    /// What those that ran did, in the order they ran.
    pub passes: Vec<PassReport>,
}

/// A pass that fired less often than it had to.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("pass `{pass}` fired {fired} times, at least {least} are required{why}")]
pub struct TooFewMatches {
    /// Pass.
    pub pass: String,
    /// Replacements made in all functions.
    pub fired: usize,
    /// Replacements required.
    pub least: usize,
    /// What kept it from firing, on lines of their own.
    pub why: String,
}

impl Report {
    /// The same without times, so that its text depends on the program alone.
    pub fn without_times(mut self) -> Self {
        for p in &mut self.passes {
            p.took = Duration::ZERO;
        }
        self
    }

    /// Replacements made by `pass` in all functions.
    pub fn fired(&self, pass: &str) -> usize {
        self.passes.iter().filter(|p| p.pass == pass).map(|p| p.fired).sum()
    }

    /// Holds `pass` to at least `least` replacements in all functions together.
    ///
    /// # Errors
    /// [`TooFewMatches`] with the near misses of the pass.
    pub fn require(&self, pass: &str, least: usize) -> Result<(), TooFewMatches> {
        let fired = self.fired(pass);
        if fired >= least {
            return Ok(());
        }
        let steps = || self.steps.iter().filter(|s| s.pass == pass);
        let misses: Vec<String> = steps().flat_map(|s| self.near_misses(s.index)).collect();
        let why = if steps().next().is_none() {
            "; it is not in this pipeline".to_owned()
        } else if steps().all(|s| s.disabled) {
            "; it was disabled".to_owned()
        } else if misses.is_empty() {
            "; nothing else came near its pattern".to_owned()
        } else {
            format!(":\n{}", misses.join("\n"))
        };
        Err(TooFewMatches { pass: pass.to_owned(), fired, least, why })
    }

    /// What guards declined in step `index`, functions with the same reasons together.
    fn near_misses(&self, index: usize) -> Vec<String> {
        let mut reasons: BTreeMap<(&str, &str), Vec<Declined<'_>>> = BTreeMap::new();
        for pass in self.passes.iter().filter(|p| p.index == index) {
            let mut places: BTreeMap<(&str, &str), Vec<&str>> = BTreeMap::new();
            for miss in &pass.near_misses {
                places.entry((miss.code, miss.why)).or_default().push(&miss.at);
            }
            for (reason, places) in places {
                let (count, lines) = (places.len(), summarise(places));
                let known = reasons.entry(reason).or_default();
                match known.iter_mut().find(|d| (d.count, &d.lines) == (count, &lines)) {
                    Some(same) => same.funcs.push(&pass.func),
                    None => known.push(Declined { funcs: vec![&pass.func], count, lines }),
                }
            }
        }
        let mut text = Vec::new();
        for ((code, why), declined) in reasons {
            for Declined { funcs, count, lines } in declined {
                let funcs: Vec<String> = funcs.iter().map(|f| format!("@{f}")).collect();
                text.push(format!("     {} declined {count} x {code}: {why}", funcs.join(", ")));
                text.extend(lines.iter().map(|line| format!("       {line}")));
            }
        }
        text
    }
}

/// Near misses of one reason in functions that have the same.
struct Declined<'a> {
    funcs: Vec<&'a str>,
    /// In each of the functions.
    count: usize,
    lines: Vec<String>,
}

/// Each step with what it did in all functions and in which, and why it left matches alone: the
/// text of `--explain-passes`.
impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let width = self.steps.iter().map(|s| s.pass.len()).max().unwrap_or(0);
        for StepReport { index, pass, disabled, .. } in &self.steps {
            write!(f, "{index:>2} {pass:<width$}  ")?;
            if *disabled {
                writeln!(f, "disabled")?;
                continue;
            }
            let funcs = || self.passes.iter().filter(|p| p.index == *index);
            write!(f, "fired {:>4}", funcs().map(|p| p.fired).sum::<usize>())?;
            let fired = funcs().filter(|p| p.fired > 0);
            let fired: Vec<String> = fired.map(|p| format!("@{} {}", p.func, p.fired)).collect();
            if !fired.is_empty() {
                write!(f, "  {}", fired.join(", "))?;
            }
            match funcs().map(|p| p.took.as_micros()).sum::<u128>() {
                0 => writeln!(f)?,
                us => writeln!(f, "  in {us} us")?,
            }
            for line in self.near_misses(*index) {
                writeln!(f, "{line}")?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report() -> Report {
        let step = |index, pass, disabled| StepReport { index, pass, source: "", disabled };
        let ran = |func: &str, fired, layers: std::ops::Range<usize>| {
            let at = |i| format!("silu_mul %layers.{i}.gated");
            let miss = |i| NearMiss { code: "ragged-rows", why: "the rows are ragged", at: at(i) };
            PassReport {
                index: 1,
                pass: "fuse-gate-up",
                func: func.to_owned(),
                fired,
                took: Duration::from_micros(21),
                near_misses: layers.map(miss).collect(),
                last_root: None,
            }
        };
        Report {
            steps: vec![step(0, "remove-dead", true), step(1, "fuse-gate-up", false)],
            passes: vec![ran("decode", 2, 0..3), ran("prefill", 2, 0..3), ran("head", 0, 0..0)],
        }
    }

    #[test]
    fn functions_with_the_same_reasons_are_told_together() {
        let expected = " 0 remove-dead   disabled
 1 fuse-gate-up  fired    4  @decode 2, @prefill 2  in 63 us
     @decode, @prefill declined 3 x ragged-rows: the rows are ragged
       silu_mul %layers.0.gated
         and 2 more: silu_mul %layers.{1-2}.gated
";
        assert_eq!(report().to_string(), expected);
        let untimed = report().without_times().to_string();
        assert_eq!(untimed, expected.replace("  in 63 us", ""));
    }

    #[test]
    fn a_pass_that_fires_too_little_is_told_with_its_near_misses() {
        let report = report();
        assert_eq!(report.require("fuse-gate-up", 4), Ok(()));
        let text = report.require("fuse-gate-up", 5).unwrap_err().to_string();
        let first = "pass `fuse-gate-up` fired 4 times, at least 5 are required:\n";
        assert!(text.starts_with(first) && text.contains("3 x ragged-rows"), "{text}");
        for (pass, why) in [("remove-dead", "disabled"), ("fold-cast", "not in this pipeline")] {
            let text = report.require(pass, 1).unwrap_err().to_string();
            assert!(text.contains("fired 0 times") && text.ends_with(why), "{text}");
        }
        let mut report = report;
        report.passes.iter_mut().for_each(|p| p.near_misses.clear());
        let text = report.require("fuse-gate-up", 5).unwrap_err().to_string();
        assert!(text.ends_with("nothing else came near its pattern"), "{text}");
    }
}
