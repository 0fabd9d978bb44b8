// Numbers of model specification 12.6, and the promise that every size ends within the token limit.
#include "model/images.h"

#include <gtest/gtest.h>

namespace deepinfer {
namespace {

TEST(ImagesGolden, Grids) {
  struct Row {
    int64_t w, h, fit_w, fit_h, patches_w, patches_h, tokens_w, tokens_h, span;
  };
  const VisionConfig v = builtin_config("v41-flash").value().vision;
  for (const Row& r :
       {Row{100, 100, 546, 546, 39, 39, 13, 13, 184}, Row{544, 544, 546, 546, 39, 39, 13, 13, 184},
        Row{640, 480, 644, 490, 46, 35, 16, 12, 206}, Row{300, 200, 672, 448, 48, 32, 16, 11, 189},
        Row{1920, 1080, 1708, 966, 122, 69, 41, 23, 968}, Row{4000, 3000, 1512, 1134, 108, 81, 36, 27, 1001},
        Row{1344, 1344, 1302, 1302, 93, 93, 31, 31, 994}, Row{10, 5000, 28, 12166, 2, 869, 1, 290, 582}}) {
    ImageGrid g = plan_image(r.w, r.h, v);
    EXPECT_EQ(g.width, r.fit_w) << r.w << "x" << r.h;
    EXPECT_EQ(g.height, r.fit_h) << r.w << "x" << r.h;
    EXPECT_EQ(g.patches_w, r.patches_w) << r.w << "x" << r.h;
    EXPECT_EQ(g.patches_h, r.patches_h) << r.w << "x" << r.h;
    EXPECT_EQ(g.tokens_w, r.tokens_w) << r.w << "x" << r.h;
    EXPECT_EQ(g.tokens_h, r.tokens_h) << r.w << "x" << r.h;
    EXPECT_EQ(g.span_tokens, r.span) << r.w << "x" << r.h;
  }
}

TEST(Images, EverySizeEndsWithinTheLimit) {
  std::vector<int64_t> sides = {1,   2,   3,   13,   14,   15,   41,   42,   43,   543,
                                544, 545, 546, 1000, 1343, 1344, 1345, 5000, 65535};
  for (int64_t side = 1; side <= int64_t{1} << 24; side *= 2) sides.push_back(side);
  for (int downsample : {1, 2, 3, 16}) {
    for (int limit : {4, 5, 6, 7, 64, 1024}) {
      for (double ratio : {0.0, 1.0, 3.5}) {
        VisionConfig v;
        v.downsample_ratio = downsample;
        v.max_image_tokens = limit;
        v.max_wh_ratio = ratio;
        for (int64_t w : sides) {
          for (int64_t h : sides) {
            ImageGrid g = plan_image(w, h, v);
            ASSERT_LE(g.span_tokens, limit) << w << "x" << h << " downsample " << downsample;
            ASSERT_GE(g.tokens_w, 1) << w << "x" << h;
            ASSERT_GE(g.tokens_h, 1) << w << "x" << h;
            ASSERT_EQ(g.width, g.patches_w * v.patch_size);
            ASSERT_EQ(g.height, g.patches_h * v.patch_size);
            ASSERT_EQ(g.span_tokens, g.tokens_h * (g.tokens_w + 1) + 2);
          }
        }
      }
    }
  }
}

TEST(Images, WidthIsCutAtTheRatioLimit) {
  VisionConfig v;
  v.max_wh_ratio = 2.0;
  ImageGrid wide = plan_image(10000, 500, v), allowed = plan_image(1000, 500, v);
  EXPECT_EQ(wide.width, allowed.width);
  EXPECT_EQ(wide.height, allowed.height);
  EXPECT_GT(plan_image(500, 10000, v).height,
            10 * plan_image(500, 10000, v).width);  // tall images are not limited
}

}  // namespace
}  // namespace deepinfer
