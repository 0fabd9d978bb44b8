// The two layouts, as sets of keys and as forward passes.
#include "engine/replay_check.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "base/sha256.h"
#include "model/sizes.h"

namespace deepinfer {
namespace {

class Random {
 public:
  explicit Random(uint64_t seed) : x_(seed * 0x9E3779B97F4A7C15ull + 0xD1B54A32D192ED03ull) {}
  int64_t in(int64_t least, int64_t most) {
    x_ = x_ * 6364136223846793005ull + 1442695040888963407ull;
    return least + static_cast<int64_t>((x_ >> 33) % static_cast<uint64_t>(most - least + 1));
  }

 private:
  uint64_t x_;
};

}  // namespace

int64_t ReplaySchedule::decoder_floor(int64_t window) const {
  return std::max<int64_t>({0, start(window), prompt - keep});
}

ReplaySchedule random_schedule(uint64_t seed, int64_t most_tokens, int64_t window, int64_t backtrack) {
  Random r(seed);
  ReplaySchedule s;
  int64_t cap_tokens = window + backtrack;
  s.prompt = r.in(1, most_tokens);
  int64_t cap = std::max<int64_t>(0, s.prompt - cap_tokens) / window;
  s.kv_hit = r.in(0, cap) * window;
  s.from_snapshot = s.kv_hit > 0 && (s.kv_hit == window || r.in(0, 1) == 1);
  s.keep = cap_tokens + (r.in(0, 2) == 0 ? r.in(0, 8) : 0);
  for (int64_t at = s.start(window); at < s.prompt;) {
    at = std::min(s.prompt, at + r.in(1, r.in(0, 1) == 0 ? window / 2 + 1 : 3 * window));
    s.chunks.push_back(at);
  }
  return s;
}

std::vector<VisibleRow> masked_rows(const ReplaySchedule& s, bool decoder, int64_t window, int64_t slots) {
  int64_t first = decoder ? s.decoder_floor(window) : s.start(window);
  int64_t floor = decoder ? s.decoder_floor(window) : s.encoder_floor(window);
  std::vector<VisibleRow> out;
  for (int64_t p = first; p < s.prompt; ++p) {
    VisibleRow row;
    row.position = p;
    for (int64_t key = 0; key < s.prompt; ++key) {
      bool causal = key <= p, in_window = p - key < window, in_segment = key >= floor;
      if (!causal || !in_window || !in_segment) continue;
      row.keys.push_back(key);
      row.slots.push_back(key % slots);
    }
    out.push_back(std::move(row));
  }
  return out;
}

std::vector<VisibleRow> compact_rows(const ReplaySchedule& s, bool decoder, int64_t window, int64_t slots) {
  std::vector<int64_t> ring(static_cast<size_t>(slots), -1);
  auto slot = [&](int64_t p) { return static_cast<size_t>(p % slots); };
  int64_t begin = s.start(window);
  if (!decoder && s.from_snapshot) {
    for (int64_t p = std::max<int64_t>(0, begin - slots); p < begin; ++p) ring[slot(p)] = p;
  }
  int64_t floor = decoder ? s.decoder_floor(window) : s.encoder_floor(window);
  std::vector<VisibleRow> out;
  for (int64_t end : s.chunks) {
    int64_t from = decoder ? std::clamp(s.decoder_floor(window), begin, end) : begin;
    for (int64_t p = from; p < end; ++p) {
      VisibleRow row;
      row.position = p;
      for (int64_t at = std::max(floor, p - window + 1); at <= p; ++at) {
        bool there = at >= from || ring[slot(at)] == at;
        row.keys.push_back(there ? at : -1);
        row.slots.push_back(static_cast<int64_t>(slot(at)));
      }
      out.push_back(std::move(row));
    }
    for (int64_t p = std::max(from, end - slots); p < end; ++p) ring[slot(p)] = p;
    begin = end;
  }
  return out;
}

namespace {

class Checker {
 public:
  Checker(const ModelWeights& w, ThreadPool* pool, int64_t most_tokens)
      : c_(w.config),
        model_(&w, pool, {}),
        window_(c_.sliding_window),
        blocks_per_sequence_(most_tokens / window_ + 1),
        arena_(BlockArena::make(model_.layout().block_bytes, 3 * blocks_per_sequence_).value()) {}

  void check(uint64_t seed, int64_t most_tokens, ReplayReport* report) {
    ReplaySchedule s = random_schedule(seed, most_tokens, window_, ring_slots(c_) - window_);
    where_ = fmt::format("schedule {} (prompt {}, hit {}{}, keep {}, {} chunks)", seed, s.prompt, s.kv_hit,
                         s.from_snapshot ? " with its window" : "", s.keep, s.chunks.size());
    report_ = report;
    ++report->schedules;
    report->from_snapshot += s.from_snapshot ? 1 : 0;
    report->replayed += s.kv_hit > 0 && !s.from_snapshot ? 1 : 0;
    compare_keys(s);
    compare_logits(s, seed);
  }

 private:
  void fault(const std::string& what) {
    ++report_->mismatches;
    if (report_->first.empty()) report_->first = where_ + ": " + what;
  }

