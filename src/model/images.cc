// The resize plan, step by step as model specification 7.1 numbers it. Double arithmetic in the order of the
// reference's image processor: a product written otherwise can fall on the other side of a floor and change
// the grid by one patch.
#include "model/images.h"

#include <algorithm>
#include <cmath>

#include "base/check.h"

namespace deepinfer {
namespace {

int64_t ceil_div(int64_t a, int64_t b) {
  return (a + b - 1) / b;
}

void fit(ImageGrid& grid, int64_t width, int64_t height, const VisionConfig& v) {
  grid.width = width;
  grid.height = height;
  grid.patches_w = width / v.patch_size;
  grid.patches_h = height / v.patch_size;
  grid.tokens_w = ceil_div(grid.patches_w, v.downsample_ratio);
  grid.tokens_h = ceil_div(grid.patches_h, v.downsample_ratio);
  grid.span_tokens = grid.tokens_h * (grid.tokens_w + 1) + 2;
}

// Step 4: the largest grid of about the same shape whose span fits in max_image_tokens.
void shrink(ImageGrid& grid, double w, double h, const VisionConfig& v) {
  const int64_t patch = v.patch_size;
  const int64_t cell = patch * v.downsample_ratio;
  const int64_t limit = v.max_image_tokens;
  const double ratio = h / w;
  const double most_w = std::sqrt(static_cast<double>(limit - 2) / ratio + 0.25) - 0.5;
  const double most_h = most_w * ratio;
  if (most_w < 1.0) return fit(grid, cell, (limit - 2) / 2 * cell, v);
  if (most_h < 1.0) return fit(grid, (limit - 3) * cell, cell, v);
  const double scale = std::min(std::floor(most_w) * static_cast<double>(cell) / w,
                                std::floor(most_h) * static_cast<double>(cell) / h);
  auto side = [&](double length) {
    auto patches = static_cast<int64_t>(std::floor(length * scale / static_cast<double>(patch)));
    return std::max<int64_t>(patches, 1) * patch;  // a downsample_ratio of 1 can round a thin side to nothing
  };
  fit(grid, side(w), side(h), v);
}

}  // namespace

ImageGrid plan_image(int64_t w, int64_t h, const VisionConfig& v) {
  constexpr int64_t kMaxSide = int64_t{1} << 24;
  DI_CHECK(w >= 1 && h >= 1 && w <= kMaxSide && h <= kMaxSide,
           "image sides must be between 1 and 2^24 pixels");
  auto width = static_cast<double>(w), height = static_cast<double>(h);
  if (v.max_wh_ratio > 0.0 && width > height * v.max_wh_ratio) width = height * v.max_wh_ratio;
  const auto min_pixels = static_cast<double>(v.min_pixels);
  if (width * height < min_pixels) {
    const double grow = std::sqrt(min_pixels / (width * height));
    width = std::trunc(width * grow);
    height = std::trunc(height * grow);
  }
  const double patch = v.patch_size;
  ImageGrid grid;
  fit(grid, static_cast<int64_t>(std::ceil(width / patch)) * v.patch_size,
      static_cast<int64_t>(std::ceil(height / patch)) * v.patch_size, v);
  if (grid.span_tokens > v.max_image_tokens) shrink(grid, width, height, v);
  return grid;
}

}  // namespace deepinfer
