// Block b has rows b, b + blocks, ...
extern "C" __global__ __aicore__ void @NAME@(
    GM_ADDR positions, GM_ADDR scores, GM_ADDR selected, uint64_t rows, uint64_t width, uint64_t outStride)
{
    KERNEL_TASK_TYPE_DEFAULT(KERNEL_TYPE_AIV_ONLY);
    TPipe pipe;
    Selection selection;
    selection.Init(pipe);
    GlobalTensor<int32_t> positionsGm, selectedGm;
    GlobalTensor<float> scoresGm;
    positionsGm.SetGlobalBuffer((__gm__ int32_t *)positions);
    selectedGm.SetGlobalBuffer((__gm__ int32_t *)selected);
    scoresGm.SetGlobalBuffer((__gm__ float *)scores);
    for (uint64_t t = GetBlockIdx(); t < rows; t += GetBlockNum()) {
        const uint32_t end = static_cast<uint32_t>(positionsGm.GetValue(t)) + 1;
        if (end <= KEYS) {
            selection.All(end, selectedGm[t * outStride]);
        } else {
            selection.Run(scoresGm[t * width * BLOCK], end, selectedGm[t * outStride]);
        }
    }
}
