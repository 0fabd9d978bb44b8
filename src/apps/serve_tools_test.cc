// Tool calls through the server with the shipped model: what a strict tool or a required call promises holds
// in all three protocols, whole and streamed, after reasoning, with and without drafts; what cannot be kept
// is a 400.
#include <gtest/gtest.h>

#include "apps/serve_constraints.h"
#include "apps/serve_test_support.h"
#include "text/render.h"

namespace deepinfer {
namespace {

Json json(const std::string& text) {
  Result<Json> j = parse_json(text);
  EXPECT_TRUE(j.ok()) << text;
  return j.ok() ? *j : Json();
}

const char kSchema[] =
    R"({"type":"object","properties":{"city":{"type":"string","maxLength":10},"days":{"type":"integer",
    "minimum":1,"maximum":14},"unit":{"enum":["C","F"]}},"required":["city","days","unit"],
    "additionalProperties":false})";

enum class Api { kChat, kResponses, kMessages };
const Api kApis[] = {Api::kChat, Api::kResponses, Api::kMessages};
const char* path(Api api) {
  return api == Api::kChat        ? "/v1/chat/completions"
         : api == Api::kResponses ? "/v1/responses"
                                  : "/v1/messages";
}

Json tool(Api api, const std::string& name, const std::string& schema, bool strict) {
  Json f = {{"name", name}};
  f[api == Api::kMessages ? "input_schema" : "parameters"] = json(schema);
  if (strict) f["strict"] = true;
  if (api == Api::kChat) return {{"type", "function"}, {"function", f}};
  if (api == Api::kResponses) f["type"] = "function";
  return f;
}

// A request for the weather in the protocol's words.
Json ask(Api api, bool thinking, const Json& choice, uint64_t seed, std::vector<Json> tools) {
  Json b = {{"model", "tiny"}, {"temperature", 1}, {"tools", std::move(tools)}};
  const char* text = "What is the weather in Paris for the next 3 days? Call get_weather.";
  if (api == Api::kResponses) {
    b["input"] = text;
    b["max_output_tokens"] = 220;
    b["reasoning"] = {{"effort", thinking ? "high" : "none"}};
  } else {
    b["messages"] = Json::array({{{"role", "user"}, {"content", text}}});
    b["max_tokens"] = 220;
    b["thinking"] = {{"type", thinking ? "enabled" : "disabled"}};
  }
  // Messages and Responses have no seed of their own; temperature 0 decides there.
  if (api == Api::kChat) {
    b["seed"] = seed;
  } else {
    b["temperature"] = 0;
  }
  if (!choice.is_null()) b["tool_choice"] = choice;
  return b;
}
Json required(Api api) {
  return api == Api::kMessages ? Json{{"type", "any"}} : Json("required");
}
Json named(Api api, const std::string& name) {
  if (api == Api::kMessages) return {{"type", "tool"}, {"name", name}};
  if (api == Api::kResponses) return {{"type", "function"}, {"name", name}};
  return {{"type", "function"}, {"function", {{"name", name}}}};
}

struct Heard {
  std::string text, reasoning, finish;
  std::vector<std::pair<std::string, std::string>> calls;  // name, arguments
  bool operator==(const Heard&) const = default;
};

void hear_chat(const Json& message, Heard* h) {
  for (auto [member, out] : {std::pair{"content", &h->text}, std::pair{"reasoning_content", &h->reasoning}}) {
    if (message.contains(member) && message[member].is_string()) *out += message[member].get<std::string>();
  }
  if (!message.contains("tool_calls")) return;
  for (const Json& c : message["tool_calls"]) {
    const Json& f = c["function"];
    if (f.contains("name")) h->calls.emplace_back(f["name"], "");
    h->calls.back().second += f.value("arguments", std::string());
  }
}

Heard hear(Api api, const Json& object) {
  Heard h;
  if (api == Api::kChat) {
    hear_chat(object["choices"][0]["message"], &h);
    h.finish = object["choices"][0]["finish_reason"];
  } else if (api == Api::kResponses) {
    for (const Json& item : object["output"]) {
      if (item["type"] == "function_call") h.calls.emplace_back(item["name"], item["arguments"]);
      if (item["type"] == "message") h.text += item["content"][0]["text"].get<std::string>();
      if (item["type"] == "reasoning") h.reasoning += item["content"][0]["text"].get<std::string>();
    }
    h.finish = object["status"] == "incomplete" ? "length" : h.calls.empty() ? "stop" : "tool_calls";
  } else {
    for (const Json& block : object["content"]) {
      if (block["type"] == "tool_use") h.calls.emplace_back(block["name"], block["input"].dump());
      if (block["type"] == "text") h.text += block["text"].get<std::string>();
      if (block["type"] == "thinking") h.reasoning += block["thinking"].get<std::string>();
    }
    h.finish = object["stop_reason"] == "max_tokens" ? "length"
               : object["stop_reason"] == "tool_use" ? "tool_calls"
                                                     : "stop";
  }
  return h;
}

