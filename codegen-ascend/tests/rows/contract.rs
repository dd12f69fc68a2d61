//! A row becomes the same, bit for bit, whatever rows are computed with it and on how many cores; a
//! broken kernel is told; what there is no kernel for is declined with a reason.

use crate::harness::{Numbers, case, lower};
use precast_codegen_ascend::kernels::{Kernel, shim::Library};

const COLUMNS: usize = 200;

fn floats(bytes: usize, numbers: &mut Numbers) -> Vec<u8> {
    (0..bytes / 4).flat_map(|_| (numbers.float() as f32).to_le_bytes()).collect()
}

#[test]
fn a_row_does_not_depend_on_its_company() {
    let norm = case(
        "%x: f32[T,200], %w: f32[200]",
        "  %n = rms_norm %x, %w {eps = 1e-6, out = f32} : f32[T,200]\n  \
         %q, %s = quantize_rows %n : i8[T,200], f32[T,1]",
        "%n, %q, %s",
    );
    let lowered = lower(&norm, 41, 0).unwrap().lowered;
    let alone = lower(&norm, 1, 0).unwrap().lowered;
    assert_eq!(lowered.files, alone.files, "one kernel for all numbers of rows");
    let kernel =
        Kernel { name: lowered.calls[0].kernel.clone(), source: lowered.files[0].text.clone() };

    // One element of the row too many, and a buffer that is never given back.
    let bugs = [
        ("1, 200, 0);", "1, 201, 0);", "out of bounds"),
        ("        rowsIn.FreeTensor(in);\n", "", "overflows"),
        ("rowsOut.EnQue(out);\n        out = rowsOut.DeQue<uint8_t>();", "", "not handed over"),
    ];
    let broken: Vec<Kernel> = bugs
        .iter()
        .enumerate()
        .map(|(i, (from, to, _))| {
            assert!(kernel.source.contains(from), "{from}");
            let name = format!("broken_{i}");
            Kernel { source: kernel.source.replace(from, to).replace(&kernel.name, &name), name }
        })
        .collect();
    let library = Library::build(&broken.iter().chain([&kernel]).collect::<Vec<_>>()).unwrap();

    let mut numbers = Numbers(5);
    let (row, scalars) =
        (COLUMNS * 4, [COLUMNS as u64, COLUMNS as u64, COLUMNS as u64, COLUMNS as u64, 1]);
    let (mut x, mut w) = (floats(41 * row, &mut numbers), floats(row, &mut numbers));
    let mut run = |kernel: &Kernel, rows: std::ops::Range<usize>, blocks: u32| {
        let count = rows.len();
        let mut made = (vec![0u8; count * row], vec![0u8; count * COLUMNS], vec![0u8; count * 4]);
        let all = [&[count as u64][..], &scalars].concat();
        let x = &mut x[rows.start * row..rows.end * row];
        let buffers: &mut [&mut [u8]] = &mut [x, &mut w, &mut made.0, &mut made.1, &mut made.2];
        library.run(&kernel.name, blocks, buffers, &all).map(|()| made)
    };
    let together = run(&kernel, 0..41, 40).unwrap();
    for blocks in [1, 7, 41] {
        assert_eq!(run(&kernel, 0..41, blocks).unwrap(), together, "{blocks} blocks");
    }
    for t in [0, 17, 40] {
        let (norm, codes, scale) = run(&kernel, t..t + 1, 1).unwrap();
        assert_eq!(norm, together.0[t * row..(t + 1) * row]);
        assert_eq!(codes, together.1[t * COLUMNS..(t + 1) * COLUMNS]);
        assert_eq!(scale, together.2[t * 4..(t + 1) * 4]);
    }
    for ((from, _, told), kernel) in bugs.iter().zip(&broken) {
        let message = run(kernel, 0..41, 4).map(|_| ()).unwrap_err();
        assert!(message.contains(told), "{from}: {message}");
    }
}

#[test]
fn what_has_no_kernel_is_declined_with_a_reason() {
    let cases = [
        (
            "%x: f32[T,256]",
            "  %q, %s = quantize_fp8 %x {group = 128, power_of_two = false} : fp8[T,256], f32[T,2]",
            "%q, %s",
            "fp8",
        ),
        (
            "%x: f32[T,3,5]",
            "  %o = l2_norm %x {eps = 1e-6, scale = 1} : f32[T,3,5]",
            "%o",
            "inside a block",
        ),
    ];
    for (params, ops, returns, reason) in cases {
        let Err(declined) = lower(&case(params, ops, returns), 4, 0) else { panic!("{ops}") };
        assert!(declined.0.contains(reason), "{}", declined.0);
    }
}
