// A window as bytes and back; no bytes make anything else than a window or an error.
#include "engine/window_record.h"

#include <gtest/gtest.h>

#include <cstring>
#include <random>

#include "model/config.h"

namespace deepinfer {
namespace {

WindowSnapshot slot() {
  ModelConfig c = *builtin_config("t0");
  return make_window_snapshot(c, make_cache_layout<float>(c, true));
}

WindowSnapshot sample(int64_t boundary, int64_t held) {
  WindowSnapshot w = slot();
  w.boundary = boundary;
  std::mt19937_64 random(5);
  for (RecordRing& r : w.rings) {
    for (int64_t p = boundary - held; p < boundary; ++p) {
      std::vector<uint8_t> codes(static_cast<size_t>(r.code_bytes())),
          scales(static_cast<size_t>(r.scale_bytes()));
      for (uint8_t& b : codes) b = static_cast<uint8_t>(random());
      for (uint8_t& b : scales) b = static_cast<uint8_t>(random());
      r.put(p, codes.data(), scales.data());
    }
  }
  return w;
}

TEST(WindowRecord, RoundTrip) {
  int slots = slot().rings[0].slots();
  for (auto [boundary, held] : {std::pair<int64_t, int64_t>{1000, slots}, {slots / 2, slots / 2}, {64, 3}}) {
    WindowSnapshot w = sample(boundary, held), back = slot();
    std::vector<uint8_t> bytes = encode_window(w);
    EXPECT_EQ(static_cast<int64_t>(bytes.size()), window_record_bytes(w));
    ASSERT_TRUE(decode_window(bytes, boundary, &back).ok());
    EXPECT_EQ(back.boundary, boundary);
    for (size_t l = 0; l < w.rings.size(); ++l) {
      for (int64_t p = std::max<int64_t>(0, boundary - slots); p < boundary; ++p) {
        ASSERT_EQ(back.rings[l].holds(p), w.rings[l].holds(p));
        if (!w.rings[l].holds(p)) continue;
        EXPECT_EQ(std::memcmp(back.rings[l].codes(p), w.rings[l].codes(p),
                              static_cast<size_t>(w.rings[l].code_bytes())),
                  0);
        EXPECT_EQ(std::memcmp(back.rings[l].scales(p), w.rings[l].scales(p),
                              static_cast<size_t>(w.rings[l].scale_bytes())),
                  0);
      }
    }
    EXPECT_EQ(encode_window(back), bytes);
  }
}

TEST(WindowRecord, OtherBytesAreRefused) {
  WindowSnapshot w = sample(1000, 20), to = slot();
  std::vector<uint8_t> bytes = encode_window(w);
  EXPECT_FALSE(decode_window(bytes, 1128, &to).ok());  // another boundary
  EXPECT_FALSE(decode_window(std::span(bytes).first(bytes.size() - 1), 1000, &to).ok());
  EXPECT_FALSE(decode_window({}, 1000, &to).ok());
  bytes[24] = 7;  // a slot is held or not
  EXPECT_FALSE(decode_window(bytes, 1000, &to).ok());
  // A position before the prompt's beginning.
  std::vector<uint8_t> early = encode_window(sample(2, 2));
  early[24] = 1;
  EXPECT_FALSE(decode_window(early, 2, &to).ok());
  std::mt19937_64 random(9);
  for (int round = 0; round < 200; ++round) {
    std::vector<uint8_t> noise(bytes.size());
    for (uint8_t& b : noise) b = static_cast<uint8_t>(random());
    EXPECT_FALSE(decode_window(noise, 1000, &to).ok());
  }
}

}  // namespace
}  // namespace deepinfer
