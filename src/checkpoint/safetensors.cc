// Header parser, layout check and header writer.
#include "checkpoint/safetensors.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <numeric>
#include <string_view>
#include <unordered_set>

#include "base/check.h"
#include "checkpoint/json_events.h"

namespace deepinfer {
namespace {

constexpr size_t kMaxRank = 8;  // more dimensions than any tensor of any format in use

struct DtypeBits {
  std::string_view tag;
  int bits;
};
constexpr std::array<DtypeBits, 20> kDtypes = {
    {{"BOOL", 8}, {"U8", 8},   {"I8", 8},    {"F8_E4M3", 8}, {"F8_E5M2", 8}, {"F8_E8M0", 8}, {"I16", 16},
     {"U16", 16}, {"F16", 16}, {"BF16", 16}, {"I32", 32},    {"U32", 32},    {"F32", 32},    {"I64", 64},
     {"U64", 64}, {"F64", 64}, {"C64", 64},  {"F4", 4},      {"F6_E2M3", 6}, {"F6_E3M2", 6}}};

// a * b, or false if it does not fit in 63 bits.
bool checked_multiply(uint64_t a, uint64_t b, uint64_t* out) {
  return !__builtin_mul_overflow(a, b, out) && *out <= static_cast<uint64_t>(INT64_MAX);
}

bool element_count(const std::vector<int64_t>& shape, uint64_t* count) {
  *count = 1;
  for (int64_t d : shape) {
    if (!checked_multiply(*count, static_cast<uint64_t>(d), count)) return false;
  }
  return true;
}

// {"name": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}, "__metadata__": {"key": "value"}}
class HeaderEvents : public JsonEvents {
 public:
  SafetensorsHeader header;

  bool on_start(bool object) override {
    switch (depth()) {
      case 1:
        return object || fail("the header is a list, not an object");
      case 2:
        return object || fail(fmt::format("'{}' is a list, not an object", shown_name(name_)));
      default:
        if (object || in_metadata_ || (member_ != Member::kShape && member_ != Member::kOffsets)) {
          return fail(
              fmt::format("'{}': unexpected nested {}", shown_name(name_), object ? "object" : "list"));
        }
        return true;
    }
  }

  bool on_key(std::string& key) override {
    if (depth() == 1) return start_entry(key);
    if (in_metadata_) {
      metadata_key_ = std::move(key);
      if (header.metadata.contains(metadata_key_)) {
        return fail(fmt::format("__metadata__ has '{}' twice", shown_name(metadata_key_)));
      }
      return true;
    }
    member_ = key == "dtype"          ? Member::kDtype
              : key == "shape"        ? Member::kShape
              : key == "data_offsets" ? Member::kOffsets
                                      : Member::kNone;
    if (member_ == Member::kNone) {
      return fail(fmt::format("tensor '{}' has an unknown member '{}'", shown_name(name_), shown_name(key)));
    }
    const unsigned bit = 1u << static_cast<unsigned>(member_);
    if (seen_ & bit) return fail(fmt::format("tensor '{}' has '{}' twice", shown_name(name_), key));
    seen_ |= bit;
    return true;
  }

  bool on_string(std::string& value) override {
    if (depth() == 2 && in_metadata_) {
      header.metadata[metadata_key_] = std::move(value);
      return true;
    }
    if (depth() == 2 && member_ == Member::kDtype) {
      header.tensors.back().dtype = std::move(value);
      return true;
    }
    return on_other("a string");
  }

  bool on_unsigned(uint64_t value) override {
    if (depth() != 3) return on_other("a number");
    if (member_ == Member::kOffsets) {
      if (offsets_ == 2)
        return fail(fmt::format("tensor '{}' has more than two data_offsets", shown_name(name_)));
      (offsets_++ == 0 ? header.tensors.back().begin : header.tensors.back().end) = value;
      return true;
    }
    std::vector<int64_t>& shape = header.tensors.back().shape;
    if (shape.size() == kMaxRank) {
      return fail(fmt::format("tensor '{}' has more than {} dimensions", shown_name(name_), kMaxRank));
    }
    if (value > static_cast<uint64_t>(INT64_MAX)) {
      return fail(fmt::format("tensor '{}' has a dimension of {}", shown_name(name_), value));
    }
    shape.push_back(static_cast<int64_t>(value));
    return true;
  }

  bool on_other(const char* kind) override {
    if (depth() == 0) return fail(fmt::format("the header is {}, not an object", kind));
    if (depth() == 1) return fail(fmt::format("'{}' is {}, not an object", shown_name(name_), kind));
    return fail(fmt::format("'{}': {} where it does not belong", shown_name(name_), kind));
  }

  bool on_end(bool object) override {
    if (depth() != 1 || !object || in_metadata_) return true;
    const TensorEntry& t = header.tensors.back();
    constexpr unsigned kAll = 1u << static_cast<unsigned>(Member::kDtype) |
                              1u << static_cast<unsigned>(Member::kShape) |
                              1u << static_cast<unsigned>(Member::kOffsets);
    if (seen_ != kAll || offsets_ != 2) {
      return fail(fmt::format("tensor '{}' needs dtype, shape and two data_offsets", shown_name(name_)));
    }
    uint64_t count = 0;
    if (!element_count(t.shape, &count)) {
      return fail(
          fmt::format("tensor '{}' has an impossible shape {}", shown_name(name_), shown_shape(t.shape)));
    }
    return true;
  }

 private:
  enum class Member { kNone, kDtype, kShape, kOffsets };

  bool start_entry(std::string& key) {
    if (key.empty()) return fail("a tensor has an empty name");
    if (!names_.insert(key).second)
      return fail(fmt::format("tensor name '{}' appears twice", shown_name(key)));
    name_ = key;
    in_metadata_ = key == "__metadata__";
    member_ = Member::kNone;
    seen_ = 0;
    offsets_ = 0;
    if (!in_metadata_) {
      header.tensors.emplace_back();
      header.tensors.back().name = std::move(key);
    }
    return true;
  }

