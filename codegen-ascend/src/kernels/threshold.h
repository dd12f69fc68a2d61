// The k-th largest of many numbers in global memory, by halving the range of their bits: as whole
// numbers in an order that is theirs, floats are compared exactly.
//
// A number of 32 bits for each float, in the same order; both zeros have one.
__aicore__ inline float FloatOf(uint32_t order)
{
    const uint32_t bits = order >= 0x80000000u ? order - 0x80000000u : ~order;
    union { uint32_t u; float f; } value{bits};
    return value.f;
}

__aicore__ inline uint32_t OrderOf(float number)
{
    union { float f; uint32_t u; } value{number};
    return value.u >= 0x80000000u ? ~value.u : value.u + 0x80000000u;
}

// Bits of a float below all others but the infinite one, and of the largest.
constexpr uint32_t LOWEST = 0x007fffffu, HIGHEST = 0xff800000u;
