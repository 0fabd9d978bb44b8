// Reading and writing the server's settings (apps/serve_config.h).
#include "apps/serve_config.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <toml++/toml.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <sstream>

namespace deepinfer {
namespace {

// Edit distance, for suggestions.
size_t distance(const std::string& a, const std::string& b) {
  std::vector<size_t> row(b.size() + 1);
  for (size_t j = 0; j <= b.size(); ++j) row[j] = j;
  for (size_t i = 1; i <= a.size(); ++i) {
    size_t diagonal = row[0];
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      size_t next = std::min({row[j] + 1, row[j - 1] + 1, diagonal + (a[i - 1] == b[j - 1] ? 0 : 1)});
      diagonal = std::exchange(row[j], next);
    }
  }
  return row[b.size()];
}

const Setting* find(const std::string& name) {
  for (const Setting& s : serve_settings()) {
    if (s.name == name) return &s;
  }
  return nullptr;
}

// The nearest setting, if one is near enough to be meant.
std::string nearest(const std::string& name) {
  std::string best;
  size_t least = std::max<size_t>(2, name.size() / 3) + 1;
  for (const Setting& s : serve_settings()) {
    if (size_t d = distance(name, s.name); d < least) least = d, best = s.name;
  }
  return best;
}

std::string dashes(std::string s) {
  std::replace(s.begin(), s.end(), '_', '-');
  return s;
}
std::string underscores(std::string s) {
  std::replace(s.begin(), s.end(), '-', '_');
  return s;
}

Json from_toml(const toml::node& n) {
  if (auto v = n.value_exact<std::string>()) return *v;
  if (auto v = n.value_exact<int64_t>()) return *v;
  if (auto v = n.value_exact<double>()) return *v;
  if (auto v = n.value_exact<bool>()) return *v;
  if (const toml::array* a = n.as_array()) {
    Json list = Json::array();
    for (const toml::node& e : *a) list.push_back(from_toml(e));
    return list;
  }
  return nullptr;
}

struct Foreign {
  const char* flag;
  const char* answer;
};
// Flags people know from other engines.
constexpr Foreign kForeign[] = {
    {"--host", "use --listen HOST:PORT"},
    {"--port", "use --listen HOST:PORT"},
    {"-p", "use --listen HOST:PORT"},
    {"--max-model-len", "use --context-tokens"},
    {"--context-length", "use --context-tokens"},
    {"-c", "use --context-tokens"},
    {"--ctx-size", "use --context-tokens"},
    {"--max-num-seqs", "use --max-running"},
    {"--max-running-requests", "use --max-running"},
    {"-np", "use --max-running"},
    {"--parallel", "use --max-running"},
    {"--max-num-batched-tokens", "use --step-tokens"},
    {"--chunked-prefill-size", "use --step-tokens"},
    {"--max-num-queued-reqs", "use --max-queued-requests"},
    {"--max-num-queued-tokens", "use --max-queued-tokens"},
    {"--kv-cache-dtype", "the cache has the model's own formats; there is nothing to choose"},
    {"--block-size", "blocks have 128 tokens, as the model's attention needs them"},
    {"--enable-prefix-caching",
     "the prefix cache is always on; a request turns it off with use_prefix_cache: false"},
    {"--no-enable-prefix-caching", "a request turns the prefix cache off with use_prefix_cache: false"},
    {"--disable-radix-cache", "a request turns the prefix cache off with use_prefix_cache: false"},
    {"--enable-chunked-prefill", "long prompts are always computed in chunks"},
    {"--speculative-config", "the model brings its own drafts; use --speculate true or false"},
    {"--speculative-algorithm", "the model brings its own drafts; use --speculate true or false"},
    {"--kv-transfer-config", "one process computes and decodes here; there is no transfer to set up"},
    {"--disaggregation-mode", "one process computes and decodes here; there is nothing to split"},
    {"--tool-call-parser", "tool calls are always parsed when a request has tools"},
    {"--enable-auto-tool-choice", "tool calls are always parsed when a request has tools"},
    {"--reasoning-parser", "reasoning is always told apart"},
    {"--seed", "seeds belong to requests; one without a seed gets a fresh one"},
    {"--mem-fraction-static", "use --kv-tokens"},
    {"--gpu-memory-utilization", "there is no GPU here; use --kv-tokens"},
    {"--cache-ram", "use --kv-tokens"},
    {"-ngl", "there is no GPU here; weights are read from memory"},
    {"--n-gpu-layers", "there is no GPU here; weights are read from memory"},
    {"--gpu-layers", "there is no GPU here; weights are read from memory"},
    {"--enforce-eager", "there are no graphs to turn off"},
    {"--attention-backend", "kernels are chosen by the machine's instruction set"},
    {"--device", "everything runs on CPUs; use --threads"},
    {"--tensor-parallel-size", "this engine runs on one machine's CPUs; use --threads"},
    {"--tp", "this engine runs on one machine's CPUs; use --threads"},
    {"--tp-size", "this engine runs on one machine's CPUs; use --threads"},
    {"--pipeline-parallel-size", "this engine runs on one machine's CPUs; use --threads"},
    {"-tp", "this engine runs on one machine's CPUs; use --threads"},
    {"--data-parallel-size", "start one server per copy"},
    {"--enable-expert-parallel", "experts stay on this machine; use --threads"},
    {"--enable-eplb", "experts stay on this machine; there is nothing to balance"},
    {"--disable-log-requests", "use --log-level warning"},
    {"--enable-log-requests", "requests are logged; --log-level warning turns that off"},
    {"--log-requests", "requests are logged; --log-level warning turns that off"},
    {"--uvicorn-log-level", "use --log-level"},
    {"--enable-metrics", "metrics are always on, at /metrics"},
    {"--trust-remote-code", "no code is taken from a checkpoint"},
    {"--dtype", "a checkpoint's formats are used as they are"},
    {"--chat-template", "the model's template is built in; use --profile"},
    {"--ssl-certfile", "use --tls-certificate"},
    {"--ssl-keyfile", "use --tls-key"},
    {"--ssl-ca-certs", "use --tls-client-ca"},
    {"--uds", "use --unix-socket"},
    {"--allowed-origins", "use --cors-origins"},
    {"--model-path", "use --model"},
    {"-m", "use --model"},
    {"-t", "use --threads"},
    {"--alias", "use --served-model-name"},
    {"--numa", "threads are placed by the machine's topology; use taskset or numactl to restrict them"},
    {"--mlock", "weights are mapped from the file; keep enough memory free"},
};

}  // namespace

