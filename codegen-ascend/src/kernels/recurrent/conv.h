// The last TAPS rows of a sequence for WIDTH of its channels, and their weighted sum.
class Convolution {
public:
    __aicore__ inline Convolution(TPipe &pipe, GM_ADDR state, GM_ADDR x, GM_ADDR weight, GM_ADDR y)
    {
        stateGm.SetGlobalBuffer((__gm__ Memory *)state);
        xGm.SetGlobalBuffer((__gm__ Row *)x);
        weightGm.SetGlobalBuffer((__gm__ Weight *)weight);
        yGm.SetGlobalBuffer((__gm__ float *)y);
        pipe.InitBuffer(weightQueue, 1, WIDTH * TAPS * sizeof(Weight));
        pipe.InitBuffer(rowQueue, 2, WIDTH * sizeof(Row));
        pipe.InitBuffer(stateQueue, 1, WIDTH * sizeof(Memory));
        pipe.InitBuffer(yQueue, 2, WIDTH * sizeof(float));
        pipe.InitBuffer(storeQueue, 1, WIDTH * sizeof(Memory));
        pipe.InitBuffer(flatBuffer, WIDTH * TAPS * sizeof(float));
        pipe.InitBuffer(tapsBuffer, WIDTH * TAPS * sizeof(float));
        pipe.InitBuffer(offsetsBuffer, WIDTH * sizeof(int32_t));
        pipe.InitBuffer(rowsBuffer, WIDTH * TAPS * sizeof(float));
        pipe.InitBuffer(productBuffer, WIDTH * sizeof(float));
        pipe.InitBuffer(roundedBuffer, WIDTH * sizeof(Memory));
        taps = tapsBuffer.Get<float>();
        rows = rowsBuffer.Get<float>();
        // Byte offsets of the first tap of each channel.
        LocalTensor<int32_t> offsets = offsetsBuffer.Get<int32_t>();
        CreateVecIndex(offsets, 0, WIDTH);
        PipeBarrier<PIPE_V>();
        Muls(offsets, offsets, static_cast<int32_t>(TAPS * sizeof(float)), WIDTH);
        PipeBarrier<PIPE_V>();
    }

    // Channels from `channel` on: their taps, one row of channels for each tap.
    __aicore__ inline void Begin(uint32_t channel)
    {
        first = channel;
        count = Least(WIDTH, CHANNELS - channel);
        LocalTensor<Weight> raw = weightQueue.AllocTensor<Weight>();
        DataCopy(raw, weightGm[channel * TAPS], count * TAPS);
        weightQueue.EnQue(raw);
        raw = weightQueue.DeQue<Weight>();
        LocalTensor<float> flat = flatBuffer.Get<float>();
        Widen(flat, raw, count * TAPS);
        weightQueue.FreeTensor(raw);
        const LocalTensor<uint32_t> offsets = offsetsBuffer.Get<uint32_t>();
        for (uint32_t i = 0; i < TAPS; ++i) {
            Gather(taps[i * WIDTH], flat, offsets, static_cast<uint32_t>(i * sizeof(float)), count);
        }
        PipeBarrier<PIPE_V>();
    }

    // Rows of the memory of `slot`, oldest first.
    __aicore__ inline void Recall(uint64_t slot)
    {
        oldest = 0;
        for (uint32_t i = 0; i < TAPS - 1; ++i) {
            LocalTensor<Memory> raw = stateQueue.AllocTensor<Memory>();
            DataCopy(raw, stateGm[(slot * (TAPS - 1) + i) * CHANNELS + first], count);
            stateQueue.EnQue(raw);
            raw = stateQueue.DeQue<Memory>();
            Widen(rows[i * WIDTH], raw, count);
            stateQueue.FreeTensor(raw);
        }
    }

    // A memory of zeros.
    __aicore__ inline void Forget()
    {
        Duplicate(rows, 0.0f, WIDTH * TAPS);
        PipeBarrier<PIPE_V>();
    }

    // Row `t` joins the memory; y is the sum over the rows, oldest first.
    __aicore__ inline void Step(uint64_t t, uint64_t xStride, uint64_t yStride)
    {
        LocalTensor<Row> raw = rowQueue.AllocTensor<Row>();
        LoadRow(raw, xGm[t * xStride + first], count);
        rowQueue.EnQue(raw);
        raw = rowQueue.DeQue<Row>();
        LocalTensor<float> newest = rows[(oldest + TAPS - 1) % TAPS * WIDTH];
        Widen(newest, raw, count);
        rowQueue.FreeTensor(raw);
        if constexpr (sizeof(Memory) < sizeof(Row)) {
            // What is read now is what the memory will hold.
            LocalTensor<Memory> rounded = roundedBuffer.Get<Memory>();
            Narrow(rounded, newest, count);
            Widen(newest, rounded, count);
        }

        LocalTensor<float> y = yQueue.AllocTensor<float>();
        LocalTensor<float> product = productBuffer.Get<float>();
        Mul(y, rows[oldest * WIDTH], taps, count);
        PipeBarrier<PIPE_V>();
        for (uint32_t i = 1; i < TAPS; ++i) {
            Mul(product, rows[(oldest + i) % TAPS * WIDTH], taps[i * WIDTH], count);
            PipeBarrier<PIPE_V>();
            Add(y, y, product, count);
            PipeBarrier<PIPE_V>();
        }
        yQueue.EnQue(y);
        y = yQueue.DeQue<float>();
        DataCopy(yGm[t * yStride + first], y, count);
        yQueue.FreeTensor(y);
        oldest = (oldest + 1) % TAPS;
    }

    // The last rows become the memory of `slot`.
    __aicore__ inline void Store(uint64_t slot)
    {
        for (uint32_t i = 0; i < TAPS - 1; ++i) {
            LocalTensor<Memory> out = storeQueue.AllocTensor<Memory>();
            Narrow(out, rows[(oldest + i) % TAPS * WIDTH], count);
            storeQueue.EnQue(out);
            out = storeQueue.DeQue<Memory>();
            DataCopy(stateGm[(slot * (TAPS - 1) + i) * CHANNELS + first], out, count);
            storeQueue.FreeTensor(out);
        }
    }

private:
    uint32_t first = 0, count = 0, oldest = 0;
    GlobalTensor<Memory> stateGm;
    GlobalTensor<Row> xGm;
    GlobalTensor<Weight> weightGm;
    GlobalTensor<float> yGm;
    TQue<QuePosition::VECIN, 1> weightQueue, stateQueue;
    TQue<QuePosition::VECIN, 2> rowQueue;
    TQue<QuePosition::VECOUT, 2> yQueue;
    TQue<QuePosition::VECOUT, 1> storeQueue;
    TBuf<TPosition::VECCALC> flatBuffer, tapsBuffer, offsetsBuffer, rowsBuffer, productBuffer, roundedBuffer;
    LocalTensor<float> taps, rows;
};
