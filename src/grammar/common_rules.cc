// JSON's lexical rules. Source: RFC 8259.
#include "grammar/common_rules.h"

namespace deepinfer::grammar {
namespace {

ExprPtr bytes_class(std::string_view members) {
  std::vector<CharSet::Range> ranges;
  for (char c : members) ranges.push_back({static_cast<uint8_t>(c), static_cast<uint8_t>(c)});
  return make_class(CharSet::of_ranges(std::move(ranges)), Spelling::kRaw);
}
ExprPtr digit(char lo, char hi) {
  return make_class(CharSet::of(static_cast<uint8_t>(lo), static_cast<uint8_t>(hi)), Spelling::kRaw);
}

}  // namespace

ExprPtr free_json_char() {
  CharSet raw = CharSet::any().minus(CharSet::of_ranges({{0, 0x1F}, {'"', '"'}, {'\\', '\\'}}));
  ExprPtr hex = bytes_class("0123456789abcdefABCDEF"), d = bytes_class("dD");
  ExprPtr not_d = bytes_class("0123456789abcefABCEF");
  ExprPtr plain = make_alt({make_seq({not_d, hex, hex, hex}), make_seq({d, digit('0', '7'), hex, hex})});
  ExprPtr pair =
      make_seq({d, bytes_class("89abAB"), hex, hex, make_bytes("\\u"), d, bytes_class("cdefCDEF"), hex, hex});
  ExprPtr escape =
      make_seq({make_bytes("\\"),
                make_alt({bytes_class("\"\\/bfnrt"), make_seq({make_bytes("u"), make_alt({plain, pair})})})});
  return make_alt({make_class(raw, Spelling::kRaw), escape});
}

ExprPtr free_json_string() {
  return make_seq({make_bytes("\""), make_repeat(free_json_char(), 0, kUnbounded), make_bytes("\"")});
}

ExprPtr json_space() {
  return bytes_class(" \t\n\r");
}

ExprPtr free_json_integer() {
  ExprPtr more = make_repeat(digit('0', '9'), 0, kMaxDigits - 1);
  return make_seq(
      {make_repeat(make_bytes("-"), 0, 1), make_alt({make_bytes("0"), make_seq({digit('1', '9'), more})})});
}

ExprPtr free_json_number() {
  ExprPtr fraction = make_seq({make_bytes("."), make_repeat(digit('0', '9'), 1, kMaxDigits)});
  ExprPtr exponent =
      make_seq({bytes_class("eE"), make_repeat(bytes_class("+-"), 0, 1), make_repeat(digit('0', '9'), 1, 3)});
  return make_seq({free_json_integer(), make_repeat(fraction, 0, 1), make_repeat(exponent, 0, 1)});
}

Grammar common_grammar() {
  Grammar g;
  ExprPtr any_raw = make_class(CharSet::any(), Spelling::kRaw),
          any_json = make_class(CharSet::any(), Spelling::kJson);
  std::vector<ExprPtr> roots;
  auto root = [&](RuleId r) { roots.push_back(make_rule(r)); };
  root(g.add("string", free_json_string()));
  root(g.add_counted("space", json_space(), 1, 32));
  root(g.add_counted("characters", free_json_char(), 1, 100));
  root(g.add_counted("text characters", any_raw, 1, 100));
  root(g.add("one spelling", make_seq({make_repeat(any_json, 0, kUnbounded), make_bytes("\"")})));
  root(g.add("text", make_repeat(any_raw, 0, kUnbounded)));
  root(g.add("text to tag", make_seq({make_repeat(any_raw, 0, kUnbounded), make_bytes("</")})));
  g.root = g.add("all", make_alt(std::move(roots)));
  return g;
}

}  // namespace deepinfer::grammar
