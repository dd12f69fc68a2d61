//! The definitions of products of coded weights.

/// A weight `[N,K]` as the values of its codes, and its scales `[N,ceil(K/group)]`.
#[derive(Clone, Copy, Debug)]
pub struct Scaled<'a> {
    /// Values of the codes.
    pub values: &'a [f32],
    /// Scales.
    pub scales: &'a [f32],
    /// Elements along `K` that share a scale.
    pub group: usize,
    /// Length of a row.
    pub k: usize,
}

/// One row `x [K]` times a weight: for each output the products of the groups, each times the scale
/// of the weight and that of the input (one for all groups, or one for each).
pub fn scaled_row(x: &[f32], x_scales: &[f32], weight: Scaled<'_>) -> Vec<f64> {
    let Scaled { values, scales, group, k } = weight;
    let groups = k.div_ceil(group);
    let row = |(w, scales): (&[f32], &[f32])| {
        let parts = x.chunks(group).zip(w.chunks(group)).enumerate();
        parts
            .map(|(g, (x, w))| {
                let dot: f64 = x.iter().zip(w).map(|(&x, &w)| f64::from(x) * f64::from(w)).sum();
                let x_scale = x_scales[if x_scales.len() == 1 { 0 } else { g }];
                dot * f64::from(scales[g]) * f64::from(x_scale)
            })
            .sum()
    };
    values.chunks(k).zip(scales.chunks(groups)).map(row).collect()
}
