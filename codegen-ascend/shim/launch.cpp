// Runs a kernel of this library on all cores of a launch.
#include <dlfcn.h>
#include <ucontext.h>

#include <cstdio>

#include "run.h"

#define SHIM_EXPORT extern "C" __attribute__((used, visibility("default")))

namespace AscendC::shim {

/// A kernel takes at most so many buffers and scalars.
constexpr size_t MAX_ARGUMENTS = 64;

template <size_t... I>
static void call_with(void* kernel, const uint64_t* args, std::index_sequence<I...>) {
    reinterpret_cast<void (*)(decltype(I + uint64_t(0))...)>(kernel)(args[I]...);
}
template <size_t N>
static void call_n(void* kernel, const uint64_t* args) {
    call_with(kernel, args, std::make_index_sequence<N>());
}
template <size_t... N>
static void call(void* kernel, const uint64_t* args, size_t count, std::index_sequence<N...>) {
    using Call = void (*)(void*, const uint64_t*);
    static constexpr Call calls[] = {call_n<N>...};
    calls[count](kernel, args);
}
static void call(void* kernel, const uint64_t* args, size_t count) {
    call(kernel, args, count, std::make_index_sequence<MAX_ARGUMENTS + 1>());
}

/// Cores that wait for each other take turns on one thread, each with a stack of its own. When none
/// can go on, that is a deadlock, and it is told at once.
struct Turns {
    static constexpr size_t STACK_BYTES = 256 * 1024;
    struct Turn {
        ucontext_t context;
        // Not zeroed: most of it is never touched.
        std::unique_ptr<uint8_t[]> stack{new uint8_t[STACK_BYTES]};
        Running* core = nullptr;
        bool done = false;
        std::string error;
        bool failed = false;
    };
    Launch& launch;
    void* kernel;
    const uint64_t* args;
    size_t count;
    std::vector<std::unique_ptr<Turn>> turns;
    ucontext_t scheduler;
    Turn* running = nullptr;

    static Turns*& mine() {
        static thread_local Turns* turns = nullptr;
        return turns;
    }
    static void entry() {
        Turns& all = *mine();
        Turn& turn = *all.running;
        try {
            turn.core->begin();
            call(all.kernel, all.args, all.count);
            turn.core->end();
        } catch (const Error& e) {
            turn.error = e.message;
            turn.failed = true;
        } catch (const Aborted&) {
        }
        turn.done = true;
        swapcontext(&turn.context, &all.scheduler);
    }

