// The cube core: tiles in L1, L0A, L0B and L0C, and the copies between them.
//
// Matrices are made of fractals of 512 bytes. In L1 (NZ) they stand column of fractals by column, 16
// rows of 32 bytes each. In L0A row of fractals by row, in L0B row by row with 16 rows of the right
// operand in 32 bytes of each column, in L0C as in L1 with 16 x 16 f32.
#pragma once

#include "copies.h"
#include "more.h"

namespace AscendC {

/// Matrices of `nValue` rows and `dValue` columns. Strides of the source in elements; in the target
/// columns of 32 bytes are `dstNzC0Stride` rows apart, rows `dstNzNStride`, matrices
/// `dstNzMatrixStride` elements.
struct Nd2NzParams {
    uint16_t ndNum = 1, nValue = 0, dValue = 0, srcNdMatrixStride = 0, srcDValue = 0, dstNzC0Stride = 0,
             dstNzNStride = 1, dstNzMatrixStride = 0;
    Nd2NzParams() = default;
    Nd2NzParams(uint32_t nd, uint32_t n, uint32_t d, uint32_t matrix, uint32_t row, uint32_t c0, uint32_t n_stride,
        uint32_t dst_matrix)
        : ndNum(nd), nValue(n), dValue(d), srcNdMatrixStride(matrix), srcDValue(row), dstNzC0Stride(c0),
          dstNzNStride(n_stride), dstNzMatrixStride(dst_matrix) {
        for (uint32_t x : {nd, n, d, matrix, row, c0, n_stride, dst_matrix}) {
            if (x > 65535) shim::core().fail("Nd2NzParams: %u does not fit 16 bits", x);
        }
        if (n > 16384 || c0 > 16384) shim::core().fail("Nd2NzParams: %u rows; 16384 are possible", n);
    }
};

/// From rows in global memory to fractals in L1. What stands between whole fractals stays as it is.
template <class T>
void DataCopy(const LocalTensor<T>& dst, const GlobalTensor<T>& src, const Nd2NzParams& p) {
    auto& core = shim::core();
    core.issue("DataCopy to NZ", PIPE_MTE2);
    if (dst.memory() != &core.l1) core.fail("NZ is made in L1");
    dst.aligned("the destination");
    constexpr uint64_t c0 = shim::BLOCK / sizeof(T);
    for (uint64_t m = 0; m < p.ndNum; ++m) {
        for (uint64_t n = 0; n < p.nValue; ++n) {
            const uint64_t row = m * p.srcNdMatrixStride + n * p.srcDValue;
            const uint8_t* from = src.access(row * sizeof(T), p.dValue * sizeof(T), false);
            for (uint64_t d = 0; d < p.dValue; d += c0) {
                const uint64_t bytes = std::min<uint64_t>(c0, p.dValue - d) * sizeof(T);
                const uint64_t to = m * p.dstNzMatrixStride * sizeof(T) +
                    (d / c0 * p.dstNzC0Stride + n * p.dstNzNStride) * shim::BLOCK;
                uint8_t* target = dst.access(to, shim::BLOCK, true);
                std::memcpy(target, from + d * sizeof(T), bytes);
                std::memset(target + bytes, 0, shim::BLOCK - bytes);
            }
        }
    }
}

/// `repeatTimes` fractals from number `startIndex` on, `srcStride` apart; in the target `dstGap` are
/// left out between them.
struct LoadData2DParams {
    uint16_t startIndex = 0;
    uint8_t repeatTimes = 0;
    uint16_t srcStride = 0;
    uint8_t sid = 0;
    uint16_t dstGap = 0;
    bool ifTranspose = false;
    uint8_t addrMode = 0;
    LoadData2DParams() = default;
    LoadData2DParams(uint32_t start, uint32_t repeat, uint32_t stride, uint8_t sid, uint32_t gap, bool transpose,
        uint8_t mode)
        : startIndex(start), repeatTimes(repeat), srcStride(stride), sid(sid), dstGap(gap), ifTranspose(transpose),
          addrMode(mode) {
        if (repeat < 1 || repeat > 255) shim::core().fail("LoadData: %u fractals; 1 to 255 are possible", repeat);
        if (start > 65535 || stride > 65535 || gap > 65535) shim::core().fail("LoadData: a stride of 65536 and more");
    }
};

/// Fractals from L1 to L0A or L0B, each transposed where asked; for elements of two bytes.
template <class T>
void LoadData(const LocalTensor<T>& dst, const LocalTensor<T>& src, const LoadData2DParams& p) {
    constexpr uint32_t fractal = 512;
    auto& core = shim::core();
    core.issue("LoadData", PIPE_MTE1);
    if (src.memory() != &core.l1) core.fail("fractals come from L1");
    if (dst.memory() != &core.l0a && dst.memory() != &core.l0b) core.fail("fractals go to L0A or L0B");
    dst.aligned("the destination", fractal);
    src.aligned("the source");
    if (p.ifTranspose && sizeof(T) != 2) core.fail("only elements of two bytes are transposed");
    for (uint64_t r = 0; r < p.repeatTimes; ++r) {
        const uint8_t* from = src.access((p.startIndex + r * p.srcStride) * fractal, fractal, false);
        uint8_t* to = dst.access(r * (p.dstGap + 1) * fractal, fractal, true);
        if (!p.ifTranspose) {
            std::memcpy(to, from, fractal);
            continue;
        }
        for (uint32_t i = 0; i < 16; ++i) {
            for (uint32_t j = 0; j < 16; ++j) std::memcpy(to + (j * 16 + i) * 2, from + (i * 16 + j) * 2, 2);
        }
    }
}

/// Rows, columns and terms. `cmatrixInitVal` begins with zeros, otherwise with what the target holds.
struct MmadParams {
    uint16_t m = 0, n = 0, k = 0;
    uint8_t unitFlag = 0;
    bool cmatrixSource = false;
    bool cmatrixInitVal = true;
    MmadParams() = default;
    MmadParams(uint32_t m, uint32_t n, uint32_t k, uint8_t unit, bool source, bool init)
        : m(m), n(n), k(k), unitFlag(unit), cmatrixSource(source), cmatrixInitVal(init) {
        for (uint32_t x : {m, n, k}) {
            if (x < 1 || x > 4095) shim::core().fail("Mmad: a size of %u; 1 to 4095 are possible", x);
        }
    }
};

/// `dst = left * right` (plus `dst`) in f32. Terms past `k` in the last fractals take no part.
template <class C, class A, class B>
void Mmad(const LocalTensor<C>& dst, const LocalTensor<A>& left, const LocalTensor<B>& right,
    const MmadParams& p) {
    static_assert(std::is_same_v<C, float> && std::is_same_v<A, B> && shim::one_of<A, bfloat16_t, half, float>(),
        "Mmad multiplies two of bfloat16_t, half or float into float");
    constexpr uint32_t c0 = shim::BLOCK / sizeof(A), cells = 512 / sizeof(A);
    auto& core = shim::core();
    core.issue("Mmad", PIPE_M);
    if (left.memory() != &core.l0a || right.memory() != &core.l0b || dst.memory() != &core.l0c) {
        core.fail("the operands are in L0A and L0B, the result in L0C");
    }
    left.aligned("the left operand", 512), right.aligned("the right operand", 512), dst.aligned("the result", 512);
    // One row is another mode of the unit, with the left operand in another order.
    if (p.m == 1) core.fail("one row; round it up to 16");
    const uint32_t mf = (p.m + 15) / 16, nf = (p.n + 15) / 16, kf = (p.k + c0 - 1) / c0;
    const A* a = reinterpret_cast<const A*>(left.access(0, uint64_t(mf) * kf * 512, false));
    const B* b = reinterpret_cast<const B*>(right.access(0, uint64_t(nf) * kf * 512, false));
    const uint64_t bytes = uint64_t(mf) * nf * 1024;
    if (!p.cmatrixInitVal) dst.access(0, bytes, false);
    float* c = reinterpret_cast<float*>(dst.access(0, bytes, true));
    std::vector<float> x(p.k), y(uint64_t(p.n) * p.k);
    for (uint32_t n = 0; n < p.n; ++n) {
        for (uint32_t k = 0; k < p.k; ++k) {
            y[uint64_t(n) * p.k + k] = float(b[uint64_t(k / c0 * nf + n / 16) * cells + n % 16 * c0 + k % c0]);
        }
    }
    for (uint32_t m = 0; m < p.m; ++m) {
        for (uint32_t k = 0; k < p.k; ++k) {
            x[k] = float(a[uint64_t(m / 16 * kf + k / c0) * cells + m % 16 * c0 + k % c0]);
        }
        for (uint32_t n = 0; n < p.n; ++n) {
            float& sum = c[uint64_t(n / 16 * mf + m / 16) * 256 + m % 16 * 16 + n % 16];
            float terms = p.cmatrixInitVal ? 0.0f : sum;
            for (uint32_t k = 0; k < p.k; ++k) terms += x[k] * y[uint64_t(n) * p.k + k];
            sum = terms;
        }
    }
}

enum class QuantMode_t { NoQuant, F322F16, F322BF16 };
enum class CO2Layout { NZ, ROW_MAJOR };
struct FixpipeConfig {
    CO2Layout format;
};
constexpr FixpipeConfig CFG_ROW_MAJOR{CO2Layout::ROW_MAJOR};

/// `mSize` rows of `nSize` columns. Columns of fractals are `srcStride` rows apart in L0C, rows
/// `dstStride` elements in global memory.
struct FixpipeParamsV220 {
    uint16_t nSize = 0, mSize = 0, srcStride = 0;
    uint32_t dstStride = 0;
    bool reluEn = false;
    QuantMode_t quantPre = QuantMode_t::NoQuant;
    uint64_t deqScalar = 0;
    uint16_t ndNum = 1, srcNdStride = 0, dstNdStride = 0;
    uint8_t unitFlag = 0;
};

/// From L0C to rows in global memory.
template <class T, class U, const FixpipeConfig& config>
void Fixpipe(const GlobalTensor<T>& dst, const LocalTensor<U>& src, const FixpipeParamsV220& p) {
    auto& core = shim::core();
    core.issue("Fixpipe", PIPE_FIX);
    static_assert(std::is_same_v<U, float>, "L0C holds float here");
    if (config.format != CO2Layout::ROW_MAJOR || p.ndNum != 1) core.fail("one matrix of rows is supported");
    if (src.memory() != &core.l0c) core.fail("the source is in L0C");
    src.aligned("the source", 64);
    constexpr QuantMode_t mode = std::is_same_v<T, bfloat16_t> ? QuantMode_t::F322BF16
        : std::is_same_v<T, half> ? QuantMode_t::F322F16 : QuantMode_t::NoQuant;
    if (p.quantPre != mode) core.fail("quantPre is not the conversion to this element type");
    if (p.nSize < 1 || p.nSize > 4095 || p.mSize < 1 || p.mSize > 8192) {
        core.fail("%u columns of 4095, %u rows of 8192", p.nSize, p.mSize);
    }
    for (uint64_t m = 0; m < p.mSize; ++m) {
        T* to = reinterpret_cast<T*>(dst.access(m * p.dstStride * sizeof(T), p.nSize * sizeof(T), true));
        for (uint64_t n = 0; n < p.nSize; n += 16) {
            const uint64_t count = std::min<uint64_t>(16, p.nSize - n);
            const uint64_t at = (n / 16 * p.srcStride + m) * 16 * sizeof(U);
            const U* from = reinterpret_cast<const U*>(src.access(at, count * sizeof(U), false));
            for (uint64_t i = 0; i < count; ++i) to[n + i] = p.reluEn && from[i] < 0 ? T(0) : T(from[i]);
        }
    }
}

}  // namespace AscendC
