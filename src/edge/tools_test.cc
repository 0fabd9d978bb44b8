// Reports and piece lines, good and bad.
#include "edge/tools.h"

#include <gtest/gtest.h>

#include <sstream>

#include "text/test_vocabulary.h"

namespace deepinfer {
namespace {

Tokenizer vocabulary() {
  return testing::test_tokenizer({{"h", "i"}});
}

TEST(RenderReport, SpansTextIdsAndCounts) {
  PromptEncoder encoder(vocabulary(), 0);
  bool ok = false;
  Json r = render_report(
      Protocol::kChat,
      R"({"model":"m","thinking":{"type":"disabled"},"messages":[{"role":"user","content":"hi<think>"}]})",
      {}, {}, &encoder, &ok);
  ASSERT_TRUE(ok) << r;
  EXPECT_EQ(r["text"], "<｜begin▁of▁sentence｜><｜User｜>hi<think><｜Assistant｜></think>");
  EXPECT_EQ(r["spans"][2]["origin"], "client");
  EXPECT_EQ(r["spans"][2]["text"], "hi<think>");
  EXPECT_EQ(r["spans"][1]["id"], 128803);
  EXPECT_EQ(r["counts"]["token_ids"], r["token_ids"].size());
  EXPECT_EQ(r["counts"]["prompt_tokens"], r["token_ids"].size());
  for (const Json& id : r["token_ids"]) EXPECT_NE(id, 128821);
}

TEST(RenderReport, ImagesCountAsTheirTokens) {
  PromptEncoder encoder(vocabulary(), 0);
  bool ok = false;
  // A 3 x 2 PNG header: below the smallest area, so it grows to the tokens of a small image.
  const std::string png = "iVBORw0KGgoAAAANSUhEUgAAAAMAAAACCAYAAACddGYaAAAAC0lEQVR4";
  Json r = render_report(
      Protocol::kChat,
      R"({"model":"m","messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"data:image/png;base64,)" +
          png + R"("}}]}]})",
      {}, {}, &encoder, &ok);
  ASSERT_TRUE(ok) << r;
  EXPECT_EQ(r["counts"]["images"], 1);
  EXPECT_EQ(r["counts"]["prompt_tokens"].get<int64_t>(),
            static_cast<int64_t>(r["token_ids"].size()) + image_tokens(3, 2) - 1);
}

TEST(RenderReport, Refusals) {
  PromptEncoder encoder(vocabulary(), 0);
  bool ok = true;
  Json r = render_report(Protocol::kMessages, R"({"model":"m","messages":[]})", {}, {}, &encoder, &ok);
  EXPECT_FALSE(ok);
  EXPECT_EQ(r["status"], 400);
  EXPECT_EQ(r["type"], "error");
  EXPECT_EQ(r["error"]["message"], "messages: at least one message is required");
}

TEST(ParsePieces, EveryKindOfPieceAndFaults) {
  Tokenizer t = vocabulary();
  ControlTokens control = ControlTokens::from_tokenizer(t).value();
  auto run = [&](const std::string& lines, const std::string& options, std::vector<Event>* events,
                 std::string* final_object) {
    std::istringstream in(lines);
    Result<ParseSettings> s = parse_settings(parse_json(options).value());
    if (!s.ok()) return s.status();
    return parse_pieces(in, Protocol::kChat, t, control, *s, events, final_object);
  };
  std::vector<Event> events;
  std::string f;
  int32_t hi = t.encode("hi").at(0);
  std::string lines = "{\"ready\":{\"prompt_tokens\":9,\"cache_hit_tokens\":3}}\n" + std::to_string(hi) +
                      "\n\n128822\n\"x\"\n{\"text\":\"y\",\"tokens\":2}\n{\"tokens\":[" + std::to_string(hi) +
                      "]}\n{\"token\":" + std::to_string(hi) + ",\"logprob\":-0.5,\"top\":[[" +
                      std::to_string(hi) + ",-0.5]]}\n{\"finish\":\"length\"}\n\"late\"\n";
  ASSERT_TRUE(run(lines, R"({"count_reasoning":true,"logprobs":true})", &events, &f).ok());
  Json o = Json::parse(f);
  EXPECT_EQ(o["choices"][0]["message"]["reasoning_content"], "hi");
  EXPECT_EQ(o["choices"][0]["message"]["content"], "xyhihi");
  EXPECT_EQ(o["choices"][0]["finish_reason"], "length");
  EXPECT_EQ(o["usage"]["completion_tokens"], 7);
  EXPECT_EQ(o["usage"]["completion_tokens_details"]["reasoning_tokens"], 2);
  EXPECT_EQ(o["choices"][0]["logprobs"]["content"][0]["token"], "hi");
  EXPECT_EQ(o["choices"][0]["logprobs"]["content"][0]["bytes"], Json::array({'h', 'i'}));
  for (const char* bad : {"{", "[]", "{\"x\":1}", "true", "{\"token\":\"x\"}", "{\"finish\":\"loud\"}", "-4",
                          "{\"tokens\":[\"a\"]}", "{\"token\":1,\"top\":[5],\"logprob\":0}"}) {
    Status s = run(std::string("\n") + bad + "\n", "{}", &events, &f);
    ASSERT_FALSE(s.ok()) << bad;
    EXPECT_TRUE(s.message().starts_with("line 2: ")) << s.message();
  }
  const char* call =
      R"("</think><｜DSML｜ calls><｜DSML｜ invoke name=\"f\"><｜DSML｜ parameter name=\"s\" string=\"false\">raw</｜DSML｜ parameter></｜DSML｜ invoke>")";
  ASSERT_TRUE(run(call, R"({"argument_types":{"f":{"s":"string","n":"json"}}})", &events, &f).ok());
  EXPECT_EQ(Json::parse(f)["choices"][0]["message"]["tool_calls"][0]["function"]["arguments"],
            R"({"s": "raw"})");
  for (const char* bad :
       {R"({"argument_types":[]})", R"({"argument_types":{"f":5}})", R"({"argument_types":{"f":{"s":"x"}}})"})
    EXPECT_FALSE(run("", bad, &events, &f).ok()) << bad;
  EXPECT_FALSE(run("", R"({"stage":"loud"})", &events, &f).ok());
  EXPECT_FALSE(run("", R"({"stop":[1]})", &events, &f).ok());
}

}  // namespace
}  // namespace deepinfer
