// Block b has items b, b + blocks, ... of the list that has, for each row, each of its pieces for
// each group of heads. Every block walks the positions to find its own, so that no list is made.
// A row of one place, such as padding, is one short piece.
//
// Results go to records[row][group of heads][piece], for the kernel that folds them.
__aicore__ inline void AttendPieces(const Operands &operands, const GlobalTensor<float> &records,
                                    uint32_t rows, uint32_t mostPieces)
{
    TPipe pipe;
    Piece piece;
    TQue<QuePosition::VECOUT, 1> recordQueue;
    piece.Init(pipe);
    pipe.InitBuffer(recordQueue, 1, RECORD * sizeof(float));
    const uint32_t blocks = GetBlockNum(), me = GetBlockIdx();
    uint32_t before = 0;
    for (uint32_t t = 0; t < rows; ++t) {
        const uint32_t end = operands.End(t), first = operands.First(end);
        const uint32_t firstPiece = first / PIECE, pieces = CeilDiv(end, PIECE) - firstPiece;
        for (uint32_t i = (me + blocks - before % blocks) % blocks; i < pieces * ITEMS; i += blocks) {
            const uint32_t group = i % ITEMS, p = i / ITEMS, start = (firstPiece + p) * PIECE;
            const uint32_t from = first > start ? first : start;
            piece.LoadQueries(operands, t, group * ITEM_HEADS);
            piece.Run(operands, t, group * ITEM_HEADS, from / 8 * 8, from, Least(start + PIECE, end));

            LocalTensor<float> record = recordQueue.AllocTensor<float>();
            Adds(record, piece.mixed, 0.0f, ITEM_HEADS * VALUE);
            for (uint32_t h = 0; h < ITEM_HEADS; ++h) {
                Duplicate(record[ITEM_HEADS * VALUE + 16 * h], piece.largest[h], 8);
                Duplicate(record[ITEM_HEADS * VALUE + 16 * h + 8], piece.total[h], 8);
            }
            recordQueue.EnQue(record);
            record = recordQueue.DeQue<float>();
            DataCopy(records[((static_cast<uint64_t>(t) * ITEMS + group) * mostPieces + p) * RECORD], record, RECORD);
            recordQueue.FreeTensor(record);
        }
        before += pieces * ITEMS;
    }
}
