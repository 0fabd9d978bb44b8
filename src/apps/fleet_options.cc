// Names of mixes, rules and failures; a file of measured costs.
#include "apps/fleet_options.h"

#include <algorithm>
#include <charconv>
#include <map>
#include <nlohmann/json.hpp>

#include "host/files.h"

namespace deepinfer {
namespace {

using nlohmann::json;

constexpr const char* kFleet = "Fleet";
constexpr const char* kWork = "Workload";

Status read_mix(FleetOptions* o) {
  o->workload.mix.clear();
  for (const std::string& word : o->mix) {
    const size_t colon = word.find(':');
    const std::string name = word.substr(0, colon);
    double share = 1;
    if (colon != std::string::npos) {
      const std::string text = word.substr(colon + 1);
      auto [end, ec] = std::from_chars(text.data(), text.data() + text.size(), share);
      if (ec != std::errc() || end != text.data() + text.size() || !(share > 0) || share > 1e9) {
        return error(Code::kInvalidArgument, "--mix {}: '{}' is not a positive share", word, text);
      }
    }
    sim::SessionMix m;
    if (name == "agent") {
      m = sim::agent_mix();
    } else if (name == "chat") {
      m = sim::chat_mix();
    } else if (name == "documents") {
      m = sim::document_mix();
    } else if (name == "reading-a") {
      m = sim::reading_a_mix();
    } else {
      return error(Code::kInvalidArgument, "--mix {}: the kinds are agent, chat, documents and reading-a",
                   word);
    }
    m.share = share;
    o->workload.mix.push_back(m);
  }
  return {};
}

// WHAT:NUMBER@SECONDS or WHAT:NUMBER@SECONDS+SECONDS
struct Timed {
  std::string what;
  int which = 0;
  double at_s = 0, plus_s = -1;  // -1: nothing was added
};
Status read_timed(const char* option, const char* usage, const std::string& text, Timed* out) {
  auto bad = [&](const char* why) {
    return error(Code::kInvalidArgument, "{} {}: {}; write {}", option, text, why, usage);
  };
  const size_t colon = text.find(':'), at = text.find('@'),
               plus = text.find('+', at == std::string::npos ? 0 : at);
  if (colon == std::string::npos || at == std::string::npos || at < colon) return bad("not understood");
  out->what = text.substr(0, colon);
  auto number = [](std::string_view s, auto* value) {
    auto [end, ec] = std::from_chars(s.data(), s.data() + s.size(), *value);
    return ec == std::errc() && end == s.data() + s.size();
  };
  const std::string_view all = text;
  if (!number(all.substr(colon + 1, at - colon - 1), &out->which)) return bad("no number");
  if (!number(all.substr(at + 1, plus == std::string::npos ? plus : plus - at - 1), &out->at_s))
    return bad("no time");
  if (plus != std::string::npos && (!number(all.substr(plus + 1), &out->plus_s) || !(out->plus_s >= 0)))
    return bad("no duration");
  if (!(out->at_s >= 0 && out->at_s < 1e8) || !(out->plus_s < 1e8)) return bad("a time out of range");
  return {};
}

Status read_failure(const std::string& text, sim::FleetConfig* fleet) {
  constexpr const char* kUsage =
      "store:NODE@SECONDS, prefill:ENGINE@SECONDS, decode:GROUP@SECONDS, gpu:GROUP@SECONDS, "
      "vision:MACHINE@SECONDS or link:ENGINE@SECONDS, and +SECONDS if it comes back";
  const std::map<std::string, sim::FailureEvent::What> kinds = {
      {"store", sim::FailureEvent::What::kStoreNode},
      {"prefill", sim::FailureEvent::What::kPrefillEngine},
      {"decode", sim::FailureEvent::What::kDecodeGroup},
      {"gpu", sim::FailureEvent::What::kDecodeGpu},
      {"vision", sim::FailureEvent::What::kVisionMachine},
      {"link", sim::FailureEvent::What::kLink}};
  Timed t;
  DI_TRY(read_timed("--fail", kUsage, text, &t));
  const auto kind = kinds.find(t.what);
  if (kind == kinds.end())
    return error(Code::kInvalidArgument, "--fail {}: unknown kind; write {}", text, kUsage);
  fleet->failures.push_back({kind->second, t.which, t.at_s, std::max(0.0, t.plus_s)});
  return {};
}

Status read_drain(const std::string& text, sim::FleetConfig* fleet) {
  constexpr const char* kUsage =
      "prefill:ENGINE@SECONDS or decode:GROUP@SECONDS, and +SECONDS if it serves again so long after it left";
  Timed t;
  DI_TRY(read_timed("--drain", kUsage, text, &t));
  if (t.what != "prefill" && t.what != "decode")
    return error(Code::kInvalidArgument, "--drain {}: unknown kind; write {}", text, kUsage);
  const auto role = t.what == "decode" ? policy::EngineRole::kDecode : policy::EngineRole::kPrefill;
  fleet->drains.push_back({role, t.which, t.at_s, t.plus_s});
  return {};
}

// {"prefill": {"a":, "b":, "d":, "e":, ...}, "decode": {"fixed_ns":, ...}}, each part and each field
// optional.
Status read_costs(const std::string& path, sim::FleetConfig* fleet) {
  DI_ASSIGN(const std::string text, read_file(path, 1 << 20));
  const json j = json::parse(text, nullptr, false);
  if (j.is_discarded() || !j.is_object()) return error(Code::kInvalidData, "{}: not a JSON object", path);
  auto part = [&](const char* name, std::map<std::string, double*> fields) -> Status {
    auto it = j.find(name);
    if (it == j.end()) return {};
    if (!it->is_object()) return error(Code::kInvalidData, "{}: \"{}\" is not an object", path, name);
    for (const auto& [key, value] : it->items()) {
      auto field = fields.find(key);
      if (field == fields.end())
        return error(Code::kInvalidData, "{}: unknown cost \"{}.{}\"", path, name, key);
      if (!value.is_number() || !(value.get<double>() >= 0)) {
        return error(Code::kInvalidData, "{}: \"{}.{}\" is not a number of at least 0", path, name, key);
      }
      *field->second = value.get<double>();
    }
    return {};
  };
  policy::CostModel& p = fleet->prefill;
  sim::DecodeCost& d = fleet->decode;
  DI_TRY(part("prefill", {{"a", &p.a},
                          {"b", &p.b},
                          {"d", &p.d},
                          {"e", &p.e},
                          {"e_decoder", &p.e_decoder},
                          {"d_decoder", &p.d_decoder},
                          {"g_decoder", &p.g_decoder}}));
  return part("decode", {{"fixed_ns", &d.fixed_ns},
                         {"per_row_ns", &d.per_row_ns},
                         {"per_row_squared_ns", &d.per_row_squared_ns},
                         {"per_token_ns", &d.per_token_ns}});
}

}  // namespace

int64_t FleetOptions::capacity_blocks() const {
  const double block = static_cast<double>(trace_block * fleet.kv_bytes_per_token);
  return store_tb > 0 ? std::max<int64_t>(1, static_cast<int64_t>(store_tb * 1e12 / block)) : 0;
}

void add_fleet_options(CLI::App* cmd, FleetOptions* o) {
  sim::FleetConfig* f = &o->fleet;
  auto add = [&](const char* group, const char* name, auto* value, const char* what) {
    return cmd->add_option(name, *value, what)->capture_default_str()->group(group);
  };
  add(kFleet, "--prefill", &f->prefill_engines, "Prefill engines");
  add(kFleet, "--prefill-ranks", &f->prefill_ranks, "Ranks (GPUs) of a prefill engine");
  add(kFleet, "--decode", &f->decode_groups, "Decode groups");
  add(kFleet, "--decode-ranks", &f->decode_ranks, "Ranks (GPUs) of a decode group");
  add(kFleet, "--spare-decode", &f->spare_decode_groups, "Decode groups of them in reserve");
  add(kFleet, "--decode-tokens-per-rank", &f->decode_tokens_per_rank, "Cache of a decode rank, in tokens");
  add(kFleet, "--costs", &o->costs, "JSON file of measured costs (prefill a, b, d, e; decode fixed_ns, ...)");
  add(kFleet, "--prefill-row-ns", &f->prefill.d, "Cost of a prompt row per rank")
      ->check(CLI::Range(1e-3, 1e12));
  add(kFleet, "--budget-ms", &o->budget_ms, "Budget of a prefill step")->check(CLI::Range(1.0, 1e6));
  add(kFleet, "--verify", &o->verify, "Drafts a decode step verifies: budget, fixed, lane or off")
      ->check(CLI::IsMember({"budget", "fixed", "lane", "off"}));
  add(kFleet, "--fixed-drafts", &f->verify.fixed, "With --verify fixed, so many of five")
      ->check(CLI::Range(0, 5));
  add(kFleet, "--draft-logit", &f->verify.logit, "Confidence of the first draft of a middling request, logit")
      ->check(CLI::Range(-20.0, 20.0));
  add(kFleet, "--vision", &f->vision.machines, "Machines that encode images");
  add(kFleet, "--vision-gpus", &f->vision.gpus, "GPUs of such a machine");
  add(kFleet, "--vision-patches", &f->vision.patches_per_s, "Patches per second and GPU")
      ->check(CLI::Range(1.0, 1e12));
  add(kFleet, "--moe-lb", &f->moe_lb, "Slowest over mean rank of the experts; 0: from the placement policy");
  add(kFleet, "--store-nodes", &f->store.nodes, "Storage nodes");
  add(kFleet, "--store-read", &f->store.read_bytes_per_s, "Bytes/s a storage node reads")
      ->check(CLI::Range(1.0, 1e18));
  add(kFleet, "--link", &f->link_bytes_per_s, "Bytes/s a prefill engine sends")->check(CLI::Range(1.0, 1e18));
  add(kFleet, "--prefill-rule", &o->prefill_rule, "pull, least-load, affinity or affinity-only")
      ->check(CLI::IsMember({"pull", "least-load", "affinity", "affinity-only"}));
  add(kFleet, "--decode-rule", &o->decode_rule, "joint, tokens, count or round-robin")
      ->check(CLI::IsMember({"joint", "tokens", "count", "round-robin"}));
  cmd->add_flag("--local-caches", o->local_caches, "No shared store: every engine has only what it computed")
      ->group(kFleet);
  add(kFleet, "--local-cache-seconds", &f->local_cache_s, "How long an engine's own cache keeps a prefix");
  add(kFleet, "--ttft-slo", &f->ttft_slo_s, "Objective of the first token, seconds")
      ->check(CLI::Range(1e-6, 1e6));
  add(kFleet, "--tpot-slo", &f->tpot_slo_ms, "Objective per token, milliseconds")
      ->check(CLI::Range(1e-6, 1e6));
  add(kFleet, "--deadline", &f->deadline_s, "Refuse what would be later than this, seconds; 0: never")
      ->check(CLI::Range(0.0, 1e6));
  add(kFleet, "--usd-per-gpu-hour", &f->usd_per_gpu_hour, "Price of a GPU")->check(CLI::Range(0.0, 1e6));
  add(kFleet, "--other-usd-per-hour", &f->other_usd_per_hour, "Everything else")->check(CLI::Range(0.0, 1e9));
  add(kFleet, "--seconds", &f->measure_s, "Measured time")->check(CLI::Range(1e-3, 1e7));
  add(kFleet, "--warmup", &f->warmup_s, "Time before it")->check(CLI::Range(0.0, 1e7));
  add(kFleet, "--seed", &f->seed, "Of every random draw");
  add(kFleet, "--fail", &o->failures,
      "store:NODE@SECONDS, prefill:ENGINE@S, decode:GROUP@S, gpu:GROUP@S, vision:MACHINE@S or "
      "link:ENGINE@S+S; +SECONDS: "
      "comes back");
  add(kFleet, "--drain", &o->drains,
      "prefill:ENGINE@SECONDS or decode:GROUP@S leaves with grace; +SECONDS: serves again so long after");
  add(kFleet, "--grace", &f->drain_grace_s, "Seconds until a draining instance hands its requests on")
      ->check(CLI::Range(0.0, 1e6));
  add(kFleet, "--start-seconds", &f->start_s, "An instance loads and warms up")->check(CLI::Range(0.0, 1e6));
  cmd->add_flag("--autoscale", f->autoscale.on, "The pools follow their autoscalers, up to the counts given")
      ->group(kFleet);
  add(kFleet, "--serving-prefill", &f->autoscale.prefill_engines,
      "Prefill engines at the start, with --autoscale; 0: all");
  add(kFleet, "--serving-decode", &f->autoscale.decode_groups, "The same for decode groups");
  add(kFleet, "--scale-up-after", &f->autoscale.up_after_s, "Seconds above the target before a pool grows");
  add(kFleet, "--scale-down-after", &f->autoscale.down_after_s, "Seconds below it before a pool shrinks");
  add(kWork, "--cancel", &f->cancel_share, "Share of the requests whose client leaves");
  add(kWork, "--cancel-after", &f->cancel_after_s, "after so many seconds in the mean");
  add(kWork, "--store-tb", &o->store_tb,
      "Capacity of the store, terabytes; full: the oldest goes; 0: no limit")
      ->check(CLI::Range(0.0, 1e9));
  add(kWork, "--mix", &o->mix, "Kinds of sessions with shares: agent:2 chat:1 documents:0.1 reading-a");
  add(kWork, "--images", &o->workload.image_share, "Share of the requests that bring one to four new images")
      ->check(CLI::Range(0.0, 1.0));
  add(kWork, "--rate", &o->workload.requests_per_s, "Requests per second")->check(CLI::Range(1e-6, 1e7));
  add(kWork, "--diurnal", &o->workload.diurnal, "Swing of the rate over the day, 0 to 0.99")
      ->check(CLI::Range(0.0, 0.99));
  add(kWork, "--ttl-hours", &o->ttl_hours, "The store forgets a prefix this long after its last use")
      ->check(CLI::Range(0.0, 1e6));
  add(kWork, "--window-ttl-minutes", &o->window_ttl_minutes, "The same for stored windows")
      ->check(CLI::Range(0.0, 1e7));
  add(kWork, "--trace", &o->trace,
      "Requests from a file instead (JSON Lines or CSV); - reads standard input");
  add(kWork, "--trace-block", &o->trace_block, "Tokens per hash id of the trace")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 20));
  add(kWork, "--trace-speed", &o->trace_speed, "Play the trace so many times as fast")
      ->check(CLI::Range(1e-6, 1e6));
}

