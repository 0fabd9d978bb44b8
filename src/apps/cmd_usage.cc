// `deepinfer usage`: what each tenant and key used, from the server's ledger.
#include <fmt/format.h>

#include <cstdlib>
#include <filesystem>
#include <memory>

#include "apps/command.h"
#include "edge/serve/database.h"
#include "host/clock.h"
#include "text/json.h"

namespace deepinfer {
namespace {

struct Options {
  std::string database, tenant;
  double hours = 0;
  bool json = false;
};

int run_usage(const Options& o) {
  std::string path = o.database;
  if (const char* v = std::getenv("DEEPINFER_DATABASE"); path.empty() && v != nullptr) path = v;
  std::error_code ec;
  if (path.empty() || !std::filesystem::exists(path, ec)) {
    fmt::print(
        stderr, "deepinfer usage: {}\n",
        path.empty() ? "name the server's database with --database FILE" : path + ": there is no such file");
    return 2;
  }
  DatabaseOptions d;
  d.path = path;
  auto db = Database::open(std::move(d));
  Result<std::vector<UsageTotal>> totals =
      db.ok()
          ? (*db)->totals(o.hours > 0 ? wall_time_ns() - static_cast<int64_t>(o.hours * 3.6e12) : 0, o.tenant)
          : Result<std::vector<UsageTotal>>(db.status());
  if (!totals.ok()) {
    fmt::print(stderr, "deepinfer usage: {}\n", totals.status().message());
    return 1;
  }
  UsageTotal sum;
  Json list = Json::array();
  if (!o.json)
    fmt::print("{:<20} {:<14} {:>9} {:>13} {:>13} {:>13} {:>13}\n", "tenant", "key", "requests",
               "prompt miss", "prompt hit", "output", "reasoning");
  auto line = [&](const UsageTotal& t) {
    fmt::print("{:<20} {:<14} {:>9} {:>13} {:>13} {:>13} {:>13}\n", t.tenant, t.key_id, t.requests,
               t.prompt_tokens - t.cached_tokens, t.cached_tokens, t.output_tokens, t.reasoning_tokens);
  };
  for (const UsageTotal& t : *totals) {
    sum.requests += t.requests;
    sum.prompt_tokens += t.prompt_tokens;
    sum.cached_tokens += t.cached_tokens;
    sum.output_tokens += t.output_tokens;
    sum.reasoning_tokens += t.reasoning_tokens;
    if (!o.json) line(t);
    list.push_back({{"tenant", t.tenant},
                    {"key", t.key_id},
                    {"requests", t.requests},
                    {"prompt_tokens", t.prompt_tokens},
                    {"cached_tokens", t.cached_tokens},
                    {"output_tokens", t.output_tokens},
                    {"reasoning_tokens", t.reasoning_tokens}});
  }
  sum.tenant = "all";
  if (o.json) {
    fmt::print("{}\n", Json{{"totals", std::move(list)}}.dump(2));
  } else {
    line(sum);
  }
  return 0;
}

}  // namespace

void add_usage(Program& program) {
  auto o = std::make_shared<Options>();
  CLI::App* cmd =
      program.app->add_subcommand("usage", "Print what tenants and keys used, from the server's ledger");
  cmd->add_option("--database", o->database, "The file given to deepinfer serve --database");
  cmd->add_option("--tenant", o->tenant, "Only this tenant");
  cmd->add_option("--hours", o->hours, "Only the last so many hours (default: all)")
      ->check(CLI::NonNegativeNumber);
  cmd->add_flag("--json", o->json, "Print JSON");
  cmd->callback([&program, o] { program.run = [o] { return run_usage(*o); }; });
}

}  // namespace deepinfer
