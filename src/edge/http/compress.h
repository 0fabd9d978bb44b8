// gzip for whole answers: whether a client takes it, and the bytes. Source: RFC 9110 12.5.3, RFC 1952.
// Threads: pure functions.
#pragma once

#include <string>
#include <string_view>

namespace deepinfer {

// An Accept-Encoding value allows gzip: named or by "*", and not with weight 0.
bool accepts_gzip(std::string_view accept_encoding);
// Text, JSON, scripts, SVG: what gets smaller.
bool worth_compressing(std::string_view content_type);
// Empty if it does not get smaller.
std::string gzip(std::string_view bytes);

}  // namespace deepinfer
