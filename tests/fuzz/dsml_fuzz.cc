// Fuzzes tool markup as tokens, where markers count by their ids. First byte: which half. Low bit clear: the
// rest are orders, each a piece of markup (by id or merely spelt), a control token, or a byte of text; the
// parse must not depend on how tokens are grouped, and what it calls repeatable must be found again by what
// the client was told. Low bit set: the rest becomes the calls of a stored turn; the template writes them,
// the parser must read the very same values back, whatever the values spell.
#include <algorithm>
#include <cstdint>

#include "edge/writer.h"
#include "text/test_vocabulary.h"

namespace {

using namespace deepinfer;

const Tokenizer& vocabulary() {
  static const Tokenizer t = deepinfer::testing::test_tokenizer({});
  return t;
}
const ControlTokens& control() {
  static const ControlTokens c = ControlTokens::from_tokenizer(vocabulary()).value();
  return c;
}

class Bytes {
 public:
  Bytes(const uint8_t* data, size_t size) : data_(data), end_(data + size) {}
  bool empty() const { return data_ == end_; }
  uint8_t next() { return empty() ? 0 : *data_++; }
  std::string text(size_t n) {
    std::string s;
    while (n-- > 0 && !empty()) s += static_cast<char>(next());
    return to_valid_utf8(s);
  }

