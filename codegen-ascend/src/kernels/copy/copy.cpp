// Items are chunks of CHUNK bytes of the blocks that pairs name; block b has items b, b + blocks, ...
extern "C" __global__ __aicore__ void @NAME@(GM_ADDR memory, GM_ADDR pairs, uint64_t count)
{
    KERNEL_TASK_TYPE_DEFAULT(KERNEL_TYPE_AIV_ONLY);
    TPipe pipe;
    TQueBind<QuePosition::VECIN, QuePosition::VECOUT, 2> queue;
    pipe.InitBuffer(queue, 2, RoundUp(CHUNK, 32));
    GlobalTensor<int32_t> pairsGm;
    GlobalTensor<uint8_t> memoryGm;
    pairsGm.SetGlobalBuffer((__gm__ int32_t *)pairs, 2 * count);
    memoryGm.SetGlobalBuffer((__gm__ uint8_t *)memory);

    constexpr uint64_t CHUNKS = CeilDiv(BLOCK_BYTES, CHUNK);
    for (uint64_t item = GetBlockIdx(); item < count * CHUNKS; item += GetBlockNum()) {
        const int64_t from = pairsGm.GetValue(item / CHUNKS * 2), to = pairsGm.GetValue(item / CHUNKS * 2 + 1);
        if (from < 0 || from == to) {
            continue;
        }
        const uint32_t at = static_cast<uint32_t>(item % CHUNKS) * CHUNK;
        const DataCopyExtParams extent{1, Least(CHUNK, BLOCK_BYTES - at), 0, 0, 0};
        LocalTensor<uint8_t> bytes = queue.AllocTensor<uint8_t>();
        DataCopyPad(bytes, memoryGm[static_cast<uint64_t>(from) * BLOCK_BYTES + at], extent,
                    DataCopyPadExtParams<uint8_t>{false, 0, 0, 0});
        queue.EnQue(bytes);
        bytes = queue.DeQue<uint8_t>();
        DataCopyPad(memoryGm[static_cast<uint64_t>(to) * BLOCK_BYTES + at], bytes, extent);
        queue.FreeTensor(bytes);
    }
}
