// A 64-bit digest of a tensor's bytes that pieces of it can be computed in any order and by any thread. It
// finds damage (a flipped bit, swapped rows, a zeroed page); it is no defence against someone who forges it
// on purpose. Each 8-byte word is mixed with its index and the results are added: addition makes the order of
// pieces irrelevant. Threads: pure functions.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>

namespace deepinfer {

// Written into the metadata of a safetensors file beside "digest.NAME" for each tensor; another value means:
// digests of another kind.
inline constexpr const char* kDigestFormatKey = "digest_format";
inline constexpr const char* kDigestFormat = "deepinfer-words-1";
inline std::string digest_key(const std::string& tensor) {
  return "digest." + tensor;
}
// For the small files beside the weights, in the first shard.
inline std::string file_digest_key(const std::string& file) {
  return "file_digest." + file;
}

// Digest of bytes that start at byte `offset` of the tensor. REQUIRES offset % 8 == 0; only the last piece of
// a tensor may have a length that is no multiple of 8. The digest of a whole is the sum of its pieces.
inline uint64_t piece_digest(const uint8_t* bytes, size_t n, uint64_t offset) {
  static_assert(std::endian::native == std::endian::little, "words are read as they lie in the file");
  uint64_t sum = 0, index = offset / 8;
  for (size_t i = 0; i < n; i += 8) {
    uint64_t word = 0;
    std::memcpy(&word, bytes + i, n - i < 8 ? n - i : 8);
    uint64_t z = word + ++index * 0x9E3779B97F4A7C15ull;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
    sum += z ^ (z >> 31);
  }
  return sum;
}

}  // namespace deepinfer
