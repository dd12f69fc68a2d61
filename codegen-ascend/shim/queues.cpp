// Queues and the pipe that gives out their memory.
#include "queues.h"

#include <exception>

#include "run.h"

namespace AscendC::shim {

static std::string name_of(const QueueBase& queue) {
    return "queue " + std::to_string(queue.number) + " (" + POSITION_NAMES[int(queue.position)] + ", " +
        std::to_string(queue.buffers.size()) + " buffers of " + std::to_string(queue.bytes) + " bytes)";
}

pipe_t QueueBase::producer() const {
    switch (position) {
        case TPosition::VECIN: case TPosition::A1: case TPosition::B1: case TPosition::C1:
            return PIPE_MTE2;
        case TPosition::A2: case TPosition::B2: case TPosition::C2: return PIPE_MTE1;
        case TPosition::CO1: return PIPE_M;
        case TPosition::C2PIPE2GM: return PIPE_FIX;
        default: return PIPE_V;
    }
}

pipe_t QueueBase::consumer() const {
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

void QueueBase::hold_event(pipe_t from, pipe_t to) const {
    if (from == to) return;
    if (++running().held_events[{int(from), int(to)}] > EVENT_IDS) {
        core().fail("%s: no event from %s to %s is left; queues of one kind may have %d buffers",
            name_of(*this).c_str(), PIPE_NAMES[from], PIPE_NAMES[to], EVENT_IDS);
    }
}

void QueueBase::drop_event(pipe_t from, pipe_t to) const {
    if (from != to) --running().held_events[{int(from), int(to)}];
}

QueueBuffer* QueueBase::alloc() {
    core().instruction = "AllocTensor";
    if (buffers.empty()) core().fail("a queue that InitBuffer was not called for");
    // In turn, so that what was filled last is read while the next is filled.
    for (size_t i = 0; i < buffers.size(); ++i) {
        QueueBuffer& buffer = buffers[(cursor + i) % buffers.size()];
        if (buffer.state != BufferState::Free) continue;
        cursor = (cursor + i + 1) % buffers.size();
        buffer.state = BufferState::Taken;
        if (buffer.was_used) {
            drop_event(consumer(), producer());
            core().known[producer()].merge(buffer.handed);
        }
        std::memset(memory->data + buffer.at, POISON, bytes);
        return &buffer;
    }
    core().fail("%s overflows: every buffer is in use", name_of(*this).c_str());
}

void QueueBase::enqueue(QueueBuffer* buffer) {
    core().instruction = "EnQue";
    expect(buffer, BufferState::Taken, "a tensor that AllocTensor did not give");
    if (int(queued.size()) >= depth) {
        core().fail("%s overflows: its depth is %d", name_of(*this).c_str(), depth);
    }
    buffer->state = BufferState::Queued;
    buffer->handed = core().snapshot(producer());
    hold_event(producer(), consumer());
    queued.push_back(buffer);
}

QueueBuffer* QueueBase::dequeue() {
    core().instruction = "DeQue";
    if (queued.empty()) core().fail("%s is empty: nothing was enqueued", name_of(*this).c_str());
    QueueBuffer* buffer = queued.front();
    queued.erase(queued.begin());
    buffer->state = BufferState::Received;
    drop_event(producer(), consumer());
    core().known[consumer()].merge(buffer->handed);
    return buffer;
}

void QueueBase::release(QueueBuffer* buffer) {
    core().instruction = "FreeTensor";
    if (!buffer || buffer->queue != this) {
        core().fail("%s: a tensor of another queue", name_of(*this).c_str());
    }
    if (buffer->state == BufferState::Free || buffer->state == BufferState::Queued) {
        core().fail("%s: a tensor that is %s", name_of(*this).c_str(),
            buffer->state == BufferState::Free ? "free already" : "still enqueued");
    }
    buffer->state = BufferState::Free;
    // Both sides may have used it.
    buffer->handed = core().snapshot(consumer());
    buffer->was_used = true;
    hold_event(consumer(), producer());
}

void QueueBase::expect(QueueBuffer* buffer, BufferState state, const char* what) const {
    if (!buffer || buffer->queue != this || buffer->state != state) {
        core().fail("%s: %s", name_of(*this).c_str(), what);
    }
}

QueueBase::~QueueBase() noexcept(false) {
    if (std::uncaught_exceptions() > 0) return;
    core().instruction = "the end of the kernel";
    for (const auto& buffer : buffers) {
        if (buffer.state == BufferState::Free) continue;
        core().fail("%s: a tensor was %s", name_of(*this).c_str(),
            buffer.state == BufferState::Queued ? "enqueued and never dequeued"
                                                 : "never freed: FreeTensor is missing");
    }
}

}  // namespace AscendC::shim

namespace AscendC {

TPipe::TPipe() {
    auto& core = shim::core();
    core.instruction = "TPipe";
    if (core.pipe_object) core.fail("a kernel has one TPipe");
    core.pipe_object = this;
}

TPipe::~TPipe() { shim::core().pipe_object = nullptr; }

void TPipe::init_queue(shim::QueueBase& queue, uint8_t count, uint32_t bytes) {
    auto& core = shim::core();
    core.instruction = "InitBuffer";
    if (!queue.buffers.empty()) core.fail("queue %d has its buffers already", queue.number);
    queue.number = queues_++;
    queue.memory = &core.memory(queue.position);
    queue.bytes = round_up(bytes);
    queue.buffers.resize(count);
    for (auto& buffer : queue.buffers) {
        buffer.at = take(*queue.memory, queue.bytes);
        buffer.queue = &queue;
    }
}

uint32_t TPipe::init_buffer(shim::Memory*& memory, TPosition position, uint32_t bytes) {
    auto& core = shim::core();
    core.instruction = "InitBuffer";
    memory = &core.memory(position);
    const uint32_t at = take(*memory, bytes);
    std::memset(memory->data + at, shim::POISON, bytes);
    return at;
}

uint32_t TPipe::take(shim::Memory& memory, uint32_t bytes) {
    auto& core = shim::core();
    if (bytes == 0) core.fail("a buffer of no bytes");
    if (++buffers_ > shim::MAX_BUFFERS) core.fail("more than %d buffers", shim::MAX_BUFFERS);
    if (uint64_t(memory.used) + bytes > memory.capacity) {
        core.fail("%s overflows: %u bytes are used and %u more do not fit %u", memory.name,
            memory.used, bytes, memory.capacity);
    }
    const uint32_t at = memory.used;
    memory.used += bytes;
    memory.units.resize(std::max<size_t>(memory.units.size(), (memory.used + shim::BLOCK - 1) / shim::BLOCK));
    return at;
}

TEventID TPipe::FetchEventID_(HardEvent event) {
    auto& core = shim::core();
    const auto& flags = shim::running().flags;
    const uint32_t ids = allocated_[int(event)];
    for (TEventID id = 0; id < shim::EVENT_IDS; ++id) {
        if (!(ids >> id & 1) && !flags.count({int(event), int(id)})) return id;
    }
    core.fail("FetchEventID: all %d ids are taken", shim::EVENT_IDS);
}

TEventID TPipe::AllocEventID_(HardEvent event) {
    auto& ids = allocated_[int(event)];
    for (TEventID id = 0; id < shim::EVENT_IDS; ++id) {
        if (!(ids >> id & 1)) {
            ids |= 1u << id;
            return id;
        }
    }
    shim::core().fail("AllocEventID: all %d ids are taken", shim::EVENT_IDS);
}

}  // namespace AscendC
