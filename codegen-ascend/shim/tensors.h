// Tensors in global and in local memory.
#pragma once

#include "core.h"

namespace AscendC {

namespace shim {
struct QueueBuffer;
/// The current instruction accesses `bytes` from byte `at` on of a part of global memory.
uint8_t* access_global(uint8_t* start, uint64_t size, uint64_t at, uint64_t bytes, bool write, bool scalar);
/// The same of a part of a local memory, which begins at `start`.
uint8_t* access_local(Memory* memory, TPosition position, uint32_t start, uint32_t size, uint64_t at,
    uint64_t bytes, bool write);
/// That an operand begins at a multiple of `to` bytes.
void check_aligned(const Memory* memory, uint32_t at, const char* what, uint32_t to);
[[noreturn]] void no_such_element(const char* tensor, uint64_t element, uint64_t elements);
}  // namespace shim

/// Elements in global memory.
template <class T>
class GlobalTensor {
public:
    void SetGlobalBuffer(T* start, uint64_t elements) {
        start_ = reinterpret_cast<uint8_t*>(start);
        bytes_ = elements * sizeof(T);
        if (reinterpret_cast<uint64_t>(start_) % sizeof(T) != 0) {
            shim::core().fail("SetGlobalBuffer: the address is no multiple of the element size");
        }
    }
    void SetGlobalBuffer(T* start) { SetGlobalBuffer(start, (uint64_t(1) << 60) / sizeof(T)); }

    GlobalTensor operator[](uint64_t element) const {
        GlobalTensor part = *this;
        if (element * sizeof(T) > bytes_) {
            shim::no_such_element("GlobalTensor", element, GetSize());
        }
        part.start_ += element * sizeof(T);
        part.bytes_ -= element * sizeof(T);
        return part;
    }

    uint64_t GetSize() const { return bytes_ / sizeof(T); }
    T* GetPhyAddr() const { return reinterpret_cast<T*>(start_); }
    T* GetPhyAddr(uint64_t element) const { return (*this)[element].GetPhyAddr(); }

    /// Through the scalar unit.
    T GetValue(uint64_t element) const {
        shim::core().issue("GlobalTensor::GetValue", PIPE_S);
        T value;
        std::memcpy(&value, access(element * sizeof(T), sizeof(T), false, true), sizeof(T));
        return value;
    }
    /// Through the scalar unit, which writes back whole cache lines: no other core may write there.
    void SetValue(uint64_t element, T value) {
        shim::core().issue("GlobalTensor::SetValue", PIPE_S);
        std::memcpy(access(element * sizeof(T), sizeof(T), true, true), &value, sizeof(T));
    }

    /// The current instruction accesses `bytes` from byte `at` on.
    uint8_t* access(uint64_t at, uint64_t bytes, bool write, bool scalar = false) const {
        return shim::access_global(start_, bytes_, at, bytes, write, scalar);
    }

private:
    uint8_t* start_ = nullptr;
    uint64_t bytes_ = 0;
};

/// Elements in a local memory.
template <class T>
class LocalTensor {
public:
    using PrimType = T;

    LocalTensor() = default;
    LocalTensor(shim::Memory* memory, uint32_t at, uint32_t bytes, TPosition position,
        shim::QueueBuffer* owner = nullptr)
        : memory_(memory), at_(at), bytes_(bytes), position_(position), owner_(owner) {}

    LocalTensor operator[](uint32_t element) const {
        if (uint64_t(element) * sizeof(T) > bytes_) {
            shim::no_such_element("LocalTensor", element, GetSize());
        }
        LocalTensor part = *this;
        part.at_ += element * sizeof(T);
        part.bytes_ -= element * sizeof(T);
        return part;
    }
    template <class U>
    LocalTensor<U> ReinterpretCast() const {
        return LocalTensor<U>(memory_, at_, bytes_, position_, owner_);
    }
    template <class U>
    LocalTensor<U> template_cast() const {
        return ReinterpretCast<U>();
    }

    uint32_t GetSize() const { return bytes_ / sizeof(T); }
    TPosition GetPosition() const { return position_; }
    uint64_t GetPhyAddr() const { return at_; }
    shim::QueueBuffer* owner() const { return owner_; }
    shim::Memory* memory() const { return memory_; }
    uint32_t at() const { return at_; }

    /// Through the scalar unit.
    T GetValue(uint32_t element) const {
        shim::core().issue("LocalTensor::GetValue", PIPE_S);
        T value;
        std::memcpy(&value, access(element * sizeof(T), sizeof(T), false), sizeof(T));
        return value;
    }
    /// Through the scalar unit.
    void SetValue(uint32_t element, T value) const {
        shim::core().issue("LocalTensor::SetValue", PIPE_S);
        std::memcpy(access(element * sizeof(T), sizeof(T), true), &value, sizeof(T));
    }

    /// The current instruction accesses `bytes` from byte `at` on.
    uint8_t* access(uint64_t at, uint64_t bytes, bool write) const {
        return shim::access_local(memory_, position_, at_, bytes_, at, bytes, write);
    }
    /// The instruction takes this tensor as an operand: it must begin at a whole block.
    void aligned(const char* what, uint32_t to = shim::BLOCK) const {
        shim::check_aligned(memory_, at_, what, to);
    }
    /// `count` contiguous elements as an operand of the current instruction.
    const T* read(const char* what, uint64_t count) const {
        aligned(what);
        return reinterpret_cast<const T*>(access(0, count * sizeof(T), false));
    }
    T* write(const char* what, uint64_t count) const {
        aligned(what);
        return reinterpret_cast<T*>(access(0, count * sizeof(T), true));
    }

private:
    shim::Memory* memory_ = nullptr;
    uint32_t at_ = 0;
    uint32_t bytes_ = 0;
    TPosition position_ = TPosition::MAX;
    shim::QueueBuffer* owner_ = nullptr;
};

}  // namespace AscendC
