// A file mapped read-only into memory. Knows nothing of its content; a checkpoint of hundreds of gigabytes
// costs address space only. If someone truncates a mapped file, a read past its new end raises SIGBUS: files
// of a running model must not be edited in place. Source: model specification 5.4 (tables stay on disk,
// mapped, gathered by row). Threads: an open file is immutable and may be shared.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "base/status.h"

namespace deepinfer {

// What the kernel may assume about coming reads; hints only, refusals are ignored.
enum class MapAdvice {
  kNormal,
  kSequential,  // read ahead a lot, drop behind
  kRandom,      // no read-ahead: Engram rows
  kWillNeed,    // start reading now
  kDontNeed,    // forget the pages of this process; the next read faults them in again
  kHuge,        // read and map in huge pages where file system and kernel can
};

// Hints about `length` bytes of a file mapping, widened to whole pages (kDontNeed: narrowed, so neighbours
// stay). REQUIRES that all of them are inside a MappedFile: forgetting other memory loses it.
void advise_mapping(MapAdvice advice, const uint8_t* data, size_t length);

class MappedFile {
 public:
  MappedFile() = default;
  ~MappedFile();
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  // Maps a regular file (symbolic links are followed). An empty file is legal and has no bytes.
  // Errors: kNotFound if the path does not exist, kInvalidData if it is not a regular file, kIo for what the
  // system refuses.
  static Result<MappedFile> open(const std::string& path);

  const uint8_t* data() const { return data_; }
  size_t size() const { return size_; }
  std::span<const uint8_t> bytes() const { return {data_, size_}; }
  const std::string& path() const { return path_; }

  // Hints about [offset, offset + length), cut to the file and widened to whole pages (kDontNeed: narrowed,
  // so neighbours stay).
  void advise(MapAdvice advice, size_t offset = 0, size_t length = SIZE_MAX) const;

 private:
  void close();

  const uint8_t* data_ = nullptr;
  size_t size_ = 0;
  std::string path_;
};

}  // namespace deepinfer
