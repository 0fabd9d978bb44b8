// Made-up sequences through the engine's own forward pass. See bench_step.h.
#include "apps/bench_step.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <memory>

#include "engine/forward.h"
#include "host/clock.h"
#include "model/sizes.h"
#include "model/tensor_table.h"

namespace deepinfer {
namespace {

uint64_t next_random(uint64_t* state) {
  *state ^= *state << 13;
  *state ^= *state >> 7;
  *state ^= *state << 17;
  return *state;
}

void fill_random(uint8_t* p, int64_t n, uint64_t* seed) {
  for (; n >= 8; n -= 8, p += 8) {
    uint64_t r = next_random(seed);
    std::memcpy(p, &r, 8);
  }
  for (; n > 0; --n) *p++ = static_cast<uint8_t>(next_random(seed));
}

// Codes may be any FP4 pair; scales are near one, so that scores and softmax see ordinary numbers.
void fill_records(const RecordLayout& r, uint8_t* codes, uint8_t* scales, int64_t count, uint64_t* seed) {
  fill_random(codes, count * r.code_bytes, seed);
  bool e4m3 = r.format == RecordFormat::kFp4_16;
  for (int64_t i = 0; i < count * r.scale_bytes; ++i)
    scales[i] = static_cast<uint8_t>((e4m3 ? 0x30 : 124) + (next_random(seed) & 3));
}

// Sequences with `context` positions behind them, whose last window has really been computed.
class MadeUp {
 public:
  static Result<MadeUp> make(const ModelWeights& weights, Forward<float>* model, int64_t count,
                             int64_t context, int64_t more) {
    MadeUp m;
    m.model_ = model;
    const ModelConfig& c = weights.config;
    const CacheLayout& layout = model->layout();
    if (context + more > c.max_position_embeddings)
      return error(Code::kInvalidArgument, "{} positions are more than the model's context of {}",
                   context + more, c.max_position_embeddings);
    int64_t blocks = (context + more) / layout.block_tokens + 1;
    auto arena = BlockArena::make(layout.block_bytes, blocks * count);
    if (!arena.ok()) return arena.status();
    m.arena_ = std::move(*arena);
    uint64_t seed = 0x9e3779b97f4a7c15ull;
    for (int64_t i = 0; i < count; ++i) {
      auto s = std::make_unique<SequenceState>(c, layout, m.arena_.get());
      for (int64_t p = 0; p < context + more; ++p)
        s->tokens.push_back(static_cast<int32_t>(next_random(&seed) % static_cast<uint64_t>(c.vocab_size)));
      for (int64_t b = 0; b < blocks; ++b) s->blocks.push_back(static_cast<BlockId>(i * blocks + b));
      m.sequences_.push_back(std::move(s));
    }
    m.fill(layout, context, &seed);
    return m;
  }

  SequenceState* operator[](int64_t i) { return sequences_[static_cast<size_t>(i)].get(); }
  int64_t size() const { return static_cast<int64_t>(sequences_.size()); }

  // Starts every sequence with its last window before `context` computed.
  void warm(int64_t context) {
    int64_t begin = std::max<int64_t>(0, context - model_->config().sliding_window);
    for (auto& s : sequences_) {
      s->encoder_floor = s->decoder_floor = s->publish_from = begin;
      s->start_at(begin);
      if (begin < context) model_->run({{s.get(), begin, context}});
    }
  }

 private:
  void fill(const CacheLayout& layout, int64_t context, uint64_t* seed) {
    for (auto& s : sequences_) {
      for (int64_t b = 0; b * layout.block_tokens < context; ++b) {
        uint8_t* block = s->block_data(b);
        for (const CacheLayout::Source& src : layout.sources) {
          fill_records(layout.main, block + src.main_codes, block + src.main_scales, src.entries, seed);
          fill_records(layout.index, block + src.index_codes, block + src.index_scales, src.entries, seed);
        }
      }
    }
  }

