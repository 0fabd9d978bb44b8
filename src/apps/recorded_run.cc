// Both directions visit one list of fields per kind of line, so that neither can forget one.
#include "apps/recorded_run.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <optional>

namespace deepinfer {

using nlohmann::json;
using policy::BlockKey;

namespace {

// ---- values

void put(json* j, int64_t v) {
  *j = v;
}
void put(json* j, int v) {
  *j = v;
}
void put(json* j, double v) {
  *j = v;
}
void put(json* j, bool v) {
  *j = v;
}
void put(json* j, const BlockKey& k) {
  *j = fmt::format("{:016x}{:016x}{:016x}{:016x}", k.words[0], k.words[1], k.words[2], k.words[3]);
}
template <typename E>
  requires std::is_enum_v<E>
void put(json* j, E v) {
  *j = static_cast<std::underlying_type_t<E>>(v);
}
template <typename T, size_t N>
void put(json* j, const std::array<T, N>& v) {
  for (const T& x : v) put(&j->emplace_back(), x);
}
template <typename T>
void put(json* j, const std::vector<T>& v) {
  *j = json::array();
  for (const T& x : v) put(&j->emplace_back(), x);
}

bool get(const json& j, int64_t* v) {
  if (!j.is_number_integer()) return false;
  *v = j.get<int64_t>();
  return true;
}
bool get(const json& j, int* v) {
  if (!j.is_number_integer()) return false;
  *v = j.get<int>();
  return true;
}
bool get(const json& j, double* v) {
  if (!j.is_number()) return false;
  *v = j.get<double>();
  return true;
}
bool get(const json& j, bool* v) {
  if (!j.is_boolean()) return false;
  *v = j.get<bool>();
  return true;
}
bool get(const json& j, std::string* v) {
  if (!j.is_string()) return false;
  *v = j.get<std::string>();
  return true;
}
bool get(const json& j, BlockKey* k) {
  if (!j.is_string() || j.get_ref<const std::string&>().size() != 64) return false;
  const std::string& s = j.get_ref<const std::string&>();
  for (size_t i = 0; i < 64; ++i) {
    const char c = s[i];
    const int digit = c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
    if (digit < 0) return false;
    k->words[i / 16] = k->words[i / 16] << 4 | static_cast<uint64_t>(digit);
  }
  return true;
}
template <typename E>
  requires std::is_enum_v<E>
bool get(const json& j, E* v) {
  if (!j.is_number_integer()) return false;
  *v = E{j.get<std::underlying_type_t<E>>()};
  return true;
}
template <typename T, size_t N>
bool get(const json& j, std::array<T, N>* v) {
  if (!j.is_array() || j.size() != N) return false;
  for (size_t i = 0; i < N; ++i) {
    if (!get(j[i], &(*v)[i])) return false;
  }
  return true;
}
template <typename T>
bool get(const json& j, std::vector<T>* v) {
  if (!j.is_array()) return false;
  for (const json& x : j) {
    if (!get(x, &v->emplace_back())) return false;
  }
  return true;
}

struct Writer {
  json* j;
  template <typename T>
  void operator()(const char* name, const T& v) const {
    put(&(*j)[name], v);
  }
};
struct Reader {
  const json& j;
  std::string* wrong;  // the first field that is not there or not what it should be
  template <typename T>
  void operator()(const char* name, T& v) const {
    const auto it = j.find(name);
    if ((it == j.end() || !get(*it, &v)) && wrong->empty()) *wrong = name;
  }
};

// ---- fields

template <typename R, typename V>
void run_fields(R& r, V&& v) {
  v("begin_ns", r.result.begin_ns);
  v("end_ns", r.result.end_ns);
  v("steps_before", r.result.before.steps);
  v("steps_after", r.result.after.steps);
  v("concurrency", r.concurrency);
  auto& s = r.scheduler;
  v("window", s.replay.window_tokens);
  v("backtrack", s.replay.backtrack_tokens);
  v("keep", s.replay.keep_tokens);
  v("context", s.context_tokens);
  v("drafts", s.drafts);
  v("pool_blocks", s.pool_blocks);
  v("snapshot_slots", s.snapshot_slots);
  v("max_running", s.max_running);
  v("chunk_max", s.chunk_max_tokens);
  v("batch_budget_ns", s.batch_budget_ns);
  v("interactive_budget_ns", s.interactive_budget_ns);
  v("min_budget_ns", s.min_budget_ns);
  v("short_fraction", s.short_fraction);
  v("long_fraction", s.long_fraction);
  v("starve_steps", s.starve_steps);
  v("max_bypass", s.max_bypass);
  v("scan_window", s.scan_window);
  v("max_preemptions", s.max_preemptions);
  v("max_in_flight", s.max_in_flight);
  v("lease_grace_ns", s.lease_grace_ns);
  v("exact_hits", s.exact_hits);
  v("cap_snapshots", s.cap_snapshots);
  v("tier_bounds", s.tiers.lower_bound_tokens);
  v("tier_shares", s.tiers.shares);
  v("tier_age_ns", s.tiers.age_ns);
  v("tier_quota_ns", s.tiers.quota_ns);
}
template <typename M, typename V>
void cost_fields(M& m, V&& v) {
  v("a", m.a);
  v("b", m.b);
  v("d", m.d);
  v("e", m.e);
  v("e_decoder", m.e_decoder);
  v("d_decoder", m.d_decoder);
  v("g_decoder", m.g_decoder);
}
template <typename R, typename V>
void request_fields(R& r, V&& v) {
  v("session", r.session);
  v("turn", r.turn);
  v("prompt", r.prompt_tokens);
  v("cached", r.cached_tokens);
  v("output", r.output_tokens);
  v("preemptions", r.preemptions);
  v("arrival_ns", r.arrival_ns);
  v("submitted_ns", r.times.submitted_ns);
  v("admitted_ns", r.times.admitted_ns);
  v("first_token_ns", r.times.first_token_ns);
  v("finished_ns", r.times.finished_ns);
  v("finish", r.finish);
}
template <typename E, typename V>
void arrived_fields(E& e, V&& v) {
  v("seq", e.seq);
  v("now_ns", e.now_ns);
  v("prompt", e.prompt_tokens);
  v("max_new", e.max_new_tokens);
  v("keys", e.keys);
  v("tenant", e.tenant);
  v("weight", e.weight);
  v("priority", e.priority);
  v("deadline_ns", e.deadline_ns);
  v("exact", e.exact);
  v("whole_decoder", e.whole_decoder);
}
template <typename E, typename V>
void finished_fields(E& e, V&& v) {
  v("step", e.step);
  v("now_ns", e.now_ns);
  v("measured_ns", e.measured_ns);
  v("excluded", e.exclude_from_fit);
}
template <typename E, typename V>
void result_fields(E& r, V&& v) {
  v("seq", r.seq);
  v("new_tokens", r.new_tokens);
  v("finished", r.finished);
  v("failed", r.failed);
  v("snapshot_taken", r.snapshot_taken);
  v("new_keys", r.new_keys);
}

std::string hash_of(const policy::StepPlan& plan) {
  uint64_t h = 0xcbf29ce484222325ull;
  for (char c : policy::to_text(plan)) h = (h ^ static_cast<unsigned char>(c)) * 0x100000001b3ull;
  return fmt::format("{:016x}", h);
}

// ---- lines

struct ToLine {
  json* j;
  bool* known;
  void kind(const char* name) const { (*j)["event"] = name; }
  void operator()(const policy::Arrived& e) const {
    kind("arrived");
    arrived_fields(e, Writer{j});
    if (e.store_blocks > 0) *known = false;
  }
  void operator()(const policy::PlanAdopted& e) const {
    kind("plan");
    (*j)["now_ns"] = e.now_ns;
    (*j)["hash"] = hash_of(e.plan);
  }
  void operator()(const policy::StepFinished& e) const {
    kind("finished");
    finished_fields(e, Writer{j});
    json& results = (*j)["results"] = json::array();
    for (const policy::RowResult& r : e.results) result_fields(r, Writer{&results.emplace_back()});
  }
  void operator()(const policy::Cancelled& e) const {
    kind("cancelled");
    put(&(*j)["seq"], e.seq);
  }
  void operator()(const policy::CostAdopted& e) const {
    kind("cost");
    cost_fields(e.model, Writer{j});
  }
  template <typename Other>
  void operator()(const Other&) const {
    *known = false;
  }
};

// Reads the event of one line; a plan is planned again. What no server tells its scheduler is refused here:
// the scheduler takes it for granted.
class FromLine {
 public:
  FromLine(const json& j, const policy::SchedulerState& state) : j_(j), state_(state) {}

