// deepinfer parse: recorded pieces of model output (tokens or text) to the events or the final object of a
// protocol.
#include <cstdio>
#include <memory>
#include <sstream>

#include "apps/command.h"
#include "apps/edge_source.h"
#include "edge/tools.h"

namespace deepinfer {
namespace {

struct ParseArgs {
  std::string protocol = "chat", options, tokenizer, file;
  bool stream = false, complete = false, jsonl = false;
};

void print_event(const Event& event, bool jsonl) {
  std::string out;
  if (jsonl) {
    // Data is JSON but for Chat's [DONE].
    bool json = event.data.starts_with("{");
    std::string name = "null";
    if (!event.name.empty()) name = "\"" + event.name + "\"";
    out = "{\"event\":" + name + ",\"data\":" + (json ? event.data : "\"" + event.data + "\"") + "}\n";
  } else {
    append_sse(event, &out);
  }
  std::fputs(out.c_str(), stdout);
}

int run_parse(const ParseArgs& args) {
  auto fail = [](const Status& s) {
    std::fprintf(stderr, "deepinfer parse: %s\n", s.to_string().c_str());
    return 1;
  };
  Result<Tokenizer> tokenizer = find_tokenizer(args.tokenizer);
  if (!tokenizer.ok()) return fail(tokenizer.status());
  Result<ControlTokens> control = ControlTokens::from_tokenizer(*tokenizer);
  if (!control.ok()) return fail(control.status());
  Json options = Json::object();
  if (!args.options.empty()) {
    Result<std::string> text = read_all(args.options);
    if (!text.ok()) return fail(text.status());
    Result<Json> json = parse_json(*text);
    if (!json.ok()) return fail(json.status().with_context(args.options));
    options = std::move(*json);
  }
  Result<ParseSettings> settings = parse_settings(options);
  if (!settings.ok()) return fail(settings.status());
  Result<std::string> pieces = read_all(args.file);
  if (!pieces.ok()) return fail(pieces.status());
  std::istringstream in(*pieces);
  std::vector<Event> events;
  std::string final_object;
  Status s = parse_pieces(in, *protocol_by_name(args.protocol), *tokenizer, *control, *settings, &events,
                          &final_object);
  if (!s.ok()) return fail(s);
  if (args.complete) {
    std::printf("%s\n", final_object.c_str());
  } else {
    for (const Event& e : events) print_event(e, args.jsonl);
  }
  return 0;
}

}  // namespace

void add_parse(Program& program) {
  auto args = std::make_shared<ParseArgs>();
  CLI::App* cmd = program.app->add_subcommand(
      "parse", "model output, one piece a line, to a protocol's events or final object");
  cmd->add_option("--protocol", args->protocol, "chat, responses or messages")
      ->check(CLI::IsMember({"chat", "responses", "messages"}));
  auto* stream =
      cmd->add_flag("--stream", args->stream, "print the events as server-sent events (the default)");
  cmd->add_flag("--complete", args->complete, "print the final object")->excludes(stream);
  cmd->add_flag("--jsonl", args->jsonl, "print each event as one line {event, data}");
  cmd->add_option("--options", args->options, "JSON file of parsing and response options");
  cmd->add_option("--tokenizer,--model", args->tokenizer,
                  "tokenizer.json or a folder with one (default: the shipped small model)");
  cmd->add_option("file", args->file, "pieces (default: standard input)");
  cmd->callback([&program, args] { program.run = [args] { return run_parse(*args); }; });
}

}  // namespace deepinfer