    /// The first error, or nothing.
    std::string run(std::vector<std::unique_ptr<Running>>& cores) {
        mine() = this;
        launch.yield = [this] { swapcontext(&running->context, &scheduler); };
        for (auto& core : cores) {
            auto turn = std::make_unique<Turn>();
            turn->core = core.get();
            getcontext(&turn->context);
            turn->context.uc_stack.ss_sp = turn->stack.get();
            turn->context.uc_stack.ss_size = STACK_BYTES;
            turn->context.uc_link = &scheduler;
            makecontext(&turn->context, entry, 0);
            turns.push_back(std::move(turn));
        }
        std::string error;
        for (;;) {
            bool progress = false, waiting = false;
            for (auto& turn : turns) {
                if (turn->done) continue;
                if (turn->core->ready && !launch.aborted && !turn->core->ready()) {
                    waiting = true;
                    continue;
                }
                progress = true;
                running = turn.get();
                current() = turn->core;
                swapcontext(&scheduler, &turn->context);
                if (turn->failed && error.empty()) {
                    error = turn->error;
                    launch.aborted = true;
                }
            }
            if (progress) continue;
            if (!waiting) break;
            error = "the cores wait for each other for ever:";
            for (auto& turn : turns) {
                if (turn->done) continue;
                const bool vector = turn->core->kind == CoreKind::Vector;
                error += std::string(vector ? " vector core " : " cube core ") +
                    std::to_string(turn->core->index()) + " in " + turn->core->instruction + " for " +
                    turn->core->waits_for + ";";
            }
            launch.aborted = true;
        }
        launch.yield = nullptr;
        return error;
    }
};

/// Two cores at one place of global memory of which at least one writes, with no meeting between
/// them, or nothing. Cores of one block of a mixed kernel meet by flags, which are not followed here.
static std::string race(Launch& launch) {
    auto& all = launch.accesses;
    std::sort(all.begin(), all.end(), [](const GmAccess& a, const GmAccess& b) { return a.start < b.start; });
    const auto block = [&](const GmAccess& a) {
        return launch.mixed ? (a.core >= 0x10000 ? (a.core - 0x10000) / 2 : a.core) : a.core;
    };
    // Accesses that reach beyond the start of the one at hand, by the farthest end of each core.
    std::vector<const GmAccess*> open;
    for (const GmAccess& access : all) {
        open.erase(std::remove_if(open.begin(), open.end(),
            [&](const GmAccess* o) { return o->end <= access.start; }), open.end());
        for (const GmAccess* other : open) {
            if (block(*other) == block(access) || other->epoch != access.epoch) continue;
            if (!(other->write || access.write) || (other->atomic && access.atomic)) continue;
            const GmAccess& writer = access.write ? access : *other;
            const GmAccess& second = access.write ? *other : access;
            char text[512];
            std::snprintf(text, sizeof text,
                "cores %u and %u race: %s writes global memory that %s %s, and nothing orders them",
                writer.core & 0xffff, second.core & 0xffff, writer.instruction, second.instruction,
                second.write ? "writes too" : "reads");
            return text;
        }
        // Reads alone race with nothing: a few of them stand for all.
        if (access.write || open.size() < 256) open.push_back(&access);
    }
    return {};
}

static std::string launch(void* kernel, uint32_t blocks, const uint64_t* args, uint32_t count,
    const ShimExtent* extents, uint32_t extent_count) {
    Launch launch;
    launch.blocks = blocks;
    for (uint32_t i = 0; i < extent_count; ++i) {
        if (extents[i].bytes > 0) launch.extents.push_back(extents[i]);
    }
    std::sort(launch.extents.begin(), launch.extents.end(),
        [](const ShimExtent& a, const ShimExtent& b) { return a.start < b.start; });
    // Buffers that overlap, such as a view and the tensor that it is part of, are one.
    size_t merged = 0;
    for (size_t i = 1; i < launch.extents.size(); ++i) {
        ShimExtent& last = launch.extents[merged];
        const ShimExtent& next = launch.extents[i];
        if (next.start < last.start + last.bytes) {
            last.bytes = std::max(last.start + last.bytes, next.start + next.bytes) - last.start;
        } else {
            launch.extents[++merged] = next;
        }
    }
    if (!launch.extents.empty()) launch.extents.resize(merged + 1);

    auto core_of = [&](CoreKind kind, uint32_t block, uint32_t sub) {
        auto core = std::make_unique<Running>();
        core->launch = &launch;
        core->kind = kind;
        core->block = block;
        core->sub = sub;
        return core;
    };
    auto first = core_of(CoreKind::Vector, 0, 0);
    current() = first.get();
    launch.probing = true;
    call(kernel, args, count);
    launch.probing = false;
    if (launch.kind == 0) return "the kernel does not begin with KERNEL_TASK_TYPE_DEFAULT";
    launch.mixed = launch.kind == KERNEL_TYPE_MIX_AIC_1_2;
    const bool vector = launch.kind == KERNEL_TYPE_AIV_ONLY, cube = launch.kind == KERNEL_TYPE_AIC_ONLY;
    launch.cores[0] = vector ? blocks : launch.mixed ? 2 * blocks : 0;
    launch.cores[1] = cube || launch.mixed ? blocks : 0;

    std::string error;
    if (launch.mixed || cores_meet) {
        std::vector<std::unique_ptr<Running>> cores;
        for (uint32_t b = 0; b < blocks; ++b) {
            if (launch.mixed || cube) cores.push_back(core_of(CoreKind::Cube, b, 0));
            if (launch.mixed || vector) cores.push_back(core_of(CoreKind::Vector, b, 0));
            if (launch.mixed) cores.push_back(core_of(CoreKind::Vector, b, 1));
        }
        Turns turns{launch, kernel, args, count, {}, {}};
        error = turns.run(cores);
        if (error.empty()) {
            for (const auto& [flag, counts] : launch.flags) {
                if (std::any_of(counts.begin(), counts.end(), [](uint32_t n) { return n > 0; })) {
                    error = "flag " + std::to_string(flag.second) +
                        " between cores was set and nothing has waited for it";
                }
            }
        }
    } else {
        // One after another, on one core's memory.
        auto core = core_of(vector ? CoreKind::Vector : CoreKind::Cube, 0, 0);
        current() = core.get();
        for (uint32_t b = 0; b < blocks && error.empty(); ++b) {
            core->block = b;
            core->begin();
            try {
                call(kernel, args, count);
                core->end();
            } catch (const Error& e) {
                error = e.message;
            }
        }
    }
    current() = nullptr;
    return error.empty() ? race(launch) : error;
}

}  // namespace AscendC::shim

/// Runs `kernel` of this library. 0 when it broke no rule; otherwise `message` tells which.
SHIM_EXPORT int precast_shim_launch(const char* kernel, uint32_t blocks, const uint64_t* argv,
    uint32_t argc, const ShimExtent* extents, uint32_t n_extents, char* message, uint32_t message_bytes) {
    std::string error;
    Dl_info info;
    void* self = dladdr(reinterpret_cast<void*>(&precast_shim_launch), &info)
        ? dlopen(info.dli_fname, RTLD_NOW | RTLD_NOLOAD) : nullptr;
    void* found = self ? dlsym(self, kernel) : nullptr;
    if (!found) {
        error = "this library has no such kernel";
    } else if (argc > AscendC::shim::MAX_ARGUMENTS) {
        error = "more than " + std::to_string(AscendC::shim::MAX_ARGUMENTS) + " arguments";
    } else {
        error = AscendC::shim::launch(found, blocks, argv, argc, extents, n_extents);
    }
    if (self) dlclose(self);
    if (error.empty()) return 0;
    std::snprintf(message, message_bytes, "kernel %s: %s", kernel, error.c_str());
    return 1;
}
