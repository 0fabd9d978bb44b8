// Parses suite folders and user files.
#include "apps/eval_suites.h"

#include <algorithm>
#include <filesystem>
#include <functional>
#include <string_view>

#include "apps/chat_prompt.h"
#include "host/files.h"
#include "text/json.h"

namespace deepinfer {
namespace {

namespace fs = std::filesystem;

// Far above any suite, far below what would hurt a machine.
constexpr int64_t kFileLimitBytes = int64_t{1} << 30;

Status invalid(const std::string& where, const std::string& what) {
  return Status(Code::kInvalidData, where + ": " + what);
}

Result<Json> read_json(const std::string& path, const char* advice) {
  auto text = read_file(path, kFileLimitBytes);
  if (!text.ok()) return Status(text.status().code(), text.status().message() + advice);
  auto json = parse_json(*text);
  if (!json.ok()) return invalid(path, json.status().message());
  return json;
}

// Calls `item` for every line that is not blank, with "FILE:LINE" and the parsed object.
Status for_lines(const std::string& path,
                 const std::function<Status(const std::string& where, const Json& object)>& item) {
  DI_ASSIGN(const std::string text, read_file(path, kFileLimitBytes));
  int64_t line = 0;
  for (size_t at = 0; at < text.size();) {
    ++line;
    const size_t end = std::min(text.find('\n', at), text.size());
    const std::string_view one = std::string_view(text).substr(at, end - at);
    at = end + 1;
    if (one.find_first_not_of(" \t\r") == std::string_view::npos) continue;
    const std::string where = fmt::format("{}:{}", path, line);
    auto json = parse_json(one);
    if (!json.ok()) return invalid(where, json.status().message());
    if (!json->is_object()) return invalid(where, "a line must hold one JSON object");
    DI_TRY(item(where, *json));
  }
  return {};
}

Status append_id(const std::string& where, const Json& value, int64_t vocab, std::vector<int32_t>* out) {
  if (!value.is_number_integer()) return invalid(where, "token ids must be whole numbers");
  const auto id = value.is_number_unsigned() && value.get<uint64_t>() > uint64_t{INT32_MAX}
                      ? int64_t{INT32_MAX}
                      : value.get<int64_t>();
  if (id < 0 || id >= vocab) {
    return invalid(
        where, fmt::format("token id {} is outside the vocabulary of {} ids; the suites belong to another "
                           "model",
                           value.dump(), vocab));
  }
  out->push_back(static_cast<int32_t>(id));
  return {};
}

// Ids, and with `hay` also [start, count] slices of it.
Status read_ids(const std::string& where, const Json& object, const char* member, int64_t vocab,
                int64_t context, const std::vector<int32_t>* hay, std::vector<int32_t>* out) {
  const auto it = object.find(member);
  if (it == object.end() || !it->is_array() || it->empty()) {
    return invalid(where, fmt::format("\"{}\" must be a list of token ids with at least one", member));
  }
  for (const Json& e : *it) {
    if (hay == nullptr || !e.is_array()) {
      DI_TRY(append_id(where, e, vocab, out));
    } else {
      if (e.size() != 2 || !e[0].is_number_unsigned() || !e[1].is_number_unsigned()) {
        return invalid(where, fmt::format("\"{}\" has a slice that is not [start, count]", member));
      }
      const uint64_t start = e[0].get<uint64_t>(), count = e[1].get<uint64_t>(), size = hay->size();
      if (start > size || count > size - start) {
        return invalid(
            where, fmt::format("slice [{}, {}] reaches beyond the {} ids of hay.json", start, count, size));
      }
      const auto first = hay->begin() + static_cast<int64_t>(start);
      out->insert(out->end(), first, first + static_cast<int64_t>(count));
    }
    if (static_cast<int64_t>(out->size()) > context) {
      return invalid(where,
                     fmt::format("\"{}\" is longer than the model's context of {} tokens", member, context));
    }
  }
  return {};
}

Status read_names(const std::string& path, const Json& index, const char* member,
                  std::vector<std::string>* out) {
  const auto it = index.find(member);
  if (it == index.end()) return {};
  if (!it->is_object()) return invalid(path, fmt::format("\"{}\" must be an object", member));
  for (const auto& [name, ignored] : it->items()) {
    // A name becomes a file name: nothing that could leave the folder.
    const bool plain =
        !name.empty() && name.find_first_not_of("abcdefghijklmnopqrstuvwxyz0123456789_") == std::string::npos;
    if (!plain) return invalid(path, fmt::format("suite name \"{}\" may only have a-z, 0-9 and _", name));
    out->push_back(name);
  }
  return {};
}

Status check_length(const std::string& where, const EvalItem& item, const ModelConfig& c) {
  const int64_t n = static_cast<int64_t>(item.prompt.size()) + item.max_tokens;
  if (n <= c.max_position_embeddings) return {};
  return invalid(where, fmt::format("prompt and answer need {} tokens; the model's context has {}", n,
                                    c.max_position_embeddings));
}

Result<std::string> text_member(const std::string& where, const Json& value, const char* member) {
  if (!value.is_string()) return invalid(where, fmt::format("\"{}\" must be text", member));
  return value.get<std::string>();
}

Status read_user_expectation(const std::string& where, const Json& object, const ModelConfig& c,
                             EvalItem* item) {
  const bool expect = object.contains("expect"), contains = object.contains("contains");
  if (expect == contains) return invalid(where, "give either \"expect\" or \"contains\"");
  if (expect && object["expect"].is_array()) {
    return read_ids(where, object, "expect", c.vocab_size, c.max_position_embeddings, nullptr, &item->expect);
  }
  item->by_text = true;
  if (expect) {
    DI_ASSIGN(item->expect_text, text_member(where, object["expect"], "expect"));
    return {};
  }
  const Json& value = object["contains"];
  if (!value.is_array()) {
    DI_ASSIGN(std::string one, text_member(where, value, "contains"));
    item->contains.push_back(std::move(one));
    return {};
  }
  for (const Json& e : value) {
    DI_ASSIGN(std::string one, text_member(where, e, "contains"));
    item->contains.push_back(std::move(one));
  }
  if (item->contains.empty()) return invalid(where, "\"contains\" is empty, so every answer would be right");
  return {};
}

Status read_user_prompt(const std::string& where, const Json& object, const Tokenizer& tokenizer,
                        const ModelConfig& c, EvalItem* item) {
  const auto prompt = object.find("prompt");
  if (prompt == object.end()) return invalid(where, "\"prompt\" is missing");
  if (prompt->is_array()) {
    return read_ids(where, object, "prompt", c.vocab_size, c.max_position_embeddings, nullptr, &item->prompt);
  }
  DI_ASSIGN(const std::string text, text_member(where, *prompt, "prompt"));
  ChatPromptOptions chat;
  if (object.contains("system")) {
    DI_ASSIGN(chat.system, text_member(where, object["system"], "system"));
  }
  if (object.contains("thinking")) {
    if (!object["thinking"].is_boolean()) return invalid(where, "\"thinking\" must be true or false");
    chat.thinking = object["thinking"].get<bool>();
  }
  item->prompt = chat_prompt(tokenizer, c, chat, text);
  return {};
}

}  // namespace

bool SuiteIndex::has_suite(const std::string& name) const {
  return std::find(suites.begin(), suites.end(), name) != suites.end();
}

Result<SuiteIndex> read_suite_index(const std::string& dir, int64_t vocab) {
  SuiteIndex index;
  index.dir = dir;
  const std::string path = (fs::path(dir) / "index.json").string();
  DI_ASSIGN(const Json json, read_json(path, "; --suites names the folder of the evaluation suites"));
  if (!json.is_object()) return invalid(path, "must hold one JSON object");
  DI_TRY(read_names(path, json, "suites", &index.suites));
  DI_TRY(read_names(path, json, "texts", &index.texts));
  const fs::path hay = fs::path(dir) / "hay.json";
  std::error_code ec;
  if (!fs::exists(hay, ec)) return index;
  DI_ASSIGN(const Json ids, read_json(hay.string(), ""));
  if (!ids.is_array()) return invalid(hay.string(), "must be a list of token ids");
  for (const Json& id : ids) DI_TRY(append_id(hay.string(), id, vocab, &index.hay));
  return index;
}

Result<EvalSuite> read_suite(const SuiteIndex& index, const std::string& name, const ModelConfig& c,
                             int64_t limit) {
  if (!index.has_suite(name)) {
    return error(Code::kNotFound, "{}/index.json has no suite \"{}\"; it has {}", index.dir, name,
                 fmt::join(index.suites, ", "));
  }
  EvalSuite suite;
  suite.name = name;
  const std::string path = (fs::path(index.dir) / (name + ".jsonl")).string();
  const auto add = [&](const std::string& where, const Json& object) -> Status {
    if (limit > 0 && static_cast<int64_t>(suite.items.size()) >= limit) return {};
    EvalItem item;
    DI_TRY(
        read_ids(where, object, "prompt", c.vocab_size, c.max_position_embeddings, &index.hay, &item.prompt));
    DI_TRY(read_ids(where, object, "expect", c.vocab_size, c.max_position_embeddings, nullptr, &item.expect));
    item.max_tokens = static_cast<int64_t>(item.expect.size());
    DI_TRY(check_length(where, item, c));
    suite.items.push_back(std::move(item));
    return {};
  };
  DI_TRY(for_lines(path, add));
  if (suite.items.empty()) return invalid(path, "has no items");
  return suite;
}

Result<EvalText> read_text(const SuiteIndex& index, const std::string& name, const ModelConfig& c) {
  EvalText text;
  text.name = name;
  const std::string path = (fs::path(index.dir) / (name + ".jsonl")).string();
  const auto add = [&](const std::string& where, const Json& object) -> Status {
    std::vector<int32_t> tokens;
    // A text may be longer than the context: whoever uses it cuts it.
    DI_TRY(read_ids(where, object, "tokens", c.vocab_size, INT64_MAX, nullptr, &tokens));
    if (tokens.size() < 2)
      return invalid(where, "\"tokens\" needs at least two ids, one to read and one to score");
    text.documents.push_back(std::move(tokens));
    return {};
  };
  DI_TRY(for_lines(path, add));
  if (text.documents.empty()) return invalid(path, "has no texts");
  return text;
}

Result<EvalSuite> read_user_suite(const std::string& path, const Tokenizer& tokenizer, const ModelConfig& c,
                                  int64_t default_max_tokens) {
  EvalSuite suite;
  suite.name = fs::path(path).stem().string();
  const auto add = [&](const std::string& where, const Json& object) -> Status {
    EvalItem item;
    DI_TRY(read_user_prompt(where, object, tokenizer, c, &item));
    DI_TRY(read_user_expectation(where, object, c, &item));
    item.max_tokens = default_max_tokens;
    if (const auto it = object.find("max_tokens"); it != object.end()) {
      if (!it->is_number_unsigned() || it->get<uint64_t>() < 1 || it->get<uint64_t>() > uint64_t{1} << 31) {
        return invalid(where, "\"max_tokens\" must be a whole number of at least 1");
      }
      item.max_tokens = it->get<int64_t>();
    }
    if (!item.expect.empty()) item.max_tokens = static_cast<int64_t>(item.expect.size());
    DI_TRY(check_length(where, item, c));
    suite.items.push_back(std::move(item));
    return {};
  };
  DI_TRY(for_lines(path, add));
  if (suite.items.empty()) return invalid(path, "has no items");
  return suite;
}

}  // namespace deepinfer
