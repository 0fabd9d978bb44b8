// The transfer machines under a small model checker: every order of messages, with losses, doubles, deaths,
// late timers and a client that leaves, up to a budget of such misfortunes (serving specification 8.10). In
// every reachable state at most one destination can be heard, tokens come in order and once, nobody may write
// into freed memory; and from every reachable state a quiet end can be reached where nothing is held.
#include "policy/transfer.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <deque>
#include <string>
#include <unordered_map>

namespace deepinfer::policy {
namespace {

constexpr int64_t kPrompt = 300, kAnswer = 2;
constexpr size_t kMostInFlight = 3;

// One control plane, one source, two destinations that take turns by epoch.
struct World {
  ControlState c;
  SourceState p;
  DestinationState d[2];
  std::vector<TransferMessage> net;  // any order: sorted
  bool told_source = true;           // the control plane knows of the source's death
  bool told_destination[2] = {true, true};
  int misfortunes = 0;
  bool cancelled = false;
};

void put(std::string* out, int64_t v) {
  out->push_back(static_cast<char>(v + 1));
}

std::string key(const World& w) {
  std::string k;
  for (int64_t v : {static_cast<int64_t>(w.c.phase), int64_t{w.c.epoch}, int64_t{w.c.over}, w.c.delivered,
                    int64_t{w.c.source_open}, int64_t{w.c.destination_open}, static_cast<int64_t>(w.p.phase),
                    int64_t{w.p.epoch}, int64_t{w.p.closed}, w.p.tokens - kPrompt, int64_t{w.p.pinned},
                    int64_t{w.told_source}, int64_t{w.told_destination[0]}, int64_t{w.told_destination[1]},
                    int64_t{w.misfortunes}, int64_t{w.cancelled}}) {
    put(&k, v);
  }
  for (const DestinationState& d : w.d) {
    for (int64_t v : {static_cast<int64_t>(d.phase), int64_t{d.epoch}, int64_t{d.closed}, d.tokens - kPrompt,
                      d.next_token, int64_t{d.reserved}, int64_t{d.registered}, int64_t{d.confirmed},
                      int64_t{d.finished}}) {
      put(&k, v);
    }
  }
  for (const TransferMessage& m : w.net) {
    for (int64_t v :
         {static_cast<int64_t>(m.word), static_cast<int64_t>(m.from), static_cast<int64_t>(m.to),
          int64_t{m.epoch}, m.tokens > 0 ? m.tokens - kPrompt : -1, m.delivered, int64_t{m.flag}}) {
      put(&k, v);
    }
  }
  return k;
}

uint64_t digest(const std::string& k) {
  uint64_t h = 0x9E3779B97F4A7C15ull;
  for (char c : k) {
    h = (h ^ static_cast<unsigned char>(c)) * 0xBF58476D1CE4E5B9ull;
    h ^= h >> 29;
  }
  return h;
}

bool before(const TransferMessage& a, const TransferMessage& b) {
  auto t = [](const TransferMessage& m) {
    return std::tuple(m.word, m.from, m.to, m.epoch, m.tokens, m.delivered, m.flag);
  };
  return t(a) < t(b);
}

void collect(World* w, std::vector<TransferMessage>* outbox) {
  for (const TransferMessage& m : *outbox) {
    // A message that says the same as one that is on its way adds nothing (doubles are a misfortune of their
    // own); beyond the cap the network loses.
    if (std::find(w->net.begin(), w->net.end(), m) != w->net.end() || w->net.size() >= kMostInFlight)
      continue;
    w->net.insert(std::upper_bound(w->net.begin(), w->net.end(), m, before), m);
  }
  outbox->clear();
}

void send_all(World* w) {
  collect(w, &w->c.outbox);
  collect(w, &w->p.outbox);
  collect(w, &w->d[0].outbox);
  collect(w, &w->d[1].outbox);
}

void deliver(World* w, const TransferMessage& m) {
  if (m.to == Party::kControl) apply(&w->c, m);
  if (m.to == Party::kSource) apply(&w->p, m);
  if (m.to == Party::kDestination) apply(&w->d[m.epoch % 2], m);
}

std::string broken(const World& w, const World& old) {
  int heard = 0;
  for (const DestinationState& d : w.d) {
    heard += may_emit(d) && d.epoch > w.c.over;
    if (d.registered && !d.reserved) return "memory that a peer may write was given back";
    if (d.phase == DestinationPhase::kOwned && !d.reserved) return "an owner without its blocks";
    if (d.phase == DestinationPhase::kIdle && d.reserved) return "blocks held for nobody";
  }
  if (heard > 1) return "two destinations can be heard";
  if (w.c.phase == ControlPhase::kQueued && heard > 0) return "queued, and somebody can be heard";
  if ((w.p.phase == SourcePhase::kIdle) == w.p.pinned) return "pins do not follow the phase";
  if (w.c.delivered < old.c.delivered || w.c.delivered > old.c.delivered + 1) return "tokens out of order";
  if (w.c.delivered > kAnswer) return "more tokens than there are";
  if (old.c.phase == ControlPhase::kCancelled && w.c.delivered != old.c.delivered)
    return "a token after a cancel";
  if (w.c.epoch < old.c.epoch || w.c.over < old.c.over) return "an epoch went back";
  return "";
}

bool quiet(const World& w) {
  return (w.c.phase == ControlPhase::kDone || w.c.phase == ControlPhase::kCancelled) && w.net.empty() &&
         !w.p.pinned && !w.d[0].reserved && !w.d[1].reserved;
}

class Checker {
 public:
  Checker(int budget, int32_t epochs) : budget_(budget), epochs_(epochs) {}

