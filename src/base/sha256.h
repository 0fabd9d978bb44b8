// SHA-256 of bytes in pieces: the identity of cached blocks and of files. Uses the system's OpenSSL (hardware
// instructions where there are). Threads: one object per thread of use.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

namespace deepinfer {

using Digest = std::array<uint8_t, 32>;

class Sha256 {
 public:
  Sha256();
  ~Sha256();
  Sha256(Sha256&&) noexcept;
  Sha256& operator=(Sha256&&) noexcept;
  Sha256& update(const void* data, size_t bytes);
  Sha256& update(std::string_view text) { return update(text.data(), text.size()); }
  // The digest of everything so far; the object starts anew.
  Digest finish();

 private:
  struct Context;
  std::unique_ptr<Context> context_;
};

Digest sha256(std::string_view bytes);
std::string to_hex(std::span<const uint8_t> bytes);

}  // namespace deepinfer
