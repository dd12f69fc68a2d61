//! A histogram that somebody else counts.

use prometheus::{
    core::{Collector, Desc},
    proto::{Bucket, Histogram, Metric, MetricFamily, MetricType},
};
use std::collections::HashMap;

/// A histogram as it was counted until now.
pub(super) struct Counted {
    desc: Desc,
    histogram: Histogram,
}

impl Counted {
    /// `counts[i]` values lie above the bound before `bounds[i]` and up to it; one more entry counts
    /// those above all bounds. All values together are `sum`.
    pub(super) fn new(name: &str, help: &str, bounds: &[f64], counts: &[u64], sum: f64) -> Self {
        let mut total = 0;
        let mut buckets = Vec::with_capacity(bounds.len());
        for (&bound, &count) in bounds.iter().zip(counts) {
            total += count;
            let mut bucket = Bucket::default();
            bucket.set_upper_bound(bound);
            bucket.set_cumulative_count(total);
            buckets.push(bucket);
        }
        total += counts.iter().skip(bounds.len()).sum::<u64>();
        let mut histogram = Histogram::default();
        histogram.set_bucket(buckets);
        histogram.set_sample_count(total);
        histogram.set_sample_sum(sum);
        let desc = Desc::new(name.to_owned(), help.to_owned(), Vec::new(), HashMap::new());
        Self { desc: desc.expect("the name is well formed"), histogram }
    }
}

impl Collector for Counted {
    fn desc(&self) -> Vec<&Desc> {
        vec![&self.desc]
    }

    fn collect(&self) -> Vec<MetricFamily> {
        let mut metric = Metric::default();
        metric.set_histogram(self.histogram.clone());
        let mut family = MetricFamily::default();
        family.set_name(self.desc.fq_name.clone());
        family.set_help(self.desc.help.clone());
        family.set_field_type(MetricType::HISTOGRAM);
        family.set_metric(vec![metric]);
        vec![family]
    }
}
