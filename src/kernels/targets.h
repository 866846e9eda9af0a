// The tables of the targets, for dispatch.cc.
#pragma once

#include "kernels/kernels.h"

namespace k3::scalar {
const Kernels& table();
}
namespace k3::avx2 {
const Kernels& table();
}
namespace k3::avx512 {
const Kernels& table();
}
