//! Functions that generated kernels are made of. A source has those that it names.

/// The text of a function that joins every element of a vector with the number of a block.
macro_rules! with_block {
    ($name:literal, $what:literal, $instruction:literal) => {
        concat!(
            "/// ",
            $what,
            "\n__aicore__ inline void ",
            $name,
            "(const LocalTensor<float>& to, const LocalTensor<float>& x,
                                const LocalTensor<float>& block, uint32_t count) {
    constexpr uint32_t LANES = 64, REPEATS = 255;
    uint32_t at = 0;
    for (; at + LANES <= count;) {
        const uint32_t left = (count - at) / LANES;
        const uint32_t repeats = left < REPEATS ? left : REPEATS;
        ",
            $instruction,
            "(to[at], x[at], block, LANES, repeats, BinaryRepeatParams(1, 1, 0, 8, 8, 0));
        at += repeats * LANES;
    }
    if (at < count) ",
            $instruction,
            "(to[at], x[at], block, count - at, 1, BinaryRepeatParams(1, 1, 0, 8, 8, 0));
    Step();
}
"
        )
    };
}

/// Name and text, in order of dependence.
const HELPERS: &[(&str, &str)] = &[
    (
        "Step",
        "/// Vector instructions after it see what those before it have written.
__aicore__ inline void Step() { PipeBarrier<PIPE_V>(); }
",
    ),
    (
        "VectorToScalar",
        "/// The scalar unit sees what the vector unit has written.
__aicore__ inline void VectorToScalar() {
    const event_t event = static_cast<event_t>(GetTPipePtr()->FetchEventID(HardEvent::V_S));
    SetFlag<HardEvent::V_S>(event);
    WaitFlag<HardEvent::V_S>(event);
}
",
    ),
    (
        "ScalarToVector",
        "/// The vector unit, and whoever it hands its results to, sees what the scalar unit has written.
__aicore__ inline void ScalarToVector() {
    const event_t event = static_cast<event_t>(GetTPipePtr()->FetchEventID(HardEvent::S_V));
    SetFlag<HardEvent::S_V>(event);
    WaitFlag<HardEvent::S_V>(event);
}
",
    ),
    (
        "SetNumbers",
        "/// Numbers from element `at` on, by the scalar unit. A list of constants would be a variable of the
/// program, which the device does not have.
template <typename... Numbers>
__aicore__ inline void SetNumbers(const LocalTensor<float>& to, uint32_t at, Numbers... numbers) {
    (to.SetValue(at++, numbers), ...);
}
",
    ),
    (
        "CopyToVector",
        "/// The vector unit sees what copies have brought.
__aicore__ inline void CopyToVector() {
    const event_t event = static_cast<event_t>(GetTPipePtr()->FetchEventID(HardEvent::MTE2_V));
    SetFlag<HardEvent::MTE2_V>(event);
    WaitFlag<HardEvent::MTE2_V>(event);
}
",
    ),
    (
        "VectorToCopy",
        "/// Copies may overwrite what the vector unit has read.
__aicore__ inline void VectorToCopy() {
    const event_t event = static_cast<event_t>(GetTPipePtr()->FetchEventID(HardEvent::V_MTE2));
    SetFlag<HardEvent::V_MTE2>(event);
    WaitFlag<HardEvent::V_MTE2>(event);
}
",
    ),
    (
        "CopyIn",
        "/// `runs` runs of `length` elements, `gap` elements apart in global memory. In local memory each
/// begins at a whole block of 32 bytes.
template <typename T>
__aicore__ inline void CopyIn(const LocalTensor<T>& to, const GlobalTensor<T>& from, uint32_t runs,
                              uint32_t length, uint32_t gap) {
    const DataCopyExtParams shape{static_cast<uint16_t>(runs), static_cast<uint32_t>(length * sizeof(T)),
                                  static_cast<uint32_t>(gap * sizeof(T)), 0, 0};
    const DataCopyPadExtParams<T> padding{false, 0, 0, static_cast<T>(0)};
    DataCopyPad(to, from, shape, padding);
}
",
    ),
    (
        "CopyOut",
        "/// `runs` runs of `length` elements, `gap` elements apart in global memory.
template <typename T>
__aicore__ inline void CopyOut(const GlobalTensor<T>& to, const LocalTensor<T>& from, uint32_t runs,
                               uint32_t length, uint32_t gap) {
    const DataCopyExtParams shape{static_cast<uint16_t>(runs), static_cast<uint32_t>(length * sizeof(T)), 0,
                                  static_cast<uint32_t>(gap * sizeof(T)), 0};
    DataCopyPad(to, from, shape);
}
",
    ),
    (
        "Spread",
        "/// The first element of `from` fills the first block of `block`, which has room for eight blocks.
__aicore__ inline void Spread(const LocalTensor<float>& block, const LocalTensor<float>& from) {
    Brcb(block, from, 1, BrcbRepeatParams(1, 8));
    Step();
}
",
    ),
    ("MulBlock", with_block!("MulBlock", "Each element of `x` times the number that fills `block`.", "Mul")),
    ("DivBlock", with_block!("DivBlock", "Each element of `x` divided by the number that fills `block`.", "Div")),
    ("AddBlock", with_block!("AddBlock", "Each element of `x` plus the number that fills `block`.", "Add")),
    (
        "ExpNegated",
        "/// `1 + exp(-x)`.
__aicore__ inline void ExpNegated(const LocalTensor<float>& to, const LocalTensor<float>& x, uint32_t count) {
    Muls(to, x, -1.0f, count);
    Step();
    Exp(to, to, count);
    Step();
    Adds(to, to, 1.0f, count);
    Step();
}
",
    ),
    (
        "RoundToWhole",
        "/// The nearest whole numbers, ties to even; `codes` is overwritten.
__aicore__ inline void RoundToWhole(const LocalTensor<float>& x, const LocalTensor<int32_t>& codes, uint32_t count) {
    Cast(codes, x, RoundMode::CAST_RINT, count);
    Step();
    Cast(x, codes, RoundMode::CAST_RINT, count);
    Step();
}
",
    ),
    (
        "SquaresSum",
        "/// The sum of squares of `x`; `squares` and `work` are overwritten.
__aicore__ inline void SquaresSum(const LocalTensor<float>& sum, const LocalTensor<float>& x,
                                  const LocalTensor<float>& squares, const LocalTensor<float>& work, uint32_t count) {
    Mul(squares, x, x, count);
    Step();
    ReduceSum(sum, squares, work, count);
    Step();
}
",
    ),
];

/// The source of a kernel around `body`, with what `body` names.
pub(super) fn source(about: &str, body: &str) -> String {
    let mut used: Vec<&(&str, &str)> = Vec::new();
    let mut text = body.to_owned();
    for helper in HELPERS.iter().rev() {
        if text.contains(&format!("{}(", helper.0)) {
            text += helper.1;
            used.push(helper);
        }
    }
    let helpers: Vec<&str> = used.iter().rev().map(|h| h.1).collect();
    format!(
        "{about}#include \"kernel_operator.h\"\n\nusing namespace AscendC;\n\n{}\n{body}",
        helpers.join("\n")
    )
}
