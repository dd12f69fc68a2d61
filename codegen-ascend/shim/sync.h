// Order between the pipes of a core, and between cores.
#pragma once

#include "core.h"

using event_t = int32_t;
using TEventID = int8_t;
constexpr event_t EVENT_ID0 = 0, EVENT_ID1 = 1, EVENT_ID2 = 2, EVENT_ID3 = 3, EVENT_ID4 = 4,
                  EVENT_ID5 = 5, EVENT_ID6 = 6, EVENT_ID7 = 7;

namespace AscendC {

/// From the first pipe to the second.
enum class HardEvent {
    MTE2_MTE1, MTE1_MTE2, MTE1_M, M_MTE1, MTE2_V, V_MTE2, MTE3_V, V_MTE3, M_V, V_M, V_V, MTE3_MTE1,
    MTE1_MTE3, MTE1_V, V_MTE1, MTE2_M, M_MTE2, M_MTE3, MTE3_M, MTE2_S, S_MTE2, V_S, S_V, MTE3_MTE2,
    MTE2_MTE3, MTE3_S, S_MTE3, M_S, S_M, FIX_M, M_FIX, FIX_MTE3, MTE3_FIX, FIX_MTE1, MTE1_FIX,
    FIX_MTE2, MTE2_FIX, FIX_S, S_FIX, FIX_V, V_FIX
};

namespace shim {

inline std::pair<pipe_t, pipe_t> pipes_of(HardEvent event) {
    switch (event) {
        case HardEvent::MTE2_MTE1: return {PIPE_MTE2, PIPE_MTE1};
        case HardEvent::MTE1_MTE2: return {PIPE_MTE1, PIPE_MTE2};
        case HardEvent::MTE1_M: return {PIPE_MTE1, PIPE_M};
        case HardEvent::M_MTE1: return {PIPE_M, PIPE_MTE1};
        case HardEvent::MTE2_V: return {PIPE_MTE2, PIPE_V};
        case HardEvent::V_MTE2: return {PIPE_V, PIPE_MTE2};
        case HardEvent::MTE3_V: return {PIPE_MTE3, PIPE_V};
        case HardEvent::V_MTE3: return {PIPE_V, PIPE_MTE3};
        case HardEvent::M_V: return {PIPE_M, PIPE_V};
        case HardEvent::V_M: return {PIPE_V, PIPE_M};
        case HardEvent::V_V: return {PIPE_V, PIPE_V};
        case HardEvent::MTE3_MTE1: return {PIPE_MTE3, PIPE_MTE1};
        case HardEvent::MTE1_MTE3: return {PIPE_MTE1, PIPE_MTE3};
        case HardEvent::MTE1_V: return {PIPE_MTE1, PIPE_V};
        case HardEvent::V_MTE1: return {PIPE_V, PIPE_MTE1};
        case HardEvent::MTE2_M: return {PIPE_MTE2, PIPE_M};
        case HardEvent::M_MTE2: return {PIPE_M, PIPE_MTE2};
        case HardEvent::M_MTE3: return {PIPE_M, PIPE_MTE3};
        case HardEvent::MTE3_M: return {PIPE_MTE3, PIPE_M};
        case HardEvent::MTE2_S: return {PIPE_MTE2, PIPE_S};
        case HardEvent::S_MTE2: return {PIPE_S, PIPE_MTE2};
        case HardEvent::V_S: return {PIPE_V, PIPE_S};
        case HardEvent::S_V: return {PIPE_S, PIPE_V};
        case HardEvent::MTE3_MTE2: return {PIPE_MTE3, PIPE_MTE2};
        case HardEvent::MTE2_MTE3: return {PIPE_MTE2, PIPE_MTE3};
        case HardEvent::MTE3_S: return {PIPE_MTE3, PIPE_S};
        case HardEvent::S_MTE3: return {PIPE_S, PIPE_MTE3};
        case HardEvent::M_S: return {PIPE_M, PIPE_S};
        case HardEvent::S_M: return {PIPE_S, PIPE_M};
        case HardEvent::FIX_M: return {PIPE_FIX, PIPE_M};
        case HardEvent::M_FIX: return {PIPE_M, PIPE_FIX};
        case HardEvent::FIX_MTE3: return {PIPE_FIX, PIPE_MTE3};
        case HardEvent::MTE3_FIX: return {PIPE_MTE3, PIPE_FIX};
        case HardEvent::FIX_MTE1: return {PIPE_FIX, PIPE_MTE1};
        case HardEvent::MTE1_FIX: return {PIPE_MTE1, PIPE_FIX};
        case HardEvent::FIX_MTE2: return {PIPE_FIX, PIPE_MTE2};
        case HardEvent::MTE2_FIX: return {PIPE_MTE2, PIPE_FIX};
        case HardEvent::FIX_S: return {PIPE_FIX, PIPE_S};
        case HardEvent::S_FIX: return {PIPE_S, PIPE_FIX};
        case HardEvent::FIX_V: return {PIPE_FIX, PIPE_V};
        case HardEvent::V_FIX: return {PIPE_V, PIPE_FIX};
    }
    return {PIPE_S, PIPE_S};
}

/// Ids that each pair of pipes has.
constexpr int EVENT_IDS = 8;

/// Set where some kernel of this library makes cores wait for each other.
inline bool cores_meet = false;
template <bool>
struct Meets {
    static inline const bool registered = (cores_meet = true);
};

}  // namespace shim

/// What the first pipe of `event` has issued so far is finished for whoever waits for this flag.
template <HardEvent event>
inline void SetFlag(event_t id) {
    auto& core = shim::core();
    core.instruction = "SetFlag";
    if (id < 0 || id >= shim::EVENT_IDS) core.fail("event id %d of %d", id, shim::EVENT_IDS);
    const auto [from, to] = shim::pipes_of(event);
    if (!core.flags.emplace(std::pair(int(event), int(id)), core.snapshot(from)).second) {
        core.fail("flag %d from %s to %s is set already", id, shim::PIPE_NAMES[from],
            shim::PIPE_NAMES[to]);
    }
}
template <HardEvent event>
inline void WaitFlag(event_t id) {
    auto& core = shim::core();
    core.instruction = "WaitFlag";
    const auto [from, to] = shim::pipes_of(event);
    const auto flag = core.flags.find({int(event), int(id)});
    if (flag == core.flags.end()) {
        core.fail("flag %d from %s to %s was never set: the core would wait for ever", id,
            shim::PIPE_NAMES[from], shim::PIPE_NAMES[to]);
    }
    core.known[to].merge(flag->second);
    core.flags.erase(flag);
}

/// Instructions of `pipe` after it wait for those before it.
template <pipe_t pipe>
inline void PipeBarrier() {
    auto& core = shim::core();
    if (pipe == PIPE_ALL) {
        core.join_pipes();
    } else {
        core.known[pipe].at[pipe] = core.issued[pipe];
    }
}

namespace shim {

/// All cores of `which` (0 vector, 1 cube, 2 both) meet.
inline void meet(int which, const char* name) {
    Core& me = core();
    Launch& launch = *me.launch;
    me.instruction = name;
    const uint32_t all = which == 2 ? launch.cores[0] + launch.cores[1] : launch.cores[which];
    const uint32_t round = launch.barrier_round[which];
    if (++launch.barrier_arrived[which] == all) {
        launch.barrier_arrived[which] = 0;
        ++launch.barrier_round[which];
    } else {
        me.wait([&launch, which, round] { return launch.barrier_round[which] != round; },
            "all cores to arrive");
    }
    me.join_pipes();
    ++me.epoch;
}

/// Index of `core` for flags between cores.
inline uint32_t flag_slot(CoreKind kind, uint32_t block, uint32_t sub) {
    return kind == CoreKind::Cube ? block : 0x10000 + 2 * block + sub;
}

}  // namespace shim

/// All vector cores of the launch meet (`vectorOnly`), or all cores.
template <bool vectorOnly = true>
inline void SyncAll() {
    (void)shim::Meets<true>::registered;
    shim::meet(vectorOnly ? 0 : 2, "SyncAll");
}

/// Mode 0: all cores of one kind meet at the flag. Mode 1: the vector cores of a block. Mode 2: from
/// the cube core of a block to its vector cores, or from both of these to the cube core.
template <uint8_t mode, pipe_t pipe>
inline void CrossCoreSetFlag(uint16_t id) {
    (void)shim::Meets<true>::registered;
    auto& core = shim::core();
    auto& launch = *core.launch;
    core.instruction = "CrossCoreSetFlag";
    if (id > 15) core.fail("flag %u of 16", id);
    if (mode != 2) core.fail("mode %u is not supported; mode 2 is, and SyncAll", mode);
    auto give = [&](uint32_t to) {
        auto& counts = launch.flags[{int(to), id}];
        counts.resize(2);
        const uint32_t from = core.kind == shim::CoreKind::Cube ? 0 : core.sub;
        // The counter of the chip holds 15.
        if (++counts[from] > 15) core.fail("flag %u is set more than 15 times and not waited for", id);
    };
    if (core.kind == shim::CoreKind::Cube) {
        for (uint32_t sub = 0; sub < 2; ++sub) {
            give(shim::flag_slot(shim::CoreKind::Vector, core.block, sub));
        }
    } else {
        give(shim::flag_slot(shim::CoreKind::Cube, core.block, 0));
    }
}

template <uint8_t mode = 2, pipe_t pipe = PIPE_S>
inline void CrossCoreWaitFlag(uint16_t id) {
    (void)shim::Meets<true>::registered;
    auto& core = shim::core();
    auto& launch = *core.launch;
    core.instruction = "CrossCoreWaitFlag";
    const uint32_t me = shim::flag_slot(core.kind, core.block, core.sub);
    auto& counts = launch.flags[{int(me), id}];
    counts.resize(2);
    const bool cube = core.kind == shim::CoreKind::Cube;
    core.wait([&counts, cube] { return counts[0] > 0 && (!cube || counts[1] > 0); },
        "flag " + std::to_string(id) + (cube ? " of its vector cores" : " of its cube core"));
    --counts[0];
    if (cube) --counts[1];
    // What the others wrote before it is in global memory now.
    core.join_pipes();
}

template <class T>
inline void SetAtomicAdd() {
    static_assert(shim::one_of<T, float, half, int32_t, int16_t, int8_t, bfloat16_t>());
    shim::core().atomic = std::is_same_v<T, float> ? 1 : std::is_same_v<T, half> ? 2
        : std::is_same_v<T, int32_t> ? 3 : std::is_same_v<T, int16_t> ? 4
        : std::is_same_v<T, int8_t> ? 5 : 6;
}
inline void SetAtomicNone() { shim::core().atomic = 0; }

}  // namespace AscendC
