// Utf8Assembler of text/tokenizer.h.
#include "text/tokenizer.h"
#include "text/unicode.h"

namespace deepinfer {

std::string Utf8Assembler::push(std::string_view bytes) {
  std::string joined;
  if (!held_.empty()) {
    joined = std::move(held_);
    held_.clear();
    joined += bytes;
    bytes = joined;
  }
  std::string out;
  out.reserve(bytes.size());
  while (!bytes.empty()) {
    Utf8Char c = decode_utf8(bytes);
    if (c.cut) {
      held_ = bytes;
      break;
    }
    if (c.code_point == Utf8Char::kBad) {
      append_utf8(0xfffd, &out);
    } else {
      out.append(bytes.substr(0, c.size));
    }
    bytes.remove_prefix(c.size);
  }
  return out;
}

std::string Utf8Assembler::flush() {
  // What is held is one proper prefix of a character, hence one maximal subpart.
  std::string out;
  if (!held_.empty()) append_utf8(0xfffd, &out);
  held_.clear();
  return out;
}

}  // namespace deepinfer
