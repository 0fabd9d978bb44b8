// Line by line, with the place in every message.
#include "sim/trace.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

namespace deepinfer::sim {
namespace {

using nlohmann::json;

constexpr double kMostMs = 1e12;  // about 30 years: beyond it is another unit

struct Place {
  const std::string& name;
  int64_t line = 0;
  template <typename... A>
  Status bad(fmt::format_string<A...> f, A&&... args) const {
    return error(Code::kInvalidData, "{}:{}: {}", name, line, fmt::format(f, std::forward<A>(args)...));
  }
};

Result<int64_t> arrival_ns(double ms, const Place& at) {
  if (!std::isfinite(ms) || ms < 0 || ms > kMostMs) {
    return at.bad(
        "timestamp {} is not a time in milliseconds from 0 to {}; subtract the start of the recording", ms,
        kMostMs);
  }
  return static_cast<int64_t>(ms * 1e6);
}

Status check_lengths(const TraceRequest& r, const TraceLimits& limits, const Place& at) {
  if (r.input_tokens < 1 || r.input_tokens > limits.max_tokens) {
    return at.bad("input_length {} is not between 1 and {}; remove the line or correct it", r.input_tokens,
                  limits.max_tokens);
  }
  if (r.output_tokens < 1 || r.output_tokens > limits.max_tokens) {
    return at.bad("output_length {} is not between 1 and {}; remove the line or correct it", r.output_tokens,
                  limits.max_tokens);
  }
  const int64_t most = (r.input_tokens + limits.block_tokens - 1) / limits.block_tokens;
  if (r.id_count > most) {
    return at.bad(
        "{} hash_ids for {} tokens, but blocks of {} tokens need at most {}; set the block size of the trace",
        r.id_count, r.input_tokens, limits.block_tokens, most);
  }
  return {};
}

Result<int64_t> whole(const json& line, const char* key, const Place& at) {
  auto it = line.find(key);
  if (it == line.end()) return at.bad("\"{}\" is missing; every line needs it", key);
  if (it->is_number_unsigned() && it->get<uint64_t>() > uint64_t{INT64_MAX})
    return at.bad("\"{}\" is too large", key);
  if (it->is_number_integer()) return it->get<int64_t>();
  return at.bad("\"{}\" is not a whole number", key);
}

Status read_json_line(std::string_view text, const Place& at, const TraceLimits& limits, Trace* out) {
  json line = json::parse(text.begin(), text.end(), nullptr, false);
  if (line.is_discarded()) return at.bad("not valid JSON; every line must be one whole JSON object");
  if (!line.is_object()) return at.bad("not a JSON object");
  TraceRequest r;
  auto stamp = line.find("timestamp");
  if (stamp == line.end() || !stamp->is_number())
    return at.bad("\"timestamp\" is missing or is not a number");
  DI_ASSIGN(r.arrival_ns, arrival_ns(stamp->get<double>(), at));
  DI_ASSIGN(r.input_tokens, whole(line, "input_length", at));
  DI_ASSIGN(r.output_tokens, whole(line, "output_length", at));
  r.first_id = static_cast<uint32_t>(out->ids.size());
  if (auto ids = line.find("hash_ids"); ids != line.end()) {
    if (!ids->is_array()) return at.bad("\"hash_ids\" is not a list");
    if (out->ids.size() + ids->size() > UINT32_MAX)
      return at.bad("more than 2^32 hash_ids in one trace; split it");
    for (const json& id : *ids) {
      if (!id.is_number_integer()) return at.bad("\"hash_ids\" holds something that is not a whole number");
      out->ids.push_back(id.is_number_unsigned() ? id.get<uint64_t>()
                                                 : static_cast<uint64_t>(id.get<int64_t>()));
    }
    r.id_count = static_cast<uint32_t>(ids->size());
  }
  DI_TRY(check_lengths(r, limits, at));
  out->requests.push_back(r);
  return {};
}

std::string_view trim(std::string_view s) {
  while (!s.empty() && (s.front() == ' ' || s.front() == '\t')) s.remove_prefix(1);
  while (!s.empty() && (s.back() == ' ' || s.back() == '\t' || s.back() == '\r')) s.remove_suffix(1);
  return s;
}

std::vector<std::string_view> split(std::string_view s, char by) {
  std::vector<std::string_view> out;
  for (size_t from = 0;;) {
    size_t to = s.find(by, from);
    out.push_back(trim(s.substr(from, to == std::string_view::npos ? to : to - from)));
    if (to == std::string_view::npos) return out;
    from = to + 1;
  }
}

// Digits with an optional fraction, and nothing else; -1 if it is none.
double plain_number(std::string_view s) {
  double value = 0, unit = 0;
  if (s.empty() || s.size() > 30 || s == ".") return -1;
  for (char c : s) {
    if (c == '.' && unit == 0) {
      unit = 1;
    } else if (c >= '0' && c <= '9') {
      value = value * 10 + (c - '0');
      unit *= 10;
    } else {
      return -1;
    }
  }
  return unit > 0 ? value / unit : value;
}

struct Columns {
  int time = -1, input = -1, output = -1, ids = -1;
  size_t count = 0;
};

Result<Columns> read_header(std::string_view line, const Place& at) {
  Columns c;
  int i = 0;
  for (std::string_view name : split(line, ',')) {
    if (name == "timestamp") c.time = i;
    if (name == "input_length") c.input = i;
    if (name == "output_length") c.output = i;
    if (name == "hash_ids") c.ids = i;
    ++i;
  }
  c.count = static_cast<size_t>(i);
  if (c.time < 0 || c.input < 0 || c.output < 0) {
    return at.bad(
        "the first line must be JSON or name the columns timestamp,input_length,output_length (and hash_ids "
        "if there are any, numbers separated by spaces)");
  }
  return c;
}

Status read_csv_line(std::string_view text, const Columns& c, const Place& at, const TraceLimits& limits,
                     Trace* out) {
  std::vector<std::string_view> cells = split(text, ',');
  if (cells.size() != c.count) return at.bad("{} columns where the first line has {}", cells.size(), c.count);
  TraceRequest r;
  const double ms = plain_number(cells[static_cast<size_t>(c.time)]);
  const double input = plain_number(cells[static_cast<size_t>(c.input)]);
  const double output = plain_number(cells[static_cast<size_t>(c.output)]);
  if (ms < 0 || input < 0 || output < 0) return at.bad("timestamp and lengths must be plain numbers");
  DI_ASSIGN(r.arrival_ns, arrival_ns(ms, at));
  if (input > 1e15 || output > 1e15) return at.bad("a length is too large");
  r.input_tokens = static_cast<int64_t>(input);
  r.output_tokens = static_cast<int64_t>(output);
  r.first_id = static_cast<uint32_t>(out->ids.size());
  if (c.ids >= 0 && !cells[static_cast<size_t>(c.ids)].empty()) {
    for (std::string_view id : split(cells[static_cast<size_t>(c.ids)], ' ')) {
      if (id.empty()) continue;
      const double value = plain_number(id);
      if (value < 0 || value > 9e15) return at.bad("a hash id is not a whole number below 9e15");
      out->ids.push_back(static_cast<uint64_t>(value));
    }
    r.id_count = static_cast<uint32_t>(out->ids.size() - r.first_id);
  }
  DI_TRY(check_lengths(r, limits, at));
  out->requests.push_back(r);
  return {};
}

}  // namespace

Result<Trace> parse_trace(std::string_view text, const std::string& name, const TraceLimits& limits) {
  Trace out;
  out.block_tokens = limits.block_tokens;
  Place at{name};
  Columns columns;
  bool started = false, is_json = false;
  for (size_t from = 0; from < text.size();) {
    size_t to = std::min(text.find('\n', from), text.size());
    std::string_view line = trim(text.substr(from, to - from));
    from = to + 1;
    ++at.line;
    if (line.empty()) continue;
    if (static_cast<int64_t>(line.size()) > limits.max_line_bytes) {
      return at.bad("a line of {} bytes; the most is {}", line.size(), limits.max_line_bytes);
    }
    if (!started) {
      started = true;
      is_json = line.front() == '{';
      if (!is_json) {
        DI_ASSIGN(columns, read_header(line, at));
        continue;
      }
    }
    if (static_cast<int64_t>(out.requests.size()) >= limits.max_requests) {
      return error(Code::kResourceExhausted, "{}:{}: more than {} requests; split the trace", name, at.line,
                   limits.max_requests);
    }
    DI_TRY(is_json ? read_json_line(line, at, limits, &out) : read_csv_line(line, columns, at, limits, &out));
  }
  if (out.requests.empty()) {
    return error(Code::kInvalidData, "{}: no requests; a trace has one JSON object or CSV line per request",
                 name);
  }
  auto earlier = [](const TraceRequest& a, const TraceRequest& b) { return a.arrival_ns < b.arrival_ns; };
  for (size_t i = 1; i < out.requests.size(); ++i)
    out.reordered += earlier(out.requests[i], out.requests[i - 1]);
  if (out.reordered > 0) std::stable_sort(out.requests.begin(), out.requests.end(), earlier);
  return out;
}

}  // namespace deepinfer::sim
