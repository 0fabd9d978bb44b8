// Reads what `deepinfer eval` runs: the shipped suites of token ids and a user's own items. Every byte is
// untrusted: an error names the file and the line. Knows nothing of running them.
// Format of a suite folder (docs/evaluation.md): index.json {"suites": {NAME: ..}, "texts": {NAME: ..}};
// hay.json, a flat list of ids; NAME.jsonl with {"prompt": [..], "expect": [..]} per line, where an element
// of `prompt` is an id or [start, count], that slice of hay.json; for texts {"tokens": [..]}. Threads: pure
// functions.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/status.h"
#include "model/config.h"
#include "text/tokenizer.h"

namespace deepinfer {

struct EvalItem {
  std::vector<int32_t> prompt;
  std::vector<int32_t> expect;  // exact ids; shipped suites: with the end-of-sequence id
  // User items: what the decoded text must be or contain, instead of ids.
  bool by_text = false;
  std::string expect_text;
  std::vector<std::string> contains;  // every one; empty: expect_text is the whole answer
  int64_t max_tokens = 0;
};

struct EvalSuite {
  std::string name;
  std::vector<EvalItem> items;
};

struct EvalText {
  std::string name;
  std::vector<std::vector<int32_t>> documents;
};

struct SuiteIndex {
  std::string dir;
  std::vector<std::string> suites, texts;  // in the file's order
  std::vector<int32_t> hay;                // empty when no suite of the folder needs one
  bool has_suite(const std::string& name) const;
};

// `vocab` bounds the ids. Errors: kNotFound with the path and what to do; kInvalidData.
Result<SuiteIndex> read_suite_index(const std::string& dir, int64_t vocab);

// At most `limit` items from the front (0: all). Errors: kNotFound (not in the index, or no file),
// kInvalidData (file and line; also an item longer than the model's context, an empty prompt or expectation).
Result<EvalSuite> read_suite(const SuiteIndex& index, const std::string& name, const ModelConfig& config,
                             int64_t limit);
Result<EvalText> read_text(const SuiteIndex& index, const std::string& name, const ModelConfig& config);

// One item per line: "prompt" (text, put into a chat turn with the optional "system" and "thinking"; or a
// list of ids, used as it is) and "expect" (text or ids) or "contains" (text or a list of texts); optional
// "max_tokens".
Result<EvalSuite> read_user_suite(const std::string& path, const Tokenizer& tokenizer,
                                  const ModelConfig& config, int64_t default_max_tokens);

}  // namespace deepinfer
