// Every field of a result by name, written and read by one list.
#include "sim/fleet_checkpoint.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

namespace deepinfer::sim {

using nlohmann::json;

namespace {

// Visits the fields of a result; both directions use it, so that neither can forget one.
template <typename R, typename V>
void fields(R& r, V&& v) {
  v("arrived", r.arrived);
  v("completed", r.completed);
  v("refused", r.refused);
  v("within_slo", r.within_slo);
  v("failed_over", r.failed_over);
  v("input_tokens", r.input_tokens);
  v("output_tokens", r.output_tokens);
  v("perfect_tokens", r.perfect_tokens);
  v("hit_tokens", r.hit_tokens);
  v("computed_tokens", r.computed_tokens);
  v("good_output_tokens", r.good_output_tokens);
  v("cancelled", r.cancelled);
  v("evicted_blocks", r.evicted_blocks);
  v("drained", r.drained);
  v("forwarded", r.forwarded);
  v("scaled_up", r.scaled_up);
  v("scaled_down", r.scaled_down);
  v("started", r.started);
  v("longest_gap_s", r.longest_gap_s);
  v("most_moved_rows", r.most_moved_rows);
  v("unreadable_hits", r.unreadable_hits);
  v("replayed_hits", r.replayed_hits);
  for (size_t i = 0; i < std::size(r.refusals); ++i) v(fmt::format("refusals_{}", i), r.refusals[i]);
  v("ttft", r.ttft_ns);
  v("tpot", r.tpot_ns);
  v("e2e", r.e2e_ns);
  v("queue", r.queue_ns);
  v("fetch", r.fetch_ns);
  v("measured_s", r.measured_s);
  v("prefill_busy", r.prefill_busy);
  v("decode_busy", r.decode_busy);
  v("prefill_load", r.prefill_load);
  v("output_per_s", r.output_per_s);
  v("step_balance", r.step_balance);
  v("moe_lb", r.moe_lb);
  v("mean_requests", r.mean_requests);
  v("mean_tokens", r.mean_tokens);
  v("requests_spread", r.requests_spread);
  v("tokens_spread", r.tokens_spread);
  v("eta", r.eta);
  v("eta_time", r.eta_time);
  v("eta_step", r.eta_step);
  v("eta_mix", r.eta_mix);
  v("store_busy", r.store_busy);
  v("gpus", r.gpus);
  v("usd_per_million_output", r.usd_per_million_output);
  v("usd_per_request", r.usd_per_request);
  v("events", r.events);
  v("request_steps", r.request_steps);
  v("decode_steps", r.decode_steps);
  v("prefill_steps", r.prefill_steps);
  v("budgets", r.budgets);
  v("images", r.images);
  v("patches", r.patches);
  v("vision", r.vision_ns);
  v("tokens_per_step", r.tokens_per_step);
  v("drafts_per_step", r.drafts_per_step);
  v("vision_busy", r.vision_busy);
  v("log_hash", r.log_hash);
  v("series", r.series);
}

struct Writer {
  json* j;
  void operator()(const std::string& name, int64_t v) const { (*j)[name] = v; }
  void operator()(const std::string& name, uint64_t v) const { (*j)[name] = v; }
  void operator()(const std::string& name, double v) const { (*j)[name] = v; }
  void operator()(const std::string& name, const Histogram& h) const {
    json buckets = json::array();
    for (const auto& [i, n] : h.buckets()) buckets.push_back({i, n});
    (*j)[name] = {{"buckets", std::move(buckets)}, {"sum", h.sum()}, {"most", h.most()}};
  }
  void operator()(const std::string& name, const std::vector<FleetSample>& series) const {
    json& list = (*j)[name] = json::array();
    for (const FleetSample& s : series) {
      list.push_back({s.at_s, s.waiting, s.prefilling, s.decoding, s.queued_s, s.requests_spread,
                      s.tokens_spread, s.prefill_advice, s.decode_advice, s.vision_advice, s.store_advice});
    }
  }
};

struct Reader {
  const json& j;
  bool* good;
  const json* find(const std::string& name) const {
    auto it = j.find(name);
    if (it != j.end()) return &*it;
    *good = false;
    return nullptr;
  }
  template <typename T>
  void number(const json* v, T* out) const {
    if (v != nullptr && v->is_number()) {
      *out = v->get<T>();
    } else {
      *good = false;
    }
  }
  void operator()(const std::string& name, int64_t& v) const { number(find(name), &v); }
  void operator()(const std::string& name, uint64_t& v) const { number(find(name), &v); }
  void operator()(const std::string& name, double& v) const { number(find(name), &v); }
  void operator()(const std::string& name, Histogram& h) const {
    const json* v = find(name);
    if (v == nullptr || !v->is_object() || !v->contains("buckets") || !(*v)["buckets"].is_array()) {
      *good = false;
      return;
    }
    std::vector<std::pair<int64_t, int64_t>> buckets;
    for (const json& b : (*v)["buckets"]) {
      if (!b.is_array() || b.size() != 2 || !b[0].is_number_integer() || !b[1].is_number_integer()) {
        *good = false;
        return;
      }
      buckets.emplace_back(b[0].get<int64_t>(), b[1].get<int64_t>());
    }
    double sum = 0;
    int64_t most = 0;
    const Reader inside{*v, good};
    inside("sum", sum);
    inside("most", most);
    *good = *good && h.restore(buckets, sum, most);
  }
  void operator()(const std::string& name, std::vector<FleetSample>& series) const {
    const json* v = find(name);
    if (v == nullptr || !v->is_array()) {
      *good = false;
      return;
    }
    for (const json& s : *v) {
      if (!s.is_array() || s.size() != 11) {
        *good = false;
        return;
      }
      FleetSample f;
      double* const fields_of[] = {&f.at_s,     &f.waiting,         &f.prefilling,   &f.decoding,
                                   &f.queued_s, &f.requests_spread, &f.tokens_spread};
      for (size_t i = 0; i < 7; ++i) number(&s[i], fields_of[i]);
      number(&s[7], &f.prefill_advice);
      number(&s[8], &f.decode_advice);
      number(&s[9], &f.vision_advice);
      number(&s[10], &f.store_advice);
      series.push_back(f);
    }
  }
};

// Enough of a run to tell it from another.
std::string name_of(const DayConfig& c) {
  const FleetConfig& f = c.fleet;
  std::string mix;
  for (const SessionMix& m : c.workload.mix) mix += fmt::format("{}:{} ", m.shape.name, m.share);
  std::string changes;
  for (const FailureEvent& e : f.failures)
    changes += fmt::format("fail {}:{}@{}+{} ", static_cast<int>(e.what), e.which, e.at_s, e.for_s);
  for (const DrainOrder& d : f.drains)
    changes += fmt::format("drain {}:{}@{}+{} ", static_cast<int>(d.role), d.which, d.at_s, d.back_s);
  if (f.autoscale.on)
    changes += fmt::format("autoscale {}/{} {}/{} ", f.autoscale.prefill_engines, f.autoscale.decode_groups,
                           f.autoscale.up_after_s, f.autoscale.down_after_s);
  const VerifyConfig& v = f.verify;
  changes +=
      fmt::format("verify {} {}/{} {} {}/{}/{} vision {}x{} {} images {} costs {} {} {} {} {} ",
                  policy::name(v.mode), v.drafts, v.fixed, v.overhead, v.logit, v.spread, v.decay,
                  f.vision.machines, f.vision.gpus, f.vision.patches_per_s, c.workload.image_share,
                  f.prefill.b, f.prefill.d, f.decode.fixed_ns, f.decode.per_row_ns, f.decode.per_token_ns);
  if (f.cancel_share > 0) changes += fmt::format("cancel {}/{} ", f.cancel_share, f.cancel_after_s);
  return fmt::format(
      "seed {} windows {} warmup {} measure {} prefill {}x{} decode {}x{} spare {} rules {}/{} rate {} "
      "diurnal {} "
      "ttl {} store {} mix {}{}",
      f.seed, c.windows, f.warmup_s, f.measure_s, f.prefill_engines, f.prefill_ranks, f.decode_groups,
      f.decode_ranks, f.spare_decode_groups, static_cast<int>(f.prefill_balancer.rule),
      static_cast<int>(f.decode_balancer.rule), c.workload.requests_per_s, c.workload.diurnal,
      c.workload.ttl_s, c.workload.capacity_bytes, mix, changes);
}

}  // namespace

std::string write_checkpoint(const DayConfig& config, const std::vector<FleetResult>& windows) {
  json j = {{"deepinfer_simulate_checkpoint", 1}, {"run", name_of(config)}, {"windows", json::array()}};
  for (const FleetResult& r : windows) {
    json w = json::object();
    fields(r, Writer{&w});
    j["windows"].push_back(std::move(w));
  }
  return j.dump();
}

Result<std::vector<FleetResult>> read_checkpoint(std::string_view text, const std::string& name,
                                                 const DayConfig& config) {
  const json j = json::parse(text.begin(), text.end(), nullptr, false);
  if (j.is_discarded() || !j.is_object() || !j.contains("deepinfer_simulate_checkpoint") ||
      !j.contains("windows") || !j["windows"].is_array() || !j.contains("run") || !j["run"].is_string()) {
    return error(Code::kInvalidData,
                 "{}: not a checkpoint of deepinfer simulate; remove it or name another file", name);
  }
  if (j["run"].get<std::string>() != name_of(config)) {
    return error(Code::kInvalidData, "{}: the checkpoint of another run ({}); remove it or name another file",
                 name, j["run"].get<std::string>());
  }
  std::vector<FleetResult> out;
  bool good = static_cast<int64_t>(j["windows"].size()) <= config.windows;
  for (const json& w : j["windows"]) {
    if (!w.is_object()) good = false;
    if (!good) break;
    FleetResult r;
    fields(r, Reader{w, &good});
    out.push_back(std::move(r));
  }
  if (!good) return error(Code::kInvalidData, "{}: a damaged checkpoint; remove it", name);
  return out;
}

}  // namespace deepinfer::sim
