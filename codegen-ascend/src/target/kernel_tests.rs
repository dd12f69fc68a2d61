//! The kernels of the lowering, run on the host.

use super::{
    dequantize::{Dequantize, Groups},
    tests::target,
};
use crate::kernels::{Kernel, shim::Library};
use artifact::Scalar;
use compiler::{Arg, Lowered};
use ir::DType;

fn library(all: &[&Lowered]) -> Library {
    let kernels: Vec<Kernel> = all
        .iter()
        .map(|l| Kernel { name: l.calls[0].kernel.clone(), source: l.files[0].text.clone() })
        .collect();
    Library::build(&kernels.iter().collect::<Vec<_>>()).unwrap()
}

fn run(library: &Library, lowered: &Lowered, buffers: &mut [Vec<u8>]) {
    let call = &lowered.calls[0];
    let scalars: Vec<u64> = call
        .scalars
        .iter()
        .map(|s| match s {
            Scalar::Int(v) => *v,
            Scalar::Float(_) => panic!("scalars are whole numbers"),
        })
        .collect();
    let mut buffers: Vec<&mut [u8]> = buffers.iter_mut().map(Vec::as_mut_slice).collect();
    library.run(&call.kernel, call.blocks, &mut buffers, &scalars).unwrap();
}

fn bytes<T: Copy, const N: usize>(values: &[T], to: fn(T) -> [u8; N]) -> Vec<u8> {
    values.iter().flat_map(|&v| to(v)).collect()
}

/// Rows that straddle tiles and blocks, experts without rows, both forms of the list.
#[test]
fn sums_become_numbers() {
    let chip = target().chip();
    let mut cases = Vec::new();
    for (rows, width, counts, row_scale) in [
        (1, 5, None, true),
        (7, 100, None, false),
        (45, 40, Some(vec![0, 3, 0, 41, 1, 0]), true),
        (90, 2063, Some(vec![44, 0, 46]), true),
        (3, 16, Some(vec![0, 0, 2]), true),
    ] {
        for (dtype, ends) in [(DType::F32, false), (DType::BF16, true)] {
            let groups = counts.as_ref().map(|c: &Vec<i64>| Groups {
                list: Arg::Scratch(1),
                experts: c.len() as u64,
                counts: !ends,
            });
            let dequantize = Dequantize {
                sums: Arg::Operand(0),
                row_scale: row_scale.then_some(Arg::Operand(1)),
                weight_scale: Arg::Operand(2),
                groups,
                out: Arg::Result(0),
                rows,
                width,
                dtype,
            };
            cases.push((
                dequantize.lower(chip).unwrap(),
                rows,
                width,
                counts.clone(),
                row_scale,
                dtype,
                ends,
            ));
        }
    }
    let library = library(&cases.iter().map(|c| &c.0).collect::<Vec<_>>());
    for (lowered, rows, width, counts, has_row_scale, dtype, ends) in cases {
        let experts = counts.as_ref().map_or(1, Vec::len) as u64;
        let number = |i: u64| (i * 2_654_435_761 % 8191) as i64 - 4000;
        let sums: Vec<i32> = (0..rows * width).map(|i| number(i) as i32 * 17).collect();
        let row_scale: Vec<f32> = (0..rows).map(|i| 0.01 + i as f32 * 0.003).collect();
        let scale: Vec<f32> = (0..experts * width).map(|i| 0.5 + number(i) as f32 * 1e-4).collect();
        let list: Option<Vec<i64>> = counts.as_ref().map(|c| {
            let mut sum = 0;
            c.iter()
                .map(|n| {
                    sum += n;
                    if ends { sum } else { *n }
                })
                .collect()
        });
        let mut buffers = vec![bytes(&sums, i32::to_le_bytes)];
        if has_row_scale {
            buffers.push(bytes(&row_scale, f32::to_le_bytes));
        }
        buffers.push(bytes(&scale, f32::to_le_bytes));
        buffers.extend(list.map(|l| bytes(&l, i64::to_le_bytes)));
        let untouched = 0xaa;
        buffers.push(vec![untouched; dtype.bytes_for(rows * width) as usize]);
        run(&library, &lowered, &mut buffers);
        let out = buffers.last().unwrap();
        let counts = counts.unwrap_or(vec![rows as i64]);
        let owners: Vec<usize> =
            counts.iter().enumerate().flat_map(|(e, &n)| vec![e; n as usize]).collect();
        for (row, factor) in row_scale.iter().enumerate() {
            for column in 0..width as usize {
                let i = row * width as usize + column;
                let Some(&owner) = owners.get(row) else {
                    assert_eq!(out[i * out.len() / sums.len()], untouched, "row {row} of nobody");
                    continue;
                };
                let mut expected = sums[i] as f32 * scale[owner * width as usize + column];
                if has_row_scale {
                    expected *= factor;
                }
                let found = match dtype {
                    DType::F32 => f32::from_le_bytes(out[i * 4..][..4].try_into().unwrap()),
                    _ => {
                        let bits = expected.to_bits();
                        expected = f32::from_bits((bits + 0x7fff + (bits >> 16 & 1)) & 0xffff_0000);
                        let half = u16::from_le_bytes(out[i * 2..][..2].try_into().unwrap());
                        f32::from_bits(u32::from(half) << 16)
                    }
                };
                assert_eq!(found, expected, "{dtype} {rows}x{width}, row {row}, column {column}");
            }
        }
    }
}

#[test]
fn lengths_are_those_of_the_positions() {
    let lowered = super::sparse::lengths([Arg::Operand(0), Arg::Scratch(0), Arg::Scratch(1)], 2061);
    let library = library(&[&lowered]);
    let positions: Vec<i32> = (0..2061).map(|i| i * 7 % 1000).collect();
    let mut buffers =
        vec![bytes(&positions, i32::to_le_bytes), vec![0; 2061 * 4], vec![0; 2061 * 4]];
    run(&library, &lowered, &mut buffers);
    let ends: Vec<i32> = (1..=2061).collect();
    let lengths: Vec<i32> = positions.iter().map(|p| p + 1).collect();
    assert!(buffers[1] == bytes(&ends, i32::to_le_bytes));
    assert!(buffers[2] == bytes(&lengths, i32::to_le_bytes));
}
