// Helper of tokenizer_differential.py: tokenizer_ids TOKENIZER.json [added] reads records (u32 length, bytes)
// from standard input and writes for each u32 count and the ids as u32, all in the machine's byte order.
// "added": control spellings become control ids.
#include <cstdio>
#include <cstring>

#include "text/tokenizer.h"

int main(int argc, char** argv) {
  if (argc < 2) return 2;
  bool added = argc > 2 && std::strcmp(argv[2], "added") == 0;
  deepinfer::Result<deepinfer::Tokenizer> t = deepinfer::Tokenizer::from_file(argv[1]);
  if (!t.ok()) {
    std::fprintf(stderr, "%s\n", t.status().to_string().c_str());
    return 1;
  }
  uint32_t size = 0;
  std::string text;
  while (std::fread(&size, sizeof size, 1, stdin) == 1) {
    text.resize(size);
    if (std::fread(text.data(), 1, size, stdin) != size) return 1;
    std::vector<int32_t> ids = added ? t->encode_with_added_tokens(text) : t->encode(text);
    auto count = static_cast<uint32_t>(ids.size());
    std::fwrite(&count, sizeof count, 1, stdout);
    std::fwrite(ids.data(), sizeof(int32_t), ids.size(), stdout);
    if (t->decode(ids) != text) return 1;
  }
  return 0;
}
