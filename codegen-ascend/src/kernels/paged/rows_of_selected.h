// Brings columns `c ..` of the latents at `rows` selected places from number `at` on to L1, row by row;
// as keys, their rotated parts too.
template <bool KEYS, typename Step>
__aicore__ inline void CopyRows(const Operands &operands, const LocalTensor<Cached> &to, const Step &step,
                                uint32_t at, uint32_t rows, uint32_t c, uint32_t columns)
{
    const uint64_t list = step.row * operands.selectedStride + at;
    const uint64_t table = step.row / operands.rowsPerSequence * operands.width;
    const uint32_t down = RoundUp(rows, 16);
    for (uint32_t i = 0; i < rows; ++i) {
        const uint64_t place = operands.selected.GetValue(list + i);
        const uint64_t row = static_cast<uint64_t>(operands.table.GetValue(table + place / BLOCK)) * BLOCK + place % BLOCK;
        DataCopy(to[i * 16], operands.latent[row * KEY0 + c], Nd2NzParams(1, 1, columns, 0, KEY0, down, 1, 0));
        if constexpr (KEYS) {
            DataCopy(to[down * KEY0 + i * 16], operands.rope[row * KEY1], Nd2NzParams(1, 1, KEY1, 0, KEY1, down, 1, 0));
        }
    }
}
