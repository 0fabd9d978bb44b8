// A list of everything that is wrong with a checkpoint, kept short: the first few in words, the rest as a
// count. So that one run of the loader tells a person all there is to mend, and a hostile file cannot make it
// print a gigabyte. Knows nothing of tensors. Threads: one writer at a time.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace deepinfer {

class ProblemList {
 public:
  static constexpr size_t kShown = 20;   // lines of an error message
  static constexpr size_t kKept = 1000;  // lines kept for machine-readable reports

  void add(std::string problem) {
    ++count_;
    if (kept_.size() < kKept) kept_.push_back(std::move(problem));
  }
  bool empty() const { return count_ == 0; }
  int64_t count() const { return count_; }
  const std::vector<std::string>& kept() const { return kept_; }

  // Ok if the list is empty, else kInvalidData "WHERE: N problems:" and one line each, the first kShown of
  // them.
  Status to_status(const std::string& where) const;

 private:
  int64_t count_ = 0;
  std::vector<std::string> kept_;
};

// A name out of an untrusted file as it may be shown to a person: control bytes and ill-formed UTF-8 escaped,
// cut at 120 bytes.
std::string shown_name(std::string_view name);

}  // namespace deepinfer
