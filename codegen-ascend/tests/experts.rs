//! The order of experts, and the rows in it.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]
#![allow(missing_docs, reason = "a test")]

mod support;

use compiler::Arg;
use ir::{Op, interp::Tensor};
use precast_codegen_ascend::kernels::experts::{
    self, GatherArgs, GroupList, ScatterArgs, gather_rows_by_order, scatter_rows_by_order,
};
use support::{Case, Kernels, Random, check, chip, ints};
use tensor::DType;

fn ids(random: &mut Random, tokens: usize, k: usize, experts: u64) -> Tensor {
    ints(&[tokens, k], (0..tokens * k).map(|_| random.below(experts) as i64))
}

fn groups(random: &mut Random, tokens: usize, k: usize, experts: u64) -> Case {
    Case::new(Op::ExpertGroups { experts }, vec![ids(random, tokens, k, experts)], &[])
}

#[test]
fn pairs_are_in_the_order_of_their_experts() {
    let mut random = Random(1);
    let sizes = [(1, 1, 1), (3, 2, 5), (24, 8, 16), (40, 4, 16), (7, 8, 256), (600, 8, 16)];
    let cases: Vec<Case> = sizes.map(|(t, k, e)| groups(&mut random, t, k, e)).into();
    check(experts::lower, &cases, 0.0);
}

/// A product of rows gathered by the order, scattered back, is where its pair is.
#[test]
fn rows_go_there_and_back() {
    let mut random = Random(2);
    let mut all = Vec::new();
    for (dtype, tokens, k, columns, own, gap, counts) in [
        (DType::F32, 5, 2, 24, false, 0, false),
        (DType::BF16, 24, 8, 64, false, 16, true),
        (DType::BF16, 9, 4, 33, true, 7, false),
        (DType::I8, 40, 4, 40, true, 0, true),
        (DType::F32, 3, 2, 20_000, false, 0, false),
    ] {
        let groups = groups(&mut random, tokens, k, 16);
        let [order, starts] = <[Tensor; 2]>::try_from(groups.expected()).unwrap();
        let pairs = tokens * k;
        let dims = if own { vec![tokens, k, columns] } else { vec![tokens, columns] };
        let x = random.tensor(dtype, &dims, 100.0);
        // The shapes of a gather followed by a scatter: what is expected is row `t` for each pair.
        let mut case = Case::new(
            Op::GroupedMatmul { out: dtype },
            vec![x.clone(), order.clone(), starts.clone()],
            &[],
        );
        case.gaps = vec![gap];
        let out = support::dense(dtype, &[tokens, k, columns]);
        let operands = case.operands_only();
        let list = Some(GroupList { list: Arg::Scratch(1), counts });
        let args = GatherArgs {
            x: Arg::Operand(0),
            order: Arg::Operand(1),
            starts: Arg::Operand(2),
            rows: Arg::Scratch(0),
            group_list: list,
        };
        let [x_side, order_side, starts_side] = <[_; 3]>::try_from(operands).unwrap();
        let mut there =
            gather_rows_by_order(&x_side, own, &order_side, &starts_side, &args, chip()).unwrap();
        let bytes = dtype.bytes_for((pairs * columns) as u64);
        there.scratch_bytes = vec![bytes, 16 * 8];
        let args =
            ScatterArgs { rows: Arg::Scratch(0), order: Arg::Operand(1), out: Arg::Result(0) };
        let back = scatter_rows_by_order(&order_side, &out, &args, chip()).unwrap();
        there.calls.extend(back.calls);
        there.files.extend(back.files);

        let row = |pair: usize| if own { pair } else { pair / k };
        let rows: Vec<&[f64]> = x.data().chunks_exact(columns).collect();
        let expected: Vec<f64> = (0..pairs).flat_map(|p| rows[row(p)].to_vec()).collect();
        let pairs_before = starts.data();
        let less = |begin: f64| if counts { begin } else { 0.0 };
        let list =
            pairs_before[1..].iter().zip(pairs_before).map(|(end, &begin)| end - less(begin));
        let list: Vec<i64> = list.map(|x| x as i64).collect();
        all.push((case, out, there, expected, list));
    }
    let kernels = Kernels::of(all.iter().map(|(_, _, lowered, ..)| lowered));
    for (case, out, lowered, expected, groups) in all {
        let (found, scratch) = kernels.run_with(&case, &[out], &lowered).unwrap();
        assert_eq!(found[0].data(), expected);
        let list = scratch[1].chunks_exact(8).map(|b| i64::from_le_bytes(b.try_into().unwrap()));
        assert_eq!(list.collect::<Vec<_>>(), groups, "the list of groups");
    }
}

/// A chunk that is one pair too long is told.
#[test]
fn a_row_too_many_is_out_of_bounds() {
    let mut random = Random(3);
    let case = groups(&mut random, 5, 2, 4);
    let mut lowered = case.lower(experts::lower).unwrap();
    let bug = ("Least(CHUNK, pairs - first)", "Least(CHUNK, pairs - first + 1)");
    assert!(lowered.files[0].text.contains(bug.0));
    lowered.files[0].text = lowered.files[0].text.replace(bug.0, bug.1);
    let error = Kernels::of([&lowered]).run(&case, &lowered).unwrap_err();
    assert!(error.contains("outside a global tensor"), "{error}");
}
