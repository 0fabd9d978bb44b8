// Plan of shards, the threads that fill them, and the small files beside them.
#include "checkpoint/synth.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <map>
#include <mutex>
#include <string_view>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "base/check.h"
#include "checkpoint/checkpoint_files.h"
#include "checkpoint/digest.h"
#include "checkpoint/output_directory.h"
#include "checkpoint/safetensors.h"
#include "checkpoint/shard_index.h"
#include "checkpoint/synth_encode.h"
#include "checkpoint/token_map.h"
#include "host/files.h"
#include "host/thread_pool.h"
#include "model/engram.h"
#include "model/tensor_table.h"

namespace deepinfer {
namespace {

// A weight and, if it is quantised, its scale.
struct Item {
  TensorSpec weight;
  bool quantised = false;
  TensorSpec scale;
  int64_t bytes() const { return weight.bytes() + (quantised ? scale.bytes() : 0); }
};
using Shard = std::vector<Item>;

// Shards in table order: a new one where the layer changes and where the next item would make it too large.
std::vector<Shard> plan_shards(const ModelConfig& config, int64_t total_bytes, int64_t shard_bytes) {
  std::vector<Item> items;
  for_each_tensor(config, [&](const TensorSpec& t) {
    if (t.role == Role::kScale) {
      items.back().quantised = true;
      items.back().scale = t;
    } else {
      items.push_back({t, false, {}});
    }
  });
  std::vector<Shard> shards;
  const bool single = total_bytes <= kSingleFileBytes && total_bytes <= shard_bytes;
  int64_t bytes = 0;
  for (Item& item : items) {
    bool fresh = shards.empty();
    if (!fresh && !single) {
      const TensorSpec& last = shards.back().back().weight;
      fresh = last.layer != item.weight.layer ||
              (last.role == Role::kEngramTable) != (item.weight.role == Role::kEngramTable) ||
              bytes + item.bytes() > shard_bytes;
    }
    if (fresh) {
      shards.emplace_back();
      bytes = 0;
    }
    bytes += item.bytes();
    shards.back().push_back(std::move(item));
  }
  return shards;
}

// Rows of one item: a unit of work. 256-row steps keep the scale's bytes a multiple of 8, which the digest
// needs; about 1 MB each.
struct Unit {
  size_t item;
  int64_t row0, row1;
};

std::vector<Unit> cut_units(const Shard& shard) {
  constexpr int64_t kStep = 256, kTargetBytes = 1 << 20;
  std::vector<Unit> units;
  for (size_t i = 0; i < shard.size(); ++i) {
    const int64_t rows = logical_rows(shard[i].weight);
    const int64_t row_bytes = std::max<int64_t>(1, shard[i].weight.bytes() / rows);
    const int64_t step = std::max<int64_t>(1, kTargetBytes / row_bytes / kStep) * kStep;
    for (int64_t r = 0; r < rows; r += step) units.push_back({i, r, std::min(rows, r + step)});
  }
  return units;
}

// Work on one shard file, shared by the threads.
class ShardWriter {
 public:
  ShardWriter(const Shard& shard, std::string path, uint64_t seed)
      : shard_(shard), path_(std::move(path)), seed_(seed) {
    digests_ = std::vector<std::atomic<uint64_t>>(2 * shard.size());
    lay_out();
  }
  ~ShardWriter() {
    if (fd_ >= 0) ::close(fd_);
  }
  ShardWriter(const ShardWriter&) = delete;
  ShardWriter& operator=(const ShardWriter&) = delete;

  Status open(std::map<std::string, std::string> metadata) {
    metadata_ = std::move(metadata);
    data_offset_ = header().size();
    fd_ = ::open(path_.c_str(), O_CREAT | O_EXCL | O_RDWR | O_CLOEXEC, 0666);
    if (fd_ < 0) return error(Code::kIo, "{}: cannot create: {}", path_, std::strerror(errno));
    // Reserving the space now tells at once if the disk is too small; file systems that cannot do it just
    // grow the file.
    if (::fallocate(fd_, 0, 0, static_cast<off_t>(data_offset_ + data_bytes_)) != 0 && errno == ENOSPC) {
      return error(Code::kResourceExhausted, "{}: the disk has no room for {} bytes", path_,
                   data_offset_ + data_bytes_);
    }
    return Status();
  }

