// What a core can do at best: the figures that speeds are compared with.
//
//   const Ceiling read = read_ceiling(best_isa(), buffer, bytes, 0.2);   // on this thread
//   printf("%.1f GB/s\n", read.rate() / 1e9);
//
// A probe keeps the calling thread busy for about `seconds`. For the ceiling of several threads run
// it on each at once and add the rates. Measure in the same minute as what is compared: shared
// machines change.
#pragma once

#include <cstdint>

#include "kernels/kernels.h"

namespace k3 {

struct Ceiling {
  double amount = 0;       // bytes read, or operations done (a fused multiply-add is two)
  double seconds = 0;      // by the clock
  double cpu_seconds = 0;  // that this thread was running
  double rate() const { return amount / seconds; }
};

// Reads the buffer over and over, in four streams with prefetch; one much larger than the caches
// gives the memory's rate. `bytes` is at least 4096.
Ceiling read_ceiling(Isa isa, const void* buffer, int64_t bytes, double seconds);
// fp32 fused multiply-adds from registers.
Ceiling fma_ceiling(Isa isa, double seconds);
// Dot products of bytes into int32 from registers, as the integer kernels do them.
Ceiling dot_ceiling(Isa isa, double seconds);

}  // namespace k3
