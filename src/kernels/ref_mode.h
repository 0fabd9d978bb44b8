// The vendor reference's rounding points, simulated in double precision: what bf16 activations, quantised
// product inputs and bf16 index scores alone do to the results. It is the yardstick for native mode
// (`deepinfer selfcheck`), never a way to serve. Source: model specification 8.5.
#pragma once

#include "kernels/kernels.h"

namespace deepinfer {

// Math mode's table with every rounding point of 8.5 put in.
const Kernels<double>& ref_mode_kernels();

}  // namespace deepinfer
