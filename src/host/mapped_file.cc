// Read-only mappings by mmap.
#include "host/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

namespace deepinfer {

MappedFile::~MappedFile() {
  close();
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)),
      size_(std::exchange(other.size_, 0)),
      path_(std::move(other.path_)) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  if (this != &other) {
    close();
    data_ = std::exchange(other.data_, nullptr);
    size_ = std::exchange(other.size_, 0);
    path_ = std::move(other.path_);
  }
  return *this;
}

void MappedFile::close() {
  if (data_ != nullptr) ::munmap(const_cast<uint8_t*>(data_), size_);
  data_ = nullptr;
  size_ = 0;
}

Result<MappedFile> MappedFile::open(const std::string& path) {
  // O_NONBLOCK: opening a FIFO must not wait for a writer; it has no effect on regular files.
  int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) {
    int e = errno;
    if (e == ENOENT || e == ENOTDIR) return error(Code::kNotFound, "{}: no such file", path);
    return error(Code::kIo, "{}: cannot open: {}", path, std::strerror(e));
  }
  struct stat st{};
  if (::fstat(fd, &st) != 0) {
    int e = errno;
    ::close(fd);
    return error(Code::kIo, "{}: cannot read its size: {}", path, std::strerror(e));
  }
  if (!S_ISREG(st.st_mode)) {
    ::close(fd);
    return error(Code::kInvalidData, "{}: is not a regular file", path);
  }
  MappedFile file;
  file.path_ = path;
  if (st.st_size > 0) {
    void* p = ::mmap(nullptr, static_cast<size_t>(st.st_size), PROT_READ, MAP_SHARED, fd, 0);
    if (p == MAP_FAILED) {
      int e = errno;
      ::close(fd);
      return error(Code::kIo, "{}: cannot map {} bytes: {}", path, st.st_size, std::strerror(e));
    }
    file.data_ = static_cast<const uint8_t*>(p);
    file.size_ = static_cast<size_t>(st.st_size);
  }
  ::close(fd);  // the mapping stays valid without the descriptor
  return file;
}

void advise_mapping(MapAdvice advice, const uint8_t* data, size_t length) {
  const auto page = static_cast<uintptr_t>(::sysconf(_SC_PAGESIZE));
  uintptr_t begin = reinterpret_cast<uintptr_t>(data), end = begin + length;
  if (advice == MapAdvice::kDontNeed) {
    begin = (begin + page - 1) / page * page;
    end = end / page * page;
  } else {
    begin = begin / page * page;
  }
  if (begin >= end) return;
  int flag = MADV_NORMAL;
  switch (advice) {
    case MapAdvice::kNormal:
      flag = MADV_NORMAL;
      break;
    case MapAdvice::kSequential:
      flag = MADV_SEQUENTIAL;
      break;
    case MapAdvice::kRandom:
      flag = MADV_RANDOM;
      break;
    case MapAdvice::kWillNeed:
      flag = MADV_WILLNEED;
      break;
    case MapAdvice::kDontNeed:
      flag = MADV_DONTNEED;
      break;
    case MapAdvice::kHuge:
      flag = MADV_HUGEPAGE;
      break;
  }
  // A refused hint changes speed only, never content.
  (void)::madvise(reinterpret_cast<void*>(begin), end - begin, flag);
}

void MappedFile::advise(MapAdvice advice, size_t offset, size_t length) const {
  if (data_ == nullptr || offset >= size_ || length == 0) return;
  const auto page = static_cast<size_t>(::sysconf(_SC_PAGESIZE));
  size_t end = offset + std::min(length, size_ - offset);
  // The last page of the file is this mapping's alone.
  if (end == size_) end = (end + page - 1) / page * page;
  advise_mapping(advice, data_ + offset, end - offset);
}

}  // namespace deepinfer
