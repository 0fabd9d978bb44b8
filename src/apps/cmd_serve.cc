// `deepinfer serve`: reads the configuration, loads the model, serves until SIGTERM or Ctrl-C. The first
// signal drains, the second hurries, the third ends at once. SIGHUP reads the settings again.
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/resource.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>

#include "apps/command.h"
#include "apps/serve_config.h"
#include "apps/serve_run.h"
#include "edge/serve/metrics.h"
#include "host/clock.h"
#include "host/files.h"

namespace deepinfer {
namespace {

struct Options {
  CLI::App* command = nullptr;
  std::string config_file, positional_model, print_docs;
  bool print_config = false, check_config = false;
  std::map<std::string, std::vector<std::string>> given;  // by setting
  std::map<std::string, CLI::Option*> options;
};

int fail(const Status& s) {
  fmt::print(stderr, "deepinfer serve: {}\n", s.message());
  const bool usage = s.code() == Code::kInvalidArgument || s.code() == Code::kInvalidConfig;
  return usage ? 2 : 1;
}

Status read_config(const Options& o, ServeConfig* c) {
  std::string file = o.config_file;
  if (const char* v = std::getenv("DEEPINFER_CONFIG"); file.empty() && v != nullptr) file = v;
  if (!file.empty()) {
    DI_ASSIGN(std::string text, read_file(file, int64_t{1} << 20));
    DI_TRY(apply_toml(text, file, c));
  }
  for (const std::string& name : unknown_variables(environ))
    return error(Code::kInvalidConfig,
                 "{} is not a variable of this program; docs/configuration.md lists all", name);
  DI_TRY(apply_environment([](const char* name) -> const char* { return std::getenv(name); }, c));
  for (const Setting& s : serve_settings()) {
    auto it = o.given.find(s.name);
    if (it == o.given.end() || it->second.empty()) continue;
    std::string text = it->second.front();
    for (size_t i = 1; i < it->second.size(); ++i) text += "," + it->second[i];
    DI_TRY(set_from_text(s, text, flag_name(s), c));
  }
  if (!o.positional_model.empty()) c->model = o.positional_model;
  return validate(*c);
}

// Waits for a signal of `set`, at most `ms`; 0: none came.
int next_signal(const sigset_t& set, int ms) {
  timespec wait{ms / 1000, (ms % 1000) * 1'000'000};
  int s = sigtimedwait(&set, nullptr, &wait);
  return s > 0 ? s : 0;
}

// What is written goes out, then the process ends without waiting for threads that may never return.
[[noreturn]] void leave_now(RunningServer* server, int code) {
  server->database().flush();
  std::fflush(nullptr);
  std::_Exit(code);
}

void reload(RunningServer* server) {
  auto changed = server->reload();
  if (!changed.ok()) {
    fmt::print(stderr, "deepinfer serve: settings not taken: {}\n", changed.status().message());
  } else {
    fmt::print(stderr, "deepinfer serve: settings read again; changed: {}\n",
               changed->empty() ? "none" : fmt::format("{}", fmt::join(*changed, ", ")));
  }
}

int serve_until_signal(RunningServer* server, const sigset_t& signals) {
  const bool at_terminal = ::isatty(STDIN_FILENO) == 1;
  for (int s = 0; s == 0 || s == SIGHUP; s = next_signal(signals, 1000)) {
    if (s != SIGHUP) continue;
    if (at_terminal && ::isatty(STDIN_FILENO) == 0)
      break;  // the terminal was closed: nobody is left to stop it
    reload(server);
  }
  const double grace_s = server->config().drain_grace_s;
  const int64_t grace = static_cast<int64_t>(grace_s * 1e9);
  fmt::print(stderr, "deepinfer serve: draining, at most {:.0f} s; once more to hurry\n", grace_s);
  server->drain(grace);
  int64_t end = now_ns() + grace;
  bool hurried = false;
  // After the grace the engine cancels what is left; two seconds more for the events to arrive.
  while (!server->drained() && now_ns() < end + 2'000'000'000) {
    if (const int s = next_signal(signals, 20); s == 0 || s == SIGHUP) continue;
    if (hurried) leave_now(server, 130);
    hurried = true;
    server->drain(0);
    end = now_ns();
  }
  if (!server->drained()) {
    server->log().write(EventLog::Level::kError, "not_drained",
                        {{"why", "the engine did not end its requests in time"}});
    leave_now(server, 1);
  }
  server->stop();
  return 0;
}

// Each client needs a descriptor, and the usual soft limit of 1024 is soon reached.
void raise_open_files() {
  rlimit l{};
  if (getrlimit(RLIMIT_NOFILE, &l) != 0) return;
  l.rlim_cur = l.rlim_max;
  setrlimit(RLIMIT_NOFILE, &l);
}

int run_serve(Options& o) {
  for (const std::string& extra : o.command->remaining()) {
    if (extra.size() > 1 && extra[0] == '-')
      return fail(error(Code::kInvalidArgument, "{}", explain_unknown_flag(extra)));
    return fail(error(Code::kInvalidArgument, "'{}' is one argument too many; flags start with --", extra));
  }
  if (o.print_docs == "metrics") return fmt::print("{}", metrics_page()), 0;
  if (o.print_docs == "configuration") return fmt::print("{}", configuration_page()), 0;
  ServeConfig c;
  if (Status s = read_config(o, &c); !s.ok()) return fail(s);
  if (o.check_config) return 0;
  if (o.print_config) {
    fmt::print("{}\n", Json{{"config", config_json(c)}}.dump(2));
    return 0;
  }
  // Blocked before the first thread starts, so that only this one sees them.
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGTERM);
  sigaddset(&signals, SIGINT);
  sigaddset(&signals, SIGHUP);
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  signal(SIGPIPE, SIG_IGN);
  signal(SIGXFSZ, SIG_IGN);  // a file at its limit is a failed write, not the end
  raise_open_files();
  auto model = open_engine(c, [](const std::string& line) { fmt::print(stderr, "{}\n", line); });
  if (!model.ok()) return fail(model.status());
  if (!model->notice.empty()) fmt::print(stderr, "{}\n", model->notice);
  auto server = RunningServer::start(c, std::move(*model));
  if (!server.ok()) return fail(server.status());
  for (const std::string& address : (*server)->addresses()) fmt::print("deepinfer serve: {}\n", address);
  std::fflush(stdout);
  (*server)->set_config_source([&o]() -> Result<ServeConfig> {
    ServeConfig again;
    DI_TRY(read_config(o, &again));
    return again;
  });
  return serve_until_signal(server->get(), signals);
}

}  // namespace

