// What a block does, one after another: a tile of query vectors, up to ROWS rows of a sequence with
// GROUP heads each that read the same keys, against one piece of the keys.
struct Step {
    uint32_t row;     // first row of the tile
    uint32_t rows;    // rows of it
    uint32_t head;    // first head
    uint32_t piece;   // number of the piece
    uint32_t from;    // first place that is read, a multiple of BLOCK
    uint32_t to;      // behind the last
    bool first, last; // of the tile, for this block
};

// The steps of this block. Both kinds of cores walk the same list.
class Steps {
public:
    __aicore__ inline Steps(const Operands &operands, uint32_t rows, uint32_t block, uint32_t blocks)
        : operands(operands), block(block), blocks(blocks)
    {
        tilesOfSequence = CeilDiv(operands.rowsPerSequence, ROWS);
        tiles = rows / operands.rowsPerSequence * tilesOfSequence * ITEMS;
        tile = WHOLE ? block : 0;
        Enter();
    }

    __aicore__ inline bool Next(Step &step)
    {
        while (tile < tiles) {
            if (piece == endPiece) {
                tile += WHOLE ? blocks : 1;
                Enter();
                continue;
            }
            const uint32_t p = piece++;
            if (!WHOLE && number++ % blocks != block) {
                continue;
            }
            const uint32_t start = p * PIECE;
            const uint32_t from = start > first ? start : first / BLOCK * BLOCK;
            step = Step{row, rows, head, p, from > start ? from : start, Least(start + PIECE, end),
                        !WHOLE || p == firstPiece, !WHOLE || piece == endPiece};
            return true;
        }
        return false;
    }

private:
    // Finds the rows and pieces of the tile.
    __aicore__ inline void Enter()
    {
        if (tile >= tiles) {
            return;
        }
        const uint32_t index = tile / ITEMS, sequence = index / tilesOfSequence;
        const uint32_t within = index % tilesOfSequence * ROWS;
        head = tile % ITEMS * ITEM_HEADS;
        row = sequence * operands.rowsPerSequence + within;
        rows = Least(ROWS, operands.rowsPerSequence - within);
        first = operands.First(operands.End(row));
        end = 0;
        for (uint32_t r = row; r < row + rows; ++r) {
            const uint32_t own = operands.End(r);
            end = own > end ? own : end;
            first = Least(first, operands.First(own));
        }
        piece = firstPiece = first / PIECE;
        endPiece = CeilDiv(end, PIECE);
    }

    const Operands &operands;
    uint32_t block, blocks, tilesOfSequence = 0, tiles = 0, tile = 0, number = 0;
    uint32_t row = 0, rows = 0, head = 0, first = 0, end = 0, piece = 0, firstPiece = 0, endPiece = 0;
};
