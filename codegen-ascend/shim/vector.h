// Element-wise instructions of the vector unit.
#pragma once

#include "tensors.h"

namespace AscendC {

/// Steps between blocks of 32 bytes inside a repeat and between repeats, in blocks.
struct UnaryRepeatParams {
    uint16_t dstBlkStride = 1, srcBlkStride = 1;
    uint8_t dstRepStride = 8, srcRepStride = 8;
    UnaryRepeatParams() = default;
    UnaryRepeatParams(uint16_t db, uint16_t sb, uint8_t dr, uint8_t sr)
        : dstBlkStride(db), srcBlkStride(sb), dstRepStride(dr), srcRepStride(sr) {}
};
struct BinaryRepeatParams {
    uint8_t dstBlkStride = 1, src0BlkStride = 1, src1BlkStride = 1;
    uint8_t dstRepStride = 8, src0RepStride = 8, src1RepStride = 8;
    BinaryRepeatParams() = default;
    BinaryRepeatParams(uint8_t db, uint8_t s0b, uint8_t s1b, uint8_t dr, uint8_t s0r, uint8_t s1r)
        : dstBlkStride(db), src0BlkStride(s0b), src1BlkStride(s1b), dstRepStride(dr),
          src0RepStride(s0r), src1RepStride(s1r) {}
};
struct BrcbRepeatParams {
    uint16_t dstBlkStride = 1, dstRepStride = 8;
    BrcbRepeatParams() = default;
    BrcbRepeatParams(uint16_t blk, uint16_t rep) : dstBlkStride(blk), dstRepStride(rep) {}
};

namespace shim {

/// Bytes that a repeat of a vector instruction handles.
constexpr uint32_t REPEAT_BYTES = 256;

/// Element `lane` of repeat `r` of an operand with strides in blocks.
template <class T>
inline uint32_t lane_at(uint32_t r, uint32_t lane, uint32_t blk, uint32_t rep) {
    constexpr uint32_t per_block = BLOCK / sizeof(T);
    return (r * rep + lane / per_block * blk) * per_block + lane % per_block;
}

/// The operand of a strided instruction: accesses are checked block by block.
template <class T>
inline T* strided(const LocalTensor<T>& t, uint32_t lanes, uint32_t repeat, uint32_t blk,
    uint32_t rep, bool write) {
    constexpr uint32_t per_block = BLOCK / sizeof(T);
    for (uint32_t r = 0; r < repeat; ++r) {
        for (uint32_t lane = 0; lane < lanes; lane += per_block) {
            const uint32_t n = std::min(per_block, lanes - lane);
            t.access(uint64_t(lane_at<T>(r, lane, blk, rep)) * sizeof(T), n * sizeof(T), write);
        }
    }
    return reinterpret_cast<T*>(t.memory()->data + t.at());
}

inline void check_repeat(uint64_t mask, uint32_t repeat, uint32_t lanes) {
    if (mask == 0 || mask > lanes) core().fail("a mask of %llu lanes of %u", (unsigned long long)mask, lanes);
    if (repeat > 255) core().fail("%u repeats; 255 are possible", repeat);
}

template <class T>
using Work = std::conditional_t<std::is_same_v<T, half>, float, T>;

template <class T, class F>
inline void binary(const char* name, const LocalTensor<T>& dst, const LocalTensor<T>& a,
    const LocalTensor<T>& b, int32_t count, F f) {
    core().issue(name, PIPE_V);
    const T* x = a.read("source 0", count);
    const T* y = b.read("source 1", count);
    T* out = dst.write("the destination", count);
    for (int32_t i = 0; i < count; ++i) out[i] = T(f(Work<T>(x[i]), Work<T>(y[i])));
}
template <class T, class F>
inline void binary(const char* name, const LocalTensor<T>& dst, const LocalTensor<T>& a,
    const LocalTensor<T>& b, uint64_t mask, uint8_t repeat, const BinaryRepeatParams& p, F f) {
    core().issue(name, PIPE_V);
    check_repeat(mask, repeat, REPEAT_BYTES / sizeof(T));
    dst.aligned("the destination"), a.aligned("source 0"), b.aligned("source 1");
    const T* x = strided(a, mask, repeat, p.src0BlkStride, p.src0RepStride, false);
    const T* y = strided(b, mask, repeat, p.src1BlkStride, p.src1RepStride, false);
    T* out = strided(dst, mask, repeat, p.dstBlkStride, p.dstRepStride, true);
    for (uint32_t r = 0; r < repeat; ++r) {
        for (uint32_t i = 0; i < mask; ++i) {
            const Work<T> left = x[lane_at<T>(r, i, p.src0BlkStride, p.src0RepStride)];
            const Work<T> right = y[lane_at<T>(r, i, p.src1BlkStride, p.src1RepStride)];
            out[lane_at<T>(r, i, p.dstBlkStride, p.dstRepStride)] = T(f(left, right));
        }
    }
}
template <class T, class F>
inline void unary(const char* name, const LocalTensor<T>& dst, const LocalTensor<T>& a,
    int32_t count, F f) {
    core().issue(name, PIPE_V);
    const T* x = a.read("the source", count);
    T* out = dst.write("the destination", count);
    for (int32_t i = 0; i < count; ++i) out[i] = T(f(Work<T>(x[i])));
}
template <class T, class F>
inline void unary(const char* name, const LocalTensor<T>& dst, const LocalTensor<T>& a,
    uint64_t mask, uint8_t repeat, const UnaryRepeatParams& p, F f) {
    core().issue(name, PIPE_V);
    check_repeat(mask, repeat, REPEAT_BYTES / sizeof(T));
    dst.aligned("the destination"), a.aligned("the source");
    const T* x = strided(a, mask, repeat, p.srcBlkStride, p.srcRepStride, false);
    T* out = strided(dst, mask, repeat, p.dstBlkStride, p.dstRepStride, true);
    for (uint32_t r = 0; r < repeat; ++r) {
        for (uint32_t i = 0; i < mask; ++i) {
            out[lane_at<T>(r, i, p.dstBlkStride, p.dstRepStride)] =
                T(f(Work<T>(x[lane_at<T>(r, i, p.srcBlkStride, p.srcRepStride)])));
        }
    }
}

template <class T>
constexpr bool arithmetic() {
    return one_of<T, float, half, int32_t, int16_t>();
}
template <class T>
constexpr bool floating() {
    return one_of<T, float, half>();
}

}  // namespace shim

#define SHIM_BINARY(Name, allowed, expression)                                                   \
    template <class T>                                                                           \
    void Name(const LocalTensor<T>& dst, const LocalTensor<T>& src0,                             \
        const LocalTensor<T>& src1, const int32_t& count) {                                      \
        static_assert(allowed, #Name " is not for this element type");                           \
        shim::binary(#Name, dst, src0, src1, count, [](auto a, auto b) { return expression; });  \
    }                                                                                            \
    template <class T>                                                                           \
    void Name(const LocalTensor<T>& dst, const LocalTensor<T>& src0,                             \
        const LocalTensor<T>& src1, uint64_t mask, const uint8_t repeat,                         \
        const BinaryRepeatParams& params) {                                                      \
        static_assert(allowed, #Name " is not for this element type");                           \
        shim::binary(#Name, dst, src0, src1, mask, repeat, params,                               \
            [](auto a, auto b) { return expression; });                                          \
    }
SHIM_BINARY(Add, shim::arithmetic<T>(), a + b)
SHIM_BINARY(Sub, shim::arithmetic<T>(), a - b)
SHIM_BINARY(Mul, shim::arithmetic<T>(), a * b)
SHIM_BINARY(Div, shim::floating<T>(), a / b)
SHIM_BINARY(Max, shim::arithmetic<T>(), a > b ? a : b)
SHIM_BINARY(Min, shim::arithmetic<T>(), a < b ? a : b)
SHIM_BINARY(And, (shim::one_of<T, int16_t, uint16_t>()), a & b)
SHIM_BINARY(Or, (shim::one_of<T, int16_t, uint16_t>()), a | b)
#undef SHIM_BINARY

#define SHIM_UNARY(Name, expression)                                                             \
    template <class T>                                                                           \
    void Name(const LocalTensor<T>& dst, const LocalTensor<T>& src, const int32_t& count) {      \
        static_assert(shim::floating<T>(), #Name " is not for this element type");               \
        shim::unary(#Name, dst, src, count, [](auto a) { return expression; });                  \
    }                                                                                            \
    template <class T>                                                                           \
    void Name(const LocalTensor<T>& dst, const LocalTensor<T>& src, uint64_t mask,               \
        const uint8_t repeat, const UnaryRepeatParams& params) {                                 \
        static_assert(shim::floating<T>(), #Name " is not for this element type");               \
        shim::unary(#Name, dst, src, mask, repeat, params, [](auto a) { return expression; });   \
    }
SHIM_UNARY(Exp, std::exp(a))
SHIM_UNARY(Ln, std::log(a))
SHIM_UNARY(Sqrt, std::sqrt(a))
SHIM_UNARY(Rsqrt, 1.0f / std::sqrt(a))
SHIM_UNARY(Abs, std::fabs(a))
SHIM_UNARY(Reciprocal, 1.0f / a)
SHIM_UNARY(Relu, a > 0 ? a : decltype(a)(0))
#undef SHIM_UNARY

#define SHIM_SCALAR(Name, expression)                                                            \
    template <class T>                                                                           \
    void Name(const LocalTensor<T>& dst, const LocalTensor<T>& src,                              \
        const T& value, const int32_t& count) {                                                  \
        static_assert(shim::arithmetic<T>(), #Name " is not for this element type");             \
        const shim::Work<T> b = value;                                                           \
        shim::unary(#Name, dst, src, count, [b](auto a) { return expression; });                 \
    }                                                                                            \
    template <class T>                                                                           \
    void Name(const LocalTensor<T>& dst, const LocalTensor<T>& src,                              \
        const T& value, uint64_t mask, const uint8_t repeat,                                     \
        const UnaryRepeatParams& params) {                                                       \
        static_assert(shim::arithmetic<T>(), #Name " is not for this element type");             \
        const shim::Work<T> b = value;                                                           \
        shim::unary(#Name, dst, src, mask, repeat, params, [b](auto a) { return expression; });  \
    }
SHIM_SCALAR(Adds, a + b)
SHIM_SCALAR(Muls, a * b)
SHIM_SCALAR(Maxs, a > b ? a : b)
SHIM_SCALAR(Mins, a < b ? a : b)
#undef SHIM_SCALAR

/// `dst += src * value`.
template <class T>
void Axpy(const LocalTensor<T>& dst, const LocalTensor<T>& src, const T& value,
    const int32_t& count) {
    static_assert(shim::floating<T>(), "Axpy is not for this element type");
    const float b = value;
    shim::core().issue("Axpy", PIPE_V);
    const T* x = src.read("the source", count);
    dst.read("the destination", count);
    T* out = dst.write("the destination", count);
    for (int32_t i = 0; i < count; ++i) out[i] = T(float(out[i]) + float(x[i]) * b);
}

template <class T>
void ShiftRight(const LocalTensor<T>& dst, const LocalTensor<T>& src,
    const T& value, const int32_t& count) {
    static_assert(shim::one_of<T, int32_t, uint32_t, int16_t, uint16_t>());
    shim::unary("ShiftRight", dst, src, count, [value](T a) { return T(a >> value); });
}
template <class T>
void ShiftLeft(const LocalTensor<T>& dst, const LocalTensor<T>& src,
    const T& value, const int32_t& count) {
    static_assert(shim::one_of<T, int32_t, uint32_t, int16_t, uint16_t>());
    shim::unary("ShiftLeft", dst, src, count, [value](T a) { return T(a << value); });
}

template <class T>
void Duplicate(const LocalTensor<T>& dst, const T& value, const int32_t& count) {
    static_assert(sizeof(T) == 2 || sizeof(T) == 4, "Duplicate is for elements of 2 and 4 bytes");
    shim::core().issue("Duplicate", PIPE_V);
    std::fill_n(dst.write("the destination", count), count, value);
}
template <class T>
void Duplicate(const LocalTensor<T>& dst, const T& value, uint64_t mask,
    const uint8_t repeat, uint16_t dstBlkStride, uint8_t dstRepStride) {
    static_assert(sizeof(T) == 2 || sizeof(T) == 4, "Duplicate is for elements of 2 and 4 bytes");
    shim::core().issue("Duplicate", PIPE_V);
    shim::check_repeat(mask, repeat, shim::REPEAT_BYTES / sizeof(T));
    dst.aligned("the destination");
    T* out = shim::strided(dst, mask, repeat, dstBlkStride, dstRepStride, true);
    for (uint32_t r = 0; r < repeat; ++r) {
        for (uint32_t i = 0; i < mask; ++i) {
            out[shim::lane_at<T>(r, i, dstBlkStride, dstRepStride)] = value;
        }
    }
}

/// Each of eight elements fills a block of its own; `repeat` times eight.
template <class T>
void Brcb(const LocalTensor<T>& dst, const LocalTensor<T>& src, const uint8_t repeat,
    const BrcbRepeatParams& p) {
    static_assert(sizeof(T) == 2 || sizeof(T) == 4, "Brcb is for elements of 2 and 4 bytes");
    constexpr uint32_t per_block = shim::BLOCK / sizeof(T);
    shim::core().issue("Brcb", PIPE_V);
    dst.aligned("the destination");
    const T* x = src.read("the source", uint64_t(repeat) * 8);
    std::vector<T> values(x, x + repeat * 8);
    for (uint32_t r = 0; r < repeat; ++r) {
        for (uint32_t i = 0; i < 8; ++i) {
            const uint64_t at = uint64_t(r * p.dstRepStride + i * p.dstBlkStride) * shim::BLOCK;
            T* out = reinterpret_cast<T*>(dst.access(at, shim::BLOCK, true));
            std::fill_n(out, per_block, values[r * 8 + i]);
        }
    }
}

/// `first`, `first + step` and so on.
template <class T>
void ArithProgression(const LocalTensor<T>& dst, const T first, const T step, const int32_t count) {
    shim::core().issue("ArithProgression", PIPE_V);
    T* out = dst.write("the destination", count);
    for (int32_t i = 0; i < count; ++i) out[i] = T(shim::Work<T>(first) + shim::Work<T>(step) * shim::Work<T>(i));
}
/// `first`, `first + 1` and so on. The scalar unit writes the first block, without waiting for anybody,
/// and the vector unit goes on from there.
template <class T>
void CreateVecIndex(LocalTensor<T> dst, const T& first, uint32_t count) {
    static_assert(shim::arithmetic<T>(), "CreateVecIndex is not for this element type");
    constexpr uint32_t block = shim::BLOCK / sizeof(T);
    auto& core = shim::core();
    core.issue("CreateVecIndex", PIPE_S);
    T* out = dst.write("the destination", std::min(count, block));
    for (uint32_t i = 0; i < count && i < block; ++i) out[i] = T(shim::Work<T>(first) + shim::Work<T>(i));
    core.known[PIPE_V].merge(core.snapshot(PIPE_S));
    if (count <= block) return;
    core.issue("CreateVecIndex", PIPE_V);
    dst.access(0, shim::BLOCK, false);
    dst.access(shim::BLOCK, uint64_t(count - block) * sizeof(T), true);
    for (uint32_t i = block; i < count; ++i) out[i] = T(shim::Work<T>(first) + shim::Work<T>(i));
}

/// Elements at byte offsets `base + offsets[i]` of `src`.
template <class T>
void Gather(const LocalTensor<T>& dst, const LocalTensor<T>& src,
    const LocalTensor<uint32_t>& offsets, const uint32_t base, const uint32_t count) {
    static_assert(sizeof(T) == 2 || sizeof(T) == 4, "Gather is for elements of 2 and 4 bytes");
    auto& core = shim::core();
    core.issue("Gather", PIPE_V);
    const uint32_t* at = offsets.read("the offsets", count);
    src.aligned("the source");
    std::vector<T> values(count);
    for (uint32_t i = 0; i < count; ++i) {
        const uint64_t byte = uint64_t(base) + at[i];
        if (byte % sizeof(T) != 0) core.fail("offset %llu is no multiple of the element size", (unsigned long long)byte);
        std::memcpy(&values[i], src.access(byte, sizeof(T), false), sizeof(T));
    }
    std::copy(values.begin(), values.end(), dst.write("the destination", count));
}

enum class CMPMODE { LT, GT, EQ, LE, GE, NE };
enum class SELMODE { VSEL_CMPMASK_SPR, VSEL_TENSOR_SCALAR_MODE, VSEL_TENSOR_TENSOR_MODE };

namespace shim {
template <class T>
inline bool holds(CMPMODE mode, T a, T b) {
    switch (mode) {
        case CMPMODE::LT: return a < b;
        case CMPMODE::GT: return a > b;
        case CMPMODE::EQ: return a == b;
        case CMPMODE::LE: return a <= b;
        case CMPMODE::GE: return a >= b;
        case CMPMODE::NE: return a != b;
    }
    return false;
}
template <class T, class F>
inline void compare(const char* name, const LocalTensor<uint8_t>& dst, const LocalTensor<T>& a,
    uint32_t count, F f) {
    if (count * sizeof(T) % REPEAT_BYTES != 0) {
        core().fail("%u elements are no multiple of 256 bytes", count);
    }
    const T* x = a.read("source 0", count);
    uint8_t* out = dst.write("the destination", count / 8);
    std::memset(out, 0, count / 8);
    for (uint32_t i = 0; i < count; ++i) out[i / 8] |= uint8_t(f(i, x[i])) << (i % 8);
}
}  // namespace shim

/// One bit for each element, lowest first. `count` elements are a multiple of 256 bytes.
template <class T>
void Compare(const LocalTensor<uint8_t>& dst, const LocalTensor<T>& src0,
    const LocalTensor<T>& src1, CMPMODE mode, uint32_t count) {
    static_assert(shim::one_of<T, float, half, int32_t>(), "Compare is not for this element type");
    shim::core().issue("Compare", PIPE_V);
    if (std::is_same_v<T, int32_t> && mode != CMPMODE::EQ) shim::core().fail("int32_t compares for EQ only");
    const T* y = src1.read("source 1", count);
    shim::compare("Compare", dst, src0, count,
        [=](uint32_t i, T x) { return shim::holds(mode, shim::Work<T>(x), shim::Work<T>(y[i])); });
}
template <class T>
void CompareScalar(const LocalTensor<uint8_t>& dst, const LocalTensor<T>& src0,
    const T value, CMPMODE mode, uint32_t count) {
    static_assert(shim::one_of<T, float, half, int32_t>(), "CompareScalar is not for this element type");
    shim::core().issue("CompareScalar", PIPE_V);
    if (std::is_same_v<T, int32_t> && mode != CMPMODE::EQ) shim::core().fail("int32_t compares for EQ only");
    shim::compare("CompareScalar", dst, src0, count,
        [=](uint32_t, T x) { return shim::holds(mode, shim::Work<T>(x), shim::Work<T>(value)); });
}

/// `src0` where the bit of `mask` is set, `src1` elsewhere.
template <class T, class U>
void Select(const LocalTensor<T>& dst, const LocalTensor<U>& mask, const LocalTensor<T>& src0,
    const LocalTensor<T>& src1, SELMODE mode, uint32_t count) {
    static_assert(shim::floating<T>(), "Select is not for this element type");
    shim::core().issue("Select", PIPE_V);
    if (mode != SELMODE::VSEL_TENSOR_TENSOR_MODE) shim::core().fail("two tensors need VSEL_TENSOR_TENSOR_MODE");
    const uint8_t* bits = mask.template ReinterpretCast<uint8_t>().read("the mask", (count + 7) / 8);
    const T *x = src0.read("source 0", count), *y = src1.read("source 1", count);
    T* out = dst.write("the destination", count);
    for (uint32_t i = 0; i < count; ++i) out[i] = bits[i / 8] >> (i % 8) & 1 ? x[i] : y[i];
}
template <class T, class U>
void Select(const LocalTensor<T>& dst, const LocalTensor<U>& mask, const LocalTensor<T>& src0,
    T src1, SELMODE mode, uint32_t count) {
    static_assert(shim::floating<T>(), "Select is not for this element type");
    shim::core().issue("Select", PIPE_V);
    if (mode != SELMODE::VSEL_TENSOR_SCALAR_MODE) shim::core().fail("a scalar needs VSEL_TENSOR_SCALAR_MODE");
    const uint8_t* bits = mask.template ReinterpretCast<uint8_t>().read("the mask", (count + 7) / 8);
    const T* x = src0.read("source 0", count);
    T* out = dst.write("the destination", count);
    for (uint32_t i = 0; i < count; ++i) out[i] = bits[i / 8] >> (i % 8) & 1 ? x[i] : src1;
}

}  // namespace AscendC
