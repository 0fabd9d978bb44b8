// `deepinfer chat`: a conversation in the terminal, with a server (--url) or with one started inside this
// process for it. Speaks the Chat protocol either way.
#include <fmt/format.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <cstdio>
#include <fstream>
#include <iostream>
#include <memory>

#include "apps/command.h"
#include "apps/http_client.h"
#include "apps/serve_run.h"
#include "host/clock.h"
#include "host/files.h"

namespace deepinfer {
namespace {

std::atomic<bool> interrupted{false};  // Ctrl-C ends the answer, not the program

struct Options {
  std::string url, key, model_dir, model, system;
  bool thinking = false, quiet = false;
  int64_t max_tokens = 1024;
  double temperature = 0.6;
};

const char* const kHelp =
    "/system TEXT   what the model is told first (without TEXT: shown)\n"
    "/tools FILE    tools as a JSON list, as in the API (without FILE: none)\n"
    "/thinking on|off\n"
    "/temperature X\n"
    "/save FILE     the conversation as JSON\n"
    "/clear         begin anew\n"
    "/quit          or Ctrl-D\n"
    "Ctrl-C stops an answer.\n";

class Chat {
 public:
  Chat(HttpClient client, Options o)
      : client_(std::move(client)), o_(std::move(o)), tty_(isatty(STDERR_FILENO) != 0) {}

  Status learn_model() {
    if (!o_.model.empty()) return {};
    DI_ASSIGN(HttpAnswer a, client_.request("GET", "/v1/models", "", {}, {}));
    Result<Json> list = parse_json(a.body);
    if (a.status != 200 || !list.ok() || !list->contains("data") || (*list)["data"].empty())
      return error(Code::kIo, "the server answered {}: {}", a.status, a.body.substr(0, 300));
    o_.model = (*list)["data"][0].value("id", "");
    return {};
  }

  int run() {
    const bool person = isatty(STDIN_FILENO) != 0;
    if (person && !o_.quiet) fmt::print("{}; /help lists the commands\n", o_.model);
    while (true) {
      if (person) fmt::print("> ");
      std::fflush(stdout);
      std::string line;
      if (!std::getline(std::cin, line)) {
        if (!interrupted.exchange(false)) break;
        std::cin.clear();  // Ctrl-C at the prompt: an empty line
        std::clearerr(stdin);
        fmt::print("\n");
        continue;
      }
      interrupted = false;
      if (line == "/quit" || line == "/exit") break;
      if (!line.empty() && line[0] == '/') {
        command(line);
      } else if (!line.empty()) {
        messages_.push_back({{"role", "user"}, {"content", line}});
        if (!answer()) messages_.erase(messages_.end() - 1);
        if (!person && failed_) return 1;
      }
    }
    return 0;
  }

 private:
  void command(const std::string& line) {
    const size_t space = line.find(' ');
    const std::string word = line.substr(0, space);
    const std::string rest = space == line.npos ? std::string() : line.substr(space + 1);
    if (word == "/help") {
      fmt::print("{}", kHelp);
    } else if (word == "/system") {
      if (!rest.empty()) o_.system = rest;
      fmt::print("system: {}\n", o_.system);
    } else if (word == "/thinking") {
      o_.thinking = rest != "off";
      fmt::print("thinking {}\n", o_.thinking ? "on" : "off");
    } else if (word == "/temperature") {
      o_.temperature = std::atof(rest.c_str());
    } else if (word == "/clear") {
      messages_ = Json::array();
    } else if (word == "/save") {
      Status s = rest.empty() ? error(Code::kInvalidArgument, "/save needs a file") : save(rest);
      if (!s.ok()) fmt::print(stderr, "{}\n", s.message());
    } else if (word == "/tools") {
      load_tools(rest);
    } else {
      fmt::print(stderr, "{} is no command\n{}", word, kHelp);
    }
  }

  Status save(const std::string& path) const {
    Json all = Json::array();
    if (!o_.system.empty()) all.push_back({{"role", "system"}, {"content", o_.system}});
    for (const Json& m : messages_) all.push_back(m);
    return write_file_atomically(path, Json{{"model", o_.model}, {"messages", all}}.dump(2) + "\n");
  }