// What the events of a stream add up to.
Heard hear_stream(Api api, const std::string& body) {
  Heard h;
  for (const std::string& line : TestServer::data_of(body)) {
    if (line == "[DONE]") continue;
    Json e = json(line);
    if (api == Api::kChat) {
      hear_chat(e["choices"][0]["delta"], &h);
      if (e["choices"][0]["finish_reason"].is_string()) h.finish = e["choices"][0]["finish_reason"];
    } else if (api == Api::kResponses) {
      const std::string type = e["type"];
      if (type == "response.function_call_arguments.delta") h.calls.back().second += e["delta"];
      if (type == "response.output_item.added" && e["item"]["type"] == "function_call")
        h.calls.emplace_back(e["item"]["name"], "");
      if (type == "response.output_text.delta") h.text += e["delta"];
      if (type == "response.reasoning_text.delta") h.reasoning += e["delta"];
      if (type == "response.completed") h.finish = h.calls.empty() ? "stop" : "tool_calls";
      if (type == "response.incomplete") h.finish = "length";
    } else if (e["type"] == "content_block_start" && e["content_block"]["type"] == "tool_use") {
      h.calls.emplace_back(e["content_block"]["name"], "");
    } else if (e["type"] == "content_block_delta") {
      const Json& d = e["delta"];
      if (d["type"] == "input_json_delta") h.calls.back().second += d["partial_json"];
      if (d["type"] == "text_delta") h.text += d["text"];
      if (d["type"] == "thinking_delta") h.reasoning += d["thinking"];
    } else if (e["type"] == "message_delta") {
      h.finish = e["delta"]["stop_reason"] == "max_tokens" ? "length"
                 : e["delta"]["stop_reason"] == "tool_use" ? "tool_calls"
                                                           : "stop";
    }
  }
  return h;
}
// One spelling of arguments for all protocols; what a limit cut stays as it is.
Heard plain_arguments(Heard h) {
  for (auto& [name, arguments] : h.calls) {
    Result<Json> j = parse_json(arguments);
    if (j.ok()) arguments = j->dump();
  }
  return h;
}

void expect_weather(const std::pair<std::string, std::string>& call) {
  EXPECT_EQ(call.first, "get_weather");
  Json a = json(call.second);
  ASSERT_EQ(a.size(), 3u) << call.second;
  ASSERT_TRUE(a["city"].is_string() && a["days"].is_number_integer()) << call.second;
  EXPECT_GE(a["days"].get<int>(), 1);
  EXPECT_LE(a["days"].get<int>(), 14);
  EXPECT_TRUE(a["unit"] == "C" || a["unit"] == "F") << call.second;
}

class ServeTools : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    for (bool drafts : {true, false}) {
      ServeConfig config;
      config.speculate = drafts;
      config.thinking_tool_choice = !drafts;
      servers_[drafts] = std::make_unique<TestServer>(TestServer::Model{}, config);
    }
  }
  static void TearDownTestSuite() {
    for (auto& s : servers_) s.reset();
  }
  static Heard say(const Json& body, Api api, bool drafts = true) {
    TestServer::Answer a = servers_[drafts]->ask("POST", path(api), body.dump());
    EXPECT_EQ(a.status, 200) << a.body;
    return a.status == 200 ? plain_arguments(hear(api, a.json())) : Heard();
  }
  static Heard stream(Json body, Api api, bool drafts = true) {
    body["stream"] = true;
    TestServer::Answer a = servers_[drafts]->ask("POST", path(api), body.dump());
    EXPECT_EQ(a.status, 200) << a.body;
    return plain_arguments(hear_stream(api, a.body));
  }
  static std::string refusal(const Json& body, Api api, bool drafts = true) {
    TestServer::Answer a = servers_[drafts]->ask("POST", path(api), body.dump());
    EXPECT_EQ(a.status, 400) << a.body;
    return a.status == 400 ? a.json()["error"]["message"].get<std::string>() : "";
  }
  // Weights that make the model begin a call, close its reasoning and end strings soon.
  static Json eager() {
    auto t = Tokenizer::from_file(DEEPINFER_SOURCE_DIR "/models/deepinfer-tiny/tokenizer.json");
    ControlTokens c = *ControlTokens::from_tokenizer(*t);
    return {{std::to_string(t->encode("<")[0]), 40},
            {std::to_string(c.dsml), 100},
            {std::to_string(c.think_close), 90}};
  }
  static std::unique_ptr<TestServer> servers_[2];
};
std::unique_ptr<TestServer> ServeTools::servers_[2];