  void run() {
    World start;
    start.c.prompt_tokens = kPrompt;
    visit(start, start, -1);
    while (!todo_.empty() && problem_.empty()) {
      auto [id, w] = std::move(todo_.front());
      todo_.pop_front();
      expand(w, id);
    }
    if (problem_.empty()) check_ends();
  }
  const std::string& problem() const { return problem_; }
  size_t states() const { return seen_.size(); }
  int64_t done_ends = 0, cancelled_ends = 0;

 private:
  void visit(World w, const World& old, int64_t from) {
    send_all(&w);
    if (std::string why = broken(w, old); !why.empty()) {
      problem_ = why;
      return;
    }
    auto [it, fresh] = seen_.emplace(digest(key(w)), static_cast<int64_t>(seen_.size()));
    if (from >= 0) back_.emplace_back(it->second, from);
    if (!fresh) return;
    if (quiet(w)) {
      good_.push_back(it->second);
      (w.c.phase == ControlPhase::kDone ? done_ends : cancelled_ends) += 1;
    }
    todo_.emplace_back(it->second, std::move(w));
  }

  template <typename F>
  void act(const World& w, int64_t id, int price, F f) {
    if (w.misfortunes + price > budget_ || !problem_.empty()) return;
    World next = w;
    next.misfortunes += price;
    f(next);
    visit(std::move(next), w, id);
  }

  void expand(const World& w, int64_t id) {
    const bool last_epoch = w.c.epoch >= epochs_;
    const int bad = last_epoch ? 1000 : 1;  // in the last attempt nothing goes wrong any more
    for (size_t i = 0; i < w.net.size(); ++i) {
      if (i > 0 && w.net[i] == w.net[i - 1]) continue;
      auto take = [i](World& n) {
        TransferMessage m = n.net[i];
        n.net.erase(n.net.begin() + static_cast<std::ptrdiff_t>(i));
        return m;
      };
      act(w, id, 0, [&](World& n) { deliver(&n, take(n)); });
      act(w, id, bad, [&](World& n) { deliver(&n, n.net[i]); });  // doubled: it stays
      act(w, id, bad, [&](World& n) { take(n); });                // lost
    }
    expand_control(w, id, bad);
    expand_source(w, id, bad);
    for (int i = 0; i < 2; ++i) expand_destination(w, id, i, bad);
  }

  void expand_control(const World& w, int64_t id, int bad) {
    if (w.c.phase == ControlPhase::kQueued && w.c.epoch < epochs_) {
      act(w, id, 0, [](World& n) { apply(&n.c, ControlEvent::kBegin); });
    }
    if (w.net.empty()) act(w, id, 0, [](World& n) { apply(&n.c, ControlEvent::kRetry); });
    if (!w.cancelled) {
      act(w, id, 0, [](World& n) {
        n.cancelled = true;
        apply(&n.c, ControlEvent::kClientCancelled);
      });
    }
    act(w, id, bad, [](World& n) { apply(&n.c, ControlEvent::kTimeout); });
    if (!w.told_source) {
      act(w, id, 0, [](World& n) {
        n.told_source = true;
        apply(&n.c, ControlEvent::kSourceDied);
      });
    }
    for (int i = 0; i < 2; ++i) {
      if (w.told_destination[i]) continue;
      act(w, id, 0, [i](World& n) {
        n.told_destination[i] = true;
        if (n.c.epoch % 2 == i) apply(&n.c, ControlEvent::kDestinationDied);
      });
    }
  }

