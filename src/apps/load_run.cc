// One loop: send what is due, wait for events no longer than until the next arrival.
#include "apps/load_run.h"

#include <algorithm>
#include <map>

namespace deepinfer {
namespace {

class Driver {
 public:
  Driver(Engine* engine, const Workload& workload, const DriveOptions& options)
      : engine_(engine), workload_(workload), options_(options), left_(workload.sessions.size()) {
    for (const LoadSession& s : workload.sessions) total_ += static_cast<int64_t>(s.turns.size());
  }

  LoadResult run() {
    result_.before = engine_->stats();
    result_.begin_ns = engine_->now_ns();
    while (left_ > 0 || !live_.empty()) {
      send_due();
      if (left_ == 0 && live_.empty()) break;
      for (EngineEvent& e : engine_->poll(wait_ns())) take(&e);
      if (stop_) cancel_all();
    }
    result_.end_ns = engine_->now_ns();
    result_.after = engine_->stats();
    result_.stopped = stop_;
    return std::move(result_);
  }

 private:
  struct Session {
    std::vector<int32_t> context;
    size_t turn = 0;
  };
  struct Live {
    size_t session = 0;
    RequestRecord record;
    std::vector<int32_t> output;
    int64_t last_event_ns = 0;
  };

  int64_t due_ns(size_t session) const { return result_.begin_ns + workload_.sessions[session].start_ns; }

  int64_t wait_ns() const {
    if (stop_ || options_.concurrency > 0 || next_ >= workload_.sessions.size()) return 50'000'000;
    return std::clamp<int64_t>(due_ns(next_) - engine_->now_ns(), 0, 50'000'000);
  }

  void send_due() {
    while (!stop_ && next_ < workload_.sessions.size()) {
      if (options_.concurrency > 0) {
        if (static_cast<int64_t>(sessions_.size()) >= options_.concurrency) return;
      } else if (due_ns(next_) > engine_->now_ns()) {
        return;
      }
      size_t s = next_++;
      sessions_[s];
      send(s, options_.concurrency > 0 ? engine_->now_ns() : due_ns(s));
    }
  }

  void send(size_t session, int64_t arrival_ns) {
    const LoadSession& plan = workload_.sessions[session];
    Session& s = sessions_[session];
    const LoadTurn& turn = plan.turns[s.turn];
    int64_t grown = static_cast<int64_t>(s.context.size() + turn.input.size());
    if (s.turn > 0 && plan.compact_above_tokens > 0 &&
        (grown > plan.compact_above_tokens || grown + turn.output_tokens > engine_->context_tokens())) {
      s.context = plan.turns[0].input;
    }
    s.context.insert(s.context.end(), turn.input.begin(), turn.input.end());
    EngineRequest r;
    r.prompt = s.context;
    r.max_tokens = turn.output_tokens;
    r.sampling = options_.sampling;
    r.sampling.seed += session * 1000 + s.turn;
    r.speculate = options_.speculate;
    r.stop_ids = options_.stop_ids;
    r.exact_hits = options_.exact_hits;
    r.use_cache = options_.use_cache;
    r.priority = options_.priority;
    if (options_.deadline_ns > 0) r.deadline_ns = engine_->now_ns() + options_.deadline_ns;
    Live live;
    live.session = session;
    live.record.session = static_cast<int64_t>(session);
    live.record.turn = static_cast<int64_t>(s.turn);
    live.record.arrival_ns = arrival_ns;
    live.record.prompt_tokens = static_cast<int64_t>(r.prompt.size());
    auto id = engine_->submit(std::move(r));
    if (!id.ok()) {
      live.record.finish = Finish::kRefused;
      live.record.message = id.status().to_string();
      over(&live);
      return;
    }
    live_.emplace(static_cast<uint64_t>(*id), std::move(live));
  }

  void take(EngineEvent* e) {
    auto it = live_.find(static_cast<uint64_t>(e->request));
    if (it == live_.end()) return;
    Live& l = it->second;
    RequestRecord& r = l.record;
    if (e->kind == EngineEvent::Kind::kTokens) {
      int64_t now = engine_->now_ns();
      if (l.last_event_ns != 0) r.gaps_ns.push_back(now - l.last_event_ns);
      l.last_event_ns = now;
      for (const TokenEvent& t : e->tokens) l.output.push_back(t.id);
    } else if (e->kind == EngineEvent::Kind::kFinished) {
      r.finish = e->finish;
      if (!e->status.ok()) r.message = e->status.to_string();
      r.times = e->times;
      r.cached_tokens = e->usage.cached_tokens;
      r.replayed_window = e->usage.replayed_window;
      r.output_tokens = e->usage.output_tokens;
      r.drafted = e->usage.drafted_tokens;
      r.accepted = e->usage.accepted_tokens;
      r.preemptions = e->usage.preemptions;
      Live done = std::move(l);
      live_.erase(it);
      over(&done);
    }
  }

  void over(Live* live) {
    Session& s = sessions_[live->session];
    bool well = live->record.well();
    result_.requests.push_back(std::move(live->record));
    ++finished_;
    if (options_.progress && !options_.progress(finished_, total_)) stop_ = true;
    ++s.turn;
    if (well && !stop_ && s.turn < workload_.sessions[live->session].turns.size()) {
      s.context.insert(s.context.end(), live->output.begin(), live->output.end());
      send(live->session, engine_->now_ns());
      return;
    }
    sessions_.erase(live->session);
    --left_;
  }

  void cancel_all() {
    if (cancelled_) return;
    cancelled_ = true;
    left_ -= workload_.sessions.size() - next_;
    next_ = workload_.sessions.size();
    for (const auto& [id, live] : live_) engine_->cancel(RequestId(id));
  }

  Engine* engine_;
  const Workload& workload_;
  const DriveOptions& options_;
  LoadResult result_;
  std::map<uint64_t, Live> live_;
  std::map<size_t, Session> sessions_;
  size_t next_ = 0, left_ = 0;
  int64_t finished_ = 0, total_ = 0;
  bool stop_ = false, cancelled_ = false;
};

}  // namespace

Result<LoadResult> run_load(Engine* engine, const Workload& workload, const DriveOptions& options) {
  LoadResult r = Driver(engine, workload, options).run();
  bool all_refused =
      !r.requests.empty() && std::all_of(r.requests.begin(), r.requests.end(),
                                         [](const auto& q) { return q.finish == Finish::kRefused; });
  if (all_refused)
    return error(Code::kUnavailable, "the engine refused every request; the last one: {}",
                 r.requests.back().message);
  return r;
}

Status warm_up(Engine* engine, const Workload& workload) {
  Workload warm;
  warm.sessions.push_back(workload.sessions.front());
  LoadTurn& first = warm.sessions[0].turns[0];
  warm.sessions[0].turns.resize(1);
  first.output_tokens = std::min<int64_t>(first.output_tokens, 8);
  std::reverse(first.input.begin(), first.input.end());  // the same length, another prefix
  DriveOptions quiet;
  quiet.concurrency = 1;
  quiet.use_cache = false;
  return run_load(engine, warm, quiet).status();
}

}  // namespace deepinfer
