// The value scan: tensors are cut into pieces, pieces are spread over threads, findings are reported in table
// order.
#include "checkpoint/check.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <memory>
#include <unordered_set>
#include <vector>

#include "base/numeric.h"
#include "checkpoint/digest.h"
#include "checkpoint/names.h"
#include "host/thread_pool.h"

namespace deepinfer {
namespace {

constexpr uint64_t kPieceBytes = 4 << 20;

bool is_bad(DType dtype, const uint8_t* p) {
  switch (dtype) {
    case DType::kF8E8M0:
      return *p == 255;
    case DType::kF8E4M3:
      return (*p & 0x7f) == 0x7f;
    case DType::kI8:
      return false;  // every nibble is a number
    case DType::kBF16: {
      uint16_t b;
      std::memcpy(&b, p, 2);
      return (b & 0x7f80) == 0x7f80;
    }
    case DType::kF32: {
      uint32_t b;
      std::memcpy(&b, p, 4);
      return (b & 0x7f800000) == 0x7f800000;
    }
  }
  return false;
}

// Index of the first bad element of a piece, or -1. Blocks are scanned without leaving early, which compilers
// turn into vector code.
template <DType dtype>
int64_t scan(const uint8_t* bytes, uint64_t n) {
  constexpr uint64_t kStep = dtype == DType::kF32 ? 4 : dtype == DType::kBF16 ? 2 : 1;
  constexpr uint64_t kBlock = 4096;
  for (uint64_t b = 0; b < n; b += kBlock) {
    const uint64_t end = std::min(n, b + kBlock);
    unsigned bad = 0;
    for (uint64_t i = b; i < end; i += kStep) bad |= is_bad(dtype, bytes + i) ? 1u : 0u;
    if (bad == 0) continue;
    for (uint64_t i = b; i < end; i += kStep) {
      if (is_bad(dtype, bytes + i)) return static_cast<int64_t>(i / kStep);
    }
  }
  return -1;
}

int64_t first_bad(DType dtype, const uint8_t* bytes, uint64_t n) {
  switch (dtype) {
    case DType::kBF16:
      return scan<DType::kBF16>(bytes, n);
    case DType::kF32:
      return scan<DType::kF32>(bytes, n);
    case DType::kF8E4M3:
      return scan<DType::kF8E4M3>(bytes, n);
    case DType::kF8E8M0:
      return scan<DType::kF8E8M0>(bytes, n);
    case DType::kI8:
      return -1;
  }
  return -1;
}

// What the pieces of one tensor found; several threads write.
struct Finding {
  std::atomic<int64_t> first_bad{INT64_MAX};
  std::atomic<uint64_t> digest{0};
};

void keep_smallest(std::atomic<int64_t>* at, int64_t value) {
  int64_t old = at->load();
  while (value < old && !at->compare_exchange_weak(old, value)) {
  }
}

std::string hex(uint64_t v) {
  return fmt::format("{:016x}", v);
}

// Whether this file's metadata carries digests of our kind.
bool has_digests(const ShardFile& shard) {
  const auto format = shard.header.metadata.find(kDigestFormatKey);
  return format != shard.header.metadata.end() && format->second == kDigestFormat;
}

// The stored digest of a tensor or file, or nullptr.
const std::string* stored_digest(const ShardFile& shard, const std::string& key) {
  if (!has_digests(shard)) return nullptr;
  const auto at = shard.header.metadata.find(key);
  return at == shard.header.metadata.end() ? nullptr : &at->second;
}

// A damaged key must not switch the check off: where there are digests, the metadata holds nothing but them
// and a digest for every tensor.
void check_metadata(const ShardFile& shard, ProblemList* problems) {
  const auto& metadata = shard.header.metadata;
  std::unordered_set<std::string> known = {"format", kDigestFormatKey};
  for (const char* name : {kConfigFile, kTokenMapFile, kTokenizerFile, kGenerationConfigFile})
    known.insert(file_digest_key(name));
  for (const TensorEntry& t : shard.header.tensors) {
    const std::string key = digest_key(canonical_tensor_name(t.name));
    if (has_digests(shard) && !metadata.contains(key)) {
      problems->add(fmt::format("{}: has digests, but none of tensor {}", shard.name, shown_name(t.name)));
    }
    known.insert(key);
  }
  for (const auto& [key, value] : metadata) {
    const bool ours =
        key.starts_with(digest_key("")) || key.starts_with(file_digest_key("")) || key == kDigestFormatKey;
    if (!has_digests(shard) && ours) {
      problems->add(fmt::format("{}: metadata has {}, but no {} of {}: cannot be verified", shard.name,
                                shown_name(key), kDigestFormatKey, kDigestFormat));
      return;
    }
    if (has_digests(shard) && (!known.contains(key) || (key == "format" && value != "pt"))) {
      problems->add(fmt::format("{}: metadata has {} = {}, which was not written with the digests",
                                shard.name, shown_name(key), shown_name(value)));
    }
  }
}

void check_side_files(const CheckpointFiles& files, ProblemList* problems) {
  for (const char* name : {kConfigFile, kTokenMapFile, kTokenizerFile, kGenerationConfigFile}) {
    for (const ShardFile& shard : files.shards) {
      const std::string* stored = stored_digest(shard, file_digest_key(name));
      if (stored == nullptr) continue;
      Result<MappedFile> file = MappedFile::open(files.dir + "/" + name);
      if (!file.ok()) {
        problems->add(file.status().message());
      } else if (hex(piece_digest(file->data(), file->size(), 0)) != *stored) {
        problems->add(fmt::format(
            "{}: its bytes differ from those written with the weights (damaged or edited)", name));
      }
    }
  }
}

void report(const CheckpointFiles& files, const TensorBytes& t, const Finding& finding,
            ProblemList* problems) {
  const ShardFile& shard = files.shards[t.shard];
  if (const int64_t bad = finding.first_bad.load(); bad != INT64_MAX) {
    const uint8_t* p = t.data + bad * dtype_bytes(t.spec.dtype);
    std::string bytes;
    for (int64_t i = dtype_bytes(t.spec.dtype) - 1; i >= 0; --i) bytes += fmt::format("{:02x}", p[i]);
    problems->add(fmt::format("tensor {} in {}: element {} is {} 0x{}, which is not a finite number",
                              t.spec.name, shard.name, bad, dtype_tag(t.spec.dtype), bytes));
  }
  const std::string* stored = stored_digest(shard, digest_key(t.spec.name));
  if (stored != nullptr && hex(finding.digest.load()) != *stored) {
    problems->add(fmt::format("tensor {} in {}: its bytes differ from those written (damaged)", t.spec.name,
                              shard.name));
  }
}

}  // namespace

void check_values(const CheckpointFiles& files, ProblemList* problems) {
  struct Piece {
    size_t tensor;
    uint64_t begin;
  };
  std::vector<const TensorBytes*> tensors;  // in table order
  std::vector<Piece> pieces;
  for_each_tensor(files.config, [&](const TensorSpec& spec) {
    const auto at = files.tensors.find(spec.name);
    if (at == files.tensors.end()) return;
    for (uint64_t b = 0; b < at->second.bytes; b += kPieceBytes) pieces.push_back({tensors.size(), b});
    tensors.push_back(&at->second);
  });
  std::vector<Finding> findings(tensors.size());
  ThreadPool pool(ThreadPool::usable_cpus());
  pool.run(static_cast<int64_t>(pieces.size()), [&](int64_t i, int) {
    const Piece& piece = pieces[static_cast<size_t>(i)];
    const TensorBytes& t = *tensors[piece.tensor];
    const uint64_t n = std::min(kPieceBytes, t.bytes - piece.begin);
    const uint8_t* bytes = t.data + piece.begin;
    if (const int64_t bad = first_bad(t.spec.dtype, bytes, n); bad >= 0) {
      keep_smallest(&findings[piece.tensor].first_bad,
                    static_cast<int64_t>(piece.begin) / dtype_bytes(t.spec.dtype) + bad);
    }
    findings[piece.tensor].digest += piece_digest(bytes, n, piece.begin);
    // A checkpoint larger than memory is walked once: pages read here are of no more use to this process. A
    // fault maps pages around it too, also ones of a neighbour that has been dropped already, so a little
    // more is dropped on both sides.
    constexpr size_t kAround = 64 << 10;
    const MappedFile& file = files.shards[t.shard].file;
    const auto at = static_cast<size_t>(bytes - file.data());
    const size_t before = std::min(at, kAround);
    file.advise(MapAdvice::kDontNeed, at - before, before + n + kAround);
  });
  for (size_t i = 0; i < tensors.size(); ++i) report(files, *tensors[i], findings[i], problems);
  for (const ShardFile& shard : files.shards) check_metadata(shard, problems);
  check_side_files(files, problems);
}

Status check_checkpoint(const std::string& dir, ProblemList* problems) {
  DI_ASSIGN(std::unique_ptr<CheckpointFiles> files, open_checkpoint_files(dir, true, problems));
  if (problems->empty()) check_values(*files, problems);
  return Status();
}

}  // namespace deepinfer
