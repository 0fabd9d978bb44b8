// Speed of the text room: text_bench TOKENIZER.json FILE... prints the encode rate over the files' bytes, and
// the time for a megabyte of one repeated character. Numbers are for this machine at this moment; nothing is
// asserted.
#include <chrono>
#include <cstdio>
#include <fstream>
#include <sstream>

#include "text/tokenizer.h"

namespace {

double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 3) {
    std::fprintf(stderr, "usage: text_bench TOKENIZER.json FILE...\n");
    return 2;
  }
  double start = now();
  deepinfer::Result<deepinfer::Tokenizer> t = deepinfer::Tokenizer::from_file(argv[1]);
  if (!t.ok()) {
    std::fprintf(stderr, "%s\n", t.status().to_string().c_str());
    return 1;
  }
  std::printf("load: %.0f ms\n", (now() - start) * 1e3);
  std::vector<std::string> files;
  size_t bytes = 0, ids = 0;
  for (int i = 2; i < argc; ++i) {
    std::ifstream in(argv[i], std::ios::binary);
    std::ostringstream s;
    s << in.rdbuf();
    files.push_back(s.str());
    bytes += files.back().size();
  }
  double best = 1e9;
  for (int round = 0; round < 5; ++round) {
    ids = 0;
    start = now();
    for (const std::string& f : files) ids += t->encode(f).size();
    best = std::min(best, now() - start);
  }
  std::printf("encode: %zu files, %.2f MB, %zu ids, %.1f MB/s (best of 5, one thread)\n", files.size(),
              static_cast<double>(bytes) / 1e6, ids, static_cast<double>(bytes) / 1e6 / best);
  for (const char* unit : {"a", " ", "\xcc\x81", "7", "中", "\n", "!"}) {
    std::string text;
    while (text.size() < (1u << 20)) text += unit;
    start = now();
    size_t n = t->encode(text).size();
    std::printf("1 MiB of U+%04X...: %.0f ms, %zu ids\n", static_cast<unsigned char>(unit[0]),
                (now() - start) * 1e3, n);
  }
  return 0;
}