  void expand_source(const World& w, int64_t id, int bad) {
    const DestinationState& d = w.d[w.p.epoch % 2];
    act(w, id, 0, [](World& n) { apply(&n.p, SourceEvent::kComputed); });
    act(w, id, bad, [](World& n) { apply(&n.p, SourceEvent::kComputeFailed); });
    if (w.net.empty()) act(w, id, 0, [](World& n) { apply(&n.p, SourceEvent::kRetry); });
    // The clocks' rule: never while the destination's lease of the same epoch runs. Free of charge when
    // nobody waits for it any more.
    const bool waits = d.phase == DestinationPhase::kPrepared && d.epoch == w.p.epoch;
    const bool useless =
        w.p.epoch <= w.c.over || (d.epoch != w.p.epoch || d.phase == DestinationPhase::kIdle);
    if (!waits) act(w, id, useless ? 0 : bad, [](World& n) { apply(&n.p, SourceEvent::kLeaseExpired); });
    act(w, id, bad, [](World& n) {
      n.p = SourceState{};
      n.told_source = false;
    });
  }

  void expand_destination(const World& w, int64_t id, int i, int bad) {
    const DestinationState& d = w.d[i];
    if (may_emit(d)) {
      act(w, id, 0, [i](World& n) {
        const bool last = n.d[i].next_token + 1 >= kAnswer;
        apply(&n.d[i], last ? DestinationEvent::kEmitLast : DestinationEvent::kEmit);
      });
    }
    if (w.net.empty()) act(w, id, 0, [i](World& n) { apply(&n.d[i], DestinationEvent::kRetry); });
    if (d.phase == DestinationPhase::kPrepared) {
      const bool useless = d.epoch <= w.c.over;
      act(w, id, useless ? 0 : bad, [i](World& n) { apply(&n.d[i], DestinationEvent::kLeaseExpired); });
    }
    act(w, id, bad, [i](World& n) {
      n.d[i] = DestinationState{};
      n.told_destination[i] = false;
    });
  }

  // From every state a quiet one can be reached: backwards from the quiet ones.
  void check_ends() {
    const size_t n = seen_.size();
    std::vector<int64_t> first(n + 1, 0), edges(back_.size());
    for (const auto& [to, from] : back_) ++first[static_cast<size_t>(to) + 1];
    for (size_t i = 0; i < n; ++i) first[i + 1] += first[i];
    std::vector<int64_t> at(first.begin(), first.end() - 1);
    for (const auto& [to, from] : back_) edges[static_cast<size_t>(at[static_cast<size_t>(to)]++)] = from;
    std::vector<char> reaches(n, 0);
    std::vector<int64_t> work = good_;
    for (int64_t g : good_) reaches[static_cast<size_t>(g)] = 1;
    size_t count = good_.size();
    while (!work.empty()) {
      const size_t s = static_cast<size_t>(work.back());
      work.pop_back();
      for (int64_t e = first[s]; e < first[s + 1]; ++e) {
        const size_t from = static_cast<size_t>(edges[static_cast<size_t>(e)]);
        if (reaches[from]) continue;
        reaches[from] = 1;
        ++count;
        work.push_back(static_cast<int64_t>(from));
      }
    }
    if (count != n) problem_ = std::to_string(n - count) + " states from which no quiet end can be reached";
  }

