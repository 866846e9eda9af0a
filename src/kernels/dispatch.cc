#include <cpuid.h>

#include <cassert>

#include "kernels/kernels.h"
#include "kernels/targets.h"

namespace k3 {

const char* name(Isa isa) {
  switch (isa) {
    case Isa::kScalar:
      return "scalar";
    case Isa::kAvx2:
      return "avx2";
    case Isa::kAvx512:
      return "avx512";
  }
  return "?";
}

namespace {
bool has_f16c() {  // which clang's feature test does not know
  unsigned a = 0, b = 0, c = 0, d = 0;
  return __get_cpuid(1, &a, &b, &c, &d) != 0 && (c & bit_F16C) != 0;
}
}  // namespace

// The compiler's feature test also asks whether the operating system saves the registers.
bool supported(Isa isa) {
  switch (isa) {
    case Isa::kScalar:
      return true;
    case Isa::kAvx2:
      return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && has_f16c() &&
             __builtin_cpu_supports("bmi2");
    case Isa::kAvx512:
      return supported(Isa::kAvx2) && __builtin_cpu_supports("avx512f") &&
             __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
             __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512vnni") &&
             __builtin_cpu_supports("avx512vbmi");
  }
  return false;
}

std::vector<Isa> isas() {
  std::vector<Isa> all;
  for (Isa isa : {Isa::kScalar, Isa::kAvx2, Isa::kAvx512}) {
    if (supported(isa)) all.push_back(isa);
  }
  return all;
}

Isa best_isa() {
  static const Isa best = isas().back();
  return best;
}

const Kernels& kernels(Isa isa) {
  assert(supported(isa));
  switch (isa) {
    case Isa::kScalar:
      break;
    case Isa::kAvx2:
      return avx2::table();
    case Isa::kAvx512:
      return avx512::table();
  }
  return scalar::table();
}

int64_t quantized_bytes(ActivationForm form, int64_t cols) {
  assert(form != ActivationForm::kF32);
  const int64_t group = (form == ActivationForm::kInt16 ? 256 : 128) + 32;
  return round_up(ceil_div(cols, 4 * kBlock) * group, 64);
}

}  // namespace k3
