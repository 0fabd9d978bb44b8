// A checker of the commit, lease and recovery protocol: every order of a writer's steps, torn log entries,
// two readers (one in the writer's process, one elsewhere), eviction, space given away, time, crashes and
// restarts is explored for one object. What is served is what its writer meant, what was acknowledged and not
// evicted is found again after every restart. The same search finds each of five ways to break the protocol,
// so that it can fail. Serving specification 7.3, T-KV-3, T-KV-4, T-KV-7.
#include "policy/store_object.h"

#include <gtest/gtest.h>

#include <deque>
#include <map>
#include <string>
#include <tuple>

namespace deepinfer::policy {
namespace {

enum class Place : uint8_t { kNothing, kHalf, kWhole, kOther };
enum class Log : uint8_t { kNothing, kTorn, kCommit, kErased };

struct Reader {
  uint8_t step = 0;   // 0 idle, 1 may read, 2 has one half, 3 has both
  bool late = false;  // its lease has run out
  Place first = Place::kNothing, second = Place::kNothing;
  auto operator<=>(const Reader&) const = default;
};

struct World {
  bool alive = true;
  uint8_t step = 0;  // of the writer: 0 idle, 1 begun, 2 data written, 3 logged, 4 acknowledged
  Place place = Place::kNothing;
  Log log = Log::kNothing;
  uint8_t phase = 0, leases = 0;  // of the object in the writer's index
  bool remote_sees = false;
  Reader local, remote;
  bool acknowledged = false, given_up = false;
  uint8_t grace = 0;  // 0 no erasure, 1 waiting, 2 over
  uint8_t crashes = 0;
  auto operator<=>(const World&) const = default;

  StoreObject object() const { return {static_cast<ObjectPhase>(phase), leases}; }
  void set(const StoreObject& o) {
    phase = static_cast<uint8_t>(o.phase);
    leases = static_cast<uint8_t>(o.leases);
  }
  bool can(ObjectEvent e) const { return allowed(object(), e); }
  void happen(ObjectEvent e) {
    StoreObject o = object();
    apply(&o, e);
    set(o);
  }
};

// Ways to do it wrong; none set is the protocol.
struct Faults {
  bool log_before_data = false, ack_before_log = false, evict_leased = false;
  bool no_recheck = false, remote_unchecked = false;
};

class Checker {
 public:
  explicit Checker(Faults f) : f_(f) {}
  // Empty: nothing wrong can be reached.
  std::string run() {
    push(World{});
    while (!queue_.empty() && wrong_.empty()) {
      World w = queue_.front();
      queue_.pop_front();
      if (w.alive) {
        write(w);
        retire(w);
        read_local(w);
        crash(w);
      } else {
        recover(w);
      }
      read_remote(w);
      if (w.grace == 1) push(with(w, [](World& x) { x.grace = 2; }));
    }
    return wrong_;
  }
  size_t states() const { return seen_.size(); }

 private:
  template <typename Edit>
  static World with(World w, Edit edit) {
    edit(w);
    return w;
  }
  void push(const World& w) {
    if (seen_.emplace(w, true).second) queue_.push_back(w);
  }

  void write(const World& w) {
    if (w.step == 0 && w.can(ObjectEvent::kBegin)) {
      push(with(w, [](World& x) {
        x.happen(ObjectEvent::kBegin);
        x.step = 1;
      }));
    }
    if (w.step == 1) {
      push(with(w, [](World& x) { x.place = Place::kHalf; }));
      if (w.place == Place::kHalf) {
        push(with(w, [](World& x) {
          x.place = Place::kWhole;
          x.step = 2;
        }));
      }
      push(with(w, [](World& x) {
        x.happen(ObjectEvent::kAbort);
        x.step = 0;
        x.place = Place::kNothing;
        x.log = Log::kNothing;
      }));
    }
    bool may_log = w.step == 2 || (f_.log_before_data && w.step == 1);
    if (may_log && w.log == Log::kNothing) push(with(w, [](World& x) { x.log = Log::kTorn; }));
    if (may_log && w.log == Log::kTorn) push(with(w, [](World& x) { x.log = Log::kCommit; }));
    if (w.step == 2 && w.log == Log::kCommit) push(with(w, [](World& x) { x.step = 3; }));
    bool may_ack = w.step == 3 || (f_.ack_before_log && w.step == 2);
    if (may_ack && !w.acknowledged) {
      push(with(w, [](World& x) {
        x.happen(ObjectEvent::kCommit);
        x.step = 4;
        x.acknowledged = true;
      }));
    }
  }

