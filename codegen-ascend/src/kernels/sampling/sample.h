// Chooses a token of one row. All passes read the logits again, CHUNK at a time.
class Sampler {
public:
    __aicore__ inline void Init(TPipe &pipe)
    {
        pipe.InitBuffer(rawQueue, 2, CHUNK * sizeof(Logit));
        pipe.InitBuffer(outQueue, 1, 32);
        pipe.InitBuffer(valueBuffer, CHUNK * sizeof(float));
        pipe.InitBuffer(weightBuffer, CHUNK * sizeof(float));
        pipe.InitBuffer(oneBuffer, CHUNK * sizeof(float));
        pipe.InitBuffer(maskBuffer, CHUNK / 8);
        pipe.InitBuffer(workBuffer, WORK * sizeof(float));
        pipe.InitBuffer(sumBuffer, CHUNK / LANES * sizeof(float));
        values = valueBuffer.Get<float>();
        weights = weightBuffer.Get<float>();
        sums = sumBuffer.Get<float>();
        Duplicate(oneBuffer.Get<float>(), 1.0f, CHUNK);
        PipeBarrier<PIPE_V>();
    }

    __aicore__ inline uint32_t Run(const GlobalTensor<Logit> &row, float temperature, int32_t k, float p, float draw)
    {
        logits = row;
        const uint32_t best = Largest();
        if (temperature <= 0.0f) {
            return best;
        }
        rate = 1.0f / temperature;
        uint32_t low = LOWEST;
        if (k > 0 && static_cast<uint32_t>(k) < VOCABULARY) {
            low = Bisect(low, static_cast<float>(k), false);
        }
        if (p < 1.0f) {
            low = Bisect(low, p * Mass(FloatOf(low), true), true);
        }
        const float threshold = FloatOf(low);
        return Pick(threshold, draw * Mass(threshold, true), best);
    }

    __aicore__ inline void Write(const GlobalTensor<int32_t> &to, uint32_t token)
    {
        LocalTensor<int32_t> out = outQueue.AllocTensor<int32_t>();
        Duplicate(out, static_cast<int32_t>(token), 8);
        outQueue.EnQue(out);
        out = outQueue.DeQue<int32_t>();
        DataCopyPad(to, out, DataCopyExtParams{1, 4, 0, 0, 0});
        outQueue.FreeTensor(out);
    }

private:
    // Logits from `first` on, with the lowest number behind the last.
    __aicore__ inline void Load(uint32_t first)
    {
        const uint32_t n = Least(CHUNK, VOCABULARY - first);
        LocalTensor<Logit> raw = rawQueue.AllocTensor<Logit>();
        const uint32_t bytes = n * sizeof(Logit);
        DataCopyPad(raw, logits[first], DataCopyExtParams{1, bytes, 0, 0, 0},
                    DataCopyPadExtParams<Logit>{false, 0, 0, 0});
        rawQueue.EnQue(raw);
        raw = rawQueue.DeQue<Logit>();
        if (n < CHUNK) {
            Duplicate(values, NEVER, CHUNK);
            PipeBarrier<PIPE_V>();
        }
        Widen(values, raw, n);
        rawQueue.FreeTensor(raw);
    }

    // The place of the largest logit, the first of equals; keeps the logit.
    __aicore__ inline uint32_t Largest()
    {
        uint32_t best = 0;
        for (uint32_t first = 0; first < VOCABULARY; first += CHUNK) {
            Load(first);
            ReduceMax(sums, values, workBuffer.Get<float>(), CHUNK, true);
            Sync<HardEvent::V_S>();
            const float value = sums.GetValue(0);
            if (first == 0 || value > most) {
                most = value;
                best = first + sums.ReinterpretCast<uint32_t>().GetValue(1);
            }
            Sync<HardEvent::S_V>();
        }
        return best;
    }

