// groups[e] = starts[e + 1], the place behind the last pair of each expert, less starts[e] where pairs are
// counted; in 64 bits.
__aicore__ inline void WriteGroupList(TPipe &pipe, GM_ADDR starts, GM_ADDR groups)
{
    constexpr uint32_t COUNT = RoundUp(EXPERTS, 64);
    TBuf<TPosition::VECCALC> narrow, before, wide;
    pipe.InitBuffer(narrow, COUNT * sizeof(int32_t));
    pipe.InitBuffer(before, COUNT * sizeof(int32_t));
    pipe.InitBuffer(wide, COUNT * sizeof(int64_t));
    LocalTensor<int32_t> ends = narrow.Get<int32_t>();
    LocalTensor<int64_t> list = wide.Get<int64_t>();
    GlobalTensor<int32_t> startsGm;
    GlobalTensor<int64_t> groupsGm;
    startsGm.SetGlobalBuffer((__gm__ int32_t *)starts + 1, EXPERTS);
    groupsGm.SetGlobalBuffer((__gm__ int64_t *)groups, EXPERTS);

    const DataCopyPadExtParams<int32_t> none{false, 0, 0, 0};
    DataCopyPad(ends, startsGm, DataCopyExtParams{1, EXPERTS * 4, 0, 0, 0}, none);
    if constexpr (COUNTS) {
        LocalTensor<int32_t> begins = before.Get<int32_t>();
        GlobalTensor<int32_t> beginsGm;
        beginsGm.SetGlobalBuffer((__gm__ int32_t *)starts, EXPERTS);
        DataCopyPad(begins, beginsGm, DataCopyExtParams{1, EXPERTS * 4, 0, 0, 0}, none);
        Sync<HardEvent::MTE2_V>();
        Sub(ends, ends, begins, EXPERTS);
        PipeBarrier<PIPE_V>();
    } else {
        Sync<HardEvent::MTE2_V>();
    }
    Cast(list, ends, RoundMode::CAST_NONE, EXPERTS);
    Sync<HardEvent::V_MTE3>();
    DataCopyPad(groupsGm, list, DataCopyExtParams{1, EXPERTS * 8, 0, 0, 0});
}
