class ExpertGroups {
public:
    __aicore__ inline ExpertGroups(TPipe &pipe, GM_ADDR ids, GM_ADDR order, GM_ADDR starts, uint32_t pairs)
        : pairs(pairs)
    {
        idsGm.SetGlobalBuffer((__gm__ int32_t *)ids, pairs);
        orderGm.SetGlobalBuffer((__gm__ int32_t *)order, pairs);
        startsGm.SetGlobalBuffer((__gm__ int32_t *)starts, EXPERTS + 1);
        pipe.InitBuffer(idsQueue, 2, CHUNK * sizeof(int32_t));
        pipe.InitBuffer(orderQueue, 2, CHUNK * sizeof(int32_t));
        pipe.InitBuffer(startQueue, 1, 32);
        pipe.InitBuffer(idsBuffer, CHUNK * sizeof(float));
        pipe.InitBuffer(numbersBuffer, CHUNK * sizeof(int32_t));
        pipe.InitBuffer(maskBuffer, CHUNK / 8);
        pipe.InitBuffer(scratchBuffer, CHUNK * sizeof(float));
        CreateVecIndex(numbersBuffer.Get<int32_t>(), 0, CHUNK);
        PipeBarrier<PIPE_V>();
    }

    // Writes the numbers of the pairs of `expert`, and where they begin.
    __aicore__ inline void Place(uint32_t expert)
    {
        uint32_t start = 0;
        for (uint32_t first = 0; first < pairs; first += CHUNK) {
            start += Compress(first, expert, CMPMODE::LT, scratchBuffer.Get<int32_t>());
        }
        WriteStart(expert, start);
        for (uint32_t first = 0; first < pairs; first += CHUNK) {
            LocalTensor<int32_t> numbers = orderQueue.AllocTensor<int32_t>();
            const uint32_t found = Compress(first, expert, CMPMODE::EQ, numbers);
            if (found > 0) {
                Adds(numbers, numbers, static_cast<int32_t>(first), found);
            }
            orderQueue.EnQue(numbers);
            numbers = orderQueue.DeQue<int32_t>();
            if (found > 0) {
                DataCopyPad(orderGm[start], numbers, DataCopyExtParams{1, found * 4, 0, 0, 0});
            }
            orderQueue.FreeTensor(numbers);
            start += found;
        }
    }

    // The end of the last expert.
    __aicore__ inline void End() { WriteStart(EXPERTS, pairs); }

private:
    // Which of the pairs of this chunk have an id that compares with `expert`, as numbers in the chunk;
    // returns how many.
    __aicore__ inline uint32_t Compress(
        uint32_t first, uint32_t expert, CMPMODE mode, const LocalTensor<int32_t> &numbers)
    {
        const uint32_t count = Least(CHUNK, pairs - first);
        LocalTensor<int32_t> in = idsQueue.AllocTensor<int32_t>();
        const DataCopyPadExtParams<int32_t> none{false, 0, 0, 0};
        DataCopyPad(in, idsGm[first], DataCopyExtParams{1, count * 4, 0, 0, 0}, none);
        idsQueue.EnQue(in);
        in = idsQueue.DeQue<int32_t>();

        // Comparisons are of floats, 64 at a time; ids are far below 2^24.
        LocalTensor<float> values = idsBuffer.Get<float>();
        Duplicate(values, static_cast<float>(EXPERTS), RoundUp(count, 64));
        PipeBarrier<PIPE_V>();
        Cast(values, in, RoundMode::CAST_NONE, count);
        idsQueue.FreeTensor(in);
        PipeBarrier<PIPE_V>();
        LocalTensor<uint8_t> mask = maskBuffer.Get<uint8_t>();
        CompareScalar(mask, values, static_cast<float>(expert), mode, RoundUp(count, 64));
        PipeBarrier<PIPE_V>();
        uint64_t found = 0;
        GatherMask(numbers, numbersBuffer.Get<int32_t>(), mask.ReinterpretCast<uint32_t>(), true, count,
                   GatherMaskParams{1, 1, 8, 8}, found);
        PipeBarrier<PIPE_V>();
        return static_cast<uint32_t>(found);
    }

    __aicore__ inline void WriteStart(uint32_t expert, uint32_t start)
    {
        LocalTensor<int32_t> out = startQueue.AllocTensor<int32_t>();
        Duplicate(out, static_cast<int32_t>(start), 8);
        startQueue.EnQue(out);
        out = startQueue.DeQue<int32_t>();
        DataCopyPad(startsGm[expert], out, DataCopyExtParams{1, 4, 0, 0, 0});
        startQueue.FreeTensor(out);
    }

    uint32_t pairs;
    GlobalTensor<int32_t> idsGm, orderGm, startsGm;
    TQue<QuePosition::VECIN, 2> idsQueue;
    TQue<QuePosition::VECOUT, 2> orderQueue;
    TQue<QuePosition::VECOUT, 1> startQueue;
    TBuf<TPosition::VECCALC> idsBuffer, numbersBuffer, maskBuffer, scratchBuffer;
};
