// The shapes are those of the published cache study; agent sessions compact when they grow long.
#include "apps/load_workload.h"

#include <algorithm>
#include <cmath>

#include "sim/random.h"

namespace deepinfer {

int64_t Workload::first_prompt_tokens() const {
  int64_t n = 0;
  for (const LoadSession& s : sessions)
    n += s.turns.empty() ? 0 : static_cast<int64_t>(s.turns[0].input.size());
  return n;
}

Result<LoadKind> load_kind(const std::string& name) {
  if (name == "chat") return LoadKind::kChat;
  if (name == "agent") return LoadKind::kAgent;
  if (name == "documents") return LoadKind::kDocuments;
  if (name == "uniform") return LoadKind::kUniform;
  if (name == "behind") return LoadKind::kBehind;
  return error(Code::kNotFound,
               "no workload '{}'; there are chat, agent, documents, uniform, behind, and trace files", name);
}

namespace {

struct Shape {
  int64_t system = 0;
  int64_t first_low = 0, first_high = 0, later_low = 0, later_high = 0, out_low = 1, out_high = 1;
  int64_t turns = 1;
  int64_t compact = 0;
  double repeat = 0;  // probability that a session is one that was already sent
};

Shape shape_of(const LoadSpec& s) {
  switch (s.kind) {
    case LoadKind::kChat:
      return {800, 20, 200, 20, 200, 200, 600, 8, 0, 0};
    case LoadKind::kAgent:
      return {4000, 200, 2000, 200, 4000, 100, 500, 40, 100000, 0};
    case LoadKind::kDocuments:
      return {0, 20000, 200000, 0, 0, 100, 500, 1, 0, 0.22};
    case LoadKind::kBehind:
      return {0, 64, 64, 0, 0, 16, 16, 1, 0, 0};
    case LoadKind::kUniform:
      return {0,
              s.input_tokens,
              s.input_tokens,
              s.input_tokens,
              s.input_tokens,
              s.output_tokens,
              s.output_tokens,
              s.turns,
              0,
              0};
  }
  return {};
}

class Maker {
 public:
  explicit Maker(const LoadSpec& spec) : spec_(spec), shape_(shape_of(spec)), random_(spec.seed) {}

  Workload make(const char* name) {
    Workload w{name, {}};
    std::vector<int32_t> system = tokens(scaled(shape_.system));
    double at = 0;
    for (int64_t i = 0; i < spec_.sessions; ++i) {
      LoadSession s;
      if (shape_.repeat > 0 && i > 0 && random_.unit() < shape_.repeat) {
        s = w.sessions[static_cast<size_t>(random_.in(0, i - 1))];
      } else {
        s = session(system);
      }
      if (spec_.kind == LoadKind::kBehind && i % 8 == 0)
        s.turns[0].input = tokens(spec_.context_tokens * 3 / 4);
      if (spec_.sessions_per_s > 0) at += random_.exponential(1e9 / spec_.sessions_per_s);
      s.start_ns = static_cast<int64_t>(at);
      w.sessions.push_back(std::move(s));
    }
    return w;
  }

 private:
  int64_t scaled(int64_t n) const {
    return n == 0 ? 0
                  : std::max<int64_t>(
                        1, static_cast<int64_t>(std::llround(static_cast<double>(n) / spec_.shrink)));
  }
  int64_t between(int64_t low, int64_t high) { return scaled(random_.in(low, high)); }
  std::vector<int32_t> tokens(int64_t n) {
    std::vector<int32_t> t(static_cast<size_t>(n));
    for (int32_t& id : t)
      id = spec_.ids[static_cast<size_t>(random_.in(0, static_cast<int64_t>(spec_.ids.size()) - 1))];
    return t;
  }
  LoadSession session(const std::vector<int32_t>& system) {
    LoadSession s;
    s.compact_above_tokens = scaled(shape_.compact);
    int64_t total = 0;
    for (int64_t t = 0; t < shape_.turns; ++t) {
      LoadTurn turn;
      if (t == 0) turn.input = system;
      int64_t room = spec_.context_tokens - total - static_cast<int64_t>(turn.input.size());
      int64_t wanted = t == 0 ? between(shape_.first_low, shape_.first_high)
                              : between(shape_.later_low, shape_.later_high);
      turn.output_tokens = between(shape_.out_low, shape_.out_high);
      if (s.compact_above_tokens == 0 && wanted + turn.output_tokens > room) {
        if (t > 0) break;
        wanted = std::max<int64_t>(1, room - turn.output_tokens);
      }
      std::vector<int32_t> more = tokens(wanted);
      turn.input.insert(turn.input.end(), more.begin(), more.end());
      total += static_cast<int64_t>(turn.input.size()) + turn.output_tokens;
      s.turns.push_back(std::move(turn));
    }
    return s;
  }

