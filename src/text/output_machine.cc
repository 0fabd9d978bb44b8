// The states of request edge specification 5.3 as tables of patterns (KMP per branch), and what their matches
// do.
#include "text/output_machine.h"

#include <array>

#include "base/check.h"
#include "text/json.h"
#include "text/unicode.h"

namespace deepinfer {
namespace {

enum State : uint8_t {
  kAnswerLead,
  kAnswer,
  kJson,
  kJsonDone,
  kCalls,
  kName,
  kArgsFirst,
  kArgs,
  kKey,
  kKind,
  kValueString,
  kValueJson,
  kValueTyped,
  kReasonLead,
  kReason,
  kDone,
  kStates
};

enum class Action : uint8_t { kSkip, kStop, kEmitText, kNameEnd, kKeyEnd, kUntyped, kArguments };

// Bytes of a name or a key that are kept: legal ones are far shorter, and a name whose quote never comes must
// not grow with the reply.
constexpr size_t kMaxNameBytes = 1024;

// A run of plain bytes matches from any origin; a control part only from a control token (or from text
// without origins).
struct Pattern {
  std::string bytes;
  std::vector<bool> control;  // per byte
  bool line_feeds = false;    // NL*: any number of line feeds directly before belong to the match
  bool first_only = false;    // LF!: only as the very first byte in the state
};

Pattern plain(std::string_view s) {
  return {std::string(s), std::vector<bool>(s.size(), false), false, false};
}
Pattern marker(std::string_view before, std::string_view control, std::string_view after,
               bool line_feeds = false) {
  Pattern p = plain(std::string(before) + std::string(control) + std::string(after));
  for (size_t i = 0; i < control.size(); ++i) p.control[before.size() + i] = true;
  p.line_feeds = line_feeds;
  return p;
}

constexpr std::string_view kDsml = "｜DSML｜";
constexpr std::string_view kNull = "null";

// Appends as many whole characters as fit in the limit; the result does not depend on how the text was cut.
void append_bounded(std::string_view text, std::string* name, bool* full) {
  while (!*full && !text.empty()) {
    size_t n = std::min<size_t>(decode_utf8(text).size, text.size());
    *full = name->size() + n > kMaxNameBytes;
    if (!*full) name->append(text.substr(0, n));
    text.remove_prefix(n);
  }
}

struct Branch {
  Pattern pattern;
  State next = kDone;
  Action action = Action::kSkip;
  std::string emit;            // kEmitText, kArguments
  int stop = -1;               // kStop: which string
  std::vector<uint32_t> fail;  // KMP: length of the longest proper border of the first i + 1 bytes

  void prepare() {
    const Pattern& p = pattern;
    auto same = [&](size_t a, size_t b) { return p.bytes[a] == p.bytes[b] && p.control[a] == p.control[b]; };
    fail.assign(p.bytes.size(), 0);
    for (size_t i = 1, k = 0; i < p.bytes.size(); ++i) {
      while (k > 0 && !same(i, k)) k = fail[k - 1];
      if (same(i, k)) ++k;
      fail[i] = static_cast<uint32_t>(k);
    }
  }
  bool fits(size_t k, char byte, ByteOrigin origin) const {
    return pattern.bytes[k] == byte && (!pattern.control[k] || origin != ByteOrigin::kPlain);
  }
};

// How far one branch has come. `feeds` line feeds stand directly before the partial match (or end the input,
// at k = 0).
struct Progress {
  uint32_t k = 0;
  uint64_t feeds = 0;
  uint64_t partial(const Branch& b) const { return k + (b.pattern.line_feeds ? feeds : 0); }
};

// Advances one branch by one byte; true when the pattern completes.
bool advance(const Branch& b, Progress& at, char byte, ByteOrigin origin, bool first_byte) {
  const Pattern& p = b.pattern;
  if (p.first_only) return first_byte && byte == p.bytes[0];
  if (at.k == 0 && p.line_feeds && byte == '\n') {
    ++at.feeds;
    return false;
  }
  while (at.k > 0 && !b.fits(at.k, byte, origin)) {
    at.k = b.fail[at.k - 1];
    at.feeds = 0;
  }
  if (b.fits(at.k, byte, origin)) {
    ++at.k;
  } else if (at.k == 0) {
    // VENDOR: a line feed that breaks a partial marker is not part of the next withheld run; pinned by
    // OutputMachine.LineFeedQuirk.
    at.feeds = 0;
  }
  return at.k == p.bytes.size();
}

struct StateTable {
  std::vector<Branch> branches;
  std::array<bool, 256> starts{};  // bytes that can begin a match; all others leave an idle state idle

