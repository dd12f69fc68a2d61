// Folds the pieces of each row in order. Block b has items b, b + blocks, ..., heads of rows.
__aicore__ inline void Combine(const Operands &operands, const GlobalTensor<float> &records,
                               const GlobalTensor<float> &sinks, const GlobalTensor<Out> &out,
                               uint32_t rows, uint64_t outStride, uint32_t mostPieces)
{
    TPipe pipe;
    Folded<ITEM_HEADS> folded;
    TQue<QuePosition::VECIN, 2> recordQueue;
    folded.Init(pipe);
    pipe.InitBuffer(recordQueue, 2, RECORD * sizeof(float));
    for (uint32_t item = GetBlockIdx(); item < rows * ITEMS; item += GetBlockNum()) {
        const uint32_t t = item / ITEMS, head = item % ITEMS * ITEM_HEADS;
        const uint32_t end = operands.End(t);
        const uint32_t pieces = CeilDiv(end, PIECE) - operands.First(end) / PIECE;
        folded.Clear();
        for (uint32_t p = 0; p < pieces; ++p) {
            LocalTensor<float> record = recordQueue.AllocTensor<float>();
            DataCopy(record, records[(static_cast<uint64_t>(item) * mostPieces + p) * RECORD], RECORD);
            recordQueue.EnQue(record);
            record = recordQueue.DeQue<float>();
            Sync<HardEvent::V_S>();
            float largest[ITEM_HEADS], total[ITEM_HEADS];
            for (uint32_t h = 0; h < ITEM_HEADS; ++h) {
                largest[h] = record.GetValue(ITEM_HEADS * VALUE + 16 * h);
                total[h] = record.GetValue(ITEM_HEADS * VALUE + 16 * h + 8);
            }
            Sync<HardEvent::S_V>();
            folded.Begin(largest, total);
            for (uint32_t h = 0; h < ITEM_HEADS; ++h) {
                folded.Take(h, record[h * VALUE]);
            }
            recordQueue.FreeTensor(record);
        }
        if constexpr (SINKS) {
            float logits[ITEM_HEADS];
            ReadSinks<ITEM_HEADS>(logits, sinks, head);
            folded.AddSinks(logits);
        }
        for (uint32_t h = 0; h < ITEM_HEADS; ++h) {
            folded.Write(h, out[t * outStride + (head + h) * VALUE]);
        }
    }
}
