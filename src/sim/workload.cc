// Turns of played sessions, drawn again and again; or a trace against the store that it fills itself.
#include "sim/workload.h"

#include <algorithm>
#include <cmath>

#include "base/check.h"

namespace deepinfer::sim {
namespace {

constexpr int64_t kBlock = 128;
constexpr double kSecond = 1e9;

int64_t whole(double seconds) {
  return static_cast<int64_t>(std::min(seconds * kSecond, 9e18));
}

}  // namespace

SessionMix agent_mix() {
  return {agent_shape(), 1, 20, 1.5, 1};
}
SessionMix chat_mix() {
  return {chat_shape(), 1, 120, 2.5, 2};
}
SessionMix document_mix() {
  return {{"documents", 0, 20000, 200000, 1, 1, 200, 400, 1, 0, 0}, 1, 3600, 2, 3};
}
SessionMix reading_a_mix() {
  return {{"agent-a", 4000, 200, 2000, 200, 2500, 100, 411, 60, 100000, 2000}, 1, 20, 1.5, 1};
}

Workload::Workload(const WorkloadConfig& config, uint64_t seed, double start_of_day_s)
    : config_(config), random_(seed), start_of_day_s_(start_of_day_s), blocks_(0), windows_(0) {
  DI_CHECK(!config.mix.empty() && config.requests_per_s > 0, "a workload has sessions and a rate");
  double shares = 0;
  for (const SessionMix& m : config.mix) shares += m.share;
  double upto = 0;
  for (const SessionMix& m : config.mix) {
    play(m, config.sessions, &random_);
    Kind& k = kinds_.back();
    double input = 0, output = 0;
    for (const Turn& t : k.turns) {
      input += static_cast<double>(t.input);
      output += static_cast<double>(t.output);
    }
    mean_input_ += m.share / shares * input / static_cast<double>(k.turns.size());
    mean_output_ += m.share / shares * output / static_cast<double>(k.turns.size());
    k.share_upto = upto += m.share / shares;
  }
  kinds_.back().share_upto = 2;
  if (config.capacity_bytes <= 0 || resident_bytes(config_.ttl_s) <= config.capacity_bytes) return;
  double fits = 0, beyond = config_.ttl_s;
  for (int i = 0; i < 60; ++i) {
    const double middle = 0.5 * (fits + beyond);
    (resident_bytes(middle) <= config.capacity_bytes ? fits : beyond) = middle;
  }
  config_.ttl_s = fits;
}

// What lies in the store at a moment if everything stays kept_s after its last use: requests per second times
// the size of what each leaves times how long that stays the last of its session.
double Workload::resident_bytes(double kept_s) const {
  double bytes = 0, before = 0;
  for (const Kind& k : kinds_) {
    double stays_s = 0;
    for (double gap : k.gaps_s) stays_s += std::min(gap, kept_s) / static_cast<double>(k.gaps_s.size());
    double token_seconds = 0;
    for (size_t i = 0; i < k.turns.size(); ++i) {
      const bool last = i + 1 == k.turns.size() || k.first[i + 1];
      token_seconds += static_cast<double>(k.turns[i].input + k.turns[i].output - k.mix.shape.system_tokens) *
                       (last ? kept_s : stays_s);
    }
    const double share = std::min(1.0, k.share_upto) - before;
    before = std::min(1.0, k.share_upto);
    bytes += share * config_.requests_per_s * token_seconds / static_cast<double>(k.turns.size()) *
             config_.kv_bytes_per_token;
  }
  return bytes;
}

Workload::Workload(const Trace* trace, double ttl_s, double window_ttl_s, double speed,
                   int64_t capacity_blocks)
    : random_(1),
      trace_(trace),
      speed_(speed),
      blocks_(whole(ttl_s)),
      windows_(whole(window_ttl_s)),
      capacity_blocks_(capacity_blocks) {}

void Workload::play(const SessionMix& mix, int sessions, Random* random) {
  const SessionShape& g = mix.shape;
  kinds_.emplace_back();
  kinds_.back().mix = mix;
  constexpr int kGaps = 16384;  // fine enough for the last ten-thousandth
  for (int i = 0; i < kGaps; ++i) {
    kinds_.back().gaps_s.push_back(random->log_normal(std::log(mix.gap_median_s), mix.gap_sigma));
  }
  std::vector<Turn>& turns = kinds_.back().turns;
  for (int s = 0; s < sessions; ++s) {
    int64_t context = g.system_tokens;
    Turn before{};
    bool first = true;
    for (int turn = 0; turn < g.turns; ++turn) {
      if (g.compact_above > 0 && context > g.compact_above) {
        context = g.system_tokens + g.summary_tokens;
        before = {};
        first = true;
      }
      const int64_t input = context + (turn == 0 ? random->in(g.first_low, g.first_high)
                                                 : random->in(g.input_low, g.input_high));
      const int64_t output = random->in(g.answer_low, g.answer_high);
      DI_CHECK(input + output <= INT32_MAX, "a session's context is below 2^31 tokens");
      turns.push_back(
          {static_cast<int32_t>(input), static_cast<int32_t>(output), before.input, before.output});
      kinds_.back().first.push_back(first);
      before = turns.back();
      context = input + output;
      first = false;
    }
  }
}

double Workload::rate_at(double now_s) const {
  const double phase = 6.283185307179586 * (start_of_day_s_ + now_s) / config_.day_s;
  // The valley is at midnight, the peak at noon.
  return config_.requests_per_s * (1 - config_.diurnal * std::cos(phase));
}

void Workload::draw(Drawn* drawn) {
  SimRequest* out = &drawn->request;
  now_s_ += random_.exponential(1 / rate_at(now_s_));
  const double draw = random_.unit();
  size_t k = 0;
  while (draw >= kinds_[k].share_upto) ++k;
  const Kind& kind = kinds_[k];
  const size_t turn = static_cast<size_t>(random_.in(0, static_cast<int64_t>(kind.turns.size()) - 1));
  drawn->turn = &kind.turns[turn];
  __builtin_prefetch(drawn->turn);
  drawn->system = kind.mix.shape.system_tokens;
  *out = SimRequest{};
  out->arrival_ns = whole(now_s_);
  out->tenant = kind.mix.tenant;
  out->home = random_.bits();
  if (config_.image_share > 0 && random_.unit() < config_.image_share) {
    out->images = static_cast<int>(random_.in(1, 4));
    // The smallest and the largest image of the model: 39 x 39 patches, 1,024 tokens of nine.
    for (int i = 0; i < out->images; ++i) out->patches[i] = random_.in(1521, 9216);
  }
  drawn->gap_s = nullptr;
  if (kind.first[turn]) return;
  drawn->gap_s =
      &kind.gaps_s[static_cast<size_t>(random_.in(0, static_cast<int64_t>(kind.gaps_s.size()) - 1))];
  __builtin_prefetch(drawn->gap_s);
}

bool Workload::next(SimRequest* out) {
  if (trace_ != nullptr) return next_of_trace(out);
  if (next_drawn_ == drawn_.size()) {
    drawn_.resize(kAhead);
    for (Drawn& d : drawn_) draw(&d);
    next_drawn_ = 0;
  }
  const Drawn& d = drawn_[next_drawn_++];
  const Turn& t = *d.turn;
  *out = d.request;
  out->input_tokens = t.input;
  out->output_tokens = t.output;
  // The shared beginning is used all the time and never expires.
  out->stored_tokens = d.system;
  if (d.gap_s == nullptr) return true;
  out->gap_ns = whole(*d.gap_s);
  if (*d.gap_s >= config_.ttl_s) return true;
  const int64_t input = t.before_input, stored = input + t.before_output;
  out->stored_tokens = stored;
  if (*d.gap_s >= config_.window_ttl_s) return true;
  out->windows[0] = input / kBlock * kBlock;
  out->windows[1] = stored / kBlock * kBlock;
  return true;
}

bool Workload::next_of_trace(SimRequest* out) {
  if (at_ >= trace_->requests.size()) return false;
  const TraceRequest& r = trace_->requests[at_++];
  const uint64_t* ids = trace_->ids.data() + r.first_id;
  *out = SimRequest{};
  out->arrival_ns = static_cast<int64_t>(static_cast<double>(r.arrival_ns) / speed_);
  out->input_tokens = r.input_tokens;
  out->output_tokens = r.output_tokens;
  blocks_.expire(out->arrival_ns);
  windows_.expire(out->arrival_ns);
  const uint32_t full =
      std::min<uint32_t>(r.id_count, static_cast<uint32_t>(r.input_tokens / trace_->block_tokens));
  uint32_t found = 0;
  while (found < r.id_count && blocks_.contains(ids[found], out->arrival_ns)) ++found;
  out->stored_tokens = std::min<int64_t>(r.input_tokens, found * trace_->block_tokens);
  // The two longest boundaries with a window are the only ones a hit or its replay can use.
  int kept = 0;
  for (uint32_t i = std::min(found, full); i > 0 && kept < 2; --i) {
    if (windows_.contains(ids[i - 1], out->arrival_ns)) out->windows[kept++] = i * trace_->block_tokens;
  }
  for (uint32_t i = r.id_count; i-- > 0;) blocks_.put(ids[i], out->arrival_ns);
  while (capacity_blocks_ > 0 && blocks_.size() > capacity_blocks_) evicted_ += blocks_.evict_oldest();
  if (full > 0) windows_.put(ids[full - 1], out->arrival_ns);
  out->home = r.id_count > 0 ? ids[0] * 0x9E3779B97F4A7C15ull : at_ * 0x9E3779B97F4A7C15ull;
  return true;
}

}  // namespace deepinfer::sim
