// Speed of the request edge: edge_bench TOKENIZER.json TEXTFILE prints render + encode of a 200-message
// conversation of about 100 K tokens cut from the text, cold and with only the last turn new, on one thread
// and on two, and the parser's cost per token. Each figure is the median of several runs, of the clock on the
// wall and of processor time, with the fastest and slowest run beside it and the machine's load before and
// after. Numbers are for this machine at this moment; nothing is asserted.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
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

// The calling thread and one more.
void on_two_threads(size_t n, const std::function<void(size_t)>& task) {
  std::atomic<size_t> next{0};
  auto work = [&] {
    for (size_t k = next++; k < n; k = next++) task(k);
  };
  std::thread other(work);
  work();
  other.join();
}

void print_load(const char* when) {
  double load[3] = {-1, -1, -1};
  if (getloadavg(load, 3) < 1) load[0] = -1;
  std::printf("load average %s: %.2f %.2f %.2f on %u processors\n", when, load[0], load[1], load[2],
              std::thread::hardware_concurrency());
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

// Times of several runs.
class Runs {
 public:
  void run(const std::function<void()>& work) {
    double w = now(), c = cpu();
    work();
    wall_.push_back(now() - w);
    processor_.push_back(cpu() - c);
  }
  // "name   median wall, median processor (fastest to slowest wall)", in `unit`s of `per` seconds.
  void print(const char* name, double per, const char* unit, const std::string& what) const {
    std::vector<double> w = sorted(wall_), p = sorted(processor_);
    std::printf("%-42s %8.3f %s wall, %8.3f %s processor; wall %.3f to %.3f in %zu runs; %s\n", name,
                median(w) / per, unit, median(p) / per, unit, w.front() / per, w.back() / per, w.size(),
                what.c_str());
  }

 private:
  static std::vector<double> sorted(std::vector<double> v) {
    std::sort(v.begin(), v.end());
    return v;
  }
  static double median(const std::vector<double>& v) { return (v[v.size() / 2] + v[(v.size() - 1) / 2]) / 2; }
  std::vector<double> wall_, processor_;
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
  constexpr int kRounds = 21;
  ControlTokens control = ControlTokens::from_tokenizer(tokenizer).value();
  Conversation c = conversation(text, tokenizer);
  size_t ids = 0;
  auto encode = [&](PromptEncoder& encoder, const PromptEncoder::ParallelFor& parallel) {
    std::vector<Span> spans = render_conversation(c, control, {}).value();
    ids = encoder.encode(spans, parallel).size();
  };
  auto size = [&] { return fmt::format("{} ids, {} messages", ids, c.messages.size()); };
  Runs cold, parallel, again, turn;
  for (int i = 0; i < kRounds; ++i) {
    PromptEncoder fresh(tokenizer);
    cold.run([&] { encode(fresh, {}); });
    again.run([&] { encode(fresh, {}); });
  }
  cold.print("render + encode, cold, one thread:", 1e-3, "ms", size());
  for (int i = 0; i < kRounds; ++i) {
    PromptEncoder fresh(tokenizer);
    parallel.run([&] { encode(fresh, on_two_threads); });
  }
  parallel.print("render + encode, cold, two threads:", 1e-3, "ms", size());
  again.print("render + encode, nothing new:", 1e-3, "ms", size());
  PromptEncoder warm(tokenizer);
  encode(warm, {});
  for (int i = 0; i < kRounds; ++i) {
    add_turn(&c, text, static_cast<size_t>(i) * 4001 % (text.size() - 5000));
    turn.run([&] { encode(warm, {}); });
  }
  turn.print("render + encode, only the last turn new:", 1e-3, "ms", size());
}

void bench_parser(const Tokenizer& tokenizer, const std::string& text) {
  constexpr int kRounds = 9;
  ControlTokens control = ControlTokens::from_tokenizer(tokenizer).value();
  std::vector<int32_t> ids = tokenizer.encode(text);
  ParsingOptions options;
  options.parse_tool_calls = true;
  options.stage = ReasoningStage::kStart;
  const double per_token = static_cast<double>(ids.size()) * 1e-6;
  const std::string size = fmt::format("per token, {} tokens", ids.size());
  for (int stops : {0, 16}) {
    options.stop_sequences.clear();
    for (int i = 0; i < stops; ++i) options.stop_sequences.push_back("never seen " + std::to_string(i));
    Runs runs;
    for (int round = 0; round < kRounds; ++round) {
      OutputParser parser(&tokenizer, control, options);
      std::vector<OutputChunk> out;
      parser.token(control.think_close, &out);
      runs.run([&] {
        for (int32_t id : ids) {
          parser.token(id, &out);
          out.clear();
        }
      });
    }
    runs.print(stops == 0 ? "parser, no stop strings:" : "parser, 16 stop strings:", per_token, "us", size);
  }
  options.stop_sequences.clear();
  for (Protocol p : {Protocol::kChat, Protocol::kResponses, Protocol::kMessages}) {
    Runs runs;
    for (int round = 0; round < kRounds; ++round) {
      OutputParser parser(&tokenizer, control, options);
      std::unique_ptr<ResponseWriter> writer = make_writer(p, {});
      std::vector<OutputChunk> out;
      std::vector<Event> events;
      runs.run([&] {
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
    runs.print(names[static_cast<int>(p)], per_token, "us", size);
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
  print_load("before");
  bench_prompt(*tokenizer, text);
  bench_parser(*tokenizer, text.substr(0, 1000000));
  print_load("after");
  return 0;
}
