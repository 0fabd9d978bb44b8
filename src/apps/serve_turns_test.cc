// Turns given back as they were sampled, through the server with the shipped model: the next prompt begins
// with the tokens in the cache although encoding the text again would give others; nobody gets another's
// turns; where the encodings agree the memory changes nothing.
#include <gtest/gtest.h>

#include <unistd.h>
#include <cstdio>

#include "apps/serve_constraints.h"
#include "apps/serve_test_support.h"
#include "text/render.h"

namespace deepinfer {
namespace {

const Tokenizer& tokenizer() {
  static const Tokenizer t =
      *Tokenizer::from_file(DEEPINFER_SOURCE_DIR "/models/deepinfer-tiny/tokenizer.json");
  return t;
}
const ControlTokens& control() {
  static const ControlTokens c = *ControlTokens::from_tokenizer(tokenizer());
  return c;
}
int64_t count(const std::string& text) {
  return static_cast<int64_t>(tokenizer().encode(text).size());
}
// The sum of a labelled series' lines that hold `label`.
int64_t metric(const TestServer& s, const std::string& label) {
  std::string text = s.ask("GET", "/metrics").body;
  size_t at = text.find(label);
  if (at == text.npos) return -1;
  return std::stoll(text.substr(text.find("} ", at) + 2));
}
int64_t hits(const TestServer& s) {
  return metric(s, "event=\"hit\"");
}
int64_t misses(const TestServer& s) {
  return metric(s, "event=\"miss\"");
}

const int64_t kAnswer = 300;
const char kQuestion[] = "Tell me a story about a red door.";
// A hit leaves 134 tokens to be computed (serving specification 2.3), so the next turn is longer than that.
const std::string kNext = [] {
  std::string text = "And then?";
  for (int i = 0; i < 60; ++i) text += " Go on, number " + std::to_string(i) + ".";
  return text;
}();

// Hot enough that the pieces are seldom the encoder's, for exactly kAnswer tokens, then the end: no control
// token is drawn, some of them end an answer too.
void make_odd(Json* b) {
  (*b)["model"] = "tiny";
  (*b)["temperature"] = 1.6;
  (*b)["min_tokens"] = kAnswer;
  const ControlTokens& c = control();
  Json bias = {{std::to_string(c.eos), 100}};
  for (int32_t id : {c.bos, c.user, c.assistant, c.think_open, c.think_close, c.dsml, c.system,
                     c.latest_reminder, c.image, c.fim_begin, c.fim_hole, c.fim_end}) {
    if (id >= 0) bias[std::to_string(id)] = -100;
  }
  for (const auto& [name, id] : c.tasks) bias[std::to_string(id)] = -100;
  (*b)["logit_bias"] = bias;
}

struct Turn {
  Json object, back;  // the answer, and the items that stand for it in the next request
  int64_t prompt = 0, cached = 0, output = 0;
};

enum class Api { kChat, kResponses, kMessages };
const Api kApis[] = {Api::kChat, Api::kResponses, Api::kMessages};

Turn say(const TestServer& s, Api api, const Json& items, const Json& more = Json::object(),
         const std::string& headers = {}) {
  Json b = more;
  if (!more.contains("temperature")) make_odd(&b);
  b["model"] = "tiny";
  b[api == Api::kResponses ? "input" : "messages"] = items;
  if (!b.contains("max_tokens")) b[api == Api::kResponses ? "max_output_tokens" : "max_tokens"] = 400;
  if (api == Api::kResponses) {
    if (!b.contains("reasoning")) b["reasoning"] = {{"effort", "none"}};
  } else if (!b.contains("thinking")) {
    b["thinking"] = {{"type", "disabled"}};
  }
  const char* path = api == Api::kChat        ? "/v1/chat/completions"
                     : api == Api::kResponses ? "/v1/responses"
                                              : "/v1/messages";
  TestServer::Answer a = s.ask("POST", path, b.dump(), headers);
  EXPECT_EQ(a.status, 200) << a.body;
  if (a.status != 200) return {};
  Turn t;
  t.object = a.json();
  const Json& u = t.object["usage"];
  if (api == Api::kChat) {
    t.back = Json::array({t.object["choices"][0]["message"]});
    t.prompt = u["prompt_tokens"];
    t.cached = u["prompt_cache_hit_tokens"];
    t.output = u["completion_tokens"];
  } else if (api == Api::kResponses) {
    t.back = t.object["output"];
    t.prompt = u["input_tokens"];
    t.cached = u["input_tokens_details"]["cached_tokens"];
    t.output = u["output_tokens"];
  } else {
    t.back = Json::array({{{"role", "assistant"}, {"content", t.object["content"]}}});
    t.cached = u["cache_read_input_tokens"];
    t.prompt = t.cached + u["input_tokens"].get<int64_t>();
    t.output = u["output_tokens"];
  }
  return t;
}
Json user(const std::string& text) {
  return Json::array({{{"role", "user"}, {"content", text}}});
}
Json joined(const Json& a, const Json& b, const Json& c = Json::array()) {
  Json all = a;
  for (const Json& list : {b, c}) {
    for (const Json& item : list) all.push_back(item);
  }
  return all;
}

class ServeTurns : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    ServeConfig with, without;
    without.turn_memory_bytes = 0;
    with_ = std::make_unique<TestServer>(TestServer::Model{}, with);
    without_ = std::make_unique<TestServer>(TestServer::Model{}, without);
  }
  static void TearDownTestSuite() {
    with_.reset();
    without_.reset();
  }
  static std::unique_ptr<TestServer> with_, without_;
};
std::unique_ptr<TestServer> ServeTurns::with_, ServeTurns::without_;

