// Buffers in local memory, and queues that hand them from one pipe to another.
#pragma once

#include <exception>

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
    std::vector<std::unique_ptr<QueueBuffer>> buffers;
    std::vector<QueueBuffer*> queued;
    size_t cursor = 0;

    pipe_t producer() const {
        switch (position) {
            case TPosition::VECIN: case TPosition::A1: case TPosition::B1: case TPosition::C1:
                return PIPE_MTE2;
            case TPosition::A2: case TPosition::B2: case TPosition::C2: return PIPE_MTE1;
            case TPosition::CO1: return PIPE_M;
            case TPosition::C2PIPE2GM: return PIPE_FIX;
            default: return PIPE_V;
        }
    }
    pipe_t consumer() const {
        // Bound to a second position, a tensor goes on to whoever empties that.
        switch (bound == TPosition::MAX ? position : bound) {
            case TPosition::VECIN: case TPosition::VECCALC: return PIPE_V;
            case TPosition::VECOUT: return PIPE_MTE3;
            case TPosition::A1: case TPosition::B1: case TPosition::C1: return PIPE_MTE1;
            case TPosition::A2: case TPosition::B2: case TPosition::C2: return PIPE_M;
            case TPosition::CO1: return PIPE_FIX;
            default: return PIPE_FIX;
        }
    }
    std::string name() const {
        return "queue " + std::to_string(number) + " (" + POSITION_NAMES[int(position)] + ", " +
            std::to_string(buffers.size()) + " buffers of " + std::to_string(bytes) + " bytes)";
    }

    void hold_event(pipe_t from, pipe_t to) const {
        if (from == to) return;
        if (++core().held_events[{int(from), int(to)}] > EVENT_IDS) {
            core().fail("%s: no event from %s to %s is left; queues of one kind may have %d buffers",
                name().c_str(), PIPE_NAMES[from], PIPE_NAMES[to], EVENT_IDS);
        }
    }
    void drop_event(pipe_t from, pipe_t to) const {
        if (from != to) --core().held_events[{int(from), int(to)}];
    }

    QueueBuffer* alloc() {
        core().instruction = "AllocTensor";
        if (buffers.empty()) core().fail("a queue that InitBuffer was not called for");
        // In turn, so that what was filled last is read while the next is filled.
        for (size_t i = 0; i < buffers.size(); ++i) {
            auto& buffer = buffers[(cursor + i) % buffers.size()];
            if (buffer->state != BufferState::Free) continue;
            cursor = (cursor + i + 1) % buffers.size();
            buffer->state = BufferState::Taken;
            if (buffer->was_used) {
                drop_event(consumer(), producer());
                core().known[producer()].merge(buffer->handed);
            }
            std::memset(memory->data + buffer->at, POISON, bytes);
            return buffer.get();
        }
        core().fail("%s overflows: every buffer is in use", name().c_str());
    }
    void enqueue(QueueBuffer* buffer) {
        core().instruction = "EnQue";
        expect(buffer, BufferState::Taken, "a tensor that AllocTensor did not give");
        if (int(queued.size()) >= depth) {
            core().fail("%s overflows: its depth is %d", name().c_str(), depth);
        }
        buffer->state = BufferState::Queued;
        buffer->handed = core().snapshot(producer());
        hold_event(producer(), consumer());
        queued.push_back(buffer);
    }
    QueueBuffer* dequeue() {
        core().instruction = "DeQue";
        if (queued.empty()) core().fail("%s is empty: nothing was enqueued", name().c_str());
        QueueBuffer* buffer = queued.front();
        queued.erase(queued.begin());
        buffer->state = BufferState::Received;
        drop_event(producer(), consumer());
        core().known[consumer()].merge(buffer->handed);
        return buffer;
    }
    void release(QueueBuffer* buffer) {
        core().instruction = "FreeTensor";
        if (!buffer || buffer->queue != this) {
            core().fail("%s: a tensor of another queue", name().c_str());
        }
        if (buffer->state == BufferState::Free || buffer->state == BufferState::Queued) {
            core().fail("%s: a tensor that is %s", name().c_str(),
                buffer->state == BufferState::Free ? "free already" : "still enqueued");
        }
        buffer->state = BufferState::Free;
        // Both sides may have used it.
        buffer->handed = core().snapshot(consumer());
        buffer->was_used = true;
        hold_event(consumer(), producer());
    }
    void expect(QueueBuffer* buffer, BufferState state, const char* what) const {
        if (!buffer || buffer->queue != this || buffer->state != state) {
            core().fail("%s: %s", name().c_str(), what);
        }
    }
    QueueBase() = default;
    QueueBase(const QueueBase&) = delete;
    /// Every tensor must be back.
    ~QueueBase() noexcept(false) {
        if (std::uncaught_exceptions() > 0) return;
        core().instruction = "the end of the kernel";
        for (const auto& buffer : buffers) {
            if (buffer->state == BufferState::Free) continue;
            core().fail("%s: a tensor was %s", name().c_str(),
                buffer->state == BufferState::Queued ? "enqueued and never dequeued"
                                                     : "never freed: FreeTensor is missing");
        }
    }
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
    TPipe() {
        auto& core = shim::core();
        core.instruction = "TPipe";
        if (core.pipe_object) core.fail("a kernel has one TPipe");
        core.pipe_object = this;
    }
    TPipe(const TPipe&) = delete;
    ~TPipe() { shim::core().pipe_object = nullptr; }

    template <class Queue>
    bool InitBuffer(Queue& queue, uint8_t count, uint32_t bytes) {
        auto& core = shim::core();
        core.instruction = "InitBuffer";
        if (!queue.buffers.empty()) core.fail("queue %d has its buffers already", queue.number);
        queue.number = queues_++;
        queue.memory = &core.memory(queue.position);
        queue.bytes = round_up(bytes);
        for (uint8_t i = 0; i < count; ++i) {
            auto buffer = std::make_unique<shim::QueueBuffer>();
            buffer->at = take(*queue.memory, queue.bytes);
            buffer->queue = static_cast<shim::QueueBase*>(&queue);
            queue.buffers.push_back(std::move(buffer));
        }
        return true;
    }
    template <TPosition position>
    bool InitBuffer(TBuf<position>& buffer, uint32_t bytes) {
        auto& core = shim::core();
        core.instruction = "InitBuffer";
        buffer.memory = &core.memory(position);
        buffer.bytes = round_up(bytes);
        buffer.at = take(*buffer.memory, buffer.bytes);
        std::memset(buffer.memory->data + buffer.at, shim::POISON, buffer.bytes);
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
        auto& ids = allocated_[int(event)];
        for (TEventID id = 0; id < shim::EVENT_IDS; ++id) {
            if (!(ids >> id & 1)) {
                ids |= 1u << id;
                return id;
            }
        }
        shim::core().fail("AllocEventID: all %d ids are taken", shim::EVENT_IDS);
    }
    template <HardEvent event>
    void ReleaseEventID(TEventID id) {
        allocated_[int(event)] &= ~(1u << id);
    }

