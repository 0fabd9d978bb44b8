// The one description of the server's settings (apps/serve_config.h).
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <type_traits>

#include "apps/serve_config.h"

namespace deepinfer {
namespace {

template <typename T>
constexpr const char* kKind = std::is_same_v<T, bool>          ? "flag"
                              : std::is_same_v<T, int64_t>     ? "integer"
                              : std::is_same_v<T, double>      ? "number"
                              : std::is_same_v<T, std::string> ? "text"
                                                               : "list";

template <typename T>
Status assign(T* out, const Json& v) {
  if constexpr (std::is_same_v<T, bool>) {
    if (!v.is_boolean()) return error(Code::kInvalidConfig, "expected true or false");
    *out = v.get<bool>();
  } else if constexpr (std::is_same_v<T, int64_t>) {
    if (!v.is_number_integer() || (v.is_number_unsigned() && v.get<uint64_t>() > INT64_MAX) ||
        v.get<int64_t>() < 0)
      return error(Code::kInvalidConfig, "expected an integer that is not negative");
    *out = v.get<int64_t>();
  } else if constexpr (std::is_same_v<T, double>) {
    if (!v.is_number() || !std::isfinite(v.get<double>()) || v.get<double>() < 0)
      return error(Code::kInvalidConfig, "expected a number that is not negative");
    *out = v.get<double>();
  } else if constexpr (std::is_same_v<T, std::string>) {
    if (!v.is_string()) return error(Code::kInvalidConfig, "expected text");
    *out = v.get<std::string>();
  } else {
    Json list = v.is_array() ? v : Json::array({v});
    T all;
    for (const Json& e : list) {
      if (!e.is_string()) return error(Code::kInvalidConfig, "expected a list of texts");
      all.push_back(e.get<std::string>());
    }
    *out = std::move(all);
  }
  return {};
}

class Describer {
 public:
  explicit Describer(std::vector<Setting>* out) : out_(out) {}
  void group(const char* name) { group_ = name; }
  template <typename T>
  Setting& operator()(const char* name, T ServeConfig::* member, const char* help) {
    Setting s;
    s.name = name;
    s.kind = kKind<T>;
    s.group = group_;
    s.help = help;
    s.set = [member](ServeConfig* c, const Json& v) { return assign(&(c->*member), v); };
    s.get = [member](const ServeConfig& c) { return Json(c.*member); };
    out_->push_back(std::move(s));
    return out_->back();
  }

