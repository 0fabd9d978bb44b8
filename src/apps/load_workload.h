// What a load bench sends: sessions of turns with lengths drawn from the published workload shapes, or the
// requests of a trace. Token ids are random but equal where prefixes are equal, so that a cache has something
// to hit. Knows no engine and no clock. Source: serving specification 2.7, 13.5, 14.2. Threads: pure
// functions.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/status.h"
#include "sim/trace.h"

namespace deepinfer {

struct LoadTurn {
  std::vector<int32_t> input;  // appended to what was said before
  int64_t output_tokens = 1;
};
// A session's turns follow each other: a turn is sent when the one before has its answer.
struct LoadSession {
  int64_t start_ns = 0;  // open loop: when its first turn arrives
  std::vector<LoadTurn> turns;
  // Contexts longer than this start anew from the first turn's input (compaction); 0: never.
  int64_t compact_above_tokens = 0;
};
struct Workload {
  std::string name;
  std::vector<LoadSession> sessions;
  int64_t first_prompt_tokens() const;  // of all sessions
};

// kBehind: short chats (64 tokens in, 16 out) while every eighth session is a prompt of three quarters of the
// context.
enum class LoadKind { kChat, kAgent, kDocuments, kUniform, kBehind };
// kNotFound names the words there are.
Result<LoadKind> load_kind(const std::string& name);

struct LoadSpec {
  LoadKind kind = LoadKind::kChat;
  int64_t sessions = 32;
  // Lengths of the shape are divided by this, so that it fits a small model's context; at least one token
  // stays.
  double shrink = 1;
  int64_t context_tokens = 1 << 20;  // sessions end before they grow beyond it
  double sessions_per_s = 0;         // open loop: Poisson; 0: closed loop, start_ns is 0
  int64_t input_tokens = 128, output_tokens = 64, turns = 1;  // kUniform
  uint64_t seed = 1;
  std::vector<int32_t> ids;  // to draw from: the vocabulary's plain tokens
};
// kInvalidArgument: a length or rate that makes no sense, or no ids.
Result<Workload> make_workload(const LoadSpec& spec);
// A session of one turn per request of a trace; blocks with equal ids have equal tokens. Requests longer than
// the context are cut to it and counted.
Workload trace_workload(const sim::Trace& trace, const LoadSpec& spec, int64_t* cut);

}  // namespace deepinfer
