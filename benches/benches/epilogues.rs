//! Products with what is done to their results, as one call and as the calls it replaces, in the same
//! run: `cargo bench -p precast-benches --bench epilogues [-- INSTRUCTION_SET] [-- THREADS]`.
//!
//! Gate and up projections are compared as two products and an activation, as one product of
//! interleaved rows and an activation, and as one call; projections back to the hidden state with
//! their residual as a product and a sum, and as one call; logits over a vocabulary of 151,936 with what
//! is found among them. Dense shapes are those of Qwen3-0.6B, experts
//! those of Qwen3-30B-A3B.

use artifact::{BufferRef, Scalar, Space};
use codegen_cpu::CpuDevice;
use hal::{Device, MemoryRequest};
use precast_benches::device::{from_args, random_weights};
use precast_benches::probe::median;
use std::time::Instant;
use tensor::{DType, layout::Panels};

const ROWS: [u64; 4] = [1, 8, 24, 512];
const MOST_ROWS: u64 = 512;
const REPEATS: usize = 15;
const WEIGHT_BYTES: u64 = 768 << 20;
/// Bytes of weights that a pass reads at least, and the most calls for it.
const PASS_BYTES: u64 = 128 << 20;
const MOST_CALLS: u64 = 16;

/// Experts of a layer, and of a token.
#[derive(Clone, Copy)]
struct Experts {
    count: u64,
    chosen: u64,
}

/// A projection: `n` is the outputs of one side of gate and up.
struct Case {
    /// The kernel without `grouped_` and the type of the result.
    product: &'static str,
    weight: DType,
    x: DType,
    /// Type of the scales and elements of a group.
    scale: Option<(DType, u64)>,
    x_scales: u64,
    k: u64,
    n: u64,
    experts: Option<Experts>,
}

const DENSE: (u64, u64) = (1024, 3072);
const EXPERT: (u64, u64) = (2048, 768);
const MANY: Option<Experts> = Some(Experts { count: 128, chosen: 8 });

const fn case(
    product: &'static str,
    (weight, x): (DType, DType),
    scale: Option<(DType, u64)>,
    x_scales: u64,
    (k, n): (u64, u64),
    experts: Option<Experts>,
) -> Case {
    Case { product, weight, x, scale, x_scales, k, n, experts }
}

const CASES: [Case; 7] = {
    use DType::{BF16, F32, I4, I8, MxFp4, U8};
    [
        case("matmul_bf16", (BF16, BF16), None, 0, DENSE, None),
        case("quant_matmul_i8", (I8, I8), Some((F32, DENSE.0)), 1, DENSE, None),
        case("dequant_matmul_i4_bf16", (I4, BF16), Some((F32, 128)), 0, DENSE, None),
        case("matmul_bf16", (BF16, BF16), None, 0, EXPERT, MANY),
        case("quant_matmul_i8", (I8, I8), Some((F32, EXPERT.0)), 1, EXPERT, MANY),
        case("quant_matmul_i4", (I4, I8), Some((F32, 128)), 1, EXPERT, MANY),
        case("dequant_matmul_mxfp4_bf16", (MxFp4, BF16), Some((U8, 32)), 0, EXPERT, MANY),
    ]
};

/// The product to logits, and the most rows of it.
const HEAD: Case = case("matmul_bf16", (DType::BF16, DType::BF16), None, 0, (1024, 151_936), None);
const MOST_TOKENS: u64 = 24;
/// Of the largest logits.
const TOP: u64 = 64;

/// Where things lie in the arena.
const X: u64 = 0;
const X_SCALES: u64 = 8 << 20;
const ROUTE: u64 = 9 << 20;
const RESIDUAL: u64 = 10 << 20;
const OUT: u64 = RESIDUAL + 4 * MOST_ROWS * 4096;
/// What is found among logits, and the largest of their panels.
const BEST: u64 = OUT + 2 * OUT_BYTES;
const TOPS: [u64; 2] = [BEST + (1 << 20), BEST + (2 << 20)];
const PANELS: u64 = BEST + (3 << 20);
/// Bytes of the widest result.
const OUT_BYTES: u64 = 4 * MOST_ROWS * 8 * 2 * 768;
const ARENA_BYTES: u64 = OUT + 4 * OUT_BYTES;

