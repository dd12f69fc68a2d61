// Block b copies rows b, b + blocks, ...; row i belongs to pair order[i].
extern "C" __global__ __aicore__ void @NAME@(
    GM_ADDR rows, GM_ADDR order, GM_ADDR out, uint64_t pairs, uint64_t outStride)
{
    KERNEL_TASK_TYPE_DEFAULT(KERNEL_TYPE_AIV_ONLY);
    TPipe pipe;
    TQueBind<QuePosition::VECIN, QuePosition::VECOUT, 2> queue;
    pipe.InitBuffer(queue, 2, RoundUp(CHUNK, 32));
    GlobalTensor<int32_t> orderGm;
    orderGm.SetGlobalBuffer((__gm__ int32_t *)order, pairs);

    for (uint64_t i = GetBlockIdx(); i < pairs; i += GetBlockNum()) {
        const uint64_t pair = static_cast<uint64_t>(orderGm.GetValue(i));
        const uint64_t to = pair / EXPERTS_PER_TOKEN * outStride + pair % EXPERTS_PER_TOKEN * ROW;
        CopyRow(queue, out + to, rows + i * ROW);
    }
}