TEST_F(ServeTurns, TheCacheCoversAGeneratedTurnInEveryProtocol) {
  for (Api api : kApis) {
    for (bool memory : {true, false}) {
      const TestServer& s = memory ? *with_ : *without_;
      const int64_t before = memory ? hits(s) : 0;
      Turn first = say(s, api, user(kQuestion));
      ASSERT_EQ(first.output, kAnswer) << first.object;
      Turn second = say(s, api, joined(user(kQuestion), first.back, user(kNext)));
      // The end of the turn, the user's marker and text, the header of the next.
      const int64_t exact = first.prompt + first.output + 1 + 1 + count(kNext) + 2;
      if (memory) {
        EXPECT_EQ(second.prompt, exact);
        EXPECT_GE(second.cached, (first.prompt + first.output - 1) / 128 * 128) << "all whole blocks";
        EXPECT_EQ(hits(s), before + 1);
      } else {
        EXPECT_NE(second.prompt, exact) << "the text alone gives other tokens";
        EXPECT_LT(second.cached, 128 + first.prompt);
      }
    }
  }
}

TEST_F(ServeTurns, AContinuedResponseAndAStreamCountToo) {
  Json body = {{"input", kQuestion}, {"max_output_tokens", 400}, {"reasoning", {{"effort", "none"}}}};
  make_odd(&body);
  Json first = with_->ask("POST", "/v1/responses", body.dump()).json();
  body["previous_response_id"] = first["id"];
  body["input"] = kNext;
  Json second = with_->ask("POST", "/v1/responses", body.dump()).json();
  EXPECT_EQ(second["usage"]["input_tokens"].get<int64_t>(),
            first["usage"]["input_tokens"].get<int64_t>() + kAnswer + 4 + count(kNext));
  EXPECT_GE(second["usage"]["input_tokens_details"]["cached_tokens"].get<int64_t>(), 256);
  Json chat = {{"messages", user(kQuestion)},
               {"max_tokens", 400},
               {"stream", true},
               {"thinking", {{"type", "disabled"}}}};
  make_odd(&chat);
  std::string text;
  for (const std::string& line :
       TestServer::data_of(with_->ask("POST", "/v1/chat/completions", chat.dump()).body)) {
    if (line == "[DONE]") continue;
    Json delta = (*parse_json(line))["choices"][0]["delta"];
    if (delta["content"].is_string()) text += delta["content"].get<std::string>();
  }
  const int64_t before = hits(*with_);
  say(*with_, Api::kChat,
      joined(user(kQuestion), Json::array({{{"role", "assistant"}, {"content", text}}}), user(kNext)));
  EXPECT_EQ(hits(*with_), before + 1);
}

TEST_F(ServeTurns, CallsAndReasoningComeBackAsSampled) {
  Json tool = {
      {"type", "function"},
      {"function",
       {{"name", "f"},
        {"strict", true},
        {"parameters", *parse_json(R"({"type":"object","properties":{"a":{"type":"array","items":{"type":
                 "integer"},"minItems":3,"maxItems":3}},"required":["a"],"additionalProperties":false})")}}}};
  Json more = {{"temperature", 1.6},
               {"tools", Json::array({tool})},
               {"tool_choice", "required"},
               {"parallel_tool_calls", false},
               {"max_tokens", 400}};
  Turn first = say(*with_, Api::kChat, user(kQuestion), more);
  ASSERT_EQ(first.object["choices"][0]["finish_reason"], "tool_calls") << first.object;
  // Clients parse the arguments and write them their own way.
  Json& call = first.back[0]["tool_calls"][0];
  call["function"]["arguments"] = parse_json(call["function"]["arguments"].get<std::string>())->dump(2);
  Json result = Json::array({{{"role", "tool"}, {"tool_call_id", call["id"]}, {"content", kNext}}});
  more["tool_choice"] = "auto";
  more["max_tokens"] = 4;
  const int64_t before = hits(*with_);
  Turn second = say(*with_, Api::kChat, joined(user(kQuestion), first.back, result), more);
  EXPECT_EQ(hits(*with_), before + 1);
  EXPECT_EQ(second.prompt,
            first.prompt + first.output + 1 + 1 + count("<tool_result>" + kNext + "</tool_result>") + 2);
  EXPECT_GE(second.cached, (first.prompt + first.output - 1) / 128 * 128);

  // Reasoning: closed soon, then a text of a grammar, so that no second tag can come.
  Json think = {{"temperature", 1.6},
                {"thinking", {{"type", "enabled"}}},
                {"guided_regex", "[a-z ]{200,220}"},
                {"max_tokens", 900},
                {"logit_bias", {{std::to_string(control().think_close), 4}}}};
  bool found = false;
  for (int seed = 0; seed < 8 && !found; ++seed) {
    think["seed"] = seed;
    Turn a = say(*with_, Api::kChat, user(kQuestion), think);
    if (a.object["choices"][0]["finish_reason"] != "stop") continue;
    found = true;
    const int64_t known = hits(*with_);
    Json next = think;
    next["max_tokens"] = 4;
    Turn b = say(*with_, Api::kChat, joined(user(kQuestion), a.back, user(kNext)), next);
    EXPECT_EQ(hits(*with_), known + 1);
    EXPECT_EQ(b.prompt, a.prompt + a.output + 1 + 1 + count(kNext) + 2);
    // A client that leaves the reasoning out says something else, unless there was none.
    if (a.back[0]["reasoning_content"] == "") continue;
    Json bare = a.back;
    bare[0].erase("reasoning_content");
    const int64_t missed = misses(*with_);
    say(*with_, Api::kChat, joined(user(kQuestion), bare, user(kNext)), next);
    EXPECT_EQ(misses(*with_), missed + 1);
  }
  EXPECT_TRUE(found);
}

