// The kernels for AVX-512 F, BW, DQ, VL, VNNI and VBMI. Everything but table() has internal
// linkage, and nothing inline from shared headers is called: the linker could otherwise choose this
// file's copy for code that must run on any machine.
#include <cassert>

#include "kernels/simd_avx512.h"
#include "kernels/targets.h"

namespace k3::avx512 {
namespace {
// Each builds on the ones before it.
// clang-format off
#include "kernels/elementwise.inc"
#include "kernels/gemm.inc"
#include "kernels/quantize.inc"
#include "kernels/matmul.inc"
#include "kernels/kda.inc"
#include "kernels/mla.inc"
#include "kernels/table.inc"
#include "kernels/ceilings.inc"
// clang-format on
}  // namespace

const Kernels& table() { return kTable; }
const Probes& probes() { return kProbes; }

}  // namespace k3::avx512