std::string flag_name(const Setting& s) {
  return "--" + dashes(s.name);
}

std::string variable_name(const Setting& s) {
  std::string out = "DEEPINFER_" + s.name;
  for (char& c : out) c = static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  return out;
}

Status set_from_text(const Setting& s, const std::string& text, const std::string& where,
                     ServeConfig* config) {
  Json value = text;
  if (s.kind == "flag") {
    if (text == "true" || text == "1" || text == "on" || text == "yes") value = true;
    if (text == "false" || text == "0" || text == "off" || text == "no") value = false;
  } else if (s.kind == "integer" || s.kind == "number") {
    char* end = nullptr;
    errno = 0;
    if (s.kind == "integer") {
      long long n = std::strtoll(text.c_str(), &end, 10);
      if (!text.empty() && *end == '\0' && errno == 0) value = static_cast<int64_t>(n);
    } else {
      double d = std::strtod(text.c_str(), &end);
      if (!text.empty() && *end == '\0') value = d;
    }
  } else if (s.kind == "list") {
    value = Json::array();
    std::istringstream parts(text);
    for (std::string part; std::getline(parts, part, ',');) {
      if (!part.empty()) value.push_back(part);
    }
  }
  return s.set(config, value)
      .with_context(where + ": " + (value.is_string() && s.kind != "text" ? "'" + text + "'" : text));
}

Status apply_toml(const std::string& text, const std::string& where, ServeConfig* config) {
  toml::table table;
  try {
    table = toml::parse(text, where);
  } catch (const toml::parse_error& e) {
    return error(Code::kInvalidConfig, "{}:{}: {}", where, e.source().begin.line, e.description());
  }
  for (auto&& [key, node] : table) {
    const std::string name(key.str());
    const Setting* s = find(underscores(name));
    if (s == nullptr) {
      const std::string near = nearest(underscores(name));
      return error(
          Code::kInvalidConfig, "{}:{}: unknown setting '{}'{}", where, node.source().begin.line, name,
          near.empty() ? std::string("; docs/configuration.md lists all") : "; did you mean '" + near + "'?");
    }
    DI_TRY(s->set(config, from_toml(node))
               .with_context(fmt::format("{}:{}: {}", where, node.source().begin.line, name)));
  }
  return {};
}

