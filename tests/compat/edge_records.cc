// Helper of edge_differential.py: edge_records TOKENIZER.json reads one JSON object a line and answers with
// one JSON object a line.
//   {"do":"render","protocol":P,"profile":N,"body":TEXT}              -> the report of `deepinfer render`
//   {"do":"parse","protocol":P,"options":{...},"pieces":[...]}        ->
//   {"events":[{event,data}...],"final":{...}} or {"error":TEXT}
#include <cstdio>
#include <iostream>
#include <sstream>

#include "edge/tools.h"

namespace {

using deepinfer::Json;

Json parse(const Json& job, const deepinfer::Tokenizer& tokenizer, const deepinfer::ControlTokens& control) {
  auto settings = deepinfer::parse_settings(job["options"]);
  if (!settings.ok()) return {{"error", settings.status().message()}};
  std::string lines;
  for (const Json& piece : job["pieces"]) lines += piece.dump() + "\n";
  std::istringstream in(lines);
  std::vector<deepinfer::Event> events;
  std::string final_object;
  deepinfer::Status s =
      deepinfer::parse_pieces(in, *deepinfer::protocol_by_name(job["protocol"].get<std::string>()), tokenizer,
                              control, *settings, &events, &final_object);
  if (!s.ok()) return {{"error", s.message()}};
  Json list = Json::array();
  for (const auto& e : events) list.push_back({{"event", e.name}, {"data", e.data}});
  return {{"events", std::move(list)}, {"final", Json::parse(final_object)}};
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2) return 2;
  auto tokenizer = deepinfer::Tokenizer::from_file(argv[1]);
  if (!tokenizer.ok()) {
    std::fprintf(stderr, "%s\n", tokenizer.status().to_string().c_str());
    return 1;
  }
  auto control = deepinfer::ControlTokens::from_tokenizer(*tokenizer);
  if (!control.ok()) return 1;
  deepinfer::PromptEncoder encoder(*tokenizer);
  std::string line;
  while (std::getline(std::cin, line)) {
    Json job = Json::parse(line);
    Json answer;
    if (job["do"] == "render") {
      deepinfer::Profile profile = *deepinfer::profile_by_name(job["profile"].get<std::string>());
      bool ok = false;
      answer = deepinfer::render_report(*deepinfer::protocol_by_name(job["protocol"].get<std::string>()),
                                        job["body"].get<std::string>(), deepinfer::convert_options(profile),
                                        deepinfer::render_options(profile), &encoder, &ok);
    } else {
      answer = parse(job, *tokenizer, *control);
    }
    std::cout << answer.dump() << "\n";
  }
  return 0;
}
