// Mixture of experts, expert by expert: every touched expert's weights are walked once per call whatever the
// number of rows. A row's sum runs over its experts in ascending id, then the shared expert, so it does not
// depend on the other rows. Source: model specification 4.
//
// Hand-outs to the threads, each ending in one barrier: (1) the input in the form of the dense products, many
// rows only; (2) router; (3) routing and the input in integers, many rows only; (4) gate, up and SwiGLU,
// which leave the activations in the form the next product reads; (5) down and the sum over experts. (4) is
// cut by expert and inner range, (5) by output range over all experts, so no result waits in memory for a
// sum. Two and three cannot be one: an expert is not known before its logits; nor four and five: an output
// needs the whole inner width.
#include <algorithm>
#include <functional>

#include "engine/forward_impl.h"
#include "engine/row_cuts.h"
#include "host/row_share.h"

namespace deepinfer {
namespace {

// Multiply-adds of a piece worth handing out.
constexpr int64_t kLeastPiece = int64_t{1} << 18;
// Values of a piece that should stay in the second-level cache: two per row of x and inner column in (4), one
// per pair and output in (5).
constexpr int64_t kPieceValues = 1 << 17;

// `k` distinct experts of `n` for row `t` of one call, ascending.
void made_up_experts(Routing routing, uint64_t call, int64_t t, int n, int k, int32_t* ids) {
  uint64_t at = static_cast<uint64_t>(t) * static_cast<uint64_t>(k) + call * 5;
  if (routing == Routing::kBalanced) {
    for (int i = 0; i < k; ++i)
      ids[i] = static_cast<int32_t>((at + static_cast<uint64_t>(i)) % static_cast<uint64_t>(n));
  } else {
    // A random one, then steps of random length that together stay below a whole turn.
    uint64_t x = (at + 1) * 0x9e3779b97f4a7c15ull;
    uint64_t id = (x >> 33) % static_cast<uint64_t>(n), most = static_cast<uint64_t>(n / k);
    for (int i = 0; i < k; ++i) {
      ids[i] = static_cast<int32_t>(id);
      x ^= x << 13, x ^= x >> 7, x ^= x << 17;
      id = (id + 1 + x % most) % static_cast<uint64_t>(n);
    }
  }
  std::sort(ids, ids + k);
}

}  // namespace

// Groups the (row, k) pairs by expert; the shared expert is one more group that holds every row.
template <typename A>
void Forward<A>::Impl::group_by_expert(const BlockWeights& b, int experts, int64_t K, int64_t T) {
  MoeScratch<A>& s = moe_scratch;
  int64_t pairs = T * K;
  s.first.assign(static_cast<size_t>(experts) + 1, 0);
  for (int64_t i = 0; i < pairs; ++i) ++s.first[static_cast<size_t>(s.ids[static_cast<size_t>(i)]) + 1];
  for (size_t e = 0; e < static_cast<size_t>(experts); ++e) s.first[e + 1] += s.first[e];
  s.groups.clear();
  for (size_t e = 0; e < static_cast<size_t>(experts); ++e) {
    if (s.first[e + 1] > s.first[e])
      s.groups.push_back({&b.experts[e], s.first[e], s.first[e + 1] - s.first[e]});
  }
  touched_experts += static_cast<int64_t>(s.groups.size());
  if (residency.bounded()) {
    s.touched.clear();
    for (const auto& g : s.groups) s.touched.push_back(static_cast<int32_t>(g.e - b.experts.data()));
    residency.use(b.experts, s.touched);
  }
  s.groups.push_back({&b.shared, pairs, T});

  grow(&s.row_of, pairs + T);
  grow(&s.weight_of, pairs + T);
  grow(&s.entry_of, pairs);
  for (int64_t i = 0; i < pairs; ++i) {
    // first[e] walks through the expert's entries and ends where the next expert's begin.
    int64_t at = s.first[static_cast<size_t>(s.ids[static_cast<size_t>(i)])]++;
    s.row_of[static_cast<size_t>(at)] = static_cast<int32_t>(i / K);
    s.weight_of[static_cast<size_t>(at)] = s.weights[static_cast<size_t>(i)];
    s.entry_of[static_cast<size_t>(i)] = at;
  }
  for (int64_t t = 0; t < T; ++t) {
    s.row_of[static_cast<size_t>(pairs + t)] = static_cast<int32_t>(t);
    s.weight_of[static_cast<size_t>(pairs + t)] = A(1);
  }
}

// Gate and up of a range of the inner width, then the activation of that range.
template <typename A>
void Forward<A>::Impl::expert_up(const typename MoeScratch<A>::Piece& p, int64_t pairs, int worker_id) {
  MoeScratch<A>& s = moe_scratch;
  const auto& g = *p.group;
  bool shared = g.at == pairs;
  int64_t width = p.end - p.begin;
  A* gate = worker_scratch(worker_id, 2 * g.n * width);
  A* up = gate + g.n * width;
  const PreparedRows<A>& x = shared ? s.dense : s.routed;
  PreparedRows<A>& act = shared ? s.dense_act : s.routed_act;
  const int32_t* take = shared ? nullptr : s.row_of.data() + g.at;
  x.product(g.e->w1, 0, take, g.n, p.begin, p.end, gate - p.begin, width, Out::kRounded);
  x.product(g.e->w3, 0, take, g.n, p.begin, p.end, up - p.begin, width, Out::kRounded);
  for (int64_t t = 0; t < g.n; ++t) {
    A* a = gate + t * width;
    k.swiglu(a, up + t * width, width, static_cast<double>(s.weight_of[static_cast<size_t>(g.at + t)]),
             c.swiglu_limit, a);
    act.put(shared ? t : g.at + t, a, p.begin, width);
  }
}

// Outputs [begin, end) of all rows.
template <typename A>
void Forward<A>::Impl::experts_down(int64_t begin, int64_t end, int64_t K, int64_t T, int worker_id) {
  MoeScratch<A>& s = moe_scratch;
  int64_t pairs = T * K, width = end - begin, H = c.hidden_size;
  A* parts = worker_scratch(worker_id, (pairs + T) * width);
  for (const auto& g : s.groups) {
    bool shared = g.at == pairs;
    const PreparedRows<A>& act = shared ? s.dense_act : s.routed_act;
    act.product(g.e->w2, shared ? 0 : g.at, nullptr, g.n, begin, end, parts + g.at * width - begin, width,
                Out::kRounded);
  }
  for (int64_t t = 0; t < T; ++t) {
    A* out = y.data() + t * H + begin;
    const A* x = parts + s.entry_of[static_cast<size_t>(t * K)] * width;
    std::copy(x, x + width, out);
    for (int64_t i = 1; i < K; ++i)
      k.add(parts + s.entry_of[static_cast<size_t>(t * K + i)] * width, width, out);
    k.add(parts + (pairs + t) * width, width, out);
    k.round(out, width, out);
  }
}

template <typename A>
void Forward<A>::Impl::moe(const BlockWeights& b, int experts, int top_k, const RowSet* rows, int64_t T,
                           std::vector<std::vector<int32_t>>* route_trace) {
  MoeScratch<A>& s = moe_scratch;
  int64_t H = c.hidden_size, I = c.moe_intermediate_size, K = top_k, pairs = T * K;
  if (T == 0) return;
  s.dense.start(k, b.shared.w1.format, H, T);
  s.routed.start(k, b.experts.front().w1.format, H, T);
  s.dense_act.start(k, b.shared.w2.format, I, T);
  s.routed_act.start(k, b.experts.front().w2.format, I, pairs);
  const auto fill_dense = [&](int64_t t, int) { s.dense.put(t, u.data() + t * H, 0, H); };
  for_rows(T, std::cref(fill_dense));

  grow(&s.logits, T * experts);
  // The router reads the shared expert's form where it can.
  bool same = form_of(b.gate.format) == form_of(b.shared.w1.format);
  constexpr int64_t kRouterRows = 32;
  work.bytes += matrix_bytes(b.gate, experts);
  work.macs += T * experts * H;
  const auto router = [&](int64_t i, int) {
    int64_t begin = i * kRouterRows, end = std::min<int64_t>(experts, begin + kRouterRows);
    if (same)
      s.dense.product(b.gate, 0, nullptr, T, begin, end, s.logits.data(), experts, Out::kFull);
    else
      k.linear(b.gate, u.data(), H, nullptr, T, begin, end, s.logits.data(), experts, Out::kFull);
  };
  for_rows((experts + kRouterRows - 1) / kRouterRows, std::cref(router));

  grow(&s.ids, pairs);
  grow(&s.weights, pairs);
  RouterParams params{
      experts,    top_k, static_cast<int>(c.scoring_func), c.norm_topk_prob, c.routed_scaling_factor,
      c.gate_temp};
  const auto choose = [&](int64_t t, int wk) {
    bool image = rows != nullptr &&
                 rows->spans[static_cast<size_t>(rows->span_of[static_cast<size_t>(t)])].sequence->in_image(
                     rows->position[static_cast<size_t>(t)]);
    const SmallTensor& bias = image ? b.gate_bias_vl : b.gate_bias;
    route(s.logits.data() + t * experts, bias.template data<A>(), params, worker_scratch(wk, experts),
          s.ids.data() + t * K, s.weights.data() + t * K);
    if (routing != Routing::kModel)
      made_up_experts(routing, routing_calls, t, experts, top_k, s.ids.data() + t * K);
    s.routed.put(t, u.data() + t * H, 0, H);
  };
  ++routing_calls;
  for_rows(T, std::cref(choose));
  if (route_trace != nullptr) {
    for (int64_t t = 0; t < T; ++t)
      route_trace->emplace_back(s.ids.begin() + t * K, s.ids.begin() + (t + 1) * K);
  }
  group_by_expert(b, experts, K, T);

  // Both lists node by node: rows of the inner width, then outputs.
  const int nodes = pool->groups();
  s.pieces.clear();
  s.ends.clear();
  for (int node = 0; node < nodes; ++node) {
    const RowShare part = row_share(I, node, nodes);
    RowCuts cuts{0, pool->group_threads(node), kLeastPiece, 0};
    for (const auto& g : s.groups) cuts.left += 2 * (part.end - part.begin) * g.n * H;
    for (const auto& g : s.groups) {
      cuts.most_rows = std::max<int64_t>(128, kPieceValues / (2 * g.n) / 32 * 32);
      for (int64_t r = part.begin; r < part.end; r = s.pieces.back().end)
        s.pieces.push_back({&g, r, r + cuts.next(part.end - r, 2 * g.n * H, 32)});
    }
    s.ends.push_back(static_cast<int64_t>(s.pieces.size()));
  }
  const auto up = [&](int64_t i, int wk) { expert_up(s.pieces[static_cast<size_t>(i)], pairs, wk); };
  for_pieces(s.ends, std::cref(up));

  s.pieces.clear();
  s.ends.clear();
  for (int node = 0; node < nodes; ++node) {
    const RowShare part = row_share(H, node, nodes);
    RowCuts cuts{(part.end - part.begin) * (pairs + T) * I, pool->group_threads(node), kLeastPiece,
                 std::max<int64_t>(32, kPieceValues / (pairs + T) / 32 * 32)};
    for (int64_t r = part.begin; r < part.end; r = s.pieces.back().end)
      s.pieces.push_back({nullptr, r, r + cuts.next(part.end - r, (pairs + T) * I, 32)});
    s.ends.push_back(static_cast<int64_t>(s.pieces.size()));
  }
  const auto down = [&](int64_t i, int wk) {
    const auto& p = s.pieces[static_cast<size_t>(i)];
    experts_down(p.begin, p.end, K, T, wk);
  };
  for_pieces(s.ends, std::cref(down));
}

#define DI_INSTANTIATE(A)                                                                        \
  template void Forward<A>::Impl::group_by_expert(const BlockWeights&, int, int64_t, int64_t);   \
  template void Forward<A>::Impl::expert_up(const typename MoeScratch<A>::Piece&, int64_t, int); \
  template void Forward<A>::Impl::experts_down(int64_t, int64_t, int64_t, int64_t, int);         \
  template void Forward<A>::Impl::moe(const BlockWeights&, int, int, const RowSet*, int64_t,     \
                                      std::vector<std::vector<int32_t>>*);
DI_INSTANTIATE(float)
DI_INSTANTIATE(double)
#undef DI_INSTANTIATE

}  // namespace deepinfer
