// Positions in ascending order; a slot that holds nothing is zeros.
#include "engine/window_record.h"

#include <algorithm>
#include <cstring>

namespace deepinfer {
namespace {

constexpr uint64_t kMagic = 0x31574f444e495749;  // "IWINDOW1"
constexpr size_t kHeadBytes = 24;

size_t layer_bytes(const RecordRing& r) {
  return static_cast<size_t>(r.slots() * (1 + r.code_bytes() + r.scale_bytes()));
}

}  // namespace

int64_t window_record_bytes(const WindowSnapshot& slot) {
  size_t bytes = kHeadBytes;
  for (const RecordRing& r : slot.rings) bytes += layer_bytes(r);
  return static_cast<int64_t>(bytes);
}

std::vector<uint8_t> encode_window(const WindowSnapshot& w) {
  std::vector<uint8_t> out(static_cast<size_t>(window_record_bytes(w)));
  uint64_t head[3] = {kMagic, static_cast<uint64_t>(w.boundary), w.rings.size()};
  std::memcpy(out.data(), head, kHeadBytes);
  uint8_t* to = out.data() + kHeadBytes;
  for (const RecordRing& r : w.rings) {
    for (int i = 0; i < r.slots(); ++i) {
      int64_t p = w.boundary - r.slots() + i;
      bool held = p >= 0 && r.holds(p);
      *to++ = held ? 1 : 0;
      if (held) {
        std::memcpy(to, r.codes(p), static_cast<size_t>(r.code_bytes()));
        std::memcpy(to + r.code_bytes(), r.scales(p), static_cast<size_t>(r.scale_bytes()));
      }
      to += r.code_bytes() + r.scale_bytes();
    }
  }
  return out;
}

Status decode_window(std::span<const uint8_t> bytes, int64_t boundary, WindowSnapshot* slot) {
  uint64_t head[3] = {};
  if (static_cast<int64_t>(bytes.size()) != window_record_bytes(*slot))
    return error(Code::kInvalidData, "a window of {} bytes, {} expected", bytes.size(),
                 window_record_bytes(*slot));
  std::memcpy(head, bytes.data(), kHeadBytes);
  if (head[0] != kMagic || head[1] != static_cast<uint64_t>(boundary) || head[2] != slot->rings.size())
    return error(Code::kInvalidData, "not the window at {}", boundary);
  slot->boundary = boundary;
  const uint8_t* from = bytes.data() + kHeadBytes;
  for (RecordRing& r : slot->rings) {
    r.clear();
    for (int i = 0; i < r.slots(); ++i) {
      int64_t p = boundary - r.slots() + i;
      uint8_t held = *from++;
      if (held > 1 || (held == 1 && p < 0))
        return error(Code::kInvalidData, "the window at {} holds a position it cannot", boundary);
      if (held == 1) r.put(p, from, from + r.code_bytes());
      from += r.code_bytes() + r.scale_bytes();
    }
  }
  return {};
}

}  // namespace deepinfer