    // weights = exp((logit - largest) * rate), or ones, where the logit reaches the threshold; 0
    // elsewhere.
    __aicore__ inline void Weigh(float threshold, bool masses)
    {
        if (masses) {
            Adds(weights, values, -most, CHUNK);
            PipeBarrier<PIPE_V>();
            Muls(weights, weights, rate, CHUNK);
            PipeBarrier<PIPE_V>();
            Exp(weights, weights, CHUNK);
            PipeBarrier<PIPE_V>();
        }
        LocalTensor<uint8_t> mask = maskBuffer.Get<uint8_t>();
        CompareScalar(mask, values, threshold, CMPMODE::GE, CHUNK);
        PipeBarrier<PIPE_V>();
        const LocalTensor<float> kept = masses ? weights : oneBuffer.Get<float>();
        Select(weights, mask, kept, 0.0f, SELMODE::VSEL_TENSOR_SCALAR_MODE, CHUNK);
        PipeBarrier<PIPE_V>();
    }

    // The weights of all logits that reach the threshold, or how many do: chunks are added in order.
    __aicore__ inline float Mass(float threshold, bool masses)
    {
        float mass = 0.0f;
        for (uint32_t first = 0; first < VOCABULARY; first += CHUNK) {
            Load(first);
            Weigh(threshold, masses);
            Groups();
            mass += GroupTotal();
        }
        return mass;
    }

    // The largest threshold, as its bits, from `low` to that of the
    // largest logit, whose mass (or count) is `least` or more.
    __aicore__ inline uint32_t Bisect(uint32_t low, float least, bool masses)
    {
        uint32_t high = OrderOf(most);
        while (low < high) {
            const uint32_t middle = low + (high - low + 1) / 2;
            if (Mass(FloatOf(middle), masses) >= least) {
                low = middle;
            } else {
                high = middle - 1;
            }
        }
        return low;
    }

    // Sums of LANES weights each.
    __aicore__ inline void Groups()
    {
        WholeReduceSum(sums, weights, LANES, CHUNK / LANES, 1, 1, 8);
        Sync<HardEvent::V_S>();
    }

    __aicore__ inline float GroupTotal()
    {
        float total = 0.0f;
        for (uint32_t g = 0; g < CHUNK / LANES; ++g) {
            total += sums.GetValue(g);
        }
        Sync<HardEvent::S_V>();
        return total;
    }

    // The first token at which the sum of the weights so far is above `goal`; where rounding leaves
    // none, the most likely.
    __aicore__ inline uint32_t Pick(float threshold, float goal, uint32_t best)
    {
        float before = 0.0f;
        for (uint32_t first = 0; first < VOCABULARY; first += CHUNK) {
            Load(first);
            Weigh(threshold, true);
            Groups();
            const float total = GroupTotal();
            if (before + total > goal) {
                const uint32_t token = PickInChunk(before, goal);
                if (token < CHUNK) {
                    return first + token;
                }
            }
            before += total;
        }
        return best;
    }

    __aicore__ inline uint32_t PickInChunk(float before, float goal)
    {
        Sync<HardEvent::V_S>();
        uint32_t found = CHUNK;
        float inside = 0.0f;
        for (uint32_t g = 0; g < CHUNK / LANES && found == CHUNK; ++g) {
            const float group = sums.GetValue(g);
            if (before + (inside + group) > goal) {
                float sum = before + inside;
                for (uint32_t i = g * LANES; i < (g + 1) * LANES && found == CHUNK; ++i) {
                    const float weight = weights.GetValue(i);
                    sum += weight;
                    if (weight > 0.0f && sum > goal) {
                        found = i;
                    }
                }
            }
            inside += group;
        }
        Sync<HardEvent::S_V>();
        return found;
    }

    float most = 0.0f, rate = 0.0f;
    GlobalTensor<Logit> logits;
    TQue<QuePosition::VECIN, 2> rawQueue;
    TQue<QuePosition::VECOUT, 1> outQueue;
    TBuf<TPosition::VECCALC> valueBuffer, weightBuffer, oneBuffer, maskBuffer, workBuffer, sumBuffer;
    LocalTensor<float> values, weights, sums;
};
