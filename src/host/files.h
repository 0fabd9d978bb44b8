// Whole small files: read with a limit, write so that a reader sees the old bytes or the new ones and never a
// part. Large read-only files are mapped instead (host/mapped_file.h). Does not know any format. Errors:
// kNotFound, kIo, kResourceExhausted (larger than the limit), each naming the path. Any thread.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/status.h"

namespace deepinfer {

// The bytes of the file at `path`, at most `limit_bytes`. Works for pipes and /dev/stdin. A folder is
// kInvalidArgument.
Result<std::string> read_file(const std::string& path, int64_t limit_bytes);

// The same from an open descriptor (standard input); `name` is for messages. Does not close it.
Result<std::string> read_descriptor(int fd, const std::string& name, int64_t limit_bytes);

// Replaces `path` by a file with these bytes: a temporary file in the same folder, flushed to disk, then
// renamed. On an error the old file stays and the temporary one is removed.
Status write_file_atomically(const std::string& path, std::string_view bytes);

}  // namespace deepinfer
