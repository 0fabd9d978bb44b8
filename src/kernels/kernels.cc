// Which table serves which activation type. Source: kernels.h.
#include "kernels/kernels.h"

namespace deepinfer {

template <>
const Kernels<double>& kernels<double>() {
  return reference_kernels<double>();
}

template <>
const Kernels<float>& kernels<float>() {
  return reference_kernels<float>();
}

std::vector<std::string> instruction_levels() {
  return {"reference"};
}
std::string instruction_level() {
  return "reference";
}
bool set_instruction_level(const std::string& name) {
  return name == "reference";
}

}  // namespace deepinfer
