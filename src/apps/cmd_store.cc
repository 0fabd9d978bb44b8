// `deepinfer store`: look after a persistent prefix store (docs/store.md).
#include <fmt/format.h>

#include <memory>
#include <nlohmann/json.hpp>
#include <thread>

#include "apps/command.h"
#include "host/clock.h"
#include "store/coded_store.h"
#include "store/maintenance.h"

namespace deepinfer {
namespace {

using nlohmann::ordered_json;
using store::DirectoryOptions;
using store::DirectoryStore;

struct Options {
  std::string dir, file;
  std::vector<std::string> dirs;
  int64_t data_parts = 10, parity_parts = 2;
  bool json = false;
  int64_t limit = 50, bytes = -1, objects = 4000, rounds = 3, index = 1'000'000, payload = 113'920, depth = 0;
  int64_t pairs = 15, split = 68'352, churn = 1;
  double rate_mb_s = 0, wait_s = 31;
};

int fail(const char* what, const Status& s) {
  fmt::print(stderr, "deepinfer store {}: {}\n", what, s.to_string());
  return 1;
}

void show(const Options& o, const ordered_json& j) {
  if (o.json) {
    fmt::print("{}\n", j.dump());
    return;
  }
  for (const auto& [key, value] : j.items()) {
    if (value.is_array()) {
      for (const auto& e : value) fmt::print("  {}\n", e.is_string() ? e.get<std::string>() : e.dump());
    } else {
      fmt::print("{:<24} {}\n", key, value.is_string() ? value.get<std::string>() : value.dump());
    }
  }
}

Result<std::unique_ptr<DirectoryStore>> open(const Options& o, bool writable, bool create = false) {
  DirectoryOptions d;
  d.path = o.dir;
  d.writable = writable;
  d.create = create;
  d.silent_ns = static_cast<int64_t>(o.wait_s * 1e9) - 1'000'000'000;
  return DirectoryStore::open(d);
}

int run_stat(const Options& o) {
  int64_t begun = now_ns();
  auto s = open(o, false);
  if (!s.ok()) return fail("stat", s.status());
  double rebuild_s = static_cast<double>(now_ns() - begun) / 1e9;
  auto all = store::list_generations(o.dir);
  if (!all.ok()) return fail("stat", all.status());
  store::Gauges g = (*s)->gauges();
  store::Counters c = (*s)->counters();
  int64_t alive = 0, disk = 0, segments = 0;
  for (const store::GenerationInfo& x : *all) {
    alive += x.alive ? 1 : 0;
    disk += x.segment_bytes;
    segments += x.segments;
  }
  double per = g.objects > 0 ? static_cast<double>(g.index_bytes) / static_cast<double>(g.objects) : 0;
  show(o, {{"objects", g.objects},
           {"blocks", g.blocks},
           {"windows", g.windows},
           {"bytes", g.held_bytes},
           {"disk_bytes", disk},
           {"segments", segments},
           {"generations", static_cast<int64_t>(all->size())},
           {"alive_generations", alive},
           {"index_bytes", g.index_bytes},
           {"index_bytes_per_object", per},
           {"duplicates", c.duplicates},
           {"damaged_entries", c.damaged_entries},
           {"recovered_objects", c.recovered_objects},
           {"rebuild_s", rebuild_s}});
  return 0;
}

int run_ls(const Options& o) {
  auto s = open(o, false);
  if (!s.ok()) return fail("ls", s.status());
  uint32_t now = (*s)->now_s();
  for (const store::ListedObject& x : (*s)->list(static_cast<size_t>(o.limit))) {
    const store::IndexEntry& e = x.entry;
    std::string key = fmt::format("{:016x}{:016x}{:016x}{:016x}", __builtin_bswap64(e.key.words[0]),
                                  __builtin_bswap64(e.key.words[1]), __builtin_bswap64(e.key.words[2]),
                                  __builtin_bswap64(e.key.words[3]));
    const char* kind = e.kind == store::Kind::kBlock ? "block" : "window";
    int64_t left = int64_t{e.expires_s} - now, age = int64_t{now} - e.used_s;
    if (o.json) {
      fmt::print("{}\n", ordered_json{{"kind", kind},
                                      {"key", key},
                                      {"depth", e.depth},
                                      {"bytes", e.payload_bytes},
                                      {"used_ago_s", age},
                                      {"expires_in_s", left},
                                      {"generation", x.generation},
                                      {"segment", e.segment},
                                      {"page", e.page}}
                             .dump());
    } else {
      fmt::print("{:<6} {} depth {:>5} {:>9} bytes used {:>7} s ago, {:>8} s left, g{} s{} p{}\n", kind, key,
                 e.depth, e.payload_bytes, age, left, x.generation, e.segment, e.page);
    }
  }
  return 0;
}

int run_verify(const Options& o, bool scrub) {
  const char* what = scrub ? "scrub" : "verify";
  auto s = open(o, scrub);
  if (!s.ok()) return fail(what, s.status());
  // After every megabyte a rest, so that the rate is kept.
  int64_t pause = o.rate_mb_s > 0 ? static_cast<int64_t>(1e9 / o.rate_mb_s) : 0;
  store::VerifyReport r = store::verify_objects(s->get(), pause);
  (*s)->flush();
  Status m = store::verify_manifests(o.dir, &r);
  if (!m.ok()) return fail(what, m);
  show(o, {{"sound", r.sound()},
           {"objects", r.objects},
           {"bytes", r.bytes},
           {"damaged_objects", r.damaged_objects},
           {"damaged_entries", r.damaged_entries},
           {"torn_bytes", r.torn_bytes},
           {"erased", scrub ? r.damaged_objects : 0},
           {"first", r.first}});
  return r.sound() || scrub ? 0 : 1;
}

int run_gc(const Options& o) {
  auto s = open(o, true);
  if (!s.ok()) return fail("gc", s.status());
  // Twice, so that an owner that is silent all the while is known to be gone.
  (*s)->keep_house();
  std::this_thread::sleep_for(std::chrono::nanoseconds(static_cast<int64_t>(o.wait_s * 1e9)));
  (*s)->keep_house();
  int64_t evicted = (*s)->shrink(o.bytes >= 0 ? o.bytes : INT64_MAX);
  (*s)->keep_house();
  store::Counters c = (*s)->counters();
  show(o, {{"taken_over", c.adopted_generations},
           {"expired", c.expired_objects},
           {"evicted", evicted},
           {"bytes", (*s)->gauges().held_bytes}});
  return 0;
}

int run_repair(const Options& o) {
  auto r = store::repair_manifests(o.dir);
  if (!r.ok()) return fail("repair", r.status());
  show(o, {{"generations", r->generations},
           {"rewritten", r->rewritten},
           {"recovered_objects", r->recovered_objects},
           {"busy", r->busy}});
  return 0;
}

int run_carry(const Options& o, bool out) {
  const char* what = out ? "export" : "import";
  // Before a directory is made for what is no export.
  if (Status s = out ? Status() : store::check_export_file(o.file); !s.ok()) return fail(what, s);
  auto s = open(o, !out, !out);
  if (!s.ok()) return fail(what, s.status());
  auto r =
      out ? store::export_objects(s->get(), o.file) : store::import_objects(s->get(), o.file, (*s)->now_s());
  if (!r.ok()) return fail(what, r.status());
  show(o, {{"objects", r->objects}, {"bytes", r->bytes}, {"refused", r->refused}, {"damaged", r->damaged}});
  return r->damaged == 0 ? 0 : 1;
}

int run_bench(const Options& o) {
  store::BenchOptions b;
  b.objects = o.objects;
  b.rounds = static_cast<int>(o.rounds);
  b.pairs = static_cast<int>(o.pairs);
  b.split_bytes = o.split;
  b.churn = o.churn;
  b.index_objects = o.index;
  b.payload_bytes = o.payload;
  b.read_depth = static_cast<int>(o.depth);
  auto r = store::bench_store(o.dir, b);
  if (!r.ok()) return fail("bench", r.status());
  ordered_json raw = ordered_json::object();
  for (auto [depth, mb_s] : r->raw_by_depth) raw[std::to_string(depth)] = mb_s;
  show(o, {{"read_share_of_raw", r->read_share_of_raw},
           {"read_share_quartiles", {r->read_share_low, r->read_share_high}},
           {"read_share_of_raw_kept", r->read_share_of_kept},
           {"restore_ms",
            {{"whole", r->restore_whole_ms},
             {"split_first", r->restore_first_ms},
             {"split_all", r->restore_split_ms}}},
           {"read_mb_s", r->read_mb_s},
           {"raw_mb_s", r->raw_mb_s},
           {"raw_depth", r->raw_depth},
           {"raw_mb_s_by_depth", raw},
           {"put_mb_s", r->put_mb_s},
           {"match_us", {{"p50", r->match_p50_us}, {"p99", r->match_p99_us}}},
           {"index_bytes_per_block", r->index_bytes_per_block},
           {"index_blocks", o.index},
           {"index_entries_per_block", o.churn},
           {"rebuild_s", r->rebuild_s},
           {"object_bytes", o.payload},
           {"objects", o.objects},
           {"uring", r->uring},
           {"direct", r->direct}});
  return 0;
}

// Of several directories with a code over them.
int run_rebuild(const Options& o) {
  store::CodedOptions c;
  c.paths = o.dirs;
  c.k = static_cast<int>(o.data_parts);
  c.m = static_cast<int>(o.parity_parts);
  auto s = store::CodedStore::open(c);
  if (!s.ok()) return fail("rebuild", s.status());
  for (const std::string& why : (*s)->down())
    fmt::print(stderr, "deepinfer store rebuild: left out: {}\n", why);
  store::CodedRepair r = (*s)->repair();
  (*s)->flush();
  show(o, {{"objects", r.objects},
           {"whole", r.whole},
           {"repaired_parts", r.repaired_parts},
           {"failed_parts", r.failed},
           {"lost_objects", r.lost},
           {"directories_up", (*s)->places_up()}});
  return r.lost == 0 && r.failed == 0 ? 0 : 1;
}

// What `deepinfer serve --store DIR` would find.
int run_serve_info(const Options& o) {
  auto s = open(o, true, true);
  if (!s.ok()) return fail("serve-info", s.status());
  int64_t begun = now_ns();
  Status check = (*s)->self_check();
  store::Gauges g = (*s)->gauges();
  show(o, {{"usable", check.ok()},
           {"self_check", check.to_string()},
           {"self_check_ms", static_cast<double>(now_ns() - begun) / 1e6},
           {"uring", g.uring},
           {"direct", g.direct},
           {"objects", g.objects},
           {"bytes", g.held_bytes},
           {"generations", g.generations}});
  return check.ok() ? 0 : 1;
}

}  // namespace

void add_store(Program& program) {
  CLI::App* top =
      program.app->add_subcommand("store", "Look after a persistent prefix store (docs/store.md)");
  top->require_subcommand(1);
  auto o = std::make_shared<Options>();
  auto add = [&](const char* name, const char* help, std::function<int(const Options&)> run) {
    CLI::App* cmd = top->add_subcommand(name, help);
    cmd->add_option("dir", o->dir, "The store's directory")->required();
    cmd->add_flag("--json", o->json, "Print JSON");
    cmd->callback([&program, o, run] { program.run = [o, run] { return run(*o); }; });
    return cmd;
  };
  add("stat", "What is in it", run_stat);
  add("ls", "Its objects", run_ls)
      ->add_option("--limit", o->limit, "At most so many")
      ->check(CLI::PositiveNumber);
  auto rate = [&](CLI::App* cmd) {
    cmd->add_option("--rate-mb-s", o->rate_mb_s, "Read no faster, so that the service keeps the disk");
  };
  rate(add("verify", "Read and check every object; exit code 0 only if all are sound",
           [](const Options& x) { return run_verify(x, false); }));
  rate(add("scrub", "The same, and erase what is damaged",
           [](const Options& x) { return run_verify(x, true); }));
  CLI::App* gc = add("gc", "Take over what dead processes left, end old lives, give space back", run_gc);
  gc->add_option("--bytes", o->bytes, "Evict down to so many bytes of what this process may evict");
  gc->add_option("--wait-s", o->wait_s, "Silence after which an owner is dead")
      ->check(CLI::Range(1.0, 3600.0));
  add("repair", "Write damaged manifests anew from their segments", run_repair);
  add("export", "All objects into one file", [](const Options& x) { return run_carry(x, true); })
      ->add_option("file", o->file, "The file; must not exist")
      ->required();
  add("import", "Objects of such a file into the store", [](const Options& x) { return run_carry(x, false); })
      ->add_option("file", o->file, "The file")
      ->required();
  CLI::App* bench =
      add("bench", "Speed of reads as a share of the disk's, of writes, and of matches", run_bench);
  bench->add_option("--objects", o->objects, "Objects written and read")->check(CLI::PositiveNumber);
  bench->add_option("--object-bytes", o->payload, "Size of one")
      ->check(CLI::Range(int64_t{1}, store::kMaxPayloadBytes));
  bench->add_option("--depth", o->depth, "Reads at a time through the store (default: as in the server)")
      ->check(CLI::Range(1, 4096));
  bench->add_option("--rounds", o->rounds, "Rounds of raw reads over the queue depths")
      ->check(CLI::PositiveNumber);
  bench->add_option("--pairs", o->pairs, "Reads through the store, each between two raw ones")
      ->check(CLI::PositiveNumber);
  bench->add_option("--split", o->split, "Bytes of every object that a restore in two parts asks for first")
      ->check(CLI::Range(int64_t{1}, store::kMaxPayloadBytes));
  bench->add_option("--index", o->index, "Blocks in the index of the match bench")
      ->check(CLI::PositiveNumber);
  bench
      ->add_option("--churn", o->churn,
                   "Entries of its manifest per block: the others are touches and erasures")
      ->check(CLI::Range(int64_t{1}, int64_t{1000}));
  CLI::App* rebuild =
      top->add_subcommand("rebuild", "Put missing parts back, of a store over several directories");
  rebuild->add_option("dirs", o->dirs, "All its directories; lost ones may be empty")->required();
  rebuild->add_option("--data-parts", o->data_parts, "As in the server's settings")
      ->check(CLI::Range(1, 254));
  rebuild->add_option("--parity-parts", o->parity_parts, "Likewise")->check(CLI::Range(1, 254));
  rebuild->add_flag("--json", o->json, "Print JSON");
  rebuild->callback([&program, o] { program.run = [o] { return run_rebuild(*o); }; });
  add("serve-info", "Whether `deepinfer serve --store` could use it", run_serve_info);
}

}  // namespace deepinfer
