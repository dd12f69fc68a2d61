// Finds the K largest of one row: the largest of each LANES columns, then the K best of the best such
// groups. Whatever is in another group comes after the largest of each of these.
class Ranker {
public:
    __aicore__ inline void Init(TPipe &pipe)
    {
        pipe.InitBuffer(rawQueue, 2, CHUNK * sizeof(Element));
        pipe.InitBuffer(valueQueue, 1, RoundUp(K, 64) * sizeof(Element));
        pipe.InitBuffer(idQueue, 1, RoundUp(K, 8) * sizeof(int32_t));
        pipe.InitBuffer(chunkBuffer, CHUNK * sizeof(float));
        pipe.InitBuffer(groupBuffer, GROUPS * sizeof(float));
        pipe.InitBuffer(candidateBuffer, CANDIDATES * LANES * sizeof(float));
        pipe.InitBuffer(foundBuffer, RoundUp(K, 64) * sizeof(float));
        pipe.InitBuffer(workBuffer, WORK * sizeof(float));
        pipe.InitBuffer(bestBuffer, 32);
    }

    __aicore__ inline void Run(const GlobalTensor<Element> &from, const GlobalTensor<Element> &values,
                               const GlobalTensor<int32_t> &ids)
    {
        row = from;
        LocalTensor<float> groups = groupBuffer.Get<float>();
        LocalTensor<float> chunk = chunkBuffer.Get<float>();
        for (uint32_t first = 0; first < COLUMNS; first += CHUNK) {
            Load(chunk, first, CHUNK);
            WholeReduceMax(groups[first / LANES], chunk, LANES, CHUNK / LANES, 1, 1, 8,
                           ReduceOrder::ORDER_ONLY_VALUE);
            PipeBarrier<PIPE_V>();
        }
        ChooseGroups(groups);
        LocalTensor<float> candidates = candidateBuffer.Get<float>();
        for (uint32_t j = 0; j < CANDIDATES; ++j) {
            Load(candidates[j * LANES], chosen[j] * LANES, LANES);
        }
        LocalTensor<float> found = foundBuffer.Get<float>();
        LocalTensor<int32_t> outIds = idQueue.AllocTensor<int32_t>();
        Sync<HardEvent::V_S>();
        for (uint32_t j = 0; j < K; ++j) {
            const uint32_t place = Take(candidates, CANDIDATES * LANES);
            // Where a row has fewer numbers, nothing is found.
            const bool isNumber = largest > NEVER;
            outIds.SetValue(j, isNumber ? static_cast<int32_t>(chosen[place / LANES] * LANES + place % LANES) : -1);
            found.SetValue(j, largest);
        }
        Sync<HardEvent::S_V>();
        LocalTensor<Element> outValues = valueQueue.AllocTensor<Element>();
        Narrow(outValues, found, K);
        valueQueue.EnQue(outValues);
        idQueue.EnQue(outIds);
        outValues = valueQueue.DeQue<Element>();
        outIds = idQueue.DeQue<int32_t>();
        DataCopyPad(values, outValues, DataCopyExtParams{1, K * static_cast<uint32_t>(sizeof(Element)), 0, 0, 0});
        DataCopyPad(ids, outIds, DataCopyExtParams{1, K * 4, 0, 0, 0});
        valueQueue.FreeTensor(outValues);
        idQueue.FreeTensor(outIds);
    }

private:
    // Columns from `first` on, with the lowest number behind the last.
    __aicore__ inline void Load(const LocalTensor<float> &to, uint32_t first, uint32_t width)
    {
        const uint32_t n = first < COLUMNS ? Least(width, COLUMNS - first) : 0;
        if (n < width) {
            Duplicate(to, NEVER, width);
            PipeBarrier<PIPE_V>();
        }
        if (n == 0) {
            return;
        }
        LocalTensor<Element> raw = rawQueue.AllocTensor<Element>();
        LoadRow(raw, row[first], n);
        rawQueue.EnQue(raw);
        raw = rawQueue.DeQue<Element>();
        Widen(to, raw, n);
        rawQueue.FreeTensor(raw);
    }

    // The place of the largest, the first of equals, which is not found again. The number is kept.
    __aicore__ inline uint32_t Take(const LocalTensor<float> &from, uint32_t count)
    {
        LocalTensor<float> best = bestBuffer.Get<float>();
        Sync<HardEvent::S_V>();
        ReduceMax(best, from, workBuffer.Get<float>(), count, true);
        Sync<HardEvent::V_S>();
        largest = best.GetValue(0);
        const uint32_t place = best.ReinterpretCast<uint32_t>().GetValue(1);
        from.SetValue(place, NEVER);
        return place;
    }

    // The best groups in ascending order, so that of equal numbers the first column is found first.
    __aicore__ inline void ChooseGroups(const LocalTensor<float> &groups)
    {
        Sync<HardEvent::V_S>();
        for (uint32_t j = 0; j < CANDIDATES; ++j) {
            uint32_t group = Take(groups, GROUPS);
            if (!(largest > NEVER)) {
                group = GROUPS;
            }
            uint32_t place = j;
            for (; place > 0 && chosen[place - 1] > group; --place) {
                chosen[place] = chosen[place - 1];
            }
            chosen[place] = group;
        }
        Sync<HardEvent::S_V>();
    }

    float largest = 0.0f;
    uint32_t chosen[CANDIDATES];
    GlobalTensor<Element> row;
    TQue<QuePosition::VECIN, 2> rawQueue;
    TQue<QuePosition::VECOUT, 1> valueQueue, idQueue;
    TBuf<TPosition::VECCALC> chunkBuffer, groupBuffer, candidateBuffer, foundBuffer, workBuffer, bestBuffer;
};
