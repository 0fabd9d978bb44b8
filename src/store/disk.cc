// Thin wrappers; every loop is over short reads and writes.
#include "store/disk.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>

#include "base/check.h"
#include "store/record.h"

namespace deepinfer::store {
namespace {

Status failed(const char* what, const std::string& path) {
  int e = errno;
  Code code = e == ENOENT ? Code::kNotFound
              : e == ENOSPC || e == EDQUOT || e == EFBIG || e == EMFILE || e == ENFILE
                  ? Code::kResourceExhausted
                  : Code::kIo;
  return error(code, "{} {}: {}", what, path, std::strerror(e));
}

}  // namespace

File::~File() {
  if (fd_ >= 0) ::close(fd_);
}
File::File(File&& o) noexcept
    : fd_(std::exchange(o.fd_, -1)), path_(std::move(o.path_)), direct_(o.direct_) {}
File& File::operator=(File&& o) noexcept {
  if (this == &o) return *this;
  if (fd_ >= 0) ::close(fd_);
  fd_ = std::exchange(o.fd_, -1);
  path_ = std::move(o.path_);
  direct_ = o.direct_;
  return *this;
}

void FreeBuffer::operator()(uint8_t* p) const {
  std::free(p);
}

Buffer make_buffer(int64_t bytes) {
  Buffer b;
  // A device moves bytes to and from large pages in fewer pieces: measured, reads are twice as quick.
  constexpr int64_t kHugePage = int64_t{2} << 20;
  int64_t align = bytes >= kHugePage ? kHugePage : kPage;
  b.bytes = (bytes + align - 1) / align * align;
  auto* p =
      static_cast<uint8_t*>(std::aligned_alloc(static_cast<size_t>(align), static_cast<size_t>(b.bytes)));
  DI_CHECK(p != nullptr, "no memory for a page-aligned buffer");
  // Where the system has no huge pages, small ones do.
  if (align == kHugePage) (void)::madvise(p, static_cast<size_t>(b.bytes), MADV_HUGEPAGE);
  std::memset(p, 0, static_cast<size_t>(b.bytes));
  b.data.reset(p);
  return b;
}

Result<File> open_file(const std::string& path, OpenMode mode) {
  bool direct =
      mode == OpenMode::kReadDirect || mode == OpenMode::kWriteDirect || mode == OpenMode::kCreateDirect;
  int flags = O_CLOEXEC;
  if (mode == OpenMode::kRead || mode == OpenMode::kReadDirect) flags |= O_RDONLY;
  if (mode == OpenMode::kWrite || mode == OpenMode::kWriteDirect) flags |= O_RDWR;
  if (mode == OpenMode::kCreate || mode == OpenMode::kCreateDirect) flags |= O_RDWR | O_CREAT | O_EXCL;
  int fd = -1;
  if (direct) fd = ::open(path.c_str(), flags | O_DIRECT, 0644);
  if (direct && fd < 0 && errno == EINVAL) {
    direct = false;
    // A file system may create the file before it refuses the flag.
    flags &= ~O_EXCL;
  }
  if (fd < 0 && !direct) fd = ::open(path.c_str(), flags, 0644);
  if (fd < 0) return failed("cannot open", path);
  return File(fd, path, direct);
}

Status write_at(const File& file, std::vector<iovec> parts, int64_t offset) {
  size_t i = 0;
  while (i < parts.size()) {
    if (parts[i].iov_len == 0) {  // of nothing, nothing is written, which must not look like a full disk
      ++i;
      continue;
    }
    int n = static_cast<int>(std::min<size_t>(parts.size() - i, 512));
    ssize_t w = ::pwritev(file.fd(), parts.data() + i, n, offset);
    if (w < 0 && errno == EINTR) continue;
    if (w < 0) return failed("cannot write", file.path());
    if (w == 0) return error(Code::kIo, "cannot write {}: no progress", file.path());
    offset += w;
    size_t left = static_cast<size_t>(w);
    while (i < parts.size() && left >= parts[i].iov_len) left -= parts[i++].iov_len;
    if (left == 0) continue;
    parts[i].iov_base = static_cast<uint8_t*>(parts[i].iov_base) + left;
    parts[i].iov_len -= left;
  }
  return {};
}

Status write_at(const File& file, std::span<const uint8_t> bytes, int64_t offset) {
  return write_at(file, {iovec{const_cast<uint8_t*>(bytes.data()), bytes.size()}}, offset);
}

Result<size_t> read_at(const File& file, std::span<uint8_t> bytes, int64_t offset) {
  size_t done = 0;
  while (done < bytes.size()) {
    ssize_t n =
        ::pread(file.fd(), bytes.data() + done, bytes.size() - done, offset + static_cast<int64_t>(done));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return failed("cannot read", file.path());
    if (n == 0) break;
    done += static_cast<size_t>(n);
    if (file.direct() && done % kPage != 0) break;  // the end of the file
  }
  return done;
}

Result<int64_t> size_of(const File& file) {
  struct stat s;
  if (::fstat(file.fd(), &s) != 0) return failed("cannot look at", file.path());
  return static_cast<int64_t>(s.st_size);
}

Status sync_data(const File& file) {
  if (::fdatasync(file.fd()) != 0) return failed("cannot flush", file.path());
  return {};
}

bool punch(const File& file, int64_t offset, int64_t bytes) {
  return ::fallocate(file.fd(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, offset, bytes) == 0;
}

int64_t next_data(const File& file, int64_t offset, int64_t size) {
  off_t at = ::lseek(file.fd(), offset, SEEK_DATA);
  if (at >= 0) return at;
  return errno == ENXIO ? size : offset;  // past the last data, or no such question here
}

Status make_directory(const std::string& path, bool must_be_new) {
  if (::mkdir(path.c_str(), 0755) == 0) return {};
  if (errno == EEXIST && !must_be_new) return {};
  return failed("cannot make the directory", path);
}

Result<std::vector<std::string>> names_in(const std::string& path) {
  DIR* d = ::opendir(path.c_str());
  if (d == nullptr) return failed("cannot list", path);
  std::vector<std::string> names;
  while (const dirent* e = ::readdir(d)) {
    std::string n = e->d_name;
    if (n != "." && n != "..") names.push_back(std::move(n));
  }
  ::closedir(d);
  std::sort(names.begin(), names.end());
  return names;
}

bool exists(const std::string& path) {
  return ::access(path.c_str(), F_OK) == 0;
}

void remove_quietly(const std::string& path) {
  if (::unlink(path.c_str()) != 0) ::rmdir(path.c_str());
}

bool try_lock(const File& file) {
  return ::flock(file.fd(), LOCK_EX | LOCK_NB) == 0;
}

}  // namespace deepinfer::store
