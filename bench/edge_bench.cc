// Speed of the request edge: edge_bench TOKENIZER.json TEXTFILE prints render + encode of a 200-message
// conversation of about 100 K tokens cut from the text, cold and with only the last turn new, on one thread
// and on all, and the parser's cost per token. Numbers are for this machine at this moment; nothing is
// asserted.
#include <atomic>
#include <chrono>
#include <cstdio>
#include <ctime>
#include <fstream>
#include <sstream>
#include <thread>

#include "edge/writer.h"
#include "text/prompt_encoder.h"

namespace {

using namespace deepinfer;

// CPU time of the process: on a busy machine it tells more than the clock on the wall.
double cpu() {
  return static_cast<double>(std::clock()) / CLOCKS_PER_SEC;
}
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

struct Best {
  double wall = 1e9, processor = 1e9;
  void run(const std::function<void()>& work) {
    double w = now(), c = cpu();
    work();
    wall = std::min(wall, now() - w);
    processor = std::min(processor, cpu() - c);
  }
};

void add_turn(Conversation* c, const std::string& text, size_t at) {
  Message m;
  m.role = Role::kAssistant;
  m.content = Content(text.substr(at, 2000));
  m.reasoning = "because";
  c->messages.push_back(m);
  m.role = Role::kUser;
  m.content = Content(text.substr(at + 2000, 2000));
  c->messages.push_back(m);
}

void bench_prompt(const Tokenizer& tokenizer, const std::string& text) {
  constexpr int kRounds = 7;
  ControlTokens control = ControlTokens::from_tokenizer(tokenizer).value();
  Conversation c = conversation(text, tokenizer);
  size_t ids = 0;
  auto encode = [&](PromptEncoder& encoder, const PromptEncoder::ParallelFor& parallel) {
    std::vector<Span> spans = render_conversation(c, control, {}).value();
    ids = encoder.encode(spans, parallel).size();
  };
  auto print = [&](const char* what, const Best& best) {
    std::printf("%-42s %7.2f ms wall, %7.2f ms processor; %zu ids, %zu messages (best of %d)\n", what,
                best.wall * 1e3, best.processor * 1e3, ids, c.messages.size(), kRounds);
  };
  Best cold, parallel, again, turn;
  for (int i = 0; i < kRounds; ++i) {
    PromptEncoder fresh(tokenizer);
    cold.run([&] { encode(fresh, {}); });
    again.run([&] { encode(fresh, {}); });
  }
  print("render + encode, cold, one thread:", cold);
  print("render + encode, nothing new:", again);
  for (int i = 0; i < kRounds; ++i) {
    PromptEncoder fresh(tokenizer);
    parallel.run([&] { encode(fresh, on_all_threads); });
  }
  print("render + encode, cold, all threads:", parallel);
  PromptEncoder warm(tokenizer);
  encode(warm, {});
  for (int i = 0; i < kRounds; ++i) {
    add_turn(&c, text, static_cast<size_t>(i) * 4001);
    turn.run([&] { encode(warm, {}); });
  }
  print("render + encode, only the last turn new:", turn);
}

void bench_parser(const Tokenizer& tokenizer, const std::string& text) {
  ControlTokens control = ControlTokens::from_tokenizer(tokenizer).value();
  std::vector<int32_t> ids = tokenizer.encode(text);
  ParsingOptions options;
  options.parse_tool_calls = true;
  options.stage = ReasoningStage::kStart;
  auto print = [&](const char* what, const Best& best) {
    double n = static_cast<double>(ids.size()) / 1e6;
    std::printf("%-42s %7.3f us wall, %7.3f us processor per token (%zu tokens, best of 5)\n", what,
                best.wall / n, best.processor / n, ids.size());
  };
  for (int stops : {0, 16}) {
    options.stop_sequences.clear();
    for (int i = 0; i < stops; ++i) options.stop_sequences.push_back("never seen " + std::to_string(i));
    Best best;
    for (int round = 0; round < 5; ++round) {
      OutputParser parser(&tokenizer, control, options);
      std::vector<OutputChunk> out;
      parser.token(control.think_close, &out);
      best.run([&] {
        for (int32_t id : ids) {
          parser.token(id, &out);
          out.clear();
        }
      });
    }
    print(stops == 0 ? "parser, no stop strings:" : "parser, 16 stop strings:", best);
  }
  options.stop_sequences.clear();
  for (Protocol p : {Protocol::kChat, Protocol::kResponses, Protocol::kMessages}) {
    Best best;
    for (int round = 0; round < 5; ++round) {
      OutputParser parser(&tokenizer, control, options);
      std::unique_ptr<ResponseWriter> writer = make_writer(p, {});
      std::vector<OutputChunk> out;
      std::vector<Event> events;
      best.run([&] {
        for (int32_t id : ids) {
          parser.token(id, &out);
          for (const OutputChunk& c : out) writer->write(c, &events);
          out.clear();
          events.clear();
        }
      });
    }
    const char* names[] = {
        "parser + Chat events:", "parser + Responses events:", "parser + Messages events:"};
    print(names[static_cast<int>(p)], best);
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
  if (Result<ControlTokens> c = ControlTokens::from_tokenizer(*tokenizer); !c.ok() || c->system < 0) {
    std::fprintf(stderr, "%s: the vocabulary has no V4.1 control tokens\n", argv[1]);
    return 1;
  }
  bench_prompt(*tokenizer, text);
  bench_parser(*tokenizer, text.substr(0, 1000000));
  return 0;
}
