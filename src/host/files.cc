// Whole-file reads and atomic writes. See files.h.
#include "host/files.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <system_error>

namespace deepinfer {
namespace {

std::string reason(int error_number) {
  return std::generic_category().message(error_number);
}

struct Descriptor {
  int fd = -1;
  ~Descriptor() {
    if (fd >= 0) ::close(fd);
  }
};

Status write_all(int fd, const std::string& path, std::string_view bytes) {
  while (!bytes.empty()) {
    ssize_t n = ::write(fd, bytes.data(), bytes.size());
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return error(Code::kIo, "cannot write {}: {}", path, reason(errno));
    bytes.remove_prefix(static_cast<size_t>(n));
  }
  return {};
}

// Makes the rename itself durable. Some file systems refuse to flush a folder; the data is safe by then, so
// that is no error.
void flush_folder_of(const std::string& path) {
  size_t slash = path.find_last_of('/');
  std::string folder = slash == std::string::npos ? "." : slash == 0 ? "/" : path.substr(0, slash);
  Descriptor d{::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC)};
  if (d.fd >= 0) ::fsync(d.fd);
}

}  // namespace

Result<std::string> read_descriptor(int fd, const std::string& name, int64_t limit_bytes) {
  constexpr size_t kChunk = 1 << 16;
  DI_CHECK(limit_bytes >= 0, "negative limit");
  size_t limit = static_cast<size_t>(limit_bytes);
  std::string out;
  for (;;) {
    // One byte more than the limit tells "exactly full" from "too large".
    size_t want = std::min(std::max(kChunk, out.size()), limit + 1 - out.size());
    size_t old = out.size();
    out.resize(old + want);
    ssize_t n = ::read(fd, out.data() + old, want);
    int why = errno;
    out.resize(old + static_cast<size_t>(std::max<ssize_t>(n, 0)));
    if (n < 0 && why == EINTR) continue;
    if (n < 0 && why == EISDIR) return error(Code::kInvalidArgument, "{} is a folder; give a file", name);
    if (n < 0) return error(Code::kIo, "cannot read {}: {}", name, reason(why));
    if (n == 0) return out;
    if (out.size() > limit) {
      return error(Code::kResourceExhausted, "{} is larger than the {} bytes allowed here", name,
                   limit_bytes);
    }
  }
}

Result<std::string> read_file(const std::string& path, int64_t limit_bytes) {
  Descriptor d{::open(path.c_str(), O_RDONLY | O_CLOEXEC)};
  if (d.fd < 0) {
    Code code = errno == ENOENT || errno == ENOTDIR ? Code::kNotFound : Code::kIo;
    return error(code, "cannot open {}: {}", path, reason(errno));
  }
  return read_descriptor(d.fd, path, limit_bytes);
}

Status write_file_atomically(const std::string& path, std::string_view bytes) {
  std::string temporary = path + ".XXXXXX";
  Descriptor d{::mkostemp(temporary.data(), O_CLOEXEC)};
  if (d.fd < 0) {
    Code code = errno == ENOENT || errno == ENOTDIR ? Code::kNotFound : Code::kIo;
    return error(code, "cannot create {}: {}", temporary, reason(errno));
  }
  // mkstemp makes the file private; a result file is as readable as the user's umask allows, or as the old
  // one was.
  struct stat old{};
  mode_t mode = 0;
  if (::stat(path.c_str(), &old) == 0) {
    mode = old.st_mode & 07777;
  } else {
    mode_t mask = ::umask(0);
    ::umask(mask);
    mode = static_cast<mode_t>(0666 & ~mask);
  }
  Status status = write_all(d.fd, temporary, bytes);
  if (status.ok() && (::fchmod(d.fd, mode) != 0 || ::fsync(d.fd) != 0)) {
    status = error(Code::kIo, "cannot flush {}: {}", temporary, reason(errno));
  }
  if (status.ok() && ::rename(temporary.c_str(), path.c_str()) != 0) {
    status = error(Code::kIo, "cannot rename {} to {}: {}", temporary, path, reason(errno));
  }
  if (!status.ok()) {
    ::unlink(temporary.c_str());
    return status;
  }
  flush_folder_of(path);
  return {};
}

}  // namespace deepinfer
