// A directory that appears whole or not at all: it is filled as DIR.partial and renamed when done. Knows the
// names of checkpoint files, so that it never removes anything else. Threads: one owner.
#pragma once

#include <string>
#include <string_view>

#include "base/status.h"

namespace deepinfer {

// True for the files this program writes into a checkpoint directory.
bool is_checkpoint_file(std::string_view name);

class OutputDirectory {
 public:
  // Checks `dir` and makes an empty DIR.partial beside it (a left-over one of an interrupted run is removed
  // first). Errors: kInvalidArgument if `dir` is a file, is not empty (without `force`), or holds anything
  // but checkpoint files (with `force`); kResourceExhausted if the disk has fewer than `need_bytes` free;
  // kIo.
  static Result<OutputDirectory> create(const std::string& dir, bool force, int64_t need_bytes);

  OutputDirectory(OutputDirectory&& other) noexcept;
  OutputDirectory& operator=(OutputDirectory&&) = delete;
  OutputDirectory(const OutputDirectory&) = delete;
  ~OutputDirectory();  // removes DIR.partial unless committed

  const std::string& partial() const { return partial_; }  // where files are written
  // Flushes the directory and puts it in place. The caller has flushed the files. What was there before is
  // removed. Errors: kIo.
  Status commit();

 private:
  OutputDirectory() = default;
  std::string final_, partial_;
  bool live_ = false;  // DIR.partial is ours to remove
};

}  // namespace deepinfer
