// Each block orders the pairs of its own experts, e = b, b + blocks, ...: it counts the pairs of
// smaller experts to know where theirs begin, and compresses the numbers of their pairs, which keeps
// their order. No block waits for another.
extern "C" __global__ __aicore__ void @NAME@(GM_ADDR ids, GM_ADDR order, GM_ADDR starts, uint64_t pairs)
{
    KERNEL_TASK_TYPE_DEFAULT(KERNEL_TYPE_AIV_ONLY);
    TPipe pipe;
    ExpertGroups groups(pipe, ids, order, starts, static_cast<uint32_t>(pairs));
    for (uint32_t e = GetBlockIdx(); e < EXPERTS; e += GetBlockNum()) {
        groups.Place(e);
    }
    if (GetBlockIdx() == GetBlockNum() - 1) {
        groups.End();
    }
}
