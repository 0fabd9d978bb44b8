// Bisection over prefill engines and decode groups, for every time to live and budget.
#include "sim/plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "sim/chart.h"
#include "sim/economics.h"
#include "sim/sheet.h"

namespace deepinfer::sim {

using nlohmann::json;

namespace {

class Planning {
 public:
  Planning(const PlanConfig& config, Plan* plan) : config_(config), plan_(plan) {}

  void run() {
    std::vector<double> ttls = config_.ttls_s, budgets = config_.budgets_ms;
    if (ttls.empty()) ttls = {config_.workload.ttl_s};
    if (budgets.empty()) budgets = {static_cast<double>(config_.fleet.batch_budget_ns) * 1e-6};
    for (double ttl : ttls) {
      for (double budget : budgets) {
        PlanPoint p;
        if (search(ttl, budget, &p)) plan_->choices.push_back(p);
      }
    }
    const PlanPoint* best = nullptr;
    for (const PlanPoint& p : plan_->choices) {
      if (best == nullptr || p.usd_per_hour < best->usd_per_hour) best = &p;
    }
    if (best != nullptr) {
      plan_->best = *best;
      plan_->problem.clear();
    }
  }

 private:
  // First enough decode groups beside plenty of prefill, then as few prefill engines as will do.
  bool search(double ttl_s, double budget_ms, PlanPoint* out) {
    int prefill = 1;
    PlanPoint p;
    // Doubling both until the objectives are met.
    int decode = 1;
    for (;; prefill = std::min(2 * prefill, config_.most_prefill),
            decode = std::min(2 * decode, config_.most_decode)) {
      p = look(prefill, decode, ttl_s, budget_ms);
      if (p.meets) break;
      if (prefill == config_.most_prefill && decode == config_.most_decode) {
        plan_->problem = fmt::format(
            "even {} prefill engines and {} decode groups do not meet the objectives: first token {:.3f} s, "
            "{:.2f} ms per "
            "token, {:.1f} % within both; relax an objective or use faster hardware",
            prefill, decode, p.ttft_s, p.tpot_ms, 100 * p.goodput);
        return false;
      }
    }
    *out = p;
    decode = least(decode, [&](int n) { return look(prefill, n, ttl_s, budget_ms); }, out);
    prefill = least(prefill, [&](int n) { return look(n, decode, ttl_s, budget_ms); }, out);
    return true;
  }

  // The least n <= enough that meets the objectives, by bisection; *out is its point.
  template <typename Look>
  int least(int enough, Look look_at, PlanPoint* out) {
    int fails = 0;
    while (enough - fails > 1) {
      const int middle = fails + (enough - fails) / 2;
      const PlanPoint p = look_at(middle);
      if (p.meets) {
        enough = middle;
        *out = p;
      } else {
        fails = middle;
      }
    }
    return enough;
  }

  PlanPoint look(int prefill, int decode, double ttl_s, double budget_ms) {
    for (const PlanPoint& p : plan_->looked) {
      if (p.prefill_engines == prefill && p.decode_groups == decode && p.ttl_s == ttl_s &&
          p.budget_ms == budget_ms)
        return p;
    }
    FleetConfig f = config_.fleet;
    f.prefill_engines = prefill;
    f.decode_groups = decode;
    f.batch_budget_ns = static_cast<int64_t>(budget_ms * 1e6);
    FleetResult r;
    if (config_.trace != nullptr) {
      Workload w(config_.trace, ttl_s, config_.workload.window_ttl_s, config_.trace_speed,
                 config_.trace_capacity_blocks);
      r = run_fleet(f, &w);
    } else {
      WorkloadConfig c = config_.workload;
      c.ttl_s = ttl_s;
      Workload w(c, f.seed, c.day_s / 2);  // the peak of the day
      r = run_fleet(f, &w);
    }
    PlanPoint p;
    p.prefill_engines = prefill;
    p.decode_groups = decode;
    p.ttl_s = ttl_s;
    p.budget_ms = budget_ms;
    p.ttft_s = r.ttft_ns.quantile(config_.quantile) * 1e-9;
    p.tpot_ms = r.tpot_ns.quantile(0.5) * 1e-6;
    // Requests that were refused, or had not ended when the time was over, are not good.
    const int64_t due = std::max(r.arrived, r.completed + r.refused);
    p.goodput = due > 0 ? static_cast<double>(r.within_slo) / static_cast<double>(due) : 0;
    p.hit_rate =
        static_cast<double>(r.hit_tokens) / static_cast<double>(std::max<int64_t>(1, r.input_tokens));
    const double fresh_per_s =
        static_cast<double>(r.input_tokens - r.hit_tokens) / r.measured_s + r.output_per_s;
    p.store_bytes = fresh_per_s * static_cast<double>(f.kv_bytes_per_token) * 1.2 * ttl_s;
    if (const double most = config_.workload.capacity_bytes; most > 0)
      p.store_bytes = std::min(p.store_bytes, 1.2 * most);
    p.usd_per_hour = r.gpus * f.usd_per_gpu_hour + f.other_usd_per_hour +
                     p.store_bytes / kPiB * config_.usd_per_pib_month / 730;
    p.meets = r.broken.empty() && r.completed > 0 && p.ttft_s <= f.ttft_slo_s && p.goodput >= config_.goodput;
    plan_->looked.push_back(p);
    return p;
  }

