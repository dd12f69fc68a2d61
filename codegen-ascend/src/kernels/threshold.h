// Thresholds in floats are found by halving the range of whole numbers that stand for them in the same
// order, so that comparisons are exact.
//
// The float of a number of 32 bits. Numbers of both zeros stand side by side, and the zeros compare as
// equals.
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
