// Axes with round ticks, lines, bars, and the page's style.
#include "sim/chart.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

namespace deepinfer::sim {
namespace {

constexpr double kWidth = 640, kHeight = 320, kLeft = 64, kRight = 16, kTop = 32, kBottom = 44;
constexpr const char* kColours[] = {"#4fb3ff", "#ffb454", "#7ee081", "#ff7a90", "#c7a6ff", "#5fe0d0"};

const char* colour(size_t i) {
  return kColours[i % std::size(kColours)];
}

std::string number(double v) {
  const double size = std::fabs(v);
  if (size >= 1e9) return fmt::format("{:.3g}G", v / 1e9);
  if (size >= 1e6) return fmt::format("{:.3g}M", v / 1e6);
  if (size >= 1e4) return fmt::format("{:.3g}k", v / 1e3);
  return fmt::format("{:.4g}", v);
}

// A step of 1, 2 or 5 times a power of ten that cuts a span into about five.
double tick_step(double span) {
  if (!(span > 0)) return 1;
  const double raw = span / 5, power = std::pow(10, std::floor(std::log10(raw)));
  for (double m : {1.0, 2.0, 5.0}) {
    if (raw <= m * power) return m * power;
  }
  return 10 * power;
}

struct Axis {
  double low = 0, high = 1, from = 0, to = 1;
  bool log = false;
  double at(double v) const {
    if (log)
      return from + (to - from) * (std::log10(v) - std::log10(low)) / (std::log10(high) - std::log10(low));
    return from + (to - from) * (v - low) / (high - low);
  }
  std::vector<double> ticks() const {
    std::vector<double> out;
    if (log) {
      for (double v = std::pow(10, std::ceil(std::log10(low) - 1e-9)); v <= high * 1.0001; v *= 10)
        out.push_back(v);
      if (out.size() < 2) out = {low, high};
    } else {
      const double step = tick_step(high - low);
      for (double v = std::ceil(low / step - 1e-9) * step; v <= high + step * 1e-6; v += step) {
        out.push_back(std::fabs(v) < step * 1e-9 ? 0 : v);
      }
    }
    return out;
  }
};

std::string svg_open(const std::string& title) {
  return fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {0} {1}\" width=\"{0}\" height=\"{1}\" "
      "role=\"img\" "
      "font-family=\"sans-serif\" font-size=\"11\"><rect width=\"{0}\" height=\"{1}\" fill=\"#10151c\"/>"
      "<text x=\"{2}\" y=\"20\" fill=\"#e6edf3\" font-size=\"13\">{3}</text>\n",
      kWidth, kHeight, kLeft, html_escape(title));
}

bool drawable(const Chart& c, const std::pair<double, double>& p) {
  return std::isfinite(p.first) && std::isfinite(p.second) && (!c.log_x || p.first > 0);
}

std::string axes_svg(const Chart& c, const Axis& x, const Axis& y) {
  std::string out;
  for (double v : y.ticks()) {
    out += fmt::format(
        "<line x1=\"{0}\" x2=\"{1}\" y1=\"{2:.1f}\" y2=\"{2:.1f}\" stroke=\"#26303b\"/><text x=\"{3}\" "
        "y=\"{4:.1f}\" "
        "fill=\"#8b98a5\" text-anchor=\"end\">{5}</text>\n",
        kLeft, kWidth - kRight, y.at(v), kLeft - 6, y.at(v) + 4, number(v));
  }
  for (double v : x.ticks()) {
    out += fmt::format("<text x=\"{:.1f}\" y=\"{}\" fill=\"#8b98a5\" text-anchor=\"middle\">{}</text>\n",
                       x.at(v), kHeight - kBottom + 16, number(v));
  }
  out += fmt::format("<text x=\"{}\" y=\"{}\" fill=\"#8b98a5\" text-anchor=\"middle\">{}</text>\n",
                     (kLeft + kWidth - kRight) / 2, kHeight - 8, html_escape(c.x_label));
  out += fmt::format(
      "<text x=\"14\" y=\"{0}\" fill=\"#8b98a5\" text-anchor=\"middle\" transform=\"rotate(-90 14 {0})\">"
      "{1}</text>\n",
      (kTop + kHeight - kBottom) / 2, html_escape(c.y_label));
  return out;
}

std::string series_svg(const Chart& c, size_t i, const Axis& x, const Axis& y) {
  const Series& s = c.series[i];
  std::string path, dots;
  for (const auto& p : s.points) {
    if (!drawable(c, p)) continue;
    path += fmt::format("{}{:.1f} {:.1f}", path.empty() ? "M" : " L", x.at(p.first), y.at(p.second));
    if (c.points_only || s.points.size() <= 40) {
      dots += fmt::format("<circle cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"2.5\" fill=\"{}\"/>", x.at(p.first),
                          y.at(p.second), colour(i));
    }
  }
  std::string out;
  if (!c.points_only)
    out = fmt::format("<path d=\"{}\" fill=\"none\" stroke=\"{}\" stroke-width=\"1.6\"/>", path, colour(i));
  out += dots;
  out += fmt::format("<text x=\"{}\" y=\"{}\" fill=\"{}\" text-anchor=\"end\">{}</text>\n", kWidth - kRight,
                     kTop + 12 + 14 * static_cast<double>(i), colour(i), html_escape(s.name));
  return out;
}

}  // namespace

