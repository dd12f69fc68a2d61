//! The definitions of what remembers: row after row, each with the memory of its slot. A row at
//! position 0 begins with zeros; a row whose slot does not exist gives zeros and writes nothing.

/// Slots and positions of rows.
#[derive(Clone, Copy, Debug)]
pub struct Sequences<'a> {
    /// The slot of each row.
    pub slots: &'a [i32],
    /// The place of each row in its sequence.
    pub positions: &'a [i32],
}

impl Sequences<'_> {
    /// Lets `row` see and change the memory of each row, of `len` numbers.
    fn each(self, state: &mut [f64], len: usize, mut row: impl FnMut(usize, Option<&mut [f64]>)) {
        for (t, (&slot, &position)) in self.slots.iter().zip(self.positions).enumerate() {
            let slot = usize::try_from(slot).ok();
            let mut memory = slot.and_then(|s| state.chunks_mut(len).nth(s));
            if let Some(memory) = memory.as_mut().filter(|_| position <= 0) {
                memory.fill(0.0);
            }
            row(t, memory);
        }
    }
}

/// `y[t,c]`, the sum over `i` of `weight[c,i] * x[t-K+1+i,c]`, for `x` that the type of the state
/// holds.
pub fn causal_conv(
    x: &[f32],
    weight: &[f32],
    channels: usize,
    sequences: Sequences<'_>,
    state: &mut [f64],
) -> Vec<f64> {
    let taps = weight.len() / channels;
    let mut y = vec![0.0; x.len()];
    sequences.each(state, (taps - 1) * channels, |t, memory| {
        let Some(memory) = memory else { return };
        let row = x[t * channels..][..channels].iter().map(|&v| f64::from(v));
        let seen: Vec<f64> = memory.iter().copied().chain(row).collect();
        for c in 0..channels {
            let term = |i: usize| f64::from(weight[c * taps + i]) * seen[i * channels + c];
            y[t * channels + c] = (0..taps).map(term).sum();
        }
        memory.copy_from_slice(&seen[channels..]);
    });
    y
}

/// `-exp(a_log) * ln(1 + exp(a + dt_bias))`.
pub fn delta_gate(a: f32, a_log: f32, dt_bias: f32) -> f64 {
    let x = f64::from(a + dt_bias);
    -f64::from(a_log).exp() * (x.max(0.0) + (-x.abs()).exp().ln_1p())
}

/// Sizes of the gated delta rule.
#[derive(Clone, Copy, Debug)]
pub struct DeltaHeads {
    /// Heads of `q` and `k`; value heads share them in equal groups.
    pub key_heads: usize,
    /// Heads of `v`, each with a memory.
    pub heads: usize,
    /// Rows of a memory.
    pub dk: usize,
    /// Columns of a memory.
    pub dv: usize,
}

/// What goes into the gated delta rule, row after row.
#[derive(Clone, Copy, Debug)]
pub struct DeltaInputs<'a> {
    /// `[T, key heads, dk]`.
    pub q: &'a [f32],
    /// `[T, key heads, dk]`.
    pub k: &'a [f32],
    /// `[T, heads, dv]`.
    pub v: &'a [f32],
    /// `[T, heads]`.
    pub gate: &'a [f32],
    /// `[T, heads]`.
    pub beta: &'a [f32],
}

/// `S' = exp(gate) S`, `S = S' + k (beta (v - k S'))^T`, `o = q S` for each head.
pub fn gated_delta(
    inputs: DeltaInputs<'_>,
    sizes: DeltaHeads,
    sequences: Sequences<'_>,
    state: &mut [f64],
) -> Vec<f64> {
    let DeltaHeads { key_heads, heads, dk, dv } = sizes;
    let mut out = vec![0.0; inputs.v.len()];
    sequences.each(state, heads * dk * dv, |t, memory| {
        for (h, s) in memory.into_iter().flat_map(|m| m.chunks_mut(dk * dv)).enumerate() {
            let key = (t * key_heads + h / (heads / key_heads)) * dk;
            let (q, k) = (&inputs.q[key..][..dk], &inputs.k[key..][..dk]);
            let (at, row) = (t * heads + h, (t * heads + h) * dv);
            let decay = f64::from(inputs.gate[at]).exp();
            s.iter_mut().for_each(|s| *s *= decay);
            for j in 0..dv {
                let dot = |x: &[f32], s: &[f64]| -> f64 {
                    (0..dk).map(|i| f64::from(x[i]) * s[i * dv + j]).sum()
                };
                let v = f64::from(inputs.v[row + j]);
                let u = f64::from(inputs.beta[at]) * (v - dot(k, s));
                (0..dk).for_each(|i| s[i * dv + j] += f64::from(k[i]) * u);
                out[row + j] = dot(q, s);
            }
        }
    });
    out
}
