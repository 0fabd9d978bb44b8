// Thousands of random schedules on small pools: arrivals, cancels, deadlines, preemption, drafts, lost
// snapshots and blocks, outside leases, store loads, one and two steps in flight. After every event every
// invariant holds; at the end nothing is held, nobody is lost, and the recorded log decides the same again.
#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <map>
#include <set>

#include "policy/scheduler.h"
#include "policy/test_random.h"

namespace deepinfer::policy {
namespace {

constexpr int64_t kWindow = 8;

SchedulerConfig random_config(TestRandom* r) {
  SchedulerConfig c;
  int64_t drafts = r->in(0, 3);
  c.replay = {kWindow, drafts + 1 + r->in(0, 1), 0};
  c.replay.keep_tokens = c.replay.cap_tokens() + (r->one_in(3) ? r->in(0, 6) : 0);
  c.drafts = drafts;
  c.context_tokens = 400;
  c.pool_blocks = r->in(6, 40);
  c.snapshot_slots = r->in(0, 6);
  c.max_running = r->in(1, 8);
  c.chunk_max_tokens = r->in(kWindow, 64);
  c.cost = {0.02, 0.04, 1000, 5000, 1000, 500, 0.01};
  c.batch_budget_ns = r->in(20'000, 100'000);
  c.interactive_budget_ns = r->in(10'000, 50'000);
  c.min_budget_ns = 1000;
  c.max_bypass = r->in(0, 6);
  c.scan_window = r->in(1, 4);
  c.max_preemptions = r->in(1, 4);
  c.starve_steps = r->in(1, 8);
  c.max_in_flight = r->in(1, 2);
  c.exact_hits = r->one_in(4);
  c.cap_snapshots = r->one_in(2);
  c.tiers.lower_bound_tokens = {30, 60, 120};
  c.tiers.quota_ns = 4.0 * static_cast<double>(c.batch_budget_ns);
  return c;
}

// Drives one schedule and keeps the books that the policy must agree with.
class World {
 public:
  explicit World(uint64_t seed) : random_(seed), config_(random_config(&random_)) {
    state_ = make_scheduler(config_).value();
  }

  void run(int rounds) {
    for (int i = 0; i < rounds && !broken(); ++i) {
      disturb();
      step();
    }
    drain();
    if (broken()) return;
    finish_checks();
    replay();
  }
  bool broken() const { return ::testing::Test::HasFailure(); }
  int64_t preemptions() const { return state_.counters.preemptions; }
  int64_t hits() const { return state_.counters.hit_tokens; }
  int64_t evictions() const { return state_.counters.evicted_blocks; }
  int64_t revocations() const { return state_.counters.revocations; }
  int64_t loads() const { return state_.counters.loaded_blocks; }
  int64_t early_runs() const { return state_.counters.early_runs; }
  int64_t lost_runs() const { return state_.counters.lost_runs; }

 private:
  struct Book {
    std::vector<BlockKey> keys;
    int64_t prompt = 0, limit = 0, known = 0;
    int64_t floor = -1;
    int preemptions = 0;
    uint64_t text = 0;
  };

  void happen(Event e) {
    policy::apply(&state_, e);
    log_.push_back(std::move(e));
    std::string bad = broken_invariant(state_);
    ASSERT_EQ(bad, "") << "after event " << log_.size();
  }

  // Texts share prefixes: family f, and a private tail from a random block on.
  BlockKey key(uint64_t family, uint64_t tail_from, uint64_t own, uint64_t block) const {
    return BlockKey{{family, block < tail_from ? 0 : own, block, 1}};
  }