void add_serve(Program& program) {
  auto o = std::make_shared<Options>();
  CLI::App* cmd = program.app->add_subcommand(
      "serve", "Serve the model over HTTP: OpenAI and Anthropic protocols, console");
  o->command = cmd;
  cmd->allow_extras();
  cmd->add_option("directory", o->positional_model, "the same as --model");
  cmd->add_option("--config", o->config_file, "TOML file with settings");
  cmd->add_flag("--print-config", o->print_config, "print the settings in effect as JSON and end");
  cmd->add_flag("--check-config", o->check_config, "end with 0 if the settings are right");
  cmd->add_option("--print-docs", o->print_docs, "print a page of the manual and end")
      ->check(CLI::IsMember({"metrics", "configuration"}));
  for (const Setting& s : serve_settings()) {
    CLI::Option* option = cmd->add_option(flag_name(s), o->given[s.name], s.help);
    o->options[s.name] = option;
    option->group(s.group)->type_name(s.kind == "flag" ? "true|false" : s.kind);
    option->expected(s.kind == "flag" ? 0 : 1, 1)->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
  }
  cmd->callback([&program, o] {
    program.run = [o] {
      // A bare flag means true.
      for (auto& [name, values] : o->given) {
        if (o->options.at(name)->count() > 0 &&
            (values.empty() || values.front().empty() || values.front() == "{}"))
          values = {"true"};
      }
      return run_serve(*o);
    };
  });
}

}  // namespace deepinfer
