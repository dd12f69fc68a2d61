//! Figures by batch size from `/metrics` or a file.

use anyhow::{Context, bail};
use std::{collections::BTreeMap, time::Duration};

/// Decode steps by how many sequences ran.
const STEPS: &str = "precast:decode_batch_size_total";
/// Seconds that plans took, and how often they ran, by phase and size.
const REPLAY_SECONDS: &str = "precast:graph_replay_seconds_total";
const REPLAYS: &str = "precast:graph_replays_total";

/// How often how many sequences ran at once.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Histogram(BTreeMap<u32, f64>);

impl Histogram {
    /// Weights of 1 to `ceiling`; more than that would have run as that many. A hundredth is spread
    /// over all, since a load is never quite the same again.
    pub(super) fn weights(&self, ceiling: u32) -> Vec<f64> {
        let total: f64 = self.0.values().sum();
        let mut weights = vec![0.01 * total / f64::from(ceiling); ceiling as usize];
        for (&size, &count) in &self.0 {
            weights[size.min(ceiling) as usize - 1] += count;
        }
        weights
    }
}

/// Reads a histogram.
///
/// # Errors
/// When there is none at `source`.
pub(super) fn read_histogram(source: &str) -> anyhow::Result<Histogram> {
    let text = fetch(source)?;
    let counts = histogram(&text).with_context(|| format!("{source} (--graph-bs-histogram)"))?;
    Ok(counts)
}

/// Reads times in seconds.
///
/// # Errors
/// When there are none at `source`.
pub(super) fn read_times(source: &str) -> anyhow::Result<BTreeMap<u32, f64>> {
    let text = fetch(source)?;
    times(&text).with_context(|| format!("{source} (--graph-bs-times)"))
}

fn histogram(text: &str) -> anyhow::Result<Histogram> {
    let counts = match json(text)? {
        Some(counts) => counts,
        None => samples(text, STEPS, "size"),
    };
    if counts.values().sum::<f64>() <= 0.0 {
        bail!("no counts: neither JSON such as {{\"8\": 120}} nor {STEPS}{{size=\"8\"}} above 0");
    }
    Ok(Histogram(counts))
}

fn times(text: &str) -> anyhow::Result<BTreeMap<u32, f64>> {
    let mut times = match json(text)? {
        Some(times) => times,
        None => {
            let runs = samples(text, REPLAYS, "bucket");
            let mean = |(size, seconds): (u32, f64)| Some((size, seconds / runs.get(&size)?));
            samples(text, REPLAY_SECONDS, "bucket").into_iter().filter_map(mean).collect()
        }
    };
    times.retain(|_, seconds| seconds.is_finite() && *seconds > 0.0);
    if times.is_empty() {
        bail!(
            "no times: neither JSON such as {{\"8\": 0.012}} nor {REPLAY_SECONDS}{{bucket=\"8\"}} with \
             {REPLAYS}"
        );
    }
    Ok(times)
}

/// A JSON object from sizes to numbers; `None` where the text is none.
fn json(text: &str) -> anyhow::Result<Option<BTreeMap<u32, f64>>> {
    if !text.trim_start().starts_with('{') {
        return Ok(None);
    }
    let numbers: BTreeMap<u32, f64> =
        serde_json::from_str(text).context("not a JSON object from batch sizes to numbers")?;
    match numbers.iter().find(|(size, n)| **size == 0 || **n < 0.0) {
        Some((size, n)) => {
            bail!("\"{size}\": {n} is no batch size with a number that is not negative")
        }
        None => Ok(Some(numbers)),
    }
}

