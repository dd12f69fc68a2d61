// Each block attends for whole rows: items are heads of rows, block b has items b, b + blocks, ...
__aicore__ inline void Attend(const Operands &operands, const GlobalTensor<float> &sinks,
                              const GlobalTensor<Out> &out, uint32_t rows, uint64_t outStride)
{
    TPipe pipe;
    Piece piece;
    Folded<ITEM_HEADS> folded;
    piece.Init(pipe);
    folded.Init(pipe);
    for (uint32_t item = GetBlockIdx(); item < rows * ITEMS; item += GetBlockNum()) {
        const uint32_t t = item / ITEMS, head = item % ITEMS * ITEM_HEADS;
        const uint32_t end = operands.End(t), first = operands.First(end);
        piece.LoadQueries(operands, t, head);
        folded.Clear();
        for (uint32_t start = first / PIECE * PIECE; start < end; start += PIECE) {
            const uint32_t from = first > start ? first : start;
            piece.Run(operands, t, head, from / 8 * 8, from, Least(start + PIECE, end));
            folded.Begin(piece.largest, piece.total);
            for (uint32_t h = 0; h < ITEM_HEADS; ++h) {
                folded.Take(h, piece.mixed[h * VALUE]);
            }
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
