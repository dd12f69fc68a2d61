// Cores, their local memories and pipes, and how errors are told.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdarg>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#define __global__
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

/// The layout of a buffer range that a kernel may touch. All of these together are its memory.
struct ShimExtent {
    uint64_t start;
    uint64_t bytes;
};

namespace AscendC {

enum class TPosition {
    GM, A1, A2, B1, B2, C1, C2, CO1, CO2, VECIN, VECOUT, VECCALC, LCM, SPM, C2PIPE2GM, MAX
};
using QuePosition = TPosition;

namespace shim {

constexpr int PIPES = 7;
inline const char* const PIPE_NAMES[] = {"S", "V", "M", "MTE1", "MTE2", "MTE3", "FIX", "ALL"};
inline const char* const POSITION_NAMES[] = {"GM", "A1", "A2", "B1", "B2", "C1", "C2", "CO1",
    "CO2", "VECIN", "VECOUT", "VECCALC", "LCM", "SPM", "C2PIPE2GM", "MAX"};

/// A broken rule.
struct Error {
    std::string message;
};
/// Another core broke a rule; this one ends.
struct Aborted {};

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
    void merge(const Clock& other) {
        for (int p = 0; p < PIPES; ++p) at[p] = std::max(at[p], other.at[p]);
    }
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
    uint8_t* data = nullptr;
    std::vector<Unit> units;

    Memory(const char* name, uint32_t capacity) : name(name), capacity(capacity) {}
    Memory(const Memory&) = delete;
    ~Memory() { std::free(data); }

    void reserve() {
        if (data) return;
        data = static_cast<uint8_t*>(std::aligned_alloc(512, (capacity + 511) / 512 * 512));
        std::memset(data, POISON, capacity);
        units.resize(capacity / BLOCK);
    }
};

/// An access to global memory, for finding cores that get in each other's way.
struct GmAccess {
    uint64_t start;
    uint64_t end;
    uint32_t epoch;
    uint32_t core;
    bool write;
    bool atomic;
    const char* instruction;
};

enum class CoreKind { Vector, Cube };

/// What is the same for all cores of a launch.
struct Launch {
    uint32_t blocks = 1;
    bool mixed = false;
    /// Only the kind of the kernel is wanted.
    bool probing = false;
    int kind = 0;
    std::vector<ShimExtent> extents;
    std::vector<GmAccess> accesses;
    /// Flags between cores that are set and not waited for: by core kind, flag, and core.
    std::map<std::pair<int, uint32_t>, std::vector<uint32_t>> flags;
    uint32_t barrier_arrived[3] = {};
    uint32_t barrier_round[3] = {};
    uint32_t cores[2] = {};
    bool aborted = false;
    /// Gives the other cores their turn; absent where cores run one after another.
    std::function<void()> yield;
};

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
    /// Flags that are set and not waited for, by event and id.
    std::map<std::pair<int, int>, Clock> flags;
    /// Events that queues hold, by the pipes they order.
    std::map<std::pair<int, int>, int> held_events;
    const char* instruction = "the kernel";
    pipe_t pipe = PIPE_S;
    uint32_t epoch = 0;
    /// Element type of what copies to global memory add, as a code; 0 where they overwrite.
    int atomic = 0;
    void* pipe_object = nullptr;
    std::function<bool()> ready;
    std::string waits_for;

    /// Index among the cores of its kind, as the kernel sees it.
    uint32_t index() const {
        return launch->mixed && kind == CoreKind::Vector ? 2 * block + sub : block;
    }

    [[noreturn]] void fail(const char* format, ...) const __attribute__((format(printf, 2, 3))) {
        char text[1024];
        va_list args;
        va_start(args, format);
        std::vsnprintf(text, sizeof text, format, args);
        va_end(args);
        throw Error{std::string(kind == CoreKind::Vector ? "vector" : "cube") + " core " +
            std::to_string(index()) + ", " + instruction + ": " + text};
    }

    Memory& memory(TPosition position) {
        switch (position) {
            case TPosition::A1: case TPosition::B1: case TPosition::C1: return of(CoreKind::Cube, l1);
            case TPosition::A2: return of(CoreKind::Cube, l0a);
            case TPosition::B2: return of(CoreKind::Cube, l0b);
            case TPosition::CO1: return of(CoreKind::Cube, l0c);
            case TPosition::C2: return of(CoreKind::Cube, bias);
            case TPosition::C2PIPE2GM: return of(CoreKind::Cube, fixpipe);
            case TPosition::VECIN: case TPosition::VECOUT: case TPosition::VECCALC:
                return of(CoreKind::Vector, ub);
            default: fail("position %s is no local memory", POSITION_NAMES[int(position)]);
        }
    }
    Memory& of(CoreKind owner, Memory& memory) {
        if (owner != kind) fail("this core has no %s", memory.name);
        memory.reserve();
        return memory;
    }

    /// Begins an instruction on `on`.
    void issue(const char* name, pipe_t on) {
        instruction = name;
        pipe = on;
        ++issued[on];
    }

