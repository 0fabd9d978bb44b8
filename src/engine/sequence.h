// Everything the model remembers about one sequence between two forward passes: tokens, cache blocks, window
// rings, compressor tails, draft rings, and the floors of bounded replay. All state is positional: going back
// is forgetting a length. Source: model specification 3.7, 6.4, 10. Threads: one owner; the forward pass
// reads and writes it between its barriers.
#pragma once

#include <cstdint>
#include <vector>

#include "base/status.h"
#include "engine/block_pool.h"
#include "engine/cache_layout.h"

namespace deepinfer {

// Records of the last `slots` positions. Every slot remembers whose it is: reading a position that was
// overwritten is a fault of the caller and aborts, it never gives another token's latent.
class RecordRing {
 public:
  RecordRing() = default;
  RecordRing(int slots, int64_t code_bytes, int64_t scale_bytes);
  void put(int64_t position, const uint8_t* codes, const uint8_t* scales);
  const uint8_t* codes(int64_t position) const {
    return codes_.data() + checked_slot(position) * code_bytes_;
  }
  const uint8_t* scales(int64_t position) const {
    return scales_.data() + checked_slot(position) * scale_bytes_;
  }
  // Records of positions [position, position + returned), at most `count`, lie one after the other from here.
  int64_t run(int64_t position, int64_t count, const uint8_t** codes, const uint8_t** scales) const;
  bool holds(int64_t position) const { return owner_[slot(position)] == position; }
  // Takes the record of a position over from a ring of the same geometry. REQUIRES from.holds(position).
  void copy(const RecordRing& from, int64_t position) {
    put(position, from.codes(position), from.scales(position));
  }
  void clear();  // holds nothing
  int slots() const { return static_cast<int>(owner_.size()); }
  int64_t code_bytes() const { return code_bytes_; }
  int64_t scale_bytes() const { return scale_bytes_; }

 private:
  size_t slot(int64_t position) const {
    return static_cast<size_t>(position % static_cast<int64_t>(owner_.size()));
  }
  int64_t checked_slot(int64_t position) const;
  int64_t code_bytes_ = 0, scale_bytes_ = 0;
  std::vector<int64_t> owner_;
  std::vector<uint8_t> codes_, scales_;
};

// A window snapshot: the encoder layers' last records before a boundary. Source: model specification 10.3.
struct WindowSnapshot {
  int64_t boundary = 0;
  std::vector<RecordRing> rings;  // one per encoder layer
};

// Rows that stand in for the embedding inside an image span: START, IMAGE.., NEWLINE.., END, already
// resolved.
struct ImageSpan {
  int64_t begin = 0;
  int64_t count = 0;
  std::vector<float> rows;  // [count, H]
};

struct SequenceState {
  // Takes its blocks from the pool and gives them back.
  SequenceState(const ModelConfig& config, const CacheLayout& layout, BlockPool* pool);
  // Its block table is given from outside (`blocks`) and stays the giver's.
  SequenceState(const ModelConfig& config, const CacheLayout& layout, BlockArena* arena);
  ~SequenceState();
  SequenceState(const SequenceState&) = delete;
  SequenceState& operator=(const SequenceState&) = delete;

  // Tokens known so far; the forward pass may run positions below tokens.size().
  std::vector<int32_t> tokens;
  std::vector<ImageSpan> images;  // ascending, disjoint
  int64_t length = 0;             // positions the backbone has processed

  std::vector<BlockId> blocks;
  std::vector<RecordRing> window;  // one per backbone layer
  std::vector<RecordRing> draft;   // one per draft stage; up to draft_fed
  RecordRing draft_input;          // the backbone's features, what records of `draft` are made from
  int64_t draft_fed = 0;           // positions from here on have features, but no records yet
  std::vector<RecordRing> tails;   // one per kv source; (a, g) of open groups, empty ring at ratio 1

  // Bounded replay (model specification 10). Window reads of encoder layers never go below encoder_floor, of
  // decoder layers never below decoder_floor; decoder layers run only rows at or after decoder_floor; main KV
  // and index keys are written from publish_from on.
  int64_t encoder_floor = 0;
  int64_t publish_from = 0;
  int64_t decoder_floor = 0;
  // The same floors the other way, for `replaycheck`: rows below run too, in full layout, and no row at or
  // after the mask sees them. 0 when serving.
  int64_t encoder_mask = 0, decoder_mask = 0;

  // The lowest position whose window record a row may read.
  int64_t window_floor(bool decoder, int64_t position) const {
    int64_t mask = decoder ? decoder_mask : encoder_mask;
    int64_t floor = decoder ? decoder_floor : encoder_floor;
    return position >= mask && mask > floor ? mask : floor;
  }

  bool in_image(int64_t position) const { return image_at(position) != nullptr; }
  const ImageSpan* image_at(int64_t position) const;

  uint8_t* block_data(int64_t index) const {
    BlockId id = blocks[static_cast<size_t>(index)];
    return arena_ != nullptr ? arena_->data(id) : pool_->data(id);
  }

  // Makes sure blocks exist for positions [0, end). kResourceExhausted leaves the sequence as it was.
  // REQUIRES a pool.
  Status reserve(int64_t end);
  // As if nothing had been processed: no positions, tokens, images, blocks or records. REQUIRES an arena.
  void reset();
  // Continues at a boundary from a stored window: rows before it count as processed. REQUIRES length == 0.
  void restore(const WindowSnapshot& snapshot);
  // Continues at `start` with empty windows, for a replay. REQUIRES length == 0 and floors at or above it.
  void start_at(int64_t start);
  // Forgets positions >= n (tokens, length, and blocks that came from a pool). REQUIRES n >=
  // lowest_truncation().
  void truncate(int64_t n);
  // Smallest n for which every window the rows n-1 and later will read is still in the rings (the last kept
  // row may be run again).
  int64_t lowest_truncation() const;

 private:
  friend void note_written(SequenceState&, int64_t);
  int64_t written_ = 0;  // one past the highest position ever put into the window rings
  SequenceState(const ModelConfig& config, const CacheLayout& layout, BlockPool* pool, BlockArena* arena);
  int window_tokens_, block_tokens_;
  BlockPool* pool_;  // one of the two is set
  BlockArena* arena_;
};

// A slot for snapshots of this model: as many records per layer as a ring has.
WindowSnapshot make_window_snapshot(const ModelConfig& config, const CacheLayout& layout);

// The forward pass tells how far the rings have been written.
void note_written(SequenceState& s, int64_t end);

}  // namespace deepinfer
