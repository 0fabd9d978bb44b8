// Fuzzes request bodies of the three protocols through parsing, mapping, rendering and encoding. First byte:
// protocol and profile. Whatever is accepted must render, and control ids may come from the template only.
#include <cstdint>

#include "edge/request.h"
#include "text/test_vocabulary.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace deepinfer;
  static const Tokenizer tokenizer =
      deepinfer::testing::test_tokenizer({{"a", "b"}, {"\n", "\n"}, {"\xef\xbd", "\x9c"}, {"\xef", "\xbd"}});
  static const ControlTokens control = ControlTokens::from_tokenizer(tokenizer).value();
  if (size == 0) return 0;
  auto protocol = static_cast<Protocol>(data[0] % 3);
  auto profile = static_cast<Profile>(data[0] / 3 % 5);
  std::string_view body(reinterpret_cast<const char*>(data) + 1, size - 1);
  if (data[0] >= 240) {
    if (Result<Json> json = parse_json(body); json.ok())
      (void)convert_completion(*json, convert_options(profile)).ok();
    return 0;
  }
  Result<ProtocolRequest> request = convert_request(protocol, body, convert_options(profile));
  if (!request.ok()) {
    DI_CHECK(!request.status().message().empty(), "a refusal without a reason");
    return 0;
  }
  Result<std::vector<Span>> spans =
      render_conversation(request->conversation, control, render_options(profile));
  if (!spans.ok()) return 0;
  size_t placed = 0, found = 0;
  for (const Span& span : *spans) placed += span.kind != Span::Kind::kText;
  for (int32_t id : encode_spans(tokenizer, *spans)) found += tokenizer.is_added(id);
  DI_CHECK(placed == found, "a control id came from client text");
  return 0;
}
