// Cores, their local memories and pipes, and how errors are told. What is only declared here and in the other
// headers is in the sources beside them: compiled once, and not with every kernel.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>
#include <vector>

#define __global__ __attribute__((visibility("default")))
#define __aicore__
#define __gm__
#define __ubuf__
#define __cbuf__
#define __ca__
#define __cb__
#define __cc__
#define GM_ADDR uint8_t*

/// Which unit executes an instruction. Each runs its own instructions in order, beside the others.
enum pipe_t { PIPE_S, PIPE_V, PIPE_M, PIPE_MTE1, PIPE_MTE2, PIPE_MTE3, PIPE_FIX, PIPE_ALL };

/// IEEE half precision; no arithmetic of its own here.
struct half {
    uint16_t bits = 0;
    half() = default;
    half(float x) : bits(from(x)) {}
    half(double x) : half(static_cast<float>(x)) {}
    half(int x) : half(static_cast<float>(x)) {}
    operator float() const { return to(bits); }

    static float to(uint16_t h) {
        const uint32_t sign = uint32_t(h & 0x8000) << 16, e = (h >> 10) & 31, m = h & 1023;
        if (e == 0) {
            const float tiny = std::ldexp(float(m), -24);
            return sign ? -tiny : tiny;
        }
        const uint32_t u = e == 31 ? sign | 0x7f800000 | m << 13 : sign | (e + 112) << 23 | m << 13;
        float f;
        std::memcpy(&f, &u, 4);
        return f;
    }
    // Nearest, ties to even.
    static uint16_t from(float x) {
        uint32_t u;
        std::memcpy(&u, &x, 4);
        const uint16_t sign = (u >> 16) & 0x8000;
        if ((u & 0x7fffffff) > 0x7f800000) return sign | 0x7e00;
        const float a = std::fabs(x);
        if (a >= 65520.0f) return sign | 0x7c00;
        if (a < 6.103515625e-05f) return sign | uint16_t(std::nearbyint(std::ldexp(a, 24)));
        std::memcpy(&u, &a, 4);
        u += 0xfff + ((u >> 13) & 1);
        return sign | uint16_t((u >> 13) - (112 << 10));
    }
};

/// The upper half of an f32; no arithmetic of its own, here as on the chip.
struct bfloat16_t {
    uint16_t bits = 0;
    bfloat16_t() = default;
    bfloat16_t(float x) : bits(from(x)) {}
    operator float() const {
        const uint32_t u = uint32_t(bits) << 16;
        float f;
        std::memcpy(&f, &u, 4);
        return f;
    }
    static uint16_t from(float x) {
        uint32_t u;
        std::memcpy(&u, &x, 4);
        if ((u & 0x7fffffff) > 0x7f800000) return uint16_t(u >> 16) | 0x40;
        return uint16_t((u + 0x7fff + ((u >> 16) & 1)) >> 16);
    }
};

namespace AscendC {

enum class TPosition {
    GM, A1, A2, B1, B2, C1, C2, CO1, CO2, VECIN, VECOUT, VECCALC, LCM, SPM, C2PIPE2GM, MAX
};
using QuePosition = TPosition;

namespace shim {

constexpr int PIPES = 7;
extern const char* const PIPE_NAMES[];
extern const char* const POSITION_NAMES[];

// Capacities in bytes: `Chip` on the other side says the same.
#ifndef PRECAST_UB_BYTES
#define PRECAST_UB_BYTES (184 * 1024 - 256)
#endif
constexpr uint32_t UB_BYTES = PRECAST_UB_BYTES;
constexpr uint32_t L1_BYTES = 512 * 1024 - 256;
constexpr uint32_t L0A_BYTES = 64 * 1024;
constexpr uint32_t L0B_BYTES = 64 * 1024;
constexpr uint32_t L0C_BYTES = 128 * 1024;
constexpr uint32_t BIAS_BYTES = 1024;
constexpr uint32_t FIXPIPE_BYTES = 2048;
/// Both the unit of addresses and what hazards are tracked by.
constexpr uint32_t BLOCK = 32;
/// Every bit set: NaN in each float type.
constexpr int POISON = 0xff;

/// How far each pipe has come, as known to one of them.
struct Clock {
    uint32_t at[PIPES] = {};
    void merge(const Clock& other);
};

/// Last accesses to 32 bytes of local memory.
struct Unit {
    uint32_t write = 0;
    uint32_t writer = 0;
    uint32_t read[PIPES] = {};
};

/// A local memory of a core.
struct Memory {
    const char* name;
    uint32_t capacity;
    /// Bytes that buffers take.
    uint32_t used = 0;
    /// Poisoned by buffers as they are taken: no tensor has anything else.
    uint8_t* data = nullptr;
    /// Of the bytes that buffers have taken.
    std::vector<Unit> units;