  void prepare() {
    for (Branch& b : branches) {
      b.prepare();
      starts[static_cast<uint8_t>(b.pattern.bytes[0])] = true;
      if (b.pattern.line_feeds) starts['\n'] = true;
    }
  }
};

}  // namespace

struct OutputMachine::Impl {
  ParsingOptions options;
  Listener* listener;
  std::array<StateTable, kStates> table;
  State state = kAnswerLead;
  std::vector<Progress> progress;
  bool idle = true;        // no branch has a partial match
  bool first_byte = true;  // nothing consumed in this state yet
  bool blanked = false;    // JSON mode: this state's space is out
  std::string pending;     // consumed, not yet released; ends with the longest partial match
  uint64_t settled_bytes = 0;
  std::string name, key;
  bool name_full = false, key_full = false;
  const std::map<std::string, ArgumentType>* types = nullptr;  // of the open call's arguments
  std::vector<ByteOrigin> typed_origins;                       // kValueTyped: of the pending bytes
  uint64_t dropped_bytes = 0;                                  // text after the call block
  int calls = 0;
  int stop = -1;
  std::vector<Piece>* out = nullptr;

  void build() {
    std::vector<Branch> stops;
    for (size_t i = 0; i < options.stop_sequences.size(); ++i) {
      if (options.stop_sequences[i].empty()) continue;
      stops.push_back({plain(options.stop_sequences[i]), kDone, Action::kStop, "", static_cast<int>(i), {}});
    }
    Branch open{marker("<", kDsml, "", true), kCalls, Action::kSkip, "", -1, {}};
    Pattern feed = plain("\n");
    feed.first_only = true;
    bool tools = options.parse_tool_calls;
    for (State s : {kAnswerLead, kAnswer}) {
      auto& b = table[s].branches;
      if (options.parse_json_output) {
        b.push_back({plain("```json\n"), kJson, Action::kSkip, "", -1, {}});
        b.push_back({plain("```\n"), kJson, Action::kSkip, "", -1, {}});
        b.push_back({plain("{"), kJson, Action::kEmitText, "{", -1, {}});
        b.push_back({plain("["), kJson, Action::kEmitText, "[", -1, {}});
      } else {
        b = stops;
      }
      if (tools) b.push_back(open);
      if (s == kAnswerLead) b.push_back({feed, kAnswerLead, Action::kSkip, "", -1, {}});
      b.push_back({marker("", "</think>", ""), kAnswer, Action::kSkip, "", -1, {}});
    }
    table[kJson].branches = stops;
    table[kJson].branches.push_back({plain("\n```"), kJsonDone, Action::kSkip, "", -1, {}});
    if (tools) table[kJsonDone].branches = {open};
    table[kCalls].branches = {{plain("invoke name=\""), kName, Action::kSkip, "", -1, {}},
                              {marker("</", kDsml, "tool_calls>"), kDone, Action::kSkip, "", -1, {}},
                              {marker("</", kDsml, " calls>"), kDone, Action::kSkip, "", -1, {}}};
    table[kName].branches = {{plain("\""), kArgsFirst, Action::kNameEnd, "", -1, {}}};
    for (State s : {kArgsFirst, kArgs}) {
      bool first = s == kArgsFirst;
      table[s].branches = {
          {plain("parameter name=\""), kKey, Action::kArguments, first ? "{\"" : ", \"", -1, {}},
          {marker("</", kDsml, ""), kCalls, Action::kArguments, first ? "{}" : "}", -1, {}}};
    }
    table[kKey].branches = {{plain("\""), kKind, Action::kKeyEnd, "\": ", -1, {}}};
    // A tag that ends without one of the two words leaves the type to the schema. Skipping on to the next
    // tag's word would give this key the next key's value.
    table[kKind].branches = {{plain("true\">"), kValueString, Action::kArguments, "\"", -1, {}},
                             {plain("false\">"), kValueTyped, Action::kSkip, "", -1, {}},
                             {plain(">"), kValueString, Action::kUntyped, "", -1, {}}};
    table[kValueString].branches = {{marker("</", kDsml, ""), kArgs, Action::kArguments, "\"", -1, {}}};
    table[kValueJson].branches = {{marker("</", kDsml, ""), kArgs, Action::kSkip, "", -1, {}}};
    for (State s : {kReasonLead, kReason}) {
      auto& b = table[s].branches;
      if (tools) b.push_back(open);
      if (s == kReasonLead) b.push_back({feed, kReasonLead, Action::kSkip, "", -1, {}});
      b.push_back({marker("", "</think>", "", true), kAnswerLead, Action::kSkip, "", -1, {}});
    }
    for (StateTable& t : table) t.prepare();
    State start = kAnswerLead;
    if (options.starts_in_calls) {
      start = kCalls;
    } else if (options.stage == ReasoningStage::kStart) {
      start = kReasonLead;
    } else if (options.stage == ReasoningStage::kReasoning) {
      start = kReason;
    } else if (options.stage == ReasoningStage::kContent) {
      start = kAnswer;
    }
    enter(start);
  }

