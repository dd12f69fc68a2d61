//! Kernels on the host: a correct one computes, and every seeded bug in it is told.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use precast_codegen_ascend::{
    chip::CHIPS,
    kernels::{Kernel, NAME, shim::Library},
};

/// Adds one to rows of 100 elements, one row after another through double buffers.
const CORRECT: &str = r#"#include "kernel_operator.h"
using namespace AscendC;
constexpr uint32_t COLUMNS = 100;
constexpr uint32_t BYTES = 416;
constexpr int DEPTH = 2;
extern "C" __global__ __aicore__ void @NAME@(GM_ADDR x, GM_ADDR y, uint64_t rows) {
    KERNEL_TASK_TYPE_DEFAULT(KERNEL_TYPE_AIV_ONLY);
    TPipe pipe;
    TQue<QuePosition::VECIN, DEPTH> input;
    TQue<QuePosition::VECOUT, DEPTH> output;
    TBuf<> work;
    pipe.InitBuffer(input, DEPTH, BYTES);
    pipe.InitBuffer(output, DEPTH, BYTES);
    pipe.InitBuffer(work, BYTES);
    GlobalTensor<float> from, to;
    from.SetGlobalBuffer((__gm__ float*)x);
    to.SetGlobalBuffer((__gm__ float*)y);
    for (uint64_t row = GetBlockIdx(); row < rows; row += GetBlockNum()) {
        LocalTensor<float> in = input.AllocTensor<float>();
        DataCopyPad(in, from[row * COLUMNS], DataCopyExtParams(1, COLUMNS * 4, 0, 0, 0), DataCopyPadExtParams<float>(false, 0, 0, 0.0f));
        input.EnQue(in);
        in = input.DeQue<float>();
        LocalTensor<float> out = output.AllocTensor<float>();
        LocalTensor<float> twice = work.Get<float>();
        Muls(twice, in, 2.0f, COLUMNS);
        PipeBarrier<PIPE_V>();
        Adds(out, twice, 1.0f, COLUMNS);
        input.FreeTensor(in);
        output.EnQue(out);
        out = output.DeQue<float>();
        DataCopyPad(to[row * COLUMNS], out, DataCopyExtParams(1, COLUMNS * 4, 0, 0, 0));
        output.FreeTensor(out);
    }
}
"#;

/// What is replaced by what, and what the error says.
const BUGS: &[(&str, &str, &str)] = &[
    ("row < rows", "row <= rows", "out of bounds"),
    (
        "Muls(twice, in, 2.0f, COLUMNS)",
        "Muls(twice, in, 2.0f, COLUMNS + 8)",
        "outside a local tensor",
    ),
    (
        "        input.EnQue(in);\n        in = input.DeQue<float>();\n",
        "",
        "is still enqueued|has written and not handed over",
    ),
    ("        input.FreeTensor(in);\n", "", "overflows: every buffer is in use"),
    (
        "        output.FreeTensor(out);\n",
        "        if (row != 63) output.FreeTensor(out);\n",
        "never freed",
    ),
    ("        PipeBarrier<PIPE_V>();\n", "", "needs a PipeBarrier"),
    (
        "        output.EnQue(out);\n        out = output.DeQue<float>();\n",
        "",
        "pipe V has written and not handed over to pipe MTE3",
    ),
    (
        "        in = input.DeQue<float>();\n",
        "        in = input.DeQue<float>();\n        input.EnQue(in);\n",
        "EnQue",
    ),
    (
        "        in = input.DeQue<float>();\n",
        "        in = input.DeQue<float>();\n        input.DeQue<float>();\n",
        "is empty",
    ),
    ("pipe.InitBuffer(work, BYTES)", "pipe.InitBuffer(work, 190000)", "UB overflows"),
    (
        "DataCopyPad(to[row * COLUMNS], out, DataCopyExtParams(1, COLUMNS * 4, 0, 0, 0))",
        "DataCopy(to[row * COLUMNS], out, COLUMNS + 1)",
        "no multiple of 32",
    ),
    (
        "DataCopyPad(to[row * COLUMNS], out, DataCopyExtParams(1, COLUMNS * 4, 0, 0, 0))",
        "DataCopy(to[row * COLUMNS + 1], out, 96)",
        "global address is no multiple",
    ),
    ("Adds(out, twice,", "Adds(out[1], twice,", "no multiple of 32"),
    ("to[row * COLUMNS]", "to[row * 50]", "race"),
    (
        "        output.EnQue(out);\n",
        "        output.EnQue(out);\n        twice.GetValue(0);\n",
        "pipe V has written and not handed over to pipe S",
    ),
    (
        "        output.EnQue(out);\n",
        "        output.EnQue(out);\n        WaitFlag<HardEvent::V_S>(0);\n",
        "wait for ever",
    ),
    (
        "        output.EnQue(out);\n",
        "        output.EnQue(out);\n        if (row == 0) SetFlag<HardEvent::V_S>(0);\n",
        "nothing has waited for",
    ),
    ("constexpr int DEPTH = 2", "constexpr int DEPTH = 9", "no event from"),
    (
        "        output.EnQue(out);\n",
        "        output.EnQue(out);\n        ReduceMax(twice, in, twice[96], COLUMNS, true);\n",
        "outside a local tensor",
    ),
    (
        "        Adds(out, twice, 1.0f, COLUMNS);\n",
        "        Adds(out, twice, 1.0f, COLUMNS);\n        CreateVecIndex(out, 0.0f, COLUMNS);\n",
        "pipe V has written and not handed over to pipe S",
    ),
    (
        "DataCopyPad(to[row * COLUMNS], out, DataCopyExtParams(1, COLUMNS * 4, 0, 0, 0))",
        "DataCopyPad(to[row * COLUMNS], out, DataCopyExtParams(1, 0, 0, 0, 0))",
        "blocks of 0",
    ),
    (
        "DataCopyPad(to[row * COLUMNS], out, DataCopyExtParams(1, COLUMNS * 4, 0, 0, 0))",
        "DataCopyPad(to[row * COLUMNS], out, DataCopyExtParams(4096, COLUMNS * 4, 0, 0, 0))",
        "1 to 4095 are possible",
    ),
    (
        "    KERNEL_TASK_TYPE_DEFAULT(KERNEL_TYPE_AIV_ONLY);\n",
        "    if (rows > 1000) KERNEL_TASK_TYPE_DEFAULT(KERNEL_TYPE_AIV_ONLY);\n",
        "KERNEL_TASK_TYPE_DEFAULT",
    ),
];