fn main() -> anyhow::Result<()> {
    let (mut device, _) = from_args()?;
    let weights = random_weights(WEIGHT_BYTES as usize >> 20)?;
    device.load(MemoryRequest {
        root: Default::default(),
        weights,
        arena_bytes: ARENA_BYTES,
        state_bytes: 0,
    })?;

    println!(
        "\n{:<44}{:>6}{:>11}{:>11}{:>11}{:>8}{:>8}",
        "gate and up, us", "T", "apart", "one", "one call", "ratio", "ratio"
    );
    for case in &CASES {
        for t in ROWS {
            let [apart, pairs, linear] = compare(
                &mut device,
                case,
                t,
                2 * case.n,
                &[Case::apart, Case::pairs, Case::gated],
            )?;
            println!(
                "{:<44}{t:>6}{apart:>11.1}{pairs:>11.1}{linear:>11.1}{:>8.2}{:>8.2}",
                case.name(),
                apart / linear,
                pairs / linear
            );
        }
    }
    println!("\n{:<44}{:>6}{:>11}{:>11}{:>8}", "residual, us", "T", "apart", "one call", "ratio");
    for case in CASES.iter().filter(|c| c.experts.is_none()) {
        // The projection back: as many weights, the other way round.
        let down = Case { k: case.n, n: case.k, scale: case.down_scale(), ..*case };
        for t in ROWS {
            let [apart, linear] =
                compare(&mut device, &down, t, down.n, &[Case::summed, Case::residual])?;
            println!("{:<44}{t:>6}{apart:>11.1}{linear:>11.1}{:>8.2}", down.name(), apart / linear);
        }
    }
    // Rows that differ: bf16 numbers below 1 of either sign.
    let mut state = 1u32;
    let x: Vec<u8> = (0..HEAD.k * MOST_TOKENS)
        .flat_map(|_| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            ((state >> 16) as u16 & 0x807f | 0x3e80).to_le_bytes()
        })
        .collect();
    device.write(arena(X, x.len() as u64), &x);
    println!(
        "\n{:<44}{:>6}{:>11}{:>11}{:>11}{:>11}",
        "logits, us", "T", "product", "argmax", "and top_k", "apart"
    );
    for t in [1, 8, MOST_TOKENS] {
        let ways = [Case::logits, Case::argmax, Case::top_k, Case::top_k_apart];
        let [product, argmax, top_k, apart] = compare(&mut device, &HEAD, t, HEAD.n, &ways)?;
        println!(
            "{:<44}{t:>6}{product:>11.1}{argmax:>11.1}{top_k:>11.1}{apart:>11.1}",
            HEAD.name()
        );
    }
    Ok(())
}

fn arena(offset: u64, bytes: u64) -> BufferRef {
    BufferRef { space: Space::Arena, offset, bytes }
}

fn ints(values: &[u64]) -> Vec<Scalar> {
    values.iter().map(|&v| Scalar::Int(v)).collect()
}

/// One way to compute a case: launches what it takes for `t` rows with the weights at an offset.
type Way = fn(&Case, &mut CpuDevice, u64, u64) -> anyhow::Result<()>;

/// Microseconds of each way. Ways take turns, so that all meet the same moods of the machine.
fn compare<const N: usize>(
    device: &mut CpuDevice,
    case: &Case,
    t: u64,
    rows: u64,
    ways: &[Way; N],
) -> anyhow::Result<[f64; N]> {
    let bytes = case.bytes(rows) * case.experts.map_or(1, |e| e.count);
    let read = case.experts.map_or(bytes, |e| bytes / e.count * e.count.min(e.chosen * t));
    let calls = (PASS_BYTES / read).clamp(1, MOST_CALLS);
    case.route(device, t);
    let mut graphs = Vec::new();
    for way in ways {
        device.begin_capture()?;
        for call in 0..calls {
            way(case, device, t, call % (WEIGHT_BYTES / bytes).max(1) * bytes)?;
        }
        graphs.push(device.end_capture()?);
    }
    let mut times = [const { Vec::new() }; N];
    for repeat in 0..=REPEATS {
        for (graph, times) in graphs.iter().zip(&mut times) {
            let began = Instant::now();
            device.replay(graph)?;
            if repeat > 0 {
                times.push(began.elapsed().as_secs_f64());
            }
        }
    }
    Ok(times.map(|times| 1e6 * median(times) / calls as f64))
}

impl Case {
    fn name(&self) -> String {
        let prefix = if self.experts.is_some() { "grouped_" } else { "" };
        format!("{prefix}{} {}x{}", self.product, self.n, self.k)
    }

    fn down_scale(&self) -> Option<(DType, u64)> {
        self.scale.map(|(dtype, group)| (dtype, if group == self.k { self.n } else { group }))
    }

