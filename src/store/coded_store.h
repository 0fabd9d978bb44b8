// A store over several directories, each a failure domain (a disk, a mount of another machine): every object
// is cut into k parts with m of parity, one directory may hold at most m of them, and any k give the object
// back. Reads ask k + 1 and take the first k; places that are down are passed over; what is missing is put
// back by repair. Each directory is a store of its own that expires and evicts its parts; an object of which
// fewer than k are left is absent. Source: serving specification 7.6; docs/store.md. Threads: as KvStore.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "store/directory_store.h"
#include "store/erasure.h"

namespace deepinfer::store {

struct CodedOptions {
  std::vector<std::string> paths;  // one per domain; order does not matter, their set does
  int k = 10, m = 2;
  DirectoryOptions each;          // but for its path
  int64_t hedge_ns = 20'000'000;  // after so long without k answers one more place is asked
};

struct CodedRepair {
  int64_t objects = 0, whole = 0, repaired_parts = 0, lost = 0, failed = 0;
};

class CodedStore : public KvStore {
 public:
  // Directories that cannot be opened count as down: up to what the code bears of them is no error.
  static Result<std::unique_ptr<CodedStore>> open(const CodedOptions& options);
  // Looks at every object and writes the parts that are missing where their directory is up.
  virtual CodedRepair repair() = 0;
  virtual void keep_house() = 0;
  virtual int places_up() const = 0;
  virtual std::vector<std::string> down() const = 0;  // which directories could not be opened, and why
};

}  // namespace deepinfer::store
