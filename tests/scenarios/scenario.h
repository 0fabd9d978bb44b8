// The language of the .scn files: events and the plans they must lead to, one per line. docs/policies.md has
// the grammar. A scenario drives the real policies; it knows no engine. Errors carry file and line. Threads:
// one scenario, one thread.
#pragma once

#include <string>
#include <vector>

namespace deepinfer {

struct ScenarioOutcome {
  std::vector<std::string> problems;  // "file:line: what"; empty: the scenario holds
  int plans = 0;                      // plans compared
  std::string filled;                 // the text with every plan's expectation replaced by what happened
};
// Parses and runs the text of one file. `name` stands in the messages. With `fill` plans are not compared.
ScenarioOutcome run_scenario(const std::string& name, const std::string& text, bool fill = false);

}  // namespace deepinfer
