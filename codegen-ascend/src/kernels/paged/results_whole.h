// Where values go: pieces are folded here, and a tile is written when its last piece is in.
class Results {
public:
    __aicore__ inline Results(const GlobalTensor<Out> &out, const GlobalTensor<float> &sinks, uint64_t outStride)
        : out(out), sinks(sinks), outStride(outStride)
    {
    }

    __aicore__ inline void Init(TPipe &pipe) { folded.Init(pipe); }

    __aicore__ inline void Begin(const Step &step, const float *largest, const float *total)
    {
        if (step.first) {
            folded.Clear();
        }
        folded.Begin(largest, total);
    }

    __aicore__ inline void Take(const Step &, uint32_t i, uint32_t, const LocalTensor<float> &mixed)
    {
        folded.Take(i, mixed);
    }

    __aicore__ inline void End(const Step &step, uint32_t count, uint32_t begin)
    {
        if (!step.last) {
            return;
        }
        if constexpr (SINKS) {
            float logits[HALF] = {};
            for (uint32_t i = 0; i < count; ++i) {
                logits[i] = sinks.GetValue(step.head + (begin + i) % ITEM_HEADS);
            }
            folded.AddSinks(logits);
        }
        for (uint32_t i = 0; i < count; ++i) {
            const uint64_t t = step.row + (begin + i) / ITEM_HEADS, head = step.head + (begin + i) % ITEM_HEADS;
            folded.Write(i, out[t * outStride + head * VALUE]);
        }
    }

private:
    GlobalTensor<Out> out;
    GlobalTensor<float> sinks;
    uint64_t outStride;
    Folded<HALF> folded;
};
