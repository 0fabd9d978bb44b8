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

int64_t RecordRing::run(int64_t position, int64_t count, const uint8_t** codes,
                        const uint8_t** scales) const {
  int64_t s = checked_slot(position), n = 1;
  int64_t most = std::min(count, static_cast<int64_t>(owner_.size()) - s);
  while (n < most && owner_[static_cast<size_t>(s + n)] == position + n) ++n;
  *codes = codes_.data() + s * code_bytes_;
  *scales = scales_.data() + s * scale_bytes_;
  return n;
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

void RecordRing::clear() {
  std::fill(owner_.begin(), owner_.end(), -1);
}

SequenceState::SequenceState(const ModelConfig& config, const CacheLayout& layout, BlockPool* pool)
    : SequenceState(config, layout, pool, nullptr) {}

SequenceState::SequenceState(const ModelConfig& config, const CacheLayout& layout, BlockArena* arena)
    : SequenceState(config, layout, nullptr, arena) {}

SequenceState::SequenceState(const ModelConfig& config, const CacheLayout& layout, BlockPool* pool,
                             BlockArena* arena)
    : window_tokens_(config.sliding_window), block_tokens_(layout.block_tokens), pool_(pool), arena_(arena) {
  auto ring = [&] {
    return RecordRing(layout.ring_slots, layout.window.code_bytes, layout.window.scale_bytes);
  };
  for (int l = 0; l < config.num_hidden_layers; ++l) window.push_back(ring());
  for (int i = 0; i < config.num_nextn_predict_layers; ++i) draft.push_back(ring());
  for (const auto& s : layout.sources)
    tails.emplace_back(s.ratio > 1 ? kTailSlots : 1, layout.tail_row_bytes, 0);
}

SequenceState::~SequenceState() {
  if (pool_ == nullptr) return;
  for (BlockId id : blocks) pool_->release(id);
}

void SequenceState::reset() {
  DI_CHECK(pool_ == nullptr, "a sequence that owns its blocks is not reused");
  tokens.clear();
  images.clear();
  blocks.clear();
  length = written_ = draft_fed = 0;
  encoder_floor = publish_from = decoder_floor = encoder_mask = decoder_mask = 0;
  for (auto* rings : {&window, &draft, &tails}) {
    for (RecordRing& r : *rings) r.clear();
  }
  draft_input.clear();
}

void SequenceState::start_at(int64_t start) {
  DI_CHECK(length == 0 && encoder_floor >= start && decoder_floor >= start,
           fmt::format("start at {} with floors {} and {}", start, encoder_floor, decoder_floor));
  length = written_ = start;
}

void SequenceState::restore(const WindowSnapshot& snapshot) {
  int64_t b = snapshot.boundary;
  DI_CHECK(length == 0 && decoder_floor >= b, fmt::format("restore at {}, floor {}", b, decoder_floor));
  for (size_t l = 0; l < snapshot.rings.size(); ++l) {
    const RecordRing& from = snapshot.rings[l];
    for (int64_t p = std::max<int64_t>(0, b - from.slots()); p < b; ++p) {
      if (from.holds(p)) window[l].copy(from, p);
    }
  }
  length = written_ = b;
}

const ImageSpan* SequenceState::image_at(int64_t position) const {
  for (const auto& s : images) {
    if (position >= s.begin && position < s.begin + s.count) return &s;
  }
  return nullptr;
}

Status SequenceState::reserve(int64_t end) {
  DI_CHECK(pool_ != nullptr, "blocks of this sequence come from outside");
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
  if (pool_ == nullptr) return;
  int64_t keep = (n + block_tokens_ - 1) / block_tokens_;
  while (static_cast<int64_t>(blocks.size()) > keep) {
    pool_->release(blocks.back());
    blocks.pop_back();
  }
}

WindowSnapshot make_window_snapshot(const ModelConfig& config, const CacheLayout& layout) {
  WindowSnapshot s;
  for (int l = 0; l < config.first_decoder_layer(); ++l)
    s.rings.emplace_back(layout.ring_slots, layout.window.code_bytes, layout.window.scale_bytes);
  return s;
}

void note_written(SequenceState& s, int64_t end) {
  s.written_ = std::max(s.written_, end);
}

}  // namespace deepinfer
