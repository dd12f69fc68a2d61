// Block b has rows b, b + blocks, ...
extern "C" __global__ __aicore__ void @NAME@(
    GM_ADDR x, GM_ADDR values, GM_ADDR ids, uint64_t rows, uint64_t xStride, uint64_t valueStride, uint64_t idStride)
{
    KERNEL_TASK_TYPE_DEFAULT(KERNEL_TYPE_AIV_ONLY);
    TPipe pipe;
    Ranker ranker;
    ranker.Init(pipe);
    GlobalTensor<Element> xGm, valuesGm;
    GlobalTensor<int32_t> idsGm;
    xGm.SetGlobalBuffer((__gm__ Element *)x);
    valuesGm.SetGlobalBuffer((__gm__ Element *)values);
    idsGm.SetGlobalBuffer((__gm__ int32_t *)ids);
    for (uint64_t t = GetBlockIdx(); t < rows; t += GetBlockNum()) {
        ranker.Run(xGm[t * xStride], valuesGm[t * valueStride], idsGm[t * idStride]);
    }
}
