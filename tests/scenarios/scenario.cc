// A scenario is read and run line by line. After every event the invariants are checked, and every event is
// recorded: at the end the whole log is replayed into a second state, which must decide the same.
#include "scenario.h"

#include <fmt/format.h>

#include <cmath>
#include <cstdlib>
#include <map>
#include <optional>
#include <sstream>

#include "policy/scheduler.h"

namespace deepinfer {
namespace {

using namespace policy;

struct Line {
  int number = 0;
  std::string raw;
  std::vector<std::string> words;
  bool indented = false;
};

// Text of a request: named pieces and lengths. Equal names at equal places are equal tokens.
struct Piece {
  std::string name;
  int64_t tokens = 0;
};

uint64_t mix(uint64_t h, uint64_t v) {
  h = (h ^ v) * 0x9E3779B97F4A7C15ull;
  return h ^ (h >> 29);
}
uint64_t name_hash(const std::string& s) {
  uint64_t h = 1469598103934665603ull;
  for (unsigned char c : s) h = (h ^ c) * 1099511628211ull;
  return h;
}

class Runner {
 public:
  Runner(std::string name, const std::string& text, bool fill) : name_(std::move(name)), fill_(fill) {
    std::istringstream in(text);
    for (std::string raw; std::getline(in, raw);) {
      Line l;
      l.number = static_cast<int>(lines_.size()) + 1;
      l.raw = raw;
      std::string code = raw.substr(0, raw.find('#'));
      l.indented = !code.empty() && code[0] == ' ';
      std::istringstream words(code);
      for (std::string w; words >> w;) l.words.push_back(w);
      lines_.push_back(l);
    }
    config_.replay = {128, 6, 134};
    config_.context_tokens = 1 << 20;
    config_.pool_blocks = 10000;
    config_.snapshot_slots = 64;
    config_.max_in_flight = 1;
  }

  ScenarioOutcome run() {
    for (at_ = 0; at_ < lines_.size(); ++at_) {
      const Line& l = lines_[at_];
      out_.filled += l.raw + "\n";
      if (l.words.empty()) continue;
      if (l.indented) {
        fail("an indented line must follow a plan");
        continue;
      }
      command(l);
      if (out_.problems.size() > 20) break;
      if (!state_) continue;
      std::string broken = broken_invariant(*state_);
      if (!broken.empty()) fail("invariant broken: " + broken);
    }
    replay();
    return out_;
  }

 private:
  void fail(const std::string& what) {
    out_.problems.push_back(
        fmt::format("{}:{}: {}", name_, at_ < lines_.size() ? lines_[at_].number : 0, what));
  }

  // ---- words ----

  std::optional<double> number(const std::string& text) {
    char* end = nullptr;
    double v = std::strtod(text.c_str(), &end);
    std::string unit = end ? std::string(end) : "";
    double scale = unit.empty()   ? 1
                   : unit == "ns" ? 1
                   : unit == "us" ? 1e3
                   : unit == "ms" ? 1e6
                   : unit == "s"  ? 1e9
                   : unit == "K"  ? 1024
                   : unit == "M"  ? 1024 * 1024
                                  : 0;
    if (end == text.c_str() || scale == 0 || !std::isfinite(v)) {
      fail("'" + text + "' is not a number");
      return std::nullopt;
    }
    return v * scale;
  }
  int64_t integer(const std::string& text) { return std::llround(number(text).value_or(0)); }

  // key=value words from `first` on; anything else is an error.
  std::map<std::string, std::string> fields(const Line& l, size_t first) {
    std::map<std::string, std::string> out;
    for (size_t i = first; i < l.words.size(); ++i) {
      size_t eq = l.words[i].find('=');
      std::string key = l.words[i].substr(0, eq);
      if (!out.emplace(key, eq == std::string::npos ? "1" : l.words[i].substr(eq + 1)).second)
        fail("'" + key + "' twice");
    }
    return out;
  }

  SeqId id_of(const std::string& name) {
    auto [it, fresh] = ids_.emplace(name, SeqId(ids_.size() + 1));
    if (fresh) names_[it->second] = name;
    return it->second;
  }
  std::string name_of(SeqId id) const {
    auto it = names_.find(id);
    return it == names_.end() ? std::to_string(raw(id)) : it->second;
  }

  // ---- texts and keys ----

