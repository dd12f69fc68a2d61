// Flags and meetings.
#include "sync.h"

#include "run.h"

namespace AscendC::shim {

bool cores_meet = false;

static std::pair<pipe_t, pipe_t> pipes_of(HardEvent event) {
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

void set_flag(HardEvent event, event_t id) {
    Running& core = running();
    core.instruction = "SetFlag";
    if (id < 0 || id >= EVENT_IDS) core.fail("event id %d of %d", id, EVENT_IDS);
    const auto [from, to] = pipes_of(event);
    if (!core.flags.emplace(std::pair(int(event), int(id)), core.snapshot(from)).second) {
        core.fail("flag %d from %s to %s is set already", id, PIPE_NAMES[from],
            PIPE_NAMES[to]);
    }
}

void wait_flag(HardEvent event, event_t id) {
    Running& core = running();
    core.instruction = "WaitFlag";
    const auto [from, to] = pipes_of(event);
    const auto flag = core.flags.find({int(event), int(id)});
    if (flag == core.flags.end()) {
        core.fail("flag %d from %s to %s was never set: the core would wait for ever", id,
            PIPE_NAMES[from], PIPE_NAMES[to]);
    }
    core.known[to].merge(flag->second);
    core.flags.erase(flag);
}

void meet(int which, const char* name) {
    Running& me = running();
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
static uint32_t flag_slot(CoreKind kind, uint32_t block, uint32_t sub) {
    return kind == CoreKind::Cube ? block : 0x10000 + 2 * block + sub;
}

void set_cross_core_flag(uint8_t mode, uint16_t id) {
    Running& core = running();
    auto& launch = *core.launch;
    core.instruction = "CrossCoreSetFlag";
    if (id > 15) core.fail("flag %u of 16", id);
    if (mode != 2) core.fail("mode %u is not supported; mode 2 is, and SyncAll", mode);
    auto give = [&](uint32_t to) {
        auto& counts = launch.flags[{int(to), id}];
        counts.resize(2);
        const uint32_t from = core.kind == CoreKind::Cube ? 0 : core.sub;
        // The counter of the chip holds 15.
        if (++counts[from] > 15) core.fail("flag %u is set more than 15 times and not waited for", id);
    };
    if (core.kind == CoreKind::Cube) {
        for (uint32_t sub = 0; sub < 2; ++sub) {
            give(flag_slot(CoreKind::Vector, core.block, sub));
        }
    } else {
        give(flag_slot(CoreKind::Cube, core.block, 0));
    }
}

void wait_cross_core_flag(uint16_t id) {
    Running& core = running();
    auto& launch = *core.launch;
    core.instruction = "CrossCoreWaitFlag";
    const uint32_t me = flag_slot(core.kind, core.block, core.sub);
    auto& counts = launch.flags[{int(me), id}];
    counts.resize(2);
    const bool cube = core.kind == CoreKind::Cube;
    core.wait([&counts, cube] { return counts[0] > 0 && (!cube || counts[1] > 0); },
        "flag " + std::to_string(id) + (cube ? " of its vector cores" : " of its cube core"));
    --counts[0];
    if (cube) --counts[1];
    // What the others wrote before it is in global memory now.
    core.join_pipes();
}

}  // namespace AscendC::shim
