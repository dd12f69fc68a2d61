// Brings columns `c ..` of `rows` latents from place `at` on to L1; as keys, their rotated parts too.
template <bool KEYS, typename Step>
__aicore__ inline void CopyRows(const Operands &operands, const LocalTensor<Cached> &to, const Step &step,
                                uint32_t at, uint32_t rows, uint32_t c, uint32_t columns)
{
    const uint64_t entry = step.row / operands.rowsPerSequence * operands.width + at / BLOCK;
    const uint64_t row = static_cast<uint64_t>(operands.table.GetValue(entry)) * BLOCK + at % BLOCK;
    const uint32_t down = RoundUp(rows, 16);
    DataCopy(to, operands.latent[row * KEY0 + c], Nd2NzParams(1, rows, columns, 0, KEY0, down, 1, 0));
    if constexpr (KEYS) {
        DataCopy(to[down * KEY0], operands.rope[row * KEY1], Nd2NzParams(1, rows, KEY1, 0, KEY1, down, 1, 0));
    }
}
