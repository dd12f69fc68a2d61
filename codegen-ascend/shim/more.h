// Queues that hand a buffer from one copy to the next, and instructions that compress and accumulate.
#pragma once

#include "queues.h"
#include "vector.h"

namespace AscendC {

/// A queue whose tensors go from the copy that fills them to the copy that empties them.
template <TPosition from, TPosition to, int32_t depth, auto mask = 0>
class TQueBind : public TQue<from, depth, mask> {
    static_assert(from == TPosition::VECIN && to == TPosition::VECOUT, "from VECIN to VECOUT");

public:
    TQueBind() { this->bound = to; }
};

/// `dst += src0 * src1`, rounded after the product and after the sum.
template <class T>
void MulAddDst(const LocalTensor<T>& dst, const LocalTensor<T>& src0, const LocalTensor<T>& src1,
    uint64_t mask, const uint8_t repeat, const BinaryRepeatParams& p) {
    static_assert(shim::floating<T>(), "MulAddDst is not for this element type");
    shim::core().issue("MulAddDst", PIPE_V);
    shim::check_repeat(mask, repeat, shim::REPEAT_BYTES / sizeof(T));
    dst.aligned("the destination"), src0.aligned("source 0"), src1.aligned("source 1");
    const T* x = shim::strided(src0, mask, repeat, p.src0BlkStride, p.src0RepStride, false);
    const T* y = shim::strided(src1, mask, repeat, p.src1BlkStride, p.src1RepStride, false);
    shim::strided(dst, mask, repeat, p.dstBlkStride, p.dstRepStride, false);
    T* out = shim::strided(dst, mask, repeat, p.dstBlkStride, p.dstRepStride, true);
    for (uint32_t r = 0; r < repeat; ++r) {
        for (uint32_t i = 0; i < mask; ++i) {
            const float product = float(x[shim::lane_at<T>(r, i, p.src0BlkStride, p.src0RepStride)]) *
                float(y[shim::lane_at<T>(r, i, p.src1BlkStride, p.src1RepStride)]);
            T& sum = out[shim::lane_at<T>(r, i, p.dstBlkStride, p.dstRepStride)];
            sum = T(float(sum) + product);
        }
    }
}

/// `value` in the lanes whose bits are set in `mask`, the lowest first.
template <class T>
void Duplicate(const LocalTensor<T>& dst, const T& value, uint64_t mask[],
    const uint8_t repeat, uint16_t dstBlkStride, uint8_t dstRepStride) {
    static_assert(sizeof(T) == 2 || sizeof(T) == 4, "Duplicate is for elements of 2 and 4 bytes");
    shim::core().issue("Duplicate", PIPE_V);
    constexpr uint32_t lanes = shim::REPEAT_BYTES / sizeof(T), per_block = shim::BLOCK / sizeof(T);
    dst.aligned("the destination");
    if (mask[0] == 0 && mask[1] == 0) shim::core().fail("a mask without a lane");
    if (lanes == 64 && mask[1] != 0) shim::core().fail("a mask of more than 64 lanes");
    for (uint32_t r = 0; r < repeat; ++r) {
        for (uint32_t lane = 0; lane < lanes; lane += per_block) {
            const uint64_t bits = mask[lane / 64] >> (lane % 64) & ((1ull << per_block) - 1);
            if (bits == 0) continue;
            const uint64_t at = uint64_t(shim::lane_at<T>(r, lane, dstBlkStride, dstRepStride)) * sizeof(T);
            T* out = reinterpret_cast<T*>(dst.access(at, shim::BLOCK, true));
            for (uint32_t i = 0; i < per_block; ++i) {
                if (bits >> i & 1) out[i] = value;
            }
        }
    }
}

/// Steps of `GatherMask`, in blocks of 32 bytes.
struct GatherMaskParams {
    uint8_t src0BlockStride = 1;
    uint16_t repeatTimes = 1;
    uint16_t src0RepeatStride = 8;
    uint8_t src1RepeatStride = 8;
    GatherMaskParams() = default;
    GatherMaskParams(uint8_t block, uint16_t repeat, uint16_t repeat0, uint8_t repeat1)
        : src0BlockStride(block), repeatTimes(repeat), src0RepeatStride(repeat0), src1RepeatStride(repeat1) {}
};

/// The elements of `src0` whose bits are set in `pattern`, behind each other; `kept` says how many.
/// In counter mode (`reduceMode`) `mask` elements are looked at.
template <class T, class U>
void GatherMask(const LocalTensor<T>& dst, const LocalTensor<T>& src0, const LocalTensor<U>& pattern,
    const bool reduceMode, const uint32_t mask, const GatherMaskParams& p, uint64_t& kept) {
    static_assert(sizeof(T) == sizeof(U), "the pattern has the size of the elements");
    auto& core = shim::core();
    core.issue("GatherMask", PIPE_V);
    if (!reduceMode || p.repeatTimes != 1 || p.src0BlockStride != 1) {
        core.fail("one repeat of adjacent elements in counter mode is supported");
    }
    const T* x = src0.read("source 0", mask);
    const uint8_t* bits = pattern.template ReinterpretCast<uint8_t>().read("the pattern", (mask + 7) / 8);
    std::vector<T> values;
    for (uint32_t i = 0; i < mask; ++i) {
        if (bits[i / 8] >> (i % 8) & 1) values.push_back(x[i]);
    }
    kept = values.size();
    if (kept > 0) std::copy(values.begin(), values.end(), dst.write("the destination", kept));
}

}  // namespace AscendC
