// The loop's dealings with a persistent store: loads for who is let in, offers of what was computed. Source:
// serving specification 2.5, 7.7.
#include <algorithm>

#include "engine/serving_choice.h"
#include "policy/store_restore.h"

namespace deepinfer {

void ServingLoop::begin_load(Choice* c, const policy::Admission& a) {
  const Submission& s = c->live->submission;
  LoadWanted w;
  w.seq = a.seq;
  w.offer = s.offer;
  w.blocks = a.load;
  auto first = s.keys.begin() + static_cast<int64_t>(a.shared.size());
  w.keys.assign(first, first + static_cast<int64_t>(a.load.size()));
  w.window = a.load_window;
  w.boundary = a.hit.start_tokens;
  if (a.load_window != policy::kNoSnapshot)
    w.window_key = s.keys[static_cast<size_t>(a.hit.start_tokens / policy::window(state_) - 1)];
  c->asked_blocks = static_cast<int64_t>(a.load.size());
  policy::SplitQuery q;
  q.fetch_ns = static_cast<double>(c->asked_blocks * s.offer->ns_per_block);
  q.rest_part = bridge_->rest_part();
  q.step_ns =
      policy::rows_cost_ns(state_.fit.model, c->usage.prompt_tokens - a.hit.start_tokens, a.hit.start_tokens);
  q.needed_share = rest_share_;
  q.alone = !bridge_->loading();
  w.split = policy::decide_split(q);
  c->shared_tokens = static_cast<int64_t>(a.shared.size()) * policy::window(state_);
  ++totals_.store_loads;
  c->live->submission.offer.reset();
  c->gate = bridge_->load(std::move(w));
}

void ServingLoop::warm(WarmStart start) {
  totals_.store_warm_blocks += static_cast<int64_t>(start.event.blocks.size());
  totals_.store_warm_windows += static_cast<int64_t>(start.event.windows.size());
  happen(start.event);
  windows_ = std::move(start.windows);
}

// Time in which the store was waited for and nothing else could be done.
void ServingLoop::count_stall(int64_t now_ns) {
  if (bridge_ == nullptr) return;
  if (stalled_since_ns_ > 0) totals_.store_stall_ns += now_ns - stalled_since_ns_;
  stalled_since_ns_ = bridge_->loading() && state_.in_flight.empty() ? now_ns : 0;
}

void ServingLoop::first_loaded(FirstLoaded f, int64_t now_ns) {
  auto it = choices_.find(f.seq);
  if (it == choices_.end()) return;
  happen(policy::StoreReady{f.seq, f.window != nullptr, now_ns + f.rest_ns, rest_share_});
  if (!policy::at(state_, state_.by_seq.at(f.seq)).early || f.window == nullptr) return;
  it->second->window_placed = true;
  windows_.push_back({f.slot, std::move(f.window)});
}

// What of a prompt was there when its rows began.
void ServingLoop::count_store_hit(Choice* c, int64_t start_tokens, bool replayed) {
  c->usage.cached_tokens = start_tokens;
  c->usage.store_tokens = std::max<int64_t>(0, start_tokens - c->shared_tokens);
  totals_.store_tokens += c->usage.store_tokens;
  totals_.replayed_hits += (replayed ? 1 : 0) - (c->usage.replayed_window ? 1 : 0);
  c->usage.replayed_window = replayed;
  if (c->index == 0) c->live->approximate = replayed;
}

void ServingLoop::loaded(Loaded l, int64_t now_ns) {
  count_stall(now_ns);
  bridge_->arrived(l.seq);
  bool whole_window = l.slot == policy::kNoSnapshot || l.window != nullptr;
  auto it = choices_.find(l.seq);
  bool place = it != choices_.end() && !it->second->window_placed;
  if (place && l.window != nullptr) windows_.push_back({l.slot, l.window});
  happen(policy::StoreResult{l.seq, l.blocks, l.window != nullptr});
  totals_.store_blocks += l.blocks;
  totals_.store_windows += l.window != nullptr ? 1 : 0;
  if (it == choices_.end()) return;
  Choice* c = it->second.get();
  c->gate = nullptr;
  totals_.store_short_loads += l.blocks < c->asked_blocks || !whole_window ? 1 : 0;
  totals_.store_lost_tokens += (c->asked_blocks - l.blocks) * policy::window(state_);
  const policy::Request& r = policy::at(state_, state_.by_seq.at(l.seq));
  // A step that began early is lost; what its hit was is decided when it comes back.
  c->comes_back = r.phase == policy::Phase::kPreempting;
  if (c->comes_back) return;
  count_store_hit(c, r.computed_tokens, r.replayed);
  if (!c->live->submission.request->prompt_logprobs) start(c);
}

// Generated blocks get their keys with the step that completes them.
void ServingLoop::take_keys(const policy::StepFinished& f) {
  for (const policy::RowResult& x : f.results) {
    auto it = choices_.find(x.seq);
    if (it == choices_.end() || x.failed || it->second->live->submission.request->store.no_write) continue;
    it->second->keys.insert(it->second->keys.end(), x.new_keys.begin(), x.new_keys.end());
  }
}

void ServingLoop::note_windows(Choice* c, const policy::RowRun& run) {
  auto note = [&](policy::SnapshotId id, int64_t boundary) {
    if (id == policy::kNoSnapshot) return;
    const policy::SnapshotEntry& e = policy::at(state_.cache, id);
    size_t block = static_cast<size_t>(boundary / policy::window(state_));
    bool mine = e.place == policy::SnapshotPlace::kReady && e.boundary_tokens == boundary && !e.replayed &&
                block >= 1 && block <= c->keys.size() && c->keys[block - 1] == e.key;
    if (!mine) return;
    // One of the output replaces the one before it.
    if (!run.prefill) {
      std::erase_if(c->windows, [&](const Choice::Window& w) { return w.boundary > c->usage.prompt_tokens; });
    }
    c->windows.push_back({id, e.key, boundary});
  };
  note(run.cap_snapshot, run.cap_boundary);
  note(run.snapshot, run.snapshot_boundary);
}

void ServingLoop::offer_blocks(Choice* c) {
  const StoreWish& wish = c->live->submission.request->store;
  for (; c->stored < c->keys.size(); ++c->stored) {
    const policy::BlockKey& key = c->keys[c->stored];
    policy::BlockId id = policy::find(state_.cache, key);
    // Not computed yet, or an approximation: only what a cold run would give is kept.
    if (id == policy::kNoBlock || policy::at(state_.cache, id).replayed) return;
    StoreWrite w;
    w.key = key;
    w.first = c->stored == 0;
    if (!w.first) w.parent = c->keys[c->stored - 1];
    w.index = static_cast<int64_t>(c->stored);
    w.wish = wish;
    if (!bridge_->put_block(w, id)) {
      ++totals_.store_put_refusals;
      return;
    }
    ++totals_.store_puts;
  }
}

void ServingLoop::offer_windows(Choice* c) {
  if (c->live->submission.request->store.no_windows) c->windows.clear();
  for (const Choice::Window& x : c->windows) {
    const policy::SnapshotEntry& e = policy::at(state_.cache, x.id);
    bool there = e.place == policy::SnapshotPlace::kReady && e.key == x.key && !e.replayed &&
                 e.boundary_tokens == x.boundary;
    if (!there) continue;
    StoreWrite w;
    w.key = w.parent = x.key;
    w.window = true;
    w.index = x.boundary / policy::window(state_) - 1;
    w.wish = c->live->submission.request->store;
    ++(bridge_->put_window(w, x.id) ? totals_.store_puts : totals_.store_put_refusals);
  }
  c->windows.clear();
}

}  // namespace deepinfer