  Result<policy::Event> event() {
    const auto it = j_.find("event");
    const std::string kind = it != j_.end() && it->is_string() ? it->get<std::string>() : "";
    policy::Event e;
    if (kind == "arrived") {
      arrived(&e.emplace<policy::Arrived>());
    } else if (kind == "plan") {
      plan(&e.emplace<policy::PlanAdopted>());
    } else if (kind == "finished") {
      finished(&e.emplace<policy::StepFinished>());
    } else if (kind == "cancelled") {
      read()("seq", e.emplace<policy::Cancelled>().seq);
    } else if (kind == "cost") {
      cost_fields(e.emplace<policy::CostAdopted>().model, read());
    } else {
      wrong_ = "event";
    }
    if (!differs_.empty()) return error(Code::kInvalidData, "{}", differs_);
    if (!wrong_.empty()) return error(Code::kInvalidData, "'{}' is missing or not what it should be", wrong_);
    return e;
  }

 private:
  Reader read() { return {j_, &wrong_}; }
  void require(bool good, const char* field) {
    if (!good && wrong_.empty()) wrong_ = field;
  }

  void arrived(policy::Arrived* e) {
    arrived_fields(*e, read());
    require(e->prompt_tokens >= 0 && e->prompt_tokens <= kMost, "prompt");
    require(e->max_new_tokens >= 0 && e->max_new_tokens <= kMost, "max_new");
    require(e->now_ns >= 0 && e->deadline_ns >= 0, "now_ns");
    require(e->weight > 0, "weight");
    require(static_cast<int64_t>(e->keys.size()) <= e->prompt_tokens / policy::window(state_), "keys");
  }

