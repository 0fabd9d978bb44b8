// `deepinfer cachesim`: how much of the prompts a cache policy reuses and what is left to compute, for the
// three published workloads or a trace.
#include <fmt/format.h>

#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "apps/command.h"
#include "apps/trace_source.h"
#include "sim/cachesim.h"

namespace deepinfer {
namespace {

using nlohmann::json;

struct Options {
  bool published = false, json = false;
  std::string trace;
  int64_t block_tokens = 512;
  uint64_t seed = 1;
  double ttl_hours = 0, capacity_gib = 0, window_ttl_hours = 0;
};

json study_json(const sim::CacheStudy& s) {
  return {{"name", s.name},
          {"requests", s.requests},
          {"prompt_tokens", s.prompt_tokens},
          {"hit_perfect", s.perfect_percent()},
          {"hit", s.start_percent()},
          {"ordinary", s.percent_of_none(s.work.ordinary)},
          {"exact", s.percent_of_none(s.work.exact)},
          {"deepinfer", s.percent_of_none(s.work.deepinfer)},
          {"layer_tokens",
           {{"none", s.work.none},
            {"ordinary", s.work.ordinary},
            {"exact", s.work.exact},
            {"deepinfer", s.work.deepinfer}}},
          {"lost_tokens",
           {{"cap", s.lost_to_cap},
            {"rounding", s.lost_to_rounding},
            {"window", s.lost_to_snapshot},
            {"missing_blocks", s.lost_to_missing_blocks}}},
          {"expired_blocks", s.expired_blocks},
          {"evicted_blocks", s.evicted_blocks},
          {"peak_bytes", s.peak_bytes}};
}

std::string line(const std::string& name, double a, double b, double c, double d, double e) {
  return fmt::format("{:<26}{:>10.1f}{:>10.1f}{:>11.1f}{:>9.1f}{:>11.1f}\n", name, a, b, c, d, e);
}

std::string row(const sim::CacheStudy& s) {
  return line(s.name, s.perfect_percent(), s.start_percent(), s.percent_of_none(s.work.ordinary),
              s.percent_of_none(s.work.exact), s.percent_of_none(s.work.deepinfer));
}

std::string head() {
  return fmt::format("{:<26}{:>10}{:>10}{:>11}{:>9}{:>11}\n", "", "perfect", "hit", "ordinary", "exact",
                     "deepinfer") +
         fmt::format("{:<26}{:>20}{:>31}\n", "workload", "% of prompt tokens", "layer-tokens, % of no cache");
}

int print(const std::string& out) {
  return std::fputs(out.c_str(), stdout) < 0 || std::fflush(stdout) != 0 ? 1 : 0;
}

int run_published(const Options& o) {
  auto studies = sim::published_studies(o.seed, {});
  bool all = true;
  json list = json::array();
  std::string text = head();
  for (const sim::PublishedStudy& s : studies) {
    const sim::PublishedRow& p = s.published;
    all &= s.within;
    json j = study_json(s.measured);
    j["published"] = {{"hit_perfect", p.perfect},
                      {"hit", p.start},
                      {"ordinary", p.ordinary},
                      {"exact", p.exact},
                      {"deepinfer", p.deepinfer},
                      {"hit_tolerance", p.hit_tolerance},
                      {"work_tolerance", p.work_tolerance}};
    j["within_tolerance"] = s.within;
    list.push_back(std::move(j));
    text += row(s.measured) + line("  published", p.perfect, p.start, p.ordinary, p.exact, p.deepinfer);
  }
  text += all ? "every cell within its tolerance\n" : "NOT every cell within its tolerance\n";
  json out = {{"seed", o.seed}, {"workloads", std::move(list)}, {"within_tolerance", all}};
  const int printed = print(o.json ? out.dump(2) + "\n" : text);
  return printed != 0 || !all ? 1 : 0;
}

int run_trace(const Options& o) {
  auto trace = read_trace(o.trace, o.block_tokens);
  if (!trace.ok()) {
    fmt::print(stderr, "deepinfer cachesim: {}\n", trace.status().to_string());
    return 1;
  }
  sim::TraceCacheOptions options;
  options.ttl_ns = static_cast<int64_t>(o.ttl_hours * 3.6e12);
  options.snapshot_ttl_ns = static_cast<int64_t>(o.window_ttl_hours * 3.6e12);
  options.capacity_bytes = static_cast<int64_t>(o.capacity_gib * 1073741824.0);
  const sim::CacheStudy s = sim::study_trace(*trace, o.trace, options, {});
  json out = {{"trace", study_json(s)}, {"reordered_lines", trace->reordered}};
  std::string text = head() + row(s);
  text += fmt::format("lost prompt tokens: cap {}, rounding {}, window {}\n", s.lost_to_cap,
                      s.lost_to_rounding, s.lost_to_snapshot);
  text += fmt::format("blocks: {} expired, {} evicted; at most {:.3f} GiB held\n", s.expired_blocks,
                      s.evicted_blocks, static_cast<double>(s.peak_bytes) / 1073741824.0);
  return print(o.json ? out.dump(2, ' ', false, json::error_handler_t::replace) + "\n" : text);
}

int run_cachesim(const Options& o) {
  if (o.published == !o.trace.empty()) {
    fmt::print(stderr, "deepinfer cachesim: give either --published or --trace FILE\n");
    return 2;
  }
  return o.published ? run_published(o) : run_trace(o);
}

}  // namespace

void add_cachesim(Program& program) {
  auto o = std::make_shared<Options>();
  CLI::App* cmd =
      program.app->add_subcommand("cachesim", "Study a cache policy on the published workloads or a trace");
  cmd->add_flag("--published", o->published,
                "The three published workloads; exit code 1 if a cell is out of tolerance");
  cmd->add_option("--trace", o->trace, "A trace file (JSON Lines or CSV); - reads standard input");
  cmd->add_flag("--json", o->json, "Print one JSON object instead of a table");
  cmd->add_option("--seed", o->seed, "Of the generators")->capture_default_str();
  cmd->add_option("--trace-block", o->block_tokens, "Tokens per hash id of the trace")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 20))
      ->capture_default_str();
  cmd->add_option("--ttl-hours", o->ttl_hours,
                  "Blocks expire this long after their last use (default: never)")
      ->check(CLI::Range(0.0, 1e6));
  cmd->add_option("--window-ttl-hours", o->window_ttl_hours, "The same for stored windows")
      ->check(CLI::Range(0.0, 1e6));
  cmd->add_option("--capacity-gib", o->capacity_gib, "Size of the store (default: no limit)")
      ->check(CLI::Range(0.0, 1e9));
  cmd->callback([&program, o] { program.run = [o] { return run_cachesim(*o); }; });
}

}  // namespace deepinfer
