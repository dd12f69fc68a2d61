// Block b copies rows b, b + blocks, ... in chunks of CHUNK bytes; two buffers, so that one chunk
// comes in while the one before goes out.
__aicore__ inline void GatherRows(TPipe &pipe, GM_ADDR x, GM_ADDR order, GM_ADDR rows, uint64_t pairs, uint64_t xStride)
{
    TQueBind<QuePosition::VECIN, QuePosition::VECOUT, 2> queue;
    pipe.InitBuffer(queue, 2, RoundUp(CHUNK, 32));
    GlobalTensor<int32_t> orderGm;
    orderGm.SetGlobalBuffer((__gm__ int32_t *)order, pairs);
    for (uint64_t i = GetBlockIdx(); i < pairs; i += GetBlockNum()) {
        const uint64_t pair = static_cast<uint64_t>(orderGm.GetValue(i));
        const uint64_t own = OWN ? pair % EXPERTS_PER_TOKEN * ROW : 0;
        CopyRow(queue, rows + i * ROW, x + pair / EXPERTS_PER_TOKEN * xStride + own);
    }
}