TEST_F(ServeTurns, NobodyGetsAnothersTurns) {
  std::string file = ::testing::TempDir() + "di_turn_keys_" + std::to_string(::getpid());
  std::FILE* f = std::fopen(file.c_str(), "w");
  std::fputs((hash_api_key("secret-a") + " tenant=a\n" + hash_api_key("secret-b") + " tenant=b\n").c_str(),
             f);
  std::fclose(f);
  ServeConfig config;
  config.api_key_file = file;
  TestServer s(TestServer::Model{}, config);
  std::remove(file.c_str());
  const std::string a = "Authorization: Bearer secret-a\r\n", b = "Authorization: Bearer secret-b\r\n";
  Turn first = say(s, Api::kChat, user(kQuestion), {}, a);
  const Json items = joined(user(kQuestion), first.back, user(kNext));
  auto asks = [&](const std::string& headers, Json more) {
    const int64_t before = hits(s);
    make_odd(&more);
    more["max_tokens"] = kAnswer;
    Turn t = say(s, Api::kChat, items, more, headers);
    return std::pair(hits(s) - before, t.cached);
  };
  EXPECT_EQ(asks(b, {}), std::pair(int64_t{0}, int64_t{0})) << "another tenant";
  EXPECT_EQ(asks(a, {{"user_id", "x"}}), std::pair(int64_t{0}, int64_t{0})) << "another end user";
  EXPECT_EQ(asks(a, {{"cache_salt", "x"}}), std::pair(int64_t{0}, int64_t{0})) << "another salt";
  EXPECT_EQ(asks(a, {}).first, 1);
}

TEST_F(ServeTurns, WhereTheEncodingsAgreeNothingChanges) {
  // Cold text: the pieces are the encoder's more often than not. The tokens say whether they are.
  Json more = {{"temperature", 0},
               {"logprobs", true},
               {"max_tokens", 60},
               {"logit_bias", {{std::to_string(control().eos), 8}}}};
  int same = 0;
  for (const char* question :
       {"Hello!", "What is 2 + 2?", "The code of the red door is 4711. What is the code?",
        "Say something short.", "Who are you?", "Count to five."}) {
    Turn first = say(*with_, Api::kChat, user(question), more);
    const Json& choice = first.object["choices"][0];
    if (choice["finish_reason"] != "stop" || choice["message"]["content"] == "") continue;
    const std::string text = choice["message"]["content"];
    std::vector<std::string> pieces;
    for (int32_t id : tokenizer().encode(text)) pieces.emplace_back(tokenizer().token_bytes(id));
    bool agree = pieces.size() == choice["logprobs"]["content"].size() &&
                 first.output == static_cast<int64_t>(pieces.size());
    for (size_t i = 0; agree && i < pieces.size(); ++i)
      agree = choice["logprobs"]["content"][i]["token"] == pieces[i];
    if (!agree) continue;
    ++same;
    const Json items = joined(user(question), first.back, user(kNext));
    EXPECT_EQ(say(*without_, Api::kChat, user(question), more).back, first.back);
    Turn with = say(*with_, Api::kChat, items, more), without = say(*without_, Api::kChat, items, more);
    EXPECT_EQ(with.prompt, without.prompt);
    EXPECT_EQ(with.object["choices"][0]["message"], without.object["choices"][0]["message"]);
  }
  EXPECT_GT(same, 0);
}

}  // namespace
}  // namespace deepinfer
