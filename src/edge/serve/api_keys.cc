// Reads the key file of edge/serve/api_keys.h.
#include "edge/serve/api_keys.h"

#include <algorithm>
#include <cctype>
#include <cmath>
#include <cstdlib>
#include <sstream>

#include "base/sha256.h"

namespace deepinfer {
namespace {

bool is_hash(const std::string& word) {
  if (word.size() != 7 + 64 || word.rfind("sha256:", 0) != 0) return false;
  for (size_t i = 7; i < word.size(); ++i) {
    if (!std::isdigit(static_cast<unsigned char>(word[i])) && !(word[i] >= 'a' && word[i] <= 'f'))
      return false;
  }
  return true;
}

Status set(Caller* c, const std::string& key, const std::string& value, const std::string& place) {
  if (key == "tenant") {
    c->tenant = value;
    return value.empty() ? error(Code::kInvalidData, "{}: tenant needs a name", place) : Status();
  }
  char* end = nullptr;
  const double v = std::strtod(value.c_str(), &end);
  const bool good = !value.empty() && *end == '\0' && std::isfinite(v) && std::abs(v) <= 1e15;
  if (!good) return error(Code::kInvalidData, "{}: {} needs a number, not '{}'", place, key, value);
  if (key == "priority") {
    c->priority = static_cast<int>(std::max(-1000.0, std::min(1000.0, v)));
    return {};
  }
  if (key == "admin") {
    c->admin = v != 0;
    return {};
  }
  if (v < 0) return error(Code::kInvalidData, "{}: {} must not be negative", place, key);
  if (key == "weight") {
    c->weight = v;
    return v > 0 ? Status() : error(Code::kInvalidData, "{}: weight must be above 0", place);
  }
  int64_t* limit = key == "requests_per_minute"        ? &c->requests_per_minute
                   : key == "tokens_per_minute"        ? &c->tokens_per_minute
                   : key == "output_tokens_per_minute" ? &c->output_tokens_per_minute
                   : key == "concurrent"               ? &c->concurrent
                   : key == "kv_tokens"                ? &c->kv_tokens
                                                       : nullptr;
  if (limit == nullptr)
    return error(Code::kInvalidData,
                 "{}: unknown setting '{}'; there are tenant, weight, priority, requests_per_minute, "
                 "tokens_per_minute, output_tokens_per_minute, concurrent, kv_tokens, admin",
                 place, key);
  *limit = static_cast<int64_t>(v);
  return {};
}

}  // namespace

namespace {
// The same for as long as the tenant has its name, also when the file is read again.
uint32_t tenant_number(const std::string& tenant) {
  if (tenant == "default") return 0;
  const Digest d = sha256(tenant);
  uint32_t n = 0;
  for (size_t i = 0; i < 4; ++i) n = n << 8 | static_cast<uint8_t>(d[i]);
  return std::max<uint32_t>(n, 1);
}
}  // namespace

std::string hash_api_key(const std::string& key) {
  Digest d = sha256(key);
  return "sha256:" + to_hex(d);
}

Result<ApiKeys> ApiKeys::parse(const std::string& text, const std::string& where,
                               const std::string& plain_key) {
  ApiKeys keys;
  std::istringstream lines(text);
  std::string line;
  for (int number = 1; std::getline(lines, line); ++number) {
    std::istringstream words(line);
    std::string word;
    if (!(words >> word) || word[0] == '#') continue;
    const std::string place = where + ":" + std::to_string(number);
    if (!is_hash(word))
      return error(Code::kInvalidData,
                   "{}: a line starts with sha256: and 64 hexadecimal digits; make one with: printf %s KEY | "
                   "sha256sum",
                   place);
    Caller c;
    c.admin = false;
    c.key_id = word.substr(7, 12);
    const std::string hash = word;
    while (words >> word) {
      size_t equals = word.find('=');
      DI_TRY(set(&c, word.substr(0, equals), equals == word.npos ? std::string() : word.substr(equals + 1),
                 place));
    }
    c.tenant_number = tenant_number(c.tenant);
    if (!keys.by_hash_.emplace(hash, c).second)
      return error(Code::kInvalidData, "{}: this key is there twice", place);
  }
  if (!plain_key.empty()) {
    Caller c;
    std::string hash = hash_api_key(plain_key);
    c.key_id = hash.substr(7, 12);
    keys.by_hash_.emplace(hash, c);
  }
  return keys;
}

Result<Caller> ApiKeys::find(const std::string& key) const {
  if (!required()) return Caller();
  if (key.empty())
    return error(Code::kNotFound,
                 "an API key is required: send Authorization: Bearer KEY (or x-api-key: KEY)");
  // Looked up by the digest: how long the comparison takes says nothing about a key.
  auto it = by_hash_.find(hash_api_key(key));
  if (it == by_hash_.end()) return error(Code::kNotFound, "this API key is not known here");
  return it->second;
}

}  // namespace deepinfer
