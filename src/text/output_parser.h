// From what the engine sends (ready, tokens or text, finish) to output chunks every protocol writer reads:
// token bytes, UTF-8 assembly, the state machine, token counts and log-probabilities. One parse for all
// protocols, streaming or not. Source: request edge specification 0, 5. Threads: one object per stream.
#pragma once

#include <deque>
#include <optional>
#include <string>
#include <vector>

#include "text/output_machine.h"
#include "text/render.h"
#include "text/tokenizer.h"

namespace deepinfer {

// The sampler's static ban list (specification 1.2): every added token except EOS, </think> and DSML,
// ascending.
std::vector<int32_t> banned_outputs(const Tokenizer& tokenizer, const ControlTokens& control);

enum class FinishReason {
  kStop,
  kToolCalls,
  kStopSequence,
  kLength,
  kContentFilter,
  kEndOfStream,
  kInsufficientResource,
  kAborted
};

struct Usage {
  int64_t prompt_tokens = 0;      // images included
  int64_t cache_hit_tokens = 0;   // of them, read from the prefix cache
  int64_t store_tokens = 0;       // of those, brought in from the persistent store
  int64_t completion_tokens = 0;  // markup and </think> included, EOS not
  int64_t reasoning_tokens = 0;   // of them, consumed while reasoning (its closing tag included)
};

struct TokenLogprob {
  int32_t id = 0;
  double logprob = 0;
  std::vector<std::pair<int32_t, double>> top;
};

struct OutputChunk {
  enum class Kind { kStart, kText, kReasoning, kCall, kArguments, kFinish };
  Kind kind = Kind::kText;
  std::string text;                        // kText, kReasoning, kArguments; kCall: the name
  std::vector<TokenLogprob> logprobs;      // kText, kReasoning: tokens that became this text
  std::optional<std::string> fingerprint;  // kStart
  Usage usage;                             // kStart: prompt side; kFinish: all; else completion_tokens so far
  FinishReason reason = FinishReason::kStop;  // kFinish
  std::optional<std::string> stop_string;     // kFinish, when reason is kStopSequence
};

enum class EngineFinish { kStop, kLength, kContentFilter, kInsufficientResource, kAborted };

struct OutputParserOptions {
  // Accept markers the model wrote with ordinary tokens (specification 5.2).
  bool markers_by_spelling = false;
  bool record = false;  // keep the ids that arrive, for text/turn_memory.h
  // What continues the last chunk of the vector handed in becomes part of it: several tokens given together
  // are one chunk, for whoever pays per chunk.
  bool join = false;
};

class OutputParser : private OutputMachine::Listener {
 public:
  using Options = OutputParserOptions;
  // `tokenizer` may be null if only text arrives; otherwise it must outlive the parser.
  OutputParser(const Tokenizer* tokenizer, const ControlTokens& control, const ParsingOptions& parsing,
               Options options = {});
  OutputParser(const OutputParser&) = delete;
  OutputParser& operator=(const OutputParser&) = delete;

  // The first call before any output supplies the start; later ones change nothing.
  void ready(std::optional<std::string> fingerprint, int64_t prompt_tokens, int64_t cache_hit_tokens,
             int64_t store_tokens = 0);
  void token(int32_t id, std::vector<OutputChunk>* out, const TokenLogprob* logprob = nullptr);
  void text(std::string_view utf8, int64_t tokens, std::vector<OutputChunk>* out);
  void finish(EngineFinish reason, std::vector<OutputChunk>* out);
  // The engine's sequence ended; a stream without finish is reported as a normal stop.
  void end(std::vector<OutputChunk>* out);
  // True after the finish chunk: stop reading the engine, cancel it if it still runs.
  bool finished() const { return finished_; }
  // Ids of the output mask that arrived all the same (specification 1.2): their text was dropped.
  int64_t banned_tokens() const { return banned_; }
  // Options::record: the ids so far, EOS left out.
  const std::vector<int32_t>& sampled() const { return sampled_; }
  // True if the turn came as tokens, ended of itself, and a client was told all of it but for tags and line
  // feeds, so that what it sends back stands for just these ids: no id outside the vocabulary, no masked id,
  // at most the one </think> that ends reasoning, no text after the calls, no half character, no JSON mode
  // (which blanks prose), no continued turn.
  bool repeatable() const { return repeatable_ && finished_; }

 private:
  struct Note {
    uint64_t raw_end = 0;         // bytes of all tokens up to this one
    uint64_t begin = 0, end = 0;  // bytes given to the machine before and when it was released
    int64_t tokens = 0;
    std::optional<TokenLogprob> logprob;
  };
  void settled(uint64_t end, Channel channel, bool reasoning) override;
  void start(std::vector<OutputChunk>* out);
  void feed(std::string_view text, ByteOrigin origin, uint64_t raw_released, std::vector<OutputChunk>* out);
  void flush_assembler(std::vector<OutputChunk>* out);
  void deliver(std::vector<OutputChunk>* out);  // pieces_ to chunks
  void conclude(FinishReason reason, std::vector<OutputChunk>* out);

  const Tokenizer* tokenizer_;
  std::vector<Piece> pieces_;  // kept for its memory
  ControlTokens control_;
  Options options_;
  OutputMachine machine_;
  Utf8Assembler assembler_;
  std::deque<Note> held_;       // tokens whose bytes the assembler has not released
  std::deque<Note> unsettled_;  // released, not yet consumed by the machine for good
  std::vector<std::pair<Channel, TokenLogprob>> fresh_logprobs_;
  uint64_t raw_bytes_ = 0, fed_bytes_ = 0;
  Usage usage_;
  std::optional<std::string> fingerprint_;
  int64_t banned_ = 0;
  std::vector<int32_t> sampled_;
  int closes_ = 0;           // </think> ids still to be expected
  bool repeatable_ = false;  // false from the first thing that cannot be repeated
  bool started_ = false, ready_ = false, finished_ = false;
};

}  // namespace deepinfer
