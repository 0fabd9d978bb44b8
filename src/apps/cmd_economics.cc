// `deepinfer economics`: what a token factory earns, needs and costs, with every formula on request and every
// input open to change.
#include <fmt/format.h>

#include <cmath>
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "apps/command.h"
#include "host/files.h"
#include "sim/economics.h"
#include "sim/economics_page.h"

namespace deepinfer {
namespace {

using nlohmann::json;

struct Options {
  sim::FactoryInput factory;
  sim::CostInput cost;
  sim::PrefixInput prefix;
  sim::SpeculationInput speculation;
  sim::MigrationInput migration;
  bool json = false, explain = false;
  std::string html;
  CLI::App* cmd = nullptr;
};

json sheet_json(const sim::Sheet& sheet, bool explain) {
  json out = json::object();
  for (const sim::SheetLine& l : sheet.lines) {
    // GPUs are whole machines; everything else keeps its digits.
    const json value = l.unit == "GPUs" ? json(std::llround(l.value)) : json(l.value);
    out[l.key] =
        explain ? json{{"value", value}, {"unit", l.unit}, {"formula", l.formula}, {"numbers", l.numbers}}
                : value;
  }
  return out;
}

json examples_json() {
  json out = json::object();
  out["cost_per_million"] = json::array();
  out["what"] = json::array();
  for (const sim::CostExample& e : sim::cost_examples()) {
    out["cost_per_million"].push_back(e.per_million);
    out["what"].push_back(e.what);
  }
  return out;
}

json storage_json(const sim::FactoryInput& in) {
  const sim::StoreSizing s = sim::store_sizing(in, 128, 100);
  return {{"gpus_behind_100_pib_logical", std::llround(s.gpus_logical)},
          {"gpus_behind_100_pib_physical", std::llround(s.gpus_physical)},
          {"servers_for_100_pib", s.pib_servers},
          {"servers_for_128_gpus", s.unit_servers}};
}

bool changed(const Options& o, const char* group) {
  for (const CLI::Option* option : o.cmd->get_options()) {
    if (option->get_group() == group && option->count() > 0) return true;
  }
  return false;
}

std::string text(const Options& o) {
  std::string out = sim::sheet_text(
      sim::factory_sheet("Reading A: 60 requests per rank, 0.5 % output", sim::reading_a()), o.explain);
  out += "\n" + sim::sheet_text(
                    sim::factory_sheet("Reading B: 128 requests per rank, 3.5 % output", sim::reading_b()),
                    o.explain);
  if (changed(o, "Factory")) out += "\n" + sim::sheet_text(sim::factory_sheet("Yours", o.factory), o.explain);
  out += fmt::format("\nLargest share of outputs that reading A can serve: {:.4f} %\n",
                     100 * sim::output_share_limit(sim::reading_a()));
  out += "\nWorked costs\n";
  for (const sim::CostExample& e : sim::cost_examples()) {
    out += fmt::format("  {:<60}{:>10.3f} USD per million outputs\n", e.what, e.per_million);
  }
  const std::string title = changed(o, "Cost") ? "Cost, yours" : "Cost, first example";
  out += "\n" + sim::sheet_text(sim::cost_sheet(title, o.cost), o.explain);
  out += "\n" + sim::sheet_text(sim::break_even_sheet(o.prefix, o.speculation, o.migration), o.explain);
  return out;
}

json report(const Options& o) {
  json out = {
      {"readings",
       {{"a", sheet_json(sim::factory_sheet("", sim::reading_a()), o.explain)},
        {"b", sheet_json(sim::factory_sheet("", sim::reading_b()), o.explain)}}},
      {"output_share_limit", sim::output_share_limit(sim::reading_a())},
      {"examples", examples_json()},
      {"cost", sheet_json(sim::cost_sheet("", o.cost), o.explain)},
      {"break_even", sheet_json(sim::break_even_sheet(o.prefix, o.speculation, o.migration), o.explain)},
      {"storage", storage_json(o.factory)}};
  if (changed(o, "Factory"))
    out["readings"]["yours"] = sheet_json(sim::factory_sheet("", o.factory), o.explain);
  return out;
}

int run_economics(const Options& o) {
  if (!o.html.empty()) {
    Status s = write_file_atomically(o.html, sim::economics_page(o.factory, o.cost));
    if (!s.ok()) {
      fmt::print(stderr, "deepinfer economics: {}\n", s.to_string());
      return 1;
    }
  }
  // Infinite break-evens become null in JSON.
  const std::string out = o.json ? report(o).dump(2) + "\n" : text(o);
  return std::fputs(out.c_str(), stdout) < 0 || std::fflush(stdout) != 0 ? 1 : 0;
}

void number(CLI::App* cmd, const char* group, const char* name, double* value, const char* what,
            double least = 0) {
  cmd->add_option(name, *value, what)->check(CLI::Range(least, 1e30))->capture_default_str()->group(group);
}

void add_factory_options(CLI::App* cmd, sim::FactoryInput* f) {
  constexpr const char* g = "Factory";
  number(cmd, g, "--tokens-per-day", &f->tokens_per_day, "All tokens: hits, misses and outputs", 1);
  cmd->add_option("--output-share", f->output_share, "Share of outputs among all tokens")
      ->check(CLI::Range(1e-9, 0.999999))
      ->capture_default_str()
      ->group(g);
  cmd->add_option("--hit-rate", f->hit_rate, "Share of the input that hits (default: from equal pools)")
      ->check(CLI::Range(0.0, 1.0))
      ->group(g);
  number(cmd, g, "--prefill-rate", &f->prefill_rate, "Uncached tokens/s per GPU, benchmark", 1e-9);
  number(cmd, g, "--decode-rate", &f->decode_rate, "Output tokens/s per GPU, benchmark", 1e-9);
  cmd->add_option("--efficiency", f->efficiency, "Live rate over benchmark rate")
      ->check(CLI::Range(1e-6, 1.0))
      ->capture_default_str()
      ->group(g);
  number(cmd, g, "--revenue-per-gpu-hour", &f->revenue_per_gpu_hour, "USD", 1e-9);
  number(cmd, g, "--price-hit", &f->prices.hit, "USD per million");
  number(cmd, g, "--price-miss", &f->prices.miss, "USD per million");
  number(cmd, g, "--price-output", &f->prices.output, "USD per million", 1e-12);
  number(cmd, g, "--kv-bytes", &f->kv_bytes_per_token, "Stored bytes per token", 1e-9);
  number(cmd, g, "--coding", &f->coding, "Bytes on disk per byte stored", 1);
  number(cmd, g, "--store-per-gpu", &f->store_bytes_per_gpu, "Bytes of store per GPU", 1);
  number(cmd, g, "--server-read", &f->server_read, "Bytes/s a storage server reads", 1);
  number(cmd, g, "--server-write", &f->server_write, "Bytes/s a storage server writes", 1);
}

void add_cost_options(CLI::App* cmd, Options* o) {
  constexpr const char* g = "Cost";
  sim::CostInput* c = &o->cost;
  number(cmd, g, "--prefill-gpus", &c->prefill_gpus, "GPUs of the prefill pool", 1e-9);
  number(cmd, g, "--decode-gpus", &c->decode_gpus, "GPUs of the decode pool", 1e-9);
  number(cmd, g, "--usd-per-gpu-hour", &c->usd_per_gpu_hour, "What a GPU costs");
  number(cmd, g, "--other-usd-per-hour", &c->other_usd_per_hour, "Everything else: hosts, storage, network");
  number(cmd, g, "--pool-prefill-rate", &c->prefill_rate, "Uncached tokens/s per GPU", 1e-9);
  number(cmd, g, "--pool-prefill-utilisation", &c->prefill_utilisation, "0 to 1", 1e-9);
  number(cmd, g, "--pool-decode-rate", &c->decode_rate, "Output tokens/s per GPU", 1e-9);
  number(cmd, g, "--pool-decode-utilisation", &c->decode_utilisation, "0 to 1", 1e-9);
  number(cmd, g, "--inputs-per-output", &c->inputs_per_output, "Uncached inputs per output", 1e-9);
  number(cmd, g, "--delivered-share", &c->delivered_share, "Outputs delivered once and in time", 1e-9);
  number(cmd, g, "--outputs-per-request", &c->outputs_per_request, "Tokens");
  number(cmd, g, "--requests-per-task", &c->requests_per_task, "Requests");
  number(cmd, g, "--success-rate", &c->success_rate, "Of tasks", 1e-9);
  constexpr const char* b = "Break-evens";
  number(cmd, b, "--future-hits", &o->prefix.future_hits, "Expected hits of a stored prefix");
  number(cmd, b, "--prefix-tokens", &o->prefix.prefix_tokens, "Its length", 1);
  number(cmd, b, "--prefix-days", &o->prefix.days, "How long it is kept");
  number(cmd, b, "--storage-usd-per-tb-day", &o->prefix.storage_usd_per_tb_day, "USD");
  number(cmd, b, "--plain-ms", &o->speculation.plain_ms, "A decode step without drafts");
  number(cmd, b, "--cycle-ms", &o->speculation.cycle_ms, "A step with drafts", 1e-9);
  number(cmd, b, "--tokens-per-cycle", &o->speculation.tokens_per_cycle, "Committed per step with drafts");
  number(cmd, b, "--remaining-tokens", &o->migration.remaining_tokens, "Of a request that could move");
  number(cmd, b, "--here-ms", &o->migration.here_ms, "Per token where it is");
  number(cmd, b, "--there-ms", &o->migration.there_ms, "Per token where it could be");
}

}  // namespace

void add_economics(Program& program) {
  auto o = std::make_shared<Options>();
  CLI::App* cmd =
      program.app->add_subcommand("economics", "Revenue, GPUs, storage and cost of a token factory");
  o->cmd = cmd;
  cmd->add_flag("--json", o->json, "Print one JSON object instead of text");
  cmd->add_flag("--explain", o->explain, "Show the formula of every value, with its numbers");
  cmd->add_option("--html", o->html, "Also write an interactive page to this file");
  add_factory_options(cmd, &o->factory);
  add_cost_options(cmd, o.get());
  cmd->callback([&program, o] { program.run = [o] { return run_economics(*o); }; });
}

}  // namespace deepinfer
