// Conversions of the vector unit: only the pairs of types and roundings that architecture 2201 has.
#pragma once

#include "vector.h"

namespace AscendC {

/// NONE is exact where the target holds every value of the source, nearest even otherwise.
enum class RoundMode { CAST_NONE, CAST_RINT, CAST_FLOOR, CAST_CEIL, CAST_ROUND, CAST_TRUNC, CAST_ODD };

namespace shim {

inline const char* const ROUND_NAMES[] = {"NONE", "RINT", "FLOOR", "CEIL", "ROUND", "TRUNC", "ODD"};

/// `x` as a whole number.
inline double whole(double x, RoundMode mode) {
    switch (mode) {
        case RoundMode::CAST_FLOOR: return std::floor(x);
        case RoundMode::CAST_CEIL: return std::ceil(x);
        case RoundMode::CAST_ROUND: return std::round(x);
        case RoundMode::CAST_TRUNC: return std::trunc(x);
        default: return std::nearbyint(x);
    }
}
template <class D>
inline D saturated(double x) {
    if (std::isnan(x)) return 0;
    const double low = std::numeric_limits<D>::min(), high = std::numeric_limits<D>::max();
    return x <= low ? std::numeric_limits<D>::min()
        : x >= high ? std::numeric_limits<D>::max() : D(x);
}

/// `x` as the nearest value of few bits in the direction of `mode`.
template <class D>
inline D narrowed(float x, RoundMode mode) {
    const D nearest = D(x);
    const float back = nearest;
    if (std::isnan(x) || back == x || mode == RoundMode::CAST_RINT || mode == RoundMode::CAST_NONE) {
        return nearest;
    }
    // Codes of one sign are in the order of magnitudes.
    const auto step = [&](int by) {
        D next = nearest;
        next.bits = uint16_t(next.bits + by);
        return next;
    };
    const bool larger = std::fabs(back) > std::fabs(x);
    const bool away = mode == RoundMode::CAST_FLOOR ? x < 0 : mode == RoundMode::CAST_CEIL && x > 0;
    switch (mode) {
        case RoundMode::CAST_TRUNC: return larger ? step(-1) : nearest;
        case RoundMode::CAST_FLOOR:
        case RoundMode::CAST_CEIL:
            return away ? (larger ? nearest : step(1)) : (larger ? step(-1) : nearest);
        case RoundMode::CAST_ODD:
            return nearest.bits & 1 ? nearest : larger ? step(-1) : step(1);
        default: return nearest;  // ROUND differs at ties only, which go away from zero.
    }
}

template <class D, class S>
constexpr bool cast_exists() {
    using B = bfloat16_t;
    if constexpr (std::is_same_v<S, half>) return one_of<D, float, int32_t, int16_t, int8_t, uint8_t>();
    if constexpr (std::is_same_v<S, float>) return one_of<D, float, half, B, int64_t, int32_t, int16_t>();
    if constexpr (std::is_same_v<S, B>) return one_of<D, float, int32_t>();
    if constexpr (one_of<S, int8_t, uint8_t>()) return one_of<D, half>();
    if constexpr (std::is_same_v<S, int16_t>) return one_of<D, half, float>();
    if constexpr (std::is_same_v<S, int32_t>) return one_of<D, float, int64_t, int16_t>();
    if constexpr (std::is_same_v<S, int64_t>) return one_of<D, float, int32_t>();
    return false;
}

/// Whether the conversion needs no rounding, so that its only mode is NONE.
template <class D, class S>
constexpr bool widens() {
    return one_of<S, int8_t, uint8_t>() || (one_of<S, half, bfloat16_t>() && std::is_same_v<D, float>) ||
        (std::is_same_v<S, int16_t> && std::is_same_v<D, float>) ||
        (std::is_same_v<S, int32_t> && !std::is_same_v<D, float>) ||
        (std::is_same_v<S, int64_t> && std::is_same_v<D, int32_t>);
}

template <class D, class S>
inline D converted(S x, RoundMode mode) {
    if constexpr (std::is_same_v<D, float> && std::is_same_v<S, float>) {
        return float(whole(x, mode));
    } else if constexpr (one_of<D, half, bfloat16_t>()) {
        return narrowed<D>(float(x), mode);
    } else if constexpr (std::is_same_v<D, float>) {
        return float(x);
    } else if constexpr (std::is_integral_v<S>) {
        return saturated<D>(double(x));
    } else {
        return saturated<D>(whole(double(float(x)), mode));
    }
}

template <class D, class S>
inline void check_cast(RoundMode mode) {
    static_assert(cast_exists<D, S>(), "Cast: this architecture has no such conversion");
    const bool none = mode == RoundMode::CAST_NONE;
    const bool half_to_int8 = std::is_same_v<S, half> && one_of<D, int8_t, uint8_t>();
    if (widens<D, S>() && !none) core().fail("this conversion takes CAST_NONE only, not CAST_%s", ROUND_NAMES[int(mode)]);
    const bool none_is_possible = widens<D, S>() || half_to_int8 ||
        (std::is_same_v<S, float> && std::is_same_v<D, half>) ||
        (std::is_same_v<S, int32_t> && std::is_same_v<D, float>) ||
        (std::is_same_v<S, int16_t> && std::is_same_v<D, half>);
    if (none && !none_is_possible) core().fail("this conversion rounds: CAST_NONE is not possible");
    if (mode == RoundMode::CAST_ODD && !(std::is_same_v<S, float> && std::is_same_v<D, half>)) {
        core().fail("CAST_ODD is for float to half only");
    }
}

}  // namespace shim

template <class D, class S>
void Cast(const LocalTensor<D>& dst, const LocalTensor<S>& src, const RoundMode& mode,
    const uint32_t count) {
    shim::core().issue("Cast", PIPE_V);
    shim::check_cast<D, S>(mode);
    const S* x = src.read("the source", count);
    // The two may share memory where elements keep their size.
    std::vector<D> values(count);
    for (uint32_t i = 0; i < count; ++i) values[i] = shim::converted<D, S>(x[i], mode);
    std::copy(values.begin(), values.end(), dst.write("the destination", count));
}
template <class D, class S>
void Cast(const LocalTensor<D>& dst, const LocalTensor<S>& src, const RoundMode& mode,
    const uint64_t mask, const uint8_t repeat, const UnaryRepeatParams& p) {
    shim::core().issue("Cast", PIPE_V);
    shim::check_cast<D, S>(mode);
    shim::check_repeat(mask, repeat, shim::REPEAT_BYTES / std::max(sizeof(D), sizeof(S)));
    dst.aligned("the destination"), src.aligned("the source");
    const S* x = shim::strided(src, mask, repeat, p.srcBlkStride, p.srcRepStride, false);
    D* out = shim::strided(dst, mask, repeat, p.dstBlkStride, p.dstRepStride, true);
    for (uint32_t r = 0; r < repeat; ++r) {
        for (uint32_t i = 0; i < mask; ++i) {
            out[shim::lane_at<D>(r, i, p.dstBlkStride, p.dstRepStride)] =
                shim::converted<D, S>(x[shim::lane_at<S>(r, i, p.srcBlkStride, p.srcRepStride)], mode);
        }
    }
}

}  // namespace AscendC
