// A list of named results that can explain themselves: every value with its unit, its formula and the numbers
// put into it. Reports print it as a table or as JSON. Knows no formula. Threads: plain data.
#pragma once

#include <string>
#include <vector>

namespace deepinfer::sim {

struct SheetLine {
  std::string key;    // stable name for JSON
  std::string label;  // for a person
  double value = 0;
  std::string unit;
  std::string formula;  // in words and symbols
  std::string numbers;  // the same with the numbers in place
};
struct Sheet {
  std::string title;
  std::vector<SheetLine> lines;
  void add(std::string key, std::string label, double value, std::string unit, std::string formula,
           std::string numbers) {
    lines.push_back(
        {std::move(key), std::move(label), value, std::move(unit), std::move(formula), std::move(numbers)});
  }
  const SheetLine* find(const std::string& key) const {
    for (const SheetLine& l : lines) {
      if (l.key == key) return &l;
    }
    return nullptr;
  }
};

// A number for a table: thousands separated, as many decimals as it deserves.
std::string pretty(double value);
// One line per result; with `explain` the formula and its numbers below it.
std::string sheet_text(const Sheet& sheet, bool explain);

}  // namespace deepinfer::sim
