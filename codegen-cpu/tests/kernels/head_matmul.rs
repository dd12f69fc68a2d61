//! Products of each head.

use crate::support::*;
use codegen_cpu::{InstructionSet, kernels::reference};
use proptest::prelude::*;
use tensor::DType;

#[derive(Clone, Debug)]
struct Case {
    rows: usize,
    heads: usize,
    n: usize,
    k: usize,
    pad: usize,
    weight: DType,
    out: DType,
    seed: u64,
}

fn case() -> impl Strategy<Value = Case> {
    let float = || prop_oneof![Just(DType::F32), Just(DType::BF16)];
    let sizes = (1..=20usize, 1..=5usize, 1..=130usize, 1..=150usize, 0..4usize);
    (sizes, float(), float(), any::<u64>()).prop_map(
        |((rows, heads, n, k, pad), weight, out, seed)| Case {
            rows,
            heads,
            n,
            k,
            pad,
            weight,
            out,
            seed,
        },
    )
}

impl Case {
    fn x(&self) -> Vec<f32> {
        rounded(self.weight, &noise(self.seed, self.rows * self.heads * self.k))
    }

    fn w(&self) -> Vec<f32> {
        rounded(self.weight, &noise(self.seed ^ 1, self.heads * self.n * self.k))
    }

    /// Products of rows of inputs.
    fn run(&self, set: InstructionSet, threads: usize, x: &[f32]) -> Vec<f32> {
        let &Case { heads, n, k, pad, weight, out, .. } = self;
        let (x_width, out_width) = (heads * k, heads * n);
        let rows = x.len() / x_width;
        let slices = self.w();
        let packed = slices.chunks(n * k).flat_map(|w| panels(weight, w, n, k)).collect();
        let mut buffers = vec![
            encode(weight, &spread(x, x_width, x_width + pad)),
            packed,
            unwritten(out, rows * (out_width + pad)),
        ];
        let scalars = ints([rows, heads, n, k, x_width + pad, out_width + pad]);
        run(set, threads, &format!("head_matmul_{weight}_{out}"), &mut buffers, &scalars);
        gathered(&decode(out, &buffers[2]), out_width, out_width + pad)
    }
}

proptest! {
    #![proptest_config(cases(48))]

    #[test]
    fn each_head_is_a_product(case in case(), threads in 1..=3usize) {
        let want = reference::head_matmul(&case.x(), &case.w(), case.heads, case.n, case.k);
        for set in InstructionSet::available() {
            let got = case.run(set, threads, &case.x());
            let bound = 4.0 * case.k as f64 * 2f64.powi(-24);
            let error = worst(&got, &want, |_, v| bound + v.abs() * unit(case.out));
            prop_assert!(error <= 1.0, "{set}: {error} of the bound");
        }
    }

    #[test]
    fn a_row_is_the_same_in_every_call(case in case(), threads in 1..=3usize) {
        let (x, width) = (case.x(), case.heads * case.k);
        for set in InstructionSet::available() {
            let together = case.run(set, threads, &x);
            let alone: Vec<f32> =
                x.chunks(width).flat_map(|row| case.run(set, 1, row)).collect();
            let bits = |v: &[f32]| v.iter().map(|v| v.to_bits()).collect::<Vec<_>>();
            prop_assert_eq!(bits(&together), bits(&alone), "{}", set);
        }
    }
}