  std::unordered_set<std::string> names_;
  std::string name_, metadata_key_;
  bool in_metadata_ = false;
  Member member_ = Member::kNone;
  unsigned seen_ = 0;
  int offsets_ = 0;
};

std::string json_string(const std::string& s) {
  return nlohmann::json(s).dump();
}

}  // namespace

int dtype_tag_bits(const std::string& tag) {
  for (const DtypeBits& d : kDtypes) {
    if (d.tag == tag) return d.bits;
  }
  return 0;
}

std::string shown_shape(const std::vector<int64_t>& shape) {
  return fmt::format("[{}]", fmt::join(shape, ", "));
}

Result<SafetensorsHeader> parse_safetensors_header(std::span<const uint8_t> file, const std::string& where) {
  if (file.size() < 8) {
    return error(Code::kInvalidData, "{}: {} bytes are too few for a safetensors file (truncated?)", where,
                 file.size());
  }
  uint64_t length = 0;
  for (int i = 7; i >= 0; --i) length = length << 8 | file[static_cast<size_t>(i)];
  if (length > kMaxSafetensorsHeaderBytes) {
    return error(Code::kInvalidData,
                 "{}: header length {} is above the format's limit of {}; not a safetensors file?", where,
                 length, kMaxSafetensorsHeaderBytes);
  }
  if (length > file.size() - 8) {
    return error(Code::kInvalidData,
                 "{}: truncated: the header should have {} bytes, the file has {} after the length", where,
                 length, file.size() - 8);
  }
  HeaderEvents events;
  // Root, tensor, list: nothing legal is deeper.
  DI_TRY(events.parse(file.subspan(8, length), where + ": header", 3));
  events.header.data_offset = 8 + length;
  return std::move(events.header);
}

void check_safetensors_layout(const SafetensorsHeader& header, uint64_t file_bytes, const std::string& where,
                              ProblemList* problems) {
  DI_CHECK(file_bytes >= header.data_offset, "the header was parsed from this file");
  const uint64_t data_bytes = file_bytes - header.data_offset;
  std::vector<const TensorEntry*> order;
  for (const TensorEntry& t : header.tensors) {
    const std::string name = shown_name(t.name);
    const int bits = dtype_tag_bits(t.dtype);
    uint64_t count = 0, total_bits = 0;
    if (t.begin > t.end) {
      problems->add(
          fmt::format("{}: tensor {} ends at {} before it begins at {}", where, name, t.end, t.begin));
      continue;
    }
    if (bits == 0) {
      problems->add(fmt::format("{}: tensor {} has an unknown type {}", where, name, shown_name(t.dtype)));
    } else if (!element_count(t.shape, &count) ||
               !checked_multiply(count, static_cast<uint64_t>(bits), &total_bits) || total_bits % 8 != 0 ||
               total_bits / 8 != t.end - t.begin) {
      problems->add(fmt::format("{}: tensor {} has {} bytes, but {} {} needs {}", where, name,
                                t.end - t.begin, t.dtype, shown_shape(t.shape), total_bits / 8));
    }
    if (t.end > data_bytes) {
      problems->add(fmt::format("{}: truncated: tensor {} ends at data byte {}, the file has {}", where, name,
                                t.end, data_bytes));
    }
    if (t.begin < t.end) order.push_back(&t);
  }
  std::sort(order.begin(), order.end(),
            [](const TensorEntry* a, const TensorEntry* b) { return a->begin < b->begin; });
  uint64_t end = 0;
  const TensorEntry* last = nullptr;  // the one that reaches furthest so far
  for (const TensorEntry* t : order) {
    if (t->begin < end) {
      problems->add(fmt::format("{}: tensor {} at [{}, {}) overlaps {} at [{}, {})", where,
                                shown_name(t->name), t->begin, t->end, shown_name(last->name), last->begin,
                                last->end));
    } else if (t->begin > end) {
      problems->add(
          fmt::format("{}: hole of {} bytes before tensor {}", where, t->begin - end, shown_name(t->name)));
    }
    if (t->end > end) {
      end = t->end;
      last = t;
    }
  }
  if (data_bytes > end) {
    problems->add(fmt::format("{}: {} bytes after the last tensor belong to none", where, data_bytes - end));
  }
}

std::string make_safetensors_header(std::vector<TensorEntry>* tensors,
                                    const std::map<std::string, std::string>& metadata) {
  constexpr size_t kAlign = 64;
  std::string json = "{";
  if (!metadata.empty()) json += "\"__metadata__\":" + nlohmann::json(metadata).dump() + ",";
  uint64_t offset = 0;
  for (TensorEntry& t : *tensors) {
    uint64_t count = 0;
    const int bits = dtype_tag_bits(t.dtype);
    DI_CHECK(bits >= 8 && element_count(t.shape, &count), t.name);
    t.begin = offset;
    t.end = offset += count * static_cast<uint64_t>(bits / 8);
    json += fmt::format("{}:{{\"dtype\":\"{}\",\"shape\":[{}],\"data_offsets\":[{},{}]}},",
                        json_string(t.name), t.dtype, fmt::join(t.shape, ","), t.begin, t.end);
  }
  if (json.back() == ',') json.pop_back();
  json += "}";
  json.resize((json.size() + 8 + kAlign - 1) / kAlign * kAlign - 8, ' ');
  std::string out(8, '\0');
  for (size_t i = 0; i < 8; ++i) out[i] = static_cast<char>(json.size() >> (8 * i) & 0xff);
  return out + json;
}

}  // namespace deepinfer