std::string html_escape(const std::string& text) {
  std::string out;
  for (char ch : text) {
    switch (ch) {
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '&':
        out += "&amp;";
        break;
      case '"':
        out += "&quot;";
        break;
      default:
        out += ch;
    }
  }
  return out;
}

std::string chart_svg(const Chart& c) {
  std::string out = svg_open(c.title);
  const double inf = std::numeric_limits<double>::infinity();
  double x_low = inf, x_high = -inf, y_low = c.from_zero ? 0 : inf, y_high = -inf;
  for (const Series& s : c.series) {
    for (const auto& p : s.points) {
      if (!drawable(c, p)) continue;
      x_low = std::min(x_low, p.first);
      x_high = std::max(x_high, p.first);
      y_low = std::min(y_low, p.second);
      y_high = std::max(y_high, p.second);
    }
  }
  if (!(x_low <= x_high)) {
    return out +
           fmt::format("<text x=\"{}\" y=\"{}\" fill=\"#8b98a5\">no data</text></svg>\n", kLeft, kHeight / 2);
  }
  if (x_high <= x_low) x_high = c.log_x ? x_low * 10 : x_low + 1;
  if (y_high <= y_low) y_high = y_low + 1;
  y_high += (y_high - y_low) * 0.05;
  const Axis x{x_low, x_high, kLeft, kWidth - kRight, c.log_x},
      y{y_low, y_high, kHeight - kBottom, kTop, false};
  out += axes_svg(c, x, y);
  for (size_t i = 0; i < c.series.size(); ++i) out += series_svg(c, i, x, y);
  return out + "</svg>\n";
}

std::string bars_svg(const std::string& title, const std::string& unit, const std::vector<Bar>& bars) {
  std::string out = svg_open(title);
  double most = 0;
  for (const Bar& b : bars) most = std::isfinite(b.value) ? std::max(most, b.value) : most;
  const double row =
      bars.empty() ? 1 : std::min(30.0, (kHeight - kTop - 16) / static_cast<double>(bars.size()));
  const double left = 190, room = kWidth - left - 90;
  for (size_t i = 0; i < bars.size(); ++i) {
    const double y = kTop + 8 + row * static_cast<double>(i);
    const double value = std::isfinite(bars[i].value) ? bars[i].value : 0;
    const double width = most > 0 ? std::max(0.0, room * value / most) : 0;
    out += fmt::format(
        "<text x=\"{}\" y=\"{:.1f}\" fill=\"#e6edf3\" text-anchor=\"end\">{}</text><rect x=\"{}\" "
        "y=\"{:.1f}\" "
        "width=\"{:.1f}\" height=\"{:.1f}\" fill=\"{}\"/><text x=\"{:.1f}\" y=\"{:.1f}\" fill=\"#8b98a5\">{} "
        "{}</text>\n",
        left - 8, y + row * 0.6, html_escape(bars[i].name), left, y, width, row * 0.7, colour(i),
        left + width + 6, y + row * 0.6, number(bars[i].value), html_escape(unit));
  }
  return out + "</svg>\n";
}

std::string html_table(const std::vector<std::string>& head,
                       const std::vector<std::vector<std::string>>& rows) {
  std::string out = "<table><tr>";
  for (const std::string& h : head) out += "<th>" + html_escape(h) + "</th>";
  out += "</tr>\n";
  for (const auto& row : rows) {
    out += "<tr>";
    for (const std::string& cell : row) out += "<td>" + html_escape(cell) + "</td>";
    out += "</tr>\n";
  }
  return out + "</table>\n";
}

std::string html_page(const std::string& title, const std::string& body) {
  return "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><meta name=\"viewport\" "
         "content=\"width=device-width\"><title>" +
         html_escape(title) +
         "</title><style>\n"
         "body{background:#0b0f14;color:#e6edf3;font:14px/1.5 system-ui,sans-serif;margin:2rem "
         "auto;max-width:1360px;"
         "padding:0 1rem}\n"
         "h1{font-size:1.3rem}h2{font-size:1.05rem;color:#8b98a5}table{border-collapse:collapse;margin:.5rem "
         "0 1.5rem}\n"
         "td,th{padding:.15rem .8rem;border-bottom:1px solid "
         "#26303b;text-align:right}td:first-child,th:first-child"
         "{text-align:left}\n"
         "input{background:#10151c;color:#e6edf3;border:1px solid "
         "#26303b;width:9rem;text-align:right;padding:.1rem .3rem}\n"
         "svg{margin:.4rem;max-width:100%}code{color:#ffb454}\n</style></head><body>\n<h1>" +
         html_escape(title) + "</h1>\n" + body + "</body></html>\n";
}

}  // namespace deepinfer::sim
