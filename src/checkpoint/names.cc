// Aliases, one component of the dotted name at a time.
#include "checkpoint/names.h"

namespace deepinfer {

std::string canonical_tensor_name(std::string_view name) {
  constexpr std::string_view kModel = "model.";
  if (name.starts_with(kModel)) name.remove_prefix(kModel.size());
  const bool block = name.starts_with("layers.") || name.starts_with("mtp.");
  std::string out;
  out.reserve(name.size());
  while (true) {
    const size_t dot = name.find('.');
    std::string_view part = name.substr(0, dot);
    const bool last = dot == std::string_view::npos;
    if (block && part == "self_attn") part = "attn";
    if (block && part == "mlp") part = "ffn";
    if (last && part == "weight_scale_inv") part = "scale";
    if (last && part == "e_score_correction_bias") part = "bias";
    out += part;
    if (last) return out;
    out += '.';
    name.remove_prefix(dot + 1);
  }
}

}  // namespace deepinfer
