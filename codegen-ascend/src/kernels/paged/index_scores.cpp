extern "C" __global__ __aicore__ void @NAME@(
    GM_ADDR q, GM_ADDR weights, GM_ADDR keys, GM_ADDR table, GM_ADDR positions, GM_ADDR scores,
    uint64_t rows, uint64_t sequences, uint64_t width, uint64_t qStride, uint64_t weightsStride)
{
    KERNEL_TASK_TYPE_DEFAULT(KERNEL_TYPE_AIV_ONLY);
    TPipe pipe;
    IndexScores index;
    index.Init(pipe);
    GlobalTensor<Query> qGm;
    GlobalTensor<Cached> keysGm;
    GlobalTensor<float> weightsGm, scoresGm;
    GlobalTensor<int32_t> tableGm, positionsGm;
    qGm.SetGlobalBuffer((__gm__ Query *)q);
    keysGm.SetGlobalBuffer((__gm__ Cached *)keys);
    weightsGm.SetGlobalBuffer((__gm__ float *)weights);
    scoresGm.SetGlobalBuffer((__gm__ float *)scores);
    tableGm.SetGlobalBuffer((__gm__ int32_t *)table);
    positionsGm.SetGlobalBuffer((__gm__ int32_t *)positions);

    const uint32_t blocks = GetBlockNum(), me = GetBlockIdx();
    uint32_t before = 0;
    for (uint64_t t = 0; t < rows; ++t) {
        const uint32_t end = static_cast<uint32_t>(positionsGm.GetValue(t)) + 1;
        if (end <= KEYS) {
            continue; // All places are selected, whatever their scores.
        }
        const uint32_t tiles = CeilDiv(end, TILE);
        uint32_t i = (me + blocks - before % blocks) % blocks;
        before += tiles;
        if (i >= tiles) {
            continue;
        }
        index.LoadQueries(qGm[t * qStride]);
        for (; i < tiles; i += blocks) {
            const uint32_t at = i * TILE;
            const uint64_t block = tableGm.GetValue(t / (rows / sequences) * width + at / BLOCK);
            index.Run(keysGm[(block * BLOCK + at % BLOCK) * KEY0], Least(TILE, end - at),
                      weightsGm[t * weightsStride], scoresGm[t * width * BLOCK + at]);
        }
    }
}
