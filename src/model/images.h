// Grid arithmetic of images: fitted size, patch grid, token grid and span length. No pixels.
// Source: model specification 7.1, 7.4, 12.6. Threads: pure function.
#pragma once

#include <cstdint>

#include "model/config.h"

namespace deepinfer {

struct ImageGrid {
  int64_t width = 0, height = 0;  // fitted pixels
  int64_t patches_w = 0, patches_h = 0;
  int64_t tokens_w = 0, tokens_h = 0;
  int64_t span_tokens = 0;  // tokens_h * (tokens_w + 1) + 2
};
// The plan of an image of w x h pixels: too small images grow to min_pixels, too large ones shrink until the
// span has at most max_image_tokens. REQUIRES 1 <= w, h <= 2^24 (callers refuse empty images). Only
// patch_size, downsample_ratio, max_image_tokens, min_pixels and max_wh_ratio are read, so it also works for
// a configuration without a vision tower.
ImageGrid plan_image(int64_t w, int64_t h, const VisionConfig& vision);

}  // namespace deepinfer
