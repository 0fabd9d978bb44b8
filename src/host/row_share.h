// Which rows of a matrix belong to which memory node: every matrix is cut by rows into as many parts as there
// are nodes, so each node reads its part of every product, whatever experts are asked for. The one rule that
// placing weights and handing out work share. Source: issue "kernels", memory and threads.
#pragma once

#include <cstdint>

namespace deepinfer {

struct RowShare {
  int64_t begin = 0, end = 0;
};

// Part `part` of `parts`; edges are multiples of 32, which every kernel takes as a unit. The parts are
// disjoint, ascending and cover [0, rows); small matrices leave some empty. REQUIRES 0 <= part < parts.
inline RowShare row_share(int64_t rows, int part, int parts) {
  const auto edge = [&](int i) { return i == parts ? rows : rows * i / parts / 32 * 32; };
  return {edge(part), edge(part + 1)};
}

}  // namespace deepinfer
