// A launch and its cores, as the sources of the shim see them.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "core.h"
#include "sync.h"

/// The layout of a buffer range that a kernel may touch. All of these together are its memory.
struct ShimExtent {
    uint64_t start;
    uint64_t bytes;
};

namespace AscendC::shim {

/// A broken rule.
struct Error {
    std::string message;
};
/// Another core broke a rule; this one ends.
struct Aborted {};

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

/// A core with what kernels do not see of it.
struct Running : Core {
    /// Flags that are set and not waited for, by event and id.
    std::map<std::pair<int, int>, Clock> flags;
    /// Events that queues hold, by the pipes they order.
    std::map<std::pair<int, int>, int> held_events;
    std::function<bool()> ready;
    std::string waits_for;

    /// Lets other cores run until `condition` holds.
    void wait(std::function<bool()> condition, std::string what);
    /// A new kernel begins on this core.
    void begin();
    /// The kernel has ended.
    void end();
};

/// The core that runs on this thread.
Running*& current();
inline Running& running() { return *current(); }


}  // namespace AscendC::shim