  std::vector<Piece> pieces(const std::string& text) {
    std::vector<Piece> out;
    std::istringstream in(text);
    for (std::string part; std::getline(in, part, ',');) {
      size_t colon = part.find(':');
      if (colon == std::string::npos) {
        fail("'" + part + "' is not name:tokens");
        return out;
      }
      out.push_back({part.substr(0, colon), integer(part.substr(colon + 1))});
    }
    return out;
  }
  // Keys of the full blocks of a text: a chain over (piece, offset) of every token.
  std::vector<BlockKey> keys(const std::vector<Piece>& text) const {
    std::vector<BlockKey> out;
    uint64_t chain = 1;
    int64_t n = 0;
    for (const Piece& p : text) {
      uint64_t h = name_hash(p.name);
      for (int64_t i = 0; i < p.tokens; ++i) {
        chain = mix(mix(chain, h), static_cast<uint64_t>(i));
        if (++n % config_.replay.window_tokens == 0) out.push_back(BlockKey{{chain, mix(chain, 7), 0, 0}});
      }
    }
    return out;
  }

  // ---- commands ----

  void command(const Line& l) {
    const std::string& c = l.words[0];
    if (c == "config" || c == "cost") return configure(l);
    if (c == "refused") return refused(l);
    if (!state_) start();
    if (!state_) return;
    if (c == "arrive") return arrive(l);
    if (c == "plan") return plan(l);
    if (c == "finish") return finish(l);
    if (c == "expect") return expect(l);
    if (c == "repeat") return repeat(l);
    if (l.words.size() < 2) return fail("'" + c + "' needs a word after it, or is unknown");
    if (c == "at") {
      now_ns_ = integer(l.words[1]);
    } else if (c == "cancel") {
      happen(Cancelled{id_of(l.words[1])});
    } else if (c == "tick") {
      now_ns_ = integer(l.words[1]);
      happen(Tick{now_ns_});
    } else if (c == "store") {
      bool window = l.words.size() > 3 && l.words[3] == "window";
      happen(StoreResult{id_of(l.words[1]), l.words.size() > 2 ? integer(l.words[2]) : 0, window});
    } else if (c == "ready") {
      StoreReady e{id_of(l.words[1]), false, now_ns_, 0};
      for (const auto& [key, value] : fields(l, 2)) {
        if (key == "window")
          e.window = true;
        else if (key == "due")
          e.due_ns = integer(value);
        else if (key == "share")
          e.share = number(value).value_or(0);
        else
          fail("unknown field '" + key + "'");
      }
      happen(e);
    } else if (c == "lease" || c == "lose" || c == "free" || c == "lose_snapshots") {
      hold(l);
    } else {
      fail("unknown command '" + c + "'");
    }
  }

  void configure(const Line& l) {
    if (state_) return fail("the configuration comes before everything else");
    for (const auto& [key, value] : fields(l, 1)) {
      std::map<std::string, int64_t*> integers = {{"window", &config_.replay.window_tokens},
                                                  {"backtrack", &config_.replay.backtrack_tokens},
                                                  {"keep", &config_.replay.keep_tokens},
                                                  {"context", &config_.context_tokens},
                                                  {"drafts", &config_.drafts},
                                                  {"pool", &config_.pool_blocks},
                                                  {"snapshots", &config_.snapshot_slots},
                                                  {"running", &config_.max_running},
                                                  {"chunk_max", &config_.chunk_max_tokens},
                                                  {"batch", &config_.batch_budget_ns},
                                                  {"interactive", &config_.interactive_budget_ns},
                                                  {"min_budget", &config_.min_budget_ns},
                                                  {"starve", &config_.starve_steps},
                                                  {"bypass", &config_.max_bypass},
                                                  {"scan", &config_.scan_window},
                                                  {"preemptions", &config_.max_preemptions},
                                                  {"in_flight", &config_.max_in_flight},
                                                  {"grace", &config_.lease_grace_ns}};
      std::map<std::string, double*> reals = {{"a", &config_.cost.a},
                                              {"b", &config_.cost.b},
                                              {"d", &config_.cost.d},
                                              {"e", &config_.cost.e},
                                              {"e_decoder", &config_.cost.e_decoder},
                                              {"d_decoder", &config_.cost.d_decoder},
                                              {"g_decoder", &config_.cost.g_decoder},
                                              {"short", &config_.short_fraction},
                                              {"long", &config_.long_fraction},
                                              {"quota", &config_.tiers.quota_ns}};
      if (integers.contains(key)) {
        *integers[key] = integer(value);
      } else if (reals.contains(key)) {
        *reals[key] = number(value).value_or(0);
      } else if (key == "exact") {
        config_.exact_hits = value == "1";
      } else if (key == "cap_snapshots") {
        config_.cap_snapshots = value == "1";
      } else {
        fail("unknown setting '" + key + "'");
      }
    }
  }

