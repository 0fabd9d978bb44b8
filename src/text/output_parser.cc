// Tokens to machine input, and machine pieces to output chunks (text/output_parser.h).
#include "text/output_parser.h"

namespace deepinfer {

std::vector<int32_t> banned_outputs(const Tokenizer& tokenizer, const ControlTokens& control) {
  std::vector<int32_t> ids;
  for (const AddedToken& t : tokenizer.added_tokens()) {
    if (t.id != control.eos && t.id != control.think_close && t.id != control.dsml) ids.push_back(t.id);
  }
  return ids;
}

OutputParser::OutputParser(const Tokenizer* tokenizer, const ControlTokens& control,
                           const ParsingOptions& parsing, Options options)
    : tokenizer_(tokenizer), control_(control), options_(options), machine_(parsing, this) {
  closes_ = parsing.stage == ReasoningStage::kStart ? 1 : 0;
  repeatable_ = options.record && tokenizer != nullptr && !parsing.parse_json_output &&
                parsing.stage != ReasoningStage::kReasoning && parsing.stage != ReasoningStage::kContent;
}

void OutputParser::ready(std::optional<std::string> fingerprint, int64_t prompt_tokens,
                         int64_t cache_hit_tokens, int64_t store_tokens) {
  if (ready_ || started_) return;
  ready_ = true;
  fingerprint_ = std::move(fingerprint);
  usage_.prompt_tokens = prompt_tokens;
  usage_.cache_hit_tokens = cache_hit_tokens;
  usage_.store_tokens = store_tokens;
}

void OutputParser::start(std::vector<OutputChunk>* out) {
  if (started_) return;
  started_ = true;
  OutputChunk chunk;
  chunk.kind = OutputChunk::Kind::kStart;
  chunk.fingerprint = fingerprint_;
  chunk.usage = usage_;
  out->push_back(std::move(chunk));
}

void OutputParser::token(int32_t id, std::vector<OutputChunk>* out, const TokenLogprob* logprob) {
  if (finished_) return;
  start(out);
  if (id == control_.eos || tokenizer_ == nullptr) return;
  const AddedToken* control = tokenizer_->added_token(id);
  const bool added = control != nullptr;
  std::string_view bytes = added ? std::string_view(control->text) : tokenizer_->token_bytes(id);
  if (options_.record) {
    sampled_.push_back(id);
    if (id == control_.think_close) --closes_;
    if (bytes.empty() || closes_ < 0 || (added && id != control_.think_close && id != control_.dsml))
      repeatable_ = false;
  }
  if (bytes.empty()) return;
  if (added) flush_assembler(out);
  if (finished_) return;
  raw_bytes_ += bytes.size();
  Note note{raw_bytes_, 0, 0, 1, logprob != nullptr ? std::optional<TokenLogprob>(*logprob) : std::nullopt};
  held_.push_back(std::move(note));
  if (added && id != control_.think_close && id != control_.dsml) {
    ++banned_;
    feed("", ByteOrigin::kControl, raw_bytes_, out);
    return;
  }
  if (added) {
    feed(bytes, options_.markers_by_spelling ? ByteOrigin::kAny : ByteOrigin::kControl, raw_bytes_, out);
  } else {
    std::string text = assembler_.push(bytes);
    feed(text, options_.markers_by_spelling ? ByteOrigin::kAny : ByteOrigin::kPlain,
         raw_bytes_ - assembler_.held(), out);
  }
}

void OutputParser::text(std::string_view utf8, int64_t tokens, std::vector<OutputChunk>* out) {
  if (finished_) return;
  start(out);
  flush_assembler(out);
  if (finished_) return;
  repeatable_ = false;
  raw_bytes_ += utf8.size();
  held_.push_back({raw_bytes_, 0, 0, tokens, std::nullopt});
  feed(utf8, ByteOrigin::kAny, raw_bytes_, out);
}

void OutputParser::flush_assembler(std::vector<OutputChunk>* out) {
  if (assembler_.held() == 0) return;
  std::string rest = assembler_.flush();
  feed(rest, ByteOrigin::kPlain, raw_bytes_, out);
}

void OutputParser::feed(std::string_view text, ByteOrigin origin, uint64_t raw_released,
                        std::vector<OutputChunk>* out) {
  const uint64_t begin = fed_bytes_;
  fed_bytes_ += text.size();
  while (!held_.empty() && held_.front().raw_end <= raw_released) {
    held_.front().begin = begin;
    held_.front().end = fed_bytes_;
    usage_.completion_tokens += held_.front().tokens;
    unsettled_.push_back(std::move(held_.front()));
    held_.pop_front();
  }
  if (text.empty()) return;
  machine_.push(text, origin, &pieces_);
  deliver(out);
  if (machine_.stop_string() != nullptr) conclude(FinishReason::kStopSequence, out);
}

void OutputParser::settled(uint64_t end, Channel channel, bool reasoning) {
  // A token's log-probability goes to the first channel that uses some of its bytes; its count to where its
  // last byte went.
  for (Note& note : unsettled_) {
    if (note.begin >= end) break;
    if (note.logprob && channel != Channel::kMarkup) {
      fresh_logprobs_.emplace_back(channel, std::move(*note.logprob));
      note.logprob.reset();
    }
  }
  while (!unsettled_.empty() && unsettled_.front().end <= end) {
    if (reasoning) usage_.reasoning_tokens += unsettled_.front().tokens;
    unsettled_.pop_front();
  }
}

void OutputParser::deliver(std::vector<OutputChunk>* out) {
  for (Piece& piece : pieces_) {
    using K = OutputChunk::Kind;
    const K kind = piece.kind == Piece::Kind::kText        ? K::kText
                   : piece.kind == Piece::Kind::kReasoning ? K::kReasoning
                   : piece.kind == Piece::Kind::kCall      ? K::kCall
                                                           : K::kArguments;
    // A call's name is never continued; its arguments belong to the name before them.
    if (options_.join && !out->empty() && out->back().kind == kind && kind != K::kCall) {
      out->back().text += piece.text;
    } else {
      OutputChunk& chunk = out->emplace_back();
      chunk.kind = kind;
      chunk.text = std::move(piece.text);
    }
    OutputChunk& chunk = out->back();
    chunk.usage.completion_tokens = usage_.completion_tokens;
    if (!fresh_logprobs_.empty() && (chunk.kind == K::kText || chunk.kind == K::kReasoning)) {
      Channel mine = chunk.kind == K::kText ? Channel::kText : Channel::kReasoning;
      std::erase_if(fresh_logprobs_, [&](auto& entry) {
        if (entry.first != mine) return false;
        chunk.logprobs.push_back(std::move(entry.second));
        return true;
      });
    }
  }
  pieces_.clear();
}

void OutputParser::finish(EngineFinish reason, std::vector<OutputChunk>* out) {
  if (finished_) return;
  start(out);
  switch (reason) {
    case EngineFinish::kStop:
      return conclude(FinishReason::kStop, out);
    case EngineFinish::kLength:
      return conclude(FinishReason::kLength, out);
    case EngineFinish::kContentFilter:
      return conclude(FinishReason::kContentFilter, out);
    case EngineFinish::kInsufficientResource:
      return conclude(FinishReason::kInsufficientResource, out);
    case EngineFinish::kAborted:
      return conclude(FinishReason::kAborted, out);
  }
}

void OutputParser::end(std::vector<OutputChunk>* out) {
  if (finished_) return;
  start(out);
  conclude(FinishReason::kEndOfStream, out);
}

void OutputParser::conclude(FinishReason reason, std::vector<OutputChunk>* out) {
  finished_ = true;
  bool own_end = reason == FinishReason::kStop && assembler_.held() == 0 && machine_.dropped_bytes() == 0;
  repeatable_ = repeatable_ && own_end;
  // Bytes of an unfinished character are neither text nor usage.
  machine_.finish(&pieces_);
  deliver(out);
  OutputChunk chunk;
  chunk.kind = OutputChunk::Kind::kFinish;
  chunk.reason = reason == FinishReason::kStop && machine_.calls() > 0 ? FinishReason::kToolCalls : reason;
  if (reason == FinishReason::kStopSequence) chunk.stop_string = *machine_.stop_string();
  chunk.usage = usage_;
  out->push_back(std::move(chunk));
}

}  // namespace deepinfer
