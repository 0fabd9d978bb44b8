// Index parser and writer.
#include "checkpoint/shard_index.h"

#include <fmt/format.h>

#include <set>
#include <string_view>

#include "checkpoint/json_events.h"
#include "checkpoint/problems.h"

namespace deepinfer {
namespace {

// Why a shard's name cannot be used, or empty. A name may not lead out of the directory.
std::string_view bad_file_name(std::string_view name) {
  constexpr std::string_view kEnding = ".safetensors";
  if (name.size() > 255) return "longer than 255 bytes";
  for (char c : name) {
    if (c == '/' || c == '\\') return "a path, not a plain file name";
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7F) return "a control character inside";
  }
  if (!name.ends_with(kEnding)) return "not a .safetensors file";
  if (name.front() == '.') return "a hidden file";
  return {};
}

class IndexEvents : public JsonEvents {
 public:
  ShardIndex index;
  bool has_map = false;

  bool on_start(bool object) override {
    if (depth() == 1) return object || fail("the index is a list, not an object");
    if (depth() == 2 && section_ == "weight_map" && !object)
      return fail("weight_map is a list, not an object");
    if (depth() > 2 && section_ == "weight_map") return fail("weight_map holds something else than names");
    return true;
  }
  bool on_key(std::string& key) override {
    if (depth() == 1) {
      if (!sections_.insert(key).second) return fail(fmt::format("'{}' appears twice", shown_name(key)));
      section_ = key;
      has_map |= key == "weight_map";
    } else if (depth() == 2) {
      key_ = key;
      if (section_ == "weight_map" && index.weight_map.contains(key)) {
        return fail(fmt::format("tensor '{}' appears twice in weight_map", shown_name(key)));
      }
    }
    return true;
  }
  bool on_string(std::string& value) override {
    if (section_ != "weight_map" || depth() != 2) return on_other("a string");
    if (value.empty()) return fail(fmt::format("tensor '{}' has an empty file name", shown_name(key_)));
    if (std::string_view why = bad_file_name(value); !why.empty()) {
      return fail(fmt::format("file name '{}' of tensor '{}' is refused: {}", shown_name(value),
                              shown_name(key_), why));
    }
    index.weight_map[key_] = std::move(value);
    return true;
  }
  bool on_unsigned(uint64_t value) override {
    if (section_ == "metadata" && depth() == 2 && key_ == "total_size") index.total_size = value;
    return on_other("a number");
  }
  bool on_other(const char* kind) override {
    if (depth() == 0) return fail(fmt::format("the index is {}, not an object", kind));
    if (section_ == "weight_map")
      return fail(fmt::format("weight_map has {} where a file name belongs", kind));
    return true;  // other members are informative
  }
  bool on_end(bool) override { return true; }

 private:
  std::set<std::string> sections_;
  std::string section_, key_;
};

}  // namespace

Result<ShardIndex> parse_shard_index(std::span<const uint8_t> text, const std::string& where) {
  if (text.size() > kMaxShardIndexBytes) {
    return error(Code::kInvalidData, "{}: {} bytes are more than an index can have ({})", where, text.size(),
                 kMaxShardIndexBytes);
  }
  IndexEvents events;
  constexpr int kMaxDepth = 32;  // informative members may nest a little
  DI_TRY(events.parse(text, where, kMaxDepth));
  if (!events.has_map) return error(Code::kInvalidData, "{}: has no weight_map", where);
  std::set<std::string> files;
  for (const auto& [tensor, file] : events.index.weight_map) files.insert(file);
  events.index.files.assign(files.begin(), files.end());
  return std::move(events.index);
}

std::string make_shard_index(const ShardIndex& index) {
  nlohmann::ordered_json j;
  j["metadata"]["total_size"] = index.total_size.value_or(0);
  j["weight_map"] = index.weight_map;
  return j.dump(2) + "\n";
}

}  // namespace deepinfer
