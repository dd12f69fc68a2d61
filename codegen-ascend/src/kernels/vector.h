// The largest run of lanes that one repetition of a vector instruction works on.
constexpr uint32_t LANES = 64;

__aicore__ inline uint8_t Blocks(uint32_t floats) { return static_cast<uint8_t>(floats / 8); }

// Elements of either type as f32.
template <typename T>
__aicore__ inline void Widen(const LocalTensor<float> &to, const LocalTensor<T> &from, uint32_t count)
{
    if constexpr (sizeof(T) == sizeof(float)) {
        Adds(to, from, 0.0f, count);
    } else {
        Cast(to, from, RoundMode::CAST_NONE, count);
    }
    PipeBarrier<PIPE_V>();
}

// f32 as elements of either type, to the nearest.
template <typename T>
__aicore__ inline void Narrow(const LocalTensor<T> &to, const LocalTensor<float> &from, uint32_t count)
{
    if constexpr (sizeof(T) == sizeof(float)) {
        Adds(to, from, 0.0f, count);
    } else {
        Cast(to, from, RoundMode::CAST_RINT, count);
    }
    PipeBarrier<PIPE_V>();
}

// matrix[0] = the sum of `rows` rows of n floats; the others are lost. Halves are added until one row
// is left, so that the order of the sum depends on the number of rows alone.
__aicore__ inline void SumRows(const LocalTensor<float> &matrix, uint32_t rows, uint32_t n)
{
    while (rows > 1) {
        const uint32_t kept = (rows + 1) / 2;
        Add(matrix, matrix, matrix[kept * n], (rows - kept) * n);
        PipeBarrier<PIPE_V>();
        rows = kept;
    }
}

// products[r][c] = matrix[r][c] * weights[r] for rows of n floats; `spread` holds each weight eight
// times.
__aicore__ inline void ScaleRows(const LocalTensor<float> &products, const LocalTensor<float> &matrix,
                                 const LocalTensor<float> &spread, uint32_t rows, uint32_t n)
{
    const BinaryRepeatParams each{1, 1, 0, Blocks(n), Blocks(n), 1};
    for (uint32_t c = 0; c < n; c += LANES) {
        Mul(products[c], matrix[c], spread, Least(LANES, n - c), static_cast<uint8_t>(rows), each);
    }
    PipeBarrier<PIPE_V>();
}