    /// Bytes of a weight with `rows` outputs, and of its scales.
    fn parts(&self, rows: u64) -> [u64; 2] {
        let bytes = |dtype: DType, k| {
            let bytes = dtype.bytes_for(Panels::new(rows, k, dtype).padded_len());
            bytes.next_multiple_of(64)
        };
        let scale = self.scale.map_or(0, |(dtype, group)| bytes(dtype, self.k.div_ceil(group)));
        [bytes(self.weight, self.k), scale]
    }

    fn bytes(&self, rows: u64) -> u64 {
        self.parts(rows).iter().sum()
    }

    /// Rows of a result for `t` tokens.
    fn results(&self, t: u64) -> u64 {
        t * self.experts.map_or(1, |e| e.chosen)
    }

    /// Writes which experts the tokens go to.
    fn route(&self, device: &mut CpuDevice, t: u64) {
        let Some(Experts { count, chosen }) = self.experts else { return };
        let mut groups = vec![Vec::new(); count as usize];
        let mut state = 1u64;
        for token in 0..t {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            // Odd steps visit different experts.
            let (first, step) = (state >> 40, state >> 20 | 1);
            for j in 0..chosen {
                let expert = first.wrapping_add(j.wrapping_mul(step)) % count;
                groups[expert as usize].push((token * chosen + j) as i32);
            }
        }
        let mut starts = vec![0i32];
        for group in &groups {
            starts.push(starts[starts.len() - 1] + group.len() as i32);
        }
        let bytes = |v: &[i32]| v.iter().flat_map(|v| v.to_le_bytes()).collect::<Vec<u8>>();
        let order = groups.concat();
        device.write(arena(ROUTE, 4 * starts.len() as u64), &bytes(&starts));
        device.write(arena(ROUTE + 4096, 4 * order.len() as u64), &bytes(&order));
    }

    /// The product with `rows` outputs of weights at `at` into `out`, which has `width` columns of
    /// `dtype`; `end` is its end, after a residual if there is one.
    #[expect(clippy::too_many_arguments, reason = "what a call of a kernel says")]
    fn product(
        &self,
        device: &mut CpuDevice,
        t: u64,
        at: u64,
        rows: u64,
        out: u64,
        dtype: DType,
        end: Option<(u64, Option<BufferRef>)>,
    ) -> anyhow::Result<()> {
        let [weight, scale] = self.parts(rows);
        let experts = self.experts.map_or(1, |e| e.count);
        let weights = |offset, bytes| BufferRef { space: Space::Weights, offset, bytes };
        let mut args = vec![arena(X, self.x.bytes_for(t * self.k))];
        if self.x_scales > 0 {
            args.push(arena(X_SCALES, 4 * t * self.x_scales));
        }
        let mut scalars = vec![t];
        if let Some(Experts { count, chosen }) = self.experts {
            args.extend([arena(ROUTE + 4096, 4 * t * chosen), arena(ROUTE, 4 * (count + 1))]);
            scalars.extend([chosen, 0, count]);
        }
        scalars.extend([rows, self.k]);
        args.push(weights(at, experts * weight));
        if let Some((_, group)) = self.scale {
            args.push(weights(at + experts * weight, experts * scale));
            scalars.push(group);
        }
        if self.x_scales > 0 {
            scalars.push(self.x_scales);
        }
        let gate = end.is_some_and(|(gate, _)| gate > 0);
        let width = if gate { rows / 2 } else { rows };
        scalars.extend([self.k, width]);
        let mut scalars = ints(&scalars);
        let prefix = if self.experts.is_some() { "grouped_" } else { "" };
        let mut name = format!("{prefix}{}_{dtype}", self.product);
        if let Some((gate, residual)) = end {
            name = format!("linear_{name}");
            scalars.extend(ints(&[0, gate, u64::from(residual.is_some()), 0, 0, width]));
            scalars.extend([0.0, 0.0].map(Scalar::Float));
            args.extend(residual);
        }
        args.push(arena(out, dtype.bytes_for(self.results(t) * width)));
        Ok(device.launch(&hal::Launch::new(&name, &args, &scalars))?)
    }

