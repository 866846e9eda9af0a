// What each target offers to dispatch.cc and ceilings.cc.
#pragma once

#include "kernels/kernels.h"

namespace k3 {

// Loops whose speed is a ceiling; what they return only keeps them from being optimised away.
struct Probes {
  int64_t (*read)(const void* data, int64_t bytes);
  double (*fma)(int64_t rounds, float seed);
  int64_t flops_per_round;
  int64_t (*dot)(int64_t rounds, int32_t seed);  // bytes by bytes into int32
  int64_t ops_per_round;
};

namespace scalar {
const Kernels& table();
const Probes& probes();
}  // namespace scalar
namespace avx2 {
const Kernels& table();
const Probes& probes();
}  // namespace avx2
namespace avx512 {
const Kernels& table();
const Probes& probes();
}  // namespace avx512

}  // namespace k3
