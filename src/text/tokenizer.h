// Byte-level BPE as the model's tokenizer.json describes it: exact pre-tokeniser, merges, added tokens, and
// an incremental decoder. Text and control tokens never mix: encode() makes ordinary ids only; control ids
// come from spans. Source: request edge specification 2. Threads: a Tokenizer is immutable after loading and
// may be shared.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace deepinfer {

struct AddedToken {
  int32_t id = 0;
  std::string text;
  bool special = false;
};

class Tokenizer {
 public:
  // Parses a Hugging Face tokenizer.json (BPE model, Split pre-tokenisers of the DeepSeek family and
  // ByteLevel, added tokens). kInvalidData with the member's JSON path for anything else: an unknown
  // pre-tokeniser pattern is an error, never ignored.
  static Result<Tokenizer> from_json(std::string_view json, const std::string& where);
  static Result<Tokenizer> from_file(const std::string& path);

  // Ids of plain text; spellings of added tokens are ordinary text here. Ill-formed UTF-8 bytes are encoded
  // as bytes. Linear time in the input for any bytes.
  std::vector<int32_t> encode(std::string_view text) const;
  void encode_append(std::string_view text, std::vector<int32_t>* ids) const;
  // Diagnostics and raw completions by explicit option only: added tokens spelt in the text become their ids
  // (longest match, leftmost).
  std::vector<int32_t> encode_with_added_tokens(std::string_view text) const;

  // The bytes of one id: vocabulary bytes, or the literal text of an added token; empty for ids outside the
  // vocabulary.
  std::string_view token_bytes(int32_t id) const;
  std::string decode(const std::vector<int32_t>& ids, bool skip_special = false) const;

  bool is_added(int32_t id) const;
  const AddedToken* added_token(int32_t id) const;      // nullptr if none
  int32_t added_token_id(std::string_view text) const;  // -1 if none
  const std::vector<AddedToken>& added_tokens() const;  // ascending by id
  int32_t vocab_size() const;                           // highest id + 1

  struct Impl;
  explicit Tokenizer(std::shared_ptr<const Impl> impl) : impl_(std::move(impl)) {}

 private:
  std::shared_ptr<const Impl> impl_;
};

// Bytes of tokens to text, releasing only whole code points. A byte that can no longer become valid UTF-8 is
// released as U+FFFD, one per maximal subpart (Unicode 3.9). Request edge specification 5.1. One object per
// stream; not thread-safe.
class Utf8Assembler {
 public:
  // Appends bytes and returns the text that is now complete.
  std::string push(std::string_view bytes);
  // End of stream or a control token: what is held comes out as U+FFFD.
  std::string flush();
  size_t held() const { return held_.size(); }

 private:
  std::string held_;
};

// A prompt is a list of spans; control ids can only come from kControl spans and from what the model itself
// sampled (kSampled), so no client text can become one.
struct Span {
  enum class Kind { kControl, kText, kImage, kSampled };
  enum class Origin { kTemplate, kClient };
  Kind kind = Kind::kText;
  Origin origin = Origin::kClient;
  int32_t id = 0;    // kControl: the id; kImage: the placeholder id
  std::string text;  // kText: UTF-8 bytes; kControl: the literal spelling, kSampled: nothing (diagnostics)
  int64_t image_tokens = 0;       // kImage: tokens after expansion
  std::vector<int32_t> ids = {};  // kSampled: a turn the model wrote here, given back as it was
};

// Ids of a span list: neighbouring text spans are joined before BPE (pieces form across joins as in one
// string), control ids are hard boundaries. Request edge specification 2.4.
std::vector<int32_t> encode_spans(const Tokenizer& tokenizer, const std::vector<Span>& spans);

}  // namespace deepinfer
