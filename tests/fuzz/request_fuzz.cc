// Fuzzes request bodies of the three protocols through parsing, mapping, rendering and encoding. First byte:
// protocol and profile. Whatever is accepted must render, and control ids may come from the template only.
// Two ranges of the first byte try completion bodies, and links and image bytes.
#include <cstdint>

#include "edge/fetch_policy.h"
#include "edge/request.h"
#include "text/test_vocabulary.h"

namespace {

using namespace deepinfer;

// A link that may be fetched means the same when written out, and no redirect leads where a link may not.
void links_and_images(std::string_view text) {
  FetchLimits limits;
  Result<FetchTarget> target = fetch_target(text, "P");
  if (target.ok()) {
    Result<FetchTarget> again = fetch_target(target->url(), "P");
    DI_CHECK(target->url().size() > 8192 || (again.ok() && again->url() == target->url()),
             "a target reads differently when written out");
  }
  FetchTarget from = fetch_target("https://a.example.com/b/c?d", "P").value();
  Result<FetchTarget> next = redirect_target(from, text, 0, limits, "P");
  if (next.ok()) {
    DI_CHECK(next->https && fetch_target(next->url(), "P").ok(), "a redirect to a forbidden target");
    std::optional<Address> address = parse_address(next->host);
    DI_CHECK(!address || is_public(*address), "a redirect to an address that is not public");
  }
  (void)decode_data_url(text, limits, "P").ok();
  ImageSource image;
  if (check_image_bytes(text, limits, &image).ok())
    DI_CHECK(image.width > 0 && image_tokens(image.width, image.height) > 0, "an image without a size");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const Tokenizer tokenizer =
      deepinfer::testing::test_tokenizer({{"a", "b"}, {"\n", "\n"}, {"\xef\xbd", "\x9c"}, {"\xef", "\xbd"}});
  static const ControlTokens control = ControlTokens::from_tokenizer(tokenizer).value();
  if (size == 0) return 0;
  auto protocol = static_cast<Protocol>(data[0] % 3);
  auto profile = static_cast<Profile>(data[0] / 3 % 5);
  std::string_view body(reinterpret_cast<const char*>(data) + 1, size - 1);
  if (data[0] >= 248) {
    links_and_images(body);
    return 0;
  }
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
