// Hostile checkpoint headers: any bytes as a safetensors file (header and layout) and as a shard index. What
// parses must hold its own invariants, so that a wrong accept is found as well as a crash.
#include <algorithm>
#include <cstdint>
#include <span>
#include <string>

#include "base/check.h"
#include "checkpoint/names.h"
#include "checkpoint/safetensors.h"
#include "checkpoint/shard_index.h"

namespace {

using namespace deepinfer;

void read_file(std::span<const uint8_t> bytes) {
  const Result<SafetensorsHeader> header = parse_safetensors_header(bytes, "fuzz");
  if (!header.ok()) {
    DI_CHECK(!header.status().message().empty() && header.status().message().size() < 2000,
             header.status().message());
    return;
  }
  DI_CHECK(header->data_offset <= bytes.size(), "the header is inside the file");
  ProblemList problems;
  check_safetensors_layout(*header, bytes.size(), "fuzz", &problems);
  if (!problems.empty()) {
    DI_CHECK(problems.to_status("fuzz").message().size() < 40000, "messages are bounded");
    return;
  }
  // A sound layout covers every data byte exactly once.
  uint64_t covered = 0;
  for (const TensorEntry& t : header->tensors) {
    DI_CHECK(t.begin <= t.end && t.end <= bytes.size() - header->data_offset, t.name);
    covered += t.end - t.begin;
    (void)canonical_tensor_name(t.name);
  }
  DI_CHECK(covered == bytes.size() - header->data_offset, "no hole, no overlap");
}

void read_index(std::span<const uint8_t> bytes) {
  const Result<ShardIndex> index = parse_shard_index(bytes, "fuzz");
  if (!index.ok()) return;
  for (const auto& [tensor, file] : index->weight_map) {
    DI_CHECK(file.find('/') == std::string::npos && file.find('\0') == std::string::npos && file != "." &&
                 file != "..",
             file);
    DI_CHECK(std::binary_search(index->files.begin(), index->files.end(), file), file);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::span<const uint8_t> bytes(data, size);
  read_file(bytes);
  read_index(bytes);
  // The same text as a header of the right length, so that mutations need not keep the length in step.
  std::string file(8, '\0');
  for (size_t i = 0; i < 8; ++i) file[i] = static_cast<char>(uint64_t{size} >> (8 * i) & 0xff);
  file.append(reinterpret_cast<const char*>(data), size);
  read_file({reinterpret_cast<const uint8_t*>(file.data()), file.size()});
  return 0;
}
