// Waits on one pipe for what another has done so far.
template <HardEvent EVENT> __aicore__ inline void Sync()
{
    const event_t id = static_cast<event_t>(GetTPipePtr()->FetchEventID(EVENT));
    SetFlag<EVENT>(id);
    WaitFlag<EVENT>(id);
}

// `count` elements of a row that may begin at any address, as a part of a wider row does.
template <typename T>
__aicore__ inline void LoadRow(const LocalTensor<T> &to, const GlobalTensor<T> &from, uint32_t count)
{
    const uint32_t bytes = count * sizeof(T);
    DataCopyPad(to, from, DataCopyExtParams{1, bytes, 0, 0, 0}, DataCopyPadExtParams<T>{false, 0, 0, 0});
}

__aicore__ constexpr uint32_t CeilDiv(uint32_t n, uint32_t by) { return (n + by - 1) / by; }
__aicore__ constexpr uint32_t RoundUp(uint32_t n, uint32_t to) { return CeilDiv(n, to) * to; }
__aicore__ constexpr uint32_t Least(uint32_t a, uint32_t b) { return a < b ? a : b; }