 private:
  std::vector<Setting>* out_;
  std::string group_;
};

void describe_model(Describer& d) {
  using C = ServeConfig;
  d.group("Model and engine");
  d("model", &C::model, "checkpoint directory in the released format; empty: the small model that ships");
  d("served_model_name", &C::served_model_name,
    "names clients may ask for; the first one is shown; empty: the directory's name");
  d("vendor_model_names", &C::vendor_model_names,
    "names of the vendor's API (deepseek-flash, claude-*) stand for the model too");
  d("engine", &C::engine,
    "serving: the model; synthetic: a fixed text at a fixed rate, for tests and benches")
      .choices = {"serving", "synthetic"};
  d("profile", &C::profile, "dialect of the request edge (docs/request-edge.md)").choices = {
      "api", "hosted_strict", "hf_reference", "v4", "recipe_0_2"};
  d("threads", &C::threads, "threads of the forward pass; 0: all usable CPUs");
  d("context_tokens", &C::context_tokens, "longest prompt and answer together; 0: the model's");
  d("kv_tokens", &C::kv_tokens, "tokens the cache holds over all requests; 0: chosen from the free memory");
  d("weights", &C::weights,
    "map: read from the file's mapping; copy: in memory, every memory node its rows, in huge pages; auto: "
    "copy "
    "where there are several memory nodes and room")
      .choices = {"auto", "map", "copy"};
  d("expert_memory_bytes", &C::expert_memory_bytes,
    "routed experts kept in memory, the most used ones; the others are read from the checkpoint when needed; "
    "0: all");
  d("max_running", &C::max_running, "choices computed at a time");
  d("step_tokens", &C::step_tokens, "most rows of one step; 0: the engine's choice");
  d("interactive_step_ms", &C::interactive_step_ms,
    "time a step may take while somebody's answer is being written or a short prompt waits: prompt rows "
    "beyond "
    "it wait for the next step, but for a block now and then");
  d("batch_step_ms", &C::batch_step_ms, "the same while there are only long prompts");
  d("exact_hits", &C::exact_hits,
    "reuse a cached prefix only where the answer equals a cold run's bit for bit (docs/engine.md)");
  d("speculate", &C::speculate, "use the model's drafts; the answers are the same without");
  d("speculation", &C::speculation,
    "how many drafts are verified. dynamic: by measured step times and confidences, none while that does not "
    "pay; lane: a row costs a fixed share of a step, unlikely drafts are dropped; fixed: always so many")
      .choices = {"dynamic", "lane", "fixed"};
  d("fixed_drafts", &C::fixed_drafts, "with speculation fixed: drafts per answer and step");
  d("lane_row_share", &C::lane_row_share,
    "with speculation lane: what a row costs, of a step without drafts");
  d("lane_dead_below", &C::lane_dead_below,
    "with speculation lane: drafts less likely than this to be accepted are dropped");
  d("synthetic_tokens_per_s", &C::synthetic_tokens_per_s,
    "rate of the synthetic engine per choice; 0: all at once");
}

void describe_store(Describer& d) {
  using C = ServeConfig;
  d.group("Prefix store");
  d("store", &C::store,
    "directory of a persistent prefix store (docs/store.md), local or shared; several: each prefix is spread "
    "over them with erasure coding; empty: prefixes are kept in memory only");
  d("store_data_parts", &C::store_data_parts, "with several directories: parts that hold the data");
  d("store_parity_parts", &C::store_parity_parts,
    "with several directories: parts beyond those; as many may be lost");
  d("store_write", &C::store_write,
    "through: blocks go there as they are completed; back: when their request ends")
      .choices = {"through", "back"};
  d("store_layers", &C::store_layers,
    "read blocks layer by layer, so that a step can begin before all has come; for disks that read small "
    "pieces "
    "as quickly as large ones (docs/store.md)");
  d("store_bytes", &C::store_bytes,
    "bytes this process may keep there; the least recently used go first; 0: no limit");
  d("store_warm_ms", &C::store_warm_ms,
    "milliseconds for reading what was used last into memory before the start; 0: nothing is read");
  d("store_limit_mb_s", &C::store_limit_mb_s,
    "megabytes per second that are read there, and that are written, at most; 0: no limit");
  d("store_chat_ttl_s", &C::store_chat_ttl_s, "seconds that a chat's prefix lives after its last use");
  d("store_agent_ttl_s", &C::store_agent_ttl_s, "the same of requests that offer tools");
  d("store_window_chat_ttl_s", &C::store_window_chat_ttl_s,
    "the same of the windows of a chat's prefix; 0: as its blocks");
  d("store_window_agent_ttl_s", &C::store_window_agent_ttl_s,
    "the same of the windows of requests that offer tools; 0: as their blocks");
}

void describe_network(Describer& d) {
  using C = ServeConfig;
  d.group("Network");
  d("listen", &C::listen, "addresses host:port; port 0: any free one; 0.0.0.0:8000 for the whole network");
  d("unix_socket", &C::unix_socket, "path of a Unix socket to listen on as well");
  d("tls_certificate", &C::tls_certificate, "PEM file with the certificate chain; turns TLS on");
  d("tls_key", &C::tls_key, "PEM file with its private key");
  d("tls_client_ca", &C::tls_client_ca, "PEM file; clients must show a certificate signed by it");
  d("cors_origins", &C::cors_origins, "web origins whose pages may call the server; *: any; empty: none");
  d("http2", &C::http2, "speak HTTP/2 too: by ALPN under TLS, without TLS with clients that begin with it");
  d("http2_streams", &C::http2_streams, "requests at a time on one connection of HTTP/2");
  d("http_threads", &C::http_threads, "event loop threads");
  d("workers", &C::workers, "threads that parse, render and encode prompts");
  d("max_connections", &C::max_connections, "open connections; more are closed at once");
  d("max_header_bytes", &C::max_header_bytes, "size of a request's header; larger: 431");
  d("max_body_bytes", &C::max_body_bytes, "size of a request's body; larger: 413");
  d("stream_buffer_bytes", &C::stream_buffer_bytes, "unread bytes a stream may hold; beyond, it is cut");
  d("stream_gap_ms", &C::stream_gap_ms,
    "tokens of an answer that had some less than this ago go out together with the next ones, in one write; "
    "slower answers are not touched; 0: every step's at once");
  d("header_timeout_s", &C::header_timeout_s, "seconds a header may take to arrive; then 408");
  d("body_timeout_s", &C::body_timeout_s, "seconds a body may take to arrive; then 408");
  d("idle_timeout_s", &C::idle_timeout_s, "seconds a connection may be silent between requests");
  d("write_timeout_s", &C::write_timeout_s, "seconds without progress before a reader counts as gone");
  d("keep_alive_s", &C::keep_alive_s, "seconds of silence of a stream before a comment line is sent");
}

void describe_admission(Describer& d) {
  using C = ServeConfig;
  d.group("Admission");
  d("api_key", &C::api_key, "a key clients must send; empty and no key file: no key needed").secret = true;
  d("api_key_file", &C::api_key_file, "file of hashed keys with tenants and quotas (docs/server.md)");
  d("protect_metrics", &C::protect_metrics, "/metrics and the console's live view need a key too");
  d("max_queued_requests", &C::max_queued_requests,
    "requests that may wait for their first step; more: 503; 0: no limit");
  d("max_queued_tokens", &C::max_queued_tokens, "prompt tokens that may wait; more: 503; 0: no limit");
  d("max_queue_s", &C::max_queue_s,
    "seconds of predicted prompt work that may wait in a line (short and long prompts wait apart); more: "
    "503; "
    "0: no limit");
  d("max_choices", &C::max_choices, "largest n of a request");
  d("max_output_tokens", &C::max_output_tokens, "largest max_tokens of a request; 0: the context's");
  d("thinking_tool_choice", &C::thinking_tool_choice,
    "a required or named tool call is taken with thinking on, and made to come after the reasoning; off: "
    "400, "
    "as at the vendor's API");
  d("turn_memory_bytes", &C::turn_memory_bytes,
    "memory for sampled turns, so that a turn sent back unchanged begins with just the cached tokens; 0: "
    "off");
  d("default_temperature", &C::default_temperature, "temperature of requests that give none");
  d("default_top_p", &C::default_top_p, "top_p of requests that give none");
  d("drain_grace_s", &C::drain_grace_s, "seconds unfinished answers get after SIGTERM");
  d("stall_s", &C::stall_s, "seconds of work without a step after which the server counts as stalled");
}

void describe_records(Describer& d) {
  using C = ServeConfig;
  d.group("Records");
  d("database", &C::database, "SQLite file of stored responses and the usage ledger; empty: in memory");
  d("max_responses", &C::max_responses, "stored responses kept; the oldest go first");
  d("log_format", &C::log_format, "lines for people or JSON").choices = {"text", "json"};
  d("log_level", &C::log_level, "least level written").choices = {"debug", "info", "warning", "error", "off"};
  d("log_file", &C::log_file, "file for the log; empty: standard error");
  d("otlp_endpoint", &C::otlp_endpoint,
    "collector for traces (OTLP over HTTP), as in http://127.0.0.1:4318; empty: none");
  d("metrics_names", &C::metrics_names, "names under /metrics: our own, those of vLLM, or both").choices = {
      "own", "vllm", "both"};
}

}  // namespace

namespace {
// What may change while the server runs. Everything else is built into threads, sockets or the engine.
constexpr const char* kLive[] = {"api_key",
                                 "api_key_file",
                                 "protect_metrics",
                                 "cors_origins",
                                 "max_queued_requests",
                                 "max_queued_tokens",
                                 "max_queue_s",
                                 "max_choices",
                                 "max_output_tokens",
                                 "default_temperature",
                                 "default_top_p",
                                 "drain_grace_s",
                                 "stall_s",
                                 "log_level",
                                 "metrics_names",
                                 "thinking_tool_choice"};
}  // namespace

const std::vector<Setting>& serve_settings() {
  static const std::vector<Setting> all = [] {
    std::vector<Setting> settings;
    Describer d(&settings);
    describe_model(d);
    describe_store(d);
    describe_network(d);
    describe_admission(d);
    describe_records(d);
    for (Setting& s : settings) {
      s.live = std::find(std::begin(kLive), std::end(kLive), s.name) != std::end(kLive);
    }
    return settings;
  }();
  return all;
}

Status validate(const ServeConfig& c) {
  auto bad = [](const char* name, const char* why) {
    return error(Code::kInvalidConfig, "{}: {}", name, why);
  };
  for (const Setting& s : serve_settings()) {
    if (s.choices.empty()) continue;
    const Json v = s.get(c);
    bool known = false;
    for (const std::string& choice : s.choices) known = known || v == choice;
    if (!known)
      return error(Code::kInvalidConfig, "{}: '{}' is none of {}", s.name, v.get<std::string>(),
                   fmt::format("{}", fmt::join(s.choices, ", ")));
  }
  if (c.listen.empty() && c.unix_socket.empty())
    return bad("listen", "an address or a Unix socket is needed");
  if (c.tls_certificate.empty() != c.tls_key.empty())
    return bad("tls_key", "tls_certificate and tls_key are given together or not at all");
  if (!c.tls_client_ca.empty() && c.tls_key.empty())
    return bad("tls_client_ca", "needs tls_certificate and tls_key");
  if (c.http_threads < 1 || c.http_threads > 64) return bad("http_threads", "must be in [1, 64]");
  if (c.http2_streams < 1 || c.http2_streams > 100'000) return bad("http2_streams", "must be in [1, 100000]");
  if (c.workers < 1 || c.workers > 64) return bad("workers", "must be in [1, 64]");
  if (c.max_header_bytes < 1024 || c.max_header_bytes > (16 << 20))
    return bad("max_header_bytes", "must be in [1024, 16777216]");
  if (c.max_body_bytes < 1024) return bad("max_body_bytes", "must be at least 1024");
  if (c.stream_buffer_bytes < (16 << 10)) return bad("stream_buffer_bytes", "must be at least 16384");
  if (c.max_connections < 1) return bad("max_connections", "must be at least 1");
  if (c.max_running < 1) return bad("max_running", "must be at least 1");
  if (c.fixed_drafts < 0 || c.fixed_drafts > 5)
    return bad("fixed_drafts", "must be in [0, 5]: a block of drafts has five");
  if (c.lane_row_share < 0 || c.lane_dead_below < 0 || c.lane_dead_below > 1)
    return bad("lane_*", "the row's share must not be negative, the likelihood must be in [0, 1]");
  for (double ms : {c.interactive_step_ms, c.batch_step_ms}) {
    if (ms < 1 || ms > 3'600'000) return bad("*_step_ms", "must be in [1, 3600000]");
  }
  if (c.max_queue_s > 1e6) return bad("max_queue_s", "must be in [0, 1000000]");
  if (c.store_data_parts < 1 || c.store_parity_parts < 1 || c.store_data_parts + c.store_parity_parts > 255)
    return bad("store_*_parts", "must be at least 1 and together at most 255");
  if (c.store_warm_ms < 0 || c.store_warm_ms > 600'000)
    return bad("store_warm_ms", "must be between 0 and 600,000");
  if (c.store_limit_mb_s < 0 || c.store_limit_mb_s > 1'000'000)
    return bad("store_limit_mb_s", "must be between 0 and 1,000,000");
  if (c.store_chat_ttl_s < 1 || c.store_agent_ttl_s < 1)
    return bad("store_*_ttl_s", "must be at least 1 second");
  if (c.max_choices < 1 || c.max_choices > 1024) return bad("max_choices", "must be in [1, 1024]");
  if (c.default_temperature > 2) return bad("default_temperature", "must be in [0, 2]");
  if (c.default_top_p <= 0 || c.default_top_p > 1) return bad("default_top_p", "must be in (0, 1]");
  for (double seconds : {c.header_timeout_s, c.body_timeout_s, c.idle_timeout_s, c.write_timeout_s,
                         c.keep_alive_s, c.stall_s}) {
    if (seconds < 0.05 || seconds > 86400) return bad("*_s", "times must be in [0.05, 86400] seconds");
  }
  if (c.drain_grace_s > 86400) return bad("drain_grace_s", "must be in [0, 86400]");
  return {};
}

}  // namespace deepinfer
