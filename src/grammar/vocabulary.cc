// Building the trie and its summaries.
#include "grammar/vocabulary.h"

#include <algorithm>

#include "grammar/lexical.h"

namespace deepinfer::grammar {
namespace {

// Where a path of bytes from the root stands: 0 between characters, n > 0 inside one with n bytes to come, -1
// no UTF-8. The first continuation byte's narrower range is carried in the high bits.
struct Utf8Place {
  int left = 0;
  uint8_t lo = 0x80, hi = 0xBF;
};

Utf8Place advance(Utf8Place p, uint8_t b) {
  if (p.left < 0) return p;
  if (p.left > 0) {
    if (b < p.lo || b > p.hi) return {-1, 0, 0};
    return {p.left - 1, 0x80, 0xBF};
  }
  if (b < 0x80) return {};
  if (b >= 0xC2 && b <= 0xDF) return {1, 0x80, 0xBF};
  if (b >= 0xE0 && b <= 0xEF)
    return {2, b == 0xE0 ? uint8_t{0xA0} : uint8_t{0x80}, b == 0xED ? uint8_t{0x9F} : uint8_t{0xBF}};
  if (b >= 0xF0 && b <= 0xF4)
    return {3, b == 0xF0 ? uint8_t{0x90} : uint8_t{0x80}, b == 0xF4 ? uint8_t{0x8F} : uint8_t{0xBF}};
  return {-1, 0, 0};
}

}  // namespace

Vocabulary::Vocabulary() : store_(std::make_unique<LexicalStore>()) {}
Vocabulary::~Vocabulary() = default;

Result<std::shared_ptr<const Vocabulary>> Vocabulary::create(VocabularySpec spec) {
  auto n = static_cast<int32_t>(spec.bytes.size());
  std::shared_ptr<Vocabulary> v(new Vocabulary());
  v->is_text_.assign(spec.bytes.size(), false);
  v->is_stop_.assign(spec.bytes.size(), false);
  for (size_t i = 0; i < spec.bytes.size(); ++i) {
    if (spec.bytes[i].size() > 4096)
      return error(Code::kInvalidArgument, "token {} is longer than 4096 bytes", i);
    v->is_text_[i] = !spec.bytes[i].empty();
  }
  for (const std::vector<int32_t>* ids : {&spec.control, &spec.stop}) {
    for (int32_t id : *ids) {
      if (id < 0 || id >= n)
        return error(Code::kInvalidArgument, "token id {} is outside the vocabulary of {}", id, n);
      v->is_text_[static_cast<size_t>(id)] = false;
    }
  }
  for (int32_t id : spec.stop) v->is_stop_[static_cast<size_t>(id)] = true;
  v->spec_ = std::move(spec);
  v->text_mask_.assign(v->mask_words(), 0);
  bool any = false;
  for (int32_t id = 0; id < n; ++id) {
    if (!v->is_text(id)) continue;
    v->text_mask_[static_cast<size_t>(id) / 32] |= 1u << (id % 32);
    any = true;
  }
  if (!any) return Status(Code::kInvalidArgument, "the vocabulary has no text tokens");
  v->build_trie();
  v->store_->prepare(v->trie_, v->mask_words());
  return std::shared_ptr<const Vocabulary>(std::move(v));
}

void Vocabulary::build_trie() {
  TokenTrie& t = trie_;
  for (int32_t id = 0; id < size(); ++id) {
    if (is_text(id)) t.tokens.push_back(id);
  }
  auto unsigned_less = [&](int32_t a, int32_t b) {
    std::string_view x = bytes(a), y = bytes(b);
    int c = x.compare(y);  // char_traits<char> compares as unsigned bytes
    return c != 0 ? c < 0 : a < b;
  };
  std::sort(t.tokens.begin(), t.tokens.end(), unsigned_less);
  auto add_node = [&](uint8_t b, size_t depth, size_t token) {
    t.byte.push_back(b);
    t.depth.push_back(static_cast<uint16_t>(depth));
    t.token_at.push_back(static_cast<uint32_t>(token));
    t.end.push_back(0);
  };
  add_node(0, 0, 0);
  std::vector<uint32_t> open = {0};  // the path of the last token
  std::string_view last;
  for (size_t i = 0; i < t.tokens.size(); ++i) {
    std::string_view text = bytes(t.tokens[i]);
    size_t common = static_cast<size_t>(
        std::mismatch(last.begin(), last.end(), text.begin(), text.end()).first - last.begin());
    while (open.size() > common + 1) {
      t.end[open.back()] = t.size();
      open.pop_back();
    }
    for (size_t d = common; d < text.size(); ++d) {
      open.push_back(t.size());
      if (d == 0) t.root_child[static_cast<uint8_t>(text[0])] = t.size();
      add_node(static_cast<uint8_t>(text[d]), d + 1, i);
    }
    last = text;
  }
  for (uint32_t n : open) t.end[n] = t.size();
  t.token_at.push_back(static_cast<uint32_t>(t.tokens.size()));
  // Summaries, children before parents: what stands below, without the node itself.
  std::vector<Utf8Place> place(t.size());
  std::vector<uint32_t> parent(t.size(), 0), path;
  for (uint32_t n = 1; n < t.size(); ++n) {
    path.resize(t.depth[n]);
    parent[n] = t.depth[n] == 1 ? 0 : path[t.depth[n] - 2u];
    path[t.depth[n] - 1u] = n;
    place[n] = advance(place[parent[n]], t.byte[n]);
  }
  t.groups.assign(t.size(), 0);
  for (uint32_t n = t.size() - 1; n > 0; --n) {
    uint32_t own = byte_group(t.byte[n]);
    if (place[n].left < 0 || (place[n].left > 0 && t.token_at[n + 1] > t.token_at[n])) own |= kGroupIllFormed;
    t.groups[parent[n]] |= own | t.groups[n];
  }
  for (uint32_t n = 1; n < t.size(); ++n) {
    if (place[n].left != 0) t.groups[n] |= kGroupIllFormed;
  }
}

}  // namespace deepinfer::grammar
