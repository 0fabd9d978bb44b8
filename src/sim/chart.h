// Charts as SVG text and pages that need nothing from outside: one HTML file with its style and its charts
// in it. The bytes depend on the data alone. Knows nothing of what is drawn. Threads: pure functions.
#pragma once

#include <string>
#include <utility>
#include <vector>

namespace deepinfer::sim {

struct Series {
  std::string name;
  std::vector<std::pair<double, double>> points;  // x ascending
};
struct Chart {
  std::string title, x_label, y_label;
  std::vector<Series> series;
  bool log_x = false;
  bool points_only = false;  // no lines between them
  bool from_zero = true;     // the y axis begins at 0
};
// 640 by 320. Without points it says so. Values that are not finite are left out.
std::string chart_svg(const Chart& chart);
struct Bar {
  std::string name;
  double value = 0;
};
std::string bars_svg(const std::string& title, const std::string& unit, const std::vector<Bar>& bars);

std::string html_escape(const std::string& text);
// A whole page around a body.
std::string html_page(const std::string& title, const std::string& body);
std::string html_table(const std::vector<std::string>& head,
                       const std::vector<std::vector<std::string>>& rows);

}  // namespace deepinfer::sim
