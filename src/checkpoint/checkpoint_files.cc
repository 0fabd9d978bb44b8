// Opening and comparing, in the order in which messages help most: files, layout, then the table.
#include "checkpoint/checkpoint_files.h"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>
#include <utility>

#include "checkpoint/names.h"
#include "checkpoint/shard_index.h"
#include "checkpoint/token_map.h"

namespace deepinfer {
namespace {

constexpr size_t kMaxConfigBytes = 16'000'000;

// Where a tensor of some file is, under the table's name.
struct Found {
  size_t shard = 0;
  const TensorEntry* entry = nullptr;
};
using FoundMap = std::unordered_map<std::string, Found>;

ShardFile open_shard(const std::string& dir, const std::string& name, ProblemList* problems) {
  ShardFile shard;
  shard.name = name;
  Result<MappedFile> file = MappedFile::open(dir + "/" + name);
  if (!file.ok()) {
    problems->add(file.status().message());
    return shard;
  }
  shard.file = std::move(*file);
  Result<SafetensorsHeader> header = parse_safetensors_header(shard.file.bytes(), name);
  if (!header.ok()) {
    problems->add(header.status().message());
    return shard;
  }
  shard.header = std::move(*header);
  shard.readable = true;
  check_safetensors_layout(shard.header, shard.file.size(), name, problems);
  return shard;
}

FoundMap collect(const std::vector<ShardFile>& shards, ProblemList* problems) {
  FoundMap found;
  for (size_t s = 0; s < shards.size(); ++s) {
    for (const TensorEntry& entry : shards[s].header.tensors) {
      const auto [at, fresh] = found.try_emplace(canonical_tensor_name(entry.name), Found{s, &entry});
      if (!fresh) {
        problems->add(fmt::format("tensor {} of {} is also in {} (as {})", shown_name(entry.name),
                                  shards[s].name, shards[at->second.shard].name,
                                  shown_name(at->second.entry->name)));
      }
    }
  }
  return found;
}

// Names that the index puts in another file than the one they are in, and names that no index line mentions.
void compare_index(const ShardIndex& index, const std::vector<ShardFile>& shards, const FoundMap& found,
                   ProblemList* problems) {
  std::unordered_map<std::string_view, const ShardFile*> by_name;
  for (const ShardFile& shard : shards) by_name[shard.name] = &shard;
  std::unordered_map<std::string, const std::string*> indexed;
  for (const auto& [tensor, file] : index.weight_map) {
    std::string name = canonical_tensor_name(tensor);
    const auto at = found.find(name);
    if (by_name.at(file)->readable && (at == found.end() || shards[at->second.shard].name != file)) {
      problems->add(
          fmt::format("{}: says {} is in {}, which does not have it", kIndexFile, shown_name(tensor), file));
    }
    indexed[std::move(name)] = &file;
  }
  for (const ShardFile& shard : shards) {
    for (const TensorEntry& entry : shard.header.tensors) {
      if (!indexed.contains(canonical_tensor_name(entry.name))) {
        problems->add(
            fmt::format("{}: does not mention {} of {}", kIndexFile, shown_name(entry.name), shard.name));
      }
    }
  }
}

void check_total(const ShardIndex& index, const std::vector<ShardFile>& shards, ProblemList* problems) {
  if (!index.total_size) return;
  uint64_t total = 0;
  for (const ShardFile& shard : shards) {
    if (!shard.readable) return;
    total += shard.file.size() - shard.header.data_offset;
  }
  if (total != *index.total_size) {
    problems->add(
        fmt::format("{}: total_size is {}, the files hold {}", kIndexFile, *index.total_size, total));
  }
}

// Tensor by tensor against the table. `excused(name)`: its file could not be read, which is said once for the
// file.
template <typename Excused>
void compare_table(CheckpointFiles* files, FoundMap* found, Excused excused, ProblemList* problems) {
  for_each_tensor(files->config, [&](const TensorSpec& spec) {
    const auto at = found->find(spec.name);
    if (at == found->end()) {
      if (!excused(spec.name)) {
        problems->add(fmt::format("missing tensor {} ({} {})", spec.name, dtype_tag(spec.dtype),
                                  shown_shape(spec.shape)));
      }
      return;
    }
    const TensorEntry& entry = *at->second.entry;
    const ShardFile& shard = files->shards[at->second.shard];
    const bool same_type = entry.dtype == dtype_tag(spec.dtype), same_shape = entry.shape == spec.shape;
    const uint64_t data_bytes = shard.file.size() - shard.header.data_offset;
    if (!same_type || !same_shape) {
      problems->add(fmt::format("tensor {} in {} is {} {}, the configuration needs {} {}", spec.name,
                                shard.name, shown_name(entry.dtype), shown_shape(entry.shape),
                                dtype_tag(spec.dtype), shown_shape(spec.shape)));
    } else if (entry.begin <= entry.end && entry.end <= data_bytes &&
               entry.end - entry.begin == static_cast<uint64_t>(spec.bytes())) {
      files->tensors.emplace(
          spec.name,
          TensorBytes{spec, at->second.shard, shard.file.data() + shard.header.data_offset + entry.begin,
                      entry.end - entry.begin});
    }  // else the layout check has said what is wrong
    found->erase(at);
  });
  // What is left belongs to no tensor of the table; in file order, so that messages do not depend on hashing.
  for (const ShardFile& shard : files->shards) {
    for (const TensorEntry& entry : shard.header.tensors) {
      const auto at = found->find(canonical_tensor_name(entry.name));
      if (at != found->end() && at->second.entry == &entry) {
        problems->add(fmt::format("unexpected tensor {} in {} ({} {})", shown_name(entry.name), shard.name,
                                  shown_name(entry.dtype), shown_shape(entry.shape)));
      }
    }
  }
}

bool exists(const Result<MappedFile>& file) {
  return file.ok() || file.status().code() != Code::kNotFound;
}

}  // namespace

Result<ModelConfig> read_checkpoint_config(const std::string& dir) {
  const std::string path = dir + "/" + kConfigFile;
  Result<MappedFile> file = MappedFile::open(path);
  if (!file.ok() && file.status().code() == Code::kNotFound) {
    return error(Code::kNotFound,
                 "{}: no such file; a checkpoint directory needs {}, the weights as safetensors and {}", path,
                 kConfigFile, kTokenizerFile);
  }
  if (!file.ok()) return file.status();
  if (file->size() > kMaxConfigBytes) {
    return error(Code::kInvalidData, "{}: {} bytes are too many for a configuration", path, file->size());
  }
  const std::string_view text(reinterpret_cast<const char*>(file->data()), file->size());
  DI_ASSIGN(ModelConfig config, parse_config(text, path));
  config.name = dir;
  return config;
}

Result<std::unique_ptr<CheckpointFiles>> open_checkpoint_files(const std::string& dir, bool totals,
                                                               ProblemList* problems) {
  auto files = std::make_unique<CheckpointFiles>();
  files->dir = dir;
  DI_ASSIGN(files->config, read_checkpoint_config(dir));
  Result<MappedFile> index_file = MappedFile::open(dir + "/" + kIndexFile);
  ShardIndex index;
  if (exists(index_file)) {
    if (!index_file.ok()) return index_file.status();
    DI_ASSIGN(index, parse_shard_index(index_file->bytes(), kIndexFile));
    for (const std::string& name : index.files) files->shards.push_back(open_shard(dir, name, problems));
  } else {
    Result<MappedFile> single = MappedFile::open(dir + "/" + kSingleFile);
    if (!exists(single))
      return error(Code::kNotFound, "{}: has neither {} nor {}", dir, kIndexFile, kSingleFile);
    files->shards.push_back(open_shard(dir, kSingleFile, problems));
  }
  FoundMap found = collect(files->shards, problems);
  if (exists(index_file)) {
    compare_index(index, files->shards, found, problems);
    if (totals) check_total(index, files->shards, problems);
  }
  std::unordered_map<std::string, std::string> unreadable;
  const bool all_readable =
      std::all_of(files->shards.begin(), files->shards.end(), [](const ShardFile& s) { return s.readable; });
  if (!all_readable) {
    // A name whose file is unreadable is not "missing"; without an index nothing more can be said.
    std::unordered_map<std::string_view, bool> readable;
    for (const ShardFile& shard : files->shards) readable[shard.name] = shard.readable;
    for (const auto& [tensor, file] : index.weight_map) {
      if (!readable[file]) unreadable[canonical_tensor_name(tensor)] = file;
    }
  }
  const bool single_unreadable = !all_readable && !exists(index_file);
  compare_table(
      files.get(), &found,
      [&](const std::string& name) { return single_unreadable || unreadable.contains(name); }, problems);
  DI_ASSIGN(files->token_map, read_token_map(dir, files->config, problems));
  return files;
}

}  // namespace deepinfer
