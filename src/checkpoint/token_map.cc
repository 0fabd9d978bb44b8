// Reading and checking the map.
#include "checkpoint/token_map.h"

#include <fmt/format.h>

#include <algorithm>

#include "checkpoint/checkpoint_files.h"
#include "host/mapped_file.h"
#include "model/engram.h"

namespace deepinfer {
namespace {

int32_t little_endian(const uint8_t* p) {
  return static_cast<int32_t>(uint32_t{p[0]} | uint32_t{p[1]} << 8 | uint32_t{p[2]} << 16 |
                              uint32_t{p[3]} << 24);
}

void check_map(const std::vector<int32_t>& map, int compressed, ProblemList* problems) {
  std::vector<bool> used(static_cast<size_t>(compressed), false);
  for (size_t t = 0; t < map.size(); ++t) {
    if (map[t] < 0 || map[t] >= compressed) {
      problems->add(fmt::format("{}: token {} has compressed id {}, outside [0, {})", kTokenMapFile, t,
                                map[t], compressed));
      return;
    }
    used[static_cast<size_t>(map[t])] = true;
  }
  // Ids are given in order of first appearance, so the control tokens at the start keep theirs.
  const size_t fixed = std::min({size_t{4}, map.size(), static_cast<size_t>(compressed)});
  for (size_t t = 0; t < fixed; ++t) {
    if (map[t] != static_cast<int32_t>(t)) {
      problems->add(
          fmt::format("{}: token {} has compressed id {}, should be {}", kTokenMapFile, t, map[t], t));
      return;
    }
  }
  const auto unused = std::count(used.begin(), used.end(), false);
  if (unused > 0) {
    problems->add(
        fmt::format("{}: {} of the {} compressed ids belong to no token", kTokenMapFile, unused, compressed));
  }
}

}  // namespace

Result<std::vector<int32_t>> read_token_map(const std::string& dir, const ModelConfig& config,
                                            ProblemList* problems) {
  std::vector<int32_t> map;
  if (config.engram_layer_ids.empty()) return map;
  const std::string path = dir + "/" + kTokenMapFile;
  const int compressed = config.engram_compressed_vocab_size;
  Result<MappedFile> file = MappedFile::open(path);
  if (!file.ok() && file.status().code() == Code::kNotFound) {
    if (config.vocab_size <= kMaxTinyVocab && compressed > 4)
      return tiny_token_map(config.vocab_size, compressed);
    problems->add(
        fmt::format("{}: no such file; the Engram layers need the compressed id of each of the {} tokens",
                    path, config.vocab_size));
    return map;
  }
  if (!file.ok()) return file.status();
  const size_t expected = static_cast<size_t>(config.vocab_size) * 4;
  if (file->size() != expected) {
    problems->add(fmt::format("{}: has {} bytes, {} tokens need {}", kTokenMapFile, file->size(),
                              config.vocab_size, expected));
    return map;
  }
  map.resize(static_cast<size_t>(config.vocab_size));
  for (size_t t = 0; t < map.size(); ++t) map[t] = little_endian(file->data() + 4 * t);
  check_map(map, compressed, problems);
  return map;
}

std::string token_map_bytes(const std::vector<int32_t>& map) {
  std::string out;
  out.reserve(map.size() * 4);
  for (int32_t id : map) {
    const auto u = static_cast<uint32_t>(id);
    for (int shift = 0; shift < 32; shift += 8) out += static_cast<char>(u >> shift & 0xff);
  }
  return out;
}

}  // namespace deepinfer
