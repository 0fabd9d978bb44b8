// Grid arithmetic of images: fitted size, patch grid, token grid and span length. No pixels.
// Source: model specification 7.1, 7.4, 12.6.
#pragma once

#include <cstdint>

#include "model/config.h"

namespace deepinfer {

struct ImageGrid {
  int64_t width = 0, height = 0;            // fitted pixels
  int64_t patches_w = 0, patches_h = 0;
  int64_t tokens_w = 0, tokens_h = 0;
  int64_t span_tokens = 0;                  // tokens_h * (tokens_w + 1) + 2
};
// REQUIRES w, h >= 1 (callers refuse empty images). Any size up to 2^24 per side ends within the token limit.
ImageGrid plan_image(int64_t w, int64_t h, const VisionConfig& vision);

}  // namespace deepinfer
