// Test support: a tokenizer.json small enough to read, with the released ids of the control tokens and of the
// single bytes (request edge specification 1.1 and 2.2), and a few merges. Included by tests only.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "base/check.h"
#include "text/pretokenizer.h"
#include "text/tokenizer.h"
#include "text/unicode.h"

namespace deepinfer::testing {

struct TestAdded {
  int id;
  const char* text;
  bool special;
};

inline const std::vector<TestAdded>& test_added_tokens() {
  static const std::vector<TestAdded> list = {
      {0, "<｜begin▁of▁sentence｜>", true},
      {1, "<｜end▁of▁sentence｜>", true},
      {2, "<｜▁pad▁｜>", true},
      {128799, "<｜System｜>", false},
      {128800, "<｜fim▁hole｜>", false},
      {128801, "<｜fim▁begin｜>", false},
      {128802, "<｜fim▁end｜>", false},
      {128803, "<｜User｜>", false},
      {128804, "<｜Assistant｜>", false},
      {128821, "<think>", false},
      {128822, "</think>", false},
      {128825, "｜DSML｜", false},
      {128828, "<｜latest_reminder｜>", false},
      {128829, "<｜action｜>", false},
      {129264, "<｜image｜>", true},
  };
  return list;
}

inline std::string byte_char(int b) {
  int next = 0x100;
  for (int i = 0; i < 256; ++i) {
    bool visible = (i >= 0x21 && i <= 0x7e) || (i >= 0xa1 && i <= 0xac) || i >= 0xae;
    if (i == b) {
      std::string s;
      append_utf8(static_cast<uint32_t>(visible ? b : next), &s);
      return s;
    }
    next += visible ? 0 : 1;
  }
  return {};
}

inline std::string json_quote(const std::string& s) {
  std::string out = "\"";
  for (char c : s) {
    if (c == '"' || c == '\\') out += '\\';
    if (c == '\n') {
      out += "\\n";
    } else if (c == '\r') {
      out += "\\r";
    } else {
      out += c;
    }
  }
  return out + "\"";
}

// Merges are pairs of raw byte strings in rank order; each result gets the next id from 259.
inline std::string test_tokenizer_json(const std::vector<std::pair<std::string, std::string>>& merges,
                                       DigitRule digits = DigitRule::kUpToThree) {
  auto mapped = [](const std::string& raw) {
    std::string out;
    for (char c : raw) out += byte_char(static_cast<unsigned char>(c));
    return out;
  };
  std::string vocab, merge_list, added;
  int id = 3;
  auto entry = [&](const std::string& text) {
    vocab += (vocab.empty() ? "" : ",") + json_quote(text) + ":" + std::to_string(id++);
  };
  for (int pass = 0; pass < 2; ++pass) {
    for (int b = 0; b < 256; ++b) {
      bool visible = (b >= 0x21 && b <= 0x7e) || (b >= 0xa1 && b <= 0xac) || b >= 0xae;
      if (visible == (pass == 0)) entry(byte_char(b));
    }
  }
  std::vector<std::string> seen;
  for (auto& [a, b] : merges) {
    std::string whole = mapped(a + b);
    bool fresh = true;
    for (auto& s : seen) fresh = fresh && s != whole;
    if (fresh) entry(whole), seen.push_back(whole);
    merge_list += (merge_list.empty() ? "" : ",") + json_quote(mapped(a) + " " + mapped(b));
  }
  for (const TestAdded& t : test_added_tokens()) {
    added += (added.empty() ? "" : ",") + std::string("{\"id\":") + std::to_string(t.id) +
             ",\"content\":" + json_quote(t.text) +
             ",\"single_word\":false,\"lstrip\":false,\"rstrip\":false,\"normalized\":false,\"special\":" +
             (t.special ? "true" : "false") + "}";
  }
  auto split = [](const std::string& p) {
    return "{\"type\":\"Split\",\"pattern\":{\"Regex\":" + json_quote(p) +
           "},\"behavior\":\"Isolated\",\"invert\":false}";
  };
  const std::string rest =
      "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\r\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+| "
      "?[\\p{P}\\p{S}]+[\r\n]*|\\s*[\r\n]+|\\s+(?!\\S)|\\s+";
  return "{\"version\":\"1.0\",\"truncation\":null,\"padding\":null,\"added_tokens\":[" + added +
         "],\"normalizer\":{\"type\":\"Sequence\",\"normalizers\":[]},\"pre_tokenizer\":{\"type\":"
         "\"Sequence\",\"pretokenizers\":[" +
         split(digits == DigitRule::kSingle ? "\\p{N}" : "\\p{N}{1,3}") + "," +
         split("[一-龥\u3040-ゟ゠-ヿ]+") + "," + split(rest) +
         ",{\"type\":\"ByteLevel\",\"add_prefix_space\":false,\"trim_offsets\":true,\"use_regex\":false}]},"
         "\"post_processor\":null,\"decoder\":{\"type\":\"ByteLevel\",\"add_prefix_space\":true,\"trim_"
         "offsets\":true,"
         "\"use_regex\":true},\"model\":{\"type\":\"BPE\",\"dropout\":null,\"unk_token\":null,\"continuing_"
         "subword_prefix\":null,"
         "\"end_of_word_suffix\":null,\"fuse_unk\":false,\"byte_fallback\":false,\"vocab\":{" +
         vocab + "},\"merges\":[" + merge_list + "]}}";
}

inline Tokenizer test_tokenizer(const std::vector<std::pair<std::string, std::string>>& merges,
                                DigitRule digits = DigitRule::kUpToThree) {
  Result<Tokenizer> t = Tokenizer::from_json(test_tokenizer_json(merges, digits), "test");
  DI_CHECK(t.ok(), t.status().to_string());
  return t.value();
}

}  // namespace deepinfer::testing