  const LoadSpec& spec_;
  Shape shape_;
  sim::Random random_;
};

}  // namespace

Result<Workload> make_workload(const LoadSpec& spec) {
  if (spec.ids.empty()) return error(Code::kInvalidArgument, "a workload needs token ids to draw from");
  if (spec.sessions < 1 || spec.sessions > 1'000'000)
    return error(Code::kInvalidArgument, "sessions must be 1 to 1,000,000, not {}", spec.sessions);
  if (!(spec.shrink >= 1))
    return error(Code::kInvalidArgument, "shrink must be at least 1, not {}", spec.shrink);
  if (!(spec.sessions_per_s >= 0))
    return error(Code::kInvalidArgument, "a rate must not be negative, not {}", spec.sessions_per_s);
  if (spec.input_tokens < 1 || spec.output_tokens < 1 || spec.turns < 1)
    return error(Code::kInvalidArgument,
                 "a uniform workload needs at least one token in, one out and one turn");
  const char* name = spec.kind == LoadKind::kChat        ? "chat"
                     : spec.kind == LoadKind::kAgent     ? "agent"
                     : spec.kind == LoadKind::kDocuments ? "documents"
                     : spec.kind == LoadKind::kBehind    ? "behind"
                                                         : "uniform";
  return Maker(spec).make(name);
}

Workload trace_workload(const sim::Trace& trace, const LoadSpec& spec, int64_t* cut) {
  Workload w{"trace", {}};
  *cut = 0;
  int64_t first = trace.requests.empty() ? 0 : trace.requests.front().arrival_ns;
  auto draw = [&](sim::Random* r) {
    return spec.ids[static_cast<size_t>(r->in(0, static_cast<int64_t>(spec.ids.size()) - 1))];
  };
  for (size_t i = 0; i < trace.requests.size(); ++i) {
    const sim::TraceRequest& q = trace.requests[i];
    auto scaled = [&](int64_t n) {
      return std::max<int64_t>(1, static_cast<int64_t>(std::llround(static_cast<double>(n) / spec.shrink)));
    };
    int64_t in = scaled(q.input_tokens), out = scaled(q.output_tokens), block = scaled(trace.block_tokens);
    if (in + out > spec.context_tokens) {
      ++*cut;
      out = std::min(out, spec.context_tokens - 1);
      in = std::min(in, spec.context_tokens - out);
    }
    LoadTurn turn;
    turn.output_tokens = out;
    for (uint32_t b = 0; static_cast<int64_t>(turn.input.size()) < in; ++b) {
      // The tokens of a block are a function of its id; what has no id is the request's own.
      bool known = b < q.id_count;
      sim::Random own(known ? trace.ids[q.first_id + b] : 0x51ED270B0A1F39C1ull + i * 1000003 + b);
      for (int64_t k = 0; k < block && static_cast<int64_t>(turn.input.size()) < in; ++k)
        turn.input.push_back(draw(&own));
    }
    LoadSession s;
    s.start_ns = q.arrival_ns - first;
    s.turns.push_back(std::move(turn));
    w.sessions.push_back(std::move(s));
  }
  return w;
}

}  // namespace deepinfer