  // Encodes and writes one unit; `buffer` is the calling thread's own. Adds the bytes written to `done`.
  Status write(const Unit& unit, std::vector<uint8_t>* buffer, std::atomic<int64_t>* done) {
    const Item& item = shard_[unit.item];
    const int64_t rows = logical_rows(item.weight), n = unit.row1 - unit.row0;
    const int64_t row_bytes = item.weight.bytes() / rows;
    int64_t scale_row0 = 0, scale_bytes = 0, scale_row_bytes = 0;
    if (item.quantised) {
      const int64_t per = item.scale.shape[0] == rows ? 1 : 32;  // weight rows per scale row
      scale_row_bytes = item.scale.shape[1];
      scale_row0 = unit.row0 / per;
      scale_bytes = (n + per - 1) / per * scale_row_bytes;
    }
    buffer->resize(static_cast<size_t>(n * row_bytes + scale_bytes));
    uint8_t* weight = buffer->data();
    uint8_t* scale = weight + n * row_bytes;
    encode_rows(item.weight, synthetic_stream(item.weight, seed_), unit.row0, unit.row1, weight, scale);
    DI_TRY(put(2 * unit.item, weight, n * row_bytes, unit.row0 * row_bytes));
    if (scale_bytes > 0) DI_TRY(put(2 * unit.item + 1, scale, scale_bytes, scale_row0 * scale_row_bytes));
    *done += n * row_bytes + scale_bytes;
    return Status();
  }

  // Writes the header, which holds the digests and so comes last, and flushes the file.
  Status finish() {
    const std::string head = header();
    DI_CHECK(head.size() == data_offset_, "digests have a fixed length");
    DI_TRY(write_at(reinterpret_cast<const uint8_t*>(head.data()), static_cast<int64_t>(head.size()), 0));
    if (::fsync(fd_) != 0) return error(Code::kIo, "{}: cannot flush: {}", path_, std::strerror(errno));
    if (::close(std::exchange(fd_, -1)) != 0)
      return error(Code::kIo, "{}: cannot close: {}", path_, std::strerror(errno));
    return Status();
  }

 private:
  // Tensor numbers: 2i the weight of item i, 2i+1 its scale. Files hold wide types first, so that every
  // element is aligned.
  void lay_out() {
    for (size_t i = 0; i < shard_.size(); ++i) {
      order_.push_back(2 * i);
      if (shard_[i].quantised) order_.push_back(2 * i + 1);
    }
    std::stable_sort(order_.begin(), order_.end(), [&](size_t a, size_t b) {
      return dtype_bytes(spec(a).dtype) > dtype_bytes(spec(b).dtype);
    });
    begin_.resize(2 * shard_.size());
    for (size_t t : order_) {
      begin_[t] = data_bytes_;
      data_bytes_ += static_cast<uint64_t>(spec(t).bytes());
    }
  }
  const TensorSpec& spec(size_t t) const { return t % 2 == 0 ? shard_[t / 2].weight : shard_[t / 2].scale; }

  std::string header() {
    std::map<std::string, std::string> metadata = metadata_;
    std::vector<TensorEntry> entries;
    for (size_t t : order_) {
      metadata[digest_key(spec(t).name)] = fmt::format("{:016x}", digests_[t].load());
      entries.push_back({spec(t).name, dtype_tag(spec(t).dtype), spec(t).shape});
    }
    return make_safetensors_header(&entries, metadata);
  }

  Status put(size_t t, const uint8_t* bytes, int64_t n, int64_t offset) {
    digests_[t] += piece_digest(bytes, static_cast<size_t>(n), static_cast<uint64_t>(offset));
    return write_at(bytes, n, static_cast<int64_t>(data_offset_ + begin_[t]) + offset);
  }

  Status write_at(const uint8_t* bytes, int64_t n, int64_t at) {
    while (n > 0) {
      const ssize_t written = ::pwrite(fd_, bytes, static_cast<size_t>(n), at);
      if (written < 0 && errno == EINTR) continue;
      if (written < 0) {
        return error(errno == ENOSPC ? Code::kResourceExhausted : Code::kIo, "{}: cannot write: {}", path_,
                     std::strerror(errno));
      }
      bytes += written;
      n -= written;
      at += written;
    }
    return Status();
  }

  const Shard& shard_;
  std::string path_;
  uint64_t seed_;
  std::map<std::string, std::string> metadata_;
  std::vector<std::atomic<uint64_t>> digests_;  // by tensor number
  std::vector<size_t> order_;                   // tensor numbers in file order
  std::vector<uint64_t> begin_;                 // by tensor number, after the header
  uint64_t data_bytes_ = 0, data_offset_ = 0;
  int fd_ = -1;
};

// Runs the units of one shard on all threads; the first error wins and the rest is skipped.
class Crew {
 public:
  Crew(const SynthOptions& options, int64_t total)
      : options_(options),
        total_(total),
        pool_(options.threads > 0 ? options.threads : ThreadPool::usable_cpus()) {
    buffers_.resize(static_cast<size_t>(pool_.threads()));
  }

