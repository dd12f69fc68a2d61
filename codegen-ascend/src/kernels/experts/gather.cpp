extern "C" __global__ __aicore__ void @NAME@(
    GM_ADDR x, GM_ADDR order, GM_ADDR rows, uint64_t pairs, uint64_t xStride)
{
    KERNEL_TASK_TYPE_DEFAULT(KERNEL_TYPE_AIV_ONLY);
    TPipe pipe;
    GatherRows(pipe, x, order, rows, pairs, xStride);
}