  void enter(State next) {
    if (next == kKey) key.clear(), key_full = false;
    state = next;
    progress.assign(table[next].branches.size(), {});
    idle = first_byte = true;
    blanked = false;
  }

  bool in_reasoning() const { return state == kReasonLead || state == kReason; }

  void settle(uint64_t bytes, Channel channel) {
    settled_bytes += bytes;
    if (listener != nullptr && bytes > 0) listener->settled(settled_bytes, channel, in_reasoning());
  }
  void emit(Piece::Kind kind, std::string_view text) {
    if (text.empty() && kind != Piece::Kind::kCall) return;
    if (kind != Piece::Kind::kCall && !out->empty() && out->back().kind == kind) {
      out->back().text += text;
    } else {
      out->push_back({kind, std::string(text)});
    }
  }

  void unmatched(std::string_view text) {
    if (text.empty()) return;
    Channel channel = Channel::kMarkup;
    switch (state) {
      case kAnswerLead:
      case kAnswer:
      case kJsonDone:
        if (state == kJsonDone || options.parse_json_output) {
          // One space for all of the prose here, however it was cut.
          if (!blanked) emit(Piece::Kind::kText, " ");
          blanked = true;
          channel = Channel::kText;
          break;
        }
        [[fallthrough]];
      case kJson:
        emit(Piece::Kind::kText, text);
        channel = Channel::kText;
        break;
      case kReasonLead:
      case kReason:
        emit(Piece::Kind::kReasoning, text);
        channel = Channel::kReasoning;
        break;
      case kName:
        append_bounded(text, &name, &name_full);
        break;
      case kKey:
        append_bounded(text, &key, &key_full);
        emit(Piece::Kind::kArguments, text);
        break;
      case kValueTyped:
      case kValueJson:
        emit(Piece::Kind::kArguments, text);
        break;
      case kValueString: {
        std::string escaped;
        append_json_escaped(text, JsonStyle::kPython, &escaped);
        emit(Piece::Kind::kArguments, escaped);
        break;
      }
      default:
        break;
    }
    settle(text.size(), channel);
  }

  void matched(const Branch& b, uint64_t size) {
    Channel channel = Channel::kMarkup;
    State next = b.next;
    switch (b.action) {
      case Action::kSkip:
        break;
      case Action::kStop:
        stop = b.stop;
        break;
      case Action::kEmitText:
        emit(Piece::Kind::kText, b.emit);
        channel = Channel::kText;
        break;
      case Action::kArguments:
        emit(Piece::Kind::kArguments, b.emit);
        break;
      case Action::kNameEnd: {
        ++calls;
        auto tool = options.argument_types.find(name);
        types = tool == options.argument_types.end() ? nullptr : &tool->second;
        emit(Piece::Kind::kCall, name);
        name.clear();
        name_full = false;
        break;
      }
      case Action::kKeyEnd:
        emit(Piece::Kind::kArguments, b.emit);
        break;
      case Action::kUntyped:
        if (argument_type() == ArgumentType::kJson) next = kValueJson;
        if (next == kValueString) emit(Piece::Kind::kArguments, "\"");
        break;
    }
    settle(size, channel);
    enter(next);
  }

