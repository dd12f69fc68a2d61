// The memory [DK, DV] of one head of one sequence, WIDTH of its columns; columns do not see each
// other, so that blocks may share them.
class Delta {
public:
    __aicore__ inline Delta(TPipe &pipe)
    {
        pipe.InitBuffer(memoryBuffer, DK * WIDTH * sizeof(float));
        pipe.InitBuffer(productBuffer, DK * WIDTH * sizeof(float));
        pipe.InitBuffer(spreadBuffer, DK * 8 * sizeof(float));
        pipe.InitBuffer(correctionBuffer, WIDTH * sizeof(float));
        pipe.InitBuffer(decayBuffer, 32);
        pipe.InitBuffer(tokenQueue, 2, (2 * DK + WIDTH) * sizeof(float));
        pipe.InitBuffer(outQueue, 2, WIDTH * sizeof(float));
        memory = memoryBuffer.Get<float>();
        products = productBuffer.Get<float>();
        spread = spreadBuffer.Get<float>();
    }

    // The columns that `state` begins with, of rows of DV.
    __aicore__ inline void Load(const GlobalTensor<float> &state)
    {
        // The memory of the item before may still be on its way out.
        Sync<HardEvent::MTE3_MTE2>();
        Sync<HardEvent::V_MTE2>();
        DataCopy(memory, state, DataCopyParams{DK, WIDTH / 8, (DV - WIDTH) / 8, 0});
        Sync<HardEvent::MTE2_V>();
    }

    __aicore__ inline void Store(const GlobalTensor<float> &state)
    {
        Sync<HardEvent::V_MTE3>();
        DataCopy(state, memory, DataCopyParams{DK, WIDTH / 8, 0, (DV - WIDTH) / 8});
    }

    __aicore__ inline void Forget()
    {
        Duplicate(memory, 0.0f, DK * WIDTH);
        PipeBarrier<PIPE_V>();
    }

    // S *= exp(gate)
    __aicore__ inline void Decay(float gate)
    {
        LocalTensor<float> lanes = decayBuffer.Get<float>();
        Duplicate(lanes, gate, 8);
        PipeBarrier<PIPE_V>();
        Exp(lanes, lanes, 8);
        Sync<HardEvent::V_S>();
        const float decay = lanes.GetValue(0);
        Sync<HardEvent::S_V>();
        Muls(memory, memory, decay, DK * WIDTH);
        PipeBarrier<PIPE_V>();
    }

    // S += k (beta (v - k S))^T, out = q S
    __aicore__ inline void Step(const GlobalTensor<float> &q, const GlobalTensor<float> &k,
                                const GlobalTensor<float> &v, float beta, const GlobalTensor<float> &out)
    {
        LocalTensor<float> token = tokenQueue.AllocTensor<float>();
        LoadRow(token, q, DK);
        LoadRow(token[DK], k, DK);
        LoadRow(token[2 * DK], v, WIDTH);
        tokenQueue.EnQue(token);
        token = tokenQueue.DeQue<float>();
        LocalTensor<float> correction = correctionBuffer.Get<float>();

        Weigh(token[DK]);
        Sub(correction, token[2 * DK], products, WIDTH);
        PipeBarrier<PIPE_V>();
        Muls(correction, correction, beta, WIDTH);
        PipeBarrier<PIPE_V>();
        const BinaryRepeatParams each{1, 0, 1, Blocks(WIDTH), 1, 0};
        for (uint32_t c = 0; c < WIDTH; c += LANES) {
            MulAddDst(memory[c], spread, correction[c], Least(LANES, WIDTH - c), DK, each);
        }
        PipeBarrier<PIPE_V>();

        Weigh(token);
        tokenQueue.FreeTensor(token);
        LocalTensor<float> result = outQueue.AllocTensor<float>();
        Adds(result, products, 0.0f, WIDTH);
        PipeBarrier<PIPE_V>();
        outQueue.EnQue(result);
        result = outQueue.DeQue<float>();
        DataCopy(out, result, WIDTH);
        outQueue.FreeTensor(result);
    }

private:
    // products[0] = weights S; `spread` keeps the weights, eight times each.
    __aicore__ inline void Weigh(const LocalTensor<float> &weights)
    {
        Brcb(spread, weights, DK / 8, BrcbRepeatParams{1, 8});
        PipeBarrier<PIPE_V>();
        ScaleRows(products, memory, spread, DK, WIDTH);
        SumRows(products, DK, WIDTH);
    }

    TBuf<TPosition::VECCALC> memoryBuffer, productBuffer, spreadBuffer, correctionBuffer, decayBuffer;
    TQue<QuePosition::VECIN, 2> tokenQueue;
    TQue<QuePosition::VECOUT, 2> outQueue;
    LocalTensor<float> memory, products, spread;
};
