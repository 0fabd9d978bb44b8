// The synthetic tokenizer. Pieces of the file format: request edge specification 1.1, 2.1, 2.2.
#include <algorithm>
#include <array>
#include <cstdint>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "checkpoint/synth.h"

namespace deepinfer {
namespace {

using json = nlohmann::ordered_json;

constexpr int kFirstByteId = 3;
constexpr int kAllBytes = kFirstByteId + 256;

struct Control {
  const char* text;
  int released_id;
  bool special;
};
// In the order in which a small vocabulary takes them: what a prompt needs first. The image token has its id
// from the configuration.
constexpr std::array<Control, 10> kControls = {{{"<｜User｜>", 128803, false},
                                                {"<｜Assistant｜>", 128804, false},
                                                {"<think>", 128821, false},
                                                {"</think>", 128822, false},
                                                {"<｜System｜>", 128799, false},
                                                {"｜DSML｜", 128825, false},
                                                {"<｜latest_reminder｜>", 128828, false},
                                                {"<｜fim▁hole｜>", 128800, false},
                                                {"<｜fim▁begin｜>", 128801, false},
                                                {"<｜fim▁end｜>", 128802, false}}};

bool visible(int b) {
  return (b >= 0x21 && b <= 0x7E) || (b >= 0xA1 && b <= 0xAC) || b >= 0xAE;
}

// Bytes in the order of their ids: the visible ones, then the others.
std::vector<int> family_order() {
  std::vector<int> order;
  for (bool want : {true, false}) {
    for (int b = 0; b < 256; ++b) {
      if (visible(b) == want) order.push_back(b);
    }
  }
  return order;
}

// The bytes a vocabulary of this size has, in id order.
std::vector<int> kept_bytes(int vocab_size) {
  const std::vector<int> order = family_order();
  const size_t room = static_cast<size_t>(std::max(vocab_size - kFirstByteId, 0));
  if (room >= order.size()) return order;
  std::vector<int> wanted;
  for (int b = 0x21; b <= 0x7E; ++b) wanted.push_back(b);
  for (int b : {' ', '\n', '\t', '\r'}) wanted.push_back(b);
  for (int b : order) {
    if (std::find(wanted.begin(), wanted.end(), b) == wanted.end()) wanted.push_back(b);
  }
  const std::set<int> kept(wanted.begin(), wanted.begin() + static_cast<std::ptrdiff_t>(room));
  std::vector<int> out;
  for (int b : order) {
    if (kept.contains(b)) out.push_back(b);
  }
  return out;
}

// The symbol of byte b: itself if visible, else U+0100 + its rank among the invisible ones. Always below
// U+0800.
std::string byte_symbol(int b) {
  int code_point = b;
  if (!visible(b)) {
    code_point = 0x100;
    for (int i = 0; i < b; ++i) code_point += visible(i) ? 0 : 1;
  }
  if (code_point < 0x80) return std::string(1, static_cast<char>(code_point));
  return {static_cast<char>(0xC0 | code_point >> 6), static_cast<char>(0x80 | (code_point & 0x3F))};
}

json added_token(int id, const std::string& text, bool special) {
  return {{"id", id},        {"content", text},     {"single_word", false}, {"lstrip", false},
          {"rstrip", false}, {"normalized", false}, {"special", special}};
}

json added_tokens(const ModelConfig& config) {
  const int vocab = config.vocab_size;
  json list = json::array();
  constexpr std::array<const char*, 3> kFirst = {"<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>",
                                                 "<｜▁pad▁｜>"};
  for (int id = 0; id < std::min(vocab, kFirstByteId); ++id)
    list.push_back(added_token(id, kFirst[static_cast<size_t>(id)], true));
  std::vector<const Control*> at(static_cast<size_t>(std::max(vocab - kAllBytes, 0)),
                                 nullptr);  // by id - kAllBytes
  static constexpr Control kImage = {"<｜image｜>", 129264, true};
  if (config.image_token_id >= kAllBytes)
    at[static_cast<size_t>(config.image_token_id - kAllBytes)] = &kImage;
  const bool released = vocab > 128828;  // the highest released id of kControls
  size_t next = 0;
  for (const Control& control : kControls) {
    size_t slot = static_cast<size_t>(control.released_id - kAllBytes);
    if (!released) {
      while (next < at.size() && at[next] != nullptr) ++next;
      slot = next;
    }
    if (slot < at.size() && at[slot] == nullptr) at[slot] = &control;
  }
  for (size_t i = 0; i < at.size(); ++i) {
    const int id = kAllBytes + static_cast<int>(i);
    list.push_back(at[i] != nullptr
                       ? added_token(id, at[i]->text, at[i]->special)
                       : added_token(id, "<｜place▁holder▁no▁" + std::to_string(id) + "｜>", true));
  }
  return list;
}

json split(const char* pattern) {
  return {{"type", "Split"}, {"pattern", {{"Regex", pattern}}}, {"behavior", "Isolated"}, {"invert", false}};
}

json byte_level() {
  return {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"trim_offsets", true}, {"use_regex", false}};
}

}  // namespace

std::string synthetic_tokenizer_json(const ModelConfig& config) {
  json added = added_tokens(config);
  json vocab = json::object();
  for (const json& token : added) {
    if (token["id"] < kFirstByteId) vocab[token["content"].get<std::string>()] = token["id"];
  }
  int id = kFirstByteId;
  for (int b : kept_bytes(config.vocab_size)) vocab[byte_symbol(b)] = id++;
  json j;
  j["version"] = "1.0";
  j["truncation"] = nullptr;
  j["padding"] = nullptr;
  j["added_tokens"] = std::move(added);
  j["normalizer"] = {{"type", "Sequence"}, {"normalizers", json::array()}};
  j["pre_tokenizer"] = {{"type", "Sequence"},
                        {"pretokenizers",
                         {split(R"(\p{N}{1,3})"), split("[一-龥぀-ゟ゠-ヿ]+"),
                          split("[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+"
                                "|[^\r\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+"
                                "| ?[\\p{P}\\p{S}]+[\r\n]*|\\s*[\r\n]+|\\s+(?!\\S)|\\s+"),
                          byte_level()}}};
  j["post_processor"] = byte_level();
  j["decoder"] = byte_level();
  j["model"] = {{"type", "BPE"},
                {"dropout", nullptr},
                {"unk_token", nullptr},
                {"continuing_subword_prefix", nullptr},
                {"end_of_word_suffix", nullptr},
                {"fuse_unk", false},
                {"byte_fallback", false},
                {"vocab", std::move(vocab)},
                {"merges", json::array()}};
  return j.dump(1, ' ', false) + "\n";
}

}  // namespace deepinfer
