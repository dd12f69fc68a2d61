// All of the shim that is compiled once.
#include "core.cpp"
#include "sync.cpp"
#include "queues.cpp"
#include "launch.cpp"
#include "instances.cpp"
