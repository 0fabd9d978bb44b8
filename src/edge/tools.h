// What `deepinfer render` and `deepinfer parse` do, apart from the command line: request bytes to a report of
// the prompt, and recorded pieces of model output to the events or the final object of a protocol. Source:
// request edge specification 0. Threads: pure functions but for the encoder's memory.
#pragma once

#include <istream>
#include <string>

#include "edge/request.h"
#include "edge/writer.h"
#include "text/prompt_encoder.h"

namespace deepinfer {

// {spans[], text, token_ids[], counts, inference, parsing, notes[]} or {error, status}. `ok` tells which.
Json render_report(Protocol protocol, std::string_view body, const ConvertOptions& convert,
                   const RenderOptions& render, PromptEncoder* encoder, bool* ok);

struct ParseSettings {
  ParsingOptions parsing;
  ResponseInfo info;
  OutputParserOptions parser;
};
// Members: id, model, created, completed, thinking, stage (none, start, reasoning, content),
// parse_tool_calls, starts_in_calls, parse_json_output, stop[], include_usage, trailing_usage,
// count_reasoning, logprobs, custom_tools[], signature, markers (id, text), argument_types
// {tool: {argument: string | json}}. All are optional.
Result<ParseSettings> parse_settings(const Json& options);

// Reads one piece a line: a number (token id), a string (text), or an object {ready:{prompt_tokens,
// cache_hit_tokens, fingerprint}}, {token, logprob, top:[[id, logprob]...]}, {tokens:[...]}, {text, tokens},
// {finish: stop|length|content_filter|...}. kInvalidArgument with the line's number for anything else.
Status parse_pieces(std::istream& in, Protocol protocol, const Tokenizer& tokenizer,
                    const ControlTokens& control, const ParseSettings& settings, std::vector<Event>* events,
                    std::string* final_object);

}  // namespace deepinfer