TEST_F(ServeTools, RequiredAndNamedCallsFollowTheSchemaInEveryProtocol) {
  for (Api api : kApis) {
    for (bool by_name : {false, true}) {
      for (bool strict : {true, false}) {
        Json body = ask(api, false, by_name ? named(api, "get_weather") : required(api), 5,
                        {tool(api, "get_weather", kSchema, strict)});
        body["parallel_tool_calls"] = false;
        if (api == Api::kMessages) {
          body.erase("parallel_tool_calls");
          body["tool_choice"]["disable_parallel_tool_use"] = true;
        }
        Heard whole = say(body, api);
        ASSERT_EQ(whole.calls.size(), 1u) << path(api) << by_name;
        expect_weather(whole.calls[0]);
        EXPECT_EQ(whole.finish, "tool_calls");
        EXPECT_EQ(whole.text, "");
        EXPECT_EQ(stream(body, api), whole) << path(api);
        EXPECT_EQ(say(body, api, false), whole) << "without drafts";
      }
    }
  }
}

TEST_F(ServeTools, ManySeedsAreTheSameWithAndWithoutDrafts) {
  for (uint64_t seed = 0; seed < 12; ++seed) {
    Json body =
        ask(Api::kChat, false, "required", seed,
            {tool(Api::kChat, "get_weather", kSchema, true),
             tool(Api::kChat, "note", R"({"type":"object","properties":{"n":{"type":"number"}}})", true)});
    body["parallel_tool_calls"] = false;
    Heard whole = say(body, Api::kChat);
    EXPECT_EQ(stream(body, Api::kChat, false), whole) << seed;
    ASSERT_EQ(whole.calls.size(), 1u) << seed;
    if (whole.calls[0].first == "get_weather") expect_weather(whole.calls[0]);
  }
}

TEST_F(ServeTools, AutoIsTextOrACallWhoseArgumentsFollowTheSchema) {
  for (bool thinking : {false, true}) {
    Json body = ask(Api::kChat, thinking, Json(), 3, {tool(Api::kChat, "get_weather", kSchema, true)});
    Heard plain = say(body, Api::kChat);
    for (const auto& call : plain.calls) expect_weather(call);
    EXPECT_EQ(say(body, Api::kChat, false), plain);
    body["logit_bias"] = eager();
    body["parallel_tool_calls"] = false;
    for (uint64_t seed = 0; seed < 4; ++seed) {
      body["seed"] = seed;
      Heard called = say(body, Api::kChat);
      ASSERT_EQ(called.calls.size(), 1u) << called.reasoning << "|" << called.text;
      expect_weather(called.calls[0]);
      EXPECT_EQ(called.finish, "tool_calls");
      EXPECT_EQ(stream(body, Api::kChat, false), called);
    }
  }
}

TEST_F(ServeTools, ACallComesAfterTheReasoning) {
  // Messages' "any" and allowed tools leave the prompt alone, so they work while thinking is on.
  Json body = ask(Api::kMessages, true, required(Api::kMessages), 0,
                  {tool(Api::kMessages, "get_weather", kSchema, true)});
  body["tool_choice"]["disable_parallel_tool_use"] = true;
  body["logit_bias"] = eager();
  Heard h = say(body, Api::kMessages);
  ASSERT_FALSE(h.calls.empty());
  expect_weather(h.calls[0]);
  EXPECT_EQ(h.text, "");
  body = ask(Api::kChat, true, "required", 1, {tool(Api::kChat, "get_weather", kSchema, true)});
  body["parallel_tool_calls"] = false;
  body["logit_bias"] = eager();
  EXPECT_EQ(refusal(body, Api::kChat), "Thinking mode does not support this tool_choice");
  h = say(body, Api::kChat, false);  // this one is told to take it (thinking_tool_choice)
  ASSERT_FALSE(h.calls.empty());
  expect_weather(h.calls[0]);
}

TEST_F(ServeTools, OneCallOrMore) {
  for (Api api : {Api::kChat, Api::kResponses}) {
    Json body =
        ask(api, false, "required", 2, {tool(api, "go", R"({"type":"object","properties":{}})", true)});
    body["logit_bias"] = eager();
    Heard many = say(body, api);
    EXPECT_GT(many.calls.size(), 1u);
    body["parallel_tool_calls"] = false;
    Heard one = say(body, api);
    EXPECT_EQ(one.calls.size(), 1u);
    EXPECT_EQ(one.finish, "tool_calls");
    // Without strict tools too, and in auto.
    body = ask(api, false, Json(), 2, {tool(api, "go", R"({"type":"object","properties":{}})", false)});
    body["logit_bias"] = eager();
    body["parallel_tool_calls"] = false;
    EXPECT_EQ(say(body, api).calls.size(), 1u);
  }
}

