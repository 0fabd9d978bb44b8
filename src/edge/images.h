// Images named in requests: which references are legal, and the size an inline image's header tells. Pixels
// are decoded elsewhere and nothing is fetched here. Source: request edge specification 3.10, 4.3, 4.5.
// Threads: pure functions.
#pragma once

#include <string>
#include <string_view>

#include "text/conversation.h"

namespace deepinfer {

// A data URL or an http(s) URL. `path` is where the request has it; errors begin with it.
Result<ImageSource> image_from_url(std::string_view url, ImageSource::Detail detail, const std::string& path);
// Base64 with missing padding repaired, turned into a data URL.
Result<ImageSource> image_from_base64(std::string_view media_type, std::string_view data,
                                      const std::string& path);

// Bytes of base64 text (padding optional), or nothing if it is none.
std::optional<std::string> decode_base64(std::string_view text);
// Width and height from the header of PNG, GIF, JPEG or WebP bytes; false if they do not tell.
bool read_image_size(std::string_view bytes, int64_t* width, int64_t* height);

}  // namespace deepinfer
