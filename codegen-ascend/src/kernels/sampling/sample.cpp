// Block b has rows b, b + blocks, ...
extern "C" __global__ __aicore__ void @NAME@(
    GM_ADDR logits, GM_ADDR temperatures, GM_ADDR topK, GM_ADDR topP, GM_ADDR draws, GM_ADDR tokens,
    uint64_t rows, uint64_t stride)
{
    KERNEL_TASK_TYPE_DEFAULT(KERNEL_TYPE_AIV_ONLY);
    TPipe pipe;
    Sampler sampler;
    sampler.Init(pipe);
    GlobalTensor<Logit> logitsGm;
    GlobalTensor<float> temperaturesGm, topPGm, drawsGm;
    GlobalTensor<int32_t> topKGm, tokensGm;
    logitsGm.SetGlobalBuffer((__gm__ Logit *)logits);
    temperaturesGm.SetGlobalBuffer((__gm__ float *)temperatures, rows);
    topKGm.SetGlobalBuffer((__gm__ int32_t *)topK, rows);
    topPGm.SetGlobalBuffer((__gm__ float *)topP, rows);
    drawsGm.SetGlobalBuffer((__gm__ float *)draws, rows);
    tokensGm.SetGlobalBuffer((__gm__ int32_t *)tokens, rows);
    for (uint64_t t = GetBlockIdx(); t < rows; t += GetBlockNum()) {
        const uint32_t token = sampler.Run(logitsGm[t * stride], temperaturesGm.GetValue(t), topKGm.GetValue(t),
                                           topPGm.GetValue(t), drawsGm.GetValue(t));
        sampler.Write(tokensGm[t], token);
    }
}