    Memory(const char* name, uint32_t capacity) : name(name), capacity(capacity) {}
    Memory(const Memory&) = delete;
    ~Memory();
    void reserve();
};

enum class CoreKind { Vector, Cube };

struct Launch;

struct Core {
    Launch* launch = nullptr;
    CoreKind kind = CoreKind::Vector;
    uint32_t block = 0;
    uint32_t sub = 0;
    Memory ub{"UB", UB_BYTES}, l1{"L1", L1_BYTES}, l0a{"L0A", L0A_BYTES}, l0b{"L0B", L0B_BYTES},
        l0c{"L0C", L0C_BYTES}, bias{"BT", BIAS_BYTES}, fixpipe{"FP", FIXPIPE_BYTES};
    /// Instructions issued to each pipe.
    uint32_t issued[PIPES] = {};
    /// What each pipe knows to be finished.
    Clock known[PIPES];
    const char* instruction = "the kernel";
    pipe_t pipe = PIPE_S;
    uint32_t epoch = 0;
    /// Element type of what copies to global memory add, as a code; 0 where they overwrite.
    int atomic = 0;
    void* pipe_object = nullptr;

    /// Index among the cores of its kind, as the kernel sees it.
    uint32_t index() const;

    [[noreturn]] void fail(const char* format, ...) const __attribute__((format(printf, 2, 3)));

    Memory& memory(TPosition position);
    Memory& of(CoreKind owner, Memory& memory);

    /// Begins an instruction on `on`.
    void issue(const char* name, pipe_t on);

    /// The current instruction accesses `bytes` of `memory` from `at` on.
    void touch(Memory& memory, uint32_t at, uint32_t bytes, bool write);

    /// What `pipe` hands over: all it has issued, and all it knows.
    Clock snapshot(pipe_t of_pipe) const;

    /// Every pipe waits for every other.
    void join_pipes();

    /// The current instruction accesses global memory.
    void touch_gm(const uint8_t* address, uint64_t bytes, bool write, bool scalar = false);
};

/// The core that runs on this thread.
Core& core();

template <class T>
constexpr bool one_of() {
    return false;
}
/// Whether `T` is one of the others.
template <class T, class First, class... Rest>
constexpr bool one_of() {
    return std::is_same_v<T, First> || one_of<T, Rest...>();
}

}  // namespace shim

// Kinds of kernels.
constexpr int KERNEL_TYPE_AIV_ONLY = 1;
constexpr int KERNEL_TYPE_AIC_ONLY = 2;
constexpr int KERNEL_TYPE_MIX_AIC_1_2 = 3;

int64_t GetBlockIdx();
int64_t GetBlockNum();
int64_t GetSubBlockIdx();
int64_t GetTaskRation();

namespace shim {
/// Says what the kernel is; true where nothing else is wanted of it.
bool probed(int kind);
}  // namespace shim

}  // namespace AscendC

#define KERNEL_TASK_TYPE_DEFAULT(type)                               \
    do {                                                             \
        if (::AscendC::shim::probed(::AscendC::type)) return;       \
    } while (0)
// What the vendor's macros stand for begins with `constexpr`: they follow `if` and nothing else.
#define ASCEND_IS_AIC \
    ([[maybe_unused]] const bool is_cube_core = \
        ::AscendC::shim::core().kind == ::AscendC::shim::CoreKind::Cube)
#define ASCEND_IS_AIV \
    ([[maybe_unused]] const bool is_vector_core = \
        ::AscendC::shim::core().kind == ::AscendC::shim::CoreKind::Vector)
