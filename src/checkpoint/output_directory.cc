// Creating, renaming and removing. Every removal goes through remove_checkpoint, which refuses what it does
// not know.
#include "checkpoint/output_directory.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <stdio.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <system_error>
#include <utility>
#include <vector>

#include "checkpoint/checkpoint_files.h"

namespace deepinfer {
namespace fs = std::filesystem;
namespace {

Result<std::vector<std::string>> list_names(const std::string& dir) {
  std::vector<std::string> names;
  std::error_code ec;
  fs::directory_iterator it(dir, ec);
  for (; !ec && it != fs::directory_iterator(); it.increment(ec))
    names.push_back(it->path().filename().string());
  if (ec) return error(Code::kIo, "{}: cannot list: {}", dir, ec.message());
  std::sort(names.begin(), names.end());
  return names;
}

// Removes a directory that holds checkpoint files only.
Status remove_checkpoint(const std::string& dir) {
  DI_ASSIGN(std::vector<std::string> names, list_names(dir));
  for (const std::string& name : names) {
    if (!is_checkpoint_file(name)) {
      return error(Code::kInvalidArgument,
                   "{} holds {}, which is not part of a checkpoint; not removing the directory", dir, name);
    }
  }
  for (const std::string& name : names) {
    if (::unlink((dir + "/" + name).c_str()) != 0) {
      return error(Code::kIo, "{}/{}: cannot remove: {}", dir, name, std::strerror(errno));
    }
  }
  if (::rmdir(dir.c_str()) != 0) return error(Code::kIo, "{}: cannot remove: {}", dir, std::strerror(errno));
  return Status();
}

Status check_target(const std::string& dir, bool force) {
  std::error_code ec;
  const fs::file_status status = fs::status(dir, ec);
  if (status.type() == fs::file_type::not_found) return Status();
  if (ec) return error(Code::kIo, "{}: {}", dir, ec.message());
  if (!fs::is_directory(status))
    return error(Code::kInvalidArgument, "{} exists and is not a directory", dir);
  DI_ASSIGN(std::vector<std::string> names, list_names(dir));
  if (names.empty()) return Status();
  if (!force) {
    return error(
        Code::kInvalidArgument,
        "{} exists and is not empty; choose another directory or pass --force to replace the checkpoint",
        dir);
  }
  for (const std::string& name : names) {
    if (!is_checkpoint_file(name)) {
      return error(Code::kInvalidArgument,
                   "{} holds {}, which is not part of a checkpoint; --force replaces checkpoints only", dir,
                   name);
    }
  }
  return Status();
}

Status check_space(const std::string& dir, int64_t need_bytes) {
  struct statvfs fs_info{};
  if (::statvfs(dir.c_str(), &fs_info) != 0)
    return error(Code::kIo, "{}: cannot read free space: {}", dir, std::strerror(errno));
  const auto free = static_cast<int64_t>(fs_info.f_bavail) * static_cast<int64_t>(fs_info.f_frsize);
  if (free >= need_bytes) return Status();
  return error(Code::kResourceExhausted, "{}: the checkpoint needs {:.1f} GB, the disk has {:.1f} GB free",
               dir, static_cast<double>(need_bytes) / 1e9, static_cast<double>(free) / 1e9);
}

void flush_directory(const std::string& dir) {
  // Best effort: some file systems cannot flush a directory, and the files themselves are already safe.
  const int fd = ::open(dir.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) return;
  (void)::fsync(fd);
  ::close(fd);
}

}  // namespace

bool is_checkpoint_file(std::string_view name) {
  for (const char* known :
       {kConfigFile, kIndexFile, kSingleFile, kTokenMapFile, kTokenizerFile, kGenerationConfigFile}) {
    if (name == known) return true;
  }
  // model-00001-of-00048.safetensors
  constexpr std::string_view kPattern = "model-#####-of-#####.safetensors";
  if (name.size() != kPattern.size()) return false;
  for (size_t i = 0; i < name.size(); ++i) {
    const bool digit = name[i] >= '0' && name[i] <= '9';
    if (kPattern[i] == '#' ? !digit : name[i] != kPattern[i]) return false;
  }
  return true;
}

Result<OutputDirectory> OutputDirectory::create(const std::string& dir, bool force, int64_t need_bytes) {
  std::error_code ec;
  // A link is replaced by what it points to, so that the files end up on the disk that was chosen with it.
  fs::path path = fs::weakly_canonical(fs::absolute(dir, ec), ec);
  if (ec) return error(Code::kIo, "{}: {}", dir, ec.message());
  if (path.filename().empty()) path = path.parent_path();
  if (path.filename().empty())
    return error(Code::kInvalidArgument, "'{}' cannot be an output directory", dir);
  OutputDirectory out;
  out.final_ = path.string();
  out.partial_ = out.final_ + ".partial";
  DI_TRY(check_target(out.final_, force));
  const std::string parent = path.parent_path().string();
  fs::create_directories(parent, ec);
  if (ec) return error(Code::kIo, "{}: cannot create: {}", parent, ec.message());
  if (fs::exists(fs::symlink_status(out.partial_, ec))) DI_TRY(remove_checkpoint(out.partial_));
  DI_TRY(check_space(parent, need_bytes));
  if (::mkdir(out.partial_.c_str(), 0777) != 0) {
    return error(Code::kIo, "{}: cannot create: {}", out.partial_, std::strerror(errno));
  }
  out.live_ = true;
  return out;
}

OutputDirectory::OutputDirectory(OutputDirectory&& other) noexcept
    : final_(std::move(other.final_)),
      partial_(std::move(other.partial_)),
      live_(std::exchange(other.live_, false)) {}

OutputDirectory::~OutputDirectory() {
  if (live_)
    (void)remove_checkpoint(
        partial_);  // what cannot be removed stays as *.partial, which no loader is pointed to
}

Status OutputDirectory::commit() {
  flush_directory(partial_);
  const std::string parent = fs::path(final_).parent_path().string();
  if (::rename(partial_.c_str(), final_.c_str()) == 0) {  // the target is absent or empty
    live_ = false;
    flush_directory(parent);
    return Status();
  }
  if (errno != ENOTEMPTY && errno != EEXIST) {
    return error(Code::kIo, "{}: cannot rename to {}: {}", partial_, final_, std::strerror(errno));
  }
  // --force: exchange the two names in one step, then remove the old checkpoint under the .partial name.
  if (::renameat2(AT_FDCWD, partial_.c_str(), AT_FDCWD, final_.c_str(), RENAME_EXCHANGE) != 0) {
    return error(Code::kIo, "{}: cannot exchange with {}: {}; remove the old directory and try again",
                 partial_, final_, std::strerror(errno));
  }
  live_ = false;
  flush_directory(parent);
  return remove_checkpoint(partial_);
}

}  // namespace deepinfer
