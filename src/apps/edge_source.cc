// Finds a tokenizer without loading a model, and reads whole inputs.
#include "apps/edge_source.h"

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <sstream>

namespace deepinfer {

namespace fs = std::filesystem;

Result<Tokenizer> find_tokenizer(const std::string& given) {
  std::error_code ec;
  fs::path path = given;
  if (given.empty()) {
    if (const char* env = std::getenv("DEEPINFER_MODEL"); env != nullptr && *env != '\0') path = env;
  }
  if (path.empty()) {
    fs::path exe = fs::read_symlink("/proc/self/exe", ec);
    for (fs::path dir = exe.parent_path(); path.empty() && dir.has_relative_path(); dir = dir.parent_path()) {
      for (const char* sub : {"models/deepinfer-tiny", "share/deepinfer/models/deepinfer-tiny"}) {
        if (fs::exists(dir / sub / "tokenizer.json", ec)) path = dir / sub;
      }
    }
  }
  if (path.empty())
    return error(Code::kNotFound,
                 "no tokenizer found; name one with --tokenizer FILE or a folder with tokenizer.json");
  if (fs::is_directory(path, ec)) path /= "tokenizer.json";
  return Tokenizer::from_file(path.string());
}

Result<std::string> read_all(const std::string& path) {
  std::ostringstream bytes;
  if (path.empty() || path == "-") {
    bytes << std::cin.rdbuf();
    return bytes.str();
  }
  std::ifstream in(path, std::ios::binary);
  if (!in) return error(Code::kNotFound, "{}: cannot open the file", path);
  bytes << in.rdbuf();
  return bytes.str();
}

}  // namespace deepinfer
