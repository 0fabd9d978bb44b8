// Cuts text into the pieces that byte-pair merges may not cross: the three isolating splits of the DeepSeek
// family, done in one pass by a hand-written scanner (no regex engine). Knows nothing of vocabularies.
// Source: request edge specification 2.1. The oracle in pretokenizer_test.cc runs the published patterns
// through PCRE2.
#pragma once

#include <string_view>

namespace deepinfer {

// How the first split groups digits: `\p{N}{1,3}` in the released tokenizer, `\p{N}` where every digit stands
// alone.
enum class DigitRule { kUpToThree, kSingle };

// One pass over one text; pieces come in order and their concatenation is the text. Ill-formed bytes count as
// unassigned characters. Linear time for any bytes. The text must outlive the scanner. Not thread-safe.
class PieceScanner {
 public:
  PieceScanner(std::string_view text, DigitRule rule)
      : p_(text.data()), end_(text.data() + text.size()), rule_(rule) {}
  // The next piece (never empty), or false at the end.
  bool next(std::string_view* piece);

 private:
  const char* p_;
  const char* end_;
  DigitRule rule_;
};

}  // namespace deepinfer
