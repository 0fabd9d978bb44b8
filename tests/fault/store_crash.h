// What the killed writer and its test agree on: sizes, options, and what a right prefix looks like.
#pragma once

#include "store/test_support.h"

namespace deepinfer::store {

inline int64_t crash_size(uint64_t c, uint64_t i, Kind kind) {
  return static_cast<int64_t>(300 + mix(c * 977 + i * 13 + static_cast<uint64_t>(kind)) % 9000);
}

inline DirectoryOptions crash_options(const std::string& dir) {
  DirectoryOptions o;
  o.path = dir;
  o.segment_bytes = 192 << 10;
  o.read_memory_bytes = 1 << 20;
  o.write_memory_bytes = 1 << 20;
  o.refresh_ns = 3'000'000;
  o.heartbeat_ns = 10'000'000;
  o.silent_ns = 150'000'000;
  o.grace_ns = 20'000'000;
  o.manifest_bytes = 96 * 300;
  return o;
}

// Reads everything the store says it has of a chain; empty, or what is wrong with it.
inline std::string crash_check(KvStore* s, uint64_t c, size_t* whole = nullptr) {
  Match m = s->match(test_chain(c, 12));
  size_t good = 0;
  std::string bad;
  for (uint64_t i = 0; i < static_cast<uint64_t>(m.blocks) && bad.empty(); ++i) {
    for (Kind kind : {Kind::kBlock, Kind::kWindow}) {
      if (kind == Kind::kWindow &&
          std::find(m.windows.begin(), m.windows.end(), static_cast<int64_t>(i) + 1) == m.windows.end())
        continue;
      Key key = test_key(c, i);
      int64_t size = crash_size(c, i, kind);
      Result<std::vector<uint8_t>> got = get_one(s, kind, key, size);
      if (!got.ok()) continue;  // absent is right
      if (*got != test_payload(key, kind, static_cast<size_t>(size)))
        bad = fmt::format("chain {} block {} kind {}: wrong bytes", c, i, static_cast<int>(kind));
      good += kind == Kind::kBlock && good == i ? 1 : 0;
    }
  }
  s->release(m.lease);
  if (whole != nullptr) *whole = good;
  return bad;
}

}  // namespace deepinfer::store
