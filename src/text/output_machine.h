// Splits the model's text into reasoning, answer and tool calls, byte by byte: the state machine of request
// edge specification 5.3. Knows bytes and where they came from (control token or plain text), not tokens, ids
// or protocols. Threads: one object per stream. Cost: a few comparisons per byte and pattern; memory for the
// longest held partial match and one name.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "text/conversation.h"

namespace deepinfer {

// Provenance of a byte. kAny: already decoded text, where spelling alone decides.
enum class ByteOrigin : uint8_t { kPlain = 0, kControl = 1, kAny = 2 };

// What bytes became. kMarkup: markers, tags, names and whatever is dropped or replaced.
enum class Channel { kText, kReasoning, kMarkup };

// One step of output, in order. Neighbouring pieces of one kind may be merged or split freely.
struct Piece {
  enum class Kind { kText, kReasoning, kCall, kArguments };
  Kind kind = Kind::kText;
  std::string text;  // kCall: the name; kArguments: more of the JSON text
};

class OutputMachine {
 public:
  // Told once for every input byte, in order: `end` bytes since the start are now settled in `channel`;
  // `reasoning` if the machine was reading reasoning when it consumed them (the closing tag included).
  class Listener {
   public:
    virtual ~Listener() = default;
    virtual void settled(uint64_t end, Channel channel, bool reasoning) = 0;
  };

  explicit OutputMachine(const ParsingOptions& options, Listener* listener = nullptr);
  ~OutputMachine();
  OutputMachine(OutputMachine&&) noexcept;

  // One chunk of whole code points. What may still become a marker or a stop string is held.
  void push(std::string_view text, ByteOrigin origin, std::vector<Piece>* out);
  // End of the stream: what is held was no marker.
  void finish(std::vector<Piece>* out);

  // The stop string that ended the answer, if one did. Later input is dropped; the engine should be
  // cancelled.
  const std::string* stop_string() const;
  bool done() const;               // a stop string or the end of the call block was seen
  int calls() const;               // call names completed so far
  uint64_t dropped_bytes() const;  // text after the end of the call block
  size_t held_bytes()
      const;  // for tests: never more than the longest marker or stop string plus line feeds in front of it

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace deepinfer