  Forward<float>* model_ = nullptr;
  std::unique_ptr<BlockArena> arena_;
  std::vector<std::unique_ptr<SequenceState>> sequences_;
};

// Runs `call` until `steps` are timed; the first one is not.
template <typename F>
void time_calls(Forward<float>* model, int steps, StepPoint* point, const F& call) {
  std::vector<double> seconds;
  call();
  model->set_profile(&point->profile);
  for (int i = 0; i < steps; ++i) {
    int64_t before = point->profile.total_ns;
    call();
    seconds.push_back(static_cast<double>(point->profile.total_ns - before) * 1e-9);
  }
  model->set_profile(nullptr);
  std::sort(seconds.begin(), seconds.end());
  point->seconds = seconds[seconds.size() / 2];
  for (const StepProfile::Line& l : point->profile.lines) {
    point->bytes += static_cast<double>(l.work.bytes) / steps;
    point->macs += static_cast<double>(l.work.macs) / steps;
    point->jobs += static_cast<double>(l.work.jobs) / steps;
  }
}

const char* row_kind(const StepPoint& p) {
  return p.head ? "decode_step" : "decode_step_no_head";
}

// A line per part: its time, its share of the whole, and how near it came to what its bytes and operations
// need.
void add_parts(const StepPoint& p, const char* op, double bytes_per_s, double ops_per_s, int threads,
               std::vector<BenchLine>* out) {
  double calls = static_cast<double>(std::max<int64_t>(1, p.profile.calls)), parts = 0;
  for (size_t i = 0; i < p.profile.lines.size(); ++i) {
    const StepProfile::Line& l = p.profile.lines[i];
    if (l.ns == 0) continue;
    double us = static_cast<double>(l.ns) / calls * 1e-3;
    parts += static_cast<double>(l.ns);
    double bytes = static_cast<double>(l.work.bytes) / calls, macs = static_cast<double>(l.work.macs) / calls;
    double least = std::max(bytes / bytes_per_s, 2 * macs / ops_per_s) * 1e6;
    out->push_back({fmt::format("{}.{}", op, step_part_name(static_cast<StepPart>(i))), "", p.rows, threads,
                    us, "us", least, us > 0 ? least / us : 0,
                    fmt::format("{:.1f} % of the step, {:.2f} MB, {:.2f} Mmac, {:.0f} jobs",
                                100.0 * static_cast<double>(l.ns) / static_cast<double>(p.profile.total_ns),
                                bytes * 1e-6, macs * 1e-6, static_cast<double>(l.work.jobs) / calls)});
  }
  double total = static_cast<double>(p.profile.total_ns) / calls * 1e-3;
  out->push_back({fmt::format("{}.sum_of_parts", op), "", p.rows, threads, parts / calls * 1e-3, "us", total,
                  parts / calls * 1e-3 / total, "limit: the whole step, timed apart"});
}

// Where the memory of experts is bounded: how often one was there.
void add_experts(const StepPoint& p, const char* op, int threads, std::vector<BenchLine>* out) {
  const ExpertUse& e = p.experts;
  if (e.uses == 0) return;
  auto uses = static_cast<double>(e.uses), hits = static_cast<double>(e.uses - e.misses);
  out->push_back(
      {fmt::format("{}.expert_hits", op), "", p.rows, threads, hits, "uses", uses, hits / uses,
       fmt::format("of {} experts of {:.2f} MB that may be resident {} are, {} forgotten", e.capacity,
                   static_cast<double>(e.expert_bytes) * 1e-6, e.resident, e.evictions)});
}

}  // namespace

Result<std::vector<StepPoint>> measure_decode(const ModelWeights& weights, ThreadPool* pool,
                                              const StepBenchOptions& o) {
  std::vector<StepPoint> out;
  for (int64_t context : o.contexts) {
    for (int64_t rows : o.rows) {
      Forward<float> model(&weights, pool, {.routing = o.routing});
      auto made = MadeUp::make(weights, &model, rows, context, 2 * (o.steps + 1));
      if (!made.ok()) return made.status();
      made->warm(context);
      for (bool head : {true, false}) {
        StepPoint p;
        p.rows = rows;
        p.context = context;
        p.head = head;
        time_calls(&model, o.steps, &p, [&] {
          std::vector<RowSpan> spans;
          for (int64_t i = 0; i < rows; ++i) {
            SequenceState* s = (*made)[i];
            spans.push_back({s, s->length, s->length + 1, head ? s->length : -1});
          }
          model.run(spans);
        });
        p.experts = model.expert_use();
        out.push_back(std::move(p));
      }
    }
  }
  return out;
}

Result<std::vector<StepPoint>> measure_prefill(const ModelWeights& weights, ThreadPool* pool,
                                               const StepBenchOptions& o) {
  std::vector<StepPoint> out;
  for (int64_t context : o.contexts) {
    for (int64_t rows : o.rows) {
      Forward<float> model(&weights, pool, {.routing = o.routing});
      auto made = MadeUp::make(weights, &model, o.steps + 1, context, rows);
      if (!made.ok()) return made.status();
      made->warm(context);
      StepPoint p;
      p.rows = rows;
      p.context = context;
      int64_t keep = model.layout().ring_slots, i = 0;
      time_calls(&model, o.steps, &p, [&] {
        SequenceState* s = (*made)[i++];
        s->decoder_floor = std::max(s->decoder_floor, context + rows - keep);
        model.run({{s, context, context + rows, context + rows - 1}});
      });
      p.experts = model.expert_use();
      out.push_back(std::move(p));
    }
  }
  return out;
}

std::vector<BenchLine> decode_lines(const std::vector<StepPoint>& points,
                                    const std::vector<BenchLine>& limits, int threads, bool profile) {
  double read = limit_of(limits, "read", "memory", threads),
         ops = limit_of(limits, "multiply_add", "int8", threads);
  std::vector<BenchLine> out;
  for (const StepPoint& p : points) {
    double rate = p.bytes / p.seconds * 1e-9;
    out.push_back(
        {row_kind(p), "mixed", p.rows, threads, rate, "GB/s", read, read > 0 ? rate / read : 0,
         fmt::format("context {}: {:.3f} ms, {:.1f} tok/s, {:.1f} MB, {:.0f} barriers", p.context,
                     p.seconds * 1e3, static_cast<double>(p.rows) / p.seconds, p.bytes * 1e-6, p.jobs)});
    add_experts(p, row_kind(p), threads, &out);
    if (profile) add_parts(p, row_kind(p), read * 1e9, ops * 1e9, threads, &out);
  }
  return out;
}

std::vector<BenchLine> prefill_lines(const std::vector<StepPoint>& points,
                                     const std::vector<BenchLine>& limits, int threads, bool profile) {
  double read = limit_of(limits, "read", "memory", threads),
         ops = limit_of(limits, "multiply_add", "int8", threads);
  std::vector<BenchLine> out;
  for (const StepPoint& p : points) {
    double rate = 2 * p.macs / p.seconds * 1e-9;
    out.push_back(
        {"prefill_step", "mixed", p.rows, threads, rate, "Gop/s", ops, ops > 0 ? rate / ops : 0,
         fmt::format("context {}: {:.1f} ms, {:.1f} tok/s, {:.2f} Gmac, {:.0f} barriers", p.context,
                     p.seconds * 1e3, static_cast<double>(p.rows) / p.seconds, p.macs * 1e-9, p.jobs)});
    add_experts(p, "prefill_step", threads, &out);
    if (profile) add_parts(p, "prefill_step", read * 1e9, ops * 1e9, threads, &out);
  }
  return out;
}

TokenCost token_cost(const ModelConfig& c) {
  TokenCost out;
  double routed = static_cast<double>(c.num_experts_per_tok) / std::max(1, c.n_routed_experts);
  for_each_tensor(c, [&](const TensorSpec& t) {
    bool expert = t.cls == TensorClass::kRoutedExpert;
    if ((t.cls != TensorClass::kBackbone && !expert) || t.role == Role::kEmbedding) return;
    double share = expert ? routed : 1.0;
    out.bytes += share * static_cast<double>(t.bytes());
    if (t.role != Role::kProjection || t.shape.size() != 2) return;
    // Packed FP4: two values in a byte.
    double macs = share * static_cast<double>(t.elements()) * (t.dtype == DType::kI8 ? 2 : 1);
    (t.layer < 0                         ? out.head_macs
     : t.layer < c.first_decoder_layer() ? out.encoder_macs
                                         : out.decoder_macs) += macs;
  });
  out.bytes += static_cast<double>(engram_bytes_per_token(c));
  return out;
}

}  // namespace deepinfer