  // What the schema says of the argument whose key was read last.
  ArgumentType argument_type() const {
    if (types == nullptr || key_full) return ArgumentType::kAny;
    auto it = types->find(key);
    return it == types->end() ? ArgumentType::kAny : it->second;
  }

  // The tag says JSON. Where the schema allows a string only, a value that begins neither as a JSON string
  // nor as null is the string itself, written without its quotes.
  void typed_byte(char c, ByteOrigin origin) {
    pending += c;
    typed_origins.push_back(origin);
    State next = kValueJson;
    if (argument_type() == ArgumentType::kString && pending[0] != '"') {
      if (pending.size() <= kNull.size() && kNull.starts_with(pending)) return;
      bool null = pending.size() == kNull.size() + 1 && pending.starts_with(kNull) && c == '<';
      if (!null) next = kValueString;
    }
    std::string again = std::move(pending);
    std::vector<ByteOrigin> origins = std::move(typed_origins);
    pending.clear();
    typed_origins.clear();
    enter(next);
    if (next == kValueString) emit(Piece::Kind::kArguments, "\"");
    for (size_t i = 0; i < again.size(); ++i) byte(again[i], origins[i]);
  }

  // Releases all but the longest partial match.
  void release() {
    if (state == kValueTyped) return;
    uint64_t keep = 0;
    for (size_t i = 0; i < progress.size(); ++i)
      keep = std::max(keep, progress[i].partial(table[state].branches[i]));
    DI_DCHECK(keep <= pending.size(), "a partial match longer than what is pending");
    unmatched(std::string_view(pending).substr(0, pending.size() - keep));
    pending.erase(0, pending.size() - keep);
  }

  void byte(char c, ByteOrigin origin) {
    pending += c;
    StateTable& t = table[state];
    idle = true;
    for (size_t i = 0; i < t.branches.size(); ++i) {
      if (!advance(t.branches[i], progress[i], c, origin, first_byte)) {
        idle = idle && progress[i].partial(t.branches[i]) == 0;
        continue;
      }
      uint64_t size = progress[i].partial(t.branches[i]);
      if (t.branches[i].pattern.first_only) size = 1;
      unmatched(std::string_view(pending).substr(0, pending.size() - size));
      pending.clear();
      Branch& taken = t.branches[i];
      matched(taken, size);
      return;
    }
    first_byte = false;
  }

  void push(std::string_view text, ByteOrigin origin) {
    for (size_t i = 0; i < text.size();) {
      if (state == kValueTyped) {
        typed_byte(text[i++], origin);
        continue;
      }
      if (idle && state != kDone) {
        size_t run = i;
        const auto& starts = table[state].starts;
        while (run < text.size() && !starts[static_cast<uint8_t>(text[run])]) ++run;
        if (run > i) {
          pending.append(text, i, run - i);
          first_byte = false;
          i = run;
          continue;
        }
      } else if (state == kDone) {
        dropped_bytes += text.size() - i;
        settle(text.size() - i, Channel::kMarkup);
        return;
      }
      byte(text[i++], origin);
    }
    release();
  }
};

OutputMachine::OutputMachine(const ParsingOptions& options, Listener* listener)
    : impl_(std::make_unique<Impl>()) {
  impl_->options = options;
  impl_->listener = listener;
  impl_->build();
}
OutputMachine::~OutputMachine() = default;
OutputMachine::OutputMachine(OutputMachine&&) noexcept = default;

void OutputMachine::push(std::string_view text, ByteOrigin origin, std::vector<Piece>* out) {
  impl_->out = out;
  impl_->push(text, origin);
}

void OutputMachine::finish(std::vector<Piece>* out) {
  impl_->out = out;
  std::string rest = std::move(impl_->pending);
  impl_->pending.clear();
  impl_->unmatched(rest);
  impl_->enter(kDone);
}

const std::string* OutputMachine::stop_string() const {
  return impl_->stop < 0 ? nullptr : &impl_->options.stop_sequences[static_cast<size_t>(impl_->stop)];
}
bool OutputMachine::done() const {
  return impl_->state == kDone;
}
int OutputMachine::calls() const {
  return impl_->calls;
}
uint64_t OutputMachine::dropped_bytes() const {
  return impl_->dropped_bytes;
}
size_t OutputMachine::held_bytes() const {
  return impl_->pending.size();
}

}  // namespace deepinfer