  void start() {
    Result<SchedulerState> made = make_scheduler(config_);
    if (!made.ok()) return fail("the configuration is refused: " + made.status().message());
    state_ = std::move(made).value();
  }

  // refused WORD...: start-up fails with a message that has these words.
  void refused(const Line& l) {
    Result<SchedulerState> made = make_scheduler(config_);
    if (made.ok()) return fail("the configuration is accepted");
    for (size_t i = 1; i < l.words.size(); ++i) {
      if (made.status().message().find(l.words[i]) == std::string::npos) {
        fail("the refusal does not say '" + l.words[i] + "': " + made.status().message());
      }
    }
  }

  void happen(Event e) {
    policy::apply(&*state_, e);
    log_.push_back(std::move(e));
  }

  void arrive(const Line& l) {
    if (l.words.size() < 3) return fail("arrive NAME prompt=N or text=...");
    Arrived a;
    a.seq = id_of(l.words[1]);
    a.now_ns = now_ns_;
    std::vector<Piece> text;
    for (const auto& [key, value] : fields(l, 2)) {
      if (key == "prompt")
        text = {{"own." + l.words[1], integer(value)}};
      else if (key == "text")
        text = pieces(value);
      else if (key == "new")
        a.max_new_tokens = integer(value);
      else if (key == "priority")
        a.priority = static_cast<int>(integer(value));
      else if (key == "tenant")
        a.tenant = TenantId(static_cast<uint32_t>(integer(value)));
      else if (key == "weight")
        a.weight = number(value).value_or(1);
      else if (key == "deadline")
        a.deadline_ns = integer(value);
      else if (key == "exact")
        a.exact = value == "1";
      else if (key == "whole_decoder")
        a.whole_decoder = value == "1";
      else if (key == "store")
        a.store_blocks = integer(value);
      else if (key == "store_ns")
        a.store_ns_per_block = a.store_ns_per_window = integer(value);
      else if (key == "store_window")
        a.store_windows.push_back(integer(value));
      else
        fail("unknown field '" + key + "'");
    }
    for (const Piece& p : text) a.prompt_tokens += p.tokens;
    a.keys = keys(text);
    texts_[a.seq] = text;
    happen(std::move(a));
  }

  std::vector<std::string> expectation() {
    std::vector<std::string> out;
    while (at_ + 1 < lines_.size() && lines_[at_ + 1].indented) {
      const Line& l = lines_[++at_];
      std::string text;
      for (const std::string& w : l.words) text += (text.empty() ? "" : " ") + w;
      if (!text.empty()) out.push_back(text);
    }
    return out;
  }

  // plan [budget=T] [quiet]: decide, compare with the indented lines, adopt. quiet: nothing is compared.
  void plan(const Line& l) {
    PlanQuery q;
    q.now_ns = now_ns_;
    bool quiet = false;
    for (const auto& [key, value] : fields(l, 1)) {
      if (key == "budget")
        q.budget_ns = integer(value);
      else if (key == "quiet")
        quiet = true;
      else
        fail("unknown field '" + key + "'");
    }
    size_t where = at_;
    StepPlan p = decide(*state_, q);
    queries_.push_back(q);
    std::istringstream lines(to_text(p, [this](SeqId id) { return name_of(id); }));
    std::vector<std::string> actual, expected = expectation();
    for (std::string line; std::getline(lines, line);) actual.push_back(line);
    if (!quiet) {
      for (const std::string& line : actual) out_.filled += "  " + line + "\n";
      ++out_.plans;
      if (!fill_ && actual != expected) {
        std::swap(at_, where);
        std::string text;
        for (const std::string& line : actual) text += "\n    " + line;
        fail("the plan differs; it is" + text);
        std::swap(at_, where);
      }
    }
    happen(PlanAdopted{p, now_ns_});
    if (p.launches()) unfinished_.push_back(p);
  }

