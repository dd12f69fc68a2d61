// One piece of the keys of a row, for ITEM_HEADS of its heads: scores of all its places, their
// softmax against the largest score of the piece, and the weighted sum of the values.
//
// A row is cut into pieces at multiples of PIECE places whatever runs beside it, and pieces are
// folded together in order: its bits depend on nothing but the row.
class Piece {
public:
    __aicore__ inline void Init(TPipe &pipe)
    {
        pipe.InitBuffer(rawQueue, 2, TILE * RAW_BYTES);
        pipe.InitBuffer(queryQueue, 1, ITEM_HEADS * QUERY_BYTES);
        pipe.InitBuffer(queryBuffer, ITEM_HEADS * KEY_WIDTH * sizeof(float));
        pipe.InitBuffer(tileBuffer, TILE * TILE_PITCH * sizeof(float));
        pipe.InitBuffer(productBuffer, TILE * PRODUCT_PITCH * sizeof(float));
        pipe.InitBuffer(scoreBuffer, ITEM_HEADS * PIECE * sizeof(float));
        pipe.InitBuffer(mixedBuffer, ITEM_HEADS * VALUE * sizeof(float));
        pipe.InitBuffer(spreadBuffer, TILE * 8 * sizeof(float));
        pipe.InitBuffer(statBuffer, ITEM_HEADS * 8 * sizeof(float));
        pipe.InitBuffer(workBuffer, 1024);
        queries = queryBuffer.Get<float>();
        tile = tileBuffer.Get<float>();
        products = productBuffer.Get<float>();
        scores = scoreBuffer.Get<float>();
        mixed = mixedBuffer.Get<float>();
    }

    // The queries of heads from `head` on of row `t`, in f32: part by part, head by head.
    __aicore__ inline void LoadQueries(const Operands &operands, uint32_t t, uint32_t head)
    {
        LocalTensor<Query> raw = queryQueue.AllocTensor<Query>();
        LoadRow(raw, operands.query[t * operands.queryStride + head * KEY0], ITEM_HEADS * KEY0);
        if constexpr (KEY1 > 0) {
            LoadRow(raw[ITEM_HEADS * KEY0], operands.query1[t * operands.query1Stride + head * KEY1],
                    ITEM_HEADS * KEY1);
        }
        queryQueue.EnQue(raw);
        raw = queryQueue.DeQue<Query>();
        Widen(queries, raw, ITEM_HEADS * KEY_WIDTH);
        queryQueue.FreeTensor(raw);
    }

    // Places `begin .. end` of the row, which lie in one piece; `begin` is a multiple of 8, and
    // places before `first` do not count.
    __aicore__ inline void Run(const Operands &operands, uint32_t t, uint32_t head, uint32_t begin,
                               uint32_t first, uint32_t end)
    {
        for (uint32_t at = begin; at < end;) {
            const uint32_t rows = operands.Run(at, end, TILE);
            LoadTile<true>(operands, t, head, at, rows);
            for (uint32_t h = 0; h < ITEM_HEADS; ++h) {
                Score(h, at - begin, rows);
            }
            at += rows;
        }
        Softmax(begin, first, end);
        Duplicate(mixed, 0.0f, ITEM_HEADS * VALUE);
        PipeBarrier<PIPE_V>();
        for (uint32_t at = begin; at < end;) {
            const uint32_t rows = operands.Run(at, end, TILE);
            LoadTile<false>(operands, t, head, at, rows);
            for (uint32_t h = 0; h < ITEM_HEADS; ++h) {
                Mix(h, at - begin, rows);
            }
            at += rows;
        }
    }

    // Of each head: the largest score, the sum of the exponentials of the differences to it, and the
    // values weighted with these.
    float largest[ITEM_HEADS];
    float total[ITEM_HEADS];
    LocalTensor<float> mixed;

private:
    // Brings in the keys (or values) of `rows` places from `at` on, as f32.
    template <bool KEYS>
    __aicore__ inline void LoadTile(const Operands &operands, uint32_t t, uint32_t head, uint32_t at, uint32_t rows)
    {
        LocalTensor<Cached> raw = rawQueue.AllocTensor<Cached>();
        operands.template CopyTile<KEYS>(raw, t, head, at, rows);
        rawQueue.EnQue(raw);
        raw = rawQueue.DeQue<Cached>();
        // Both parts of the keys lie behind each other as they came.
        Widen(tile, raw, rows * (KEYS ? KEY0 : VALUE));
        if constexpr (KEYS && KEY1 > 0) {
            Widen(tile[TILE * KEY0], raw[TILE * KEY0], rows * PITCH1);
        }
        rawQueue.FreeTensor(raw);
    }

