// Where queries, latents and rotated keys are: all heads read the same rows of two paged memories,
// latent [blocks, BLOCK, KEY0], which are the values too, and rope [blocks, BLOCK, KEY1].
struct Operands {
    GlobalTensor<Query> query, query1;
    GlobalTensor<Cached> latent, rope;
    GlobalTensor<int32_t> table, positions;
    uint64_t queryStride, query1Stride, width;
    uint32_t rowsPerSequence;

    __aicore__ inline uint32_t End(uint32_t t) const { return static_cast<uint32_t>(positions.GetValue(t)) + 1; }
    __aicore__ inline uint32_t First(uint32_t) const { return 0; }

    // Up to `most` places from `at` on that are one run of memory: runs end with blocks.
    __aicore__ inline uint32_t Run(uint32_t at, uint32_t end, uint32_t most) const
    {
        return Least(Least(most, BLOCK - at % BLOCK), end - at);
    }

    template <bool KEYS>
    __aicore__ inline void CopyTile(const LocalTensor<Cached> &to, uint32_t t, uint32_t, uint32_t at, uint32_t rows) const
    {
        const uint64_t block = table.GetValue(t / rowsPerSequence * width + at / BLOCK);
        const uint64_t row = block * BLOCK + at % BLOCK;
        DataCopy(to, latent[row * KEY0], rows * KEY0);
        if constexpr (KEYS) {
            const uint32_t bytes = rows * KEY1 * sizeof(Cached);
            DataCopyPad(to[TILE * KEY0], rope[row * KEY1], DataCopyExtParams{1, bytes, 0, 0, 0},
                        DataCopyPadExtParams<Cached>{false, 0, 0, 0});
        }
    }
};
