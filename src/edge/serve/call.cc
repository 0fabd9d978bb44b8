// The life of a generation request on the server (edge/serve/call.h).
#include "edge/serve/call.h"

#include <algorithm>
#include <charconv>

#include "edge/errors.h"
#include "edge/generate_request.h"
#include "edge/serve/ids.h"
#include "host/clock.h"

namespace deepinfer {
namespace {
constexpr int64_t kLedgerNs = 1'000'000'000;  // how much of an answer's end a crash may hide from the ledger
}  // namespace

void LiveCalls::add(const std::string& tenant, const std::string& id, std::weak_ptr<GenerationCall> call) {
  std::lock_guard lock(mutex_);
  calls_[tenant + "\n" + id] = std::move(call);
}
void LiveCalls::remove(const std::string& tenant, const std::string& id) {
  std::lock_guard lock(mutex_);
  calls_.erase(tenant + "\n" + id);
}
std::shared_ptr<GenerationCall> LiveCalls::find(const std::string& tenant, const std::string& id) {
  std::lock_guard lock(mutex_);
  auto it = calls_.find(tenant + "\n" + id);
  return it == calls_.end() ? nullptr : it->second.lock();
}

ErrorReply error_reply(const Status& status) {
  ErrorReply r;
  r.message = status.message();
  switch (status.code()) {
    case Code::kNotFound:
      return {404, r.message, "not_found_error", "not_found", 0};
    case Code::kDeadlineExceeded:
      return {504, r.message, "timeout_error", "deadline_exceeded", 0};
    case Code::kUnavailable:
      return {503, r.message, "service_unavailable_error", "service_unavailable", 5'000'000'000};
    case Code::kResourceExhausted:
      return {429, r.message, "rate_limit_error", "rate_limit_exceeded", 1'000'000'000};
    default:
      r.status = http_status(status);
      r.type = r.code = r.status == 400 ? "invalid_request_error" : "internal_error";
      return r;
  }
}

HttpResponse error_response(const ErrorReply& e, Protocol protocol) {
  HttpResponse r;
  r.status = e.status;
  Json error = {{"message", e.message}, {"type", e.type}, {"param", nullptr}, {"code", e.code}};
  Json body = Json::object();
  if (protocol == Protocol::kMessages) {
    // The names its client library knows.
    error["type"] = e.status == 401   ? "authentication_error"
                    : e.status == 403 ? "permission_error"
                    : e.status == 404 ? "not_found_error"
                    : e.status == 413 ? "request_too_large"
                    : e.status == 429 ? "rate_limit_error"
                    : e.status == 503 ? "overloaded_error"
                    : e.status >= 500 ? "api_error"
                                      : "invalid_request_error";
    body["type"] = "error";
  }
  body["error"] = std::move(error);
  append_json(body, JsonStyle::kCompact, &r.body);
  if (e.retry_after_ns > 0)
    r.headers.emplace_back("Retry-After", std::to_string((e.retry_after_ns + 999'999'999) / 1'000'000'000));
  return r;
}

GenerationCall::GenerationCall(CallServices* services, std::shared_ptr<Exchange> exchange, Endpoint endpoint,
                               Caller caller, std::string request_id)
    : s_(services),
      preparer_(services->preparer->get()),
      exchange_(std::move(exchange)),
      endpoint_(endpoint),
      caller_(std::move(caller)),
      request_id_(std::move(request_id)) {
  const char* prefix = endpoint == Endpoint::kChat        ? "chatcmpl-"
                       : endpoint == Endpoint::kResponses ? "resp_"
                       : endpoint == Endpoint::kMessages  ? "msg_"
                                                          : "cmpl-";
  response_id_ = prefix + fresh_id();
  received_ns_ = exchange_->request().received_ns;
  const std::string* parent = exchange_->request().header("traceparent");
  if (parent != nullptr) trace_ = parse_traceparent(*parent).value_or(TraceContext());
  if (trace_.trace_id.empty()) trace_.trace_id = (fresh_id() + fresh_id()).substr(0, 32);
}

void GenerationCall::start() {
  auto self = shared_from_this();
  ++s_->metrics->in_flight;
  // One callback for the whole life: before the engine knows the call there is nothing to cancel.
  exchange_->on_abandoned([self](ExchangeEnd end) {
    if (self->reason_.empty()) self->reason_ = name(end);
    if (self->submitted_) self->s_->generator->cancel(self->engine_id_);
    if (!self->waits_for_constraint_) return;
    self->waits_for_constraint_ = false;
    self->compiling_.reset();
    self->account();
  });
  auto body = std::make_shared<std::string>(exchange_->take_body());
  auto loop = exchange_->loop();
  s_->background([self, body, loop] {
    auto result = std::make_shared<Result<Prepared>>([&]() -> Result<Prepared> {
      DI_ASSIGN(Json json, parse_json(*body));
      std::optional<Json> previous;
      if (self->endpoint_ == Endpoint::kResponses && json.is_object()) {
        auto it = json.find("previous_response_id");
        if (it != json.end() && it->is_string()) {
          DI_ASSIGN(StoredResponse stored,
                    self->s_->database->get(self->caller_.tenant, it->get<std::string>()));
          DI_ASSIGN(previous, parse_json(stored.items));
        }
      }
      return self->preparer_->prepare(self->endpoint_, json, previous ? &*previous : nullptr,
                                      self->caller_.tenant);
    }());
    std::shared_ptr<void> compiling;
    if (result->ok() && (*result)->constraint && self->s_->constraints) {
      compiling = self->s_->constraints(
          *(*result)->constraint, self->caller_.tenant,
          [self, loop](Result<std::shared_ptr<const void>> made) {
            auto shared = std::make_shared<Result<std::shared_ptr<const void>>>(std::move(made));
            loop->post([self, shared] { self->constrained(std::move(*shared)); });
          });
    }
    loop->post([self, result, compiling] {
      self->compiling_ = compiling;
      self->prepared(std::move(*result));
    });
  });
}

void GenerationCall::prepared(Result<Prepared> result) {
  if (exchange_->ended()) {
    compiling_.reset();
    reason_ = "client_left";
    return account();
  }
  if (!result.ok()) {
    ErrorReply reply = error_reply(result.status());
    if (reply.status == 404) reply.code = "model_not_found";
    return fail(reply, reply.status == 404 ? "not_found" : "invalid_request");
  }
  p_ = std::move(*result);
  p_.info.id = response_id_;
  p_.info.created = wall_time_ns() / 1'000'000'000;
  p_.info.tokenizer = &preparer_->options().encoder->tokenizer();
  scope_ = cache_scope(caller_.tenant, p_.user_id, p_.cache_salt);
  waits_for_constraint_ = p_.constraint && !constraint_;
  if (!waits_for_constraint_) proceed();
}

void GenerationCall::constrained(Result<std::shared_ptr<const void>> made) {
  constraint_ = std::move(made);
  if (!waits_for_constraint_) return;
  waits_for_constraint_ = false;
  proceed();
}

void GenerationCall::proceed() {
  compiling_.reset();
  if (constraint_ && !constraint_->ok()) {
    const ErrorReply reply = error_reply(constraint_->status().with_context(p_.constraint->field));
    return fail(reply, reply.status == 400   ? "invalid_request"
                       : reply.status == 429 ? "grammar_allowance"
                                             : "grammar_queue_full");
  }
  if (constraint_) p_.generation.constraint = std::move(**constraint_);
  constraint_.reset();
  p_.constraint.reset();
  if (!admit() || !submit()) return;
  open_answer();
}

bool GenerationCall::admit() {
  const GenerationRequest& g = p_.generation;
  AdmissionGate::Work work;
  work.prompt_tokens = static_cast<int64_t>(g.prompt.size());
  work.most_tokens = g.max_tokens * g.choices;
  // A client may put its own work back, not in front of others' beyond what its key says.
  work.priority = std::min(caller_.priority, p_.priority.value_or(caller_.priority));
  work.timeout_ns = g.timeout_ns;
  work.displaced = [weak = weak_from_this(), loop = exchange_->loop()] {
    loop->post([weak] {
      if (auto self = weak.lock()) self->displaced();
    });
  };
  AdmissionGate::Answer a = s_->gate->admit(caller_, std::move(work));
  if (a.admitted) {
    ticket_ = a.ticket;
    admitted_ = true;
    return true;
  }
  ErrorReply r;
  r.status = a.status;
  r.type = a.status == 503   ? "service_unavailable_error"
           : a.status == 429 ? "rate_limit_error"
                             : "invalid_request_error";
  r.code = a.reason;
  r.retry_after_ns = a.retry_after_ns;
  r.message = a.message;
  fail(r, a.reason);
  return false;
}

// Somebody with a better claim to a place in the full line came. Nothing was computed for this one.
void GenerationCall::displaced() {
  if (over_ || !submitted_ || first_token_ns_ > 0) return;
  if (failure_.ok())
    failure_ = error(Code::kUnavailable,
                     "The line is full, and this place in it went to another tenant or to work of a higher "
                     "priority. Try again later.");
  if (reason_.empty()) {
    reason_ = "displaced";
    s_->metrics->rejected.add(reason_);
  }
  s_->generator->cancel(engine_id_);
}

int64_t GenerationCall::wished_seconds(const char* header) const {
  const std::string* text = exchange_->request().header(header);
  if (text == nullptr) return -1;
  int64_t seconds = -1;
  auto [end, e] = std::from_chars(text->data(), text->data() + text->size(), seconds);
  // What is no number of seconds is no wish.
  return e == std::errc() && end == text->data() + text->size() && seconds >= 0 ? seconds : -1;
}

bool GenerationCall::submit() {
  GenerationRequest g = std::move(p_.generation);  // its sizes stay and are looked at again at the end
  g.tenant = caller_.tenant_number;
  g.tenant_weight = caller_.weight;
  g.priority = std::min(caller_.priority, p_.priority.value_or(caller_.priority));
  g.cache_scope = scope_;
  g.offers_tools = p_.parsing.parse_tool_calls;
  g.store_ttl_s = wished_seconds("x-deepinfer-store-ttl");
  g.store_window_ttl_s = wished_seconds("x-deepinfer-store-window-ttl");
  usage_.prompt_tokens = static_cast<int64_t>(g.prompt.size());
  const int n = g.choices;
  auto self = shared_from_this();
  for (int i = 0; i < n; ++i) {
    Choice c;
    OutputParserOptions parser;
    parser.join = true;
    parser.record = preparer_->options().turns != nullptr && !is_plain(endpoint_);
    if (parser.record) c.recorder = std::make_unique<TurnRecorder>(protocol_of(endpoint_), response_id_);
    c.parser =
        std::make_unique<OutputParser>(p_.info.tokenizer, preparer_->options().control, p_.parsing, parser);
    ResponseInfo info = p_.info;
    info.choice = i;
    if (n > 1) info.include_usage = info.running_usage = false;  // the sum comes at the end
    c.writer = endpoint_ == Endpoint::kCompletions ? make_completion_writer(std::move(info), p_.echo)
               : endpoint_ == Endpoint::kGenerate  ? make_generate_writer(std::move(info))
                                                   : make_writer(protocol_of(endpoint_), std::move(info));
    choices_.push_back(std::move(c));
  }
  unfinished_ = n;
  auto id = s_->generator->submit(std::move(g), exchange_->loop(),
                                  [self](GenerationEvent&& e) { self->on_event(std::move(e)); });
  if (!id.ok()) {
    ErrorReply r = error_reply(id.status());
    fail(r, id.status().code() == Code::kUnavailable         ? "draining"
            : id.status().code() == Code::kResourceExhausted ? "engine_queue_full"
                                                             : "invalid_request");
    return false;
  }
  engine_id_ = *id;
  submitted_ = true;
  s_->live->add(caller_.tenant, response_id_, weak_from_this());
  s_->live->add(caller_.tenant, request_id_, weak_from_this());
  note_progress(now_ns());
  return true;
}

void GenerationCall::open_answer() {
  if (!p_.stream) return;
  exchange_->add_header("Cache-Control", "no-cache");
  exchange_->add_header("X-Accel-Buffering", "no");
  exchange_->begin_stream(200, "text/event-stream; charset=utf-8", ": keep-alive\n\n");
}

void GenerationCall::cancel() {
  auto self = shared_from_this();
  exchange_->loop()->post([self] {
    if (self->over_ || !self->submitted_) return;
    self->cancelled_ = true;
    self->s_->generator->cancel(self->engine_id_);
  });
}

void GenerationCall::on_event(GenerationEvent&& e) {
  Choice& c = choices_[static_cast<size_t>(e.choice)];
  switch (e.kind) {
    case GenerationEvent::Kind::kStarted:
      if (!started_) {
        started_ = true;
        usage_.cached_tokens = e.usage.cached_tokens;
        usage_.store_tokens = e.usage.store_tokens;
        s_->gate->started(ticket_);
      }
      c.prompt_logprobs = std::move(e.prompt_logprobs);
      return c.parser->ready(s_->fingerprint, e.usage.prompt_tokens, e.usage.cached_tokens,
                             e.usage.store_tokens);
    case GenerationEvent::Kind::kTokens:
      return take_tokens(c, e);
    case GenerationEvent::Kind::kFinished:
      return take_finish(c, e);
  }
}

void GenerationCall::take_tokens(Choice& c, GenerationEvent& e) {
  const int64_t now = now_ns();
  const auto n = static_cast<int64_t>(e.tokens.size());
  if (first_token_ns_ == 0) {
    first_token_ns_ = now;
    s_->metrics->ttft.observe(static_cast<double>(now - received_ns_) / 1e9);
  } else if (c.last_ns > 0) {
    s_->metrics->inter_token.observe(static_cast<double>(now - c.last_ns) / 1e9 / static_cast<double>(n), n);
  }
  c.last_ns = now;
  if (c.done) return;
  c.tokens += n;
  chunks_.clear();
  for (const TokenLogprob& t : e.tokens) {
    c.parser->token(t.id, &chunks_, p_.info.logprobs ? &t : nullptr);
    if (c.parser->finished()) break;
  }
  deliver(c, chunks_);
  if (now - noted_ns_ >= kLedgerNs) note_progress(now);
  if (c.done && !c.finished) s_->generator->cancel_choice(engine_id_, e.choice);
}

void GenerationCall::take_finish(Choice& c, GenerationEvent& e) {
  using End = GenerationEvent::End;
  c.finished = true;
  queue_ns_ = std::max(queue_ns_, e.queue_ns);
  prefill_ns_ = std::max(prefill_ns_, e.prefill_ns);
  decode_ns_ = std::max(decode_ns_, e.decode_ns);
  usage_.drafted_tokens += e.usage.drafted_tokens;
  usage_.accepted_tokens += e.usage.accepted_tokens;
  if (!c.done) {
    EngineFinish why = EngineFinish::kStop;
    if (e.end == End::kLength) why = EngineFinish::kLength;
    if (e.end == End::kError) why = EngineFinish::kInsufficientResource;
    if (e.end == End::kCancelled || e.end == End::kDeadline || e.end == End::kRefused)
      why = EngineFinish::kAborted;
    if (why == EngineFinish::kAborted || why == EngineFinish::kInsufficientResource) {
      if (failure_.ok() && !cancelled_) {
        failure_ = !e.status.ok() ? e.status
                   : e.end == End::kCancelled
                       ? error(Code::kUnavailable, "the server is shutting down; try again")
                       : error(Code::kUnavailable, "the engine gave the request up");
      }
      if (reason_.empty()) {
        reason_ = cancelled_                 ? "cancelled"
                  : e.end == End::kDeadline  ? "deadline"
                  : e.end == End::kRefused   ? "refused"
                  : e.end == End::kCancelled ? "shutdown"
                                             : "error";
      }
    }
    chunks_.clear();
    c.parser->finish(why, &chunks_);
    // A stream that breaks ends with an error event, not with a finish that looks whole.
    if (!failure_.ok()) {
      for (OutputChunk& chunk : chunks_) {
        if (chunk.kind == OutputChunk::Kind::kFinish) c.usage = chunk.usage;
      }
      c.done = true;
    } else {
      deliver(c, chunks_);
    }
  }
  s_->metrics->banned_tokens += c.parser->banned_tokens();
  if (--unfinished_ == 0) conclude();
}

void GenerationCall::deliver(Choice& c, std::vector<OutputChunk>& chunks) {
  events_.clear();
  for (const OutputChunk& chunk : chunks) {
    if (c.recorder) c.recorder->write(chunk);
    if (chunk.kind == OutputChunk::Kind::kFinish) {
      remember(c);
      c.done = true;
      c.usage = chunk.usage;
      if (reason_.empty() || choices_.size() > 1) {
        reason_ = chunk.reason == FinishReason::kLength         ? "length"
                  : chunk.reason == FinishReason::kToolCalls    ? "tool_calls"
                  : chunk.reason == FinishReason::kStopSequence ? "stop_sequence"
                                                                : "stop";
        if (cancelled_) reason_ = "cancelled";
      }
      if (endpoint_ == Endpoint::kResponses && p_.store && !cancelled_) {
        c.writer->write(chunk, &events_);
        store_response();  // before the client can know that it is over
        continue;
      }
    }
    c.writer->write(chunk, &events_);
  }
  if (p_.stream) send_events(events_);
}

// Before the client can know that the turn is over.
void GenerationCall::remember(const Choice& c) {
  if (!c.recorder || !c.parser->repeatable() || cancelled_) return;
  preparer_->options().turns->remember(scope_, c.recorder->turn(),
                                       {c.parser->sampled(), p_.info.thinking, p_.forced_call});
}

void GenerationCall::send_events(std::vector<Event>& events) {
  frame_.clear();
  for (const Event& e : events) {
    if (choices_.size() > 1 && e.data == "[DONE]") continue;
    append_sse(e, &frame_);
    ++sequence_;
  }
  if (!frame_.empty()) exchange_->write(frame_);
}

void GenerationCall::store_response() {
  std::string object = choices_[0].writer->final_object();
  Result<Json> parsed = parse_json(object);
  if (!parsed.ok() || !parsed->contains("output")) return;
  Json items = std::move(p_.input_items);
  for (Json& item : (*parsed)["output"]) items.push_back(std::move(item));
  StoredResponse r;
  r.tenant = caller_.tenant;
  r.id = response_id_;
  r.created = p_.info.created;
  r.object = std::move(object);
  append_json(items, JsonStyle::kCompact, &r.items);
  s_->database->put(std::move(r));
}

void GenerationCall::conclude() {
  over_ = true;
  s_->live->remove(caller_.tenant, response_id_);
  s_->live->remove(caller_.tenant, request_id_);
  auto self = shared_from_this();
  account();
  if (exchange_->ended()) return;
  if (!p_.stream) return answer_whole();
  if (!failure_.ok()) {
    exchange_->write(stream_error_frame(failure_, protocol_of(endpoint_), sequence_));
    return exchange_->finish();
  }
  if (choices_.size() > 1) {
    Usage sum = choices_[0].usage;
    for (size_t i = 1; i < choices_.size(); ++i) {
      sum.completion_tokens += choices_[i].usage.completion_tokens;
      sum.reasoning_tokens += choices_[i].usage.reasoning_tokens;
    }
    frame_.clear();
    if (p_.info.include_usage) {
      std::string data;
      append_json({{"id", response_id_},
                   {"object", endpoint_ == Endpoint::kChat ? "chat.completion.chunk" : "text_completion"},
                   {"created", p_.info.created},
                   {"model", p_.info.model},
                   {"choices", Json::array()},
                   {"usage", chat_usage(sum, true)}},
                  JsonStyle::kCompact, &data);
      append_sse({"", data}, &frame_);
    }
    append_sse({"", "[DONE]"}, &frame_);
    exchange_->write(frame_);
  }
  exchange_->finish();
}

void GenerationCall::answer_whole() {
  if (!failure_.ok())
    return exchange_->respond(error_response(error_reply(failure_), protocol_of(endpoint_)));
  HttpResponse r;
  r.body = choices_.size() == 1 && choices_[0].prompt_logprobs.empty() ? choices_[0].writer->final_object()
                                                                       : merged_object();
  exchange_->respond(std::move(r));
}

// Several choices, or members the writers do not have: the objects are joined.
std::string GenerationCall::merged_object() const {
  Result<Json> all = parse_json(choices_[0].writer->final_object());
  DI_CHECK(all.ok(), "a writer's object is no JSON");
  Usage sum = choices_[0].usage;
  for (size_t i = 1; i < choices_.size(); ++i) {
    Result<Json> one = parse_json(choices_[i].writer->final_object());
    DI_CHECK(one.ok(), "a writer's object is no JSON");
    (*all)["choices"].push_back((*one)["choices"][0]);
    sum.completion_tokens += choices_[i].usage.completion_tokens;
    sum.reasoning_tokens += choices_[i].usage.reasoning_tokens;
  }
  if (choices_.size() > 1) (*all)["usage"] = chat_usage(sum, true);
  if (!choices_[0].prompt_logprobs.empty()) {
    Json list = Json::array();
    for (const TokenLogprob& t : choices_[0].prompt_logprobs)
      list.push_back({{"id", t.id}, {"logprob", t.logprob}});
    (*all)["prompt_logprobs"] = std::move(list);
  }
  std::string out;
  append_json(*all, JsonStyle::kCompact, &out);
  return out;
}

void GenerationCall::account() {
  over_ = true;
  ServeMetrics& m = *s_->metrics;
  --m.in_flight;
  int64_t output = 0, reasoning = 0;
  for (const Choice& c : choices_) {
    output += c.usage.completion_tokens;
    reasoning += c.usage.reasoning_tokens;
  }
  if (admitted_) s_->gate->finished(ticket_, output);
  if (prefill_ns_ > 0) s_->gate->prefilled(usage_.prompt_tokens - usage_.cached_tokens, prefill_ns_);
  const int64_t now = now_ns();
  auto seconds = [](int64_t ns) { return static_cast<double>(ns) / 1e9; };
  m.finished.add(reason_);
  if (submitted_) {
    m.prompt_tokens += usage_.prompt_tokens;
    m.cached_tokens += usage_.cached_tokens;
    if (started_) m.cache_results.add(cache_result());
    m.output_tokens += output;
    m.reasoning_tokens += reasoning;
    m.e2e.observe(seconds(now - received_ns_));
    m.queue.observe(seconds(queue_ns_));
    if (prefill_ns_ > 0) m.prefill.observe(seconds(prefill_ns_));
    if (decode_ns_ > 0) m.decode.observe(seconds(decode_ns_));
    if (prefill_ns_ + decode_ns_ > 0) m.inference.observe(seconds(prefill_ns_ + decode_ns_));
    if (output > 1 && decode_ns_ > 0) m.per_token.observe(seconds(decode_ns_) / static_cast<double>(output));
    m.prompt_size.observe(static_cast<double>(usage_.prompt_tokens));
    m.output_size.observe(static_cast<double>(output));
    m.choices.observe(static_cast<double>(choices_.size()));
    m.max_tokens.observe(static_cast<double>(p_.generation.max_tokens));
    s_->database->record(usage_row(output, reasoning));
    s_->recent->add({caller_.tenant, response_id_, request_id_, exchange_->request().path, reason_,
                     wall_time_ns(), queue_ns_, prefill_ns_, decode_ns_, now - received_ns_,
                     usage_.prompt_tokens, usage_.cached_tokens, output, usage_.drafted_tokens,
                     usage_.accepted_tokens});
  }
  auto ms = [](int64_t ns) { return static_cast<double>(ns / 1000) / 1000; };
  trace(now, output);
  s_->log->info("request", {{"id", request_id_},
                            {"response", response_id_},
                            {"trace", trace_.trace_id},
                            {"tenant", caller_.tenant},
                            {"path", exchange_->request().path},
                            {"model", p_.info.model},
                            {"stream", p_.stream},
                            {"reason", reason_},
                            {"prompt_tokens", usage_.prompt_tokens},
                            {"cached_tokens", usage_.cached_tokens},
                            {"cache", started_ ? cache_result() : "unused"},
                            {"store_tokens", usage_.store_tokens},
                            {"output_tokens", output},
                            {"reasoning_tokens", reasoning},
                            {"queue_ms", ms(queue_ns_)},
                            {"ttft_ms", first_token_ns_ > 0 ? ms(first_token_ns_ - received_ns_) : -1.0},
                            {"total_ms", ms(now - received_ns_)}});
}

// Why so much of the prompt came from the cache and no more, in a word.
const char* GenerationCall::cache_result() const {
  if (!p_.generation.use_cache) return "off";
  const int64_t blocks = (usage_.prompt_tokens - s_->computed_tokens) / s_->block_tokens;
  if (blocks < 1) return "too_short";
  if (usage_.cached_tokens == 0) return "miss";
  return usage_.cached_tokens < blocks * s_->block_tokens ? "partial" : "hit";
}

// What the ledger would say if the process died now: the request and what it has delivered. The row at the
// end replaces it.
void GenerationCall::note_progress(int64_t now) {
  if (!s_->database->durable()) return;
  noted_ns_ = now;
  int64_t output = 0;
  for (const Choice& c : choices_) output += c.tokens;
  UsageRow row = usage_row(output, 0);
  row.reason = kUsageRunning;
  s_->database->record(std::move(row));
}

UsageRow GenerationCall::usage_row(int64_t output, int64_t reasoning) const {
  return {response_id_,         caller_.tenant, caller_.key_id, exchange_->request().path,
          p_.info.model,        reason_,        wall_time_ns(), usage_.prompt_tokens,
          usage_.cached_tokens, output,         reasoning};
}

void GenerationCall::trace(int64_t now, int64_t output) {
  if (s_->spans == nullptr || !trace_.sampled) return;
  const int64_t wall = wall_time_ns();
  auto at = [&](int64_t monotonic) { return wall - (now - monotonic); };
  TraceSpan whole{trace_.trace_id,
                  fresh_id().substr(0, 16),
                  trace_.parent_id,
                  "generate",
                  at(received_ns_),
                  wall,
                  {},
                  {}};
  whole.numbers = {{"gen_ai.usage.input_tokens", usage_.prompt_tokens},
                   {"gen_ai.usage.output_tokens", output},
                   {"deepinfer.cached_tokens", usage_.cached_tokens}};
  whole.texts = {{"gen_ai.response.id", response_id_},
                 {"gen_ai.request.model", p_.info.model},
                 {"url.path", exchange_->request().path},
                 {"deepinfer.request_id", request_id_},
                 {"deepinfer.reason", reason_}};
  std::vector<TraceSpan> all = {whole};
  int64_t begin = at(now - queue_ns_ - prefill_ns_ - decode_ns_);
  for (auto [name, ns] :
       {std::pair{"queue", queue_ns_}, std::pair{"prefill", prefill_ns_}, std::pair{"decode", decode_ns_}}) {
    if (ns <= 0) continue;
    all.push_back(
        {trace_.trace_id, fresh_id().substr(0, 16), whole.span_id, name, begin, begin + ns, {}, {}});
    begin += ns;
  }
  s_->spans->add(std::move(all));
}

void GenerationCall::fail(const ErrorReply& reply, const std::string& reason) {
  reason_ = reason;
  s_->metrics->rejected.add(reason);
  s_->log->info("rejected", {{"id", request_id_},
                             {"tenant", caller_.tenant},
                             {"path", exchange_->request().path},
                             {"status", reply.status},
                             {"reason", reason},
                             {"message", reply.message.substr(0, 300)}});
  account();
  exchange_->respond(error_response(reply, protocol_of(endpoint_)));
}

}  // namespace deepinfer
