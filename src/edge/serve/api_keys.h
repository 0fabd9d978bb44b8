// Who is asking: API keys, kept as hashes only, and the tenant each belongs to. Source: issue "the server" 2.
// Errors: kInvalidData with the line of the file; kNotFound for a key nobody has. Threads: immutable once
// loaded.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "base/status.h"

namespace deepinfer {

struct Caller {
  std::string tenant = "default";
  uint32_t tenant_number = 0;  // for the engine's fairness
  std::string key_id;          // first 12 digits of the key's hash; empty without keys
  double weight = 1;
  int priority = 0;
  bool admin = true;  // may do what touches every tenant; of a key file: only where it says so
  int64_t requests_per_minute = 0, tokens_per_minute = 0, output_tokens_per_minute = 0;  // 0: no limit
  int64_t concurrent = 0, kv_tokens = 0;                                                 // at a time
};

class ApiKeys {
 public:
  // Lines of `sha256:HEX tenant=NAME [weight=W] [priority=P] [requests_per_minute=N] [tokens_per_minute=N]
  // [output_tokens_per_minute=N] [concurrent=N] [kv_tokens=N] [admin=1]`; empty lines and lines starting with
  // # are skipped. `plain_key`: one more key of the tenant "default", may be empty.
  static Result<ApiKeys> parse(const std::string& text, const std::string& where,
                               const std::string& plain_key);
  bool required() const { return !by_hash_.empty(); }
  // Without keys everybody is the tenant "default".
  Result<Caller> find(const std::string& key) const;

 private:
  std::map<std::string, Caller> by_hash_;
};

// "sha256:HEX" of a key, as the file has it.
std::string hash_api_key(const std::string& key);

}  // namespace deepinfer
