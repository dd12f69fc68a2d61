// Items are runs of rows of one sequence, times chunks of channels; block b has items b, b + blocks,
// ... and walks the sequences to find them.
extern "C" __global__ __aicore__ void @NAME@(
    GM_ADDR state, GM_ADDR x, GM_ADDR weight, GM_ADDR sequences, GM_ADDR positions, GM_ADDR y,
    uint64_t rows, uint64_t xStride, uint64_t yStride)
{
    KERNEL_TASK_TYPE_DEFAULT(KERNEL_TYPE_AIV_ONLY);
    TPipe pipe;
    Convolution convolution(pipe, state, x, weight, y);
    GlobalTensor<int32_t> sequencesGm, positionsGm;
    sequencesGm.SetGlobalBuffer((__gm__ int32_t *)sequences, rows);
    positionsGm.SetGlobalBuffer((__gm__ int32_t *)positions, rows);

    uint64_t item = 0;
    for (uint64_t begin = 0, end = 0; begin < rows; begin = end) {
        const int32_t slot = sequencesGm.GetValue(begin);
        for (end = begin + 1; end < rows && sequencesGm.GetValue(end) == slot;) {
            ++end;
        }
        for (uint32_t channel = 0; channel < CHANNELS; channel += WIDTH, ++item) {
            if (item % GetBlockNum() != static_cast<uint64_t>(GetBlockIdx())) {
                continue;
            }
            convolution.Begin(channel);
            convolution.Recall(slot);
            for (uint64_t t = begin; t < end; ++t) {
                if (positionsGm.GetValue(t) <= 0) {
                    convolution.Forget();
                }
                convolution.Step(t, xStride, yStride);
            }
            convolution.Store(slot);
        }
    }
}