 private:
  const uint8_t* data_;
  const uint8_t* end_;
};

struct Flat {
  std::string text, reasoning, calls;
  Usage usage;
};

Flat flat(const std::vector<OutputChunk>& chunks) {
  Flat f;
  for (const OutputChunk& c : chunks) {
    if (c.kind == OutputChunk::Kind::kText) f.text += c.text;
    if (c.kind == OutputChunk::Kind::kReasoning) f.reasoning += c.text;
    if (c.kind == OutputChunk::Kind::kCall) f.calls += "|" + c.text + "=";
    if (c.kind == OutputChunk::Kind::kArguments) f.calls += c.text;
    if (c.kind == OutputChunk::Kind::kFinish) f.usage = c.usage;
  }
  return f;
}

ParsingOptions options(uint8_t flags) {
  ParsingOptions o;
  o.parse_tool_calls = (flags & 2) == 0;
  o.stage = static_cast<ReasoningStage>(flags >> 2 & 3);
  o.starts_in_calls = (flags & 16) != 0 && o.parse_tool_calls;
  if ((flags & 32) != 0) o.stop_sequences = {"END", "<", "</think>", "\n\n<"};
  if ((flags & 64) != 0) o.argument_types["f"] = {{"k", ArgumentType::kString}, {"j", ArgumentType::kJson}};
  o.parse_json_output = (flags & 128) != 0;
  return o;
}

std::vector<int32_t> ids_of(Bytes in) {
  // "@" stands for the control token of DSML; "%" for its spelling in plain text.
  static const char* const kPieces[] = {"<@ calls>\n",
                                        "<@tool_calls>\n",
                                        "<@ invoke name=\"f\">\n",
                                        "<@ invoke name=\"",
                                        "</@ invoke>\n",
                                        "</@ calls>",
                                        "</@tool_calls>",
                                        "<@ parameter name=\"k\" string=\"true\">",
                                        "<@ parameter name=\"k\" string=\"false\">",
                                        "<@ parameter name=\"k\">",
                                        "<@ parameter name=\"j\">",
                                        "</@ parameter>\n",
                                        "<%",
                                        "</%",
                                        "\n\n<@",
                                        "null",
                                        "\"",
                                        "\">",
                                        "END",
                                        "<",
                                        "</",
                                        "{\"a\":1}",
                                        "string=\"maybe\">",
                                        "\xf0\x9f\x98\x80",
                                        "apply_patch\">",
                                        "input\" string=\"true\">"};
  std::vector<int32_t> ids;
  auto plain = [&](std::string_view s) { vocabulary().encode_append(s, &ids); };
  while (!in.empty()) {
    uint8_t order = in.next();
    if (order < std::size(kPieces)) {
      for (const char* c = kPieces[order]; *c != 0; ++c) {
        if (*c == '@') {
          ids.push_back(control().dsml);
        } else if (*c == '%') {
          plain("｜DSML｜");
        } else {
          plain(std::string_view(c, 1));
        }
      }
    } else if (order == 0xf8) {
      ids.push_back(control().think_close);
    } else if (order == 0xf9) {
      ids.push_back(control().user);
    } else if (order == 0xfa) {
      ids.push_back(control().eos);
    } else {
      char byte = static_cast<char>(order);
      plain(std::string_view(&byte, 1));
    }
  }
  return ids;
}

void any_markup(uint8_t flags, Bytes in) {
  ParsingOptions parsing = options(flags);
  std::vector<int32_t> ids = ids_of(in);
  // Once from outside, token by token through every writer; once with all text joined.
  OutputParserOptions record;
  record.record = true;
  OutputParser parser(&vocabulary(), control(), parsing, record);
  std::vector<OutputChunk> chunks;
  for (int32_t id : ids) parser.token(id, &chunks);
  parser.finish(EngineFinish::kStop, &chunks);
  OutputMachine machine(parsing);
  std::vector<Piece> pieces;
  Utf8Assembler assembler;
  std::string run;
  auto flush = [&] {
    if (!run.empty()) machine.push(run, ByteOrigin::kPlain, &pieces);
    run.clear();
  };
  for (int32_t id : ids) {
    const AddedToken* added = vocabulary().added_token(id);
    if (added == nullptr) {
      run += assembler.push(vocabulary().token_bytes(id));
    } else if (id != control().eos) {
      run += assembler.flush();
      flush();
      if (id == control().dsml || id == control().think_close)
        machine.push(added->text, ByteOrigin::kControl, &pieces);
    }
  }
  flush();
  machine.finish(&pieces);
  std::string joined, told, thought;
  for (const Piece& p : pieces) {
    if (p.kind == Piece::Kind::kCall) joined += "|" + p.text + "=";
    if (p.kind == Piece::Kind::kArguments) joined += p.text;
    if (p.kind == Piece::Kind::kText) told += p.text;
    if (p.kind == Piece::Kind::kReasoning) thought += p.text;
  }
  Flat f = flat(chunks);
  DI_CHECK(f.calls == joined && f.text == told && f.reasoning == thought,
           "the result depends on how tokens are grouped");
  DI_CHECK(f.usage.reasoning_tokens <= f.usage.completion_tokens, "more reasoning than tokens");
  // One protocol a run, and events in one run of eight: reading every event would be most of the time.
  auto p = static_cast<Protocol>(ids.size() % 3);
  ResponseInfo info;
  info.id = "R";
  info.custom_tools = {"apply_patch"};
  std::unique_ptr<ResponseWriter> writer = make_writer(p, info);
  TurnRecorder recorder(p, "R");
  std::vector<Event> events;
  for (const OutputChunk& c : chunks) writer->write(c, &events), recorder.write(c);
  DI_CHECK(parse_json(writer->final_object()).ok(), "the final object is no JSON");
  for (const Event& e : ids.size() / 3 % 8 == 0 ? events : std::vector<Event>())
    DI_CHECK(e.data == "[DONE]" || parse_json(e.data).ok(), "an event is no JSON");
  if (!parser.repeatable()) return;
  bool thinking = parsing.stage == ReasoningStage::kStart;
  TurnMemory memory(1 << 20);
  memory.remember("s", recorder.turn(), {parser.sampled(), thinking, false});
  auto found = memory.find("s", recorder.turn(), thinking);
  DI_CHECK(found != nullptr && found->ids == parser.sampled(), "a repeatable turn is not found again");
  for (int32_t id : found->ids)
    DI_CHECK(!vocabulary().is_added(id) || id == control().dsml || id == control().think_close,
             "a remembered turn brings a control id");
}

Json value(Bytes* in, int depth) {
  switch (in->next() % (depth < 4 ? 8 : 6)) {
    case 0:
      return nullptr;
    case 1:
      return in->next() % 2 == 0;
    case 2:
      return int64_t{in->next()} - 100;
    case 3:
      return in->next() / 7.0;
    case 6: {
      Json list = Json::array();
      for (size_t n = in->next() % 3; n > 0; --n) list.push_back(value(in, depth + 1));
      return list;
    }
    case 7: {
      Json object = Json::object();
      for (size_t n = in->next() % 3; n > 0; --n) object[in->text(in->next() % 8)] = value(in, depth + 1);
      return object;
    }
    default:
      return in->text(in->next() % 64);
  }
}

// Names and keys stand in quotes without escapes; a quote in them is the client's own loss.
std::string unquoted(std::string s) {
  std::replace(s.begin(), s.end(), '"', '_');
  return s;
}
// Neither are keys escaped on the way back.
std::string plain_key(std::string s) {
  s = unquoted(std::move(s));
  for (char& c : s) {
    if (c == '\\' || static_cast<uint8_t>(c) < 0x20) c = '_';
  }
  return s;
}

void stored_calls(uint8_t flags, Bytes in) {
  Conversation c;
  c.thinking_mode = (flags & 2) != 0;
  Message user, turn;
  user.content = "u";
  turn.role = Role::kAssistant;
  turn.content = "c";
  turn.reasoning = "r";
  ParsingOptions parsing;
  parsing.parse_tool_calls = true;
  parsing.stage = c.thinking_mode ? ReasoningStage::kStart : ReasoningStage::kNone;
  std::vector<std::pair<std::string, Json>> want;
  for (int calls = in.next() % 3 + 1; calls > 0; --calls) {
    std::string name = unquoted(in.text(in.next() % 12));
    Json arguments = Json::object();
    for (size_t n = in.next() % 4; n > 0; --n) arguments[plain_key(in.text(in.next() % 8))] = value(&in, 0);
    for (auto& [key, v] : arguments.items()) {
      ArgumentType type = v.is_string() ? ArgumentType::kString : ArgumentType::kJson;
      if ((flags & 4) != 0 && (v.is_string() || v.is_null())) type = ArgumentType::kString;
      if ((flags & 8) == 0) continue;
      // Two calls that disagree leave it open.
      auto [known, fresh] = parsing.argument_types[name].emplace(key, type);
      if (!fresh && known->second != type) known->second = ArgumentType::kAny;
    }
    turn.tool_calls.push_back({"i" + std::to_string(calls), name, arguments.dump()});
    want.emplace_back(name, arguments);
  }
  c.messages = {user, turn};
  std::vector<int32_t> ids = encode_spans(vocabulary(), render_conversation(c, control(), {}).value());
  OutputParser parser(&vocabulary(), control(), parsing);
  std::vector<OutputChunk> chunks;
  auto from = std::find(ids.begin(), ids.end(), control().assistant) + 2;
  for (; *from != control().eos; ++from) parser.token(*from, &chunks);
  parser.finish(EngineFinish::kStop, &chunks);
  std::vector<std::pair<std::string, std::string>> have;
  for (const OutputChunk& chunk : chunks) {
    if (chunk.kind == OutputChunk::Kind::kCall) have.emplace_back(chunk.text, "");
    if (chunk.kind == OutputChunk::Kind::kArguments) have.back().second += chunk.text;
  }
  DI_CHECK(have.size() == want.size(), "a stored call is not read back");
  for (size_t i = 0; i < want.size(); ++i) {
    DI_CHECK(have[i].first == want[i].first, "another name");
    Result<Json> back = parse_json(have[i].second);
    DI_CHECK(back.ok() && to_python_json(*back) == to_python_json(want[i].second), "other arguments");
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size < 2) return 0;
  Bytes in(data + 1, size - 1);
  if ((data[0] & 1) == 0) {
    any_markup(data[0], in);
  } else {
    stored_calls(data[0], in);
  }
  return 0;
}
