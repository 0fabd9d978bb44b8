// Speed of the request edge: edge_bench TOKENIZER.json TEXTFILE prints render + encode of a 200-message
// conversation of about 100 K tokens cut from the text, cold and with only the last turn new, on one thread
// and on all, and the parser's cost per token. Numbers are for this machine at this moment; nothing is
// asserted.
#include <atomic>
#include <chrono>
#include <cstdio>
#include <fstream>
#include <sstream>
#include <thread>

#include "edge/writer.h"
#include "text/prompt_encoder.h"

namespace {

using namespace deepinfer;

double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

void on_all_threads(size_t n, const std::function<void(size_t)>& task) {
  std::atomic<size_t> next{0};
  std::vector<std::thread> team;
  for (unsigned i = 0; i < std::max(1u, std::thread::hardware_concurrency()); ++i) {
    team.emplace_back([&] {
      for (size_t k = next++; k < n; k = next++) task(k);
    });
  }
  for (std::thread& t : team) t.join();
}

Conversation conversation(const std::string& text, const Tokenizer& tokenizer) {
  constexpr size_t kMessages = 200, kTokens = 100000;
  double bytes_per_token =
      static_cast<double>(text.size()) / static_cast<double>(tokenizer.encode(text).size());
  auto each = static_cast<size_t>(bytes_per_token * kTokens / kMessages);
  Conversation c;
  for (size_t i = 0; i < kMessages; ++i) {
    Message m;
    m.role = i % 2 == 0 ? Role::kUser : Role::kAssistant;
    size_t at = i * each % (text.size() - each);
    m.content = Content(text.substr(at, each));
    if (m.role == Role::kAssistant) m.reasoning = "because";
    c.messages.push_back(std::move(m));
  }
  c.messages.pop_back();  // the last turn is the user's
  ToolDefinition tool;
  tool.name = "search";
  tool.parameters = Json{{"type", "object"}, {"properties", {{"query", {{"type", "string"}}}}}};
  c.tools = {tool};
  return c;
}

void bench_prompt(const Tokenizer& tokenizer, const std::string& text) {
  ControlTokens control = ControlTokens::from_tokenizer(tokenizer).value();
  Conversation c = conversation(text, tokenizer);
  auto time = [&](const char* what, PromptEncoder& encoder, const PromptEncoder::ParallelFor& parallel) {
    double start = now();
    std::vector<Span> spans = render_conversation(c, control, {}).value();
    size_t n = encoder.encode(spans, parallel).size();
    std::printf("%-46s %7.2f ms, %zu ids, %zu messages\n", what, (now() - start) * 1e3, n, c.messages.size());
  };
  PromptEncoder encoder(tokenizer);
  time("render + encode, cold, one thread:", encoder, {});
  time("render + encode, nothing new:", encoder, {});
  Message m;
  m.role = Role::kAssistant;
  m.content = Content(text.substr(0, 2000));
  m.reasoning = "because";
  c.messages.push_back(m);
  m.role = Role::kUser;
  m.content = Content(text.substr(2000, 2000));
  c.messages.push_back(m);
  time("render + encode, only the last turn new:", encoder, {});
  PromptEncoder fresh(tokenizer);
  time("render + encode, cold, all threads:", fresh, on_all_threads);
}

void bench_parser(const Tokenizer& tokenizer, const std::string& text) {
  ControlTokens control = ControlTokens::from_tokenizer(tokenizer).value();
  std::vector<int32_t> ids = tokenizer.encode(text);
  ParsingOptions options;
  options.parse_tool_calls = true;
  options.stage = ReasoningStage::kStart;
  for (int stops : {0, 16}) {
    options.stop_sequences.clear();
    for (int i = 0; i < stops; ++i) options.stop_sequences.push_back("never seen " + std::to_string(i));
    OutputParser parser(&tokenizer, control, options);
    std::vector<OutputChunk> out;
    parser.token(control.think_close, &out);
    double start = now();
    for (int32_t id : ids) {
      parser.token(id, &out);
      out.clear();
    }
    std::printf("parser, %2d stop strings: %25.3f us per token (%zu tokens)\n", stops,
                (now() - start) * 1e6 / static_cast<double>(ids.size()), ids.size());
  }
  for (Protocol p : {Protocol::kChat, Protocol::kResponses, Protocol::kMessages}) {
    OutputParser parser(&tokenizer, control, options);
    std::unique_ptr<ResponseWriter> writer = make_writer(p, {});
    std::vector<OutputChunk> out;
    std::vector<Event> events;
    double start = now();
    for (int32_t id : ids) {
      parser.token(id, &out);
      for (const OutputChunk& c : out) writer->write(c, &events);
      out.clear();
      events.clear();
    }
    const char* names[] = {"Chat", "Responses", "Messages"};
    std::printf("parser + %-9s events: %22.3f us per token\n", names[static_cast<int>(p)],
                (now() - start) * 1e6 / static_cast<double>(ids.size()));
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 3) {
    std::fprintf(stderr, "usage: edge_bench TOKENIZER.json TEXTFILE (at least 1 MB of text)\n");
    return 2;
  }
  Result<Tokenizer> tokenizer = Tokenizer::from_file(argv[1]);
  if (!tokenizer.ok()) {
    std::fprintf(stderr, "%s\n", tokenizer.status().to_string().c_str());
    return 1;
  }
  std::ifstream in(argv[2], std::ios::binary);
  std::ostringstream s;
  s << in.rdbuf();
  std::string text = s.str();
  if (text.size() < 100000) {
    std::fprintf(stderr, "%s: needs at least 100 kB of text\n", argv[2]);
    return 1;
  }
  bench_prompt(*tokenizer, text);
  bench_parser(*tokenizer, text.substr(0, 2000000));
  return 0;
}
