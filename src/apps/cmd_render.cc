// deepinfer render: a request body from standard input to spans, prompt text, token ids and counts, as JSON.
#include <cstdio>
#include <memory>

#include "apps/command.h"
#include "apps/edge_source.h"
#include "edge/tools.h"

namespace deepinfer {
namespace {

struct RenderArgs {
  std::string protocol = "chat", profile = "api", tokenizer, file, history;
  bool image_literal_is_text = false;
};

int run_render(const RenderArgs& args) {
  auto fail = [](const Status& s) {
    std::fprintf(stderr, "deepinfer render: %s\n", s.to_string().c_str());
    return 1;
  };
  Result<Tokenizer> tokenizer = find_tokenizer(args.tokenizer);
  if (!tokenizer.ok()) return fail(tokenizer.status());
  Result<std::string> body = read_all(args.file);
  if (!body.ok()) return fail(body.status());
  Profile profile = *profile_by_name(args.profile);
  ConvertOptions convert = convert_options(profile);
  convert.image_literal_is_text = convert.image_literal_is_text || args.image_literal_is_text;
  RenderOptions render = render_options(profile);
  if (args.history == "keep_all") render.history = HistoryPolicy::kKeepAll;
  if (args.history == "drop_before_last_user") render.history = HistoryPolicy::kDropBeforeLastUser;
  if (args.history == "keep_with_tools") render.history = HistoryPolicy::kKeepWithTools;
  PromptEncoder encoder(std::move(*tokenizer), 0);
  bool ok = false;
  std::string out;
  append_json(render_report(*protocol_by_name(args.protocol), *body, convert, render, &encoder, &ok),
              JsonStyle::kCompact, &out);
  std::printf("%s\n", out.c_str());
  return ok ? 0 : 1;
}

}  // namespace

void add_render(Program& program) {
  auto args = std::make_shared<RenderArgs>();
  CLI::App* cmd = program.app->add_subcommand(
      "render", "request JSON (standard input) to spans, prompt text, token ids and counts");
  cmd->add_option("--protocol", args->protocol, "chat, responses or messages")
      ->check(CLI::IsMember({"chat", "responses", "messages"}));
  cmd->add_option("--profile", args->profile, "api, hosted_strict, hf_reference, v4 or recipe_0_2")
      ->check(CLI::IsMember({"api", "hosted_strict", "hf_reference", "v4", "recipe_0_2"}));
  cmd->add_option("--history", args->history, "override the profile: which stored reasoning is rendered")
      ->check(CLI::IsMember({"keep_all", "drop_before_last_user", "keep_with_tools"}));
  cmd->add_option("--tokenizer,--model", args->tokenizer,
                  "tokenizer.json or a folder with one (default: the shipped small model)");
  cmd->add_flag("--image-literal-as-text", args->image_literal_is_text,
                "encode the spelling of the image placeholder as plain text");
  cmd->add_option("file", args->file, "request body (default: standard input)");
  cmd->callback([&program, args] { program.run = [args] { return run_render(*args); }; });
}

}  // namespace deepinfer
