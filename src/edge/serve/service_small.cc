// The small endpoints: models, tokens, health, metrics, state, files (edge/serve/service.h).
#include <algorithm>

#include "edge/errors.h"
#include "edge/serve/service.h"
#include "host/clock.h"

namespace deepinfer {

void Service::answer_from_body(Context& c, std::function<Result<std::string>(const Json&)> work) {
  auto exchange = c.exchange;
  auto loop = exchange->loop();
  auto body = std::make_shared<std::string>(exchange->take_body());
  calls_.background([this, exchange, loop, body, work = std::move(work), protocol = c.protocol] {
    auto result = std::make_shared<Result<std::string>>([&]() -> Result<std::string> {
      DI_ASSIGN(Json json, parse_json(*body));
      return work(json);
    }());
    loop->post([this, exchange, result, protocol] {
      if (!result->ok()) return refuse(*exchange, error_reply(result->status()), protocol);
      HttpResponse r;
      r.body = std::move(**result);
      exchange->respond(std::move(r));
    });
  });
}

void Service::count_tokens(Context& c) {
  answer_from_body(c, [this, account = c.caller.tenant](const Json& body) -> Result<std::string> {
    // The limit on the answer is no part of a count.
    Json counted = body;
    if (counted.is_object() && !counted.contains("max_tokens")) counted["max_tokens"] = 1;
    const std::shared_ptr<const Preparer> preparer = calls_.preparer->get();
    DI_ASSIGN(ProtocolRequest r, convert_messages(counted, preparer->options().convert));
    const std::string scope = cache_scope(account, r.user_id, {});
    DI_ASSIGN(std::vector<int32_t> ids, preparer->prompt_ids(r, &scope));
    return messages_token_count(static_cast<int64_t>(ids.size()));
  });
}

void Service::tokenize(Context& c) {
  answer_from_body(c, [this](const Json& body) -> Result<std::string> {
    Json filled = body;
    if (filled.is_object() && filled.contains("messages") && !filled.contains("model"))
      filled["model"] = calls_.preparer->get()->options().models.served.front();
    DI_ASSIGN(std::vector<int32_t> ids, calls_.preparer->get()->tokenize(filled));
    return tokenize_object(ids, calls_.preparer->get()->options().context_tokens);
  });
}

void Service::detokenize(Context& c) {
  answer_from_body(c, [this](const Json& body) -> Result<std::string> {
    DI_ASSIGN(std::vector<int32_t> ids, convert_detokenize(body));
    return detokenize_object(calls_.preparer->get()->options().encoder->tokenizer().decode(ids));
  });
}

void Service::render(Context& c) {
  answer_from_body(c, [this](const Json& body) -> Result<std::string> {
    DI_ASSIGN(Json spans, calls_.preparer->get()->inspect(body));
    std::string out;
    append_json(spans, JsonStyle::kCompact, &out);
    return out;
  });
}

void Service::models(Context& c) {
  std::vector<ModelEntry> list;
  const auto preparer = calls_.preparer->get();
  for (const std::string& name : preparer->options().models.served)
    list.push_back({name, o_.created, preparer->options().context_tokens});
  HttpResponse r;
  r.body = model_list(list, c.protocol);
  c.exchange->respond(std::move(r));
}

void Service::model(Context& c) {
  const auto preparer = calls_.preparer->get();
  const auto& served = preparer->options().models.served;
  if (std::find(served.begin(), served.end(), c.rest) == served.end())
    return refuse(
        *c.exchange,
        {404, "The model `" + c.rest + "` does not exist here.", "not_found_error", "model_not_found", 0},
        c.protocol);
  const int64_t context = preparer->options().context_tokens;
  if (c.protocol == Protocol::kMessages)
    return json(*c.exchange,
                {{"type", "model"}, {"id", c.rest}, {"display_name", c.rest}, {"max_input_tokens", context}});
  json(*c.exchange, {{"id", c.rest},
                     {"object", "model"},
                     {"created", o_.created},
                     {"owned_by", "deepseek"},
                     {"context_length", context}});
}

Service::Progress Service::progress(const EngineView& v) const {
  if (v.busy_ns <= 0) return Progress::kIdle;
  const int64_t silent = v.last_step_age_ns < 0 ? v.busy_ns : std::min(v.busy_ns, v.last_step_age_ns);
  return silent > settings()->stall_ns ? Progress::kStalled : Progress::kOk;
}

bool Service::ready(std::string* why) const {
  const EngineView v = calls_.generator->view();
  if (draining_ || v.draining) {
    *why = "draining";
  } else if (progress(v) == Progress::kStalled) {
    *why = "the engine has work but has made no step for " +
           std::to_string(std::min(v.busy_ns, v.last_step_age_ns < 0 ? v.busy_ns : v.last_step_age_ns) /
                          1'000'000) +
           " ms";
  } else {
    return true;
  }
  return false;
}

Json Service::health() const {
  const EngineView v = calls_.generator->view();
  const Progress p = progress(v);
  std::string why;
  const bool is_ready = ready(&why);
  Json out = {{"status", is_ready ? "ok" : "unavailable"},
              {"progress", p == Progress::kIdle ? "idle"
                           : p == Progress::kOk ? "ok"
                                                : "stalled"},
              {"last_step_age_ms", v.last_step_age_ns < 0 ? Json() : Json(v.last_step_age_ns / 1'000'000)},
              {"running", v.running},
              {"waiting", v.waiting},
              {"draining", draining_ || v.draining}};
  if (!is_ready) out["reason"] = why;
  // Degraded, not down: answers go on, but what should be kept is not.
  Json degraded = Json::array();
  if (Status db = calls_.database->health(); !db.ok()) degraded.push_back("database: " + db.message());
  if (Status log = calls_.log->health(); !log.ok()) degraded.push_back("log: " + log.message());
  if (!v.store_trouble.empty()) degraded.push_back("store: " + v.store_trouble);
  if (!degraded.empty()) out["degraded"] = std::move(degraded);
  return out;
}

void Service::live(Context& c) {
  json(*c.exchange, {{"status", "alive"}});
}

void Service::readiness(Context& c) {
  std::string why;
  const bool is_ready = ready(&why);
  if (!is_ready) c.exchange->add_header("Retry-After", "5");
  json(*c.exchange, health(), is_ready ? 200 : 503);
}

void Service::progress_answer(Context& c) {
  json(*c.exchange, health());
}

void Service::metrics(Context& c) {
  HttpResponse r;
  r.content_type = "text/plain; version=0.0.4; charset=utf-8";
  const RecordGauges records{!calls_.database->health().ok(), !calls_.log->health().ok(),
                             calls_.database->dropped(), calls_.log->lost()};
  r.body =
      metrics_text(*calls_.metrics, calls_.generator->view(), o_.http ? o_.http() : HttpGauges(), records,
                   calls_.preparer->get()->options().models.served.front(), settings()->metric_names);
  c.exchange->respond(std::move(r));
}

void Service::state(Context& c) {
  const EngineView v = calls_.generator->view();
  const ServeMetrics& m = *calls_.metrics;
  Json out = health();
  out["time_ns"] = now_ns();
  out["in_flight"] = m.in_flight.load();
  Json counters = Json::object(), gauges = Json::object();
  for (const auto& [name, n] : v.counters) counters[name] = n;
  for (const auto& [name, n] : v.gauges) gauges[name] = n;
  out["counters"] = std::move(counters);
  out["gauges"] = std::move(gauges);
  auto quantiles = [](const Histogram& h) {
    return Json{{"count", h.count()}, {"sum", h.sum()}, {"p50", h.quantile(0.5)}, {"p99", h.quantile(0.99)}};
  };
  out["ttft_s"] = quantiles(m.ttft);
  out["inter_token_s"] = quantiles(m.inter_token);
  out["e2e_s"] = quantiles(m.e2e);
  json(*c.exchange, out);
}

void Service::recent(Context& c) {
  const std::string id = query_value(c.exchange->request().query, "id");
  json(*c.exchange, {{"requests", calls_.recent->json(c.caller.tenant, id)}});
}

void Service::info(Context& c) {
  json(*c.exchange, o_.server_info ? o_.server_info() : Json::object());
}

void Service::reload(Context& c) {
  auto exchange = c.exchange;
  auto loop = exchange->loop();
  calls_.background([this, exchange, loop, protocol = c.protocol] {
    auto result = std::make_shared<Result<Json>>(
        o_.reload ? o_.reload()
                  : Result<Json>(error(Code::kUnsupported, "this server has no settings to read again")));
    loop->post([exchange, result, protocol, this] {
      if (!result->ok()) {
        return refuse(*exchange,
                      {400, result->status().message(), "invalid_request_error", "settings_refused", 0},
                      protocol);
      }
      json(*exchange, **result);
    });
  });
}

void Service::version(Context& c) {
  json(*c.exchange, {{"version", o_.version}});
}

void Service::ping(Context& c) {
  json(*c.exchange, Json::object());
}

void Service::load(Context& c) {
  json(*c.exchange, {{"server_load", calls_.metrics->in_flight.load()}});
}

void Service::props(Context& c) {
  const auto preparer = calls_.preparer->get();
  const PrepareOptions& p = preparer->options();
  json(*c.exchange,
       {{"default_generation_settings",
         {{"n_ctx", p.context_tokens}, {"temperature", p.default_temperature}, {"top_p", p.default_top_p}}},
        {"total_slots", o_.slots},
        {"model_alias", p.models.served.front()},
        {"build_info", "deepinfer " + o_.version}});
}

// A request is bound to no slot here: as many are busy as choices are computed.
void Service::slots(Context& c) {
  const auto preparer = calls_.preparer->get();
  const EngineView v = calls_.generator->view();
  Json list = Json::array();
  for (int64_t i = 0; i < o_.slots; ++i)
    list.push_back(
        {{"id", i}, {"n_ctx", preparer->options().context_tokens}, {"is_processing", i < v.running}});
  json(*c.exchange, list);
}

void Service::flush_cache(Context& c) {
  if (!c.caller.admin)
    return refuse(*c.exchange,
                  {403, "The cache is everybody's: only a key with admin=1 in the key file may empty it.",
                   "permission_error", "not_admin", 0},
                  c.protocol);
  auto exchange = c.exchange;
  auto loop = exchange->loop();
  calls_.background([this, exchange, loop, protocol = c.protocol] {
    const bool done = calls_.generator->clear_cache();
    loop->post([this, exchange, protocol, done] {
      if (done) return json(*exchange, {{"success", true}});
      refuse(*exchange,
             {501, "This engine has no prefix cache.", "invalid_request_error", "not_implemented", 0},
             protocol);
    });
  });
}

void Service::tokenizer_info(Context& c) {
  const auto preparer = calls_.preparer->get();
  const Tokenizer& t = preparer->options().encoder->tokenizer();
  Json added = Json::array();
  for (const AddedToken& a : t.added_tokens()) {
    if (a.text.find("place▁holder") == std::string::npos)
      added.push_back({{"id", a.id}, {"text", a.text}, {"special", a.special}});
  }
  json(*c.exchange, {{"vocab_size", t.vocab_size()}, {"added_tokens", std::move(added)}});
}

void Service::unsupported(Context& c) {
  refuse(*c.exchange,
         {501,
          c.exchange->request().path + " is not something this server does. It serves chat completions, "
                                       "completions, responses and messages of one language model.",
          "invalid_request_error", "not_implemented", 0},
         c.protocol);
}

bool Service::serve_file(Exchange& exchange, const std::string& path) {
  if (o_.files.empty()) return false;
  const StaticFile* found = path == "/" ? &o_.files.front() : nullptr;
  for (const StaticFile& f : o_.files) {
    if (path == f.path) found = &f;
  }
  if (found == nullptr) return false;
  HttpResponse r;
  r.content_type = found->content_type;
  r.body = std::string(found->bytes);
  r.headers = {
      {"Cache-Control", "no-cache"},
      {"X-Content-Type-Options", "nosniff"},
      {"Content-Security-Policy", "default-src 'self'; img-src 'self' data:; frame-ancestors 'none'"}};
  exchange.respond(std::move(r));
  return true;
}

}  // namespace deepinfer
