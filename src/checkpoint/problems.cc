// Wording of problem lists.
#include "checkpoint/problems.h"

#include <fmt/format.h>

namespace deepinfer {
namespace {

constexpr size_t kMaxShownBytes = 120;

// Length of the well-formed UTF-8 sequence at `s`, 0 if there is none.
size_t utf8_length(std::string_view s) {
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(s[i]); };
  const unsigned char b = byte(0);
  const size_t n = b < 0x80                   ? 1
                   : (b >= 0xC2 && b <= 0xDF) ? 2
                   : (b & 0xF0) == 0xE0       ? 3
                   : (b >= 0xF0 && b <= 0xF4) ? 4
                                              : 0;
  if (n == 0 || n > s.size()) return 0;
  for (size_t i = 1; i < n; ++i) {
    if ((byte(i) & 0xC0) != 0x80) return 0;
  }
  if (n == 3 && ((b == 0xE0 && byte(1) < 0xA0) || (b == 0xED && byte(1) > 0x9F))) return 0;
  if (n == 4 && ((b == 0xF0 && byte(1) < 0x90) || (b == 0xF4 && byte(1) > 0x8F))) return 0;
  return n;
}

}  // namespace

std::string shown_name(std::string_view name) {
  std::string out;
  while (!name.empty()) {
    if (out.size() >= kMaxShownBytes) return out + "...";
    const size_t n = utf8_length(name);
    const auto byte = static_cast<unsigned char>(name[0]);
    if (n == 0 || byte < 0x20 || byte == 0x7F) {
      out += fmt::format("\\x{:02x}", byte);
      name.remove_prefix(1);
    } else {
      out += name.substr(0, n);
      name.remove_prefix(n);
    }
  }
  return out;
}

Status ProblemList::to_status(const std::string& where) const {
  if (empty()) return Status();
  if (count_ == 1) return Status(Code::kInvalidData, where + ": " + kept_[0]);
  std::string text = fmt::format("{}: {} problems:", where, count_);
  const size_t shown = std::min(kShown, kept_.size());
  for (size_t i = 0; i < shown; ++i) text += "\n  " + kept_[i];
  const int64_t rest = count_ - static_cast<int64_t>(shown);
  if (rest > 0) text += fmt::format("\n  and {} more", rest);
  return Status(Code::kInvalidData, std::move(text));
}

}  // namespace deepinfer