Status apply_environment(const std::function<const char*(const char*)>& environment, ServeConfig* config) {
  for (const Setting& s : serve_settings()) {
    const std::string name = variable_name(s);
    const char* v = environment(name.c_str());
    if (v != nullptr && *v != '\0') DI_TRY(set_from_text(s, v, name, config));
  }
  return {};
}

std::vector<std::string> unknown_variables(const char* const* entries) {
  std::vector<std::string> unknown;
  for (; entries != nullptr && *entries != nullptr; ++entries) {
    if (std::strncmp(*entries, "DEEPINFER_", 10) != 0) continue;
    std::string name(*entries, std::strcspn(*entries, "="));
    bool known = name == "DEEPINFER_CONFIG" || name == "DEEPINFER_JOBS" || name == "DEEPINFER_VENV" ||
                 name == "DEEPINFER_FUZZ_SEED" || name.rfind("DEEPINFER_TEST_", 0) == 0;
    for (const Setting& s : serve_settings()) known = known || name == variable_name(s);
    if (!known) unknown.push_back(std::move(name));
  }
  return unknown;
}

std::string explain_unknown_flag(const std::string& given) {
  const std::string flag = given.substr(0, given.find('='));
  for (const Foreign& f : kForeign) {
    if (flag == f.flag) return fmt::format("{} is not a flag here: {}", flag, f.answer);
  }
  const std::string near =
      nearest(underscores(flag.substr(std::min(flag.size(), flag.find_first_not_of('-')))));
  if (near.empty()) return fmt::format("{} is not a flag here; deepinfer serve --help lists all", flag);
  return fmt::format("{} is not a flag here; did you mean --{}?", flag, dashes(near));
}

Json config_json(const ServeConfig& c) {
  Json out = Json::object();
  for (const Setting& s : serve_settings()) {
    Json v = s.get(c);
    if (s.secret && v != "") v = "(hidden)";
    out[s.name] = std::move(v);
  }
  return out;
}

Result<std::vector<std::string>> live_changes(const ServeConfig& now, const ServeConfig& next) {
  std::vector<std::string> changed, fixed;
  for (const Setting& s : serve_settings()) {
    if (s.get(now) == s.get(next)) continue;
    (s.live ? changed : fixed).push_back(s.name);
  }
  if (fixed.empty()) return changed;
  return error(Code::kInvalidConfig,
               "{} cannot change while the server runs; nothing was changed. Restart the server, or take it "
               "back. The manual's page on configuration marks what can change",
               fmt::format("{}", fmt::join(fixed, ", ")));
}

std::string configuration_page() {
  std::string out =
      "# Configuration of the server\n\nWritten by `deepinfer serve --print-docs configuration`; a test "
      "compares.\n\n"
      "A setting can be given as a flag (`--max-running 8`), as an environment variable "
      "(`DEEPINFER_MAX_RUNNING=8`) or in a TOML file\n"
      "(`max_running = 8`) named by `--config FILE` or `DEEPINFER_CONFIG`. Flags beat variables, variables "
      "beat the file, the file beats\n"
      "the defaults. Unknown names are errors with a suggestion; flags of other engines are answered with "
      "the one to use here. Lists are\n"
      "separated by commas in flags and variables. `deepinfer serve --print-config` prints what is in "
      "effect, as the member `config` of\n"
      "`GET /server_info`. What is marked live can change while the server runs: edit the file (or the key "
      "file) and send SIGHUP, or `POST\n"
      "/reload_config`, whose answer names what changed. A file that is wrong, or changes anything else, is "
      "refused with the reason and nothing\n"
      "changes. Flags and variables given at the start still beat the file. The key file is read and the log "
      "file opened again each time.\n";
  ServeConfig defaults;
  std::string group;
  for (const Setting& s : serve_settings()) {
    if (s.group != group) {
      group = s.group;
      out += fmt::format(
          "\n## {}\n\n| setting | flag | variable | kind | default | live | meaning "
          "|\n|---|---|---|---|---|---|---|\n",
          group);
    }
    std::string value;
    append_json(s.get(defaults), JsonStyle::kCompact, &value);
    std::string kind = s.choices.empty() ? s.kind : fmt::format("{}", fmt::join(s.choices, ", "));
    out += fmt::format("| `{}` | `{}` | `{}` | {} | `{}` | {} | {} |\n", s.name, flag_name(s),
                       variable_name(s), kind, value, s.live ? "live" : "", s.help);
  }
  return out;
}

}  // namespace deepinfer
