// Where queries, keys and values are: a cache [blocks, 2, KV_HEADS, BLOCK, KEY0] of keys, then values.
struct Operands {
    GlobalTensor<Query> query, query1;
    GlobalTensor<Cached> cache;
    GlobalTensor<int32_t> table, positions;
    uint64_t queryStride, query1Stride, width;
    uint32_t rowsPerSequence;

    // Places of row `t` that it may attend to end here; `first` says where they begin.
    __aicore__ inline uint32_t End(uint32_t t) const { return static_cast<uint32_t>(positions.GetValue(t)) + 1; }
    __aicore__ inline uint32_t First(uint32_t end) const { return WINDOW > 0 && end > WINDOW ? end - WINDOW : 0; }

    // Up to `most` places from `at` on that are one run of memory: runs end with blocks.
    __aicore__ inline uint32_t Run(uint32_t at, uint32_t end, uint32_t most) const
    {
        return Least(Least(most, BLOCK - at % BLOCK), end - at);
    }

    template <bool KEYS>
    __aicore__ inline void CopyTile(const LocalTensor<Cached> &to, uint32_t t, uint32_t head, uint32_t at, uint32_t rows) const
    {
        const uint64_t block = table.GetValue(t / rowsPerSequence * width + at / BLOCK);
        const uint64_t run = (block * 2 + (KEYS ? 0 : 1)) * KV_HEADS + head / (HEADS / KV_HEADS);
        DataCopy(to, cache[(run * BLOCK + at % BLOCK) * KEY0], rows * KEY0);
    }
};
