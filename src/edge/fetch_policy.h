// What a server may fetch for an image named by URL, and what it may make of the answer: addresses,
// redirects, limits, media types, and whose fault a failure is. Pure rules: resolves no names, opens no
// sockets; the fetcher asks here before each connection and after each answer. Source: request edge
// specification 3.10, 4.5 (end), 8 (nos. 9, 19). Threads: pure functions.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "base/status.h"
#include "text/conversation.h"

namespace deepinfer {

struct FetchLimits {
  int max_redirects = 3;
  int64_t max_bytes = int64_t{20} << 20;  // of one answer's body
  int64_t max_pixels = int64_t{64} << 20;
  int64_t max_side = 65535;
  int max_images = 64;  // of one request
  int64_t timeout_ms = 10'000;
};

// The parts of an absolute http(s) URL that a fetcher needs. `host` is in lower case, an IPv6 literal without
// its brackets.
struct FetchTarget {
  bool https = false;
  std::string host;
  uint16_t port = 0;
  std::string path_and_query;  // at least "/"; the fragment is not part of it
  std::string url() const;
};

// kInvalidArgument beginning with `path` for anything else than http(s)://host[:port]/...: user names, spaces
// and control characters, a host that is no name and no address, a host that is an address in a spelling
// other than the usual one (0x7f.1, 2130706433), ports that web servers do not use, local names, and literal
// addresses that are not public.
Result<FetchTarget> fetch_target(std::string_view url, const std::string& path);

// The target of a redirect answered by `from`: `location` may be relative. The same rules; and never from
// https to http. `hops`: redirects followed before this one.
Result<FetchTarget> redirect_target(const FetchTarget& from, std::string_view location, int hops,
                                    const FetchLimits& limits, const std::string& path);

// An address a name was resolved to, in network byte order; IPv4 as its 4 bytes.
struct Address {
  std::array<uint8_t, 16> bytes{};
  bool v6 = false;
};
std::optional<Address> parse_address(std::string_view text);  // dotted IPv4 or IPv6, no other spelling

// True if the address is a public unicast one: none of private, loopback, link-local, shared, documentation,
// benchmark, multicast and reserved networks, and no IPv6 form that carries such an IPv4 address. A fetcher
// must ask for the very address it connects to: a name may resolve anew between the check and the connection.
bool is_public(const Address& address);

// How a fetch failed. Retryable ones are the server's fault, all others the request's.
enum class FetchFault {
  kTransport,  // connection, TLS, time limit
  kUpstreamServerError,
  kClientSetup,
  kTokenBudget,  // the token count of the image found no fixed point
  kUpstreamClientError,
  kTooManyRedirects,
  kForbiddenTarget,
  kTooManyImages,
  kTooLarge,
  kEmpty,
  kUnsupportedType,
  kBadData,  // dimensions, decoding, resizing, encoding
};
bool is_retryable(FetchFault fault);
// kIo (HTTP 500) for retryable faults, kInvalidArgument (400) for all others. `detail` ends the message.
Status fetch_failure(FetchFault fault, const std::string& path, std::string_view detail);
// What an upstream status is: nothing for 2xx.
std::optional<FetchFault> upstream_fault(int http_status);

// The bytes of an answer or of a data URL as an image: within limits, of a type we know by its own header
// (not by what the answer claims), with a size. The media type, and width and height in `image`.
Result<std::string> check_image_bytes(std::string_view bytes, const FetchLimits& limits, ImageSource* image);

struct DataUrl {
  std::string media_type;  // image/png, image/jpeg, image/gif or image/webp
  std::string bytes;
};
// Decodes a data URL, base64 or percent-encoded. Errors as image_from_url's.
Result<DataUrl> decode_data_url(std::string_view url, const FetchLimits& limits, const std::string& path);

}  // namespace deepinfer