    /// Two products and an activation.
    fn apart(&self, device: &mut CpuDevice, t: u64, at: u64) -> anyhow::Result<()> {
        let experts = self.experts.map_or(1, |e| e.count);
        let (rows, n) = (self.results(t), self.n);
        let (gate, up) = (OUT, OUT + OUT_BYTES);
        self.product(device, t, at, n, gate, DType::F32, None)?;
        self.product(device, t, at + experts * self.bytes(n), n, up, DType::F32, None)?;
        let bytes = 4 * rows * n;
        let out = arena(OUT + 2 * OUT_BYTES, bytes / 2);
        let args = [arena(gate, bytes), arena(up, bytes), out];
        Ok(device.launch(&hal::Launch::new("silu_mul_bf16", &args, &ints(&[rows, n, n, n, n])))?)
    }

    /// One product and an activation.
    fn pairs(&self, device: &mut CpuDevice, t: u64, at: u64) -> anyhow::Result<()> {
        let (rows, n) = (self.results(t), self.n);
        self.product(device, t, at, 2 * n, OUT, DType::F32, None)?;
        let args = [arena(OUT, 8 * rows * n), arena(OUT + 2 * OUT_BYTES, 2 * rows * n)];
        Ok(device.launch(&hal::Launch::new(
            "silu_mul_pairs_bf16",
            &args,
            &ints(&[rows, n, 2 * n, n]),
        ))?)
    }

    /// One call.
    fn gated(&self, device: &mut CpuDevice, t: u64, at: u64) -> anyhow::Result<()> {
        let out = OUT + 2 * OUT_BYTES;
        self.product(device, t, at, 2 * self.n, out, DType::BF16, Some((1, None)))
    }

    /// A product and a sum.
    fn summed(&self, device: &mut CpuDevice, t: u64, at: u64) -> anyhow::Result<()> {
        let (n, bytes) = (self.n, 4 * t * self.n);
        self.product(device, t, at, n, OUT, DType::F32, None)?;
        let args = [arena(RESIDUAL, bytes), arena(OUT, bytes), arena(OUT + OUT_BYTES, bytes)];
        Ok(device.launch(&hal::Launch::new("add_f32", &args, &ints(&[t, n, n, n, n])))?)
    }

    /// One call.
    fn residual(&self, device: &mut CpuDevice, t: u64, at: u64) -> anyhow::Result<()> {
        let residual = arena(RESIDUAL, 4 * t * self.n);
        let end = Some((0, Some(residual)));
        self.product(device, t, at, self.n, OUT + OUT_BYTES, DType::F32, end)
    }

    /// Logits with the largest of each row and, if it is not 0, the largest `top`.
    fn head(
        &self,
        device: &mut CpuDevice,
        t: u64,
        at: u64,
        (argmax, top): (u64, u64),
    ) -> anyhow::Result<()> {
        let [weight, _] = self.parts(self.n);
        let weight = BufferRef { space: Space::Weights, offset: at, bytes: weight };
        let mut args = vec![arena(X, 2 * t * self.k), weight, arena(OUT, 4 * t * self.n)];
        if argmax > 0 {
            args.push(arena(BEST, 4 * t));
        }
        if top > 0 {
            args.extend(TOPS.map(|at| arena(at, 4 * t * top)));
        }
        args.push(arena(PANELS, 4 * t * self.n.div_ceil(Panels::WIDTH)));
        let mut scalars = ints(&[t, self.n, self.k, self.k, self.n, 0, 0, 0, argmax, top, 0]);
        scalars.extend([0.0, 0.0].map(Scalar::Float));
        Ok(device.launch(&hal::Launch::new("linear_matmul_bf16_f32", &args, &scalars))?)
    }

    fn logits(&self, device: &mut CpuDevice, t: u64, at: u64) -> anyhow::Result<()> {
        self.product(device, t, at, self.n, OUT, DType::F32, None)
    }

    fn argmax(&self, device: &mut CpuDevice, t: u64, at: u64) -> anyhow::Result<()> {
        self.head(device, t, at, (1, 0))
    }

    fn top_k(&self, device: &mut CpuDevice, t: u64, at: u64) -> anyhow::Result<()> {
        self.head(device, t, at, (1, TOP))
    }

    /// The largest `TOP` by a call of their own.
    fn top_k_apart(&self, device: &mut CpuDevice, t: u64, at: u64) -> anyhow::Result<()> {
        self.head(device, t, at, (1, 0))?;
        let [values, ids] = TOPS.map(|at| arena(at, 4 * t * TOP));
        let args = [arena(OUT, 4 * t * self.n), values, ids];
        let scalars = ints(&[t, self.n, TOP, self.n]);
        Ok(device.launch(&hal::Launch::new("top_k_f32", &args, &scalars))?)
    }
}
