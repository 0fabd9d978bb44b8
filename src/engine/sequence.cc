// Rings by position, block reservation, and going back.
#include "engine/sequence.h"

#include <algorithm>
#include <cstring>

#include "model/sizes.h"

namespace deepinfer {
namespace {
// Open groups that a rollback can return to: one per `ratio` positions, so eight cover more than the longest
// verification.
constexpr int kTailSlots = 8;
}  // namespace

RecordRing::RecordRing(int slots, int64_t code_bytes, int64_t scale_bytes)
    : code_bytes_(code_bytes),
      scale_bytes_(scale_bytes),
      owner_(static_cast<size_t>(slots), -1),
      codes_(static_cast<size_t>(slots * code_bytes)),
      scales_(static_cast<size_t>(slots * scale_bytes)) {}

int64_t RecordRing::checked_slot(int64_t position) const {
  size_t s = slot(position);
  DI_CHECK(owner_[s] == position,
           fmt::format("window position {} is gone from the ring (its slot holds {})", position, owner_[s]));
  return static_cast<int64_t>(s);
}

void RecordRing::put(int64_t position, const uint8_t* codes, const uint8_t* scales) {
  size_t s = slot(position);
  owner_[s] = position;
  std::memcpy(codes_.data() + static_cast<int64_t>(s) * code_bytes_, codes, static_cast<size_t>(code_bytes_));
  if (scale_bytes_ > 0) {
    std::memcpy(scales_.data() + static_cast<int64_t>(s) * scale_bytes_, scales,
                static_cast<size_t>(scale_bytes_));
  }
}

SequenceState::SequenceState(const ModelConfig& config, const CacheLayout& layout, BlockPool* pool)
    : window_tokens_(config.sliding_window), block_tokens_(layout.block_tokens), pool_(pool) {
  auto ring = [&] {
    return RecordRing(layout.ring_slots, layout.window.code_bytes, layout.window.scale_bytes);
  };
  for (int l = 0; l < config.num_hidden_layers; ++l) window.push_back(ring());
  for (int i = 0; i < config.num_nextn_predict_layers; ++i) draft.push_back(ring());
  for (const auto& s : layout.sources)
    tails.emplace_back(s.ratio > 1 ? kTailSlots : 1, layout.tail_row_bytes, 0);
}

SequenceState::~SequenceState() {
  for (BlockId id : blocks) pool_->release(id);
}

const ImageSpan* SequenceState::image_at(int64_t position) const {
  for (const auto& s : images) {
    if (position >= s.begin && position < s.begin + s.count) return &s;
  }
  return nullptr;
}

Status SequenceState::reserve(int64_t end) {
  int64_t need = (end + block_tokens_ - 1) / block_tokens_;
  size_t before = blocks.size();
  while (static_cast<int64_t>(blocks.size()) < need) {
    auto id = pool_->allocate();
    if (!id.ok()) {
      while (blocks.size() > before) {
        pool_->release(blocks.back());
        blocks.pop_back();
      }
      return id.status();
    }
    blocks.push_back(*id);
  }
  return {};
}

int64_t SequenceState::lowest_truncation() const {
  int64_t slack = static_cast<int64_t>(window.front().slots()) - window_tokens_;
  return std::max<int64_t>(0, written_ - slack);
}

void SequenceState::truncate(int64_t n) {
  DI_CHECK(n >= lowest_truncation(),
           fmt::format("truncation to {} but the rings only allow {}", n, lowest_truncation()));
  length = std::min(length, n);
  if (static_cast<int64_t>(tokens.size()) > n) tokens.resize(static_cast<size_t>(n));
  int64_t keep = (n + block_tokens_ - 1) / block_tokens_;
  while (static_cast<int64_t>(blocks.size()) > keep) {
    pool_->release(blocks.back());
    blocks.pop_back();
  }
}

void note_written(SequenceState& s, int64_t end) {
  s.written_ = std::max(s.written_, end);
}

}  // namespace deepinfer
