// Cores of a block hand each other scores, weights and mixed values through memory of the block, two
// of each, so that a step's scores are computed while the weights of the step before are.
constexpr uint16_t SCORES_READY = 0, WEIGHTS_READY = 1, VALUES_READY = 2;

struct Exchange {
    GlobalTensor<float> scores, mixed;  // [2][VECTORS][PIECE], [2][VECTORS][VALUE]
    GlobalTensor<bfloat16_t> weights;   // [2][VECTORS][PIECE]

    __aicore__ inline Exchange(GM_ADDR memory, uint32_t block)
    {
        constexpr uint64_t SCORES = 2 * VECTORS * PIECE * 4, WEIGHTS = 2 * VECTORS * PIECE * 2,
                           MIXED = 2 * VECTORS * VALUE * 4;
        GM_ADDR own = memory + block * (SCORES + WEIGHTS + MIXED);
        scores.SetGlobalBuffer((__gm__ float *)own, SCORES / 4);
        weights.SetGlobalBuffer((__gm__ bfloat16_t *)(own + SCORES), WEIGHTS / 2);
        mixed.SetGlobalBuffer((__gm__ float *)(own + SCORES + WEIGHTS), MIXED / 4);
    }
};

// The cube core: scores of a step, and its values weighted.
class Products {
public:
    __aicore__ inline Products(TPipe &pipe, const Operands &operands, const Exchange &exchange)
        : operands(operands), exchange(exchange)
    {
        pipe.InitBuffer(queryL1, 1, VECTORS * KEY_WIDTH * sizeof(bfloat16_t));
        pipe.InitBuffer(weightL1, 1, VECTORS * PIECE * sizeof(bfloat16_t));
        pipe.InitBuffer(tileL1, 2, TILE_BYTES);
        pipe.InitBuffer(leftL0, 2, VECTORS * STEP * sizeof(bfloat16_t));
        pipe.InitBuffer(rightL0, 2, STEP * STEP * sizeof(bfloat16_t));
        pipe.InitBuffer(sumL0, 2, VECTORS * STEP * sizeof(float));
    }

    __aicore__ inline void Run(Steps &steps)
    {
        Step now{}, next{};
        bool more = steps.Next(now);
        if (more) {
            Scores(now, 0);
        }
        for (uint32_t slot = 0; more; slot ^= 1) {
            const bool another = steps.Next(next);
            if (another) {
                Scores(next, slot ^ 1);
            }
            CrossCoreWaitFlag(WEIGHTS_READY);
            Values(now, slot);
            now = next;
            more = another;
        }
        if (loaded) {
            queryL1.FreeTensor(query);
        }
    }

private:
    // scores[vector][place - start of the piece] = query . key
    __aicore__ inline void Scores(const Step &step, uint32_t slot)
    {
        const uint32_t vectors = step.rows * ITEM_HEADS;
        if (step.first) {
            LoadQueries(step);
        }
        for (uint32_t at = step.from; at < step.to;) {
            const uint32_t keys = operands.Run(at, step.to, KEYS_AT_ONCE);
            LocalTensor<bfloat16_t> tile = tileL1.AllocTensor<bfloat16_t>();
            CopyRows<true>(operands, tile, step, at, keys, 0, KEY0);
            tileL1.EnQue(tile);
            tile = tileL1.DeQue<bfloat16_t>();
            LocalTensor<float> sum = sumL0.AllocTensor<float>();
            for (uint32_t c = 0; c < KEY_WIDTH; c += STEP) {
                const uint32_t columns = Least(STEP, KEY_WIDTH - c);
                LoadLeft(query, c, columns);
                // Keys are rows: as the right operand they stand in L0B as they stand in L1.
                LocalTensor<bfloat16_t> right = rightL0.AllocTensor<bfloat16_t>();
                const uint32_t across = CeilDiv(keys, 16);
                LoadData(right, tile, LoadData2DParams(c / 16 * across, columns / 16 * across, 1, 0, 0, false, 0));
                rightL0.EnQue(right);
                Multiply(sum, RoundUp(keys, 16), columns, c == 0);
            }
            tileL1.FreeTensor(tile);
            Write(exchange.scores[slot * VECTORS * PIECE + (at - step.piece * PIECE)], sum, vectors, keys, PIECE);
            at += keys;
        }
        CrossCoreSetFlag<2, PIPE_FIX>(SCORES_READY);
    }

