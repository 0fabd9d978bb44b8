// The canonical serialisation: little endian, tagged and length-prefixed fields for the root, raw words for
// tokens.
#include "model/prefix_key.h"

namespace deepinfer {
namespace {

template <typename U>
void put(std::string* out, U v) {
  for (size_t i = 0; i < sizeof(U); ++i) out->push_back(static_cast<char>(v >> (8 * i) & 0xff));
}

}  // namespace

Digest prefix_root(const PrefixIdentity& id) {
  std::string bytes = "dpi-kv";
  bytes.push_back('\x01');
  const std::string* fields[] = {&id.name_space, &id.weights,        &id.tokenizer, &id.layout,
                                 &id.precision,  &id.attention_mode, &id.salt};
  uint8_t tag = 1;
  for (const std::string* f : fields) {
    put(&bytes, tag++);
    put(&bytes, static_cast<uint32_t>(f->size()));
    bytes += *f;
  }
  return sha256(bytes);
}

Digest prefix_block(const Digest& parent, std::span<const int32_t> tokens,
                    std::span<const PrefixItem> items) {
  std::string bytes(parent.begin(), parent.end());
  bytes.reserve(bytes.size() + 4 * tokens.size() + 2 + 40 * items.size());
  for (int32_t t : tokens) put(&bytes, static_cast<uint32_t>(t));
  put(&bytes, static_cast<uint16_t>(items.size()));
  for (const PrefixItem& item : items) {
    bytes.append(item.digest.begin(), item.digest.end());
    put(&bytes, static_cast<uint32_t>(item.offset));
    put(&bytes, item.length);
  }
  return sha256(bytes);
}

std::vector<Digest> prefix_chain(const Digest& root, std::span<const int32_t> tokens, int block_tokens) {
  std::vector<Digest> keys;
  Digest parent = root;
  size_t n = static_cast<size_t>(block_tokens);
  for (size_t at = 0; at + n <= tokens.size(); at += n) {
    parent = prefix_block(parent, tokens.subspan(at, n));
    keys.push_back(parent);
  }
  return keys;
}

}  // namespace deepinfer
