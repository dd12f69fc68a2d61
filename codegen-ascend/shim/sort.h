// Sorting of pairs of an f32 score and a u32 index, eight bytes each.
#pragma once

#include "vector.h"

namespace AscendC {

template <class T>
struct MrgSortSrcList {
    LocalTensor<T> src1, src2, src3, src4;
    MrgSortSrcList(const LocalTensor<T>& a, const LocalTensor<T>& b, const LocalTensor<T>& c,
        const LocalTensor<T>& d)
        : src1(a), src2(b), src3(c), src4(d) {}
};

/// Pairs in each list, and which lists there are: `validBit` 3, 7 or 15 for the first two to four.
struct MrgSort4Info {
    uint16_t elementLengths[4] = {};
    bool ifExhaustedSuspension = false;
    uint16_t validBit = 15;
    uint16_t repeatTimes = 1;
    MrgSort4Info(const uint16_t lengths[4], bool suspend, uint16_t valid, uint16_t repeat)
        : ifExhaustedSuspension(suspend), validBit(valid), repeatTimes(repeat) {
        std::copy(lengths, lengths + 4, elementLengths);
    }
};

namespace shim {
struct Pair {
    float score;
    uint32_t index;
};
/// Largest score first. The order of equal scores is not documented: nothing may rest on it.
inline bool before(const Pair& a, const Pair& b) { return a.score > b.score; }
}  // namespace shim

/// Sorts each 32 scores, largest first, as pairs of score and index.
template <class T>
void Sort32(const LocalTensor<T>& dst, const LocalTensor<T>& src, const LocalTensor<uint32_t>& index,
    const int32_t repeat) {
    static_assert(std::is_same_v<T, float>, "Sort32 is for float here");
    shim::core().issue("Sort32", PIPE_V);
    shim::check_repeat(32, repeat, 64);
    const float* scores = src.read("the scores", uint64_t(repeat) * 32);
    const uint32_t* indices = index.read("the indices", uint64_t(repeat) * 32);
    std::vector<shim::Pair> pairs;
    for (int32_t i = 0; i < repeat * 32; ++i) pairs.push_back({scores[i], indices[i]});
    for (int32_t r = 0; r < repeat; ++r) {
        std::stable_sort(pairs.begin() + r * 32, pairs.begin() + (r + 1) * 32, shim::before);
    }
    std::memcpy(static_cast<void*>(dst.write("the destination", uint64_t(repeat) * 64)), pairs.data(),
        pairs.size() * 8);
}

/// Merges two to four sorted lists of pairs.
template <class T>
void MrgSort(const LocalTensor<T>& dst, const MrgSortSrcList<T>& lists, const MrgSort4Info& info) {
    static_assert(std::is_same_v<T, float>, "MrgSort is for float here");
    auto& core = shim::core();
    core.issue("MrgSort", PIPE_V);
    if (info.repeatTimes != 1 || info.ifExhaustedSuspension) core.fail("one merge of whole lists is supported");
    const LocalTensor<T>* all[] = {&lists.src1, &lists.src2, &lists.src3, &lists.src4};
    std::vector<shim::Pair> merged;
    for (int l = 0; l < 4; ++l) {
        if (!(info.validBit >> l & 1)) continue;
        const uint32_t n = info.elementLengths[l];
        if (n > 4095) core.fail("a list of %u pairs; 4095 are possible", n);
        const auto* pairs = reinterpret_cast<const shim::Pair*>(all[l]->read("a list", uint64_t(n) * 2));
        if (!std::is_sorted(pairs, pairs + n, shim::before)) core.fail("list %d is not sorted", l);
        merged.insert(merged.end(), pairs, pairs + n);
    }
    std::stable_sort(merged.begin(), merged.end(), shim::before);
    std::memcpy(static_cast<void*>(dst.write("the destination", merged.size() * 2)), merged.data(),
        merged.size() * 8);
}

/// Scores and indices of sorted pairs apart; `repeat` times 32.
template <class T>
void Extract(const LocalTensor<T>& values, const LocalTensor<uint32_t>& indices,
    const LocalTensor<T>& sorted, const int32_t repeat) {
    static_assert(std::is_same_v<T, float>, "Extract is for float here");
    shim::core().issue("Extract", PIPE_V);
    const auto* from = reinterpret_cast<const shim::Pair*>(sorted.read("the pairs", uint64_t(repeat) * 64));
    std::vector<shim::Pair> pairs(from, from + repeat * 32);
    float* scores = values.write("the scores", pairs.size());
    uint32_t* places = indices.write("the indices", pairs.size());
    for (size_t i = 0; i < pairs.size(); ++i) {
        scores[i] = pairs[i].score;
        places[i] = pairs[i].index;
    }
}

}  // namespace AscendC
