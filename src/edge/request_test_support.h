// Test support: bodies to prompts and messages. Included by tests only.
#pragma once

#include <gtest/gtest.h>

#include <string>

#include "edge/errors.h"
#include "edge/request.h"

namespace deepinfer::testing {

inline Result<ProtocolRequest> convert(Protocol p, const Json& body, const ConvertOptions& o = {}) {
  return convert_request(p, body.dump(), o);
}
// The prompt without its head (BOS, effort line) and with the tool section shortened; the message of the
// refusal otherwise.
inline std::string prompt(Protocol p, const Json& body, Profile profile = Profile::kApi) {
  Result<ProtocolRequest> r = convert_request(p, body.dump(), convert_options(profile));
  if (!r.ok()) {
    EXPECT_EQ(http_status(r.status()), 400);
    return "400 " + r.status().message();
  }
  Result<std::vector<Span>> spans =
      render_conversation(r->conversation, ControlTokens::released(), render_options(profile));
  if (!spans.ok()) return "unrenderable " + spans.status().message();
  std::string s = spans_text(*spans);
  auto cut = [&](const std::string& from, const std::string& to, const std::string& with) {
    size_t a = s.find(from), b = s.find(to);
    if (a != s.npos && b != s.npos) s.replace(a, b + to.size() - a, with);
  };
  cut("<｜begin▁of▁sentence｜>", "<｜begin▁of▁sentence｜>", "");
  cut("Reasoning Effort: ", "thorough the reasoning)\n\n", "{E}");
  cut("## Tools\n", "to invoke tool calls.\n", "{TOOLS}");
  return s;
}
inline Json user(const Json& content) {
  return {{"role", "user"}, {"content", content}};
}
inline Json assistant(const Json& content) {
  return {{"role", "assistant"}, {"content", content}};
}

}  // namespace deepinfer::testing
