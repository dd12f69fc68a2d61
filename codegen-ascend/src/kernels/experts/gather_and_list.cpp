extern "C" __global__ __aicore__ void @NAME@(
    GM_ADDR x, GM_ADDR order, GM_ADDR rows, GM_ADDR starts, GM_ADDR groups, uint64_t pairs, uint64_t xStride)
{
    KERNEL_TASK_TYPE_DEFAULT(KERNEL_TYPE_AIV_ONLY);
    TPipe pipe;
    // The last block has the fewest rows.
    if (GetBlockIdx() == GetBlockNum() - 1) {
        WriteGroupList(pipe, starts, groups);
    }
    GatherRows(pipe, x, order, rows, pairs, xStride);
}
