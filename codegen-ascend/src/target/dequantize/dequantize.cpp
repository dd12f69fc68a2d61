// Integer sums times their scales: out[r,n] = sums[r,n] * weightScale[expert(r),n] * rowScale[r].
//
// Rows of an expert stand together; groups says how many each has (COUNTS) or where it ends. Block b
// takes rows b, b + blocks, ... and a row in tiles of TILE columns, two buffers for each copy, so
// that one tile comes in while the one before is computed. Rows past the last expert are not
// written, as by the product.
#include "kernel_operator.h"
using namespace AscendC;

@CONSTANTS@
constexpr uint32_t ALIGN = 8;  // elements of 4 bytes in 32

extern "C" __global__ __aicore__ void @NAME@(@PARAMETERS@)
{
    KERNEL_TASK_TYPE_DEFAULT(KERNEL_TYPE_AIV_ONLY);
    TPipe pipe;
    TQue<QuePosition::VECIN, 2> sumsQueue, scaleQueue;
    TQue<QuePosition::VECOUT, 2> outQueue;
    TBuf<> values;
    pipe.InitBuffer(sumsQueue, 2, TILE * sizeof(int32_t));
    pipe.InitBuffer(scaleQueue, 2, TILE * sizeof(float));
    pipe.InitBuffer(outQueue, 2, TILE * sizeof(Out));
    pipe.InitBuffer(values, TILE * sizeof(float));

    GlobalTensor<int32_t> sumsGm;
    sumsGm.SetGlobalBuffer((__gm__ int32_t *)sums, rows * WIDTH);
    GlobalTensor<float> weightScaleGm;
    weightScaleGm.SetGlobalBuffer((__gm__ float *)weightScale, EXPERTS * WIDTH);
    GlobalTensor<Out> outGm;
    outGm.SetGlobalBuffer((__gm__ Out *)out, rows * WIDTH);
@GLOBALS@
    uint64_t expert = 0;
    uint64_t end = @FIRST_END@;
    for (uint64_t row = GetBlockIdx(); row < rows; row += GetBlockNum()) {
        while (row >= end && expert < EXPERTS) {
            expert += 1;
            if (expert < EXPERTS) {
                @NEXT_END@
            }
        }
        if (expert == EXPERTS) {
            break;
        }
        for (uint64_t start = 0; start < WIDTH; start += TILE) {
            const uint32_t count = static_cast<uint32_t>(WIDTH - start < TILE ? WIDTH - start : TILE);
            const uint32_t padded = (count + ALIGN - 1) / ALIGN * ALIGN;
            const DataCopyExtParams copy{1, static_cast<uint32_t>(count * sizeof(int32_t)), 0, 0, 0};

            LocalTensor<int32_t> sumsIn = sumsQueue.AllocTensor<int32_t>();
            DataCopyPad(sumsIn, sumsGm[row * WIDTH + start], copy, DataCopyPadExtParams<int32_t>{false, 0, 0, 0});
            sumsQueue.EnQue(sumsIn);
            LocalTensor<float> scaleIn = scaleQueue.AllocTensor<float>();
            DataCopyPad(scaleIn, weightScaleGm[expert * WIDTH + start], copy, DataCopyPadExtParams<float>{false, 0, 0, 0});
            scaleQueue.EnQue(scaleIn);

            LocalTensor<int32_t> sum = sumsQueue.DeQue<int32_t>();
            LocalTensor<float> scale = scaleQueue.DeQue<float>();
            LocalTensor<Out> result = outQueue.AllocTensor<Out>();
            LocalTensor<float> value = values.Get<float>();
            Cast(value, sum, RoundMode::CAST_RINT, padded);
            PipeBarrier<PIPE_V>();
            Mul(value, value, scale, padded);
            PipeBarrier<PIPE_V>();
@SCALE_ROW@
            @STORE@
            sumsQueue.FreeTensor(sum);
            scaleQueue.FreeTensor(scale);
            outQueue.EnQue(result);

            LocalTensor<Out> ready = outQueue.DeQue<Out>();
            const DataCopyExtParams store{1, static_cast<uint32_t>(count * sizeof(Out)), 0, 0, 0};
            DataCopyPad(outGm[row * WIDTH + start], ready, store);
            outQueue.FreeTensor(ready);
        }
    }
}
