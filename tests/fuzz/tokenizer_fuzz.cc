// Fuzzes encode, decode and the UTF-8 assembler with any bytes, and the tokenizer.json reader with damaged
// files.
#include <cstdint>

#include "text/test_vocabulary.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using deepinfer::Tokenizer;
  static const std::string file = deepinfer::testing::test_tokenizer_json(
      {{"a", "a"}, {"aa", "aa"}, {" ", "a"}, {"\xef", "\xbd"}, {"\xef\xbd", "\x9c"}, {"<", "\xef\xbd\x9c"}});
  static const Tokenizer tokenizer = Tokenizer::from_json(file, "fuzz").value();
  if (size == 0) return 0;
  std::string_view text(reinterpret_cast<const char*>(data) + 1, size - 1);
  if (data[0] % 4 == 0) {
    // Overwrite a stretch of the good file: most damage keeps it JSON.
    std::string damaged = file;
    size_t at = size > 3 ? (static_cast<size_t>(data[1]) << 8 | data[2]) % damaged.size() : 0;
    damaged.replace(at, std::min<size_t>(text.size(), data[0] / 4), text);
    if (auto t = Tokenizer::from_json(damaged, "fuzz"); t.ok()) (void)t->encode(text);
    return 0;
  }
  std::vector<int32_t> ids = tokenizer.encode(text);
  DI_CHECK(tokenizer.decode(ids) == text, "decode(encode(x)) != x");
  for (int32_t id : ids) DI_CHECK(!tokenizer.is_added(id), "plain text made a control id");
  DI_CHECK(tokenizer.decode(tokenizer.encode_with_added_tokens(text)) == text,
           "decode(encode(x)) != x with added tokens");
  deepinfer::Utf8Assembler assembler;
  std::string out;
  for (int32_t id : ids) out += assembler.push(tokenizer.token_bytes(id));
  out += assembler.flush();
  DI_CHECK(out == deepinfer::to_valid_utf8(text), "assembled text differs from the whole");
  return 0;
}
