// Charts and pages: self-contained, deterministic, and safe against odd data.
#include "sim/chart.h"

#include <gtest/gtest.h>

#include <cmath>

#include "sim/economics_page.h"

namespace deepinfer::sim {
namespace {

TEST(Chart, SurvivesAnyData) {
  Chart c{"t <&>", "x", "y", {}, false, false, true};
  EXPECT_NE(chart_svg(c).find("no data"), std::string::npos);
  EXPECT_NE(chart_svg(c).find("t &lt;&amp;&gt;"), std::string::npos);
  c.series = {{"a", {{1, NAN}, {2, INFINITY}, {3, 4}}}, {"b", {}}};
  std::string svg = chart_svg(c);
  EXPECT_EQ(svg.find("nan"), std::string::npos);
  EXPECT_EQ(svg.find("inf"), std::string::npos);
  c.log_x = true;
  c.series = {{"a", {{0, 1}, {10, 2}, {1000, -3}}}};
  EXPECT_EQ(chart_svg(c).find("nan"), std::string::npos);
  c.series = {{"a", {{5, 7}}}};
  EXPECT_EQ(chart_svg(c), chart_svg(c));
  EXPECT_NE(bars_svg("b", "s", {{"x", 3}, {"y", NAN}, {"z", -1}}).find("</svg>"), std::string::npos);
}

TEST(EconomicsPage, NeedsNothingFromOutsideAndNamesEveryResult) {
  const std::string page = economics_page(reading_a(), {});
  EXPECT_EQ(page.find("src="), std::string::npos);
  EXPECT_EQ(page.find("href="), std::string::npos);
  const size_t script = page.find("<script>");
  ASSERT_NE(script, std::string::npos);
  for (const Sheet& s : {factory_sheet("", reading_a()), cost_sheet("", {})}) {
    for (const SheetLine& l : s.lines) {
      EXPECT_NE(page.find("id=\"r_" + l.key + "\""), std::string::npos) << l.key;
      EXPECT_NE(page.find(l.key, script), std::string::npos) << l.key << " is not computed by the page";
    }
  }
}

}  // namespace
}  // namespace deepinfer::sim
