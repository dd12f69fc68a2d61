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

/// Ids that each pair of pipes has.
constexpr int EVENT_IDS = 8;

/// Set where some kernel of this library makes cores wait for each other.
extern bool cores_meet;
template <bool>
struct Meets {
    static inline const bool registered = (cores_meet = true);
};

void set_flag(HardEvent event, event_t id);
void wait_flag(HardEvent event, event_t id);
/// All cores of `which` (0 vector, 1 cube, 2 both) meet.
void meet(int which, const char* name);
void set_cross_core_flag(uint8_t mode, uint16_t id);
void wait_cross_core_flag(uint16_t id);

}  // namespace shim

/// What the first pipe of `event` has issued so far is finished for whoever waits for this flag.
template <HardEvent event>
inline void SetFlag(event_t id) {
    shim::set_flag(event, id);
}
template <HardEvent event>
inline void WaitFlag(event_t id) {
    shim::wait_flag(event, id);
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
    shim::set_cross_core_flag(mode, id);
}

template <uint8_t mode = 2, pipe_t pipe = PIPE_S>
inline void CrossCoreWaitFlag(uint16_t id) {
    (void)shim::Meets<true>::registered;
    shim::wait_cross_core_flag(id);
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
