// Types of arguments as schemas state them, and schemas made to keep a reader busy.
#include "edge/argument_types.h"

#include <gtest/gtest.h>

#include <chrono>

#include "edge/request_test_support.h"

namespace deepinfer {
namespace {

char type(const char* schema) {
  Json root =
      parse_json(R"({"type":"object","$defs":{"s":{"type":"string"},"n":{"enum":[1,2]},"a/b~":{"const":"x"},
    "loop":{"$ref":"#/$defs/loop"}}})")
          .value();
  ArgumentType t = argument_type(parse_json(schema).value(), root);
  return t == ArgumentType::kString ? 's' : t == ArgumentType::kJson ? 'j' : '?';
}

TEST(ArgumentTypes, Schemas) {
  for (auto [schema, want] :
       std::vector<std::pair<const char*, char>>{{R"({"type":"string"})", 's'},
                                                 {R"({"type":"integer"})", 'j'},
                                                 {R"({"type":"object"})", 'j'},
                                                 {R"({"type":["string"]})", 's'},
                                                 {R"({"type":["string","null"]})", '?'},
                                                 {R"({"type":["integer","null"]})", 'j'},
                                                 {R"({"enum":["a","b"]})", 's'},
                                                 {R"({"enum":["a",1]})", '?'},
                                                 {R"({"enum":[]})", '?'},
                                                 {R"({"const":5})", 'j'},
                                                 {R"({"anyOf":[{"type":"string"},{"const":"x"}]})", 's'},
                                                 {R"({"anyOf":[{"type":"string"},{"type":"null"}]})", '?'},
                                                 {R"({"oneOf":[{"type":"array"},{"type":"null"}]})", 'j'},
                                                 {R"({"allOf":[{"minLength":1},{"type":"string"}]})", 's'},
                                                 {R"({"$ref":"#/$defs/s"})", 's'},
                                                 {R"({"$ref":"#/$defs/n"})", 'j'},
                                                 {R"({"$ref":"#/$defs/a~1b~0"})", 's'},
                                                 {R"({"$ref":"#"})", 'j'},
                                                 {R"({"$ref":"#/$defs/none"})", '?'},
                                                 {R"({"$ref":"http://x/y"})", '?'},
                                                 {R"({"$ref":"#/$defs/loop"})", '?'},
                                                 {R"({"$ref":5})", '?'},
                                                 {R"({"description":"anything"})", '?'},
                                                 {"true", '?'},
                                                 {"{}", '?'},
                                                 {"5", '?'}}) {
    EXPECT_EQ(type(schema), want) << schema;
  }
}

TEST(ArgumentTypes, AlternativesDoNotMultiply) {
  Json root = {{"type", "object"}, {"$defs", Json::object()}};
  for (int i = 0; i < 8; ++i) {
    Json list = Json::array();
    for (int k = 0; k < 60; ++k) list.push_back({{"$ref", "#/$defs/d" + std::to_string(i + 1)}});
    root["$defs"]["d" + std::to_string(i)] = {{"anyOf", list}};
  }
  root["$defs"]["d8"] = {{"type", "integer"}};
  auto start = std::chrono::steady_clock::now();
  EXPECT_EQ(argument_type({{"$ref", "#/$defs/d0"}}, root), ArgumentType::kAny) << "the budget ends first";
  std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
  EXPECT_LT(took.count(), 5) << "60 to the power of 8 without a budget";
}

TEST(ArgumentTypes, ReachTheParserFromEveryProtocol) {
  Json schema =
      parse_json(R"({"type":"object","properties":{"s":{"type":"string"},"n":{"type":"integer"},"x":{}}})")
          .value();
  Json chat = {
      {"model", "m"},
      {"messages", Json::array({testing::user("x")})},
      {"tools",
       Json::array({{{"type", "function"}, {"function", {{"name", "f"}, {"parameters", schema}}}}})}};
  Json messages = {{"model", "m"},
                   {"messages", Json::array({testing::user("x")})},
                   {"tools", Json::array({{{"name", "f"}, {"input_schema", schema}}})}};
  Json responses = {
      {"model", "m"},
      {"input", "x"},
      {"tools",
       Json::array(
           {{{"type", "namespace"},
             {"name", "ns"},
             {"tools", Json::array({{{"type", "function"}, {"name", "f"}, {"parameters", schema}}})}}})}};
  for (auto [p, body, name] :
       std::vector<std::tuple<Protocol, Json, const char*>>{{Protocol::kChat, chat, "f"},
                                                            {Protocol::kMessages, messages, "f"},
                                                            {Protocol::kResponses, responses, "ns::f"}}) {
    ArgumentTypes types = testing::convert(p, body)->parsing.argument_types;
    ASSERT_EQ(types.size(), 1u);
    EXPECT_EQ(types[name], (std::map<std::string, ArgumentType>{{"s", ArgumentType::kString},
                                                                {"n", ArgumentType::kJson}}));
  }
  chat["tool_choice"] = "none";
  EXPECT_TRUE(testing::convert(Protocol::kChat, chat)->parsing.argument_types.empty());
}

}  // namespace
}  // namespace deepinfer
