//! Means and percentiles as numpy computes them by default.

/// 0 of nothing.
pub(crate) fn mean(values: &[f64]) -> f64 {
    if values.is_empty() { 0.0 } else { values.iter().sum::<f64>() / values.len() as f64 }
}

/// The root of the mean square distance to the mean.
pub(crate) fn deviation(values: &[f64]) -> f64 {
    let mean = mean(values);
    self::mean(&values.iter().map(|v| (v - mean).powi(2)).collect::<Vec<_>>()).sqrt()
}

/// `sorted` at `percent`, linear between two values; 0 of nothing.
pub(crate) fn percentile(sorted: &[f64], percent: f64) -> f64 {
    let Some(last) = sorted.len().checked_sub(1) else { return 0.0 };
    let place = percent / 100.0 * last as f64;
    let below = sorted[place as usize];
    let above = sorted[(place as usize + 1).min(last)];
    below + (above - below) * place.fract()
}

pub(crate) fn sorted(mut values: Vec<f64>) -> Vec<f64> {
    values.sort_unstable_by(f64::total_cmp);
    values
}