  void load_tools(const std::string& path) {
    tools_ = Json();
    if (path.empty()) return;
    auto text = read_file(path, 1 << 20);
    auto json = text.ok() ? parse_json(*text) : Result<Json>(text.status());
    if (!json.ok() || !json->is_array()) {
      fmt::print(stderr, "{}\n", json.ok() ? "tools are a JSON list" : json.status().message());
      return;
    }
    tools_ = std::move(*json);
    fmt::print("{} tools\n", tools_.size());
  }

  Json body() const {
    Json all = Json::array();
    if (!o_.system.empty()) all.push_back({{"role", "system"}, {"content", o_.system}});
    for (const Json& m : messages_) all.push_back(m);
    Json b = {{"model", o_.model},
              {"messages", std::move(all)},
              {"stream", true},
              {"stream_options", {{"include_usage", true}}},
              {"max_tokens", o_.max_tokens},
              {"temperature", o_.temperature},
              {"thinking", {{"type", o_.thinking ? "enabled" : "disabled"}}}};
    if (tools_.is_array() && !tools_.empty()) b["tools"] = tools_;
    return b;
  }

  // Lines over the answer while nothing has come yet: long prompts take their time.
  void waiting(int64_t begin) {
    if (!tty_ || o_.quiet) return;
    fmt::print(stderr, "\r[waiting {} s] ", (now_ns() - begin) / 1'000'000'000);
    std::fflush(stderr);
    shown_ = true;
  }
  void first_text() {
    if (shown_) fmt::print(stderr, "\r\x1b[K");
    shown_ = false;
  }

  void take(const Json& chunk, Json* turn) {
    if (chunk.contains("usage") && chunk["usage"].is_object()) usage_ = chunk["usage"];
    if (!chunk.contains("choices") || chunk["choices"].empty()) return;
    const Json& d = chunk["choices"][0]["delta"];
    auto text = [&](const char* member) {
      return d.contains(member) && d[member].is_string() ? d[member].get<std::string>() : std::string();
    };
    if (std::string t = text("reasoning_content"); !t.empty()) {
      first_text();
      (*turn)["reasoning_content"] = turn->value("reasoning_content", "") + t;
      fmt::print("{}{}{}", tty_ ? "\x1b[2m" : "", t, tty_ ? "\x1b[0m" : "");
    }
    if (std::string t = text("content"); !t.empty()) {
      first_text();
      if (turn->contains("reasoning_content") && (*turn)["content"] == "") fmt::print("\n");
      (*turn)["content"] = turn->value("content", "") + t;
      fmt::print("{}", t);
    }
    if (d.contains("tool_calls")) {
      for (const Json& c : d["tool_calls"]) take_call(c, turn);
    }
    std::fflush(stdout);
  }

  void take_call(const Json& c, Json* turn) {
    first_text();
    Json& calls = (*turn)["tool_calls"];
    const auto index = c.value("index", size_t{0});
    while (calls.size() <= index)
      calls.push_back({{"id", ""}, {"type", "function"}, {"function", {{"name", ""}, {"arguments", ""}}}});
    Json& call = calls[index];
    if (c.contains("id")) {
      call["id"] = c["id"];
      call["function"]["name"] = c["function"]["name"];
      fmt::print("\n[call {}] ", c["function"].value("name", ""));
    }
    const std::string part = c["function"].value("arguments", "");
    call["function"]["arguments"] = call["function"].value("arguments", "") + part;
    fmt::print("{}", part);
  }

  // False: nothing was said, the question is taken back.
  bool answer() {
    Json turn = {{"role", "assistant"}, {"content", ""}};
    usage_ = Json();
    failed_ = false;
    const int64_t begin = now_ns();
    int64_t first = 0;
    bool stopped = false;
    auto on_event = [&](const std::string& data) {
      if (data.empty()) waiting(begin);
      if (data.empty() || data == "[DONE]") return true;
      Result<Json> chunk = parse_json(data);
      if (!chunk.ok()) return true;
      if (chunk->contains("error")) {
        first_text();
        fmt::print(stderr, "\n{}\n", (*chunk)["error"].value("message", "error"));
        failed_ = true;
        return true;
      }
      if (first == 0) first = now_ns();
      take(*chunk, &turn);
      return true;
    };
    auto go_on = [&] {
      if (first == 0) waiting(begin);
      stopped = interrupted.exchange(false);
      return !stopped;
    };
    std::string text;
    append_json(body(), JsonStyle::kCompact, &text);
    auto a = client_.request("POST", "/v1/chat/completions", text, on_event, go_on);
    first_text();
    if (!a.ok() || (a->status != 200 && !stopped)) {
      Result<Json> e = a.ok() ? parse_json(a->body) : Result<Json>(a.status());
      fmt::print(stderr, "{}\n",
                 e.ok() && e->contains("error") ? (*e)["error"].value("message", "error")
                 : a.ok()                       ? fmt::format("the server answered {}", a->status)
                                                : a.status().message());
      failed_ = true;
      return false;
    }
    fmt::print("{}\n", stopped ? " [stopped]" : "");
    if (!o_.quiet && usage_.is_object()) {
      const double seconds = static_cast<double>(now_ns() - first) / 1e9;
      fmt::print(stderr, "[{} + {} tokens, {} from cache; first after {} ms, {:.1f} tokens/s]\n",
                 usage_.value("prompt_tokens", 0), usage_.value("completion_tokens", 0),
                 usage_.value("prompt_cache_hit_tokens", 0), (first - begin) / 1'000'000,
                 seconds > 0 ? usage_.value("completion_tokens", 0) / seconds : 0.0);
    }
    const bool calls = turn.contains("tool_calls");
    messages_.push_back(turn);
    if (calls && !stopped) ask_results(turn["tool_calls"]);
    return true;
  }

  // The person plays the tools.
  void ask_results(const Json& calls) {
    for (const Json& c : calls) {
      fmt::print("result of {}> ", c["function"].value("name", ""));
      std::fflush(stdout);
      std::string line;
      std::getline(std::cin, line);
      messages_.push_back({{"role", "tool"}, {"tool_call_id", c["id"]}, {"content", line}});
    }
    answer();
  }

  HttpClient client_;
  Options o_;
  Json messages_ = Json::array(), tools_, usage_;
  bool tty_, shown_ = false, failed_ = false;
};

int fail(const Status& s) {
  fmt::print(stderr, "deepinfer chat: {}\n", s.message());
  return s.code() == Code::kInvalidArgument ? 2 : 1;
}

int run_chat(Options o) {
  struct sigaction action{};
  action.sa_handler = [](int) { interrupted = true; };
  sigaction(SIGINT, &action, nullptr);
  std::unique_ptr<RunningServer> server;
  std::string url = o.url;
  if (url.empty()) {
    ServeConfig c;
    c.model = o.model_dir;
    c.listen = {"127.0.0.1:0"};
    c.log_level = "off";
    auto model = open_engine(c, [&](const std::string& line) {
      if (!o.quiet) fmt::print(stderr, "{}\n", line);
    });
    if (!model.ok()) return fail(model.status());
    if (!model->notice.empty()) fmt::print(stderr, "{}\n", model->notice);
    auto started = RunningServer::start(c, std::move(*model));
    if (!started.ok()) return fail(started.status());
    server = std::move(*started);
    url = server->addresses()[0];
  }
  auto client = HttpClient::open(url, o.key);
  if (!client.ok()) return fail(client.status());
  Chat chat(std::move(*client), std::move(o));
  if (Status s = chat.learn_model(); !s.ok()) return fail(s);
  return chat.run();
}

}  // namespace

void add_chat(Program& program) {
  auto o = std::make_shared<Options>();
  CLI::App* cmd = program.app->add_subcommand("chat", "Talk with the model in the terminal");
  cmd->add_option("--url", o->url,
                  "A server, as in http://127.0.0.1:8000 (default: one inside this process)");
  cmd->add_option("--key", o->key, "API key of the server");
  cmd->add_option("--model", o->model_dir, "Checkpoint directory, without --url (default: the small model)");
  cmd->add_option("--name", o->model, "Model to ask for (default: the server's first)");
  cmd->add_option("--system", o->system, "What the model is told first");
  cmd->add_flag("--thinking", o->thinking, "Let the model reason first");
  cmd->add_option("--max-tokens", o->max_tokens, "Longest answer")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 31));
  cmd->add_option("--temperature", o->temperature, "0 = greedy")->check(CLI::Range(0.0, 2.0));
  cmd->add_flag("--quiet", o->quiet, "Answers only");
  cmd->callback([&program, o] { program.run = [o] { return run_chat(*o); }; });
}

}  // namespace deepinfer