  // finish [took=T] [fail=NAME] [lost=NAME] [NAME=N ...] [NAME!]: the oldest step in flight ends. Rows that
  // decide give one token each, or N; a name with ! stops; nosnap: no window was copied.
  void finish(const Line& l) {
    if (unfinished_.empty()) return fail("no step is in flight");
    StepPlan p = unfinished_.front();
    unfinished_.erase(unfinished_.begin());
    StepFinished f;
    f.step = p.step;
    f.measured_ns = p.predicted_ns;
    bool copy = true;
    std::map<std::string, int64_t> counts;
    std::map<std::string, bool> stops, fails;
    std::string lost;
    for (const auto& [key, value] : fields(l, 1)) {
      if (key == "took")
        f.measured_ns = number(value).value_or(0);
      else if (key == "nosnap")
        copy = false;
      else if (key == "fail")
        fails[value] = true;
      else if (key == "lost")
        lost = value;
      else if (key.back() == '!')
        stops[key.substr(0, key.size() - 1)] = true;
      else
        counts[key] = integer(value);
    }
    for (const RowRun& run : p.runs) {
      f.results.push_back(result(run, copy, counts, stops, fails));
      if (name_of(run.seq) == lost) f.results.back() = {run.seq, 0, false, false, true, false, {}};
    }
    if (!counts.empty()) fail("'" + counts.begin()->first + "' runs nothing in this step");
    if (!stops.empty()) fail("'" + stops.begin()->first + "' runs nothing in this step");
    now_ns_ += static_cast<int64_t>(f.measured_ns);
    f.now_ns = now_ns_;
    happen(std::move(f));
  }

  RowResult result(const RowRun& run, bool copy, std::map<std::string, int64_t>& counts,
                   std::map<std::string, bool>& stops, std::map<std::string, bool>& fails) {
    RowResult x;
    std::string who = name_of(run.seq);
    x.seq = run.seq;
    x.new_tokens = run.yields ? 1 : 0;
    if (counts.contains(who)) x.new_tokens = counts[who];
    if (x.new_tokens > (run.yields ? 1 + run.drafts : 0)) {
      fail("'" + who + "' cannot give so many tokens");
      x.new_tokens = run.yields ? 1 : 0;
    }
    x.finished = stops.contains(who) || fails.contains(who);
    x.failed = fails.contains(who);
    x.snapshot_taken = copy;
    counts.erase(who);
    stops.erase(who);
    if (!state_->by_seq.contains(run.seq)) return x;
    const Request& r = at(*state_, run.slot);
    std::vector<Piece> text = texts_[run.seq];
    text.push_back({"gen." + who, r.known_tokens + x.new_tokens - r.prompt_tokens});
    std::vector<BlockKey> all = keys(text);
    if (all.size() > r.keys.size())
      x.new_keys.assign(all.begin() + static_cast<int64_t>(r.keys.size()), all.end());
    return x;
  }

  // repeat N: plan and finish N times without comparing.
  void repeat(const Line& l) {
    if (l.words.size() != 2) return fail("repeat N");
    int64_t n = integer(l.words[1]);
    Line quiet{l.number, "", {"plan", "quiet"}, false}, done{l.number, "", {"finish"}, false};
    for (int64_t i = 0; i < n && out_.problems.empty(); ++i) {
      plan(quiet);
      if (!unfinished_.empty()) finish(done);
      std::string broken = broken_invariant(*state_);
      if (!broken.empty()) fail(fmt::format("invariant broken in round {}: {}", i + 1, broken));
    }
  }

  // lease ID blocks=NAME:N|I,.. [snapshots=I,..] [expires=T]; free ID; lose blocks=..; lose_snapshots
  // all|I,..
  void hold(const Line& l) {
    const std::string& c = l.words[0];
    if (c == "free") return happen(BlocksFreed{LeaseId(static_cast<uint64_t>(integer(l.words[1])))});
    if (c == "lose_snapshots") {
      SnapshotsLost e;
      for (int32_t i = 0; i < static_cast<int32_t>(state_->cache.snapshots.size()); ++i) {
        bool chosen = l.words[1] == "all" || integer(l.words[1]) == i;
        if (chosen && at(state_->cache, SnapshotId(i)).place == SnapshotPlace::kReady)
          e.snapshots.push_back(SnapshotId(i));
      }
      return happen(e);
    }
    size_t first = c == "lease" ? 2 : 1;
    std::vector<BlockId> blocks;
    int64_t expires = INT64_MAX;
    for (const auto& [key, value] : fields(l, first)) {
      if (key == "expires")
        expires = integer(value);
      else if (key == "text") {
        for (const BlockKey& k : keys(pieces(value))) {
          BlockId id = find(state_->cache, k);
          if (id == kNoBlock)
            fail("a block of '" + value + "' is not in the cache");
          else
            blocks.push_back(id);
        }
      } else
        fail("unknown field '" + key + "'");
    }
    if (c == "lose") {
      if (!blocks.empty()) happen(BlocksLost{{blocks.back()}});
      return;
    }
    happen(LeaseTaken{LeaseId(static_cast<uint64_t>(integer(l.words[1]))), blocks, {}, expires});
  }

