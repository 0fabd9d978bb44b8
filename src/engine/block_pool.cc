// Block memory; free list and reference counts of the block pool.
#include "engine/block_pool.h"

#include <sys/mman.h>

#include <cstdlib>
#include <cstring>

namespace deepinfer {

Result<std::unique_ptr<BlockArena>> BlockArena::make(int64_t block_bytes, int64_t blocks) {
  DI_CHECK(block_bytes > 0 && blocks >= 1 && blocks < INT32_MAX, "block arena geometry");
  int64_t stride = (block_bytes + 63) / 64 * 64;
  void* p = blocks > INT64_MAX / stride
                ? MAP_FAILED
                : mmap(nullptr, static_cast<size_t>(stride * blocks), PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (p == MAP_FAILED) {
    return error(Code::kResourceExhausted,
                 "the system gave no address space for {} cache blocks of {} bytes; ask for a smaller cache",
                 blocks, stride);
  }
  // Huge pages where the system gives them: a query gathers records from all over the arena.
  (void)madvise(p, static_cast<size_t>(stride * blocks), MADV_HUGEPAGE);
  return std::unique_ptr<BlockArena>(new BlockArena(static_cast<uint8_t*>(p), stride, blocks));
}

BlockArena::~BlockArena() {
  munmap(base_, static_cast<size_t>(block_bytes_ * blocks_));
}

void BlockArena::poison(BlockId id) {
  std::memset(data(id), 0xA5, static_cast<size_t>(block_bytes_));
}

void BlockPool::FreeAligned::operator()(uint8_t* p) const {
  std::free(p);
}

BlockPool::BlockPool(int64_t block_bytes, int64_t max_blocks)
    : block_bytes_((block_bytes + 63) / 64 * 64), max_blocks_(max_blocks) {
  DI_CHECK(block_bytes > 0 && max_blocks >= 0 && max_blocks < INT32_MAX, "block pool geometry");
}

Result<BlockId> BlockPool::allocate() {
  if (free_.empty()) {
    if (static_cast<int64_t>(memory_.size()) >= max_blocks_) {
      return error(
          Code::kResourceExhausted,
          "all {} cache blocks are in use; give the cache more memory or run fewer or shorter sequences",
          max_blocks_);
    }
    auto* p = static_cast<uint8_t*>(std::aligned_alloc(64, static_cast<size_t>(block_bytes_)));
    if (p == nullptr) {
      return error(Code::kResourceExhausted,
                   "the system gave no memory for a cache block of {} bytes ({} blocks held)", block_bytes_,
                   in_use_);
    }
    memory_.emplace_back(p);
    references_.push_back(0);
    free_.push_back(static_cast<BlockId>(memory_.size() - 1));
  }
  BlockId id = free_.back();
  free_.pop_back();
  references_[static_cast<size_t>(id)] = 1;
  ++in_use_;
  std::memset(data(id), 0, static_cast<size_t>(block_bytes_));
  return id;
}

void BlockPool::retain(BlockId id) {
  DI_CHECK(references_[static_cast<size_t>(id)] > 0, "retain of a free block");
  ++references_[static_cast<size_t>(id)];
}

void BlockPool::release(BlockId id) {
  int32_t& n = references_[static_cast<size_t>(id)];
  DI_CHECK(n > 0, "release of a free block");
  if (--n == 0) {
    free_.push_back(id);
    --in_use_;
  }
}

}  // namespace deepinfer