fn bytes(values: &mut [f32]) -> &mut [u8] {
    let (start, bytes) = (values.as_mut_ptr().cast(), size_of_val(values));
    // SAFETY: plain numbers, borrowed as long as the result.
    unsafe { std::slice::from_raw_parts_mut(start, bytes) }
}

fn run(library: &Library, kernel: &Kernel) -> Result<Vec<f32>, String> {
    const ROWS: usize = 64;
    let mut x: Vec<f32> = (0..ROWS * 100).map(|i| i as f32).collect();
    let mut y = vec![0f32; ROWS * 100];
    library.run(&kernel.name, 7, &mut [bytes(&mut x), bytes(&mut y)], &[ROWS as u64])?;
    Ok(y)
}

#[test]
fn a_correct_kernel_computes_and_each_seeded_bug_is_told() {
    let correct = Kernel::new("correct", CORRECT);
    let broken: Vec<Kernel> = BUGS
        .iter()
        .map(|(from, to, _)| {
            assert!(CORRECT.contains(from), "{from}");
            Kernel::new("broken", &CORRECT.replace(from, to))
        })
        .collect();
    let all: Vec<&Kernel> = broken.iter().chain([&correct]).collect();
    let library = Library::build(&all).unwrap();

    let y = run(&library, &correct).unwrap();
    assert!(y.iter().enumerate().all(|(i, &y)| y == 2.0 * i as f32 + 1.0));
    for ((from, to, expected), kernel) in BUGS.iter().zip(&broken) {
        let message = run(&library, kernel).map(|_| ()).expect_err(to);
        println!("{message}");
        let told = expected.split('|').any(|e| message.contains(e));
        assert!(told, "`{from}` as `{to}` says: {message}");
        assert!(message.contains(&kernel.name), "{message}");
    }
}

/// A cube core hands numbers to its two vector cores through global memory.
const MIXED: &str = r#"#include "kernel_operator.h"
using namespace AscendC;
extern "C" __global__ __aicore__ void @NAME@(GM_ADDR x) {
    KERNEL_TASK_TYPE_DEFAULT(KERNEL_TYPE_MIX_AIC_1_2);
    GlobalTensor<float> numbers;
    numbers.SetGlobalBuffer((__gm__ float*)x);
    if ASCEND_IS_AIC {
        numbers.SetValue(GetBlockIdx() * 64, 7.0f + GetBlockIdx());
        CrossCoreSetFlag<2, PIPE_FIX>(3);
        CrossCoreWaitFlag(4);
    }
    if ASCEND_IS_AIV {
        CrossCoreWaitFlag(3);
        const uint64_t mine = GetBlockIdx() / 2 * 64;
        const float found = numbers.GetValue(mine);
        numbers.SetValue(mine + 16 + 16 * GetSubBlockIdx(), found);
        CrossCoreSetFlag<2, PIPE_MTE3>(4);
    }
}
"#;