    // scores[h][at ..] = SCALE * query . key of each row of the tile.
    __aicore__ inline void Score(uint32_t h, uint32_t at, uint32_t rows)
    {
        constexpr uint32_t WIDTH = Least(LANES, KEY0);
        const uint8_t repeats = static_cast<uint8_t>(rows);
        for (uint32_t c = 0; c < KEY0; c += LANES) {
            const LocalTensor<float> query = queries[h * KEY0 + c];
            const BinaryRepeatParams each{1, 1, 1, 8, Blocks(KEY0), 0};
            if (c == 0) {
                Mul(products, tile, query, WIDTH, repeats, each);
            } else {
                MulAddDst(products, tile[c], query, Least(LANES, KEY0 - c), repeats, each);
            }
            PipeBarrier<PIPE_V>();
        }
        if constexpr (KEY1 > 0) {
            const BinaryRepeatParams each{1, 1, 1, 8, Blocks(PITCH1), 0};
            MulAddDst(products, tile[TILE * KEY0], queries[ITEM_HEADS * KEY0 + h * KEY1], KEY1, repeats, each);
            PipeBarrier<PIPE_V>();
        }
        WholeReduceSum(scores[h * PIECE + at], products, WIDTH, repeats, 1, 1, 8);
        PipeBarrier<PIPE_V>();
    }

    __aicore__ inline void Softmax(uint32_t begin, uint32_t first, uint32_t end)
    {
        const uint32_t count = end - begin;
        LocalTensor<float> stats = statBuffer.Get<float>();
        LocalTensor<float> work = workBuffer.Get<float>();
        for (uint32_t h = 0; h < ITEM_HEADS; ++h) {
            LocalTensor<float> row = scores[h * PIECE];
            Muls(row, row, SCALE, count);
            PipeBarrier<PIPE_V>();
            if (first > begin) {
                // Fewer than eight: the lanes of the first block that do not count.
                uint64_t lanes[2] = {(1ull << (first - begin)) - 1, 0};
                Duplicate(row, NEVER, lanes, 1, 1, 8);
                PipeBarrier<PIPE_V>();
            }
            ReduceMax(stats[h * 8], row, work, count, false);
            PipeBarrier<PIPE_V>();
        }
        Sync<HardEvent::V_S>();
        for (uint32_t h = 0; h < ITEM_HEADS; ++h) {
            largest[h] = stats.GetValue(h * 8);
        }
        Sync<HardEvent::S_V>();
        for (uint32_t h = 0; h < ITEM_HEADS; ++h) {
            LocalTensor<float> row = scores[h * PIECE];
            Adds(row, row, -largest[h], count);
            PipeBarrier<PIPE_V>();
            Exp(row, row, count);
            PipeBarrier<PIPE_V>();
            ReduceSum(stats[h * 8], row, work, count);
            PipeBarrier<PIPE_V>();
        }
        Sync<HardEvent::V_S>();
        for (uint32_t h = 0; h < ITEM_HEADS; ++h) {
            total[h] = stats.GetValue(h * 8);
        }
        Sync<HardEvent::S_V>();
    }

    // mixed[h] += the values of the tile, each times its weight.
    __aicore__ inline void Mix(uint32_t h, uint32_t at, uint32_t rows)
    {
        LocalTensor<float> spread = spreadBuffer.Get<float>();
        Brcb(spread, scores[h * PIECE + at], static_cast<uint8_t>(CeilDiv(rows, 8)), BrcbRepeatParams{1, 8});
        PipeBarrier<PIPE_V>();
        ScaleRows(products, tile, spread, rows, VALUE);
        SumRows(products, rows, VALUE);
        Add(mixed[h * VALUE], mixed[h * VALUE], products, VALUE);
        PipeBarrier<PIPE_V>();
    }

    TQue<QuePosition::VECIN, 2> rawQueue;
    TQue<QuePosition::VECIN, 1> queryQueue;
    TBuf<TPosition::VECCALC> queryBuffer, tileBuffer, productBuffer, scoreBuffer, mixedBuffer,
        spreadBuffer, statBuffer, workBuffer;
    LocalTensor<float> queries, tile, products, scores;
};
