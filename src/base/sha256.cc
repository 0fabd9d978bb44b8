// A thin wrapper over OpenSSL's message digests.
#include "base/sha256.h"

#include <openssl/evp.h>

#include "base/check.h"

namespace deepinfer {

struct Sha256::Context {
  Context() : md(EVP_MD_CTX_new()) { start(); }
  ~Context() { EVP_MD_CTX_free(md); }
  void start() {
    DI_CHECK(md != nullptr && EVP_DigestInit_ex(md, EVP_sha256(), nullptr) == 1, "OpenSSL has no SHA-256");
  }
  EVP_MD_CTX* md;
};

Sha256::Sha256() : context_(std::make_unique<Context>()) {}
Sha256::~Sha256() = default;
Sha256::Sha256(Sha256&&) noexcept = default;
Sha256& Sha256::operator=(Sha256&&) noexcept = default;

Sha256& Sha256::update(const void* data, size_t bytes) {
  DI_CHECK(EVP_DigestUpdate(context_->md, data, bytes) == 1, "SHA-256 update");
  return *this;
}

Digest Sha256::finish() {
  Digest d;
  DI_CHECK(EVP_DigestFinal_ex(context_->md, d.data(), nullptr) == 1, "SHA-256 final");
  context_->start();
  return d;
}

Digest sha256(std::string_view bytes) {
  return Sha256().update(bytes).finish();
}

std::string to_hex(std::span<const uint8_t> bytes) {
  std::string s;
  for (uint8_t b : bytes) {
    s += "0123456789abcdef"[b >> 4];
    s += "0123456789abcdef"[b & 15];
  }
  return s;
}

}  // namespace deepinfer
