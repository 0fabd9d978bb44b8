// Routing, authentication, CORS and the generation endpoints (edge/serve/service.h).
#include "edge/serve/service.h"

#include <algorithm>
#include <cstring>

#include "edge/serve/ids.h"
#include "host/clock.h"

namespace deepinfer {
namespace {

// Clients write paths with and without /v1, and the vendor has bases of its own.
std::string normal_path(std::string path) {
  for (const char* base : {"/anthropic", "/beta", "/api"}) {
    if (path.rfind(std::string(base) + "/", 0) == 0) path.erase(0, std::strlen(base));
  }
  if (path.rfind("/v1/", 0) == 0) path.erase(0, 3);
  if (path.size() > 1 && path.back() == '/') path.pop_back();
  return path;
}

// The Messages client sends its own headers; errors of shared paths (models) take its shape then.
Protocol protocol_of_path(const std::string& path, const HttpRequest& r) {
  if (path.rfind("/messages", 0) == 0) return Protocol::kMessages;
  if (path.rfind("/responses", 0) == 0) return Protocol::kResponses;
  return r.header("anthropic-version") != nullptr ? Protocol::kMessages : Protocol::kChat;
}

std::string bearer(const HttpRequest& r) {
  if (const std::string* key = r.header("x-api-key")) return *key;
  const std::string* a = r.header("authorization");
  if (a == nullptr) return {};
  if (a->size() > 7 && (a->rfind("Bearer ", 0) == 0 || a->rfind("bearer ", 0) == 0)) return a->substr(7);
  return *a;
}

}  // namespace

Service::Service(ServiceOptions options, CallServices calls, ServiceSettings settings)
    : o_(std::move(options)),
      calls_(std::move(calls)),
      settings_(std::make_shared<const ServiceSettings>(std::move(settings))) {}

const std::vector<Service::Route>& Service::routes() {
  static const std::vector<Route> all = {
      {"POST", "/chat/completions", false, &Service::chat},
      {"POST", "/completions", false, &Service::completions},
      {"POST", "/responses", false, &Service::responses},
      {"GET", "/responses/", false, &Service::response_get},
      {"DELETE", "/responses/", false, &Service::response_delete},
      {"POST", "/responses/", false, &Service::response_post},
      {"POST", "/messages", false, &Service::messages},
      {"POST", "/messages/count_tokens", false, &Service::count_tokens},
      {"GET", "/models", false, &Service::models},
      {"GET", "/models/", false, &Service::model},
      {"POST", "/tokenize", false, &Service::tokenize},
      {"POST", "/detokenize", false, &Service::detokenize},
      {"POST", "/render", false, &Service::render},
      {"GET", "/health", true, &Service::readiness},
      {"GET", "/readyz", true, &Service::readiness},
      {"GET", "/ready", true, &Service::readiness},
      {"GET", "/livez", true, &Service::live},
      {"GET", "/ping", true, &Service::ping},
      {"POST", "/ping", true, &Service::ping},
      {"GET", "/progress", true, &Service::progress_answer},
      {"GET", "/metrics", true, &Service::metrics},
      {"GET", "/console/state", true, &Service::state},
      {"GET", "/console/requests", false, &Service::recent},
      {"GET", "/version", true, &Service::version},
      {"GET", "/load", true, &Service::load},
      {"GET", "/server_info", false, &Service::info},
      {"GET", "/get_server_info", false, &Service::info},
      {"GET", "/tokenizer_info", false, &Service::tokenizer_info},
      {"GET", "/props", false, &Service::props},
      {"POST", "/reload_config", false, &Service::reload},
      {"POST", "/abort_request", false, &Service::abort_request},
      {"POST", "/embeddings", false, &Service::unsupported},
      {"POST", "/score", false, &Service::unsupported},
      {"POST", "/rerank", false, &Service::unsupported},
      {"POST", "/generate", false, &Service::generate_text},
      {"GET", "/slots", false, &Service::slots},
      {"POST", "/reset_prefix_cache", false, &Service::flush_cache},
      {"POST", "/flush_cache", false, &Service::flush_cache},
      {"POST", "/audio/transcriptions", false, &Service::unsupported},
      {"POST", "/images/generations", false, &Service::unsupported},
  };
  return all;
}

void Service::refuse(Exchange& exchange, const ErrorReply& reply, Protocol protocol) {
  exchange.respond(error_response(reply, protocol));
}

void Service::json(Exchange& exchange, const Json& value, int status) {
  HttpResponse r;
  r.status = status;
  append_json(value, JsonStyle::kCompact, &r.body);
  exchange.respond(std::move(r));
}

// True if the request was a preflight and is answered.
bool Service::cors(Exchange& exchange) {
  const std::string* origin = exchange.request().header("origin");
  const auto settings = this->settings();
  const std::vector<std::string>& origins = settings->cors_origins;
  if (origin == nullptr || origins.empty()) return false;
  const bool any = std::find(origins.begin(), origins.end(), "*") != origins.end();
  if (!any && std::find(origins.begin(), origins.end(), *origin) == origins.end()) return false;
  exchange.add_header("Access-Control-Allow-Origin", any ? "*" : *origin);
  if (!any) exchange.add_header("Vary", "Origin");
  exchange.add_header("Access-Control-Expose-Headers", "x-request-id, retry-after");
  if (exchange.request().method != "OPTIONS") return false;
  exchange.add_header("Access-Control-Allow-Methods", "GET, POST, DELETE, OPTIONS");
  const std::string* asked = exchange.request().header("access-control-request-headers");
  exchange.add_header("Access-Control-Allow-Headers",
                      asked != nullptr ? *asked : "authorization, content-type");
  exchange.add_header("Access-Control-Max-Age", "600");
  HttpResponse r;
  r.status = 204;
  exchange.respond(std::move(r));
  return true;
}

void Service::handle(const std::shared_ptr<Exchange>& exchange) {
  const HttpRequest& request = exchange->request();
  Context c;
  c.exchange = exchange;
  c.request_id = request_id_or_fresh(request.header("x-request-id"));
  exchange->add_header("x-request-id", c.request_id);
  if (cors(*exchange)) return;
  const std::string path = normal_path(request.path);
  c.protocol = protocol_of_path(path, request);
  const std::string method = request.method == "HEAD" ? "GET" : request.method;
  const Route* found = nullptr;
  bool other_method = false;
  for (const Route& r : routes()) {
    const size_t n = std::strlen(r.path);
    const bool below = r.path[n - 1] == '/';
    if (below ? path.size() <= n || path.compare(0, n, r.path) != 0 : path != r.path) continue;
    if (method != r.method) {
      other_method = true;
      continue;
    }
    found = &r;
    if (below) c.rest = path.substr(n);
    break;
  }
  if (found == nullptr) {
    if (method == "GET" && serve_file(*exchange, request.path)) return;
    if (other_method)
      return refuse(*exchange,
                    {405, request.method + " is not supported on " + request.path, "invalid_request_error",
                     "method_not_allowed", 0},
                    c.protocol);
    return refuse(*exchange, {404, "There is nothing at " + request.path, "not_found_error", "not_found", 0},
                  c.protocol);
  }
  const auto settings = this->settings();
  const bool guarded =
      !found->open || (settings->protect_metrics && (path == "/metrics" || path == "/console/state"));
  if (guarded) {
    Result<Caller> caller = settings->keys.find(bearer(request));
    if (!caller.ok()) {
      calls_.metrics->rejected.add("wrong_key");
      exchange->add_header("WWW-Authenticate", "Bearer");
      return refuse(*exchange, {401, caller.status().message(), "authentication_error", "invalid_api_key", 0},
                    c.protocol);
    }
    c.caller = std::move(*caller);
    calls_.metrics->requests.add(found->path);
  }
  (this->*found->action)(c);
}

void Service::on_end(const ExchangeRecord& r) {
  calls_.metrics->http_responses.add(std::to_string(r.status));
  if (r.request == nullptr) calls_.metrics->rejected.add("http_" + std::to_string(r.status));
  const std::string path = r.request != nullptr ? r.request->path : std::string("-");
  const bool poll = path == "/metrics" || path == "/health" || path == "/livez" || path == "/readyz" ||
                    path == "/progress" || path == "/console/state";
  calls_.log->write(poll ? EventLog::Level::kDebug : EventLog::Level::kInfo, "http",
                    {{"client", r.peer},
                     {"method", r.request != nullptr ? r.request->method : std::string("-")},
                     {"path", path},
                     {"status", r.status},
                     {"bytes", r.bytes_out},
                     {"ms", static_cast<double>(r.duration_ns / 1000) / 1000},
                     {"end", name(r.end)}});
}

void Service::generate(Context& c, Endpoint endpoint) {
  if (draining_) {
    calls_.metrics->rejected.add("draining");
    return refuse(*c.exchange,
                  {503, "The server is shutting down; try another one, or again later.",
                   "service_unavailable_error", "draining", 5'000'000'000},
                  c.protocol);
  }
  std::make_shared<GenerationCall>(&calls_, c.exchange, endpoint, std::move(c.caller),
                                   std::move(c.request_id))
      ->start();
}

void Service::response_get(Context& c) {
  // The database may have to wait for a commit, a loop must not.
  auto exchange = c.exchange;
  auto loop = exchange->loop();
  calls_.background([this, exchange, loop, tenant = c.caller.tenant, id = c.rest] {
    auto found = std::make_shared<Result<StoredResponse>>(calls_.database->get(tenant, id));
    loop->post([this, exchange, found] {
      if (!found->ok()) return refuse(*exchange, error_reply(found->status()), Protocol::kResponses);
      HttpResponse r;
      r.body = (*found)->object;
      exchange->respond(std::move(r));
    });
  });
}

void Service::response_delete(Context& c) {
  auto exchange = c.exchange;
  auto loop = exchange->loop();
  calls_.background([this, exchange, loop, tenant = c.caller.tenant, id = c.rest] {
    Status s = calls_.database->erase(tenant, id);
    loop->post([this, exchange, s, id] {
      if (!s.ok()) return refuse(*exchange, error_reply(s), Protocol::kResponses);
      json(*exchange, {{"id", id}, {"object", "response.deleted"}, {"deleted", true}});
    });
  });
}

void Service::response_post(Context& c) {
  const std::string suffix = "/cancel";
  if (c.rest.size() <= suffix.size() ||
      c.rest.compare(c.rest.size() - suffix.size(), suffix.size(), suffix) != 0)
    return refuse(
        *c.exchange,
        {404, "There is nothing at " + c.exchange->request().path, "not_found_error", "not_found", 0},
        Protocol::kResponses);
  const std::string id = c.rest.substr(0, c.rest.size() - suffix.size());
  if (auto call = calls_.live->find(c.caller.tenant, id)) {
    call->cancel();
    return json(*c.exchange, {{"id", id}, {"object", "response"}, {"status", "cancelled"}});
  }
  c.rest = id;
  response_get(c);  // it is over already: as it is
}

void Service::abort_request(Context& c) {
  answer_from_body(c, [this, tenant = c.caller.tenant](const Json& body) -> Result<std::string> {
    for (const char* member : {"rid", "request_id", "id"}) {
      if (!body.is_object() || !body.contains(member) || !body[member].is_string()) continue;
      auto call = calls_.live->find(tenant, body[member].get<std::string>());
      if (!call) return error(Code::kNotFound, "no such request is running");
      call->cancel();
      return std::string("{\"aborted\":true}");
    }
    return error(Code::kInvalidArgument, "give the id of the request as \"rid\"");
  });
}

}  // namespace deepinfer