  Status run(ShardWriter* writer, const std::vector<Unit>& units) {
    pool_.run(static_cast<int64_t>(units.size()), [&](int64_t i, int worker) {
      if (failed_.load(std::memory_order_relaxed)) return;
      Status status =
          options_.stop && options_.stop()
              ? Status(Code::kCancelled, "stopped before the checkpoint was complete")
              : writer->write(units[static_cast<size_t>(i)], &buffers_[static_cast<size_t>(worker)], &done_);
      if (!status.ok()) {
        std::lock_guard lock(mutex_);
        if (first_error_.ok()) first_error_ = std::move(status);
        failed_ = true;
      } else if (worker == 0) {
        report(false);
      }
    });
    return first_error_;
  }

  // From the caller's thread only, at most five times a second unless `always`.
  void report(bool always) {
    const auto now = std::chrono::steady_clock::now();
    if (!options_.progress || (!always && now - last_report_ < std::chrono::milliseconds(200))) return;
    last_report_ = now;
    options_.progress(done_.load(), total_);
  }

 private:
  const SynthOptions& options_;
  int64_t total_;
  ThreadPool pool_;
  std::vector<std::vector<uint8_t>> buffers_;  // by worker
  std::atomic<int64_t> done_{0};
  std::atomic<bool> failed_{false};
  std::mutex mutex_;
  Status first_error_;
  std::chrono::steady_clock::time_point last_report_{};
};

std::string generation_config_json(const ModelConfig& config) {
  nlohmann::ordered_json j;
  j["bos_token_id"] = config.bos_token_id;
  j["eos_token_id"] = config.eos_token_id;
  j["pad_token_id"] = config.pad_token_id;
  j["do_sample"] = true;
  j["temperature"] = 1.0;
  j["top_p"] = 1.0;
  return j.dump(2) + "\n";
}

// The small files by name. Random weights know no language, so any map of tokens that keeps the rules serves:
// the tiny rule.
std::map<std::string, std::string> side_files(const ModelConfig& config) {
  std::map<std::string, std::string> files;
  files[kConfigFile] = config_to_json(config);
  files[kGenerationConfigFile] = generation_config_json(config);
  files[kTokenizerFile] = synthetic_tokenizer_json(config);
  if (!config.engram_layer_ids.empty()) {
    files[kTokenMapFile] =
        token_map_bytes(tiny_token_map(config.vocab_size, config.engram_compressed_vocab_size));
  }
  return files;
}

std::string shard_name(size_t i, size_t count) {
  return count == 1 ? kSingleFile : fmt::format("model-{:05}-of-{:05}.safetensors", i + 1, count);
}

}  // namespace

Status synthesise(const ModelConfig& config, const std::string& dir, const SynthOptions& options,
                  SynthReport* report) {
  const TensorTotals totals = tensor_totals(config);
  const std::vector<Shard> shards = plan_shards(config, totals.bytes, options.shard_bytes);
  const std::map<std::string, std::string> sides = side_files(config);
  constexpr int64_t kSlack = 16 << 20;  // headers, small files, the file system's own blocks
  DI_ASSIGN(OutputDirectory out,
            OutputDirectory::create(dir, options.force, totals.bytes + totals.bytes / 200 + kSlack));
  std::map<std::string, std::string> first_metadata;
  for (const auto& [name, content] : sides) {
    DI_TRY(write_file_atomically(out.partial() + "/" + name, content));
    const uint64_t digest = piece_digest(reinterpret_cast<const uint8_t*>(content.data()), content.size(), 0);
    first_metadata[file_digest_key(name)] = fmt::format("{:016x}", digest);
  }
  Crew crew(options, totals.bytes);
  ShardIndex index;
  index.total_size = static_cast<uint64_t>(totals.bytes);
  for (size_t s = 0; s < shards.size(); ++s) {
    const std::string name = shard_name(s, shards.size());
    std::map<std::string, std::string> metadata;
    if (s == 0) metadata = first_metadata;
    metadata[kDigestFormatKey] = kDigestFormat;
    metadata["format"] = "pt";  // what readers of the Python libraries expect to find
    ShardWriter writer(shards[s], out.partial() + "/" + name, options.seed);
    DI_TRY(writer.open(std::move(metadata)));
    DI_TRY(crew.run(&writer, cut_units(shards[s])));
    DI_TRY(writer.finish());
    for (const Item& item : shards[s]) {
      index.weight_map[item.weight.name] = name;
      if (item.quantised) index.weight_map[item.scale.name] = name;
    }
  }
  if (shards.size() > 1)
    DI_TRY(write_file_atomically(out.partial() + "/" + kIndexFile, make_shard_index(index)));
  DI_TRY(out.commit());
  crew.report(true);
  if (report != nullptr) *report = {totals.count, totals.bytes, static_cast<int64_t>(shards.size())};
  return Status();
}

}  // namespace deepinfer
