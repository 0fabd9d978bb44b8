// Fixed-size cache blocks with reference counts. Knows sizes, not contents. Memory is taken from the system
// when a block is first needed and kept for reuse; the bound on blocks is a hard one. Threads: one owner (the
// step loop); block memory itself may be read and written by the step's workers.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "base/status.h"

namespace deepinfer {

using BlockId = int32_t;

// Block memory by id, and nothing else: who holds a block is somebody else's business (the reference counts
// below, or the scheduler's policy). Address space is taken at once, memory when a block is first touched.
// Bytes of a block that changes hands stay as they were: nothing is read there that its new holder has not
// written first.
class BlockArena {
 public:
  // kResourceExhausted when the system does not give the address space. block_bytes > 0, blocks >= 1.
  static Result<std::unique_ptr<BlockArena>> make(int64_t block_bytes, int64_t blocks);
  ~BlockArena();
  BlockArena(const BlockArena&) = delete;
  BlockArena& operator=(const BlockArena&) = delete;

  uint8_t* data(BlockId id) { return base_ + static_cast<int64_t>(id) * block_bytes_; }
  int64_t block_bytes() const { return block_bytes_; }  // a multiple of 64
  int64_t blocks() const { return blocks_; }
  // Fills a block with a pattern that is no valid state, so that a test sees a read of what was not written.
  void poison(BlockId id);

 private:
  BlockArena(uint8_t* base, int64_t block_bytes, int64_t blocks)
      : base_(base), block_bytes_(block_bytes), blocks_(blocks) {}
  uint8_t* base_;
  int64_t block_bytes_, blocks_;
};

class BlockPool {
 public:
  // max_blocks bounds the pool; block_bytes > 0.
  BlockPool(int64_t block_bytes, int64_t max_blocks);

  // A zero-filled block with one reference; kResourceExhausted when every block is held.
  Result<BlockId> allocate();
  void retain(BlockId id);
  void release(BlockId id);  // the last reference returns the block to the free list

  uint8_t* data(BlockId id) { return memory_[static_cast<size_t>(id)].get(); }
  const uint8_t* data(BlockId id) const { return memory_[static_cast<size_t>(id)].get(); }
  int64_t in_use() const { return in_use_; }
  int64_t capacity() const { return max_blocks_; }

 private:
  struct FreeAligned {
    void operator()(uint8_t* p) const;
  };
  int64_t block_bytes_, max_blocks_, in_use_ = 0;
  std::vector<std::unique_ptr<uint8_t[], FreeAligned>> memory_;
  std::vector<int32_t> references_;
  std::vector<BlockId> free_;
};

}  // namespace deepinfer
