// Instructions for the element types that kernels use most: compiled once with the shim, and not with
// every kernel. What is not listed works too, and is compiled where it is used.
#pragma once

#include "cast.h"
#include "cube.h"
#include "more.h"
#include "reduce.h"
#include "sort.h"

#ifndef SHIM_INSTANCE
#define SHIM_INSTANCE extern template
#endif

namespace AscendC {

#define SHIM_OPERANDS_1(T) const LocalTensor<T>&, const LocalTensor<T>&
#define SHIM_OPERANDS_2(T) SHIM_OPERANDS_1(T), const LocalTensor<T>&

#define SHIM_TENSORS(T)                   \
    SHIM_INSTANCE class GlobalTensor<T>;  \
    SHIM_INSTANCE class LocalTensor<T>;
SHIM_TENSORS(float)
SHIM_TENSORS(half)
SHIM_TENSORS(bfloat16_t)
SHIM_TENSORS(int64_t)
SHIM_TENSORS(int32_t)
SHIM_TENSORS(uint32_t)
SHIM_TENSORS(int8_t)
SHIM_TENSORS(uint8_t)
#undef SHIM_TENSORS

#define SHIM_COPIES(T)                                                                                  \
    SHIM_INSTANCE void DataCopy(const LocalTensor<T>&, const GlobalTensor<T>&, const DataCopyParams&);  \
    SHIM_INSTANCE void DataCopy(const LocalTensor<T>&, const GlobalTensor<T>&, uint32_t);               \
    SHIM_INSTANCE void DataCopy(const GlobalTensor<T>&, const LocalTensor<T>&, const DataCopyParams&);  \
    SHIM_INSTANCE void DataCopy(const GlobalTensor<T>&, const LocalTensor<T>&, uint32_t);               \
    SHIM_INSTANCE void DataCopy(const LocalTensor<T>&, const LocalTensor<T>&, const DataCopyParams&);   \
    SHIM_INSTANCE void DataCopy(const LocalTensor<T>&, const LocalTensor<T>&, uint32_t);                \
    SHIM_INSTANCE void DataCopyPad(const LocalTensor<T>&, const GlobalTensor<T>&,                       \
        const DataCopyExtParams&, const DataCopyPadExtParams<T>&);                                      \
    SHIM_INSTANCE void DataCopyPad(const GlobalTensor<T>&, const LocalTensor<T>&, const DataCopyExtParams&);
SHIM_COPIES(float)
SHIM_COPIES(bfloat16_t)
SHIM_COPIES(int64_t)
SHIM_COPIES(int32_t)
SHIM_COPIES(int8_t)
SHIM_COPIES(uint8_t)
#undef SHIM_COPIES

#define SHIM_BINARY(Name)                                                                 \
    SHIM_INSTANCE void Name(SHIM_OPERANDS_2(float), const int32_t&);                      \
    SHIM_INSTANCE void Name(SHIM_OPERANDS_2(float), uint64_t, uint8_t, const BinaryRepeatParams&);
SHIM_BINARY(Add)
SHIM_BINARY(Sub)
SHIM_BINARY(Mul)
SHIM_BINARY(Div)
SHIM_BINARY(Max)
SHIM_BINARY(Min)
#undef SHIM_BINARY

#define SHIM_UNARY(Name) SHIM_INSTANCE void Name(SHIM_OPERANDS_1(float), const int32_t&);
SHIM_UNARY(Exp)
SHIM_UNARY(Ln)
SHIM_UNARY(Sqrt)
SHIM_UNARY(Abs)
#undef SHIM_UNARY

#define SHIM_SCALAR(Name, T) SHIM_INSTANCE void Name(SHIM_OPERANDS_1(T), const T&, const int32_t&);
SHIM_SCALAR(Adds, float)
SHIM_SCALAR(Muls, float)
SHIM_SCALAR(Maxs, float)
SHIM_SCALAR(Mins, float)
SHIM_SCALAR(Axpy, float)
SHIM_SCALAR(Adds, int32_t)
SHIM_SCALAR(Muls, int32_t)
#undef SHIM_SCALAR

#define SHIM_CAST(To, From)                                                                    \
    SHIM_INSTANCE void Cast(const LocalTensor<To>&, const LocalTensor<From>&, const RoundMode&, uint32_t);
SHIM_CAST(bfloat16_t, float)
SHIM_CAST(float, bfloat16_t)
SHIM_CAST(float, int32_t)
SHIM_CAST(int32_t, float)
SHIM_CAST(half, float)
SHIM_CAST(float, half)
SHIM_CAST(int8_t, half)
SHIM_CAST(half, int8_t)
SHIM_CAST(int64_t, int32_t)
#undef SHIM_CAST

SHIM_INSTANCE void ReduceSum(SHIM_OPERANDS_2(float), int32_t);
SHIM_INSTANCE void ReduceMax(SHIM_OPERANDS_2(float), int32_t, bool);
SHIM_INSTANCE void WholeReduceSum(SHIM_OPERANDS_1(float), int32_t, int32_t, int32_t, int32_t, int32_t);
SHIM_INSTANCE void MulAddDst(SHIM_OPERANDS_2(float), uint64_t, uint8_t, const BinaryRepeatParams&);
SHIM_INSTANCE void Duplicate(const LocalTensor<float>&, const float&, const int32_t&);
SHIM_INSTANCE void Duplicate(const LocalTensor<float>&, const float&, uint64_t[], uint8_t, uint16_t, uint8_t);
SHIM_INSTANCE void Duplicate(const LocalTensor<int32_t>&, const int32_t&, const int32_t&);
SHIM_INSTANCE void Brcb(SHIM_OPERANDS_1(float), uint8_t, const BrcbRepeatParams&);
SHIM_INSTANCE void Gather(SHIM_OPERANDS_1(float), const LocalTensor<uint32_t>&, uint32_t, uint32_t);
SHIM_INSTANCE void Compare(const LocalTensor<uint8_t>&, SHIM_OPERANDS_1(int32_t), CMPMODE, uint32_t);
SHIM_INSTANCE void CompareScalar(const LocalTensor<uint8_t>&, const LocalTensor<float>&, float, CMPMODE, uint32_t);
SHIM_INSTANCE void GatherMask(SHIM_OPERANDS_1(int32_t), const LocalTensor<uint32_t>&, bool, uint32_t,
    const GatherMaskParams&, uint64_t&);
SHIM_INSTANCE void CreateVecIndex(LocalTensor<int32_t>, const int32_t&, uint32_t);
SHIM_INSTANCE void DataCopy(const LocalTensor<bfloat16_t>&, const GlobalTensor<bfloat16_t>&, const Nd2NzParams&);
SHIM_INSTANCE void LoadData(const LocalTensor<bfloat16_t>&, const LocalTensor<bfloat16_t>&, const LoadData2DParams&);
SHIM_INSTANCE void Mmad(const LocalTensor<float>&, const LocalTensor<bfloat16_t>&,
    const LocalTensor<bfloat16_t>&, const MmadParams&);

#undef SHIM_OPERANDS_1
#undef SHIM_OPERANDS_2

}  // namespace AscendC
