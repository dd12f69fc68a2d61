// Block b copies rows b, b + blocks, ... in chunks of CHUNK bytes; two buffers, so that one chunk
// comes in while the one before goes out.
extern "C" __global__ __aicore__ void @NAME@(
    GM_ADDR x, GM_ADDR order, GM_ADDR starts, GM_ADDR rows, GM_ADDR groups,
    uint64_t pairs, uint64_t xStride)
{
    KERNEL_TASK_TYPE_DEFAULT(KERNEL_TYPE_AIV_ONLY);
    TPipe pipe;
    TQueBind<QuePosition::VECIN, QuePosition::VECOUT, 2> queue;
    pipe.InitBuffer(queue, 2, RoundUp(CHUNK, 32));
    GlobalTensor<int32_t> orderGm;
    orderGm.SetGlobalBuffer((__gm__ int32_t *)order, pairs);

    for (uint64_t i = GetBlockIdx(); i < pairs; i += GetBlockNum()) {
        const uint64_t pair = static_cast<uint64_t>(orderGm.GetValue(i));
        const uint64_t from = OWN ? pair / EXPERTS_PER_TOKEN * xStride + pair % EXPERTS_PER_TOKEN * ROW
                                  : pair / EXPERTS_PER_TOKEN * xStride;
        CopyRow(queue, rows + i * ROW, x + from);
    }

    // The last block also turns the ends of the groups into the list that the operator reads.
    if (GROUP_LIST && GetBlockIdx() == GetBlockNum() - 1) {
        WriteGroupList(pipe, starts, groups);
    }
}
