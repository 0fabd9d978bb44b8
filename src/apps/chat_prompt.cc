// Renders one user turn.
#include "apps/chat_prompt.h"

namespace deepinfer {
namespace {

Span control(int32_t id, const char* text) {
  Span s;
  s.kind = Span::Kind::kControl;
  s.origin = Span::Origin::kTemplate;
  s.id = id;
  s.text = text;
  return s;
}

Span control(const Tokenizer& t, const char* text) {
  return control(t.added_token_id(text), text);
}

Span client_text(const std::string& text) {
  Span s;
  s.text = text;
  return s;
}

}  // namespace

std::vector<int32_t> chat_prompt(const Tokenizer& t, const ModelConfig& c, const ChatPromptOptions& o,
                                 const std::string& user_text) {
  std::vector<Span> spans = {control(c.bos_token_id, "")};
  const Span user = control(t, "<｜User｜>"), assistant = control(t, "<｜Assistant｜>");
  const Span open = control(t, "<think>"), close = control(t, "</think>"),
             system = control(t, "<｜System｜>");
  const bool template_known =
      user.id >= 0 && assistant.id >= 0 && open.id >= 0 && close.id >= 0 && system.id >= 0;
  if (o.raw || !template_known) {
    spans.push_back(client_text(user_text));
    return encode_spans(t, spans);
  }
  const std::string effort =
      o.thinking
          ? "Reasoning Effort: 75 (range 1-100, the higher the value, the more thorough the reasoning)\n\n"
          : "";
  if (!effort.empty() || !o.system.empty()) {
    spans.push_back(system);
    spans.push_back(client_text(effort + o.system));
  }
  spans.push_back(user);
  spans.push_back(client_text(user_text));
  spans.push_back(assistant);
  spans.push_back(o.thinking ? open : close);
  return encode_spans(t, spans);
}

std::vector<int32_t> input_only_ids(const Tokenizer& t, const ModelConfig& c) {
  std::vector<int32_t> banned;
  for (const AddedToken& a : t.added_tokens()) {
    if (a.id != c.eos_token_id && a.text != "</think>" && a.text != "｜DSML｜") banned.push_back(a.id);
  }
  return banned;
}

}  // namespace deepinfer
