// A vector core: the softmax of half of the query vectors of each step, and the fold of their values.
class Weights {
public:
    __aicore__ inline Weights(TPipe &pipe, const Operands &operands, const Exchange &exchange, Results &results)
        : operands(operands), exchange(exchange), results(results), begin(GetSubBlockIdx() * HALF)
    {
        pipe.InitBuffer(scoreQueue, 2, ROWS_AT_ONCE * PIECE * sizeof(float));
        pipe.InitBuffer(weightQueue, 1, ROWS_AT_ONCE * PIECE * sizeof(bfloat16_t));
        pipe.InitBuffer(mixedQueue, 2, VALUE * sizeof(float));
        pipe.InitBuffer(statBuffer, ROWS_AT_ONCE * 8 * sizeof(float));
        pipe.InitBuffer(workBuffer, 1024);
        results.Init(pipe);
        stats = statBuffer.Get<float>();
    }

    __aicore__ inline void Run(Steps &steps)
    {
        Step now{}, before{};
        bool pending = false;
        uint32_t slot = 0;
        while (steps.Next(now)) {
            CrossCoreWaitFlag(SCORES_READY);
            Softmax(now, slot);
            CrossCoreSetFlag<2, PIPE_MTE3>(WEIGHTS_READY);
            if (pending) {
                Take(before, slot ^ 1);
            }
            before = now;
            pending = true;
            slot ^= 1;
        }
        if (pending) {
            Take(before, slot ^ 1);
        }
    }

private:
    // How many of the vectors of `step` are this core's.
    __aicore__ inline uint32_t Count(const Step &step) const
    {
        const uint32_t all = step.rows * ITEM_HEADS;
        return all > begin ? Least(HALF, all - begin) : 0;
    }

    __aicore__ inline void Softmax(const Step &step, uint32_t slot)
    {
        const uint32_t count = Count(step);
        for (uint32_t i = 0; i < count; i += ROWS_AT_ONCE) {
            const uint32_t n = Least(ROWS_AT_ONCE, count - i);
            const uint64_t at = (slot * VECTORS + begin + i) * PIECE;
            LocalTensor<float> rows = scoreQueue.AllocTensor<float>();
            DataCopy(rows, exchange.scores[at], n * PIECE);
            scoreQueue.EnQue(rows);
            rows = scoreQueue.DeQue<float>();
            bool none[ROWS_AT_ONCE];
            for (uint32_t r = 0; r < n; ++r) {
                none[r] = !Mask(rows[r * PIECE], step, step.row + (begin + i + r) / ITEM_HEADS);
                ReduceMax(stats[r * 8], rows[r * PIECE], workBuffer.Get<float>(), PIECE, false);
                PipeBarrier<PIPE_V>();
            }
            Sync<HardEvent::V_S>();
            for (uint32_t r = 0; r < n; ++r) {
                largest[slot][i + r] = stats.GetValue(r * 8);
            }
            Sync<HardEvent::S_V>();
            for (uint32_t r = 0; r < n; ++r) {
                const LocalTensor<float> row = rows[r * PIECE];
                if (none[r]) {
                    Duplicate(row, 0.0f, PIECE);
                } else {
                    Adds(row, row, -largest[slot][i + r], PIECE);
                    PipeBarrier<PIPE_V>();
                    Exp(row, row, PIECE);
                }
                PipeBarrier<PIPE_V>();
                // Over the whole piece, whatever part of it counts: the order of the sum is one.
                ReduceSum(stats[r * 8], row, workBuffer.Get<float>(), PIECE);
                PipeBarrier<PIPE_V>();
            }
            LocalTensor<bfloat16_t> weights = weightQueue.AllocTensor<bfloat16_t>();
            Cast(weights, rows, RoundMode::CAST_RINT, n * PIECE);
            scoreQueue.FreeTensor(rows);
            weightQueue.EnQue(weights);
            weights = weightQueue.DeQue<bfloat16_t>();
            DataCopy(exchange.weights[at], weights, n * PIECE);
            weightQueue.FreeTensor(weights);
            Sync<HardEvent::V_S>();
            for (uint32_t r = 0; r < n; ++r) {
                total[slot][i + r] = stats.GetValue(r * 8);
            }
            Sync<HardEvent::S_V>();
        }
    }

    // Scales the scores of row `t` and hides those that do not count; whether any does.
    __aicore__ inline bool Mask(const LocalTensor<float> &row, const Step &step, uint32_t t)
    {
        const uint32_t start = step.piece * PIECE, end = operands.End(t), first = operands.First(end);
        const uint32_t a = first > start ? Least(first - start, PIECE) : 0;
        const uint32_t b = end > start ? Least(end - start, PIECE) : 0;
        Muls(row, row, SCALE, PIECE);
        PipeBarrier<PIPE_V>();
        const uint32_t last = b / LANES * LANES, after = RoundUp(b, LANES), before = a / LANES * LANES;
        if (last < b) {
            uint64_t lanes[2] = {~0ull << (b - last), 0};
            Duplicate(row[last], NEVER, lanes, 1, 1, 8);
        }
        if (after < PIECE) {
            Duplicate(row[after], NEVER, PIECE - after);
        }
        PipeBarrier<PIPE_V>();
        if (before > 0) {
            Duplicate(row, NEVER, before);
        }
        if (before < a) {
            uint64_t lanes[2] = {(1ull << (a - before)) - 1, 0};
            Duplicate(row[before], NEVER, lanes, 1, 1, 8);
        }
        PipeBarrier<PIPE_V>();
        return a < b;
    }

    __aicore__ inline void Take(const Step &step, uint32_t slot)
    {
        CrossCoreWaitFlag(VALUES_READY);
        const uint32_t count = Count(step);
        results.Begin(step, largest[slot], total[slot]);
        for (uint32_t i = 0; i < count; ++i) {
            LocalTensor<float> mixed = mixedQueue.AllocTensor<float>();
            DataCopy(mixed, exchange.mixed[(slot * VECTORS + begin + i) * VALUE], VALUE);
            mixedQueue.EnQue(mixed);
            mixed = mixedQueue.DeQue<float>();
            results.Take(step, i, begin + i, mixed);
            mixedQueue.FreeTensor(mixed);
        }
        results.End(step, count, begin);
    }

    const Operands &operands;
    const Exchange &exchange;
    Results &results;
    uint32_t begin;
    TQue<QuePosition::VECIN, 2> scoreQueue, mixedQueue;
    TQue<QuePosition::VECOUT, 1> weightQueue;
    TBuf<TPosition::VECCALC> statBuffer, workBuffer;
    LocalTensor<float> stats;
    // Of each vector of this core, in two steps.
    float largest[2][HALF] = {}, total[2][HALF] = {};
};