  void retire(const World& w) {
    bool evict =
        w.can(ObjectEvent::kEvict) || (f_.evict_leased && w.object().phase == ObjectPhase::kComplete);
    if (evict && w.log == Log::kCommit) {
      push(with(w, [](World& x) {
        StoreObject o = x.object();
        o.phase = ObjectPhase::kDropped;
        x.set(o);
        x.log = Log::kErased;
        x.grace = 1;
        x.given_up = true;
      }));
    }
    bool reuse = w.grace == 2 && w.place == Place::kWhole && (w.can(ObjectEvent::kReuse) || f_.evict_leased);
    if (reuse && w.object().phase == ObjectPhase::kDropped) {
      push(with(w, [](World& x) {
        x.place = Place::kOther;
        if (x.can(ObjectEvent::kReuse)) x.happen(ObjectEvent::kReuse);
      }));
    }
  }

  // Whether what a reader has together is what the writer meant.
  static bool right(const Reader& r) { return r.first == Place::kWhole && r.second == Place::kWhole; }

  // In the writer's process: protected by its lease alone, no checksum is needed.
  void read_local(const World& w) {
    const Reader& r = w.local;
    if (r.step == 0 && w.can(ObjectEvent::kLease) && w.leases == 0) {
      push(with(w, [](World& x) {
        x.happen(ObjectEvent::kLease);
        x.local = Reader{1, false, Place::kNothing, Place::kNothing};
      }));
    }
    if (r.step == 1) push(with(w, [&](World& x) { x.local.first = w.place, x.local.step = 2; }));
    if (r.step == 2) push(with(w, [&](World& x) { x.local.second = w.place, x.local.step = 3; }));
    if (r.step > 0 && !r.late) {
      // Time passes; the store takes the lease back.
      push(with(w, [](World& x) {
        x.local.late = true;
        if (x.can(ObjectEvent::kRelease)) x.happen(ObjectEvent::kRelease);
      }));
    }
    if (r.step == 3) {
      ReadLease lease{r.late ? 0 : 1};
      bool serves = f_.no_recheck || holds(lease, 0);
      if (serves && !right(r)) wrong_ = "a reader served bytes that were not written under its key";
      push(with(w, [](World& x) {
        if (!x.local.late && x.can(ObjectEvent::kRelease)) x.happen(ObjectEvent::kRelease);
        x.local = {};
      }));
    }
  }

  // In another process: its lease is unknown to the writer. The grace period makes damage rare, the checksum
  // makes it harmless.
  void read_remote(const World& w) {
    const Reader& r = w.remote;
    push(with(w, [](World& x) { x.remote_sees = x.log == Log::kCommit; }));
    if (r.step == 0 && w.remote_sees) push(with(w, [](World& x) { x.remote.step = 1; }));
    if (r.step == 1) push(with(w, [&](World& x) { x.remote.first = w.place, x.remote.step = 2; }));
    if (r.step == 2) push(with(w, [&](World& x) { x.remote.second = w.place, x.remote.step = 3; }));
    if (r.step != 3) return;
    if (f_.remote_unchecked && !right(r)) wrong_ = "a remote reader served bytes of another object";
    push(with(w, [](World& x) { x.remote = {}; }));
  }

  void crash(const World& w) {
    if (w.crashes >= 3) return;
    push(with(w, [](World& x) {
      x.alive = false;
      x.set({});
      x.local = {};
      ++x.crashes;
    }));
  }

