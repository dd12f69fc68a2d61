// The KEYS largest scores of a row, the smaller place among equals, as places in ascending order.
class Selection {
public:
    __aicore__ inline void Init(TPipe &pipe)
    {
        pipe.InitBuffer(scoreQueue, 2, CHUNK * sizeof(float));
        pipe.InitBuffer(outQueue, 2, CHUNK * sizeof(int32_t));
        pipe.InitBuffer(placeBuffer, CHUNK * sizeof(int32_t));
        pipe.InitBuffer(maskBuffer, CHUNK / 8);
        pipe.InitBuffer(tiesBuffer, CHUNK / 8);
        pipe.InitBuffer(scratchBuffer, CHUNK * sizeof(int32_t));
        CreateVecIndex(placeBuffer.Get<int32_t>(), 0, CHUNK);
        PipeBarrier<PIPE_V>();
    }

    // Of `count` scores, more than KEYS.
    __aicore__ inline void Run(const GlobalTensor<float> &scores, uint32_t count, const GlobalTensor<int32_t> &to)
    {
        // The largest threshold that KEYS scores reach is the KEYS-th largest of them.
        uint32_t low = LOWEST, high = HIGHEST;
        while (low < high) {
            const uint32_t middle = low + (high - low + 1) / 2;
            if (Count(scores, count, FloatOf(middle), CMPMODE::GE) >= KEYS) {
                low = middle;
            } else {
                high = middle - 1;
            }
        }
        const float threshold = FloatOf(low);
        uint32_t ties = KEYS - Count(scores, count, threshold, CMPMODE::GT);
        uint32_t written = 0;
        for (uint32_t first = 0; first < count; first += CHUNK) {
            const uint32_t n = Least(CHUNK, count - first);
            LocalTensor<float> chunk = Load(scores, first, n);
            written += Compress(to[written], chunk, first, n, threshold, ties);
            scoreQueue.FreeTensor(chunk);
        }
    }

    // Places `0 .. count`, then -1, for rows that have no more than KEYS of them.
    __aicore__ inline void All(uint32_t count, const GlobalTensor<int32_t> &to)
    {
        for (uint32_t first = 0; first < KEYS; first += CHUNK) {
            const uint32_t n = Least(CHUNK, KEYS - first);
            LocalTensor<int32_t> out = outQueue.AllocTensor<int32_t>();
            Duplicate(out, -1, n);
            PipeBarrier<PIPE_V>();
            if (first < count) {
                Adds(out, placeBuffer.Get<int32_t>(), static_cast<int32_t>(first), Least(n, count - first));
            }
            Write(to[first], out, n);
        }
    }

private:
    __aicore__ inline LocalTensor<float> Load(const GlobalTensor<float> &scores, uint32_t first, uint32_t n)
    {
        LocalTensor<float> chunk = scoreQueue.AllocTensor<float>();
        const uint32_t bytes = n * sizeof(float);
        DataCopyPad(chunk, scores[first], DataCopyExtParams{1, bytes, 0, 0, 0},
                    DataCopyPadExtParams<float>{false, 0, 0, 0.0f});
        scoreQueue.EnQue(chunk);
        return scoreQueue.DeQue<float>();
    }

    // Which of n scores compare with the threshold, as bits, and how many. Lanes beyond n are compared
    // too and not counted.
    __aicore__ inline uint32_t Compare(const LocalTensor<uint8_t> &mask, const LocalTensor<float> &chunk,
                                       const LocalTensor<int32_t> &kept, uint32_t n, float threshold, CMPMODE mode)
    {
        CompareScalar(mask, chunk, threshold, mode, RoundUp(n, 64));
        PipeBarrier<PIPE_V>();
        uint64_t count = 0;
        GatherMask(kept, placeBuffer.Get<int32_t>(), mask.ReinterpretCast<uint32_t>(), true, n,
                   GatherMaskParams{1, 1, 8, 8}, count);
        PipeBarrier<PIPE_V>();
        return static_cast<uint32_t>(count);
    }

    __aicore__ inline uint32_t Count(const GlobalTensor<float> &scores, uint32_t count, float threshold, CMPMODE mode)
    {
        uint32_t reached = 0;
        for (uint32_t first = 0; first < count; first += CHUNK) {
            const uint32_t n = Least(CHUNK, count - first);
            LocalTensor<float> chunk = Load(scores, first, n);
            reached += Compare(maskBuffer.Get<uint8_t>(), chunk, scratchBuffer.Get<int32_t>(), n, threshold, mode);
            scoreQueue.FreeTensor(chunk);
        }
        return reached;
    }

    // Writes the places of a chunk that are selected; of those at the threshold, the first `ties`.
    __aicore__ inline uint32_t Compress(const GlobalTensor<int32_t> &to, const LocalTensor<float> &chunk,
                                        uint32_t first, uint32_t n, float threshold, uint32_t &ties)
    {
        LocalTensor<int32_t> at = scratchBuffer.Get<int32_t>();
        const uint32_t equal = Compare(tiesBuffer.Get<uint8_t>(), chunk, at, n, threshold, CMPMODE::EQ);
        LocalTensor<int32_t> out = outQueue.AllocTensor<int32_t>();
        uint32_t kept;
        if (equal <= ties) {
            kept = Compare(maskBuffer.Get<uint8_t>(), chunk, out, n, threshold, CMPMODE::GE);
            ties -= equal;
        } else if (ties == 0) {
            kept = Compare(maskBuffer.Get<uint8_t>(), chunk, out, n, threshold, CMPMODE::GT);
        } else {
            // The one chunk that some of the ties are left out of: those past the last that is kept
            // are not looked at, and those above the threshold behind it are added.
            kept = Mixed(out, chunk, at, n, threshold, ties);
            ties = 0;
        }
        if (kept > 0) {
            Adds(out, out, static_cast<int32_t>(first), kept);
            Write(to, out, kept);
        } else {
            outQueue.FreeTensor(out);
        }
        return kept;
    }

    // The first `ties` of the places `equal` of a chunk and those above the threshold, in ascending order: a merge
    // of two lists by the scalar unit.
    __aicore__ inline uint32_t Mixed(const LocalTensor<int32_t> &out, const LocalTensor<float> &chunk,
                                     const LocalTensor<int32_t> &equal, uint32_t n, float threshold,
                                     uint32_t ties)
    {
        Sync<HardEvent::V_S>();
        // A buffer that was on its way out was waited for by the vector unit.
        uint32_t kept = 0, used = 0;
        for (uint32_t i = 0; i < n; ++i) {
            const float score = chunk.GetValue(i);
            const bool tie = used < ties && equal.GetValue(used) == static_cast<int32_t>(i);
            if (tie || score > threshold) {
                out.SetValue(kept++, static_cast<int32_t>(i));
                used += tie ? 1 : 0;
            }
        }
        Sync<HardEvent::S_V>();
        return kept;
    }

    __aicore__ inline void Write(const GlobalTensor<int32_t> &to, LocalTensor<int32_t> out, uint32_t n)
    {
        outQueue.EnQue(out);
        out = outQueue.DeQue<int32_t>();
        DataCopyPad(to, out, DataCopyExtParams{1, static_cast<uint32_t>(n * sizeof(int32_t)), 0, 0, 0});
        outQueue.FreeTensor(out);
    }

    TQue<QuePosition::VECIN, 2> scoreQueue;
    TQue<QuePosition::VECOUT, 2> outQueue;
    TBuf<TPosition::VECCALC> placeBuffer, maskBuffer, tiesBuffer, scratchBuffer;
};
