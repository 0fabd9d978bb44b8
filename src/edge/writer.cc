// What the writers share, and the small bodies of edge/writer.h.
#include "edge/writer.h"

#include <algorithm>

#include "edge/writer_parts.h"
#include "text/unicode.h"

namespace deepinfer {

void append_sse(const Event& event, std::string* out) {
  if (!event.name.empty()) out->append("event: ").append(event.name).append("\n");
  out->append("data: ").append(event.data).append("\n\n");
}

std::unique_ptr<ResponseWriter> make_writer(Protocol protocol, ResponseInfo info) {
  switch (protocol) {
    case Protocol::kChat:
      return make_chat_writer(std::move(info));
    case Protocol::kResponses:
      return make_responses_writer(std::move(info));
    case Protocol::kMessages:
      break;
  }
  return make_messages_writer(std::move(info));
}

std::string call_id(Protocol protocol, const std::string& response_id, size_t k) {
  const char* prefix = protocol == Protocol::kMessages ? "toolu_" : "call_";
  return prefix + response_id + "_" + std::to_string(k);
}

void TurnRecorder::write(const OutputChunk& chunk) {
  switch (chunk.kind) {
    case OutputChunk::Kind::kText:
      content_ += chunk.text;
      return;
    case OutputChunk::Kind::kReasoning:
      reasoning_ += chunk.text;
      return;
    case OutputChunk::Kind::kCall:
      calls_.push_back({call_id(protocol_, response_id_, calls_.size()), chunk.text, ""});
      return;
    case OutputChunk::Kind::kArguments:
      calls_.back().arguments += chunk.text;
      return;
    case OutputChunk::Kind::kStart:
    case OutputChunk::Kind::kFinish:
      return;
  }
}

Message TurnRecorder::turn() const {
  Message m;
  m.role = Role::kAssistant;
  m.content = Content(content_);
  m.reasoning = reasoning_;
  m.tool_calls = calls_;
  // Calls of a Responses input are put in the order of their ids, in which ..._10 comes before ..._2.
  if (protocol_ == Protocol::kResponses)
    std::sort(m.tool_calls.begin(), m.tool_calls.end(), [](auto& a, auto& b) { return a.id < b.id; });
  return m;
}

const char* chat_finish_reason(FinishReason reason) {
  switch (reason) {
    case FinishReason::kToolCalls:
      return "tool_calls";
    case FinishReason::kLength:
      return "length";
    case FinishReason::kContentFilter:
      return "content_filter";
    case FinishReason::kInsufficientResource:
      return "insufficient_system_resource";
    case FinishReason::kAborted:
      return "aborted";
    default:
      return "stop";
  }
}

Json logprob_list(const std::vector<TokenLogprob>& tokens, const Tokenizer* tokenizer) {
  // A token that is no text of its own (part of a character) is spelt as its bytes.
  auto spelling = [](std::string_view bytes) {
    if (std::string text = to_valid_utf8(bytes); text == bytes) return text;
    std::string out;
    for (char c : bytes) out += fmt::format("\\x{:02x}", static_cast<uint8_t>(c));
    return out;
  };
  auto entry = [&](int32_t id, double logprob) {
    // VENDOR: what cannot be sampled is -9999.0; JSON knows no infinity. Pinned by ChatWriter.Logprobs.
    constexpr double kNever = -9999.0;
    if (!(logprob >= kNever)) logprob = kNever;
    std::string_view bytes = tokenizer == nullptr ? std::string_view() : tokenizer->token_bytes(id);
    Json values = Json::array();
    for (char c : bytes) values.push_back(static_cast<uint8_t>(c));
    return Json{{"token", spelling(bytes)}, {"logprob", logprob}, {"bytes", std::move(values)}};
  };
  Json list = Json::array();
  for (const TokenLogprob& t : tokens) {
    Json one = entry(t.id, t.logprob);
    Json top = Json::array();
    for (auto& [id, logprob] : t.top) top.push_back(entry(id, logprob));
    one["top_logprobs"] = std::move(top);
    list.push_back(std::move(one));
  }
  return list;
}

Json chat_usage(const Usage& u, bool count_reasoning) {
  Json usage = {{"prompt_tokens", u.prompt_tokens},
                {"completion_tokens", u.completion_tokens},
                {"total_tokens", u.prompt_tokens + u.completion_tokens},
                {"prompt_tokens_details", {{"cached_tokens", u.cache_hit_tokens}}}};
  // Which tier they came from, where there is more than one.
  if (u.store_tokens > 0) usage["prompt_tokens_details"]["store_tokens"] = u.store_tokens;
  if (count_reasoning) usage["completion_tokens_details"] = {{"reasoning_tokens", u.reasoning_tokens}};
  usage["prompt_cache_hit_tokens"] = u.cache_hit_tokens;
  usage["prompt_cache_miss_tokens"] = std::max<int64_t>(0, u.prompt_tokens - u.cache_hit_tokens);
  return usage;
}

Json responses_usage(const Usage& u, bool count_reasoning) {
  return {{"input_tokens", u.prompt_tokens},
          {"input_tokens_details", {{"cached_tokens", u.cache_hit_tokens}}},
          {"output_tokens", u.completion_tokens},
          {"output_tokens_details", {{"reasoning_tokens", count_reasoning ? u.reasoning_tokens : 0}}},
          {"total_tokens", u.prompt_tokens + u.completion_tokens}};
}

Json messages_usage(const Usage& u) {
  return {{"input_tokens", std::max<int64_t>(0, u.prompt_tokens - u.cache_hit_tokens)},
          {"cache_creation_input_tokens", 0},
          {"cache_read_input_tokens", u.cache_hit_tokens},
          {"output_tokens", u.completion_tokens},
          {"service_tier", "standard"}};
}

std::string model_list(const std::vector<ModelEntry>& models, Protocol protocol) {
  Json data = Json::array();
  for (const ModelEntry& m : models) {
    if (protocol == Protocol::kMessages) {
      data.push_back(
          {{"type", "model"}, {"id", m.id}, {"display_name", m.id}, {"max_input_tokens", m.context_tokens}});
    } else {
      data.push_back({{"id", m.id},
                      {"object", "model"},
                      {"created", m.created},
                      {"owned_by", "deepseek"},
                      {"context_length", m.context_tokens}});
    }
  }
  if (protocol != Protocol::kMessages) return compact_json({{"object", "list"}, {"data", std::move(data)}});
  Json list = {{"data", std::move(data)}, {"has_more", false}, {"first_id", nullptr}, {"last_id", nullptr}};
  if (!models.empty()) list["first_id"] = models.front().id, list["last_id"] = models.back().id;
  return compact_json(list);
}

std::string messages_token_count(int64_t input_tokens) {
  return compact_json({{"input_tokens", input_tokens}});
}

std::string tokenize_object(const std::vector<int32_t>& ids, int64_t context_tokens) {
  return compact_json({{"tokens", ids}, {"count", ids.size()}, {"max_model_len", context_tokens}});
}

std::string detokenize_object(const std::string& text) {
  return compact_json({{"prompt", to_valid_utf8(text)}});
}

}  // namespace deepinfer
