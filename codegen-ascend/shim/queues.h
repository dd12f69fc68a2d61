// Buffers in local memory, and queues that hand them from one pipe to another.
#pragma once

#include "sync.h"
#include "tensors.h"

namespace AscendC {

namespace shim {

/// Buffers that a pipe may manage.
constexpr int MAX_BUFFERS = 64;

enum class BufferState { Free, Taken, Queued, Received };

struct QueueBuffer {
    uint32_t at = 0;
    BufferState state = BufferState::Free;
    /// What the producer or the consumer had finished when it gave the buffer away.
    Clock handed;
    bool was_used = false;
    void* queue = nullptr;
};

/// A queue, whatever its template arguments.
struct QueueBase {
    TPosition position = TPosition::MAX;
    TPosition bound = TPosition::MAX;
    int number = 0;
    int depth = 0;
    uint32_t bytes = 0;
    Memory* memory = nullptr;
    /// Their places do not change: there are as many as InitBuffer made.
    std::vector<QueueBuffer> buffers;
    std::vector<QueueBuffer*> queued;
    size_t cursor = 0;

    QueueBase() = default;
    QueueBase(const QueueBase&) = delete;
    /// Every tensor must be back.
    ~QueueBase() noexcept(false);
    QueueBuffer* alloc();
    void enqueue(QueueBuffer* buffer);
    QueueBuffer* dequeue();
    void release(QueueBuffer* buffer);

private:
    pipe_t producer() const;
    pipe_t consumer() const;
    void hold_event(pipe_t from, pipe_t to) const;
    void drop_event(pipe_t from, pipe_t to) const;
    void expect(QueueBuffer* buffer, BufferState state, const char* what) const;
};

}  // namespace shim

/// Hands buffers from the pipe that fills them to the one that reads them.
template <TPosition where, int32_t deep, auto mask = 0>
class TQue : public shim::QueueBase {
public:
    TQue() {
        position = where;
        depth = deep;
    }

    template <class T>
    LocalTensor<T> AllocTensor() {
        return tensor<T>(alloc());
    }
    template <class T>
    bool EnQue(const LocalTensor<T>& tensor) {
        enqueue(tensor.owner());
        return true;
    }
    template <class T>
    LocalTensor<T> DeQue() {
        return tensor<T>(dequeue());
    }
    template <class T>
    void FreeTensor(LocalTensor<T>& tensor) {
        release(tensor.owner());
    }
    bool HasTensorInQue() const { return !queued.empty(); }
    int32_t GetTensorCountInQue() const { return queued.size(); }

private:
    template <class T>
    LocalTensor<T> tensor(shim::QueueBuffer* buffer) const {
        return LocalTensor<T>(memory, buffer->at, bytes, position, buffer);
    }
};

/// One buffer, without order between pipes.
template <TPosition position = TPosition::VECCALC>
class TBuf {
public:
    template <class T>
    LocalTensor<T> Get() {
        if (!memory) shim::core().fail("TBuf: InitBuffer was not called");
        return LocalTensor<T>(memory, at, bytes, position);
    }
    template <class T>
    LocalTensor<T> Get(uint32_t elements) {
        return GetWithOffset<T>(elements, 0);
    }
    template <class T>
    LocalTensor<T> GetWithOffset(uint32_t elements, uint32_t offset_bytes) {
        if (!memory) shim::core().fail("TBuf: InitBuffer was not called");
        if (uint64_t(elements) * sizeof(T) + offset_bytes > bytes) {
            shim::core().fail("TBuf: %u elements at byte %u do not fit %u bytes", elements,
                offset_bytes, bytes);
        }
        return LocalTensor<T>(memory, at + offset_bytes, elements * sizeof(T), position);
    }

    shim::Memory* memory = nullptr;
    uint32_t at = 0;
    uint32_t bytes = 0;
};

/// Gives out local memory, buffer after buffer.
class TPipe {
public:
    TPipe();
    TPipe(const TPipe&) = delete;
    ~TPipe();

    template <class Queue>
    bool InitBuffer(Queue& queue, uint8_t count, uint32_t bytes) {
        init_queue(queue, count, bytes);
        return true;
    }
    template <TPosition position>
    bool InitBuffer(TBuf<position>& buffer, uint32_t bytes) {
        buffer.bytes = round_up(bytes);
        buffer.at = init_buffer(buffer.memory, position, buffer.bytes);
        return true;
    }

    /// An id for a flag that is set and waited for at once.
    TEventID FetchEventID(HardEvent event) { return FetchEventID_(event); }
    template <HardEvent event>
    TEventID FetchEventID() {
        return FetchEventID_(event);
    }
    /// An id that is kept until ReleaseEventID.
    template <HardEvent event>
    TEventID AllocEventID() {
        return AllocEventID_(event);
    }
    template <HardEvent event>
    void ReleaseEventID(TEventID id) {
        allocated_[int(event)] &= ~(1u << id);
    }

private:
    static uint32_t round_up(uint32_t bytes) {
        return (bytes + shim::BLOCK - 1) / shim::BLOCK * shim::BLOCK;
    }
    void init_queue(shim::QueueBase& queue, uint8_t count, uint32_t bytes);
    /// Where a buffer of `bytes` begins in the memory of `position`, which is told too.
    uint32_t init_buffer(shim::Memory*& memory, TPosition position, uint32_t bytes);
    uint32_t take(shim::Memory& memory, uint32_t bytes);
    TEventID FetchEventID_(HardEvent event);
    TEventID AllocEventID_(HardEvent event);

    int queues_ = 0;
    /// Ids that are kept, a bit each, by event.
    uint32_t allocated_[64] = {};
    int buffers_ = 0;
};

inline TPipe* GetTPipePtr() { return static_cast<TPipe*>(shim::core().pipe_object); }

}  // namespace AscendC
