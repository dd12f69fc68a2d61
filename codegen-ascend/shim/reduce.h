// Reductions of the vector unit. Sums run as trees: over the lanes of a repeat, then over repeats.
#pragma once

#include "vector.h"

namespace AscendC {

enum class ReduceOrder { ORDER_VALUE_INDEX, ORDER_INDEX_VALUE, ORDER_ONLY_VALUE, ORDER_ONLY_INDEX };

namespace shim {

/// The sum of `n` lanes, pair by pair.
template <class T>
inline T tree_sum(const T* x, uint32_t n) {
    float lanes[256];
    for (uint32_t i = 0; i < n; ++i) lanes[i] = float(x[i]);
    while (n > 1) {
        const uint32_t pairs = n / 2;
        for (uint32_t i = 0; i < pairs; ++i) lanes[i] = float(T(lanes[2 * i] + lanes[2 * i + 1]));
        if (n % 2) lanes[pairs] = lanes[n - 1];
        n = pairs + n % 2;
    }
    return T(lanes[0]);
}

/// Place of the largest (or smallest) of `n`, the first of equals.
template <class T>
inline uint32_t best(const T* x, uint32_t n, bool largest) {
    uint32_t at = 0;
    for (uint32_t i = 1; i < n; ++i) {
        if (largest ? float(x[i]) > float(x[at]) : float(x[i]) < float(x[at])) at = i;
    }
    return at;
}

/// A number as the bits of an element.
template <class T>
inline T index_bits(uint32_t index) {
    T value;
    std::memcpy(&value, &index, sizeof(T));
    return value;
}

/// Elements of work memory: the results of each repeat, in whole blocks.
template <class T>
inline uint32_t work_elements(uint32_t count, uint32_t each) {
    constexpr uint32_t lanes = REPEAT_BYTES / sizeof(T), block = BLOCK / sizeof(T);
    return ((count + lanes - 1) / lanes * each + block - 1) / block * block;
}

/// The same for a reduction that gives a place: its three rounds keep their results side by side.
template <class T>
inline uint32_t work_elements_with_index(uint32_t count) {
    constexpr uint32_t lanes = REPEAT_BYTES / sizeof(T);
    const uint32_t first = (count + lanes - 1) / lanes * 2, second = (first + lanes - 1) / lanes * 2;
    return work_elements<T>(count, 2) + work_elements<T>(first, 2) + work_elements<T>(second, 2);
}

template <class T>
inline void extreme(const char* name, const LocalTensor<T>& dst, const LocalTensor<T>& src,
    const LocalTensor<T>& work, int32_t count, bool with_index, bool largest) {
    static_assert(floating<T>(), "this reduction is not for this element type");
    core().issue(name, PIPE_V);
    const T* x = src.read("the source", count);
    const uint32_t at = best(x, count, largest);
    const T value = x[at];
    const uint32_t needed =
        with_index ? work_elements_with_index<T>(count) : work_elements<T>(count, 2);
    std::memset(static_cast<void*>(work.write("the work memory", needed)), POISON, needed * sizeof(T));
    T* out = dst.write("the destination", with_index ? 2 : 1);
    out[0] = value;
    if (with_index) out[1] = index_bits<T>(at);
}

}  // namespace shim

/// `dst[0]` is the sum of `count` elements; `work` is overwritten.
template <class T>
void ReduceSum(const LocalTensor<T>& dst, const LocalTensor<T>& src, const LocalTensor<T>& work,
    const int32_t count) {
    static_assert(shim::floating<T>(), "ReduceSum is not for this element type");
    shim::core().issue("ReduceSum", PIPE_V);
    constexpr int32_t lanes = shim::REPEAT_BYTES / sizeof(T);
    const T* x = src.read("the source", count);
    std::vector<T> level(x, x + count);
    do {
        std::vector<T> next;
        for (size_t i = 0; i < level.size(); i += lanes) {
            next.push_back(shim::tree_sum(&level[i], std::min<size_t>(lanes, level.size() - i)));
        }
        level = std::move(next);
    } while (level.size() > 1);
    const uint32_t needed = shim::work_elements<T>(count, 1);
    std::memset(static_cast<void*>(work.write("the work memory", needed)), shim::POISON, needed * sizeof(T));
    *dst.write("the destination", 1) = level[0];
}
/// `dst[0]` is the largest element; with `calIndex`, `dst[1]` has the bits of its index, the first of
/// equals.
template <class T>
void ReduceMax(const LocalTensor<T>& dst, const LocalTensor<T>& src, const LocalTensor<T>& work,
    const int32_t count, bool calIndex = false) {
    shim::extreme("ReduceMax", dst, src, work, count, calIndex, true);
}
template <class T>
void ReduceMin(const LocalTensor<T>& dst, const LocalTensor<T>& src, const LocalTensor<T>& work,
    const int32_t count, bool calIndex = false) {
    shim::extreme("ReduceMin", dst, src, work, count, calIndex, false);
}

/// One sum for each repeat; `dstRepStride` in elements.
template <class T>
void WholeReduceSum(const LocalTensor<T>& dst, const LocalTensor<T>& src, const int32_t mask,
    const int32_t repeat, const int32_t dstRepStride, const int32_t srcBlkStride, const int32_t srcRepStride) {
    static_assert(shim::floating<T>(), "WholeReduceSum is not for this element type");
    shim::core().issue("WholeReduceSum", PIPE_V);
    shim::check_repeat(mask, repeat, shim::REPEAT_BYTES / sizeof(T));
    src.aligned("the source");
    const T* x = shim::strided(src, mask, repeat, srcBlkStride, srcRepStride, false);
    std::vector<T> sums;
    for (int32_t r = 0; r < repeat; ++r) {
        T lanes[128];
        for (int32_t i = 0; i < mask; ++i) lanes[i] = x[shim::lane_at<T>(r, i, srcBlkStride, srcRepStride)];
        sums.push_back(shim::tree_sum(lanes, mask));
    }
    for (int32_t r = 0; r < repeat; ++r) {
        *reinterpret_cast<T*>(dst.access(uint64_t(r) * dstRepStride * sizeof(T), sizeof(T), true)) = sums[r];
    }
}

namespace shim {
template <class T>
inline void whole_extreme(const char* name, const LocalTensor<T>& dst, const LocalTensor<T>& src,
    int32_t mask, int32_t repeat, int32_t dst_rep, int32_t src_blk, int32_t src_rep, ReduceOrder order,
    bool largest) {
    static_assert(floating<T>(), "this reduction is not for this element type");
    core().issue(name, PIPE_V);
    check_repeat(mask, repeat, REPEAT_BYTES / sizeof(T));
    src.aligned("the source");
    const bool only_value = order == ReduceOrder::ORDER_ONLY_VALUE;
    if (!only_value && order != ReduceOrder::ORDER_VALUE_INDEX) core().fail("this order is not supported");
    const T* x = strided(src, mask, repeat, src_blk, src_rep, false);
    const uint32_t each = only_value ? 1 : 2;
    std::vector<T> results;
    for (int32_t r = 0; r < repeat; ++r) {
        T lanes[128];
        for (int32_t i = 0; i < mask; ++i) lanes[i] = x[lane_at<T>(r, i, src_blk, src_rep)];
        const uint32_t at = best(lanes, mask, largest);
        results.push_back(lanes[at]);
        if (!only_value) results.push_back(index_bits<T>(at));
    }
    for (int32_t r = 0; r < repeat; ++r) {
        void* out = dst.access(uint64_t(r) * dst_rep * each * sizeof(T), each * sizeof(T), true);
        std::memcpy(out, &results[r * each], each * sizeof(T));
    }
}
}  // namespace shim

/// The largest of each repeat, with its lane or alone; `dstRepStride` in results.
template <class T>
void WholeReduceMax(const LocalTensor<T>& dst, const LocalTensor<T>& src, const int32_t mask,
    const int32_t repeat, const int32_t dstRepStride, const int32_t srcBlkStride, const int32_t srcRepStride,
    ReduceOrder order = ReduceOrder::ORDER_VALUE_INDEX) {
    shim::whole_extreme("WholeReduceMax", dst, src, mask, repeat, dstRepStride, srcBlkStride, srcRepStride, order, true);
}
template <class T>
void WholeReduceMin(const LocalTensor<T>& dst, const LocalTensor<T>& src, const int32_t mask,
    const int32_t repeat, const int32_t dstRepStride, const int32_t srcBlkStride, const int32_t srcRepStride,
    ReduceOrder order = ReduceOrder::ORDER_VALUE_INDEX) {
    shim::whole_extreme("WholeReduceMin", dst, src, mask, repeat, dstRepStride, srcBlkStride, srcRepStride, order, false);
}

namespace shim {
template <class T, class F>
inline void block_reduce(const char* name, const LocalTensor<T>& dst, const LocalTensor<T>& src,
    int32_t repeat, int32_t mask, int32_t dst_rep, int32_t src_blk, int32_t src_rep, F f) {
    constexpr int32_t per_block = BLOCK / sizeof(T);
    static_assert(floating<T>(), "this reduction is not for this element type");
    core().issue(name, PIPE_V);
    check_repeat(mask, repeat, REPEAT_BYTES / sizeof(T));
    src.aligned("the source");
    const T* x = strided(src, mask, repeat, src_blk, src_rep, false);
    std::vector<T> results;
    for (int32_t r = 0; r < repeat; ++r) {
        for (int32_t lane = 0; lane < mask; lane += per_block) {
            results.push_back(f(x + lane_at<T>(r, lane, src_blk, src_rep), std::min(per_block, mask - lane)));
        }
    }
    const int32_t each = (mask + per_block - 1) / per_block;
    for (int32_t r = 0; r < repeat; ++r) {
        // A repeat gives eight results; `dst_rep` counts repeats.
        void* out = dst.access(uint64_t(r) * dst_rep * 8 * sizeof(T), each * sizeof(T), true);
        std::memcpy(out, &results[r * each], each * sizeof(T));
    }
}
}  // namespace shim

/// One result for each block of 32 bytes; `dstRepStride` in eights of elements.
template <class T>
void BlockReduceSum(const LocalTensor<T>& dst, const LocalTensor<T>& src, const int32_t repeat,
    const int32_t mask, const int32_t dstRepStride, const int32_t srcBlkStride, const int32_t srcRepStride) {
    shim::block_reduce("BlockReduceSum", dst, src, repeat, mask, dstRepStride, srcBlkStride, srcRepStride,
        [](const T* x, int32_t n) { return shim::tree_sum(x, n); });
}
template <class T>
void BlockReduceMax(const LocalTensor<T>& dst, const LocalTensor<T>& src, const int32_t repeat,
    const int32_t mask, const int32_t dstRepStride, const int32_t srcBlkStride, const int32_t srcRepStride) {
    shim::block_reduce("BlockReduceMax", dst, src, repeat, mask, dstRepStride, srcBlkStride, srcRepStride,
        [](const T* x, int32_t n) { return x[shim::best(x, n, true)]; });
}

}  // namespace AscendC