/// Samples of the family `name` by `label`, those that differ in other labels together; of plans those
/// for decode.
fn samples(text: &str, name: &str, label: &str) -> BTreeMap<u32, f64> {
    let mut found = BTreeMap::new();
    for line in text.lines() {
        let Some(rest) = line.strip_prefix(name).and_then(|r| r.strip_prefix('{')) else {
            continue;
        };
        let Some((labels, value)) = rest.rsplit_once('}') else { continue };
        let of = |name: &str| {
            let values = labels.split(',').filter_map(|l| l.trim().split_once('='));
            values.filter(|(n, _)| *n == name).map(|(_, v)| v.trim_matches('"')).next()
        };
        let decodes = of("phase").is_none_or(|phase| phase == "decode");
        let size = of(label).and_then(|s| s.parse::<u32>().ok()).filter(|&s| s > 0 && decodes);
        let value = value.split_whitespace().next().and_then(|v| v.parse::<f64>().ok());
        if let (Some(size), Some(value)) = (size, value.filter(|v| *v >= 0.0)) {
            *found.entry(size).or_default() += value;
        }
    }
    found
}

fn fetch(source: &str) -> anyhow::Result<String> {
    if source.starts_with("https://") {
        bail!("{source}: only http is read; save it to a file first");
    }
    if !source.starts_with("http://") {
        return std::fs::read_to_string(source).with_context(|| source.to_owned());
    }
    let config = ureq::Agent::config_builder().timeout_global(Some(Duration::from_secs(10)));
    let agent: ureq::Agent = config.build().into();
    let mut answer = agent.get(source).call().with_context(|| source.to_owned())?;
    answer.body_mut().read_to_string().with_context(|| source.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    const METRICS: &str = "# TYPE precast:decode_batch_size_total counter
precast:decode_batch_size_total{model_name=\"m\",size=\"3\"} 10
precast:decode_batch_size_total{model_name=\"m\",size=\"40\"} 90 1700000000
precast:decode_batch_size_total{size=\"0\"} 7
precast:decode_batch_size_total_of_another{size=\"5\"} 7
precast:graph_replay_seconds_total{bucket=\"4\",context=\"2048\",phase=\"decode\"} 1.5
precast:graph_replay_seconds_total{bucket=\"4\",context=\"4096\",phase=\"decode\"} 0.5
precast:graph_replay_seconds_total{bucket=\"8\",context=\"2048\",phase=\"decode\"} 3.0
precast:graph_replay_seconds_total{bucket=\"64\",context=\"2048\",phase=\"prefill\"} 3.0
precast:graph_replays_total{bucket=\"4\",context=\"2048\",phase=\"decode\"} 60
precast:graph_replays_total{bucket=\"4\",context=\"4096\",phase=\"decode\"} 40
precast:graph_replays_total{bucket=\"8\",context=\"2048\",phase=\"decode\"} 0
precast:graph_replays_total{bucket=\"64\",context=\"2048\",phase=\"prefill\"} 3
";

    #[test]
    fn counts_come_from_metrics_or_json() {
        let parsed = histogram(METRICS).unwrap();
        assert_eq!(parsed, Histogram([(3, 10.0), (40, 90.0)].into()));
        let weights = parsed.weights(8);
        assert!((weights[2] - 10.125).abs() < 1e-9 && (weights[7] - 90.125).abs() < 1e-9);
        assert_eq!(weights[0], 0.125);
        assert_eq!(histogram(" {\"3\": 10, \"40\": 90}").unwrap(), parsed);
        for bad in ["", "{}", "{\"3\": 0}", "{\"0\": 4}", "{\"3\": -1}", "{\"x\": 1}", "other 3"] {
            assert!(histogram(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn times_come_from_metrics_or_json() {
        assert_eq!(times(METRICS).unwrap(), BTreeMap::from([(4, 0.02)]));
        assert_eq!(times("{\"2\": 0.5, \"4\": 0}").unwrap(), BTreeMap::from([(2, 0.5)]));
        assert!(times("precast:graph_replays_total{bucket=\"8\"} 1").is_err());
    }

    #[test]
    fn sources_that_are_not_there_are_named() {
        let error = format!("{:#}", read_histogram("/no/such/file").unwrap_err());
        assert!(error.contains("/no/such/file"), "{error}");
        assert!(read_times("https://localhost/metrics").is_err());
    }
}
