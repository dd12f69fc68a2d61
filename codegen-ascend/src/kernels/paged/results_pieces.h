// Where values go: into records[row][group of RECORD_HEADS heads][piece], for the kernel that folds them.
class Results {
public:
    __aicore__ inline Results(const GlobalTensor<float> &records, const Operands &operands, uint32_t mostPieces)
        : records(records), operands(operands), mostPieces(mostPieces)
    {
    }

    __aicore__ inline void Init(TPipe &pipe) { pipe.InitBuffer(queue, 2, (VALUE + 16) * sizeof(float)); }

    __aicore__ inline void Begin(const Step &, const float *largest_, const float *total_)
    {
        largest = largest_;
        total = total_;
    }

    __aicore__ inline void Take(const Step &step, uint32_t i, uint32_t vector, const LocalTensor<float> &mixed)
    {
        LocalTensor<float> part = queue.AllocTensor<float>();
        Adds(part, mixed, 0.0f, VALUE);
        Duplicate(part[VALUE], largest[i], 8);
        Duplicate(part[VALUE + 8], total[i], 8);
        queue.EnQue(part);
        part = queue.DeQue<float>();
        const uint32_t head = step.head + vector, within = head % RECORD_HEADS;
        const uint64_t group = static_cast<uint64_t>(step.row) * (HEADS / RECORD_HEADS) + head / RECORD_HEADS;
        const uint32_t piece = step.piece - operands.First(operands.End(step.row)) / PIECE;
        const uint64_t record = (group * mostPieces + piece) * RECORD;
        DataCopy(records[record + within * VALUE], part, VALUE);
        DataCopy(records[record + RECORD_HEADS * VALUE + within * 16], part[VALUE], 16);
        queue.FreeTensor(part);
    }

    __aicore__ inline void End(const Step &, uint32_t, uint32_t) {}

private:
    GlobalTensor<float> records;
    const Operands &operands;
    uint32_t mostPieces;
    const float *largest = nullptr, *total = nullptr;
    TQue<QuePosition::VECOUT, 2> queue;
};