#[test]
fn cores_of_a_block_wait_for_each_other_and_a_deadlock_is_told() {
    let correct = Kernel::new("mixed", MIXED);
    let forgotten = Kernel::new(
        "mixed",
        &MIXED.replace(
            "CrossCoreSetFlag<2, PIPE_MTE3>(4);",
            "if (GetSubBlockIdx() == 0) CrossCoreSetFlag<2, PIPE_MTE3>(4);",
        ),
    );
    let unread = Kernel::new("mixed", &MIXED.replace("        CrossCoreWaitFlag(4);\n", ""));
    let library = Library::build(&[&correct, &forgotten, &unread]).unwrap();
    let mut x = [0f32; 3 * 64];
    library.run(&correct.name, 3, &mut [bytes(&mut x)], &[]).unwrap();
    assert_eq!([x[0], x[16], x[32]], [7.0; 3]);
    assert_eq!([x[128], x[144], x[160]], [9.0; 3]);
    let told = library.run(&forgotten.name, 3, &mut [bytes(&mut x)], &[]).unwrap_err();
    assert!(told.contains("wait for each other for ever: cube core 0"), "{told}");
    let told = library.run(&unread.name, 3, &mut [bytes(&mut x)], &[]).unwrap_err();
    assert!(told.contains("nothing has waited for it"), "{told}");
}

/// Rows of one core are read by the next after all have met.
const MEETING: &str = r#"#include "kernel_operator.h"
using namespace AscendC;
extern "C" __global__ __aicore__ void @NAME@(GM_ADDR x) {
    KERNEL_TASK_TYPE_DEFAULT(KERNEL_TYPE_AIV_ONLY);
    GlobalTensor<float> numbers;
    numbers.SetGlobalBuffer((__gm__ float*)x);
    const uint64_t me = GetBlockIdx(), all = GetBlockNum();
    numbers.SetValue(me * 16, float(me));
    SyncAll();
    numbers.SetValue((all + me) * 16, numbers.GetValue((me + 1) % all * 16));
}
"#;

#[test]
fn cores_meet_and_without_that_they_race() {
    let correct = Kernel::new("meeting", MEETING);
    let racing = Kernel::new("meeting", &MEETING.replace("    SyncAll();\n", ""));
    let library = Library::build(&[&correct, &racing]).unwrap();
    let mut x = [0f32; 8 * 16];
    library.run(&correct.name, 4, &mut [bytes(&mut x)], &[]).unwrap();
    assert_eq!([x[64], x[80], x[96], x[112]], [1.0, 2.0, 3.0, 0.0]);
    let told = library.run(&racing.name, 4, &mut [bytes(&mut x)], &[]).unwrap_err();
    assert!(told.contains("race"), "{told}");
}

#[test]
fn what_the_compiler_rejects_is_told() {
    let kernel = Kernel::new(
        "wrong",
        &CORRECT
            .replace("Muls(twice, in, 2.0f", "Muls(twice, in.ReinterpretCast<bfloat16_t>(), 2.0f"),
    );
    let error = Library::build(&[&kernel]).unwrap_err().to_string();
    assert!(error.contains("Muls"), "{error}");
    let no_such = Kernel::new(
        "wrong",
        &CORRECT.replace(
            "Muls(twice, in, 2.0f, COLUMNS)",
            "Cast(twice.ReinterpretCast<int8_t>(), in, RoundMode::CAST_RINT, COLUMNS)",
        ),
    );
    let error = Library::build(&[&no_such]).unwrap_err().to_string();
    assert!(error.contains("no such conversion"), "{error}");
}

/// What the host's compiler would take and the vendor's does not.
#[test]
fn what_the_vendors_headers_do_not_declare_is_not_taken() {
    let seeded = [
        // The macros begin with `constexpr`.
        (MIXED, "if ASCEND_IS_AIC {", "if (ASCEND_IS_AIC) {"),
        (MIXED, "GetBlockIdx() / 2 * 64", "(ASCEND_IS_AIC ? 1 : GetBlockIdx() / 2) * 64"),
        // Queues take back a variable, scalars have the type of the elements, counts of blocks have
        // 16 bits.
        (CORRECT, "FreeTensor(in)", "FreeTensor(in[0])"),
        (CORRECT, "Muls(twice, in, 2.0f, COLUMNS)", "Muls(twice, in, 2, COLUMNS)"),
        (
            CORRECT,
            "DataCopyExtParams(1, COLUMNS * 4, 0, 0, 0), D",
            "DataCopyExtParams{uint32_t(rows), COLUMNS * 4, 0, 0, 0}, D",
        ),
    ];
    for (source, from, to) in seeded {
        assert!(source.contains(from), "{from}");
        let kernel = Kernel::new("wrong", &source.replace(from, to));
        assert!(Library::build(&[&kernel]).is_err(), "{to}");
    }
}

/// The header has the capacities of every chip.
#[test]
fn capacities_are_those_of_the_chips() {
    assert!(CHIPS.iter().all(|c| c.ub_bytes == 184 * 1024 - 256 && c.l1_bytes == 512 * 1024 - 256));
    let core =
        precast_codegen_ascend::kernels::shim::FILES.iter().find(|f| f.0 == "core.h").unwrap().1;
    assert!(core.contains("PRECAST_UB_BYTES (184 * 1024 - 256)"));
    assert!(core.contains("L1_BYTES = 512 * 1024 - 256"));
    assert!(CORRECT.contains(NAME));
}
