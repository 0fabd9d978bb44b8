// The writers: exact shapes, and the property that a client that adds up the events holds the final object,
// for any reply cut anywhere.
#include "edge/writer.h"

#include <gtest/gtest.h>

#include <limits>
#include <map>
#include <random>
#include <set>

#include "text/unicode.h"

namespace deepinfer {
namespace {

const std::string D = "｜DSML｜";

ResponseInfo info(bool thinking = true) {
  ResponseInfo i;
  i.id = "R";
  i.model = "m";
  i.created = 100;
  i.thinking = thinking;
  i.custom_tools = {"apply_patch"};
  return i;
}

struct Answer {
  std::vector<Event> events;
  std::string final_object;
};

Answer answer(Protocol protocol, const ResponseInfo& i, const ParsingOptions& o,
              const std::vector<std::string>& chunks, EngineFinish reason = EngineFinish::kStop) {
  OutputParser parser(nullptr, ControlTokens::released(), o);
  std::unique_ptr<ResponseWriter> writer = make_writer(protocol, i);
  Answer a;
  std::vector<OutputChunk> out;
  parser.ready("fp", 10, 4);
  for (const std::string& c : chunks) parser.text(c, 1, &out);
  parser.finish(reason, &out);
  for (const OutputChunk& c : out) writer->write(c, &a.events);
  a.final_object = writer->final_object();
  return a;
}

ParsingOptions options(bool thinking = true) {
  ParsingOptions o;
  o.parse_tool_calls = true;
  o.stage = thinking ? ReasoningStage::kStart : ReasoningStage::kNone;
  return o;
}

// ---- independent clients: they see only the events
Json add_up_chat(const std::vector<Event>& events) {
  Json total;
  EXPECT_EQ(events.back().data, "[DONE]");
  for (size_t k = 0; k + 1 < events.size(); ++k) {
    EXPECT_TRUE(events[k].name.empty());
    Json e = Json::parse(events[k].data);
    if (k == 0) {
      total = {{"id", e["id"]},
               {"object", "chat.completion"},
               {"created", e["created"]},
               {"model", e["model"]},
               {"choices",
                Json::array({{{"index", 0},
                              {"message", {{"role", e["choices"][0]["delta"]["role"]}, {"content", ""}}},
                              {"logprobs", nullptr},
                              {"finish_reason", nullptr}}})},
               {"usage", nullptr},
               {"system_fingerprint", e["system_fingerprint"]}};
      if (e["choices"][0]["delta"].contains("reasoning_content"))
        total["choices"][0]["message"]["reasoning_content"] = "";
    }
    Json& choice = total["choices"][0];
    Json& message = choice["message"];
    Json delta = e["choices"][0]["delta"];
    for (const char* text : {"content", "reasoning_content"}) {
      if (delta.contains(text) && delta[text].is_string())
        message[text] = message.value(text, "") + delta[text].get<std::string>();
    }
    if (delta.contains("tool_calls")) {
      Json d = delta["tool_calls"][0];
      if (d.contains("id")) {
        EXPECT_EQ(d["index"], message.contains("tool_calls") ? message["tool_calls"].size() : 0u);
        message["tool_calls"].push_back(d);
      } else {
        Json& call = message["tool_calls"][d["index"].get<size_t>()];
        call["function"]["arguments"] =
            call["function"]["arguments"].get<std::string>() + d["function"]["arguments"].get<std::string>();
      }
    }
    EXPECT_TRUE(choice["finish_reason"].is_null()) << "one finish";
    choice["finish_reason"] = e["choices"][0]["finish_reason"];
    if (e.contains("usage")) total["usage"] = e["usage"];
  }
  return total;
}

Json add_up_messages(const std::vector<Event>& events) {
  Json total;
  std::map<size_t, std::string> input;
  int pings = 0;
  for (const Event& event : events) {
    Json e = Json::parse(event.data);
    EXPECT_EQ(e["type"], event.name);
    if (event.name == "message_start") {
      total = e["message"];
    } else if (event.name == "content_block_start") {
      EXPECT_EQ(e["index"], total["content"].size());
      total["content"].push_back(e["content_block"]);
    } else if (event.name == "ping") {
      ++pings;
      EXPECT_EQ(total["content"].size(), 1u);
    } else if (event.name == "content_block_delta") {
      size_t at = e["index"];
      Json& block = total["content"][at];
      Json delta = e["delta"];
      if (delta["type"] == "input_json_delta") input[at] += delta["partial_json"].get<std::string>();
      for (const char* text : {"thinking", "text", "signature"}) {
        if (delta.contains(text))
          block[text] = block[text].get<std::string>() + delta[text].get<std::string>();
      }
    } else if (event.name == "content_block_stop") {
      size_t at = e["index"];
      if (total["content"][at]["type"] == "tool_use") {
        Result<Json> v = parse_json(input[at]);
        total["content"][at]["input"] = v.ok() && v->is_object() ? *v : Json::object();
      }
    } else if (event.name == "message_delta") {
      total["stop_reason"] = e["delta"]["stop_reason"];
      total["stop_sequence"] = e["delta"]["stop_sequence"];
      total["usage"] = e["usage"];
    } else {
      EXPECT_EQ(event.name, "message_stop");
      EXPECT_EQ(&event, &events.back());
    }
  }
  EXPECT_EQ(pings, total["content"].empty() ? 0 : 1);
  return total;
}

Json add_up_responses(const std::vector<Event>& events) {
  Json output = Json::array(), last;
  int64_t sequence = 0;
  int terminal = 0;
  for (const Event& event : events) {
    Json e = Json::parse(event.data);
    EXPECT_EQ(e["type"], event.name);
    EXPECT_EQ(e["sequence_number"], sequence++) << "gap-free";
    EXPECT_EQ(terminal, 0) << "nothing after the terminal event";
    std::string name = event.name.substr(9);
    if (e.contains("item_id")) {
      EXPECT_EQ(e["item_id"], output[e["output_index"].get<size_t>()]["id"]);
    }
    if (name == "output_item.added") {
      EXPECT_EQ(e["output_index"], output.size());
      output.push_back(e["item"]);
    } else if (name == "content_part.added") {
      output.back()["content"].push_back(e["part"]);
    } else if (name == "reasoning_text.delta" || name == "output_text.delta") {
      Json& text = output.back()["content"][0]["text"];
      text = text.get<std::string>() + e["delta"].get<std::string>();
    } else if (name == "reasoning_text.done" || name == "output_text.done") {
      EXPECT_EQ(e["text"], output.back()["content"][0]["text"]);
    } else if (name == "content_part.done") {
      EXPECT_EQ(e["part"], output.back()["content"][0]);
    } else if (name == "function_call_arguments.delta" || name == "custom_tool_call_input.delta") {
      Json& text = output.back()[name[0] == 'f' ? "arguments" : "input"];
      text = text.get<std::string>() + e["delta"].get<std::string>();
    } else if (name == "function_call_arguments.done" || name == "custom_tool_call_input.done") {
      const char* member = name[0] == 'f' ? "arguments" : "input";
      EXPECT_EQ(e[member], output.back()[member]);
    } else if (name == "output_item.done") {
      Json item = e["item"], sofar = output.back();
      sofar["status"] = item["status"];
      if (item["type"] == "message") sofar["phase"] = item["phase"];
      EXPECT_EQ(item, sofar);
      output.back() = item;
    } else if (name == "completed" || name == "incomplete") {
      ++terminal;
      last = e["response"];
    }
  }
  EXPECT_EQ(terminal, 1);
  last["output"] = output;
  return last;
}

Json add_up(Protocol p, const std::vector<Event>& events) {
  return p == Protocol::kChat       ? add_up_chat(events)
         : p == Protocol::kMessages ? add_up_messages(events)
                                    : add_up_responses(events);
}

// Member order aside.
nlohmann::json unordered(const Json& v) {
  return nlohmann::json::parse(v.dump());
}

const std::string kReply = "think more\n</think>\nHello world\n\n<" + D + " calls>\n<" + D +
                           " invoke name=\"f\">\n<" + D + " parameter name=\"x\" string=\"true\">a\"b</" + D +
                           " parameter>\n<" + D + " parameter name=\"y\" string=\"false\">[1,2]</" + D +
                           " parameter>\n</" + D + " invoke>\n<" + D + " invoke name=\"ns::g\">\n</" + D +
                           " invoke>\n<" + D + " invoke name=\"apply_patch\">\n<" + D +
                           " parameter name=\"input\" string=\"true\">*** x\n+\"y\" é\\n</" + D +
                           " parameter>\n</" + D + " invoke>\n</" + D + " calls>";

TEST(Writers, EventsAddUpToTheFinalObjectForAnyCut) {
  for (Protocol p : {Protocol::kChat, Protocol::kResponses, Protocol::kMessages}) {
    Json whole = Json::parse(answer(p, info(), options(), {kReply}).final_object);
    for (size_t cut = 0; cut <= kReply.size(); ++cut) {
      if (cut < kReply.size() && (static_cast<uint8_t>(kReply[cut]) & 0xc0) == 0x80) continue;
      Answer a = answer(p, info(), options(), {kReply.substr(0, cut), kReply.substr(cut)});
      Json final_object = Json::parse(a.final_object);
      ASSERT_EQ(unordered(add_up(p, a.events)), unordered(final_object)) << a.final_object;
      // Only the number of tokens depends on the pieces.
      final_object["usage"] = whole["usage"];
      ASSERT_EQ(final_object, whole) << cut;
    }
  }
}

TEST(Writers, RandomReplies) {
  const std::vector<std::string> bits = {"<",
                                         D,
                                         "<" + D + " calls>\n",
                                         "<" + D + " invoke name=\"",
                                         "f\">\n",
                                         "apply_patch\">",
                                         "<" + D + " parameter name=\"",
                                         "input\" string=\"true\">",
                                         "k\" string=\"false\">",
                                         "</" + D,
                                         " parameter>\n",
                                         "</think>",
                                         "\n",
                                         "text ",
                                         "中",
                                         "😀",
                                         "END",
                                         "{",
                                         "\"",
                                         "\\",
                                         "\u2028",
                                         "null"};
  std::mt19937 rng(41);
  for (int round = 0; round < 400; ++round) {
    std::vector<std::string> chunks;
    std::string whole;
    for (size_t i = rng() % 24; i > 0; --i)
      chunks.push_back(bits[rng() % bits.size()]), whole += chunks.back();
    bool thinking = rng() % 2;
    ParsingOptions o = options(thinking);
    if (rng() % 2) o.stop_sequences = {"END"};
    EngineFinish reason = rng() % 3 == 0   ? EngineFinish::kLength
                          : rng() % 5 == 0 ? EngineFinish::kContentFilter
                                           : EngineFinish::kStop;
    for (Protocol p : {Protocol::kChat, Protocol::kResponses, Protocol::kMessages}) {
      Answer a = answer(p, info(thinking), o, chunks, reason);
      Json final_object = Json::parse(a.final_object);
      ASSERT_EQ(unordered(add_up(p, a.events)), unordered(final_object)) << whole << "\n" << a.final_object;
      Json once = Json::parse(answer(p, info(thinking), o, {whole}, reason).final_object);
      once["usage"] = final_object["usage"];
      ASSERT_EQ(once, final_object) << whole;
      std::string frames;
      for (const Event& e : a.events) {
        ASSERT_EQ(e.data.find_first_of("\r\n"), std::string::npos) << "one line per event";
        ASSERT_EQ(e.data.find("\u2028"), std::string::npos);
        append_sse(e, &frames);
      }
      ASSERT_TRUE(frames.ends_with("\n\n"));
    }
  }
}

TEST(ChatWriter, Chunks) {
  std::vector<Event> e = answer(Protocol::kChat, info(), options(), {"why</think>hi"}).events;
  const std::string head =
      R"({"id":"R","object":"chat.completion.chunk","created":100,"model":"m","system_fingerprint":"fp","choices":[{"index":0,"delta":)";
  ASSERT_EQ(e.size(), 5u);
  EXPECT_EQ(
      e[0].data,
      head +
          R"({"role":"assistant","content":null,"reasoning_content":""},"logprobs":null,"finish_reason":null}]})");
  EXPECT_EQ(e[1].data,
            head + R"({"content":null,"reasoning_content":"why"},"logprobs":null,"finish_reason":null}]})");
  EXPECT_EQ(e[2].data,
            head + R"({"content":"hi","reasoning_content":null},"logprobs":null,"finish_reason":null}]})");
  EXPECT_EQ(
      e[3].data,
      head +
          R"({"content":"","reasoning_content":null},"logprobs":null,"finish_reason":"stop"}],"usage":{"prompt_tokens":10,"completion_tokens":1,"total_tokens":11,)"
          R"("prompt_tokens_details":{"cached_tokens":4},"prompt_cache_hit_tokens":4,"prompt_cache_miss_tokens":6}})");
  EXPECT_EQ(e[4].data, "[DONE]");
  e = answer(Protocol::kChat, info(false), options(false), {"hi"}).events;
  EXPECT_EQ(e[0].data, head + R"({"role":"assistant","content":""},"logprobs":null,"finish_reason":null}]})");
  EXPECT_EQ(e[1].data, head + R"({"content":"hi"},"logprobs":null,"finish_reason":null}]})");
}

TEST(ChatWriter, UsageMembers) {
  ResponseInfo i = info();
  i.include_usage = true;
  std::vector<Event> e = answer(Protocol::kChat, i, options(), {"x"}).events;
  for (size_t k = 0; k + 2 < e.size(); ++k) EXPECT_TRUE(e[k].data.ends_with(",\"usage\":null}"));
  i.trailing_usage = true;
  i.count_reasoning = true;
  e = answer(Protocol::kChat, i, options(), {"x"}).events;
  Json apart = Json::parse(e[e.size() - 2].data);
  EXPECT_TRUE(apart["choices"].empty());
  EXPECT_EQ(apart["usage"]["completion_tokens_details"]["reasoning_tokens"], 1);
}

TEST(ChatWriter, ContentIsAStringWhenOnlyCallsWereMade) {
  Json f = Json::parse(
      answer(Protocol::kChat, info(false), options(false),
             {"<" + D + " calls>\n<" + D + " invoke name=\"f\">\n</" + D + " invoke>\n</" + D + " calls>"})
          .final_object);
  EXPECT_EQ(f["choices"][0]["message"]["content"], "");
  EXPECT_EQ(f["choices"][0]["finish_reason"], "tool_calls");
  EXPECT_EQ(f["choices"][0]["message"]["tool_calls"][0]["id"], "call_R_0");
  EXPECT_FALSE(f["choices"][0]["message"].contains("reasoning_content"));
}

TEST(ResponsesWriter, TheWholeLadder) {
  std::vector<std::string> names;
  for (const Event& e : answer(Protocol::kResponses, info(), options(), {kReply}).events)
    names.push_back(e.name.substr(9));
  EXPECT_EQ(names, (std::vector<std::string>{"created",
                                             "in_progress",
                                             "output_item.added",
                                             "content_part.added",
                                             "reasoning_text.delta",
                                             "reasoning_text.done",
                                             "content_part.done",
                                             "output_item.done",
                                             "output_item.added",
                                             "content_part.added",
                                             "output_text.delta",
                                             "output_text.done",
                                             "content_part.done",
                                             "output_item.done",
                                             "output_item.added",
                                             "function_call_arguments.delta",
                                             "function_call_arguments.done",
                                             "output_item.done",
                                             "output_item.added",
                                             "function_call_arguments.delta",
                                             "function_call_arguments.done",
                                             "output_item.done",
                                             "output_item.added",
                                             "custom_tool_call_input.delta",
                                             "custom_tool_call_input.done",
                                             "output_item.done",
                                             "completed"}));
  Json f = Json::parse(answer(Protocol::kResponses, info(), options(), {kReply}).final_object);
  EXPECT_EQ(f["output"][1]["phase"], "commentary") << "text before a call";
  EXPECT_EQ(f["output"][3]["namespace"], "ns");
  EXPECT_EQ(f["output"][3]["name"], "g");
  EXPECT_EQ(f["output"][4]["input"], "*** x\n+\"y\" é\\n");
  EXPECT_EQ(f["output"][4]["id"], "ctc_R_4");
  EXPECT_EQ(f["output"][4]["call_id"], "call_R_2");
  EXPECT_EQ(f["status"], "completed");
}

TEST(ResponsesWriter, Incomplete) {
  Json f =
      Json::parse(answer(Protocol::kResponses, info(), options(), {"thinking so far"}, EngineFinish::kLength)
                      .final_object);
  EXPECT_EQ(f["status"], "incomplete");
  EXPECT_EQ(f["incomplete_details"]["reason"], "max_output_tokens");
  EXPECT_EQ(f["output"][0]["status"], "incomplete");
  EXPECT_TRUE(f["completed_at"].is_null());
  f = Json::parse(
      answer(Protocol::kResponses, info(), options(), {}, EngineFinish::kContentFilter).final_object);
  EXPECT_EQ(f["incomplete_details"]["reason"], "content_filter");
  EXPECT_TRUE(f["output"].empty());
}

TEST(MessagesWriter, BlocksAndReasons) {
  Answer a = answer(Protocol::kMessages, info(), options(), {"why</think>hi"});
  std::vector<std::string> names;
  for (const Event& e : a.events) names.push_back(e.name);
  EXPECT_EQ(names, (std::vector<std::string>{
                       "message_start", "content_block_start", "ping", "content_block_delta",
                       "content_block_delta", "content_block_stop", "content_block_start",
                       "content_block_delta", "content_block_stop", "message_delta", "message_stop"}));
  EXPECT_EQ(
      a.final_object,
      R"({"id":"R","type":"message","role":"assistant","model":"m","content":[{"type":"thinking","thinking":"why","signature":"R"},{"type":"text","text":"hi"}],"stop_reason":"end_turn",)"
      R"("stop_sequence":null,"usage":{"input_tokens":6,"cache_creation_input_tokens":0,"cache_read_input_tokens":4,"output_tokens":1,"service_tier":"standard"}})");
  Json empty = Json::parse(answer(Protocol::kMessages, info(false), options(false), {}).final_object);
  EXPECT_TRUE(empty["content"].empty());
  ParsingOptions o = options(false);
  o.stop_sequences = {"END"};
  Json stopped = Json::parse(answer(Protocol::kMessages, info(false), o, {"aENDb"}).final_object);
  EXPECT_EQ(stopped["stop_reason"], "stop_sequence");
  EXPECT_EQ(stopped["stop_sequence"], "END");
  Json broken = Json::parse(answer(Protocol::kMessages, info(false), options(false),
                                   {"<" + D + " calls>\n<" + D + " invoke name=\"f\">\n<" + D +
                                    " parameter name=\"x\" string=\"true\">cut"},
                                   EngineFinish::kLength)
                                .final_object);
  EXPECT_EQ(broken["content"][0]["input"], Json::object()) << "half an input is none";
  EXPECT_EQ(broken["stop_reason"], "max_tokens");
}

// The table of finish reasons (specification 5.5), all three protocols.
TEST(Writers, FinishReasons) {
  const std::string call =
      "<" + D + " calls>\n<" + D + " invoke name=\"f\">\n</" + D + " invoke>\n</" + D + " calls>";
  struct Row {
    const char* reply;
    std::optional<EngineFinish> end;
    const char *chat, *messages, *status;
    Json why;
  };
  using E = EngineFinish;
  for (const Row& row : std::vector<Row>{
           {"hi", E::kStop, "stop", "end_turn", "completed", nullptr},
           {call.c_str(), E::kStop, "tool_calls", "tool_use", "completed", nullptr},
           {"hi END", E::kStop, "stop", "stop_sequence", "completed", nullptr},
           {"hi", E::kLength, "length", "max_tokens", "incomplete", "max_output_tokens"},
           {call.c_str(), E::kLength, "length", "max_tokens", "incomplete", "max_output_tokens"},
           {"hi END", E::kLength, "stop", "stop_sequence", "completed", nullptr},
           {"hi", E::kContentFilter, "content_filter", "refusal", "incomplete", "content_filter"},
           {"hi", std::nullopt, "stop", "end_turn", "completed", nullptr},
           {"hi", E::kInsufficientResource, "insufficient_system_resource", "end_turn", "incomplete",
            "insufficient_system_resource"},
           {"hi", E::kAborted, "aborted", "end_turn", "incomplete", "aborted"}}) {
    ParsingOptions o = options(false);
    o.stop_sequences = {"END"};
    for (Protocol p : {Protocol::kChat, Protocol::kMessages, Protocol::kResponses}) {
      OutputParser parser(nullptr, ControlTokens::released(), o);
      std::unique_ptr<ResponseWriter> writer = make_writer(p, info(false));
      std::vector<OutputChunk> out;
      std::vector<Event> events;
      parser.text(row.reply, 1, &out);
      row.end ? parser.finish(*row.end, &out) : parser.end(&out);
      for (const OutputChunk& c : out) writer->write(c, &events);
      Json f = Json::parse(writer->final_object());
      SCOPED_TRACE(row.chat);
      if (p == Protocol::kChat) {
        EXPECT_EQ(f["choices"][0]["finish_reason"], row.chat);
      } else if (p == Protocol::kMessages) {
        EXPECT_EQ(f["stop_reason"], row.messages);
        EXPECT_EQ(f["stop_sequence"].is_null(), f["stop_reason"] != "stop_sequence");
      } else {
        EXPECT_EQ(f["status"], row.status);
        EXPECT_EQ(f["incomplete_details"].is_null() ? Json() : f["incomplete_details"]["reason"], row.why);
        EXPECT_EQ(f["completed_at"].is_null(), f["status"] != "completed");
      }
    }
  }
}

TEST(ChatWriter, Logprobs) {
  ResponseInfo i = info(false);
  i.logprobs = true;
  std::unique_ptr<ResponseWriter> writer = make_writer(Protocol::kChat, i);
  std::vector<Event> events;
  OutputChunk c;
  c.kind = OutputChunk::Kind::kStart;
  writer->write(c, &events);
  c.kind = OutputChunk::Kind::kText;
  c.text = "x";
  c.logprobs = {{5, 0.0, {{5, 0.0}, {6, -std::numeric_limits<double>::infinity()}}}};
  writer->write(c, &events);
  Json e = Json::parse(events.back().data);
  const Json& one = e["choices"][0]["logprobs"]["content"][0];
  EXPECT_EQ(one["logprob"], 0.0);
  EXPECT_EQ(one["top_logprobs"][1]["logprob"], -9999.0) << "no infinity in JSON";
  i.logprobs = false;
  writer = make_writer(Protocol::kChat, i);
  for (auto kind : {OutputChunk::Kind::kStart, OutputChunk::Kind::kText}) {
    c.kind = kind;
    writer->write(c, &events);
  }
  EXPECT_TRUE(Json::parse(events.back().data)["choices"][0]["logprobs"].is_null());
}

// A client that goes away is a normal end: whatever was written so far, parser and writer just stop, or end
// with a whole object.
TEST(Writers, AbandonedAnywhere) {
  for (Protocol p : {Protocol::kChat, Protocol::kResponses, Protocol::kMessages}) {
    for (size_t n = 0; n <= kReply.size(); n += 7) {
      std::string part = to_valid_utf8(kReply.substr(0, n));
      OutputParser parser(nullptr, ControlTokens::released(), options());
      std::unique_ptr<ResponseWriter> writer = make_writer(p, info());
      std::vector<OutputChunk> out;
      std::vector<Event> events;
      parser.text(part, 1, &out);
      for (const OutputChunk& c : out) writer->write(c, &events);
      if (n % 2 == 0) continue;  // dropped as it is
      out.clear();
      parser.finish(EngineFinish::kAborted, &out);
      for (const OutputChunk& c : out) writer->write(c, &events);
      ASSERT_TRUE(parse_json(writer->final_object()).ok());
      ASSERT_EQ(unordered(add_up(p, events)), unordered(Json::parse(writer->final_object())));
    }
  }
}

// The halves of a surrogate pair arrive apart; a lone one is replaced, never passed on.
TEST(ResponsesWriter, CustomInputFromJsonEscapes) {
  auto input = [](const std::string& value) {
    std::string reply = "<" + D + " calls>\n<" + D + " invoke name=\"apply_patch\">\n<" + D +
                        " parameter name=\"other\" string=\"false\">{\"input\":[\"no\"]}</" + D +
                        " parameter>\n<" + D + " parameter name=\"input\" string=\"false\">" + value + "</" +
                        D + " parameter>\n</" + D + " invoke>\n</" + D + " calls>";
    std::string whole = Json::parse(answer(Protocol::kResponses, info(false), options(false), {reply})
                                        .final_object)["output"][0]["input"];
    std::vector<std::string> bytes;
    for (size_t at = 0; at < reply.size();) {
      size_t n = decode_utf8(std::string_view(reply).substr(at)).size;
      bytes.push_back(reply.substr(at, n));
      at += n;
    }
    EXPECT_EQ(Json::parse(answer(Protocol::kResponses, info(false), options(false), bytes)
                              .final_object)["output"][0]["input"],
              whole);
    return whole;
  };
  EXPECT_EQ(input(R"("a\ud83d\ude00b")"), "a😀b");
  EXPECT_EQ(input(R"("a\ud83db\ude00")"),
            "a\xef\xbf\xbd"
            "b\xef\xbf\xbd");
  EXPECT_EQ(input(R"("\ud83d\ud83d\ude00\n\ud83d\n")"), "\xef\xbf\xbd😀\n\xef\xbf\xbd\n");
  EXPECT_EQ(input(R"("\ud83d")"), "\xef\xbf\xbd");
  EXPECT_EQ(input(R"("\u00e9\t\"q\"\/")"), "é\t\"q\"/");
  EXPECT_EQ(input("5"), "") << "no string";
}

// What a client sends back is what the recorder says it was sent, so the memory finds it.
TEST(TurnRecorder, EqualsTheMessageThatComesBack) {
  const std::string reply = "why\n</think>\nHello\n\n<" + D + " calls>\n<" + D + " invoke name=\"f\">\n<" +
                            D + " parameter name=\"x\" string=\"false\">{\"a\":1}</" + D + " parameter>\n</" +
                            D + " invoke>\n</" + D + " calls>";
  for (Protocol p : {Protocol::kChat, Protocol::kResponses, Protocol::kMessages}) {
    OutputParser parser(nullptr, ControlTokens::released(), options());
    std::vector<OutputChunk> out;
    parser.text(reply, 1, &out);
    parser.finish(EngineFinish::kStop, &out);
    TurnRecorder recorder(p, "R");
    std::unique_ptr<ResponseWriter> writer = make_writer(p, info());
    std::vector<Event> events;
    for (const OutputChunk& c : out) recorder.write(c), writer->write(c, &events);
    Json f = Json::parse(writer->final_object()), body = {{"model", "m"}};
    Json user = {{"role", "user"}, {"content", "u"}};
    if (p == Protocol::kChat) {
      Json turn = f["choices"][0]["message"];
      body["messages"] = Json::array(
          {user, turn, {{"role", "tool"}, {"tool_call_id", turn["tool_calls"][0]["id"]}, {"content", "r"}}});
    } else if (p == Protocol::kMessages) {
      Json result = {{"type", "tool_result"}, {"tool_use_id", f["content"][2]["id"]}, {"content", "r"}};
      body["messages"] = Json::array({user,
                                      {{"role", "assistant"}, {"content", f["content"]}},
                                      {{"role", "user"}, {"content", Json::array({result})}}});
    } else {
      body["input"] = Json::array({user});
      for (const Json& item : f["output"]) body["input"].push_back(item);
      body["input"].push_back(
          {{"type", "function_call_output"}, {"call_id", f["output"][2]["call_id"]}, {"output", "r"}});
    }
    Result<ProtocolRequest> back = convert_request(p, body.dump(), {});
    ASSERT_TRUE(back.ok()) << back.status().message();
    TurnMemory memory(1 << 20);
    memory.remember("s", recorder.turn(), {{1, 2, 3}, true, false});
    EXPECT_NE(memory.find("s", back->conversation.messages[1], true), nullptr) << body;
    EXPECT_EQ(memory.find("s", back->conversation.messages[0], true), nullptr);
  }
}

TEST(CompletionWriter, TextEchoAndFinish) {
  ParsingOptions o;
  o.stage = ReasoningStage::kContent;
  OutputParser parser(nullptr, ControlTokens::released(), o);
  std::unique_ptr<ResponseWriter> writer = make_completion_writer(info(), "prompt ");
  std::vector<OutputChunk> out;
  std::vector<Event> events;
  parser.ready({}, 3, 0);
  parser.text("\nmore <think>", 2, &out);
  parser.text(" text", 1, &out);
  parser.finish(EngineFinish::kLength, &out);
  for (const OutputChunk& c : out) writer->write(c, &events);
  std::string text;
  for (size_t i = 0; i + 1 < events.size(); ++i) {
    Json e = Json::parse(events[i].data);
    EXPECT_EQ(e["object"], "text_completion");
    text += e["choices"][0]["text"].get<std::string>();
    EXPECT_EQ(e.contains("usage"), i + 2 == events.size());
  }
  EXPECT_EQ(events.back().data, "[DONE]");
  Json f = Json::parse(writer->final_object());
  EXPECT_EQ(f["choices"][0]["text"], text);
  EXPECT_EQ(text, "prompt \nmore <think> text");
  EXPECT_EQ(f["choices"][0]["finish_reason"], "length");
  EXPECT_EQ(f["usage"]["total_tokens"], 6);
}

TEST(Usage, Identities) {
  for (int64_t hit : {0, 4, 12}) {
    Usage u{.prompt_tokens = 12,
            .cache_hit_tokens = hit,
            .store_tokens = hit / 2,
            .completion_tokens = 5,
            .reasoning_tokens = 2};
    Json chat = chat_usage(u, true), messages = messages_usage(u), responses = responses_usage(u, true);
    EXPECT_EQ(
        chat["prompt_cache_hit_tokens"].get<int64_t>() + chat["prompt_cache_miss_tokens"].get<int64_t>(), 12);
    EXPECT_EQ(chat["total_tokens"], 17);
    EXPECT_EQ(messages["input_tokens"].get<int64_t>() + messages["cache_read_input_tokens"].get<int64_t>(),
              12);
    EXPECT_EQ(responses["output_tokens_details"]["reasoning_tokens"], 2);
    EXPECT_EQ(responses_usage(u, false)["output_tokens_details"]["reasoning_tokens"], 0);
  }
}

TEST(Bodies, SmallOnes) {
  EXPECT_EQ(messages_token_count(7), R"({"input_tokens":7})");
  EXPECT_EQ(
      model_list({{"m", 1, 1048576}}, Protocol::kChat),
      R"({"object":"list","data":[{"id":"m","object":"model","created":1,"owned_by":"deepseek","context_length":1048576}]})");
  EXPECT_EQ(Json::parse(model_list({{"m", 1, 5}}, Protocol::kMessages))["first_id"], "m");
  EXPECT_EQ(tokenize_object({1, 2}, 9), R"({"tokens":[1,2],"count":2,"max_model_len":9})");
  EXPECT_EQ(detokenize_object("a\xff"), "{\"prompt\":\"a\xef\xbf\xbd\"}");
}

}  // namespace
}  // namespace deepinfer
