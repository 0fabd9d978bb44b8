// Reads tokenizer.json. Everything that would change ids and is not understood is refused; a post-processor
// is not read, because tokens are never added implicitly (request edge specification 2.3).
#include <simdjson.h>

#include <fstream>
#include <sstream>

#include "text/tokenizer_impl.h"
#include "text/unicode.h"

namespace deepinfer {
namespace {

using simdjson::dom::array;
using simdjson::dom::element;
using simdjson::dom::object;

// Ids beyond this are a broken file, not a vocabulary.
constexpr int64_t kMaxId = 1 << 24;

constexpr std::string_view kDigits3 = R"(\p{N}{1,3})";
constexpr std::string_view kDigits1 = R"(\p{N})";
constexpr std::string_view kCjk = R"([\x{4E00}-\x{9FA5}\x{3040}-\x{309F}\x{30A0}-\x{30FF}]+)";
constexpr std::string_view kRest =
    R"([!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*)"
    R"(|\s*[\r\n]+|\s+(?!\S)|\s+)";

// Patterns are compared after the escapes that only spell a character (\r \n \x{H} \uHHHH) are replaced by
// it: files differ there.
std::string plain_pattern(std::string_view p) {
  std::string out;
  for (size_t i = 0; i < p.size(); ++i) {
    if (p[i] != '\\' || i + 1 == p.size()) {
      out += p[i];
      continue;
    }
    char kind = p[++i];
    std::string_view hex;
    size_t close = p.find('}', i);
    if (kind == 'x' && i + 1 < p.size() && p[i + 1] == '{' && close != p.npos) {
      hex = p.substr(i + 2, close - i - 2);
      i = close;
    } else if (kind == 'u' && i + 4 < p.size()) {
      hex = p.substr(i + 1, 4);
      i += 4;
    }
    if (!hex.empty() && hex.size() <= 6 && hex.find_first_not_of("0123456789abcdefABCDEF") == hex.npos) {
      append_utf8(static_cast<uint32_t>(std::stoul(std::string(hex), nullptr, 16)), &out);
    } else if (kind == 'r' || kind == 'n') {
      out += kind == 'r' ? '\r' : '\n';
    } else {
      out += '\\';
      out += kind;
      out += hex;
    }
  }
  return out;
}

// The 256 visible characters that stand for bytes, as code points (request edge specification 2.2).
std::array<uint32_t, 256> byte_alphabet() {
  std::array<uint32_t, 256> table{};
  uint32_t next = 0x100;
  for (uint32_t b = 0; b < 256; ++b) {
    bool visible = (b >= 0x21 && b <= 0x7e) || (b >= 0xa1 && b <= 0xac) || b >= 0xae;
    table[b] = visible ? b : next++;
  }
  return table;
}

class Loader {
 public:
  explicit Loader(std::string where) : where_(std::move(where)) {
    auto alphabet = byte_alphabet();
    byte_of_.assign(0x144, -1);
    for (int b = 0; b < 256; ++b) byte_of_[alphabet[static_cast<size_t>(b)]] = b;
  }

  Result<Tokenizer> load(std::string_view json) {
    simdjson::dom::parser parser;
    element root;
    if (auto e = parser.parse(json.data(), json.size()).get(root); e != simdjson::SUCCESS) {
      return bad("", simdjson::error_message(e));
    }
    if (!root.is_object()) return bad("", "is not a JSON object");
    DI_TRY(check_absent(root, "truncation"));
    DI_TRY(check_absent(root, "padding"));
    DI_TRY(normalizer(root));
    DI_TRY(decoder(root));
    DI_TRY(pre_tokenizer(root));
    DI_TRY(added_tokens(root));
    DI_TRY(model(root));
    return Tokenizer(std::move(impl_));
  }

 private:
  Status bad(const std::string& path, std::string_view what) const {
    return path.empty() ? error(Code::kInvalidData, "{}: {}", where_, what)
                        : error(Code::kInvalidData, "{}: {}: {}", where_, path, what);
  }
  static bool null_or_missing(const element& parent, const char* name) {
    element e;
    return parent.at_key(name).get(e) != simdjson::SUCCESS || e.is_null();
  }
  Status check_absent(const element& root, const char* name) const {
    return null_or_missing(root, name) ? Status() : bad(name, "must be null: it would change the ids");
  }
  static std::string_view text(const element& parent, const char* name) {
    std::string_view s;
    return parent.at_key(name).get(s) == simdjson::SUCCESS ? s : std::string_view();
  }
  static bool flag(const element& parent, const char* name, bool fallback) {
    bool b;
    return parent.at_key(name).get(b) == simdjson::SUCCESS ? b : fallback;
  }

