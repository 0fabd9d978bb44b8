// Fuzzes the state machine and the writers with any model text: any cut gives the same result, the final
// object is JSON, DSML in any state of ruin never crashes. First byte: options; second: where to cut, and
// the protocol; the rest is the reply.
#include <cstdint>

#include "edge/writer.h"
#include "text/unicode.h"

namespace {

using namespace deepinfer;

struct Flat {
  std::string text, reasoning, calls;
  bool operator==(const Flat&) const = default;
};

Flat flat(const std::vector<OutputChunk>& chunks) {
  Flat f;
  for (const OutputChunk& c : chunks) {
    if (c.kind == OutputChunk::Kind::kText) f.text += c.text;
    if (c.kind == OutputChunk::Kind::kReasoning) f.reasoning += c.text;
    if (c.kind == OutputChunk::Kind::kCall) f.calls += "|" + c.text + "=";
    if (c.kind == OutputChunk::Kind::kArguments) f.calls += c.text;
  }
  return f;
}

std::vector<OutputChunk> parse(const std::string& reply, const ParsingOptions& options, size_t step) {
  OutputParser parser(nullptr, ControlTokens::released(), options);
  std::vector<OutputChunk> out;
  for (size_t at = 0; at < reply.size();) {
    size_t end = at;
    while (end < reply.size() && end - at < step)
      end += decode_utf8(std::string_view(reply).substr(end)).size;
    parser.text(std::string_view(reply).substr(at, end - at), 1, &out);
    at = end;
  }
  parser.finish(EngineFinish::kStop, &out);
  return out;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size < 2) return 0;
  ParsingOptions options;
  options.parse_tool_calls = (data[0] & 1) == 0;
  options.starts_in_calls = (data[0] & 6) == 6;
  options.parse_json_output = (data[0] & 8) != 0;
  options.stage = static_cast<ReasoningStage>(data[0] >> 4 & 3);
  if ((data[0] & 64) != 0) options.stop_sequences = {"END", "\n\n", "ab"};
  std::string reply = to_valid_utf8({reinterpret_cast<const char*>(data) + 2, size - 2});
  std::vector<OutputChunk> whole = parse(reply, options, reply.size() + 1);
  std::vector<OutputChunk> cut = parse(reply, options, 1 + data[1] % 7);
  DI_CHECK(flat(whole) == flat(cut), "the result depends on the cuts");
  // One protocol a run, and events in one run of eight: reading every event would be most of the time.
  ResponseInfo info;
  info.id = "R";
  info.custom_tools = {"apply_patch"};
  std::unique_ptr<ResponseWriter> writer = make_writer(static_cast<Protocol>(data[1] / 7 % 3), info);
  std::vector<Event> events;
  for (const OutputChunk& c : cut) writer->write(c, &events);
  DI_CHECK(parse_json(writer->final_object()).ok(), "the final object is no JSON");
  for (const Event& e : size % 8 == 0 ? events : std::vector<Event>())
    DI_CHECK(e.data == "[DONE]" || parse_json(e.data).ok(), "an event is no JSON");
  return 0;
}
