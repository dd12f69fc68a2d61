//! Prometheus' text format.

use super::histogram::Snapshot;
use std::fmt::{Display, Write};

/// A page of metrics. Every sample is labelled with the model.
pub(super) struct Exposition {
    page: String,
    model: String,
}

impl Exposition {
    pub(super) fn new(model: &str) -> Self {
        let escaped = model.replace('\\', r"\\").replace('"', "\\\"").replace('\n', r"\n");
        Self { page: String::new(), model: format!("model_name=\"{escaped}\"") }
    }

    pub(super) fn finish(self) -> String {
        self.page
    }

    pub(super) fn gauge(&mut self, name: &str, help: &str, value: f64) {
        self.head(name, help, "gauge");
        self.sample(name, "", value);
    }

    pub(super) fn counter(&mut self, name: &str, help: &str, value: u64) {
        self.head(name, help, "counter");
        self.sample(name, "", value);
    }

    /// One sample for each set of labels.
    pub(super) fn labelled_counter<'a>(
        &mut self,
        name: &str,
        help: &str,
        samples: impl Iterator<Item = (&'a String, u64)>,
    ) {
        self.head(name, help, "counter");
        for (labels, value) in samples {
            self.sample(name, labels, value);
        }
    }

    pub(super) fn histogram(&mut self, name: &str, help: &str, snapshot: &Snapshot) {
        self.head(name, help, "histogram");
        let bucket = format!("{name}_bucket");
        for (bound, count) in &snapshot.cumulative {
            self.sample(&bucket, &format!("le=\"{bound}\""), count);
        }
        self.sample(&bucket, "le=\"+Inf\"", snapshot.count);
        self.sample(&format!("{name}_sum"), "", snapshot.sum_seconds);
        self.sample(&format!("{name}_count"), "", snapshot.count);
    }

    fn head(&mut self, name: &str, help: &str, kind: &str) {
        self.write(format_args!("# HELP {name} {help}\n# TYPE {name} {kind}\n"));
    }

    fn sample(&mut self, name: &str, labels: &str, value: impl Display) {
        let separator = if labels.is_empty() { "" } else { "," };
        let model = std::mem::take(&mut self.model);
        self.write(format_args!("{name}{{{model}{separator}{labels}}} {value}\n"));
        self.model = model;
    }

    fn write(&mut self, text: std::fmt::Arguments<'_>) {
        self.page.write_fmt(text).expect("writing to memory cannot fail");
    }
}
