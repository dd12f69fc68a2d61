// Copies ROW bytes through local memory.
template <typename Queue>
__aicore__ inline void CopyRow(Queue &queue, GM_ADDR to, GM_ADDR from)
{
    for (uint32_t at = 0; at < ROW; at += CHUNK) {
        const uint32_t bytes = Least(CHUNK, ROW - at);
        GlobalTensor<uint8_t> source, target;
        source.SetGlobalBuffer((__gm__ uint8_t *)from + at, bytes);
        target.SetGlobalBuffer((__gm__ uint8_t *)to + at, bytes);
        const DataCopyExtParams extent{1, bytes, 0, 0, 0};

        LocalTensor<uint8_t> in = queue.template AllocTensor<uint8_t>();
        DataCopyPad(in, source, extent, DataCopyPadExtParams<uint8_t>{false, 0, 0, 0});
        queue.EnQue(in);
        LocalTensor<uint8_t> out = queue.template DeQue<uint8_t>();
        DataCopyPad(target, out, extent);
        queue.FreeTensor(out);
    }
}