    // mixed[vector] = the sum over the places of weight * value
    __aicore__ inline void Values(const Step &step, uint32_t slot)
    {
        const uint32_t vectors = step.rows * ITEM_HEADS, start = step.piece * PIECE;
        LocalTensor<bfloat16_t> weight = weightL1.AllocTensor<bfloat16_t>();
        DataCopy(weight, exchange.weights[slot * VECTORS * PIECE],
                 Nd2NzParams(1, vectors, RoundUp(step.to - start, 16), 0, PIECE, VECTORS, 1, 0));
        weightL1.EnQue(weight);
        weight = weightL1.DeQue<bfloat16_t>();
        for (uint32_t c = 0; c < VALUE; c += STEP) {
            const uint32_t columns = Least(STEP, VALUE - c);
            LocalTensor<float> sum = sumL0.AllocTensor<float>();
            for (uint32_t at = step.from; at < step.to;) {
                const uint32_t keys = operands.Run(at, step.to, STEP);
                LocalTensor<bfloat16_t> tile = tileL1.AllocTensor<bfloat16_t>();
                CopyRows<false>(operands, tile, step, at, keys, c, columns);
                tileL1.EnQue(tile);
                tile = tileL1.DeQue<bfloat16_t>();
                LoadLeft(weight, at - start, RoundUp(keys, 16));
                // Values are rows: each fractal is transposed on its way.
                LocalTensor<bfloat16_t> right = rightL0.AllocTensor<bfloat16_t>();
                const uint32_t down = CeilDiv(keys, 16);
                for (uint32_t k = 0; k < down; ++k) {
                    LoadData(right[k * columns * 16], tile, LoadData2DParams(k, columns / 16, down, 0, 0, true, 0));
                }
                rightL0.EnQue(right);
                // Exactly `keys` terms: what stands behind the last row of the tile takes no part.
                Multiply(sum, columns, keys, at == step.from);
                tileL1.FreeTensor(tile);
                at += keys;
            }
            Write(exchange.mixed[slot * VECTORS * VALUE + c], sum, vectors, columns, VALUE);
        }
        weightL1.FreeTensor(weight);
        CrossCoreSetFlag<2, PIPE_FIX>(VALUES_READY);
    }

    __aicore__ inline void LoadQueries(const Step &step)
    {
        if (loaded) {
            queryL1.FreeTensor(query);
        }
        query = queryL1.AllocTensor<bfloat16_t>();
        for (uint32_t r = 0; r < step.rows; ++r) {
            const uint64_t t = step.row + r;
            DataCopy(query[r * ITEM_HEADS * 16], operands.query[t * operands.queryStride + step.head * KEY0],
                     Nd2NzParams(1, ITEM_HEADS, KEY0, 0, KEY0, VECTORS, 1, 0));
            if constexpr (KEY1 > 0) {
                DataCopy(query[VECTORS * KEY0 + r * ITEM_HEADS * 16],
                         operands.query1[t * operands.query1Stride + step.head * KEY1],
                         Nd2NzParams(1, ITEM_HEADS, KEY1, 0, KEY1, VECTORS, 1, 0));
            }
        }
        queryL1.EnQue(query);
        query = queryL1.DeQue<bfloat16_t>();
        loaded = true;
    }

    // Columns `c ..` of a left operand of VECTORS rows, row of fractals by row.
    __aicore__ inline void LoadLeft(const LocalTensor<bfloat16_t> &from, uint32_t c, uint32_t columns)
    {
        constexpr uint32_t DOWN = VECTORS / 16;
        LocalTensor<bfloat16_t> left = leftL0.AllocTensor<bfloat16_t>();
        for (uint32_t m = 0; m < DOWN; ++m) {
            LoadData(left[m * columns * 16], from, LoadData2DParams(c / 16 * DOWN + m, columns / 16, DOWN, 0, 0, false, 0));
        }
        leftL0.EnQue(left);
    }

    __aicore__ inline void Multiply(const LocalTensor<float> &sum, uint32_t columns, uint32_t terms, bool first)
    {
        LocalTensor<bfloat16_t> left = leftL0.DeQue<bfloat16_t>(), right = rightL0.DeQue<bfloat16_t>();
        Mmad(sum, left, right, MmadParams(VECTORS, columns, terms, 0, false, first));
        PipeBarrier<PIPE_M>();
        leftL0.FreeTensor(left);
        rightL0.FreeTensor(right);
    }

    __aicore__ inline void Write(const GlobalTensor<float> &to, LocalTensor<float> sum, uint32_t rows,
                                 uint32_t columns, uint32_t stride)
    {
        sumL0.EnQue(sum);
        sum = sumL0.DeQue<float>();
        FixpipeParamsV220 extent;
        extent.nSize = columns;
        extent.mSize = rows;
        extent.srcStride = VECTORS;
        extent.dstStride = stride;
        Fixpipe<float, float, CFG_ROW_MAJOR>(to, sum, extent);
        sumL0.FreeTensor(sum);
    }

    const Operands &operands;
    const Exchange &exchange;
    TQue<QuePosition::A1, 1> queryL1, weightL1;
    TQue<QuePosition::B1, 2> tileL1;
    TQue<QuePosition::A2, 2> leftL0;
    TQue<QuePosition::B2, 2> rightL0;
    TQue<QuePosition::CO1, 2> sumL0;
    LocalTensor<bfloat16_t> query;
    bool loaded = false;
};
