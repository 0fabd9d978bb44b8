// The economics as one interactive page: inputs to change, results that follow. The page's script repeats the
// formulas of economics.cc; a test holds that both name the same results. Needs nothing from outside.
#pragma once

#include <string>

#include "sim/economics.h"

namespace deepinfer::sim {

std::string economics_page(const FactoryInput& in, const CostInput& cost);

}  // namespace deepinfer::sim
