// Where queries, latents and rotated keys are, as places that each row names in ascending order:
// selected [rows, SELECTED], whose negative entries come last. "Places" below are indices into it.
struct Operands {
    GlobalTensor<Query> query, query1;
    GlobalTensor<Cached> latent, rope;
    GlobalTensor<int32_t> table, positions, selected;
    uint64_t queryStride, query1Stride, selectedStride, width;
    uint32_t rowsPerSequence;

    // How many entries are not negative.
    __aicore__ inline uint32_t End(uint32_t t) const
    {
        uint32_t low = 0, high = SELECTED;
        while (low < high) {
            const uint32_t middle = (low + high) / 2;
            if (selected.GetValue(t * selectedStride + middle) >= 0) {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        return low;
    }
    __aicore__ inline uint32_t First(uint32_t) const { return 0; }
    __aicore__ inline uint32_t Run(uint32_t at, uint32_t end, uint32_t most) const { return Least(most, end - at); }

    template <bool KEYS>
    __aicore__ inline void CopyTile(const LocalTensor<Cached> &to, uint32_t t, uint32_t, uint32_t at, uint32_t rows) const
    {
        for (uint32_t i = 0; i < rows; ++i) {
            const uint64_t place = selected.GetValue(t * selectedStride + at + i);
            const uint64_t block = table.GetValue(t / rowsPerSequence * width + place / BLOCK);
            const uint64_t row = block * BLOCK + place % BLOCK;
            DataCopy(to[i * KEY0], latent[row * KEY0], KEY0);
            if constexpr (KEYS) {
                // Rows of fewer than 32 bytes are filled up with zeros.
                constexpr uint8_t FILL = PITCH1 - KEY1;
                DataCopyPad(to[TILE * KEY0 + i * PITCH1], rope[row * KEY1],
                            DataCopyExtParams{1, KEY1 * sizeof(Cached), 0, 0, 0},
                            DataCopyPadExtParams<Cached>{FILL > 0, 0, FILL, 0});
            }
        }
    }
};
