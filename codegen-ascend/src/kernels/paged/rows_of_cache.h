// Brings columns `c ..` of `rows` keys (or values) from place `at` on to L1.
template <bool KEYS, typename Step>
__aicore__ inline void CopyRows(const Operands &operands, const LocalTensor<Cached> &to, const Step &step,
                                uint32_t at, uint32_t rows, uint32_t c, uint32_t columns)
{
    const uint64_t entry = step.row / operands.rowsPerSequence * operands.width + at / BLOCK;
    const uint64_t block = operands.table.GetValue(entry);
    const uint64_t run = (block * 2 + (KEYS ? 0 : 1)) * KV_HEADS + step.head / (HEADS / KV_HEADS);
    DataCopy(to, operands.cache[(run * BLOCK + at % BLOCK) * KEY0 + c],
             Nd2NzParams(1, rows, columns, 0, KEY0, RoundUp(rows, 16), 1, 0));
}