  void arrive() {
    Arrived a;
    a.seq = SeqId(++last_id_);
    a.now_ns = now_;
    a.prompt_tokens = random_.one_in(20) ? random_.in(0, 500) : random_.in(1, 150);
    a.max_new_tokens = random_.in(1, 40);
    uint64_t family = static_cast<uint64_t>(random_.in(1, 3)),
             tail = static_cast<uint64_t>(random_.in(0, 12));
    for (int64_t b = 0; b < a.prompt_tokens / kWindow; ++b) {
      a.keys.push_back(key(family, tail, raw(a.seq), static_cast<uint64_t>(b)));
    }
    a.tenant = TenantId(static_cast<uint32_t>(random_.in(0, 2)));
    a.priority = static_cast<int>(random_.one_in(6));
    a.exact = random_.one_in(5);
    a.whole_decoder = random_.one_in(12);
    if (random_.one_in(8)) a.deadline_ns = now_ + random_.in(1, 2'000'000);
    if (random_.one_in(6)) {
      a.store_blocks = random_.in(0, static_cast<int64_t>(a.keys.size()));
      a.store_ns_per_block = a.store_ns_per_window = random_.in(1, 20'000);
      for (int64_t b = kWindow; b <= a.prompt_tokens; b += kWindow) {
        if (random_.one_in(3)) a.store_windows.push_back(b);
      }
    }
    Book b;
    b.keys = a.keys;
    b.prompt = b.known = a.prompt_tokens;
    b.limit = std::min(config_.context_tokens, a.prompt_tokens + a.max_new_tokens);
    b.text = family;
    books_[a.seq] = b;
    happen(a);
  }

  SeqId any() { return SeqId(static_cast<uint64_t>(random_.in(1, static_cast<int64_t>(last_id_) + 1))); }

  void disturb() {
    while (random_.one_in(2)) arrive();
    if (random_.one_in(10)) {
      SeqId id = any();
      books_.erase(id);
      happen(Cancelled{id});
      if (random_.one_in(3)) happen(Cancelled{id});  // twice is harmless
    }
    if (random_.one_in(15)) {
      SnapshotsLost e;
      for (int32_t i = 0; i < config_.snapshot_slots; ++i) {
        if (random_.one_in(2)) e.snapshots.push_back(SnapshotId(i));
      }
      happen(e);
    }
    if (random_.one_in(30)) happen(BlocksLost{{any_block()}});
    if (random_.one_in(12)) lease();
    if (!leases_.empty() && random_.one_in(4)) {
      happen(BlocksFreed{*leases_.begin()});
      leases_.erase(leases_.begin());
    }
    if (random_.one_in(10)) happen(Tick{now_});
    if (random_.one_in(20)) happen(StoreResult{any(), random_.in(0, 5)});  // nobody asked, or early
    for (const auto& [seq, blocks] : loading_) {
      if (random_.one_in(3))
        happen(StoreReady{seq, !random_.one_in(4), now_ + random_.in(0, 20'000),
                          0.01 * double(random_.in(0, 100))});
    }
    answer_store(3);
  }

  BlockId any_block() { return BlockId(static_cast<int32_t>(random_.in(0, config_.pool_blocks - 1))); }

  void lease() {
    std::vector<BlockId> blocks;
    for (int i = 0; i < 3; ++i) {
      BlockId id = any_block();
      if (at(state_.cache, id).cached) blocks.push_back(id);
    }
    if (!lease_allowed(state_, blocks)) return;
    LeaseTaken e{LeaseId(++last_lease_), blocks, {}, random_.one_in(2) ? now_ + 500'000 : INT64_MAX};
    happen(e);
    leases_.insert(e.lease);
  }

  void answer_store(int64_t one_in) {
    for (auto it = loading_.begin(); it != loading_.end();) {
      if (!random_.one_in(one_in)) {
        ++it;
        continue;
      }
      StoreResult e{it->first, random_.one_in(3) ? random_.in(0, it->second) : it->second,
                    !random_.one_in(4)};
      it = loading_.erase(it);
      happen(e);
    }
  }

  void check_plan(const StepPlan& p) {
    std::set<SeqId> runs;
    for (const RowRun& r : p.runs) {
      EXPECT_TRUE(runs.insert(r.seq).second) << "a sequence runs twice in one step";
      ASSERT_TRUE(books_.contains(r.seq)) << "a request that is over runs";
      const Book& b = books_[r.seq];
      EXPECT_GE(r.rows, 1);
      EXPECT_LE(r.begin_max + r.rows, b.limit - (r.prefill ? 0 : 1));
      EXPECT_TRUE(!r.prefill || r.rows <= config_.chunk_max_tokens);
      EXPECT_TRUE(r.snapshot == kNoSnapshot || r.snapshot_boundary % kWindow == 0);
      if (r.cap_snapshot != kNoSnapshot) {
        EXPECT_EQ(r.cap_boundary, (b.prompt - config_.replay.cap_tokens()) / kWindow * kWindow);
        EXPECT_TRUE(r.cap_boundary > r.begin && r.cap_boundary <= r.begin + r.rows);
      }
    }
    std::set<BlockId> given(p.new_blocks.begin(), p.new_blocks.end());
    EXPECT_EQ(given.size(), p.new_blocks.size()) << "a block is given twice";
    for (BlockId id : p.evict) {
      const BlockEntry& e = at(state_.cache, id);
      EXPECT_EQ(e.pins, 0) << "a block with a reader is evicted";
      EXPECT_TRUE(e.cached);
    }
    for (SnapshotId id : p.evict_snapshots) EXPECT_EQ(at(state_.cache, id).pins, 0);
    for (const Preemption& v : p.preempt) {
      EXPECT_GE(v.gained_blocks, 1) << "a preemption that gains nothing";
      EXPECT_FALSE(runs.contains(v.seq));
      Book& b = books_[v.seq];
      EXPECT_LE(++b.preemptions, config_.max_preemptions);
      const Request& victim = at(state_, v.slot);
      const Request& taker = at(state_, state_.by_seq.at(v.for_seq));
      EXPECT_TRUE(seniority(taker, 0) < seniority(victim, 0)) << "a senior was preempted for a junior";
    }
    for (const Admission& a : p.admit) {
      Book& b = books_[a.seq];
      EXPECT_EQ(a.hit.start_tokens % kWindow, 0);
      EXPECT_LE(a.hit.start_tokens, std::max<int64_t>(0, b.prompt - config_.replay.cap_tokens()));
      if (b.floor < 0) b.floor = a.decoder_floor;
      EXPECT_EQ(b.floor, a.decoder_floor) << "a request changed its floor";
      EXPECT_LE(a.hit.start_tokens, a.decoder_floor);
      EXPECT_EQ(a.resumed, b.preemptions > 0 || a.resumed);
      if (a.loads()) loading_[a.seq] = static_cast<int64_t>(a.load.size());
    }
  }

  void step() {
    PlanQuery q{now_, 0};
    StepPlan p = decide(state_, q);
    EXPECT_EQ(to_text(p), to_text(decide(state_, q)));
    check_plan(p);
    if (broken()) return;
    for (const Ending& e : p.end) books_.erase(e.seq);
    queries_.push_back(q);
    happen(PlanAdopted{p, now_});
    if (p.launches()) flying_.push_back(p);
    bool must = static_cast<int64_t>(flying_.size()) >= config_.max_in_flight;
    if (!flying_.empty() && (must || random_.one_in(2))) finish();
    now_ += 10'000;
  }

  void finish() {
    StepPlan p = flying_.front();
    flying_.pop_front();
    StepFinished f;
    f.step = p.step;
    f.now_ns = now_ += static_cast<int64_t>(p.predicted_ns);
    f.measured_ns = p.predicted_ns;
    for (const RowRun& run : p.runs) {
      // A step that waits for a load ends after it.
      auto load = loading_.find(run.seq);
      if (!run.loading || load == loading_.end()) continue;
      StoreResult e{run.seq, random_.one_in(3) ? random_.in(0, load->second) : load->second, true};
      loading_.erase(load);
      happen(e);
    }
    for (const RowRun& run : p.runs) {
      RowResult x;
      x.seq = run.seq;
      auto known = state_.by_seq.find(run.seq);
      x.lost = run.loading && known != state_.by_seq.end() &&
               at(state_, known->second).phase == Phase::kPreempting;
      if (x.lost) {
        f.results.push_back(x);
        continue;
      }
      x.new_tokens = run.yields ? 1 + (run.drafts > 0 ? random_.in(0, run.drafts) : 0) : 0;
      x.snapshot_taken = !random_.one_in(5);
      x.finished = run.yields && random_.one_in(40);
      x.failed = x.finished && random_.one_in(3);
      auto book = books_.find(run.seq);
      if (book != books_.end()) {
        Book& b = book->second;
        if (!x.failed) b.known += x.new_tokens;
        while (static_cast<int64_t>(b.keys.size()) < b.known / kWindow &&
               b.prompt / kWindow <= static_cast<int64_t>(b.keys.size())) {
          b.keys.push_back(key(b.text, 0, raw(run.seq), b.keys.size()));
          x.new_keys.push_back(b.keys.back());
        }
        EXPECT_LE(b.known, b.limit) << "more tokens than asked for";
        if (x.finished || b.known >= b.limit) books_.erase(book);
      }
      f.results.push_back(x);
    }
    happen(f);
  }

  // No new work: everything must come to its end in a bounded number of steps.
  void drain() {
    int64_t bound = 400 + 300 * static_cast<int64_t>(books_.size());
    for (int64_t i = 0; !books_.empty() && !broken(); ++i) {
      ASSERT_LT(i, bound) << where_it_stands();
      answer_store(1);
      while (!leases_.empty()) {
        happen(BlocksFreed{*leases_.begin()});
        leases_.erase(leases_.begin());
      }
      step();
    }
    while (!flying_.empty() && !broken()) finish();
    answer_store(1);
    while (!leases_.empty() && !broken()) {
      happen(BlocksFreed{*leases_.begin()});
      leases_.erase(leases_.begin());
    }
  }

  std::string where_it_stands() const {
    std::string out =
        std::to_string(books_.size()) + " requests make no progress\n" + to_text(decide(state_, {now_, 0}));
    for (const Request& r : state_.slots) {
      if (r.phase == Phase::kNone) continue;
      out += std::to_string(raw(r.seq)) + " " + name(r.phase) + " known " + std::to_string(r.known_tokens) +
             " limit " + std::to_string(r.limit_tokens) + " blocks " + std::to_string(r.blocks.size()) +
             " preempted " + std::to_string(r.preemptions) + "\n";
    }
    for (int64_t n : state_.cache.count) out += std::to_string(n) + " ";
    return out + "promised " + std::to_string(state_.promised_blocks) + " pool " +
           std::to_string(config_.pool_blocks) + " seats " + std::to_string(config_.max_running) +
           " lingering " + std::to_string(state_.lingering);
  }

  void finish_checks() {
    const CacheState& c = state_.cache;
    EXPECT_EQ(c.count[static_cast<int>(BlockPlace::kFree)] + c.count[static_cast<int>(BlockPlace::kIdle)],
              config_.pool_blocks);
    EXPECT_EQ(state_.promised_blocks, 0);
    EXPECT_EQ(state_.lingering, 0);
    EXPECT_TRUE(state_.by_seq.empty());
    EXPECT_TRUE(state_.deadlines.empty());
    for (const FairQueue& q : state_.queues) EXPECT_TRUE(q.waiting.empty());
    for (double used : state_.used_ns) EXPECT_NEAR(used, 0, 1e-3);
    const Counters& k = state_.counters;
    EXPECT_EQ(k.arrived, k.finished + k.cancelled + k.ended) << "every request ends exactly once";
  }

  void replay() {
    SchedulerState again = make_scheduler(config_).value();
    size_t next = 0;
    for (const Event& e : log_) {
      if (const PlanAdopted* p = std::get_if<PlanAdopted>(&e)) {
        ASSERT_EQ(to_text(decide(again, queries_[next++])), to_text(p->plan));
      }
      policy::apply(&again, e);
    }
  }

  TestRandom random_;
  SchedulerConfig config_;
  SchedulerState state_;
  int64_t now_ = 0;
  uint64_t last_id_ = 0, last_lease_ = 0;
  std::map<SeqId, Book> books_;  // requests that are not over
  std::map<SeqId, int64_t> loading_;
  std::set<LeaseId> leases_;
  std::deque<StepPlan> flying_;
  std::vector<Event> log_;
  std::vector<PlanQuery> queries_;
};

TEST(SchedulerProperty, RandomSchedules) {
  int64_t preemptions = 0, hits = 0, evictions = 0, revocations = 0, loads = 0, early = 0, lost = 0;
  for (uint64_t seed = 1; seed <= 3000; ++seed) {
    World w(seed);
    w.run(40);
    if (w.broken()) FAIL() << "seed " << seed;
    preemptions += w.preemptions();
    hits += w.hits();
    evictions += w.evictions();
    revocations += w.revocations();
    loads += w.loads();
    early += w.early_runs();
    lost += w.lost_runs();
  }
  // The schedules did reach what they are meant to test.
  EXPECT_GT(preemptions, 100);
  EXPECT_GT(hits, 1000);
  EXPECT_GT(evictions, 1000);
  EXPECT_GT(revocations, 10);
  EXPECT_GT(loads, 100);
  EXPECT_GT(early, 100);
  EXPECT_GT(lost, 10);
}

TEST(SchedulerProperty, LongSchedules) {
  for (uint64_t seed = 100001; seed <= 100003; ++seed) {
    World w(seed);
    w.run(1500);
    if (w.broken()) FAIL() << "seed " << seed;
  }
}

}  // namespace
}  // namespace deepinfer::policy