  Status normalizer(const element& root) const {
    if (null_or_missing(root, "normalizer")) return {};
    array list;
    element n = root["normalizer"];
    if (text(n, "type") == "Sequence" && n.at_key("normalizers").get(list) == simdjson::SUCCESS &&
        list.size() == 0)
      return {};
    return bad("normalizer", "only an absent or empty normaliser is supported");
  }

  Status decoder(const element& root) const {
    if (null_or_missing(root, "decoder") || text(root["decoder"], "type") == "ByteLevel") return {};
    return bad("decoder", "only the ByteLevel decoder is supported");
  }

  Status pre_tokenizer(const element& root) {
    const std::string path = "pre_tokenizer";
    if (null_or_missing(root, "pre_tokenizer")) return bad(path, "is missing");
    array parts;
    if (text(root["pre_tokenizer"], "type") != "Sequence" ||
        root["pre_tokenizer"].at_key("pretokenizers").get(parts) != simdjson::SUCCESS || parts.size() != 4) {
      return bad(path, "must be a Sequence of three Split steps and ByteLevel");
    }
    size_t i = 0;
    for (element part : parts) {
      std::string here = fmt::format("{}.pretokenizers[{}]", path, i);
      DI_TRY(i < 3 ? split(part, here, i) : byte_level(part, here));
      ++i;
    }
    return {};
  }

  Status split(const element& part, const std::string& path, size_t index) {
    if (text(part, "type") != "Split" || text(part, "behavior") != "Isolated" ||
        flag(part, "invert", false)) {
      return bad(path, "must be a Split with behaviour Isolated, not inverted");
    }
    element pattern;
    if (part.at_key("pattern").get(pattern) != simdjson::SUCCESS) return bad(path, "has no pattern");
    std::string found = plain_pattern(text(pattern, "Regex"));
    if (index == 0 && found == kDigits3) {
      impl_->digits = DigitRule::kUpToThree;
    } else if (index == 0 && found == kDigits1) {
      impl_->digits = DigitRule::kSingle;
    } else if (index == 0 || found != plain_pattern(index == 1 ? kCjk : kRest)) {
      return bad(path + ".pattern.Regex",
                 fmt::format("unknown pattern '{}'; only the DeepSeek patterns are supported", found));
    }
    return {};
  }

  Status byte_level(const element& part, const std::string& path) const {
    if (text(part, "type") == "ByteLevel" && !flag(part, "add_prefix_space", true) &&
        !flag(part, "use_regex", true))
      return {};
    return bad(path, "must be ByteLevel with add_prefix_space false and use_regex false");
  }

  Status added_tokens(const element& root) {
    if (null_or_missing(root, "added_tokens")) return {};
    array list;
    if (root["added_tokens"].get(list) != simdjson::SUCCESS) return bad("added_tokens", "must be an array");
    size_t i = 0;
    for (element t : list) {
      std::string path = fmt::format("added_tokens[{}]", i++);
      int64_t id = -1;
      if (t.at_key("id").get(id) != simdjson::SUCCESS || id < 0 || id > kMaxId)
        return bad(path + ".id", "must be an id");
      std::string content(text(t, "content"));
      if (content.empty()) return bad(path + ".content", "must be a non-empty string");
      if (flag(t, "single_word", false) || flag(t, "lstrip", false) || flag(t, "rstrip", false)) {
        return bad(path, "single_word, lstrip and rstrip are not supported");
      }
      impl_->added.push_back({static_cast<int32_t>(id), content, flag(t, "special", false)});
    }
    std::sort(impl_->added.begin(), impl_->added.end(), [](auto& a, auto& b) { return a.id < b.id; });
    for (size_t k = 0; k < impl_->added.size(); ++k) {
      const AddedToken& a = impl_->added[k];
      bool fresh =
          impl_->added_by_id.emplace(a.id, k).second && impl_->added_by_text.emplace(a.text, a.id).second;
      if (!fresh) return bad("added_tokens", fmt::format("id {} or text '{}' appears twice", a.id, a.text));
      impl_->trie.add(a.text, a.id);
      impl_->vocab_size = std::max(impl_->vocab_size, a.id + 1);
    }
    return {};
  }

  // The bytes a vocabulary key stands for, or nothing if it uses characters outside the byte alphabet.
  std::optional<std::string> key_bytes(std::string_view key) const {
    std::string out;
    while (!key.empty()) {
      Utf8Char c = decode_utf8(key);
      if (c.code_point >= byte_of_.size() || byte_of_[c.code_point] < 0) return std::nullopt;
      out += static_cast<char>(byte_of_[c.code_point]);
      key.remove_prefix(c.size);
    }
    return out;
  }

