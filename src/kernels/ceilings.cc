#include "kernels/ceilings.h"

#include <cassert>
#include <chrono>
#include <ctime>

#include "kernels/targets.h"

namespace k3 {
namespace {

const Probes& probes(Isa isa) {
  assert(supported(isa));
  switch (isa) {
    case Isa::kScalar:
      break;
    case Isa::kAvx2:
      return avx2::probes();
    case Isa::kAvx512:
      return avx512::probes();
  }
  return scalar::probes();
}

double thread_seconds() {
  timespec t;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
}

// Repeats `work`, which says how much it did, until the time is up. `sink` is what the compiler
// must believe to be wanted.
template <class Work>
Ceiling repeat(double seconds, Work work) {
  using Clock = std::chrono::steady_clock;
  Ceiling c;
  const auto start = Clock::now();
  const double cpu_start = thread_seconds();
  do {
    c.amount += work();
    c.seconds = std::chrono::duration<double>(Clock::now() - start).count();
  } while (c.seconds < seconds);
  c.cpu_seconds = thread_seconds() - cpu_start;
  return c;
}

constexpr int64_t kRounds = 20000;  // tens of microseconds to a few milliseconds

}  // namespace

Ceiling read_ceiling(Isa isa, const void* buffer, int64_t bytes, double seconds) {
  assert(bytes >= 4096);
  volatile int64_t sink = 0;
  return repeat(seconds, [&] {
    sink = probes(isa).read(buffer, bytes);
    return static_cast<double>(bytes / 256 * 256);
  });
}

Ceiling fma_ceiling(Isa isa, double seconds) {
  volatile double sink = 0;
  return repeat(seconds, [&] {
    sink = probes(isa).fma(kRounds, 1.5f);
    return static_cast<double>(kRounds * probes(isa).flops_per_round);
  });
}

Ceiling dot_ceiling(Isa isa, double seconds) {
  volatile int64_t sink = 0;
  return repeat(seconds, [&] {
    sink = probes(isa).dot(kRounds, 0);
    return static_cast<double>(kRounds * probes(isa).ops_per_round);
  });
}

}  // namespace k3