  void plan(policy::PlanAdopted* e) {
    std::string hash;
    read()("now_ns", e->now_ns);
    read()("hash", hash);
    require(e->now_ns >= 0, "now_ns");
    if (!wrong_.empty()) return;
    e->plan = policy::decide(state_, {e->now_ns, 0});
    if (hash_of(e->plan) != hash) differs_ = fmt::format("step {} is planned differently", raw(e->plan.step));
  }

  void finished(policy::StepFinished* e) {
    finished_fields(*e, read());
    const auto results = j_.find("results");
    const bool front = !state_.in_flight.empty() && state_.in_flight.front().step == e->step;
    if (!front || results == j_.end() || !results->is_array() ||
        results->size() != state_.in_flight.front().runs.size()) {
      return require(false, front ? "results" : "step");
    }
    for (const json& j : *results) {
      const policy::RowRun& run = state_.in_flight.front().runs[e->results.size()];
      policy::RowResult& r = e->results.emplace_back();
      result_fields(r, Reader{j, &wrong_});
      const int64_t most = run.yields ? 1 + run.drafts : 0;
      require(r.seq == run.seq && r.new_tokens >= 0 && r.new_tokens <= most, "new_tokens");
      require(r.finished || !run.yields || r.new_tokens > 0, "new_tokens");
    }
  }

  static constexpr int64_t kMost = int64_t{1} << 40;
  const json& j_;
  const policy::SchedulerState& state_;
  std::string wrong_, differs_;
};

Status bad(size_t line, const std::string& what) {
  return error(Code::kInvalidData, "line {}: {}; give a file that `bench simulated --record` wrote", line,
               what);
}

}  // namespace

Result<std::string> write_runs(const std::vector<RecordedRun>& runs) {
  std::string out;
  bool known = true;
  auto line = [&out](const json& j) { out += j.dump() + "\n"; };
  for (const RecordedRun& run : runs) {
    json head;
    run_fields(run, Writer{&head["run"]});
    cost_fields(run.scheduler.cost, Writer{&head["cost"]});
    line(head);
    for (const RequestRecord& r : run.result.requests) {
      json j;
      request_fields(r, Writer{&j["request"]});
      line(j);
    }
    for (const policy::Event& e : run.log) {
      json j;
      std::visit(ToLine{&j, &known}, e);
      line(j);
    }
  }
  if (!known)
    return error(Code::kInvalidArgument, "a run with a store or with outside readers is not recorded");
  return out;
}

Result<std::vector<RecordedRun>> read_runs(std::string_view text) {
  std::vector<RecordedRun> runs;
  std::optional<policy::SchedulerState> state;
  size_t number = 0;
  while (!text.empty()) {
    const size_t end = std::min(text.find('\n'), text.size());
    const std::string_view one = text.substr(0, end);
    text.remove_prefix(std::min(text.size(), end + 1));
    ++number;
    const json j = json::parse(one, nullptr, false);
    if (!j.is_object()) return bad(number, "not a JSON object");
    std::string wrong;
    if (j.contains("run") && j.contains("cost")) {
      RecordedRun& run = runs.emplace_back();
      run_fields(run, Reader{j["run"], &wrong});
      cost_fields(run.scheduler.cost, Reader{j["cost"], &wrong});
      constexpr int64_t kMostBlocks = 1 << 22;  // the scheduler allocates them
      if (run.scheduler.pool_blocks > kMostBlocks || run.scheduler.snapshot_slots > kMostBlocks)
        wrong = "pool_blocks";
      if (!wrong.empty()) return bad(number, fmt::format("'{}' is missing or not what it should be", wrong));
      auto made = policy::make_scheduler(run.scheduler);
      if (!made.ok()) return bad(number, made.status().message());
      state = std::move(*made);
      continue;
    }
    if (runs.empty()) return bad(number, "the first line is a run");
    if (j.contains("request")) {
      request_fields(runs.back().result.requests.emplace_back(), Reader{j["request"], &wrong});
      if (!wrong.empty()) return bad(number, fmt::format("'{}' is missing or not what it should be", wrong));
      continue;
    }
    auto event = FromLine(j, *state).event();
    if (!event.ok()) return bad(number, event.status().message());
    policy::apply(&*state, *event);
    runs.back().log.push_back(std::move(*event));
  }
  if (runs.empty()) return bad(1, "no run");
  return runs;
}

}  // namespace deepinfer
