// The cuts of row_cuts.h: whole units, all rows once, long first, small at the end.
#include "engine/row_cuts.h"

#include <gtest/gtest.h>

#include <vector>

namespace deepinfer {
namespace {

std::vector<int64_t> cut(RowCuts c, int64_t rows, int64_t cost, int64_t unit) {
  std::vector<int64_t> pieces;
  for (int64_t left = rows; left > 0; left -= pieces.back()) pieces.push_back(c.next(left, cost, unit));
  return pieces;
}

TEST(RowCuts, PiecesAreWholeUnitsLongFirstAndCoverAllRows) {
  for (int64_t threads : {1, 2, 7, 64}) {
    for (int64_t rows : {1, 31, 32, 33, 1280, 2304, 32768}) {
      for (int64_t cost : {160, 5120, 5120 * 48, 5120 * 4096}) {
        std::vector<int64_t> p = cut({rows * cost, threads, 1 << 18, 1024}, rows, cost, 32);
        int64_t sum = 0;
        for (size_t i = 0; i < p.size(); ++i) {
          sum += p[i];
          EXPECT_LE(p[i], 1024);
          if (i + 1 < p.size()) {
            EXPECT_EQ(p[i] % 32, 0);
          }
          if (i > 0 && i + 1 < p.size()) {
            EXPECT_LE(p[i], p[i - 1]);
          }
        }
        EXPECT_EQ(sum, rows);
      }
    }
  }
}

// The last pieces are what threads wait for each other: no more than a piece worth handing out, or a unit.
TEST(RowCuts, TheEndIsInSmallPieces) {
  std::vector<int64_t> p = cut({2304 * 5120, 2, 1 << 18, 1024}, 2304, 5120, 32);
  EXPECT_EQ(p.front(), 576);
  EXPECT_LE(p.back() * 5120, 2 << 18);
  EXPECT_LE(p.size(), 12u);
}

}  // namespace
}  // namespace deepinfer