  int budget_;
  int32_t epochs_;
  std::unordered_map<uint64_t, int64_t> seen_;  // by a hash of the key: 10^7 states collide once in 10^5 runs
  std::deque<std::pair<int64_t, World>> todo_;
  std::vector<std::pair<int64_t, int64_t>> back_;  // (to, from)
  std::vector<int64_t> good_;
  std::string problem_;
};

#ifndef DEEPINFER_MISFORTUNES  // the slow build of this file allows more
#define DEEPINFER_MISFORTUNES 1
#endif

TEST(TransferModel, EveryOrderOfEvents) {
  Checker checker(DEEPINFER_MISFORTUNES, 2);
  checker.run();
  EXPECT_EQ(checker.problem(), "");
  EXPECT_GT(checker.done_ends, 0);
  EXPECT_GT(checker.cancelled_ends, 0);
  EXPECT_GT(checker.states(), 10'000u);
  std::printf("%zu states, %d misfortunes\n", checker.states(), DEEPINFER_MISFORTUNES);
}

// The happy path, message by message.
TEST(Transfer, HappyPath) {
  World w;
  w.c.prompt_tokens = kPrompt;
  apply(&w.c, ControlEvent::kBegin);
  std::vector<TransferWord> said;
  for (int round = 0; round < 40; ++round) {
    if (w.p.phase == SourcePhase::kComputing) apply(&w.p, SourceEvent::kComputed);
    send_all(&w);
    if (w.net.empty()) {
      DestinationState& d = w.d[1];
      if (!may_emit(d)) break;
      apply(&d, d.next_token + 1 >= kAnswer ? DestinationEvent::kEmitLast : DestinationEvent::kEmit);
      continue;
    }
    TransferMessage m = w.net.front();
    w.net.erase(w.net.begin());
    said.push_back(m.word);
    deliver(&w, m);
  }
  using enum TransferWord;
  EXPECT_EQ(w.c.phase, ControlPhase::kDone);
  EXPECT_EQ(w.c.delivered, kAnswer);
  EXPECT_TRUE(settled(w.c));
  EXPECT_TRUE(quiet(w));
  for (TransferWord word : {kPrepare, kReady, kStart, kCommit, kAck, kOwned, kConfirm, kToken, kCancel}) {
    EXPECT_NE(std::find(said.begin(), said.end(), word), said.end()) << name(word);
  }
}

TEST(Transfer, ACommitIsHeldAgainstWhatWasReserved) {
  for (int fault = 0; fault < 2; ++fault) {
    DestinationState d;
    apply(&d,
          TransferMessage{TransferWord::kPrepare, Party::kControl, Party::kDestination, 1, 300, 0, false});
    d.outbox.clear();
    apply(&d, TransferMessage{TransferWord::kCommit, Party::kSource, Party::kDestination, 1,
                              fault == 0 ? 299 : 300, 0, fault == 0});
    EXPECT_EQ(d.phase, DestinationPhase::kIdle);
    EXPECT_FALSE(d.reserved);
    ASSERT_EQ(d.outbox.size(), 2u);
    EXPECT_EQ(d.outbox[0].word, TransferWord::kRefused);
  }
  EXPECT_EQ(reserve_tokens(1000, 5, 128), 1134);
}

TEST(Transfer, LayoutsAreComparedFieldByField) {
  const TransferLayout base{
      1,         128,      134, 528, 3, 4096, {288, 288, 288, 288}, {0, 6, 12, 20}, {2, 2, 2, 1},
      "fp4+fp8", "crc32c", 4,   4,   {}};
  EXPECT_EQ(refuse_layout(base, base), "");
  TransferLayout other = base;
  other.expert_ranks = 64;  // only the mapping of ranks differs
  other.data_ranks = 64;
  EXPECT_EQ(refuse_layout(base, other), "");
  auto refused = [&](auto change) {
    TransferLayout t = base;
    change(t);
    return !refuse_layout(base, t).empty();
  };
  EXPECT_TRUE(refused([](TransferLayout& t) { t.version = 2; }));
  EXPECT_TRUE(refused([](TransferLayout& t) { t.block_tokens = 64; }));
  EXPECT_TRUE(refused([](TransferLayout& t) { t.window_slots = 133; }));
  EXPECT_TRUE(refused([](TransferLayout& t) { t.window_record_bytes = 584; }));
  EXPECT_TRUE(refused([](TransferLayout& t) { t.draft_stages = 1; }));
  EXPECT_TRUE(refused([](TransferLayout& t) { t.page_bytes = 8192; }));
  EXPECT_TRUE(refused([](TransferLayout& t) { t.record_bytes[0] = 584; }));
  EXPECT_TRUE(refused([](TransferLayout& t) { t.record_bytes.push_back(288); }));
  EXPECT_TRUE(refused([](TransferLayout& t) { t.kv_sources[1] = 7; }));
  EXPECT_TRUE(refused([](TransferLayout& t) { t.compress_ratios[3] = 2; }));
  EXPECT_TRUE(refused([](TransferLayout& t) { t.dtypes = "bf16"; }));
  EXPECT_TRUE(refused([](TransferLayout& t) { t.checksum = "none"; }));
  TransferLayout wide = base, sender = base;
  wide.window_record_bytes = 584;
  sender.converters = {"window_record_bytes:528>584"};
  EXPECT_EQ(refuse_layout(sender, wide), "");
  EXPECT_NE(refuse_layout(wide, sender), "");
}

}  // namespace
}  // namespace deepinfer::policy