Status resolve(FleetOptions* o) {
  DI_TRY(read_mix(o));
  o->workload.ttl_s = o->ttl_hours * 3600;
  o->workload.window_ttl_s = o->window_ttl_minutes * 60;
  o->fleet.batch_budget_ns = static_cast<int64_t>(o->budget_ms * 1e6);
  o->fleet.shared_store = !o->local_caches;
  const std::map<std::string, policy::PrefillRule> prefill = {
      {"pull", policy::PrefillRule::kPull},
      {"least-load", policy::PrefillRule::kLeastLoad},
      {"affinity", policy::PrefillRule::kAffinity},
      {"affinity-only", policy::PrefillRule::kAffinityOnly}};
  const std::map<std::string, policy::DecodeRule> decode = {{"joint", policy::DecodeRule::kJoint},
                                                            {"tokens", policy::DecodeRule::kTokensOnly},
                                                            {"count", policy::DecodeRule::kCountOnly},
                                                            {"round-robin", policy::DecodeRule::kRoundRobin}};
  o->fleet.prefill_balancer.rule = prefill.at(o->prefill_rule);
  o->fleet.decode_balancer.rule = decode.at(o->decode_rule);
  const std::map<std::string, policy::SpeculationMode> verify = {
      {"budget", policy::SpeculationMode::kDynamic},
      {"fixed", policy::SpeculationMode::kFixed},
      {"lane", policy::SpeculationMode::kLane},
      {"off", policy::SpeculationMode::kOff}};
  o->fleet.verify.mode = verify.at(o->verify);
  if (o->workload.image_share > 0 && o->fleet.vision.machines == 0)
    return error(Code::kInvalidArgument, "--images needs machines that encode them: give --vision");
  if (o->local_caches && o->prefill_rule == "pull") {
    return error(Code::kInvalidArgument,
                 "--local-caches needs a pushing rule: --prefill-rule least-load, affinity or affinity-only");
  }
  for (const std::string& f : o->failures) DI_TRY(read_failure(f, &o->fleet));
  for (const std::string& d : o->drains) DI_TRY(read_drain(d, &o->fleet));
  o->workload.capacity_bytes = o->store_tb * 1e12;
  o->workload.kv_bytes_per_token = static_cast<double>(o->fleet.kv_bytes_per_token);
  if (!o->costs.empty()) DI_TRY(read_costs(o->costs, &o->fleet));
  return sim::validate(o->fleet);
}

}  // namespace deepinfer