  const PlanConfig& config_;
  Plan* plan_;
};

std::string ttl_text(double s) {
  return s >= 86400  ? fmt::format("{:g} d", s / 86400)
         : s >= 3600 ? fmt::format("{:g} h", s / 3600)
                     : fmt::format("{:g} s", s);
}

std::vector<std::string> cells(const PlanPoint& p) {
  return {std::to_string(p.prefill_engines),
          std::to_string(p.decode_groups),
          ttl_text(p.ttl_s),
          fmt::format("{:g}", p.budget_ms),
          fmt::format("{:.3f}", p.ttft_s),
          fmt::format("{:.2f}", p.tpot_ms),
          fmt::format("{:.2f}", 100 * p.goodput),
          fmt::format("{:.2f}", 100 * p.hit_rate),
          fmt::format("{:.4g}", p.store_bytes * 1e-12),
          pretty(p.usd_per_hour),
          p.meets ? "yes" : "no"};
}

const std::vector<std::string> kHead = {"prefill",       "decode",   "TTL",    "budget ms",
                                        "first token s", "ms/token", "good %", "hit %",
                                        "store TB",      "USD/h",    "meets"};

json point_json(const PlanPoint& p) {
  return {{"prefill_engines", p.prefill_engines},
          {"decode_groups", p.decode_groups},
          {"ttl_s", p.ttl_s},
          {"budget_ms", p.budget_ms},
          {"ttft_s", p.ttft_s},
          {"tpot_ms", p.tpot_ms},
          {"goodput", p.goodput},
          {"hit_rate", p.hit_rate},
          {"store_bytes", p.store_bytes},
          {"usd_per_hour", p.usd_per_hour},
          {"meets", p.meets}};
}

std::string lines(const std::vector<PlanPoint>& points) {
  std::string out;
  for (const std::string& h : kHead) out += fmt::format("{:>14}", h);
  out += "\n";
  for (const PlanPoint& p : points) {
    for (const std::string& c : cells(p)) out += fmt::format("{:>14}", c);
    out += "\n";
  }
  return out;
}

}  // namespace

Plan make_plan(const PlanConfig& config) {
  Plan plan;
  Planning(config, &plan).run();
  return plan;
}

std::string plan_text(const Plan& plan) {
  std::string out;
  if (plan.choices.empty()) return "no plan: " + plan.problem + "\n\nlooked at\n" + lines(plan.looked);
  out += fmt::format("{} prefill engines and {} decode groups, TTL {}, budget {:g} ms: {} USD/h\n\n",
                     plan.best.prefill_engines, plan.best.decode_groups, ttl_text(plan.best.ttl_s),
                     plan.best.budget_ms, pretty(plan.best.usd_per_hour));
  return out + "choices\n" + lines(plan.choices) + "\nlooked at\n" + lines(plan.looked);
}

json plan_json(const Plan& plan) {
  json j = {{"found", !plan.choices.empty()},
            {"problem", plan.problem},
            {"looked", json::array()},
            {"choices", json::array()}};
  if (!plan.choices.empty()) j["best"] = point_json(plan.best);
  for (const PlanPoint& p : plan.looked) j["looked"].push_back(point_json(p));
  for (const PlanPoint& p : plan.choices) j["choices"].push_back(point_json(p));
  return j;
}

std::string plan_html(const Plan& plan) {
  Chart c{"Cost against the first token",
          "USD per hour",
          "seconds",
          {{"meets the objectives", {}}, {"does not", {}}},
          false,
          true,
          true};
  std::vector<PlanPoint> sorted = plan.looked;
  std::stable_sort(sorted.begin(), sorted.end(),
                   [](const PlanPoint& a, const PlanPoint& b) { return a.usd_per_hour < b.usd_per_hour; });
  std::vector<std::vector<std::string>> table;
  for (const PlanPoint& p : sorted) {
    c.series[p.meets ? 0 : 1].points.emplace_back(p.usd_per_hour, p.ttft_s);
    table.push_back(cells(p));
  }
  std::vector<std::vector<std::string>> choices;
  for (const PlanPoint& p : plan.choices) choices.push_back(cells(p));
  return html_page("DeepInfer plan", "<p>" + html_escape(plan.choices.empty() ? plan.problem : "") +
                                         "</p><h2>Choices</h2>" + html_table(kHead, choices) + chart_svg(c) +
                                         "<h2>Everything looked at</h2>" + html_table(kHead, table));
}

}  // namespace deepinfer::sim
