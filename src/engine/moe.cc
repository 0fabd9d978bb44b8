// Mixture of experts, expert by expert: every touched expert's weights are walked once per call whatever the
// number of rows. A row's sum runs over its experts in ascending id, then the shared expert, so it does not
// depend on the other rows. Source: model specification 4.
#include "engine/forward_impl.h"

namespace deepinfer {

template <typename A>
void Forward<A>::Impl::moe(const BlockWeights& b, int experts, int top_k, const RowSet* rows, int64_t T,
                           std::vector<std::vector<int32_t>>* route_trace) {
  int64_t H = c.hidden_size, I = c.moe_intermediate_size, K = top_k;
  grow(&router_logits, T * experts);
  LinearPhase<A> phase(k, pool, &work);
  phase.add(b.gate, u.data(), H, T, router_logits.data(), experts, Out::kFull);
  phase.run();
  grow(&route_ids, T * K);
  grow(&route_weights, T * K);
  RouterParams params{
      experts,    top_k, static_cast<int>(c.scoring_func), c.norm_topk_prob, c.routed_scaling_factor,
      c.gate_temp};
  for_rows(T, [&](int64_t t, int wk) {
    bool image = rows != nullptr &&
                 rows->spans[static_cast<size_t>(rows->span_of[static_cast<size_t>(t)])].sequence->in_image(
                     rows->position[static_cast<size_t>(t)]);
    const SmallTensor& bias = image ? b.gate_bias_vl : b.gate_bias;
    route(router_logits.data() + t * experts, bias.template data<A>(), params, worker_scratch(wk, experts),
          route_ids.data() + t * K, route_weights.data() + t * K);
  });
  if (route_trace != nullptr) {
    for (int64_t t = 0; t < T; ++t)
      route_trace->emplace_back(route_ids.begin() + t * K, route_ids.begin() + (t + 1) * K);
  }

  // Group (row, k) pairs by expert; the shared expert is one more group that holds every row.
  int64_t slots = T * K;
  std::vector<int64_t> first(static_cast<size_t>(experts) + 1, 0);
  for (int64_t s = 0; s < slots; ++s) ++first[static_cast<size_t>(route_ids[static_cast<size_t>(s)]) + 1];
  for (int e = 0; e < experts; ++e) first[static_cast<size_t>(e) + 1] += first[static_cast<size_t>(e)];
  std::vector<int64_t> next(first.begin(), first.end() - 1);
  std::vector<int32_t> row_of(static_cast<size_t>(slots + T));
  std::vector<A> weight_of(static_cast<size_t>(slots + T), A(1));
  std::vector<int64_t> slot_of(static_cast<size_t>(slots));
  for (int64_t s = 0; s < slots; ++s) {
    int64_t at = next[static_cast<size_t>(route_ids[static_cast<size_t>(s)])]++;
    row_of[static_cast<size_t>(at)] = static_cast<int32_t>(s / K);
    weight_of[static_cast<size_t>(at)] = route_weights[static_cast<size_t>(s)];
    slot_of[static_cast<size_t>(s)] = at;
  }
  for (int64_t t = 0; t < T; ++t) row_of[static_cast<size_t>(slots + t)] = static_cast<int32_t>(t);

  struct Group {
    const ExpertWeights* e;
    int64_t at, n;
  };
  std::vector<Group> groups;
  for (int e = 0; e < experts; ++e) {
    int64_t n = first[static_cast<size_t>(e) + 1] - first[static_cast<size_t>(e)];
    if (n > 0) groups.push_back({&b.experts[static_cast<size_t>(e)], first[static_cast<size_t>(e)], n});
  }
  touched_experts += static_cast<int64_t>(groups.size());
  groups.push_back({&b.shared, slots, T});

  // Gate and up of a range of the inner width, then the activation of that range: no barrier between them.
  grow(&moe_g, (slots + T) * I);
  grow(&moe_u, (slots + T) * I);
  grow(&moe_out, (slots + T) * H);
  struct Piece {
    const Group* g;
    int64_t r0, r1;
  };
  auto cut = [&](int64_t out_rows, int64_t cols) {
    std::vector<Piece> pieces;
    for (const Group& g : groups) {
      int64_t step =
          std::clamp<int64_t>((262144 / std::max<int64_t>(1, cols * g.n) + 31) / 32 * 32, 32, 4096);
      for (int64_t r = 0; r < out_rows; r += step) pieces.push_back({&g, r, std::min(out_rows, r + step)});
    }
    return pieces;
  };
  auto up = cut(I, 2 * H);
  pool->run(static_cast<int64_t>(up.size()), [&](int64_t i, int) {
    const Piece& p = up[static_cast<size_t>(i)];
    const int32_t* take = row_of.data() + p.g->at;
    A* gy = moe_g.data() + p.g->at * I;
    A* uy = moe_u.data() + p.g->at * I;
    k.linear(p.g->e->w1, u.data(), H, take, p.g->n, p.r0, p.r1, gy, I, Out::kRounded);
    k.linear(p.g->e->w3, u.data(), H, take, p.g->n, p.r0, p.r1, uy, I, Out::kRounded);
    for (int64_t t = 0; t < p.g->n; ++t) {
      A* a = gy + t * I + p.r0;
      k.swiglu(a, uy + t * I + p.r0, p.r1 - p.r0,
               static_cast<double>(weight_of[static_cast<size_t>(p.g->at + t)]), c.swiglu_limit, a);
    }
  });
  auto down = cut(H, I);
  pool->run(static_cast<int64_t>(down.size()), [&](int64_t i, int) {
    const Piece& p = down[static_cast<size_t>(i)];
    k.linear(p.g->e->w2, moe_g.data() + p.g->at * I, I, nullptr, p.g->n, p.r0, p.r1,
             moe_out.data() + p.g->at * H, H, Out::kRounded);
  });
  for_rows(T, [&](int64_t t, int) {
    A* out = y.data() + t * H;
    const A* x = moe_out.data() + slot_of[static_cast<size_t>(t * K)] * H;
    std::copy(x, x + H, out);
    for (int64_t i = 1; i < K; ++i)
      k.add(moe_out.data() + slot_of[static_cast<size_t>(t * K + i)] * H, H, out);
    k.add(moe_out.data() + (slots + t) * H, H, out);
    k.round(out, H, out);
  });
}

#define DI_INSTANTIATE(A)                                                                    \
  template void Forward<A>::Impl::moe(const BlockWeights&, int, int, const RowSet*, int64_t, \
                                      std::vector<std::vector<int32_t>>*);
DI_INSTANTIATE(float)
DI_INSTANTIATE(double)
#undef DI_INSTANTIATE

}  // namespace deepinfer
