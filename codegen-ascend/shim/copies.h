// Copies between global and local memory, and inside local memory.
#pragma once

#include "tensors.h"

namespace AscendC {

/// Blocks of `blockLen` and gaps between them, in units of 32 bytes.
struct DataCopyParams {
    uint16_t blockCount = 1;
    uint16_t blockLen = 0;
    uint16_t srcStride = 0;
    uint16_t dstStride = 0;
    DataCopyParams() = default;
    DataCopyParams(uint16_t count, uint16_t len, uint16_t src, uint16_t dst)
        : blockCount(count), blockLen(len), srcStride(src), dstStride(dst) {}
};

/// Blocks of `blockLen` bytes. Gaps between them are bytes in global memory and units of 32 bytes in
/// local memory, where each block begins at a whole unit.
struct DataCopyExtParams {
    uint16_t blockCount = 1;
    uint32_t blockLen = 0;
    uint32_t srcStride = 0;
    uint32_t dstStride = 0;
    uint32_t rsv = 0;
    DataCopyExtParams() = default;
    DataCopyExtParams(uint16_t count, uint32_t len, uint32_t src, uint32_t dst, uint32_t rsv)
        : blockCount(count), blockLen(len), srcStride(src), dstStride(dst), rsv(rsv) {}
};

/// Elements that are added around each block in local memory, at most 32 bytes on a side.
template <class T>
struct DataCopyPadExtParams {
    bool isPad = false;
    uint8_t leftPadding = 0;
    uint8_t rightPadding = 0;
    T paddingValue = T();
    DataCopyPadExtParams() = default;
    DataCopyPadExtParams(bool pad, uint8_t left, uint8_t right, T value)
        : isPad(pad), leftPadding(left), rightPadding(right), paddingValue(value) {}
};

namespace shim {

/// The local side of a copy from global memory: which pipe fills it.
inline pipe_t inbound(TPosition) { return PIPE_MTE2; }

template <class T>
inline void store(uint8_t* to, const uint8_t* from, uint64_t bytes) {
    auto& me = core();
    if (!me.atomic) {
        std::memcpy(to, from, bytes);
        return;
    }
    const int code = std::is_same_v<T, float> ? 1 : std::is_same_v<T, half> ? 2
        : std::is_same_v<T, int32_t> ? 3 : std::is_same_v<T, int16_t> ? 4
        : std::is_same_v<T, int8_t> ? 5 : std::is_same_v<T, bfloat16_t> ? 6 : 0;
    if (code != me.atomic) me.fail("SetAtomicAdd is for another element type");
    for (uint64_t i = 0; i < bytes / sizeof(T); ++i) {
        T sum, more;
        std::memcpy(&sum, to + i * sizeof(T), sizeof(T));
        std::memcpy(&more, from + i * sizeof(T), sizeof(T));
        if constexpr (std::is_same_v<T, half> || std::is_same_v<T, bfloat16_t>) {
            sum = T(float(sum) + float(more));
        } else {
            sum = T(sum + more);
        }
        std::memcpy(to + i * sizeof(T), &sum, sizeof(T));
    }
}

/// What a copy may be told to do.
inline void check_blocks(uint32_t count, uint64_t length, uint64_t most) {
    if (count < 1 || count > 4095) core().fail("%u blocks; 1 to 4095 are possible", count);
    if (length < 1 || length > most) {
        core().fail("blocks of %llu; 1 to %llu are possible", (unsigned long long)length, (unsigned long long)most);
    }
}
/// Bytes of a block that `DataCopyPad` copies at most.
constexpr uint64_t MOST_PADDED_BYTES = (1 << 21) - 1;

template <class T>
inline void aligned_gm(const GlobalTensor<T>& tensor) {
    if (reinterpret_cast<uint64_t>(tensor.GetPhyAddr()) % BLOCK != 0) {
        core().fail("the global address is no multiple of %u bytes; DataCopyPad takes any", BLOCK);
    }
}

}  // namespace shim

template <class T>
void DataCopy(const LocalTensor<T>& dst, const GlobalTensor<T>& src, const DataCopyParams& p) {
    auto& core = shim::core();
    core.issue("DataCopy from global memory", shim::inbound(dst.GetPosition()));
    shim::check_blocks(p.blockCount, p.blockLen, 65535);
    dst.aligned("the destination");
    shim::aligned_gm(src);
    const uint64_t len = uint64_t(p.blockLen) * shim::BLOCK;
    for (uint64_t b = 0; b < p.blockCount; ++b) {
        const uint8_t* from = src.access(b * (len + p.srcStride * shim::BLOCK), len, false);
        std::memcpy(dst.access(b * (len + p.dstStride * shim::BLOCK), len, true), from, len);
    }
}
template <class T>
void DataCopy(const LocalTensor<T>& dst, const GlobalTensor<T>& src, uint32_t count) {
    auto& core = shim::core();
    core.issue("DataCopy from global memory", shim::inbound(dst.GetPosition()));
    const uint64_t bytes = uint64_t(count) * sizeof(T);
    if (bytes % shim::BLOCK != 0) {
        core.fail("%llu bytes are no multiple of 32; DataCopyPad takes any",
            (unsigned long long)bytes);
    }
    dst.aligned("the destination");
    shim::aligned_gm(src);
    const uint8_t* from = src.access(0, bytes, false);
    std::memcpy(dst.access(0, bytes, true), from, bytes);
}
template <class T>
void DataCopy(const GlobalTensor<T>& dst, const LocalTensor<T>& src, const DataCopyParams& p) {
    auto& core = shim::core();
    core.issue("DataCopy to global memory", PIPE_MTE3);
    shim::check_blocks(p.blockCount, p.blockLen, 65535);
    src.aligned("the source");
    shim::aligned_gm(dst);
    const uint64_t len = uint64_t(p.blockLen) * shim::BLOCK;
    for (uint64_t b = 0; b < p.blockCount; ++b) {
        const uint8_t* from = src.access(b * (len + p.srcStride * shim::BLOCK), len, false);
        shim::store<T>(dst.access(b * (len + p.dstStride * shim::BLOCK), len, true), from, len);
    }
}
template <class T>
void DataCopy(const GlobalTensor<T>& dst, const LocalTensor<T>& src, uint32_t count) {
    auto& core = shim::core();
    core.issue("DataCopy to global memory", PIPE_MTE3);
    const uint64_t bytes = uint64_t(count) * sizeof(T);
    if (bytes % shim::BLOCK != 0) {
        core.fail("%llu bytes are no multiple of 32; DataCopyPad takes any",
            (unsigned long long)bytes);
    }
    src.aligned("the source");
    shim::aligned_gm(dst);
    const uint8_t* from = src.access(0, bytes, false);
    shim::store<T>(dst.access(0, bytes, true), from, bytes);
}

/// Inside UB: by the vector unit.
template <class T>
void DataCopy(const LocalTensor<T>& dst, const LocalTensor<T>& src, const DataCopyParams& p) {
    auto& core = shim::core();
    core.issue("DataCopy inside local memory",
        dst.memory() == src.memory() ? PIPE_V : PIPE_MTE3);
    dst.aligned("the destination");
    src.aligned("the source");
    const uint64_t len = uint64_t(p.blockLen) * shim::BLOCK;
    std::vector<uint8_t> all;
    for (uint64_t b = 0; b < p.blockCount; ++b) {
        const uint8_t* from = src.access(b * (len + p.srcStride * shim::BLOCK), len, false);
        all.insert(all.end(), from, from + len);
    }
    for (uint64_t b = 0; b < p.blockCount; ++b) {
        uint8_t* to = dst.access(b * (len + p.dstStride * shim::BLOCK), len, true);
        std::memcpy(to, all.data() + b * len, len);
    }
}
template <class T>
void DataCopy(const LocalTensor<T>& dst, const LocalTensor<T>& src, uint32_t count) {
    const uint64_t bytes = uint64_t(count) * sizeof(T);
    if (bytes % shim::BLOCK != 0) {
        shim::core().fail("DataCopy inside local memory: %llu bytes are no multiple of 32",
            (unsigned long long)bytes);
    }
    DataCopy(dst, src, DataCopyParams(1, uint16_t(bytes / shim::BLOCK), 0, 0));
}

template <class T>
void DataCopyPad(const LocalTensor<T>& dst, const GlobalTensor<T>& src,
    const DataCopyExtParams& p, const DataCopyPadExtParams<T>& pad) {
    auto& core = shim::core();
    core.issue("DataCopyPad from global memory", PIPE_MTE2);
    shim::check_blocks(p.blockCount, p.blockLen, shim::MOST_PADDED_BYTES);
    dst.aligned("the destination");
    const uint64_t left = pad.isPad ? pad.leftPadding : 0, right = pad.isPad ? pad.rightPadding : 0;
    if (left * sizeof(T) > shim::BLOCK || right * sizeof(T) > shim::BLOCK) {
        core.fail("padding of more than 32 bytes");
    }
    if (p.blockLen % sizeof(T) != 0) core.fail("%u bytes are no whole elements", p.blockLen);
    const uint64_t row = (left + right) * sizeof(T) + p.blockLen;
    const uint64_t padded = (row + shim::BLOCK - 1) / shim::BLOCK * shim::BLOCK;
    for (uint64_t b = 0; b < p.blockCount; ++b) {
        const uint8_t* from = src.access(b * (uint64_t(p.blockLen) + p.srcStride), p.blockLen, false);
        uint8_t* to = dst.access(b * (padded + uint64_t(p.dstStride) * shim::BLOCK), padded, true);
        for (uint64_t i = 0; i < left; ++i) std::memcpy(to + i * sizeof(T), &pad.paddingValue, sizeof(T));
        std::memcpy(to + left * sizeof(T), from, p.blockLen);
        uint8_t* after = to + left * sizeof(T) + p.blockLen;
        for (uint64_t i = 0; i < right; ++i) {
            std::memcpy(after + i * sizeof(T), &pad.paddingValue, sizeof(T));
        }
        // What stands in the rest of the block is not defined.
        std::memset(to + row, shim::POISON, padded - row);
    }
}
template <class T>
void DataCopyPad(const GlobalTensor<T>& dst, const LocalTensor<T>& src,
    const DataCopyExtParams& p) {
    auto& core = shim::core();
    core.issue("DataCopyPad to global memory", PIPE_MTE3);
    shim::check_blocks(p.blockCount, p.blockLen, shim::MOST_PADDED_BYTES);
    src.aligned("the source");
    if (p.blockLen % sizeof(T) != 0) core.fail("%u bytes are no whole elements", p.blockLen);
    const uint64_t padded = (uint64_t(p.blockLen) + shim::BLOCK - 1) / shim::BLOCK * shim::BLOCK;
    for (uint64_t b = 0; b < p.blockCount; ++b) {
        const uint8_t* from =
            src.access(b * (padded + uint64_t(p.srcStride) * shim::BLOCK), p.blockLen, false);
        uint8_t* to = dst.access(b * (uint64_t(p.blockLen) + p.dstStride), p.blockLen, true);
        shim::store<T>(to, from, p.blockLen);
    }
}

}  // namespace AscendC
