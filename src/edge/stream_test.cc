// Every reply of a corpus, in every protocol: cut at every position, one character at a time, token by token
// and byte by byte. The events add up to one and the same final object, and the visible parts of the pieces
// together are the parts of the object (request edge specification 9, nos. 1, 3, 7).
#include <gtest/gtest.h>

#include <map>

#include "edge/writer.h"
#include "text/test_vocabulary.h"

namespace deepinfer {
namespace {

const std::string D = "｜DSML｜";

struct Case {
  const char* what;
  ParsingOptions parsing;
  std::string reply;
  EngineFinish end = EngineFinish::kStop;
};

ParsingOptions parsing(ReasoningStage stage, bool tools = true, std::vector<std::string> stops = {}) {
  ParsingOptions o;
  o.stage = stage;
  o.parse_tool_calls = tools;
  o.stop_sequences = std::move(stops);
  return o;
}

std::vector<Case> corpus() {
  using S = ReasoningStage;
  const std::string calls =
      "<" + D + " calls>\n<" + D + " invoke name=\"f\">\n<" + D +
      " parameter name=\"x\" string=\"true\">a\"b\\ \u2028 2 < 3 </b></" + D + " parameter>\n<" + D +
      " parameter name=\"y\" string=\"false\">{\"k\": [1,null]}</" + D + " parameter>\n</" + D +
      " invoke>\n<" + D + " invoke name=\"ns::g\">\n\n</" + D + " invoke>\n<" + D +
      " invoke name=\"apply_patch\">\n<" + D + " parameter name=\"input\" string=\"true\">*** é\n😀</" + D +
      " parameter>\n</" + D + " invoke>\n</" + D + " calls>";
  std::string older = calls;
  for (const char* tag : {" invoke", " parameter"}) {
    for (size_t at = older.find(D + tag); at != older.npos; at = older.find(D + tag))
      older.erase(at + D.size(), 1);
  }
  for (size_t at = older.find(" calls>"); at != older.npos; at = older.find(" calls>"))
    older.replace(at, 7, "tool_calls>");
  std::vector<Case> all = {
      {"nothing", parsing(S::kNone), ""},
      {"text", parsing(S::kNone), "\n\nHello 中文 😀 \u2028 end\n"},
      {"two < three", parsing(S::kNone), "2 < 3 and 2 <"},
      {"reasoning", parsing(S::kStart), "\nwhy\nso\n\n</think>\n\nanswer"},
      {"reasoning only", parsing(S::kStart), "never closed", EngineFinish::kLength},
      {"stray tags", parsing(S::kStart), "a</thin</think>b</think>c"},
      {"continued content", parsing(S::kContent), "\nmore"},
      {"continued reasoning", parsing(S::kReasoning), "\nmore</think>\nanswer"},
      {"calls", parsing(S::kStart), "why</think>\n\nI look.\n\n" + calls},
      {"calls cut by length", parsing(S::kStart), "why</think>" + calls.substr(0, calls.size() / 2),
       EngineFinish::kLength},
      {"calls without the closing of reasoning", parsing(S::kStart), "why\n\n" + calls},
      {"older dialect", parsing(S::kNone), older},
      {"text after the calls", parsing(S::kNone), calls + "\ntail " + calls},
      {"no tools in the request", parsing(S::kStart, false), "why</think>see " + calls},
      {"bare invoke", parsing(S::kNone), "<" + D + " invoke name=\"f\">\n</" + D + " invoke>"},
      {"no attribute", parsing(S::kNone),
       "<" + D + " calls>\n<" + D + " invoke name=\"f\">\n<" + D + " parameter name=\"x\">v</" + D +
           " parameter>\n<" + D + " parameter name=\"y\" string=\"true\">w</" + D + " parameter>\n</" + D +
           " invoke>"},
      {"half a name", parsing(S::kNone), "<" + D + " calls>\n<" + D + " invoke name=\"half"},
      {"shell value", parsing(S::kNone),
       "<" + D + " calls><" + D + " invoke name=\"f\"><" + D +
           " parameter name=\"c\" string=\"true\">cmd 2>&1</" + D + " parameter></" + D + " invoke></" + D +
           " calls>"},
      {"stop", parsing(S::kNone, true, {"END", "N"}), "abcE中NDdef"},
      {"stop over a marker", parsing(S::kNone, true, {"\n\n<"}), "a\n\n" + calls},
      {"stop at a marker's first byte", parsing(S::kStart, true, {"<"}), "why</think>a\n\n" + calls},
      {"stop that never comes", parsing(S::kNone, true, {"END"}), "abcEN"},
      {"filtered", parsing(S::kNone), "abc", EngineFinish::kContentFilter},
      {"aborted in a call", parsing(S::kNone), calls.substr(0, 150), EngineFinish::kAborted},
      {"JSON mode", parsing(S::kNone, false), "Here:\n```json\n{\"a\": \"</b>\"}\n```\nDone."},
      {"JSON mode, bare", parsing(S::kStart, false), "why</think>\n[1, 2] tail"},
  };
  all[all.size() - 1].parsing.parse_json_output = all[all.size() - 2].parsing.parse_json_output = true;
  Case forced{"forced call", parsing(S::kNone), calls.substr(calls.find('\n') + 1)};
  forced.parsing.starts_in_calls = true;
  all.push_back(forced);
  Case typed{"typed arguments", parsing(S::kNone),
             "<" + D + " calls>\n<" + D + " invoke name=\"f\">\n<" + D +
                 " parameter name=\"s\" string=\"false\">nullable</" + D + " parameter>\n<" + D +
                 " parameter name=\"n\" string=\"false\">null</" + D + " parameter>\n</" + D +
                 " invoke>\n</" + D + " calls>"};
  typed.parsing.argument_types["f"] = {{"s", ArgumentType::kString}, {"n", ArgumentType::kString}};
  all.push_back(typed);
  return all;
}

// What a client adds up, from the events alone: reasoning, text, calls.
std::string heard(Protocol protocol, const std::vector<Event>& events) {
  std::string reasoning, text;
  std::vector<std::string> calls;
  for (const Event& event : events) {
    if (event.data == "[DONE]") continue;
    Json e = Json::parse(event.data);
    if (protocol == Protocol::kChat) {
      Json d = e["choices"].empty() ? Json::object() : e["choices"][0]["delta"];
      if (d.contains("content") && d["content"].is_string()) text += d["content"].get<std::string>();
      if (d.contains("reasoning_content") && d["reasoning_content"].is_string())
        reasoning += d["reasoning_content"].get<std::string>();
      if (!d.contains("tool_calls")) continue;
      Json f = d["tool_calls"][0]["function"];
      if (f.contains("name")) calls.push_back(f["name"].get<std::string>() + "=");
      calls.back() += f["arguments"].get<std::string>();
    } else if (protocol == Protocol::kMessages) {
      if (event.name == "content_block_start" && e["content_block"]["type"] == "tool_use")
        calls.push_back(e["content_block"]["name"].get<std::string>() + "=");
      if (event.name != "content_block_delta") continue;
      Json d = e["delta"];
      if (d.contains("text")) text += d["text"].get<std::string>();
      if (d.contains("thinking")) reasoning += d["thinking"].get<std::string>();
      if (d.contains("partial_json")) calls.back() += d["partial_json"].get<std::string>();
    } else {
      if (event.name == "response.output_text.delta") text += e["delta"].get<std::string>();
      if (event.name == "response.reasoning_text.delta") reasoning += e["delta"].get<std::string>();
      if (event.name == "response.output_item.added" && e["item"].contains("call_id"))
        calls.push_back(e["item"].value("namespace", "") + ":" + e["item"]["name"].get<std::string>() + "=");
      if (event.name.ends_with("arguments.delta") || event.name.ends_with("input.delta"))
        calls.back() += e["delta"].get<std::string>();
    }
  }
  std::string out = "R[" + reasoning + "] T[" + text + "]";
  for (const std::string& c : calls) out += " C[" + c + "]";
  return out;
}

struct Answer {
  std::string heard;
  Json final_object;
};

// Feeds the parser by `feed`, checks order and uniqueness of the terminal event, returns what came out.
Answer answer(Protocol protocol, const Case& c, const Tokenizer& tokenizer,
              const std::function<void(OutputParser&, std::vector<OutputChunk>*)>& feed) {
  ControlTokens control = ControlTokens::from_tokenizer(tokenizer).value();
  OutputParser parser(&tokenizer, control, c.parsing);
  ResponseInfo info;
  info.id = "R";
  info.model = "m";
  info.thinking = c.parsing.stage == ReasoningStage::kStart || c.parsing.stage == ReasoningStage::kReasoning;
  info.custom_tools = {"apply_patch"};
  std::unique_ptr<ResponseWriter> writer = make_writer(protocol, info);
  std::vector<OutputChunk> chunks;
  std::vector<Event> events;
  parser.ready({}, 10, 4);
  feed(parser, &chunks);
  parser.finish(c.end, &chunks);
  parser.finish(c.end, &chunks);
  for (const OutputChunk& chunk : chunks) writer->write(chunk, &events);
  size_t wrote = events.size();
  writer->write(chunks.back(), &events);
  EXPECT_EQ(events.size(), wrote) << "nothing after the terminal event";
  int terminal = 0, sequence = 0;
  for (const Event& e : events) {
    terminal += e.data == "[DONE]" || e.name == "message_stop" || e.name == "response.completed" ||
                e.name == "response.incomplete";
    if (protocol == Protocol::kResponses) {
      EXPECT_EQ(Json::parse(e.data)["sequence_number"], sequence++);
    }
  }
  EXPECT_EQ(terminal, 1);
  Answer a{heard(protocol, events), Json::parse(writer->final_object())};
  a.final_object.erase("usage");  // counts the pieces
  return a;
}

// The final object's parts in the spelling of heard().
std::string told(Protocol protocol, const Json& f) {
  std::string reasoning, text, calls;
  if (protocol == Protocol::kChat) {
    const Json& m = f["choices"][0]["message"];
    text = m["content"];
    reasoning = m.value("reasoning_content", "");
    for (const Json& c : m.value("tool_calls", Json::array()))
      calls += " C[" + c["function"]["name"].get<std::string>() + "=" +
               c["function"]["arguments"].get<std::string>() + "]";
  } else if (protocol == Protocol::kResponses) {
    for (const Json& item : f["output"]) {
      if (item["type"] == "message") text += item["content"][0]["text"].get<std::string>();
      if (item["type"] == "reasoning") reasoning += item["content"][0]["text"].get<std::string>();
      if (item.contains("call_id"))
        calls += " C[" + item.value("namespace", "") + ":" + item["name"].get<std::string>() + "=" +
                 item[item.contains("input") ? "input" : "arguments"].get<std::string>() + "]";
    }
  }
  return "R[" + reasoning + "] T[" + text + "]" + calls;
}

void tokens_of(const Tokenizer& t, const std::string& reply, OutputParser& parser,
               std::vector<OutputChunk>* out) {
  for (int32_t id : t.encode_with_added_tokens(reply)) parser.token(id, out);
}

TEST(Streams, EveryCutTokenAndByteGivesTheSameObject) {
  const Tokenizer bytes = testing::test_tokenizer({});
  const Tokenizer pieces = testing::test_tokenizer({{"\n", "\n"},
                                                    {"a", "b"},
                                                    {"E", "N"},

                                                    {"<", "/"},
                                                    {" ", "c"},
                                                    {"a", "l"},
                                                    {"l", "s"},
                                                    {"\xe4\xb8", "\xad"},
                                                    {"\xe4", "\xb8"},
                                                    {"\xf0", "\x9f"},
                                                    {"\"", ">"}});
  for (const Case& c : corpus()) {
    for (Protocol p : {Protocol::kChat, Protocol::kResponses, Protocol::kMessages}) {
      SCOPED_TRACE(c.what);
      auto text = [&](std::vector<std::string> parts) {
        return answer(p, c, bytes, [&](OutputParser& parser, auto* out) {
          for (const std::string& part : parts) parser.text(part, 1, out);
        });
      };
      Answer whole = text({c.reply});
      if (p != Protocol::kMessages) {
        EXPECT_EQ(whole.heard, told(p, whole.final_object)) << "streamed = not streamed";
      }
      auto same = [&](const Answer& a, const std::string& how) {
        ASSERT_EQ(a.heard, whole.heard) << how;
        ASSERT_EQ(a.final_object, whole.final_object) << how;
      };
      std::vector<std::string> characters;
      for (size_t at = 0; at < c.reply.size();) {
        size_t n = decode_utf8(std::string_view(c.reply).substr(at)).size;
        characters.push_back(c.reply.substr(at, n));
        same(text({c.reply.substr(0, at), c.reply.substr(at)}), "cut at " + std::to_string(at));
        at += n;
      }
      same(text(characters), "one character at a time");
      same(answer(p, c, pieces,
                  [&](OutputParser& parser, auto* out) { tokens_of(pieces, c.reply, parser, out); }),
           "token by token");
      same(answer(p, c, bytes,
                  [&](OutputParser& parser, auto* out) { tokens_of(bytes, c.reply, parser, out); }),
           "byte by byte");
      if (HasFailure()) return;
    }
  }
}

// The same replies, ended by the token limit at every byte: always a whole object, never a lost or an
// invented part, the same however it came.
TEST(Streams, TruncatedAtEveryByte) {
  const Tokenizer bytes = testing::test_tokenizer({});
  for (Case c : corpus()) {
    c.end = EngineFinish::kLength;
    const std::string reply = c.reply;
    for (size_t n = 0; n <= reply.size(); ++n) {
      SCOPED_TRACE(c.what);
      Protocol p = static_cast<Protocol>(n % 3);
      c.reply = reply.substr(0, n);
      bool whole_characters = n == reply.size() || (static_cast<uint8_t>(reply[n]) & 0xc0) != 0x80;
      Answer tokens = answer(
          p, c, bytes, [&](OutputParser& parser, auto* out) { tokens_of(bytes, c.reply, parser, out); });
      if (p != Protocol::kMessages) {
        ASSERT_EQ(tokens.heard, told(p, tokens.final_object)) << n;
      }
      if (!whole_characters) continue;
      Answer once =
          answer(p, c, bytes, [&](OutputParser& parser, auto* out) { parser.text(c.reply, 1, out); });
      // A marker cut in the middle is spelt with plain tokens: as tokens it is text, as text a partial
      // marker; both show it, because nothing follows.
      ASSERT_EQ(tokens.heard, once.heard) << n;
      ASSERT_EQ(tokens.final_object, once.final_object) << n;
    }
  }
}

}  // namespace
}  // namespace deepinfer
