// Scores of all places of rows that have more than KEYS of them: the sum over heads of weight *
// relu(SCALE * query . key). Items are tiles of TILE places of such rows; block b has items b,
// b + blocks, ... and walks the positions to find them. scores[row] has a column for each place.
class IndexScores {
public:
    __aicore__ inline void Init(TPipe &pipe)
    {
        pipe.InitBuffer(rawQueue, 2, TILE * KEY0 * sizeof(Cached));
        pipe.InitBuffer(queryQueue, 1, HEADS * KEY0 * sizeof(Query));
        pipe.InitBuffer(outQueue, 2, TILE * sizeof(float));
        pipe.InitBuffer(queryBuffer, HEADS * KEY0 * sizeof(float));
        pipe.InitBuffer(tileBuffer, TILE * KEY0 * sizeof(float));
        pipe.InitBuffer(productBuffer, TILE * LANES * sizeof(float));
        pipe.InitBuffer(headBuffer, TILE * sizeof(float));
        queries = queryBuffer.Get<float>();
        tile = tileBuffer.Get<float>();
        products = productBuffer.Get<float>();
    }

    __aicore__ inline void LoadQueries(const GlobalTensor<Query> &from)
    {
        LocalTensor<Query> raw = queryQueue.AllocTensor<Query>();
        LoadRow(raw, from, HEADS * KEY0);
        queryQueue.EnQue(raw);
        raw = queryQueue.DeQue<Query>();
        Widen(queries, raw, HEADS * KEY0);
        queryQueue.FreeTensor(raw);
    }

    // Scores of `rows` keys that begin at `keys`.
    __aicore__ inline void Run(const GlobalTensor<Cached> &keys, uint32_t rows, const GlobalTensor<float> &weights,
                               const GlobalTensor<float> &to)
    {
        LocalTensor<Cached> raw = rawQueue.AllocTensor<Cached>();
        DataCopy(raw, keys, rows * KEY0);
        rawQueue.EnQue(raw);
        raw = rawQueue.DeQue<Cached>();
        Widen(tile, raw, rows * KEY0);
        rawQueue.FreeTensor(raw);

        LocalTensor<float> sums = outQueue.AllocTensor<float>();
        LocalTensor<float> head = headBuffer.Get<float>();
        Duplicate(sums, 0.0f, TILE);
        for (uint32_t h = 0; h < HEADS; ++h) {
            Score(head, h, static_cast<uint8_t>(rows));
            Muls(head, head, SCALE, rows);
            PipeBarrier<PIPE_V>();
            Maxs(head, head, 0.0f, rows);
            PipeBarrier<PIPE_V>();
            Muls(head, head, weights.GetValue(h), rows);
            PipeBarrier<PIPE_V>();
            Add(sums, sums, head, rows);
            PipeBarrier<PIPE_V>();
        }
        outQueue.EnQue(sums);
        sums = outQueue.DeQue<float>();
        DataCopyPad(to, sums, DataCopyExtParams{1, static_cast<uint32_t>(rows * sizeof(float)), 0, 0, 0});
        outQueue.FreeTensor(sums);
    }

private:
    __aicore__ inline void Score(const LocalTensor<float> &to, uint32_t h, uint8_t rows)
    {
        constexpr uint32_t WIDTH_OF_SUM = Least(LANES, KEY0);
        const BinaryRepeatParams each{1, 1, 1, 8, Blocks(KEY0), 0};
        for (uint32_t c = 0; c < KEY0; c += LANES) {
            const LocalTensor<float> query = queries[h * KEY0 + c];
            if (c == 0) {
                Mul(products, tile, query, WIDTH_OF_SUM, rows, each);
            } else {
                MulAddDst(products, tile[c], query, Least(LANES, KEY0 - c), rows, each);
            }
            PipeBarrier<PIPE_V>();
        }
        WholeReduceSum(to, products, WIDTH_OF_SUM, rows, 1, 1, 8);
        PipeBarrier<PIPE_V>();
    }

    TQue<QuePosition::VECIN, 2> rawQueue;
    TQue<QuePosition::VECIN, 1> queryQueue;
    TQue<QuePosition::VECOUT, 2> outQueue;
    TBuf<TPosition::VECCALC> queryBuffer, tileBuffer, productBuffer, headBuffer;
    LocalTensor<float> queries, tile, products;
};