  // The next incarnation reads the log, never the writer's memory. It does not continue the old files:
  // without a whole commit entry the place is nobody's.
  void recover(const World& w) {
    bool found = w.log == Log::kCommit;
    if (w.acknowledged && !w.given_up && !found) wrong_ = "an acknowledged object is lost";
    if (found && w.place != Place::kWhole) wrong_ = "a restart found an object whose bytes are not there";
    push(with(w, [&](World& x) {
      x.alive = true;
      x.set({found ? ObjectPhase::kComplete : ObjectPhase::kAbsent, 0});
      x.step = found ? 4 : 0;
      x.acknowledged = x.acknowledged || found;
      if (found) return;
      x.place = Place::kNothing;
      x.log = Log::kNothing;
      x.grace = 0;
      x.remote_sees = false;
      x.remote = {};
      x.acknowledged = x.given_up = false;
    }));
  }

  Faults f_;
  std::map<World, bool> seen_;
  std::deque<World> queue_;
  std::string wrong_;
};

TEST(StoreProtocol, NothingWrongCanBeReached) {
  Checker c({});
  EXPECT_EQ(c.run(), "");
  EXPECT_GT(c.states(), 700u);
  RecordProperty("states", static_cast<int>(c.states()));
}

TEST(StoreProtocol, TheCheckerFindsEveryWayToBreakIt) {
  EXPECT_NE(Checker(Faults{.log_before_data = true}).run(), "");
  EXPECT_NE(Checker(Faults{.ack_before_log = true}).run(), "");
  EXPECT_NE(Checker(Faults{.evict_leased = true}).run(), "");
  EXPECT_NE(Checker(Faults{.no_recheck = true}).run(), "");
  EXPECT_NE(Checker(Faults{.remote_unchecked = true}).run(), "");
}

TEST(StoreObject, WhatMayFollowWhat) {
  using E = ObjectEvent;
  auto may = [](ObjectPhase p, uint16_t leases) {
    std::string out;
    int i = 0;
    for (E e :
         {E::kBegin, E::kCommit, E::kAbort, E::kLease, E::kRelease, E::kEvict, E::kInvalidate, E::kReuse})
      out += allowed({p, leases}, e) ? "BCALREIU"[i++] : (++i, '.');
    return out;
  };
  EXPECT_EQ(may(ObjectPhase::kAbsent, 0), "B.......");
  EXPECT_EQ(may(ObjectPhase::kWriting, 0), ".CA.....");
  EXPECT_EQ(may(ObjectPhase::kComplete, 0), "...L.EI.");
  EXPECT_EQ(may(ObjectPhase::kComplete, 1), "...LR.I.");
  EXPECT_EQ(may(ObjectPhase::kComplete, UINT16_MAX), "....R.I.");
  EXPECT_EQ(may(ObjectPhase::kDropped, 1), "....R...");
  EXPECT_EQ(may(ObjectPhase::kDropped, 0), ".......U");
  StoreObject o;
  EXPECT_DEATH(apply(&o, E::kRelease), "may not take");
}

TEST(OwnerWatch, SilenceAndAFreeLock) {
  OwnerWatch w;
  EXPECT_FALSE(owner_dead(w, true, 1'000'000, 10));  // never seen
  observe(&w, 5, 100);
  observe(&w, 5, 105);
  EXPECT_FALSE(owner_dead(w, true, 109, 10));
  EXPECT_TRUE(owner_dead(w, true, 110, 10));
  EXPECT_FALSE(owner_dead(w, false, 1000, 10));
  observe(&w, 6, 110);
  EXPECT_FALSE(owner_dead(w, true, 119, 10));
  observe(&w, 5, 119);  // another value, be it smaller: somebody writes it
  EXPECT_FALSE(owner_dead(w, true, 120, 10));
}

}  // namespace
}  // namespace deepinfer::policy
