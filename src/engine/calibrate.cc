// Steps of a made-up sequence, small ones first, until the time is used up.
#include <algorithm>

#include "engine/serving_engine.h"

namespace deepinfer {
namespace {

struct Probe {
  int64_t rows, context;
  bool decoder;  // the rows run the decoder half too
};

// One step of `rows` rows after `context` tokens that are taken as processed: every block of the table is
// block 0, whose bytes are some record or other, and nothing is published.
double measure(Forward<float>* model, BlockArena* arena, const Probe& p, const EngineClock& clock) {
  SequenceState s(model->config(), model->layout(), arena);
  int64_t end = p.context + p.rows;
  for (int64_t i = 0; i < end; ++i)
    s.tokens.push_back(static_cast<int32_t>((i * 7919 + 13) % model->config().vocab_size));
  s.blocks.assign(static_cast<size_t>(end / model->layout().block_tokens + 1), 0);
  s.encoder_floor = p.context;
  s.decoder_floor = p.decoder ? p.context : end;
  s.publish_from = end;
  s.start_at(p.context);
  int64_t t = clock();
  model->run({{&s, p.context, end, p.decoder ? end - 1 : -1}});
  return static_cast<double>(clock() - t);
}

policy::CostSample sample_of(const Probe& p, double measured_ns) {
  policy::CostSample sample;
  policy::add_rows(&sample, p.rows, p.context, p.decoder ? p.rows : 0);
  sample.measured_ns = measured_ns;
  return sample;
}

}  // namespace

policy::CostModel calibrate_cost(Forward<float>* model, BlockArena* arena, int64_t budget_ns,
                                 int64_t context_tokens, const policy::CostModel& fallback,
                                 const EngineClock& clock) {
  std::vector<Probe> probes;
  for (int64_t rows : {1, 8, 32, 64, 128, 256, 512, 1024}) {
    for (int64_t context : {0, 4096, 65536}) {
      if (context + rows > context_tokens) continue;
      probes.push_back({rows, context, false});
      if (rows <= 128) probes.push_back({rows, context, true});
    }
  }
  std::stable_sort(probes.begin(), probes.end(), [](const Probe& a, const Probe& b) {
    return a.rows * (a.context + 4096) < b.rows * (b.context + 4096);
  });
  int64_t end = clock() + budget_ns;
  std::vector<policy::CostSample> samples;
  double per_row = 0;
  measure(model, arena, probes.front(), clock);  // first use of buffers and caches
  for (const Probe& p : probes) {
    // Not a step that cannot be done in the time that is left.
    if (static_cast<double>(clock()) + per_row * static_cast<double>(p.rows) > static_cast<double>(end))
      break;
    double ns = measure(model, arena, p, clock);
    if (static_cast<double>(end - clock()) > 4 * ns) ns = std::min(ns, measure(model, arena, p, clock));
    samples.push_back(sample_of(p, std::max(ns, 1.0)));
    per_row = ns / static_cast<double>(p.rows);
  }
  policy::FitDecision fit = policy::fit_cost(samples, {}, fallback);
  if (fit.adopt) return fit.model;
  // Too little time for a fit: the largest step's rate, nothing else.
  if (samples.empty()) return fallback;
  policy::CostModel m;
  m.a = m.b = 0;
  m.d = std::max(per_row, 1.0);
  return m;
}

}  // namespace deepinfer
