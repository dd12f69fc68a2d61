// Lengths as sparse attention reads them, for sequences of one row each:
// ends[i] = i + 1 rows up to and with sequence i, lengths[i] = positions[i] + 1 keys of it.
//
// One block: the lists are as long as a batch. CHUNK entries at a time.
#include "kernel_operator.h"
using namespace AscendC;

constexpr uint32_t CHUNK = 2048;  // entries at a time
constexpr uint32_t ALIGN = 8;     // entries of 4 bytes in 32

extern "C" __global__ __aicore__ void @NAME@(
    GM_ADDR positions, GM_ADDR ends, GM_ADDR lengths, uint64_t rows)
{
    KERNEL_TASK_TYPE_DEFAULT(KERNEL_TYPE_AIV_ONLY);
    if (GetBlockIdx() != 0) {
        return;
    }
    TPipe pipe;
    TQue<QuePosition::VECIN, 2> in;
    TQue<QuePosition::VECOUT, 2> endsOut, lengthsOut;
    TBuf<> counted;
    pipe.InitBuffer(in, 2, CHUNK * sizeof(int32_t));
    pipe.InitBuffer(endsOut, 2, CHUNK * sizeof(int32_t));
    pipe.InitBuffer(lengthsOut, 2, CHUNK * sizeof(int32_t));
    pipe.InitBuffer(counted, CHUNK * sizeof(int32_t));
    LocalTensor<int32_t> places = counted.Get<int32_t>();
    CreateVecIndex(places, 1, CHUNK);
    PipeBarrier<PIPE_V>();
    GlobalTensor<int32_t> positionsGm, endsGm, lengthsGm;
    positionsGm.SetGlobalBuffer((__gm__ int32_t *)positions, rows);
    endsGm.SetGlobalBuffer((__gm__ int32_t *)ends, rows);
    lengthsGm.SetGlobalBuffer((__gm__ int32_t *)lengths, rows);

    for (uint64_t start = 0; start < rows; start += CHUNK) {
        const uint32_t count = static_cast<uint32_t>(rows - start < CHUNK ? rows - start : CHUNK);
        const uint32_t padded = (count + ALIGN - 1) / ALIGN * ALIGN;
        const DataCopyExtParams copy{1, static_cast<uint32_t>(count * sizeof(int32_t)), 0, 0, 0};

        LocalTensor<int32_t> position = in.AllocTensor<int32_t>();
        DataCopyPad(position, positionsGm[start], copy, DataCopyPadExtParams<int32_t>{false, 0, 0, 0});
        in.EnQue(position);
        position = in.DeQue<int32_t>();
        LocalTensor<int32_t> length = lengthsOut.AllocTensor<int32_t>();
        Adds(length, position, 1, padded);
        in.FreeTensor(position);
        lengthsOut.EnQue(length);
        LocalTensor<int32_t> end = endsOut.AllocTensor<int32_t>();
        Adds(end, places, static_cast<int32_t>(start), padded);
        endsOut.EnQue(end);

        length = lengthsOut.DeQue<int32_t>();
        DataCopyPad(lengthsGm[start], length, copy);
        lengthsOut.FreeTensor(length);
        end = endsOut.DeQue<int32_t>();
        DataCopyPad(endsGm[start], end, copy);
        endsOut.FreeTensor(end);
    }
}
