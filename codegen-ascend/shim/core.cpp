// What cores do, for kernels of all kinds.
#include <cstdarg>
#include <cstdio>
#include <cstdlib>

#include "run.h"
#include "tensors.h"

namespace AscendC::shim {

extern const char* const PIPE_NAMES[] = {"S", "V", "M", "MTE1", "MTE2", "MTE3", "FIX", "ALL"};
extern const char* const POSITION_NAMES[] = {"GM", "A1", "A2", "B1", "B2", "C1", "C2", "CO1",
    "CO2", "VECIN", "VECOUT", "VECCALC", "LCM", "SPM", "C2PIPE2GM", "MAX"};

Running*& current() {
    static thread_local Running* core = nullptr;
    return core;
}
Core& core() { return *current(); }

bool probed(int kind) {
    Launch& launch = *core().launch;
    if (launch.probing) launch.kind = kind;
    return launch.probing;
}

void Clock::merge(const Clock& other) {
    for (int p = 0; p < PIPES; ++p) at[p] = std::max(at[p], other.at[p]);
}

Memory::~Memory() { std::free(data); }

void Memory::reserve() {
    if (data) return;
    data = static_cast<uint8_t*>(std::aligned_alloc(512, (capacity + 511) / 512 * 512));
}

    uint32_t Core::index() const {
        return launch->mixed && kind == CoreKind::Vector ? 2 * block + sub : block;
    }

    void Core::fail(const char* format, ...) const {
        char text[1024];
        va_list args;
        va_start(args, format);
        std::vsnprintf(text, sizeof text, format, args);
        va_end(args);
        throw Error{std::string(kind == CoreKind::Vector ? "vector" : "cube") + " core " +
            std::to_string(index()) + ", " + instruction + ": " + text};
    }

    Memory& Core::memory(TPosition position) {
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
    Memory& Core::of(CoreKind owner, Memory& memory) {
        if (owner != kind) fail("this core has no %s", memory.name);
        memory.reserve();
        return memory;
    }

    void Core::issue(const char* name, pipe_t on) {
        instruction = name;
        pipe = on;
        ++issued[on];
    }

    void Core::touch(Memory& memory, uint32_t at, uint32_t bytes, bool write) {
        if (bytes == 0) return;
        if (uint64_t(at) + bytes > memory.capacity) {
            fail("byte %llu is outside %s of %u bytes", (unsigned long long)at + bytes - 1,
                memory.name, memory.capacity);
        }
        const Clock& mine = known[pipe];
        const uint32_t last = (at + bytes - 1) / BLOCK;
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

    Clock Core::snapshot(pipe_t of_pipe) const {
        Clock clock = known[of_pipe];
        clock.at[of_pipe] = issued[of_pipe];
        return clock;
    }

    void Core::join_pipes() {
        for (auto& clock : known) std::copy(issued, issued + PIPES, clock.at);
    }

    void Core::touch_gm(const uint8_t* address, uint64_t bytes, bool write, bool scalar) {
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

    void Running::wait(std::function<bool()> condition, std::string what) {
        if (condition()) return;
        if (!launch->yield) fail("waits for %s, which never comes", what.c_str());
        ready = std::move(condition);
        waits_for = std::move(what);
        launch->yield();
        ready = nullptr;
        if (launch->aborted) throw Aborted{};
    }

    void Running::begin() {
        for (Memory* m : {&ub, &l1, &l0a, &l0b, &l0c, &bias, &fixpipe}) m->used = 0;
        join_pipes();
        flags.clear();
        held_events.clear();
        instruction = "the kernel";
        epoch = 0;
        atomic = 0;
        pipe_object = nullptr;
    }

    void Running::end() {
        instruction = "the end of the kernel";
        if (!flags.empty()) fail("a flag was set that nothing has waited for");
        if (atomic) fail("SetAtomicAdd without SetAtomicNone");
    }

uint8_t* access_global(uint8_t* start, uint64_t size, uint64_t at, uint64_t bytes, bool write, bool scalar) {
    if (at + bytes > size) {
        core().fail("bytes %llu to %llu are outside a global tensor of %llu bytes",
            (unsigned long long)at, (unsigned long long)(at + bytes), (unsigned long long)size);
    }
    core().touch_gm(start + at, bytes, write, scalar);
    return start + at;
}
uint8_t* access_local(Memory* memory, TPosition position, uint32_t start, uint32_t size, uint64_t at,
    uint64_t bytes, bool write) {
    if (!memory) core().fail("a tensor that was never allocated");
    if (at + bytes > size) {
        core().fail("bytes %llu to %llu are outside a local tensor of %u bytes (%s of %s)",
            (unsigned long long)at, (unsigned long long)(at + bytes), size,
            POSITION_NAMES[int(position)], memory->name);
    }
    core().touch(*memory, start + uint32_t(at), uint32_t(bytes), write);
    return memory->data + start + at;
}
void check_aligned(const Memory* memory, uint32_t at, const char* what, uint32_t to) {
    if (at % to != 0) {
        core().fail("%s begins at %s byte %u, which is no multiple of %u", what,
            memory ? memory->name : "no memory:", at, to);
    }
}
void no_such_element(const char* tensor, uint64_t element, uint64_t elements) {
    core().fail("%s: element %llu of %llu", tensor, (unsigned long long)element, (unsigned long long)elements);
}

}  // namespace AscendC::shim

namespace AscendC {

int64_t GetBlockIdx() { return shim::core().index(); }
int64_t GetBlockNum() { return shim::core().launch->blocks; }
int64_t GetSubBlockIdx() { return shim::core().sub; }
int64_t GetTaskRation() {
    return shim::core().launch->mixed && shim::core().kind == shim::CoreKind::Vector ? 2 : 1;
}

}  // namespace AscendC