TEST_F(ServeTools, AllowedToolsAreTheOnlyOnesCalled) {
  for (Api api : {Api::kChat, Api::kResponses}) {
    for (const char* mode : {"auto", "required"}) {
      Json name = api == Api::kChat ? Json{{"type", "function"}, {"function", {{"name", "b"}}}}
                                    : Json{{"type", "function"}, {"name", "b"}};
      Json allowed = {{"mode", mode}, {"tools", Json::array({name})}};
      Json choice = allowed;
      if (api == Api::kChat) choice = {{"allowed_tools", allowed}};
      choice["type"] = "allowed_tools";
      std::vector<Json> tools;
      for (const char* n : {"a", "b", "c"})
        tools.push_back(tool(api, n, R"({"type":"object","properties":{}})", true));
      Json body = ask(api, false, choice, 1, tools);
      body["logit_bias"] = eager();
      Heard h = say(body, api);
      ASSERT_FALSE(h.calls.empty()) << mode;
      for (const auto& c : h.calls) EXPECT_EQ(c.first, "b");
      body["tool_choice"] = json(std::string(choice.dump()).replace(choice.dump().find("\"b\""), 3, "\"z\""));
      EXPECT_NE(refusal(body, api).find("no tool named 'z'"), std::string::npos);
    }
  }
}

TEST_F(ServeTools, WhatCannotBeKeptIsRefusedByItsPointer) {
  const char bad[] =
      R"({"type":"object","properties":{"q":{"type":"array","items":{"type":"string"},"uniqueItems":true}}})";
  for (Api api : kApis) {
    std::string why = refusal(ask(api, false, Json(), 0, {tool(api, "f", bad, true)}), api);
    EXPECT_NE(why.find("tools: tool 'f': #/properties/q/uniqueItems"), std::string::npos) << why;
    // A schema that promises nothing costs no call.
    Json body = ask(api, false, named(api, "f"), 0, {tool(api, "f", bad, false)});
    if (api == Api::kChat) body["logit_bias"] = eager();
    body[api == Api::kResponses ? "max_output_tokens" : "max_tokens"] = 60;
    EXPECT_EQ(servers_[1]->ask("POST", path(api), body.dump()).status, 200);
    why =
        refusal(ask(api, false, Json(), 0, {tool(api, "f", R"({"type":"object","anyOf":[{}]})", true)}), api);
    EXPECT_NE(why.find("#/anyOf"), std::string::npos) << why;
  }
  Json both = ask(Api::kChat, false, "required", 0, {tool(Api::kChat, "f", "{\"type\":\"object\"}", true)});
  both["guided_regex"] = "a+";
  EXPECT_NE(refusal(both, Api::kChat).find("only one kind"), std::string::npos);
}

TEST_F(ServeTools, AnAnswerBySchemaOrACall) {
  Json body = ask(Api::kChat, false, Json(), 4, {tool(Api::kChat, "get_weather", kSchema, true)});
  Json format = {{"name", "a"},
                 {"schema", json(R"({"type":"object","properties":{"n":{"type":"integer","minimum":0,
                   "maximum":99}},"required":["n"],"additionalProperties":false})")}};
  body["response_format"] = {{"type", "json_schema"}, {"json_schema", format}};
  body["parallel_tool_calls"] = false;
  auto t = Tokenizer::from_file(DEEPINFER_SOURCE_DIR "/models/deepinfer-tiny/tokenizer.json");
  for (bool call : {false, true}) {
    // What the answer begins with decides.
    body["logit_bias"] = {{std::to_string(t->encode(call ? "\n\n" : "{")[0]), 30}};
    Heard h = say(body, Api::kChat);
    if (call) {
      EXPECT_EQ(h.text, "");
      ASSERT_EQ(h.calls.size(), 1u);
      expect_weather(h.calls[0]);
    } else {
      EXPECT_TRUE(h.calls.empty());
      EXPECT_EQ(h.finish, "stop");
      EXPECT_TRUE(json(h.text)["n"].is_number_integer()) << h.text;
    }
  }
}

TEST_F(ServeTools, StrictNeedsAServerThatCanKeepIt) {
  TestServer synthetic;
  for (Api api : kApis) {
    EXPECT_EQ(
        synthetic.ask("POST", path(api), ask(api, false, Json(), 0, {tool(api, "f", kSchema, true)}).dump())
            .status,
        400);
    EXPECT_EQ(synthetic
                  .ask("POST", path(api),
                       ask(api, false, required(api), 0, {tool(api, "f", kSchema, false)}).dump())
                  .status,
              200);
  }
}

}  // namespace
}  // namespace deepinfer
