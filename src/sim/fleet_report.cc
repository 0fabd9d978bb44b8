// Tables, JSON and charts of a run.
#include "sim/fleet_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "sim/chart.h"
#include "sim/sheet.h"

namespace deepinfer::sim {

using nlohmann::json;

namespace {

double share(int64_t part, int64_t whole) {
  return whole > 0 ? static_cast<double>(part) / static_cast<double>(whole) : 0;
}

struct Row {
  std::string name, value, note;
};

std::string percent(double v) {
  return fmt::format("{:.2f} %", 100 * v);
}

std::string times(const Histogram& h, double unit, const char* name) {
  return fmt::format("{:.3f} / {:.3f} / {:.3f} / {:.3f} {}", h.quantile(0.5) / unit, h.quantile(0.9) / unit,
                     h.quantile(0.99) / unit, static_cast<double>(h.most()) / unit, name);
}

std::vector<Row> rows(const FleetReport& report) {
  const FleetResult& r = report.result;
  const double s = r.measured_s > 0 ? r.measured_s : 1;
  std::vector<Row> out;
  auto row = [&](std::string name, std::string value, std::string note = "") {
    out.push_back({std::move(name), std::move(value), std::move(note)});
  };
  row("requests arrived", pretty(static_cast<double>(r.arrived)),
      fmt::format("{:.1f} per second", static_cast<double>(r.arrived) / s));
  row("completed", pretty(static_cast<double>(r.completed)),
      fmt::format("{:.1f} per second", static_cast<double>(r.completed) / s));
  row("refused", pretty(static_cast<double>(r.refused)), "at admission, without GPU work");
  row("goodput", percent(share(r.within_slo, r.completed)),
      fmt::format("first token within {:g} s and {:g} ms per token", report.config.ttft_slo_s,
                  report.config.tpot_slo_ms));
  row("first token, p50 / p90 / p99 / most", times(r.ttft_ns, 1e9, "s"), "open loop");
  row("per token, p50 / p90 / p99 / most", times(r.tpot_ns, 1e6, "ms"), "after the first");
  row("whole request, p50 / p90 / p99 / most", times(r.e2e_ns, 1e9, "s"));
  row("wait for an engine, p50 / p90 / p99 / most", times(r.queue_ns, 1e9, "s"));
  if (r.images > 0)
    row("images encoded, p50 / p90 / p99 / most", times(r.vision_ns, 1e9, "s"),
        fmt::format("{} images, {} patches/s, GPUs in use {}", pretty(static_cast<double>(r.images)),
                    pretty(static_cast<double>(r.patches) / s), percent(r.vision_busy)));
  row("prefix from the store, p50 / p90 / p99 / most", times(r.fetch_ns, 1e6, "ms"));
  row("output", fmt::format("{} tokens/s", pretty(r.output_per_s)), "of decode steps: all but first tokens");
  row("input", fmt::format("{} tokens/s", pretty(static_cast<double>(r.input_tokens) / s)), "logical");
  row("computed", fmt::format("{} tokens/s", pretty(static_cast<double>(r.computed_tokens) / s)), "uncached");
  row("hit rate", percent(share(r.hit_tokens, r.input_tokens)),
      fmt::format("perfect: {}; replayed hits {}", percent(share(r.perfect_tokens, r.input_tokens)),
                  percent(share(r.replayed_hits, r.arrived))));
  row("prefill load", percent(r.prefill_load), "predicted work per rank and second");
  row("prefill in a step", percent(r.prefill_busy));
  row("decode in a step", percent(r.decode_busy));
  row("tokens per request and step", fmt::format("{:.3f}", r.tokens_per_step),
      fmt::format("{:.3f} drafts verified, {}", r.drafts_per_step,
                  r.budgets > 0 ? fmt::format("{} budgets decided", pretty(static_cast<double>(r.budgets)))
                                : std::string("none decided")));
  row("requests per decode rank", fmt::format("{:.2f}", r.mean_requests),
      fmt::format("largest over mean {:.3f}", r.requests_spread));
  row("tokens per decode rank", pretty(r.mean_tokens),
      fmt::format("largest over mean {:.3f}", r.tokens_spread));
  row("moe_lb", fmt::format("{:.3f}", r.moe_lb), "slowest over mean rank, experts");
  row("of perfectly balanced", percent(r.eta),
      fmt::format("time {:.3f} * step {:.3f} (ranks {:.3f} / moe_lb) * mix {:.3f}", r.eta_time, r.eta_step,
                  r.step_balance, r.eta_mix));
  row("store bandwidth in use", percent(r.store_busy));
  row("cost per million good outputs", fmt::format("{} USD", pretty(r.usd_per_million_output)),
      fmt::format("{} GPUs at {:g} USD/h", pretty(r.gpus), report.config.usd_per_gpu_hour));
  row("cost per request", fmt::format("{} USD", pretty(r.usd_per_request)));
  if (r.failed_over > 0) row("moved after a failure", pretty(static_cast<double>(r.failed_over)));
  if (r.cancelled > 0) row("cancelled", pretty(static_cast<double>(r.cancelled)), "the client left");
  if (r.drained > 0)
    row("instances that left with grace", pretty(static_cast<double>(r.drained)),
        fmt::format("{} requests handed on while they decoded", r.forwarded));
  if (r.forwarded > 0)
    row("longest gap in a moved request", fmt::format("{:.3f} s", r.longest_gap_s),
        fmt::format("{} rows run again at most", r.most_moved_rows));
  if (report.config.autoscale.on)
    row("started / sent away by the autoscaler", fmt::format("{} / {}", r.scaled_up, r.scaled_down),
        fmt::format("{} GPUs in the mean", pretty(r.gpus)));
  if (r.evicted_blocks > 0)
    row("blocks evicted for want of room", pretty(static_cast<double>(r.evicted_blocks)), "of the trace");
  if (r.unreadable_hits > 0)
    row("hits that could not be read", pretty(static_cast<double>(r.unreadable_hits)));
  row("events", pretty(static_cast<double>(r.events)), fmt::format("log {:016x}", r.log_hash));
  row("invariants", r.broken.empty() ? "held" : "BROKEN", r.broken);
  return out;
}

std::vector<Row> window_rows(const DayResult& d) {
  auto f = [](const WindowFigure& w, const char* unit) {
    return fmt::format("{:.4g} +- {:.2g} {}", w.mean, w.error, unit);
  };
  return {{"windows", std::to_string(d.windows.size()), "mean and 95 % error between windows"},
          {"first token p50", f(d.ttft_p50_s, "s"), ""},
          {"first token p99", f(d.ttft_p99_s, "s"), ""},
          {"per token p50", f(d.tpot_p50_ms, "ms"), ""},
          {"output", f(d.output_per_s, "tokens/s"), ""},
          {"hit rate", f(d.hit_rate, ""), ""},
          {"of perfectly balanced", f(d.eta, ""), ""},
          {"prefill in a step", f(d.prefill_busy, ""), ""}};
}

json figure_json(const WindowFigure& w) {
  return {{"mean", w.mean}, {"error", w.error}};
}

json times_json(const Histogram& h, double unit) {
  return {{"p50", h.quantile(0.5) / unit},
          {"p90", h.quantile(0.9) / unit},
          {"p99", h.quantile(0.99) / unit},
          {"mean", h.mean() / unit},
          {"most", static_cast<double>(h.most()) / unit}};
}

Chart series_chart(const FleetReport& report, const char* title, const char* unit,
                   std::vector<std::pair<const char*, double FleetSample::*>> fields) {
  Chart c{title, "seconds", unit, {}, false, false, true};
  for (const auto& [name, field] : fields) {
    Series s{name, {}};
    for (const FleetSample& p : report.result.series) s.points.emplace_back(p.at_s, p.*field);
    c.series.push_back(std::move(s));
  }
  return c;
}

Chart quantile_chart(const FleetReport& report) {
  Chart c{"How long requests take", "share of requests, %", "seconds", {}, false, false, true};
  for (const auto& [name, h] :
       {std::pair{"first token", &report.result.ttft_ns}, {"whole request", &report.result.e2e_ns}}) {
    Series s{name, {}};
    for (int q = 0; q <= 99 && h->count() > 0; ++q) s.points.emplace_back(q, h->quantile(q / 100.0) * 1e-9);
    c.series.push_back(std::move(s));
  }
  return c;
}

Chart day_chart(const FleetReport& report) {
  Chart c{"Over the day", "hour", "seconds to the first token", {{"p50", {}}, {"p99", {}}}, false,
          false,          true};
  const double n = static_cast<double>(report.day.windows.size());
  for (size_t w = 0; w < report.day.windows.size(); ++w) {
    const double hour = 24 * (static_cast<double>(w) + 0.5) / n;
    c.series[0].points.emplace_back(hour, report.day.windows[w].ttft_ns.quantile(0.5) * 1e-9);
    c.series[1].points.emplace_back(hour, report.day.windows[w].ttft_ns.quantile(0.99) * 1e-9);
  }
  return c;
}

}  // namespace

std::string report_text(const FleetReport& report) {
  const FleetConfig& c = report.config;
  std::string out =
      fmt::format("{}\n{} prefill engines of {} ranks, {} decode groups of {} ranks, seed {}\n\n",
                  report.title, c.prefill_engines, c.prefill_ranks, c.decode_groups, c.decode_ranks, c.seed);
  auto print = [&](const std::vector<Row>& list) {
    for (const Row& r : list) out += fmt::format("  {:<46}{:>34}  {}\n", r.name, r.value, r.note);
  };
  print(rows(report));
  if (!report.day.windows.empty()) {
    out += "\n";
    print(window_rows(report.day));
  }
  return out;
}

json report_json(const FleetReport& report) {
  const FleetResult& r = report.result;
  const FleetConfig& c = report.config;
  json j = {{"title", report.title},
            {"config",
             {{"seed", c.seed},
              {"prefill_engines", c.prefill_engines},
              {"prefill_ranks", c.prefill_ranks},
              {"decode_groups", c.decode_groups},
              {"decode_ranks", c.decode_ranks},
              {"warmup_s", c.warmup_s},
              {"measure_s", c.measure_s},
              {"requests_per_s", report.requests_per_s},
              {"store_nodes", c.store.nodes},
              {"shared_store", c.shared_store},
              {"ttft_slo_s", c.ttft_slo_s},
              {"tpot_slo_ms", c.tpot_slo_ms}}},
            {"requests",
             {{"arrived", r.arrived},
              {"completed", r.completed},
              {"refused", r.refused},
              {"within_slo", r.within_slo},
              {"failed_over", r.failed_over},
              {"cancelled", r.cancelled},
              {"forwarded", r.forwarded},
              {"unreadable_hits", r.unreadable_hits}}},
            {"tokens",
             {{"input", r.input_tokens},
              {"output", r.output_tokens},
              {"hit", r.hit_tokens},
              {"perfect", r.perfect_tokens},
              {"computed", r.computed_tokens},
              {"good_output", r.good_output_tokens},
              {"output_per_s", r.output_per_s}}},
            {"hit_rate", share(r.hit_tokens, r.input_tokens)},
            {"goodput", share(r.within_slo, r.completed)},
            {"ttft_s", times_json(r.ttft_ns, 1e9)},
            {"tpot_ms", times_json(r.tpot_ns, 1e6)},
            {"e2e_s", times_json(r.e2e_ns, 1e9)},
            {"queue_s", times_json(r.queue_ns, 1e9)},
            {"fetch_ms", times_json(r.fetch_ns, 1e6)},
            {"utilisation",
             {{"prefill_load", r.prefill_load},
              {"prefill_busy", r.prefill_busy},
              {"decode_busy", r.decode_busy},
              {"store", r.store_busy}}},
            {"decode",
             {{"requests_per_rank", r.mean_requests},
              {"tokens_per_rank", r.mean_tokens},
              {"requests_spread", r.requests_spread},
              {"tokens_spread", r.tokens_spread},
              {"tokens_per_step", r.tokens_per_step},
              {"drafts_per_step", r.drafts_per_step},
              {"budgets", r.budgets},
              {"step_balance", r.step_balance},
              {"moe_lb", r.moe_lb}}},
            {"vision",
             {{"images", r.images},
              {"patches", r.patches},
              {"busy", r.vision_busy},
              {"encoded_s", times_json(r.vision_ns, 1e9)}}},
            {"balanced", {{"eta", r.eta}, {"time", r.eta_time}, {"step", r.eta_step}, {"mix", r.eta_mix}}},
            {"cost",
             {{"usd_per_million_good_outputs", r.usd_per_million_output},
              {"usd_per_request", r.usd_per_request},
              {"gpus", r.gpus}}},
            {"simulator",
             {{"events", r.events},
              {"request_steps", r.request_steps},
              {"decode_steps", r.decode_steps},
              {"prefill_steps", r.prefill_steps},
              {"log_hash", fmt::format("{:016x}", r.log_hash)}}},
            {"invariants", r.broken.empty() ? "held" : r.broken}};
  j["changes"] = {{"drained", r.drained},
                  {"scaled_up", r.scaled_up},
                  {"scaled_down", r.scaled_down},
                  {"started", r.started},
                  {"longest_gap_s", r.longest_gap_s},
                  {"most_moved_rows", r.most_moved_rows},
                  {"evicted_blocks", r.evicted_blocks}};
  for (size_t i = 1; i < std::size(r.refusals); ++i) {
    j["refusals"][policy::name(static_cast<policy::AdmitReason>(i))] = r.refusals[i];
  }
  if (!r.series.empty()) {
    j["autoscaler_advice"] = {{"prefill_engines", r.series.back().prefill_advice},
                              {"decode_groups", r.series.back().decode_advice},
                              {"vision_machines", r.series.back().vision_advice},
                              {"store_nodes", r.series.back().store_advice}};
  }
  if (!report.day.windows.empty()) {
    const DayResult& d = report.day;
    j["windows"] = {{"count", d.windows.size()},
                    {"ttft_p50_s", figure_json(d.ttft_p50_s)},
                    {"ttft_p99_s", figure_json(d.ttft_p99_s)},
                    {"tpot_p50_ms", figure_json(d.tpot_p50_ms)},
                    {"output_per_s", figure_json(d.output_per_s)},
                    {"hit_rate", figure_json(d.hit_rate)},
                    {"eta", figure_json(d.eta)},
                    {"prefill_busy", figure_json(d.prefill_busy)}};
  }
  return j;
}

std::vector<std::pair<std::string, std::string>> report_charts(const FleetReport& report) {
  std::vector<std::pair<std::string, std::string>> out;
  out.emplace_back("latency.svg", chart_svg(quantile_chart(report)));
  out.emplace_back("requests.svg",
                   chart_svg(series_chart(report, "Requests in the fleet", "requests",
                                          {{"waiting", &FleetSample::waiting},
                                           {"in prefill", &FleetSample::prefilling},
                                           {"in hand-off or decode", &FleetSample::decoding}})));
  out.emplace_back("queue.svg", chart_svg(series_chart(report, "Predicted work waiting, per rank", "seconds",
                                                       {{"queued", &FleetSample::queued_s}})));
  out.emplace_back(
      "spread.svg",
      chart_svg(series_chart(
          report, "Decode ranks: largest over mean of what is booked", "ratio",
          {{"requests", &FleetSample::requests_spread}, {"tokens", &FleetSample::tokens_spread}})));
  const FleetResult& r = report.result;
  out.emplace_back("balance.svg", bars_svg("Share of perfectly balanced, and where the rest is", "",
                                           {{"all", r.eta},
                                            {"in a step", r.eta_time},
                                            {"ranks", r.step_balance},
                                            {"experts (1 / moe_lb)", 1 / r.moe_lb},
                                            {"mix", r.eta_mix}}));
  if (!report.day.windows.empty()) out.emplace_back("day.svg", chart_svg(day_chart(report)));
  return out;
}

std::string report_html(const FleetReport& report) {
  auto table = [](const std::vector<Row>& list) {
    std::vector<std::vector<std::string>> cells;
    for (const Row& r : list) cells.push_back({r.name, r.value, r.note});
    return html_table({"", "", ""}, cells);
  };
  std::string body = table(rows(report));
  if (!report.day.windows.empty()) body += "<h2>Between windows</h2>" + table(window_rows(report.day));
  for (const auto& [name, svg] : report_charts(report)) body += svg;
  return html_page(report.title, body);
}

}  // namespace deepinfer::sim