private:
    static uint32_t round_up(uint32_t bytes) {
        return (bytes + shim::BLOCK - 1) / shim::BLOCK * shim::BLOCK;
    }
    uint32_t take(shim::Memory& memory, uint32_t bytes) {
        auto& core = shim::core();
        if (bytes == 0) core.fail("a buffer of no bytes");
        if (++buffers_ > shim::MAX_BUFFERS) core.fail("more than %d buffers", shim::MAX_BUFFERS);
        if (uint64_t(memory.used) + bytes > memory.capacity) {
            core.fail("%s overflows: %u bytes are used and %u more do not fit %u", memory.name,
                memory.used, bytes, memory.capacity);
        }
        const uint32_t at = memory.used;
        memory.used += bytes;
        return at;
    }
    TEventID FetchEventID_(HardEvent event) {
        auto& core = shim::core();
        const uint32_t ids = allocated_[int(event)];
        for (TEventID id = 0; id < shim::EVENT_IDS; ++id) {
            if (!(ids >> id & 1) && !core.flags.count({int(event), int(id)})) return id;
        }
        core.fail("FetchEventID: all %d ids are taken", shim::EVENT_IDS);
    }

    int queues_ = 0;
    std::map<int, uint32_t> allocated_;
    int buffers_ = 0;
};

inline TPipe* GetTPipePtr() { return static_cast<TPipe*>(shim::core().pipe_object); }

}  // namespace AscendC
