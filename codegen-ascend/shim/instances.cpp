// The instructions that are compiled once.
#define SHIM_INSTANCE template
#include "instances.h"
