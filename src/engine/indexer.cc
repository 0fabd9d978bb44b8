// The indexer: scores visible entries, keeps the best, publishes the candidate pool. The selection stays for
// the layers that reuse it. Source: model specification 3.4. Scores are fp32 (fp64 in math mode), ties go to
// the lower index.
#include <cmath>
#include <numeric>

#include "engine/forward_impl.h"

namespace deepinfer {
namespace {

// Entries of one work item; long contexts are scored in pieces so that one row can use every thread.
constexpr int64_t kPiece = 1024;
// Scores held at once, over all rows of a tile.
constexpr int64_t kTileScores = 1 << 24;

// The entries a row scores, as ascending runs [first, last).
struct Runs {
  std::vector<std::pair<int64_t, int64_t>> runs;
  int64_t total = 0;
  void add(int64_t first, int64_t last) {
    if (first >= last) return;
    if (!runs.empty() && runs.back().second == first)
      runs.back().second = last;
    else
      runs.push_back({first, last});
    total += last - first;
  }
  // Entry number of the i-th scored entry.
  int64_t entry(int64_t i) const {
    for (const auto& [a, b] : runs) {
      if (i < b - a) return a + i;
      i -= b - a;
    }
    DI_CHECK(false, "entry outside the scored runs");
  }
};

}  // namespace

template <typename A>
void Forward<A>::Impl::index_select(int l, const RowSet& rows) {
  const LayerRole& role = roles[static_cast<size_t>(l)];
  const CacheLayout::Source& src = layout.sources[static_cast<size_t>(role.kv_slot)];
  int64_t T = rows.size(), topk = c.index_topk, heads = c.index_n_heads, dim = c.index_head_dim,
          pairs = c.rotary_pairs();
  int64_t pool_entries_max = int64_t{c.candidate_topk_blocks} * c.candidate_block_size;
  grow(&selection, T * topk);
  grow(&selection_count, T);
  if (role.candidate_source) pool_blocks.assign(static_cast<size_t>(T), {});

  // Queries and head weights on their grids, and the queries in the form that scores many pieces.
  int64_t ready_bytes =
      k.index_prepared_bytes(layout.index.format, static_cast<int>(heads), static_cast<int>(dim));
  grow(&index_queries, T * ready_bytes);
  index_ready.assign(static_cast<size_t>(T), 0);
  A weight_scale = static_cast<A>(1.0 / std::sqrt(static_cast<double>(dim) * static_cast<double>(heads)));
  for_rows(T, [&](int64_t t, int wk) {
    auto* codes = reinterpret_cast<uint8_t*>(worker_scratch(wk, dim + 64));
    uint8_t* scales = codes + layout.index.code_bytes;
    for (int64_t h = 0; h < heads; ++h) {
      A* row = iq.data() + (t * heads + h) * dim;
      k.rope(row + dim - 2 * pairs, cos_comp.data() + t * pairs, sin_comp.data() + t * pairs,
             static_cast<int>(pairs), false);
      if (layout.index.format == RecordFormat::kRaw) continue;
      k.encode_record(layout.index.format, row, dim, codes, scales);
      k.decode_record(layout.index.format, codes, scales, dim, row);
    }
    A* wr = iw.data() + t * heads;
    for (int64_t h = 0; h < heads; ++h) wr[h] *= weight_scale;
    k.round(wr, heads, wr);
    if (ready_bytes > 0)
      index_ready[static_cast<size_t>(t)] =
          k.prepare_index(iq.data() + t * heads * dim, static_cast<int>(heads), static_cast<int>(dim),
                          index_queries.data() + t * ready_bytes);
  });

  // What each row has to score; a row whose entries all fit needs no scores unless it must publish a pool.
  std::vector<Runs> todo(static_cast<size_t>(T));
  std::vector<uint8_t> scored(static_cast<size_t>(T));
  for (int64_t t = 0; t < T; ++t) {
    Runs& r = todo[static_cast<size_t>(t)];
    int64_t visible = (rows.position[static_cast<size_t>(t)] + 1) / role.ratio;
    if (role.uses_pool && !pool_blocks[static_cast<size_t>(t)].empty()) {
      for (int32_t b : pool_blocks[static_cast<size_t>(t)]) {
        r.add(int64_t{b} * c.candidate_block_size,
              std::min(visible, (int64_t{b} + 1) * c.candidate_block_size));
      }
    } else {
      r.add(0, visible);
    }
    scored[static_cast<size_t>(t)] = r.total > topk || (role.candidate_source && visible > pool_entries_max);
    if (!scored[static_cast<size_t>(t)]) {
      int32_t* sel = selection.data() + t * topk;
      for (const auto& [a, b] : r.runs) {
        for (int64_t j = a; j < b; ++j) *sel++ = static_cast<int32_t>(j);
      }
      selection_count[static_cast<size_t>(t)] = static_cast<int32_t>(r.total);
    }
  }

  struct Piece {
    int64_t t, first, last, at;  // entries [first, last), scores from `at` of the tile buffer
  };
  std::vector<A> scores;
  for (int64_t t0 = 0; t0 < T;) {
    std::vector<Piece> pieces;
    std::vector<int64_t> start;
    std::vector<int64_t> members;
    int64_t total = 0, t1 = t0;
    for (; t1 < T; ++t1) {
      if (!scored[static_cast<size_t>(t1)]) continue;
      const Runs& r = todo[static_cast<size_t>(t1)];
      if (total > 0 && total + r.total > kTileScores) break;
      members.push_back(t1);
      start.push_back(total);
      for (const auto& [a, b] : r.runs) {
        for (int64_t j = a; j < b;) {
          int64_t stop = std::min(b, j + kPiece);
          pieces.push_back({t1, j, stop, total});
          total += stop - j;
          j = stop;
        }
      }
    }
    grow(&scores, total);
    work.bytes += total * (layout.index.code_bytes + layout.index.scale_bytes);
    work.macs += total * heads * dim;
    for_rows(static_cast<int64_t>(pieces.size()), [&](int64_t i, int) {
      const Piece& p = pieces[static_cast<size_t>(i)];
      const SequenceState& s =
          *rows.spans[static_cast<size_t>(rows.span_of[static_cast<size_t>(p.t)])].sequence;
      int nh = static_cast<int>(heads), nd = static_cast<int>(dim);
      A* out = scores.data() + p.at;
      // Keys lie back to back inside one cache block.
      for (int64_t j = p.first; j < p.last;) {
        int64_t e = j % src.entries, n = std::min(p.last - j, src.entries - e);
        const uint8_t* block = s.block_data(j / src.entries);
        const uint8_t* codes = block + src.index_codes + e * layout.index.code_bytes;
        const uint8_t* scales = block + src.index_scales + e * layout.index.scale_bytes;
        if (index_ready[static_cast<size_t>(p.t)] != 0)
          k.index_scores_prepared(index_queries.data() + p.t * ready_bytes, iw.data() + p.t * heads, nh, nd,
                                  codes, layout.index.code_bytes, scales, layout.index.scale_bytes, n, out);
        else
          k.index_scores(iq.data() + p.t * heads * dim, iw.data() + p.t * heads, nh, nd, layout.index.format,
                         codes, layout.index.code_bytes, scales, layout.index.scale_bytes, n, out);
        j += n;
        out += n;
      }
    });
    for_rows(static_cast<int64_t>(members.size()), [&](int64_t i, int wk) {
      int64_t t = members[static_cast<size_t>(i)];
      const Runs& r = todo[static_cast<size_t>(t)];
      const A* sc = scores.data() + start[static_cast<size_t>(i)];
      int32_t* scratch = worker_ints(wk, 2 * r.total);
      int32_t* sel = selection.data() + t * topk;
      int64_t n = select_topk(sc, r.total, topk, scratch, sel);
      for (int64_t j = 0; j < n; ++j) sel[j] = static_cast<int32_t>(r.entry(sel[j]));
      selection_count[static_cast<size_t>(t)] = static_cast<int32_t>(n);
      if (role.candidate_source && r.total > pool_entries_max) {
        auto* allowed = reinterpret_cast<uint8_t*>(scratch + r.total);
        candidate_pool(sc, r.total, c.candidate_topk_blocks, c.candidate_block_size, scratch, allowed);
        auto& blocks = pool_blocks[static_cast<size_t>(t)];
        for (int64_t j = 0; j < r.total; j += c.candidate_block_size) {
          if (allowed[j] != 0) blocks.push_back(static_cast<int32_t>(j / c.candidate_block_size));
        }
      }
    });
    t0 = t1;
  }
}

template <typename A>
std::vector<std::vector<int32_t>> Forward<A>::Impl::pool_entries(const RowSet& rows) const {
  std::vector<std::vector<int32_t>> out(static_cast<size_t>(rows.size()));
  for (int64_t t = 0; t < rows.size(); ++t) {
    int32_t visible = static_cast<int32_t>(rows.position[static_cast<size_t>(t)] + 1);
    auto& o_t = out[static_cast<size_t>(t)];
    const auto& blocks = pool_blocks[static_cast<size_t>(t)];
    if (blocks.empty()) {
      o_t.resize(static_cast<size_t>(visible));
      std::iota(o_t.begin(), o_t.end(), 0);
    }
    for (int32_t b : blocks) {
      for (int32_t j = b * c.candidate_block_size; j < std::min(visible, (b + 1) * c.candidate_block_size);
           ++j)
        o_t.push_back(j);
    }
  }
  return out;
}

#define DI_INSTANTIATE(A)                                           \
  template void Forward<A>::Impl::index_select(int, const RowSet&); \
  template std::vector<std::vector<int32_t>> Forward<A>::Impl::pool_entries(const RowSet&) const;
DI_INSTANTIATE(float)
DI_INSTANTIATE(double)
#undef DI_INSTANTIATE

}  // namespace deepinfer
