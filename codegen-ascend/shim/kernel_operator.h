// The part of the kernel language that our kernels are written in, for the host's C++ compiler.
//
// A kernel compiled against this header computes what it computes on the chip, and every rule it
// breaks is an error with the core, the instruction and the place: capacities, alignments, queue
// depths, instructions that read what another pipe has not handed over, memory outside the buffers
// of the call, cores that wait for each other.
//
// Names, parameters and rules are those of the Ascend C guide for architecture 2201.
#pragma once

#include "core.h"
#include "tensors.h"
#include "sync.h"
#include "queues.h"
#include "copies.h"
#include "vector.h"
#include "cast.h"
#include "reduce.h"
#include "sort.h"
#include "cube.h"
#include "instances.h"