  Status model(const element& root) {
    element m;
    if (root.at_key("model").get(m) != simdjson::SUCCESS || text(m, "type") != "BPE")
      return bad("model", "must be of type BPE");
    for (const char* name : {"dropout", "unk_token"}) {
      if (!null_or_missing(m, name)) return bad(std::string("model.") + name, "must be null");
    }
    for (const char* name : {"continuing_subword_prefix", "end_of_word_suffix"}) {
      if (!text(m, name).empty()) return bad(std::string("model.") + name, "must be null or empty");
    }
    if (flag(m, "byte_fallback", false)) return bad("model.byte_fallback", "must be false");
    DI_TRY(vocabulary(m));
    std::array<int32_t, 256> byte_ids{};
    for (int b = 0; b < 256; ++b) {
      auto it = by_bytes_.find(std::string(1, static_cast<char>(b)));
      if (it == by_bytes_.end())
        return bad("model.vocab", fmt::format("has no token for the byte 0x{:02x}", b));
      byte_ids[static_cast<size_t>(b)] = it->second;
    }
    std::vector<Bpe::Merge> merges;
    DI_TRY(read_merges(m, &merges));
    impl_->bpe.emplace(byte_ids, merges, std::move(tokens_), flag(m, "ignore_merges", false));
    return {};
  }

  Status vocabulary(const element& m) {
    object vocab;
    if (m.at_key("vocab").get(vocab) != simdjson::SUCCESS) return bad("model.vocab", "must be an object");
    for (auto [key, value] : vocab) {
      int64_t id = -1;
      if (value.get(id) != simdjson::SUCCESS || id < 0 || id > kMaxId) {
        return bad("model.vocab", fmt::format("'{}' must have an id", key));
      }
      auto index = static_cast<size_t>(id);
      if (tokens_.size() <= index) tokens_.resize(index + 1);
      impl_->vocab_size = std::max(impl_->vocab_size, static_cast<int32_t>(id) + 1);
      auto added = impl_->added_by_id.find(static_cast<int32_t>(id));
      if (added != impl_->added_by_id.end() && impl_->added[added->second].text == key) continue;
      std::optional<std::string> bytes = key_bytes(key);
      if (!bytes || bytes->empty()) {
        return bad("model.vocab", fmt::format("'{}' is neither byte-level text nor an added token", key));
      }
      if (!tokens_[index].empty() || added != impl_->added_by_id.end()) {
        return bad("model.vocab", fmt::format("id {} is given to two tokens", id));
      }
      if (!by_bytes_.emplace(*bytes, static_cast<int32_t>(id)).second) {
        return bad("model.vocab", fmt::format("'{}' appears twice", key));
      }
      tokens_[index] = std::move(*bytes);
    }
    return {};
  }

  Status read_merges(const element& m, std::vector<Bpe::Merge>* merges) const {
    array list;
    if (m.at_key("merges").get(list) != simdjson::SUCCESS) return bad("model.merges", "must be an array");
    merges->reserve(list.size());
    for (element item : list) {
      std::string path = fmt::format("model.merges[{}]", merges->size());
      std::string_view joined, left, right;
      array two;
      if (item.get(joined) == simdjson::SUCCESS) {
        size_t space = joined.find(' ');
        if (space == joined.npos) return bad(path, "must be two tokens");
        left = joined.substr(0, space), right = joined.substr(space + 1);
      } else if (item.get(two) != simdjson::SUCCESS || two.size() != 2 ||
                 two.at(0).get(left) != simdjson::SUCCESS || two.at(1).get(right) != simdjson::SUCCESS) {
        return bad(path, "must be two tokens");
      }
      std::optional<std::string> a = key_bytes(left), b = key_bytes(right);
      if (!a || !b) return bad(path, "uses characters outside the byte alphabet");
      auto l = by_bytes_.find(*a), r = by_bytes_.find(*b), both = by_bytes_.find(*a + *b);
      if (l == by_bytes_.end() || r == by_bytes_.end() || both == by_bytes_.end()) {
        return bad(path, fmt::format("'{}' + '{}' is not in the vocabulary", left, right));
      }
      merges->push_back({l->second, r->second, both->second});
    }
    return {};
  }

  std::string where_;
  std::shared_ptr<Tokenizer::Impl> impl_ = std::make_shared<Tokenizer::Impl>();
  std::vector<int> byte_of_;  // code point of the byte alphabet -> byte
  std::vector<std::string> tokens_;
  std::unordered_map<std::string, int32_t> by_bytes_;
};

}  // namespace

Result<Tokenizer> Tokenizer::from_json(std::string_view json, const std::string& where) {
  return Loader(where).load(json);
}

Result<Tokenizer> Tokenizer::from_file(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  if (!in) return error(Code::kNotFound, "{}: cannot open the tokenizer file", path);
  std::ostringstream bytes;
  bytes << in.rdbuf();
  if (in.bad()) return error(Code::kIo, "{}: reading the tokenizer file failed", path);
  return from_json(bytes.view(), path);
}

}  // namespace deepinfer
