// Tests of the store: a directory of their own, made-up keys and payloads, small options.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <string>
#include <vector>

#include "store/directory_store.h"

namespace deepinfer::store {

class TestDirectory {
 public:
  TestDirectory() {
    std::string base = std::filesystem::temp_directory_path().string() + "/di_store_XXXXXX";
    path_ = ::mkdtemp(base.data());
  }
  ~TestDirectory() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

inline uint64_t mix(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

// Block i of chain c.
inline Key test_key(uint64_t c, uint64_t i) {
  Key k;
  for (uint64_t w = 0; w < 4; ++w) k.words[w] = mix(c * 1000003 + i * 7 + w * 0x1234567 + 1);
  return k;
}
inline std::vector<Key> test_chain(uint64_t c, size_t n) {
  std::vector<Key> out;
  for (size_t i = 0; i < n; ++i) out.push_back(test_key(c, i));
  return out;
}
// The only bytes that may ever be seen under a key.
inline std::vector<uint8_t> test_payload(const Key& key, Kind kind, size_t bytes) {
  std::vector<uint8_t> out(bytes);
  uint64_t x = key.words[1] + static_cast<uint64_t>(kind);
  for (size_t i = 0; i < bytes; ++i) {
    if (i % 8 == 0) x = mix(x + i);
    out[i] = static_cast<uint8_t>(x >> (8 * (i % 8)));
  }
  return out;
}

inline ObjectMeta test_meta(uint64_t c, uint64_t i, int64_t bytes, Kind kind = Kind::kBlock) {
  ObjectMeta m;
  m.kind = kind;
  m.key = test_key(c, i);
  m.parent = kind == Kind::kWindow ? m.key : i > 0 ? test_key(c, i - 1) : Key{};
  m.first = kind == Kind::kBlock && i == 0;
  m.depth = static_cast<uint32_t>(i);
  m.payload_bytes = bytes;
  return m;
}

inline DirectoryOptions test_options(const std::string& path) {
  DirectoryOptions o;
  o.path = path;
  o.segment_bytes = 1 << 20;
  o.read_memory_bytes = 1 << 20;
  o.refresh_ns = 3'600'000'000'000;  // only when asked
  o.grace_ns = 0;
  return o;
}

// Blocks [from, to) of a chain, all or an error.
inline Status put_chain(KvStore* s, uint64_t c, size_t from, size_t to, int64_t bytes) {
  for (size_t i = from; i < to; ++i) {
    ObjectMeta m = test_meta(c, i, bytes);
    DI_TRY(put_one(s, m, test_payload(m.key, m.kind, static_cast<size_t>(bytes))));
  }
  return {};
}
// How many leading blocks of the chain come back right; a wrong byte is a failure of the test.
inline size_t read_chain(KvStore* s, uint64_t c, size_t n, int64_t bytes) {
  Match m = s->match(test_chain(c, n));
  size_t good = 0;
  for (; good < static_cast<size_t>(m.blocks); ++good) {
    Key key = test_key(c, good);
    Result<std::vector<uint8_t>> got = get_one(s, Kind::kBlock, key, bytes);
    if (!got.ok()) break;
    EXPECT_EQ(*got, test_payload(key, Kind::kBlock, static_cast<size_t>(bytes)));
  }
  s->release(m.lease);
  return good;
}

}  // namespace deepinfer::store