    /// The current instruction accesses `bytes` of `memory` from `at` on.
    void touch(Memory& memory, uint32_t at, uint32_t bytes, bool write) {
        if (bytes == 0) return;
        if (uint64_t(at) + bytes > memory.capacity) {
            fail("byte %llu is outside %s of %u bytes", (unsigned long long)at + bytes - 1,
                memory.name, memory.capacity);
        }
        const Clock& mine = known[pipe];
        // The unit may end before the memory does.
        const uint32_t last = std::min<uint32_t>((at + bytes - 1) / BLOCK, memory.units.size() - 1);
        for (uint32_t u = at / BLOCK; u <= last; ++u) {
            Unit& unit = memory.units[u];
            // Units in order, and several writes of one instruction.
            const bool in_order = unit.writer == uint32_t(pipe) &&
                (pipe == PIPE_S || pipe == PIPE_M || (write && unit.write == issued[pipe]));
            if (unit.write > mine.at[unit.writer] && !in_order) {
                fail("%s %s byte %u, which pipe %s has written and not handed over to pipe %s; "
                     "it needs %s", write ? "overwrites" : "reads", memory.name, u * BLOCK,
                    PIPE_NAMES[unit.writer], PIPE_NAMES[pipe], unit.writer == uint32_t(pipe)
                        ? "a PipeBarrier of that pipe" : "a queue or SetFlag and WaitFlag");
            }
            if (write) {
                for (int p = 0; p < PIPES; ++p) {
                    if (p != pipe && unit.read[p] > mine.at[p]) {
                        fail("overwrites %s byte %u while pipe %s may still read it; pipe %s must "
                             "wait for it", memory.name, u * BLOCK, PIPE_NAMES[p], PIPE_NAMES[pipe]);
                    }
                }
                unit.write = issued[pipe];
                unit.writer = pipe;
            } else {
                unit.read[pipe] = issued[pipe];
            }
        }
    }

    /// What `pipe` hands over: all it has issued, and all it knows.
    Clock snapshot(pipe_t of_pipe) const {
        Clock clock = known[of_pipe];
        clock.at[of_pipe] = issued[of_pipe];
        return clock;
    }

    /// Every pipe waits for every other.
    void join_pipes() {
        for (auto& clock : known) std::copy(issued, issued + PIPES, clock.at);
    }

    /// The current instruction accesses global memory.
    void touch_gm(const uint8_t* address, uint64_t bytes, bool write, bool scalar = false) {
        if (bytes == 0) return;
        const uint64_t start = reinterpret_cast<uint64_t>(address);
        const auto& extents = launch->extents;
        auto after = std::upper_bound(extents.begin(), extents.end(), start,
            [](uint64_t a, const ShimExtent& e) { return a < e.start; });
        if (after == extents.begin()) {
            const uint64_t before = after == extents.end() ? 0 : after->start - start;
            fail("%s %llu bytes of global memory that begin %llu bytes before the first buffer",
                write ? "writes" : "reads", (unsigned long long)bytes, (unsigned long long)before);
        }
        const ShimExtent& extent = *--after;
        if (start + bytes > extent.start + extent.bytes) {
            fail("%s global memory out of bounds: bytes %llu to %llu of a buffer of %llu",
                write ? "writes" : "reads", (unsigned long long)(start - extent.start),
                (unsigned long long)(start - extent.start + bytes), (unsigned long long)extent.bytes);
        }
        GmAccess access{start, start + bytes, epoch, kind == CoreKind::Cube ? index() : 0x10000 + index(),
            write, write && atomic != 0, instruction};
        if (scalar && write) {
            // The scalar unit writes whole cache lines.
            access.start = start / 64 * 64;
            access.end = (start + bytes + 63) / 64 * 64;
        }
        auto& all = launch->accesses;
        if (!all.empty() && all.back().end == access.start && all.back().write == write &&
            all.back().core == access.core && all.back().epoch == epoch &&
            all.back().atomic == access.atomic) {
            all.back().end = access.end;
        } else {
            all.push_back(access);
        }
    }

    /// Lets other cores run until `condition` holds.
    void wait(std::function<bool()> condition, std::string what) {
        if (condition()) return;
        if (!launch->yield) fail("waits for %s, which never comes", what.c_str());
        ready = std::move(condition);
        waits_for = std::move(what);
        launch->yield();
        ready = nullptr;
        if (launch->aborted) throw Aborted{};
    }

    /// A new kernel begins on this core.
    void begin() {
        for (Memory* m : {&ub, &l1, &l0a, &l0b, &l0c, &bias, &fixpipe}) m->used = 0;
        join_pipes();
        flags.clear();
        held_events.clear();
        instruction = "the kernel";
        epoch = 0;
        atomic = 0;
        pipe_object = nullptr;
    }

    /// The kernel has ended.
    void end() {
        instruction = "the end of the kernel";
        if (!flags.empty()) fail("a flag was set that nothing has waited for");
        if (atomic) fail("SetAtomicAdd without SetAtomicNone");
    }
};

/// The core that runs on this thread.
inline Core*& current() {
    static thread_local Core* core = nullptr;
    return core;
}
inline Core& core() { return *current(); }

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

inline int64_t GetBlockIdx() { return shim::core().index(); }
inline int64_t GetBlockNum() { return shim::core().launch->blocks; }
inline int64_t GetSubBlockIdx() { return shim::core().sub; }
inline int64_t GetTaskRation() {
    return shim::core().launch->mixed && shim::core().kind == shim::CoreKind::Vector ? 2 : 1;
}

}  // namespace AscendC

#define KERNEL_TASK_TYPE_DEFAULT(type)                                   \
    do {                                                                 \
        if (::AscendC::shim::core().launch->probing) {                   \
            ::AscendC::shim::core().launch->kind = ::AscendC::type;      \
            return;                                                      \
        }                                                                \
    } while (0)
// What the vendor's macros stand for begins with `constexpr`: they follow `if` and nothing else.
#define ASCEND_IS_AIC \
    ([[maybe_unused]] const bool is_cube_core = \
        ::AscendC::shim::core().kind == ::AscendC::shim::CoreKind::Cube)
#define ASCEND_IS_AIV \
    ([[maybe_unused]] const bool is_vector_core = \
        ::AscendC::shim::core().kind == ::AscendC::shim::CoreKind::Vector)
