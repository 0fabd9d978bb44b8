// One description of the settings: every way of giving one, and the pages written from it.
#include <gtest/gtest.h>

#include <set>

#include "apps/serve_config.h"
#include "edge/serve/metrics.h"
#include "host/files.h"

namespace deepinfer {
namespace {

const Setting& setting(const std::string& name) {
  for (const Setting& s : serve_settings()) {
    if (s.name == name) return s;
  }
  ADD_FAILURE() << name;
  return serve_settings()[0];
}

TEST(ServeConfig, EverySettingIsReadByEachWay) {
  std::set<std::string> flags, variables;
  for (const Setting& s : serve_settings()) {
    EXPECT_TRUE(flags.insert(flag_name(s)).second);
    EXPECT_TRUE(variables.insert(variable_name(s)).second);
    // A value unlike the default, as text, as a variable and as TOML.
    ServeConfig defaults, text, variable, file;
    std::string value = s.kind == "flag"      ? (s.get(defaults) == true ? "false" : "true")
                        : s.kind == "integer" ? "7"
                        : s.kind == "number"  ? "0.5"
                        : s.kind == "list"    ? "x,y"
                                              : "x";
    std::string toml = s.kind == "list" ? "[\"x\", \"y\"]" : s.kind == "text" ? "\"x\"" : value;
    ASSERT_TRUE(set_from_text(s, value, "flag", &text).ok());
    ASSERT_TRUE(apply_environment(
                    [&](const char* n) { return variable_name(s) == n ? value.c_str() : nullptr; }, &variable)
                    .ok());
    ASSERT_TRUE(apply_toml(s.name + " = " + toml + "\n", "f", &file).ok()) << s.name;
    EXPECT_NE(s.get(text), s.get(defaults)) << s.name;
    EXPECT_EQ(s.get(text), s.get(variable)) << s.name;
    EXPECT_EQ(s.get(text), s.get(file)) << s.name;
  }
}

TEST(ServeConfig, WhatIsWrongIsNamed) {
  ServeConfig c;
  auto message = [](const Status& s) { return s.message(); };
  EXPECT_NE(message(apply_toml("max_runing = 3\n", "f.toml", &c)).find("did you mean 'max_running'"),
            std::string::npos);
  EXPECT_NE(message(apply_toml("\n\nmax_running = \"x\"\n", "f.toml", &c)).find("f.toml:3"),
            std::string::npos);
  EXPECT_NE(message(apply_toml("a = [\n", "f.toml", &c)).find("f.toml"), std::string::npos);
  EXPECT_FALSE(apply_toml("max_running = -1\n", "f", &c).ok());
  EXPECT_FALSE(set_from_text(setting("speculate"), "maybe", "x", &c).ok());
  EXPECT_FALSE(set_from_text(setting("max_running"), "12x", "x", &c).ok());
  EXPECT_FALSE(set_from_text(setting("max_running"), "99999999999999999999", "x", &c).ok());
  EXPECT_NE(explain_unknown_flag("--max-num-seqs=3").find("--max-running"), std::string::npos);
  EXPECT_NE(explain_unknown_flag("--enable-expert-parallel").find("not a flag"), std::string::npos);
  EXPECT_NE(explain_unknown_flag("--listn").find("--listen"), std::string::npos);
  EXPECT_NE(explain_unknown_flag("--zzzzzzzzzz").find("--help"), std::string::npos);
  const char* entries[] = {"PATH=/bin", "DEEPINFER_MODEL=x", "DEEPINFER_PRT=1", nullptr};
  EXPECT_EQ(unknown_variables(entries), std::vector<std::string>{"DEEPINFER_PRT"});
}

TEST(ServeConfig, CombinationsAreChecked) {
  ServeConfig c;
  EXPECT_TRUE(validate(c).ok());
  c.tls_key = "k";
  EXPECT_FALSE(validate(c).ok());
  c = {};
  c.engine = "other";
  EXPECT_NE(validate(c).message().find("synthetic"), std::string::npos);
  c = {};
  c.listen.clear();
  EXPECT_FALSE(validate(c).ok());
  c = {};
  c.api_key = "secret";
  EXPECT_EQ(config_json(c)["api_key"], "(hidden)");
}

TEST(ServeConfig, ThePagesOfTheManualAreThese) {
  auto page = [](const char* name) {
    auto text = read_file(std::string(DEEPINFER_SOURCE_DIR "/docs/") + name, 1 << 20);
    EXPECT_TRUE(text.ok());
    return text.ok() ? *text : std::string();
  };
  EXPECT_EQ(page("configuration.md"), configuration_page())
      << "write it anew with deepinfer serve --print-docs configuration";
  EXPECT_EQ(page("metrics.md"), metrics_page()) << "write it anew with deepinfer serve --print-docs metrics";
}

}  // namespace
}  // namespace deepinfer
