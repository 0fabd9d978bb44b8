// Cuts the weight rows of a list of products into pieces that the threads take one after the other: long at
// first, because a walk through memory starts in rows that nobody fetched ahead, and shorter towards the end,
// so that all threads finish together. Knows nothing of what a row costs but the number it is given. A cut
// never changes a bit: an output element is one dot product.
#pragma once

#include <algorithm>
#include <cstdint>

namespace deepinfer {

struct RowCuts {
  int64_t left;       // cost of all rows not yet cut
  int64_t threads;    // that take the pieces
  int64_t least;      // cost of a piece worth handing out
  int64_t most_rows;  // of a piece: what its results may occupy

  // Rows of the next piece, out of `rows` rows of `cost` each that the list is at: a multiple of `unit` (what
  // a kernel takes at once) or all of them. REQUIRES rows >= 1, cost >= 1. Takes the piece off `left`.
  int64_t next(int64_t rows, int64_t cost, int64_t unit) {
    int64_t target = std::max(least, left / (2 * threads));
    int64_t take = std::clamp((target / cost + unit / 2) / unit * unit, unit, std::max(unit, most_rows));
    // A rest too small to hand out goes along.
    if (rows - take < unit || (rows - take) * cost < least / 2)
      take = std::min(rows, std::max(take, most_rows));
    take = std::min(take, rows);
    left -= take * cost;
    return take;
  }
};

}  // namespace deepinfer
