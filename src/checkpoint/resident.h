// Weights copied from their file mapping into memory of this process: in huge pages where the system has
// them, every matrix's rows on the memory node whose threads will multiply them (host/row_share.h), copied by
// all threads at once. Tables that are gathered by row (embedding, Engram, image marks) stay mapped. Source:
// issue "kernels", memory and threads.
#pragma once

#include <cstdint>

#include "base/status.h"
#include "checkpoint/weights.h"
#include "host/thread_pool.h"

namespace deepinfer {

struct ResidentReport {
  int64_t bytes = 0;  // copied
  int64_t ns = 0;
};

// Bytes that make_resident copies.
int64_t resident_bytes(const ModelWeights& weights);

// Views of `weights` point into the copy afterwards; the file's pages are given back to the system. The bits
// are the same. Errors: kResourceExhausted when the memory is not there (the weights stay as they were);
// kInvalidArgument together with a bound on experts' memory, which is about mapped ones. Threads: `pool`'s
// owner; nobody may use the weights meanwhile.
Result<ResidentReport> make_resident(ModelWeights* weights, ThreadPool* pool);

}  // namespace deepinfer
