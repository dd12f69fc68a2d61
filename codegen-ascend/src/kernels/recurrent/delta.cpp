// Items are runs of rows of one sequence, times heads, times chunks of columns; block b has items b,
// b + blocks, ... and walks the sequences to find them.
extern "C" __global__ __aicore__ void @NAME@(
    GM_ADDR state, GM_ADDR q, GM_ADDR k, GM_ADDR v, GM_ADDR gate, GM_ADDR beta, GM_ADDR sequences,
    GM_ADDR positions, GM_ADDR out, uint64_t rows, uint64_t qStride, uint64_t kStride, uint64_t vStride,
    uint64_t gateStride, uint64_t betaStride, uint64_t outStride)
{
    KERNEL_TASK_TYPE_DEFAULT(KERNEL_TYPE_AIV_ONLY);
    TPipe pipe;
    Delta delta(pipe);
    GlobalTensor<int32_t> sequencesGm, positionsGm;
    sequencesGm.SetGlobalBuffer((__gm__ int32_t *)sequences, rows);
    positionsGm.SetGlobalBuffer((__gm__ int32_t *)positions, rows);
    GlobalTensor<float> stateGm, qGm, kGm, vGm, gateGm, betaGm, outGm;
    stateGm.SetGlobalBuffer((__gm__ float *)state);
    qGm.SetGlobalBuffer((__gm__ float *)q);
    kGm.SetGlobalBuffer((__gm__ float *)k);
    vGm.SetGlobalBuffer((__gm__ float *)v);
    gateGm.SetGlobalBuffer((__gm__ float *)gate);
    betaGm.SetGlobalBuffer((__gm__ float *)beta);
    outGm.SetGlobalBuffer((__gm__ float *)out);

    uint64_t item = 0;
    for (uint64_t begin = 0, end = 0; begin < rows; begin = end) {
        const int32_t slot = sequencesGm.GetValue(begin);
        for (end = begin + 1; end < rows && sequencesGm.GetValue(end) == slot;) {
            ++end;
        }
        for (uint32_t part = 0; part < HEADS * CHUNKS; ++part, ++item) {
            if (item % GetBlockNum() != static_cast<uint64_t>(GetBlockIdx())) {
                continue;
            }
            const uint32_t head = part / CHUNKS, column = part % CHUNKS * WIDTH;
            const uint32_t keyHead = head / (HEADS / KEY_HEADS);
            const GlobalTensor<float> own = stateGm[(static_cast<uint64_t>(slot) * HEADS + head) * DK * DV + column];
            delta.Load(own);
            for (uint64_t t = begin; t < end; ++t) {
                if (positionsGm.GetValue(t) <= 0) {
                    delta.Forget();
                } else {
                    delta.Decay(gateGm.GetValue(t * gateStride + head));
                }
                delta.Step(qGm[t * qStride + keyHead * DK], kGm[t * kStride + keyHead * DK],
                           vGm[t * vStride + head * DV + column], betaGm.GetValue(t * betaStride + head),
                           outGm[t * outStride + head * DV + column]);
            }
            delta.Store(own);
        }
    }
}