  // expect NAME=phase | free=N | idle=N | used=N | leased=N | pinned=N | promised=N | snapshots=N | counter=N
  // ...
  void expect(const Line& l) {
    const SchedulerState& s = *state_;
    const Counters& k = s.counters;
    auto place = [&](BlockPlace p) { return s.cache.count[static_cast<int>(p)]; };
    std::map<std::string, int64_t> values = {
        {"free", place(BlockPlace::kFree)},
        {"idle", place(BlockPlace::kIdle)},
        {"used", place(BlockPlace::kUsed)},
        {"leased", place(BlockPlace::kLeased)},
        {"pinned", place(BlockPlace::kPinned)},
        {"promised", s.promised_blocks},
        {"snapshots", static_cast<int64_t>(s.cache.snapshot_index.size())},
        {"running", static_cast<int64_t>(s.running.size())},
        {"waiting", static_cast<int64_t>(s.waiting_by_age.size())},
        {"preemptions", k.preemptions},
        {"finished", k.finished},
        {"ended", k.ended},
        {"cancelled", k.cancelled},
        {"ignored", k.ignored_events},
        {"evicted", k.evicted_blocks},
        {"evicted_snapshots", k.evicted_snapshots},
        {"revocations", k.revocations},
        {"resumed", k.resumed},
        {"admitted", k.admitted},
        {"stalls", k.stalls},
        {"hit", k.hit_tokens},
        {"replayed", k.replayed_hits},
        {"wasted", k.wasted_tokens},
        {"loaded", k.loaded_blocks},
        {"loaded_windows", k.loaded_windows},
        {"lost_to_snapshot", k.lost_to_snapshot},
        {"lost_to_cap", k.lost_to_cap},
        {"lost", k.lost_blocks},
        {"early_runs", k.early_runs},
        {"lost_runs", k.lost_runs},
        {"floors_lost", k.floors_lost},
        {"now", now_ns_}};
    for (const auto& [key, value] : fields(l, 1)) {
      if (values.contains(key)) {
        int64_t want = integer(value);
        if (values[key] != want) fail(fmt::format("{} is {}, not {}", key, values[key], want));
      } else if (ids_.contains(key)) {
        auto it = s.by_seq.find(ids_[key]);
        std::string phase = it == s.by_seq.end() ? "gone" : policy::name(at(s, it->second).phase);
        if (phase != value) fail(fmt::format("{} is {}, not {}", key, phase, value));
      } else {
        fail("nothing is called '" + key + "'");
      }
    }
  }

  // The recorded log into a fresh state: the same decisions, line for line and id for id.
  void replay() {
    if (!state_ || !out_.problems.empty()) return;
    SchedulerState again = make_scheduler(config_).value();
    size_t next = 0;
    for (const Event& e : log_) {
      if (const PlanAdopted* p = std::get_if<PlanAdopted>(&e)) {
        std::string now = to_text(decide(again, queries_[next++])), then = to_text(p->plan);
        if (now != then) fail("replaying the log decides otherwise:\n" + now + "instead of\n" + then);
      }
      policy::apply(&again, e);
    }
  }

  std::string name_;
  bool fill_ = false;
  std::vector<Line> lines_;
  size_t at_ = 0;
  SchedulerConfig config_;
  std::optional<SchedulerState> state_;
  int64_t now_ns_ = 0;
  std::map<std::string, SeqId> ids_;
  std::map<SeqId, std::string> names_;
  std::map<SeqId, std::vector<Piece>> texts_;
  std::vector<StepPlan> unfinished_;
  std::vector<Event> log_;
  std::vector<PlanQuery> queries_;
  ScenarioOutcome out_;
};

}  // namespace

ScenarioOutcome run_scenario(const std::string& name, const std::string& text, bool fill) {
  return Runner(name, text, fill).run();
}

}  // namespace deepinfer
