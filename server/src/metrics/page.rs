//! One answer to `/metrics`: a registry for the values of this moment.

use prometheus::{
    Counter, CounterVec, Gauge, IntCounter, IntCounterVec, Opts, Registry, core::Collector,
    proto::MetricFamily,
};
use std::collections::HashMap;

/// Metrics that are shown under a second name, which dashboards for vLLM know.
const ALIASES: [(&str, &str); 11] = [
    ("sglang:num_running_reqs", "vllm:num_requests_running"),
    ("sglang:num_queue_reqs", "vllm:num_requests_waiting"),
    ("sglang:token_usage", "vllm:kv_cache_usage_perc"),
    ("sglang:prompt_tokens_total", "vllm:prompt_tokens_total"),
    ("sglang:generation_tokens_total", "vllm:generation_tokens_total"),
    ("sglang:num_retractions_total", "vllm:num_preemptions_total"),
    ("sglang:cached_tokens_total", "vllm:prefix_cache_hits_total"),
    ("sglang:time_to_first_token_seconds", "vllm:time_to_first_token_seconds"),
    ("sglang:inter_token_latency_seconds", "vllm:inter_token_latency_seconds"),
    ("sglang:e2e_request_latency_seconds", "vllm:e2e_request_latency_seconds"),
    ("sglang:queue_time_seconds", "vllm:request_queue_time_seconds"),
];

/// A page of metrics. Every sample is labelled with the model.
pub(super) struct Page(Registry);

impl Page {
    pub(super) fn new(model: &str) -> Self {
        let labels = HashMap::from([("model_name".to_owned(), model.to_owned())]);
        Self(Registry::new_custom(None, Some(labels)).expect("the label is well formed"))
    }

    /// Every metric, sorted by name.
    pub(super) fn finish(self) -> Vec<MetricFamily> {
        let mut families = self.0.gather();
        for (name, alias) in ALIASES {
            if let Some(family) = families.iter().find(|family| family.name() == name) {
                let mut family = family.clone();
                family.set_name(alias.to_owned());
                families.push(family);
            }
        }
        families.sort_by(|a, b| a.name().cmp(b.name()));
        families
    }

    /// Adds a metric that lives longer than the page.
    pub(super) fn add(&mut self, metric: impl Collector + 'static) {
        self.0.register(Box::new(metric)).expect("no name is used twice");
    }

    pub(super) fn gauge(&mut self, name: &str, help: &str, value: f64) {
        let gauge = Gauge::new(name, help).expect("the name is well formed");
        gauge.set(value);
        self.add(gauge);
    }

    pub(super) fn counter(&mut self, name: &str, help: &str, value: u64) {
        let counter = IntCounter::new(name, help).expect("the name is well formed");
        counter.inc_by(value);
        self.add(counter);
    }

    pub(super) fn seconds(&mut self, name: &str, help: &str, value: f64) {
        let counter = Counter::new(name, help).expect("the name is well formed");
        counter.inc_by(value.max(0.0));
        self.add(counter);
    }

    /// One sample for each set of label values.
    pub(super) fn counters<const N: usize>(
        &mut self,
        name: &str,
        help: &str,
        labels: [&str; N],
        samples: impl IntoIterator<Item = ([String; N], u64)>,
    ) {
        let counters =
            IntCounterVec::new(Opts::new(name, help), &labels).expect("the name is well formed");
        for (values, count) in samples {
            counters.with_label_values(&values).inc_by(count);
        }
        self.add(counters);
    }

    /// The same for sums of seconds.
    pub(super) fn seconds_by<const N: usize>(
        &mut self,
        name: &str,
        help: &str,
        labels: [&str; N],
        samples: impl IntoIterator<Item = ([String; N], f64)>,
    ) {
        let counters =
            CounterVec::new(Opts::new(name, help), &labels).expect("the name is well formed");
        for (values, seconds) in samples {
            counters.with_label_values(&values).inc_by(seconds.max(0.0));
        }
        self.add(counters);
    }
}
