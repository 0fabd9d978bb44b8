// Rank loads, and the effect of a change on the slowest rank of each step.
#include "policy/eplb_loads.h"

#include <algorithm>

namespace deepinfer::policy {

EplbLoads::EplbLoads(const EplbShape& shape, const EplbHistory& history, const Placement& placement)
    : shape_(shape), history_(&history), steps_(history.steps()), placement_(placement) {
  recount();
}

void EplbLoads::recount() {
  copies_.assign(static_cast<size_t>(shape_.experts), 0);
  on_.assign(static_cast<size_t>(shape_.experts) * static_cast<size_t>(shape_.ranks), 0);
  for (size_t s = 0; s < placement_.slot.size(); ++s) {
    ++copies_[static_cast<size_t>(placement_.slot[s])];
    ++on_[cell(rank_of(static_cast<int>(s)), placement_.slot[s])];
  }
  x_.assign(static_cast<size_t>(steps_) * static_cast<size_t>(shape_.ranks), 0);
  for (int t = 0; t < steps_; ++t) {
    for (size_t s = 0; s < placement_.slot.size(); ++s) {
      x(t, rank_of(static_cast<int>(s))) += share(t, placement_.slot[s]);
    }
  }
  summarise();
}

void EplbLoads::summarise() {
  top_.resize(static_cast<size_t>(steps_));
  worst_.assign(static_cast<size_t>(shape_.ranks), 0);
  cost_ = 0;
  for (int t = 0; t < steps_; ++t) {
    Top& top = top_[static_cast<size_t>(t)];
    top = {{-1, -1, -1}, {-1, -1, -1}};
    for (int g = 0; g < shape_.ranks; ++g) {
      const double v = x(t, g);
      for (int k = 0; k < 3; ++k) {
        if (v <= top.value[k]) continue;
        for (int j = 2; j > k; --j) {
          top.value[j] = top.value[j - 1];
          top.rank[j] = top.rank[j - 1];
        }
        top.value[k] = v;
        top.rank[k] = g;
        break;
      }
    }
    cost_ += top.value[0];
    ++worst_[static_cast<size_t>(top.rank[0])];
  }
}

double EplbLoads::swap_cost(int a, int b) const {
  const int ga = rank_of(a), gb = rank_of(b), ea = at(a), eb = at(b);
  double sum = 0;
  for (int t = 0; t < steps_; ++t) {
    const double d = share(t, eb) - share(t, ea);
    double most = std::max(x(t, ga) + d, x(t, gb) - d);
    const Top& top = top_[static_cast<size_t>(t)];
    for (int k = 0; k < 3; ++k) {
      if (top.rank[k] != ga && top.rank[k] != gb) {
        most = std::max(most, top.value[k]);
        break;
      }
    }
    sum += most;
  }
  return sum;
}

void EplbLoads::put(int slot, int expert) {
  placement_.slot[static_cast<size_t>(slot)] = expert;
}

double EplbLoads::replace_cost(int a, int expert, int b) {
  const int ga = rank_of(a), gb = rank_of(b), old = at(a), other = at(b);
  const double old_copies = copies_[static_cast<size_t>(old)],
               new_copies = copies_[static_cast<size_t>(expert)];
  double sum = 0;
  for (int t = 0; t < steps_; ++t) {
    const float* w = history_->load.data() + static_cast<size_t>(t) * static_cast<size_t>(shape_.experts);
    const double w_old = w[old], w_new = w[expert];
    const double old_gain = w_old / (old_copies - 1) - w_old / old_copies;
    const double new_gain = w_new / (new_copies + 1) - w_new / new_copies;
    // A third expert that moves keeps its share; if it is one of the two, its share is the new one.
    double moving = w[other] / copies_[static_cast<size_t>(other)];
    if (other == old) moving = w_old / (old_copies - 1);
    if (other == expert) moving = w_new / (new_copies + 1);
    double most = 0;
    for (int g = 0; g < shape_.ranks; ++g) {
      double v = x(t, g);
      const int olds = on_[cell(g, old)], news = on_[cell(g, expert)];
      if (g == ga) {
        v += (olds - 1) * old_gain - w_old / old_copies + news * new_gain + w_new / (new_copies + 1);
      } else {
        v += olds * old_gain + news * new_gain;
      }
      if (a != b && g == ga) v += moving - w_new / (new_copies + 1);
      if (a != b && g == gb) v += w_new / (new_copies + 1) - moving;
      most = std::max(most, v);
    }
    sum += most;
  }
  return sum;
}

void EplbLoads::swap(int a, int b) {
  const int ga = rank_of(a), gb = rank_of(b), ea = at(a), eb = at(b);
  for (int t = 0; t < steps_; ++t) {
    const double d = share(t, eb) - share(t, ea);
    x(t, ga) += d;
    x(t, gb) -= d;
  }
  --on_[cell(ga, ea)];
  --on_[cell(gb, eb)];
  ++on_[cell(ga, eb)];
  ++on_[cell(gb, ea)];
  put(a, eb);
  put(b, ea);
  summarise();
}

void EplbLoads::replace(int a, int expert, int b) {
  put(a, expert);
  if (a != b) {
    const int other = at(b);
    put(b, expert);
    put(a, other);
  }
  recount();
}

}  // namespace deepinfer::policy
