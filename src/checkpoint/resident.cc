// See checkpoint/resident.h.
#include "checkpoint/resident.h"

#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <functional>

#include "host/clock.h"
#include "host/limits.h"
#include "host/mapped_file.h"
#include "host/row_share.h"

namespace deepinfer {
namespace {

constexpr int64_t kPage = 4096, kLine = 64;
constexpr int64_t kHugePage = int64_t{2} << 20;
constexpr int64_t kPieceBytes = int64_t{4} << 20;  // of one hand-out
constexpr int64_t kUnit = 32;                      // rows that share a row of FP8 scales
// What must stay free beside the copy, of what is usable.
constexpr double kRoom = 0.05;

using Visit = std::function<void(MatrixView*)>;

void visit_block(BlockWeights& b, const Visit& visit) {
  for (MatrixView* m : {&b.hc_attn.fn, &b.hc_ffn.fn, &b.wq_a, &b.wq_b, &b.wkv, &b.wo_a, &b.wo_b, &b.gate})
    visit(m);
  const auto expert = [&](ExpertWeights& e) {
    for (MatrixView* m : {&e.w1, &e.w3, &e.w2}) visit(m);
  };
  for (ExpertWeights& e : b.experts) expert(e);
  expert(b.shared);
  if (b.compressor)
    for (MatrixView* m : {&b.compressor->wkv, &b.compressor->wgate, &b.compressor->wk}) visit(m);
  if (b.indexer)
    for (MatrixView* m : {&b.indexer->wq_b, &b.indexer->weights_proj}) visit(m);
  if (b.engram) visit(&b.engram->wkv);
}

// Every matrix that a step multiplies by, each once.
void visit_matrices(ModelWeights& w, const Visit& visit_any) {
  const Visit visit = [&](MatrixView* m) {
    if (!m->empty()) visit_any(m);
  };
  for (BlockWeights& b : w.layers) visit_block(b, visit);
  for (BlockWeights& b : w.mtp) visit_block(b, visit);
  for (MatrixView* m : {&w.draft.main_proj, &w.draft.markov_head, &w.draft.confidence, &w.head}) visit(m);
}

int64_t rounded(int64_t bytes, int64_t unit) {
  return (bytes + unit - 1) / unit * unit;
}

struct Arena {
  uint8_t* data = nullptr;
  size_t bytes = 0;
  std::shared_ptr<const void> before;  // what the weights stood on: tables still do
  Arena() = default;
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;
  ~Arena() {
    if (data != nullptr) ::munmap(data, bytes);
  }
};

struct Move {
  MatrixView* view;
  int64_t data, scales;  // offsets in the arena
};

// Where everything goes: large matrices begin with a page, so that a page is of one matrix.
std::vector<Move> lay_out(ModelWeights& w, int64_t* bytes) {
  std::vector<Move> moves;
  int64_t at = 0;
  const auto take = [&](int64_t size) {
    at = rounded(at, size >= 16 * kPage ? kPage : kLine);
    const int64_t begin = at;
    at += size;
    return begin;
  };
  visit_matrices(w, [&](MatrixView* m) {
    const int64_t data = take(code_bytes(*m, m->rows));
    moves.push_back({m, data, take(scale_bytes(*m, m->rows))});
  });
  *bytes = rounded(at, kHugePage);
  return moves;
}

struct Piece {
  const Move* move;
  int64_t row0, row1;
};

// Pieces of a few megabytes, those of a memory node together.
std::vector<Piece> cut(const std::vector<Move>& moves, int nodes, std::vector<int64_t>* ends) {
  std::vector<Piece> pieces;
  for (int node = 0; node < nodes; ++node) {
    for (const Move& m : moves) {
      const RowShare share = row_share(m.view->rows, node, nodes);
      const int64_t rows =
          std::max(kUnit, kPieceBytes / std::max<int64_t>(1, code_bytes(*m.view, 1)) / kUnit * kUnit);
      for (int64_t r = share.begin; r < share.end; r += rows)
        pieces.push_back({&m, r, std::min(share.end, r + rows)});
    }
    ends->push_back(static_cast<int64_t>(pieces.size()));
  }
  return pieces;
}

}  // namespace

int64_t resident_bytes(const ModelWeights& weights) {
  int64_t bytes = 0;
  // Nothing is changed: the visitor serves both.
  visit_matrices(const_cast<ModelWeights&>(weights),
                 [&](MatrixView* m) { bytes += matrix_bytes(*m, m->rows); });
  return bytes;
}

Result<ResidentReport> make_resident(ModelWeights* w, ThreadPool* pool) {
  if (w->expert_memory_bytes > 0)
    return error(Code::kInvalidArgument,
                 "a bound on the experts' memory needs mapped weights: they cannot be copied as well");
  const int64_t begun = now_ns();
  int64_t bytes = 0;
  const std::vector<Move> moves = lay_out(*w, &bytes);
  const int64_t usable = usable_memory_bytes(read_memory_info(), read_cgroup_limits());
  if (usable > 0 && static_cast<double>(bytes) > static_cast<double>(usable) * (1 - kRoom))
    return error(Code::kResourceExhausted,
                 "copying the weights takes {} MB and {} MB are usable: leave them mapped", bytes >> 20,
                 usable >> 20);
  auto arena = std::make_shared<Arena>();
  void* at =
      ::mmap(nullptr, static_cast<size_t>(bytes), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (at == MAP_FAILED)
    return error(Code::kResourceExhausted, "the system gives no {} MB for the weights: {}", bytes >> 20,
                 std::strerror(errno));
  arena->data = static_cast<uint8_t*>(at);
  arena->bytes = static_cast<size_t>(bytes);
  ::madvise(at, arena->bytes, MADV_HUGEPAGE);  // a wish
  arena->before = w->storage;

  std::vector<int64_t> ends;
  const std::vector<Piece> pieces = cut(moves, pool->groups(), &ends);
  pool->run_grouped(
      ends,
      [&](int64_t i, int) {
        const Piece& p = pieces[static_cast<size_t>(i)];
        const MatrixView& m = *p.move->view;
        const int64_t at0 = code_bytes(m, p.row0), s0 = scale_bytes(m, p.row0), s1 = scale_bytes(m, p.row1);
        const auto* from = static_cast<const uint8_t*>(m.data) + at0;
        const auto size = static_cast<size_t>(code_bytes(m, p.row1) - at0);
        const bool mapped = w->is_mapped(from, size);
        if (mapped) advise_mapping(MapAdvice::kWillNeed, from, size);
        std::memcpy(arena->data + p.move->data + at0, from, size);
        if (mapped) advise_mapping(MapAdvice::kDontNeed, from, size);
        if (s1 > s0)
          std::memcpy(arena->data + p.move->scales + s0, m.scales + s0, static_cast<size_t>(s1 - s0));
      },
      ThreadPool::Taking::kOwn);
  ::mprotect(at, arena->bytes, PROT_READ);
  for (const Move& m : moves) {
    m.view->data = arena->data + m.data;
    if (m.view->scales != nullptr) m.view->scales = arena->data + m.scales;
  }
  w->storage = std::move(arena);
  return ResidentReport{resident_bytes(*w), now_ns() - begun};
}

}  // namespace deepinfer
