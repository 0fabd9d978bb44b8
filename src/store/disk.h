// The few file operations the store needs, with errors instead of surprises: descriptors that close
// themselves, direct opening where the file system offers it, whole writes, page-aligned memory. Knows no
// format. Errors: kNotFound, kResourceExhausted (the disk or the quota is full), kIo, naming the path.
// Threads: as the operating system's.
#pragma once

#include <sys/uio.h>

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"

namespace deepinfer::store {

class File {
 public:
  File() = default;
  File(int fd, std::string path, bool direct) : fd_(fd), path_(std::move(path)), direct_(direct) {}
  ~File();
  File(File&& other) noexcept;
  File& operator=(File&& other) noexcept;
  int fd() const { return fd_; }
  bool is_open() const { return fd_ >= 0; }
  bool direct() const { return direct_; }
  const std::string& path() const { return path_; }

 private:
  int fd_ = -1;
  std::string path_;
  bool direct_ = false;
};

struct FreeBuffer {
  void operator()(uint8_t* p) const;
};
// Zero-filled, page-aligned, a multiple of a page; in huge pages from 2 MB on, where the system has them.
struct Buffer {
  std::unique_ptr<uint8_t[], FreeBuffer> data;
  int64_t bytes = 0;
  std::span<uint8_t> span() const { return {data.get(), static_cast<size_t>(bytes)}; }
};
Buffer make_buffer(int64_t bytes);

enum class OpenMode { kRead, kReadDirect, kWrite, kWriteDirect, kCreate, kCreateDirect };
// kCreate*: the file must not exist. Direct falls back to ordinary where the file system refuses it.
Result<File> open_file(const std::string& path, OpenMode mode);
Status write_at(const File& file, std::vector<iovec> parts, int64_t offset);
Status write_at(const File& file, std::span<const uint8_t> bytes, int64_t offset);
// As many bytes as there are, at most bytes.size().
Result<size_t> read_at(const File& file, std::span<uint8_t> bytes, int64_t offset);
Result<int64_t> size_of(const File& file);
Status sync_data(const File& file);
// Gives the range's space back; false where the file system cannot.
bool punch(const File& file, int64_t offset, int64_t bytes);
// The next byte at or after `offset` that is not in a hole; the size at the end.
int64_t next_data(const File& file, int64_t offset, int64_t size);
Status make_directory(const std::string& path, bool must_be_new);
// Names in a directory, ascending; "." and ".." left out.
Result<std::vector<std::string>> names_in(const std::string& path);
bool exists(const std::string& path);
void remove_quietly(const std::string& path);
// A lock that ends with the process. False: somebody holds it.
bool try_lock(const File& file);

}  // namespace deepinfer::store