  void compare_keys(const ReplaySchedule& s) {
    int64_t slots = ring_slots(c_);
    for (bool decoder : {false, true}) {
      auto want = masked_rows(s, decoder, window_, slots), got = compact_rows(s, decoder, window_, slots);
      if (want != got) fault(decoder ? "decoder rows see other keys" : "encoder rows see other keys");
      report_->rows += static_cast<int64_t>(want.size());
      for (const VisibleRow& r : want) report_->keys += static_cast<int64_t>(r.keys.size());
      int64_t rows = decoder ? std::min(s.keep, s.prompt - s.start(window_)) : s.prompt - s.start(window_);
      if (static_cast<int64_t>(got.size()) != rows) fault("the number of rows is wrong");
    }
  }

  std::unique_ptr<SequenceState> sequence(const std::vector<int32_t>& tokens, int64_t first_block) {
    auto s = std::make_unique<SequenceState>(c_, model_.layout(), arena_.get());
    s->tokens = tokens;
    for (int64_t i = 0; i < blocks_per_sequence_; ++i)
      s->blocks.push_back(static_cast<BlockId>(first_block + i));
    return s;
  }

  Digest reused(const ReplaySchedule& s) {
    Sha256 h;
    for (int64_t i = 0; i < s.kv_hit / window_; ++i)
      h.update(arena_->data(static_cast<BlockId>(i)), static_cast<size_t>(model_.layout().block_bytes));
    return h.finish();
  }

  void compare_logits(const ReplaySchedule& s, uint64_t seed) {
    std::vector<int32_t> tokens;
    Random r(seed + 77);
    for (int64_t i = 0; i < s.prompt; ++i) tokens.push_back(static_cast<int32_t>(r.in(0, c_.vocab_size - 1)));
    int64_t start = s.start(window_), floor = s.decoder_floor(window_);
    // The prefix as a cold run leaves it: blocks 0.., and the window at the boundary.
    WindowSnapshot snapshot = make_window_snapshot(c_, model_.layout());
    if (s.kv_hit > 0) {
      auto cold = sequence(tokens, 0);
      cold->decoder_floor = s.kv_hit;
      RowSpan rows{cold.get(), 0, s.kv_hit, -1};
      rows.captures.push_back({s.kv_hit, &snapshot});
      model_.run({rows});
    }
    Digest before = reused(s);

    // Full layout: every row runs through every layer, in one call.
    auto full = sequence(tokens, 2 * blocks_per_sequence_);
    share_prefix(s, full.get());
    full->publish_from = s.kv_hit;
    full->encoder_mask = s.encoder_floor(window_);
    full->decoder_mask = floor;
    ForwardResult<float> want = model_.run({{full.get(), 0, s.prompt, 0}});

    auto compact = sequence(tokens, blocks_per_sequence_);
    share_prefix(s, compact.get());
    compact->publish_from = s.kv_hit;
    compact->encoder_floor = s.encoder_floor(window_);
    compact->decoder_floor = floor;
    if (s.from_snapshot) {
      compact->restore(snapshot);
    } else {
      compact->start_at(start);
    }
    int64_t at = start, next = floor;
    for (int64_t end : s.chunks) {
      ForwardResult<float> got = model_.run({{compact.get(), at, end, at}});
      for (size_t i = 0; i < got.rows.size(); ++i, ++next) compare_row(want, got, i, next);
      at = end;
    }
    if (next != s.prompt) fault(fmt::format("logits end at {} of {}", next, s.prompt));
    if (reused(s) != before) fault("a reused block was written");
    report_->block_digests += s.kv_hit / window_;
  }

  void share_prefix(const ReplaySchedule& s, SequenceState* to) {
    for (int64_t i = 0; i < s.kv_hit / window_; ++i)
      to->blocks[static_cast<size_t>(i)] = static_cast<BlockId>(i);
  }

  void compare_row(const ForwardResult<float>& want, const ForwardResult<float>& got, size_t i, int64_t p) {
    ++report_->logit_rows;
    if (got.rows[i].position != p)
      return fault(fmt::format("row {} comes where {} should", got.rows[i].position, p));
    if (std::memcmp(got.row(i), want.row(static_cast<size_t>(p)),
                    static_cast<size_t>(c_.vocab_size) * sizeof(float)) != 0)
      fault(fmt::format("logits at position {} differ", p));
  }

  const ModelConfig& c_;
  Forward<float> model_;
  int64_t window_, blocks_per_sequence_;
  std::unique_ptr<BlockArena> arena_;
  std::string where_;
  ReplayReport* report_ = nullptr;
};

}  // namespace

ReplayReport check_replay(const ModelWeights& weights, ThreadPool* pool, int64_t schedules, uint64_t seed,
                          int64_t most_tokens) {
  ReplayReport report;
  Checker checker(weights, pool, most_tokens);
  for (int64_t i = 0; i < schedules; ++i)
    checker.check(seed + static_cast<uint64_t>(i), most_tokens, &report);
  return report;
}

}  // namespace deepinfer
