// What pieces of a row come to so far, for COUNT heads.
template <uint32_t COUNT> class Folded {
public:
    __aicore__ inline void Init(TPipe &pipe)
    {
        pipe.InitBuffer(sumBuffer, COUNT * VALUE * sizeof(float));
        pipe.InitBuffer(weightBuffer, RoundUp(COUNT * 2, 8) * sizeof(float));
        pipe.InitBuffer(divisorBuffer, VALUE * sizeof(float));
        pipe.InitBuffer(outQueue, 2, VALUE * sizeof(Out));
        sum = sumBuffer.Get<float>();
    }

    __aicore__ inline void Clear() { pieces = 0; }

    // Begins the next piece: of each head the largest score and the sum of exponentials.
    __aicore__ inline void Begin(const float *pieceLargest, const float *pieceTotal)
    {
        if (pieces++ == 0) {
            for (uint32_t h = 0; h < COUNT; ++h) {
                largest[h] = pieceLargest[h];
                total[h] = pieceTotal[h];
            }
            return;
        }
        Weigh(pieceLargest);
        for (uint32_t h = 0; h < COUNT; ++h) {
            total[h] = total[h] * weights[2 * h] + pieceTotal[h] * weights[2 * h + 1];
        }
    }

    // Adds the mixed values of a head in that piece.
    __aicore__ inline void Take(uint32_t h, const LocalTensor<float> &mixed)
    {
        const LocalTensor<float> own = sum[h * VALUE];
        if (pieces == 1) {
            Adds(own, mixed, 0.0f, VALUE);
        } else {
            Muls(own, own, weights[2 * h], VALUE);
            PipeBarrier<PIPE_V>();
            Axpy(own, mixed, weights[2 * h + 1], VALUE);
        }
        PipeBarrier<PIPE_V>();
    }

    // Adds a logit of each head that takes probability and has no value.
    __aicore__ inline void AddSinks(const float *sinks)
    {
        Weigh(sinks);
        for (uint32_t h = 0; h < COUNT; ++h) {
            total[h] = total[h] * weights[2 * h] + weights[2 * h + 1];
            Muls(sum[h * VALUE], sum[h * VALUE], weights[2 * h], VALUE);
        }
        PipeBarrier<PIPE_V>();
    }

    // Divides a head by its sum of exponentials and writes it.
    __aicore__ inline void Write(uint32_t h, const GlobalTensor<Out> &to)
    {
        const LocalTensor<float> divisor = divisorBuffer.Get<float>(), own = sum[h * VALUE];
        Duplicate(divisor, total[h], VALUE);
        PipeBarrier<PIPE_V>();
        Div(own, own, divisor, VALUE);
        PipeBarrier<PIPE_V>();
        LocalTensor<Out> out = outQueue.AllocTensor<Out>();
        Narrow(out, own, VALUE);
        outQueue.EnQue(out);
        out = outQueue.DeQue<Out>();
        DataCopy(to, out, VALUE);
        outQueue.FreeTensor(out);
    }

private:
    // The weights of what was there and of what comes, against the larger of both largest scores.
    __aicore__ inline void Weigh(const float *scores)
    {
        LocalTensor<float> exponents = weightBuffer.Get<float>();
        Sync<HardEvent::V_S>();
        for (uint32_t h = 0; h < COUNT; ++h) {
            const float most = scores[h] > largest[h] ? scores[h] : largest[h];
            exponents.SetValue(2 * h, largest[h] - most);
            exponents.SetValue(2 * h + 1, scores[h] - most);
            largest[h] = most;
        }
        Sync<HardEvent::S_V>();
        Exp(exponents, exponents, 2 * COUNT);
        Sync<HardEvent::V_S>();
        for (uint32_t i = 0; i < 2 * COUNT; ++i) {
            weights[i] = exponents.GetValue(i);
        }
    }

    uint32_t pieces = 0;
    float largest[COUNT], total[COUNT], weights[2 * COUNT];
    TBuf<TPosition::VECCALC> sumBuffer, weightBuffer, divisorBuffer;
    TQue<QuePosition::VECOUT, 2> outQueue;
    LocalTensor<float> sum;
};

// The logits of COUNT heads from `head` on.
template <uint32_t COUNT> __aicore__ inline void ReadSinks(float *to, const GlobalTensor<float> &sinks, uint32_t head)
{
    for (uint32_t h = 0; h < COUNT; ++h) {
        to[h] = sinks.GetValue(head + h);
    }
}
