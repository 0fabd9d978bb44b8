// What `deepinfer grammar` needs besides the grammar room: a vocabulary from a tokenizer or a made-up one of
// full size, and the measurement over a file of schemas and instances. Threads: pure functions.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "grammar/compile.h"
#include "text/tokenizer.h"

namespace deepinfer {

// Added tokens are control tokens; the end of sentence is the stop token. `least_size`: a model's vocabulary
// may be larger than its tokenizer's; those ids are no text.
Result<std::shared_ptr<const grammar::Vocabulary>> grammar_vocabulary(const Tokenizer& tokenizer,
                                                                      int64_t least_size = 0);
// `size` tokens of the kinds a tokenizer has: bytes, words with and without a space, numbers, punctuation as
// in JSON, white space, CJK, pieces of characters. The same for every call; id 256 is the stop token.
std::shared_ptr<const grammar::Vocabulary> made_up_vocabulary(int32_t size);
// The longest token at each place.
std::vector<int32_t> greedy_tokens(const grammar::Vocabulary& vocabulary, std::string_view text);

struct GrammarBench {
  std::shared_ptr<const grammar::Vocabulary> vocabulary;
  std::function<std::vector<int32_t>(std::string_view)> encode;
  int repeat = 1;
  bool every_sample = false;  // the report also lists each time, for comparisons
};
// Reads lines {"schema": ..., "valid": [texts], "invalid": [texts]} (tests/grammar/README.md) and measures in
// processor time of this thread: compile of each schema, the mask at every position of every valid instance
// with a matcher that has seen nothing of its grammar, and the same again warm. The report is JSON.
Result<std::string> run_grammar_bench(const GrammarBench& bench, const std::string& suite_text,
                                      const std::string& name);

}  // namespace deepinfer
