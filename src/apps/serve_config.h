// The server's configuration, described once: the description gives flags, environment variables, the TOML
// file, --help, --print-config and docs/configuration.md. Flags beat variables, variables beat the file, the
// file beats defaults. Knows no socket. Source: issue "the server" 4. Errors: kInvalidConfig naming the
// setting and, for an unknown one, the nearest. Threads: plain data.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "base/status.h"
#include "text/json.h"

namespace deepinfer {

struct ServeConfig {
  std::string model, engine = "serving", profile = "api";
  std::vector<std::string> served_model_name;
  bool vendor_model_names = true;
  int64_t threads = 0, context_tokens = 0, kv_tokens = 0, max_running = 64, step_tokens = 0;
  int64_t expert_memory_bytes = 0;
  std::string weights = "auto";
  bool speculate = true, exact_hits = false;
  std::string speculation = "dynamic";
  int64_t fixed_drafts = 5;
  double lane_row_share = 0.035, lane_dead_below = 0.2;
  double interactive_step_ms = 100, batch_step_ms = 400;
  double synthetic_tokens_per_s = 50;

  std::vector<std::string> store;
  std::string store_write = "through";
  bool store_layers = false;
  int64_t store_data_parts = 10, store_parity_parts = 2;
  int64_t store_warm_ms = 1000, store_limit_mb_s = 0;
  int64_t store_bytes = 0, store_chat_ttl_s = 7 * 86400, store_agent_ttl_s = 3 * 86400;
  int64_t store_window_chat_ttl_s = 0, store_window_agent_ttl_s = 0;  // 0: as their blocks

  std::vector<std::string> listen = {"127.0.0.1:8000"};
  std::string unix_socket, tls_certificate, tls_key, tls_client_ca;
  std::vector<std::string> cors_origins;
  bool http2 = true;
  int64_t http2_streams = 128;
  int64_t http_threads = 1, workers = 1;
  int64_t max_connections = 8192, max_header_bytes = 64 << 10, max_body_bytes = 64 << 20;
  int64_t stream_buffer_bytes = 1 << 20;
  double stream_gap_ms = 16;
  double header_timeout_s = 10, body_timeout_s = 60, idle_timeout_s = 75, write_timeout_s = 30,
         keep_alive_s = 5;

  std::string api_key, api_key_file;
  bool protect_metrics = false;
  int64_t max_queued_requests = 1024, max_queued_tokens = 0;
  double max_queue_s = 600;
  int64_t max_choices = 8, max_output_tokens = 0;
  bool thinking_tool_choice = false;
  int64_t turn_memory_bytes = 64 << 20;
  double default_temperature = 1, default_top_p = 1;
  double drain_grace_s = 60, stall_s = 30;

  std::string database;
  int64_t max_responses = 10'000;
  std::string log_format = "text", log_level = "info", log_file, metrics_names = "own", otlp_endpoint;
};

// One setting: how to write, read and describe it.
struct Setting {
  std::string name;  // as in the file; the flag has dashes, the variable is DEEPINFER_<NAME>
  std::string kind;  // text, list, flag, integer, number
  std::string group, help;
  bool secret = false;
  bool live = false;                                     // may change while the server runs
  std::vector<std::string> choices;                      // empty: any
  std::function<Status(ServeConfig*, const Json&)> set;  // a JSON value of the kind
  std::function<Json(const ServeConfig&)> get;
};
const std::vector<Setting>& serve_settings();

std::string flag_name(const Setting& setting);
std::string variable_name(const Setting& setting);

// Reads the text of a flag or variable: true/false, numbers, lists separated by commas.
Status set_from_text(const Setting& setting, const std::string& text, const std::string& where,
                     ServeConfig* config);
Status apply_toml(const std::string& text, const std::string& where, ServeConfig* config);
// Variables of the process; `environment` gives their values.
Status apply_environment(const std::function<const char*(const char*)>& environment, ServeConfig* config);
// Names with DEEPINFER_ in front that mean nothing here, of "NAME=value" entries.
std::vector<std::string> unknown_variables(const char* const* entries);

// The answer to a flag that is not ours: what it means at another engine and what to use here, or the nearest
// name.
std::string explain_unknown_flag(const std::string& flag);

// All settings with their values; secrets are hidden.
Json config_json(const ServeConfig& config);
// Which settings differ, by name. kInvalidConfig if one of them cannot change while the server runs.
Result<std::vector<std::string>> live_changes(const ServeConfig& now, const ServeConfig& next);
// Ranges and combinations.
Status validate(const ServeConfig& config);
// docs/configuration.md.
std::string configuration_page();

}  // namespace deepinfer
