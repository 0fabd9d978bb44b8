// Status and Result<T>: how a room tells its caller that untrusted input (bytes of a file, a request, a peer,
// a configuration) cannot be used. The message is for a person: what is wrong, where, and what to do about
// it. Impossible states are not errors: they are DI_CHECK (base/check.h). No exceptions cross a room.
#pragma once

#include <fmt/format.h>

#include <optional>
#include <string>
#include <utility>

#include "base/check.h"

namespace deepinfer {

// Domain codes. They decide how a caller reacts (retry, refuse, report), never the text shown.
enum class Code {
  kOk,
  kInvalidArgument,    // the request or option itself is wrong
  kInvalidConfig,      // a model or program configuration breaks a rule
  kInvalidData,        // a file's bytes are not what its format says (checkpoint, tokenizer, store)
  kNotFound,           // a named thing does not exist
  kUnsupported,        // legal, but outside what this program does
  kResourceExhausted,  // memory, blocks, file handles, quota
  kDeadlineExceeded,
  kCancelled,
  kIo,           // the operating system refused a read, write, map or socket call
  kUnavailable,  // try again later
};

const char* code_name(Code code);

class [[nodiscard]] Status {
 public:
  Status() = default;
  Status(Code code, std::string message) : code_(code), message_(std::move(message)) {}
  bool ok() const { return code_ == Code::kOk; }
  Code code() const { return code_; }
  const std::string& message() const { return message_; }
  // "invalid data: tensor ..." for logs and the command line.
  std::string to_string() const { return ok() ? "ok" : std::string(code_name(code_)) + ": " + message_; }
  // The same status with a place put in front of the message ("in layer 3: ...").
  Status with_context(const std::string& where) const {
    return ok() ? Status() : Status(code_, where + ": " + message_);
  }

 private:
  Code code_ = Code::kOk;
  std::string message_;
};

template <typename... A>
Status error(Code code, fmt::format_string<A...> f, A&&... args) {
  return Status(code, fmt::format(f, std::forward<A>(args)...));
}

// A value or the reason why there is none. value() on an error is a programming fault and aborts.
template <typename T>
class [[nodiscard]] Result {
 public:
  Result(T value) : value_(std::move(value)) {}         // NOLINT: implicit on purpose, `return value;`
  Result(Status status) : status_(std::move(status)) {  // NOLINT: implicit on purpose, `return error(...)`
    DI_CHECK(!status_.ok(), "Result built from an ok status without a value");
  }
  bool ok() const { return value_.has_value(); }
  const Status& status() const { return status_; }
  T& value() & {
    DI_CHECK(ok(), status_.to_string());
    return *value_;
  }
  const T& value() const& {
    DI_CHECK(ok(), status_.to_string());
    return *value_;
  }
  T&& value() && {
    DI_CHECK(ok(), status_.to_string());
    return *std::move(value_);
  }
  T& operator*() & { return value(); }
  const T& operator*() const& { return value(); }
  T* operator->() { return &value(); }
  const T* operator->() const { return &value(); }

 private:
  std::optional<T> value_;
  Status status_;
};

// DI_TRY(expr): leave the function with the error of a Status expression.
#define DI_TRY(expr)                                                                           \
  do {                                                                                         \
    if (::deepinfer::Status di_try_status = (expr); !di_try_status.ok()) return di_try_status; \
  } while (0)

#define DI_CONCAT_INNER(a, b) a##b
#define DI_CONCAT(a, b) DI_CONCAT_INNER(a, b)
// DI_ASSIGN(auto x, expr): x = value of a Result expression, or leave the function with its error.
#define DI_ASSIGN(decl, expr)                                                                 \
  auto DI_CONCAT(di_result_, __LINE__) = (expr);                                              \
  if (!DI_CONCAT(di_result_, __LINE__).ok()) return DI_CONCAT(di_result_, __LINE__).status(); \
  decl = std::move(DI_CONCAT(di_result_, __LINE__)).value()

}  // namespace deepinfer
