// A window snapshot as bytes, for keeping outside the engine. The layout is the ring's own: the prefix key
// binds geometry and record formats, so only what differs between two windows of one engine is written. Bytes
// from outside are not trusted to be a window. Source: serving specification 2.6; model specification 10.3.
// Threads: pure functions.
#pragma once

#include <span>
#include <vector>

#include "base/status.h"
#include "engine/sequence.h"

namespace deepinfer {

// The same for every window of this geometry: 24 bytes, and per layer one byte, codes and scales per slot.
int64_t window_record_bytes(const WindowSnapshot& slot);
std::vector<uint8_t> encode_window(const WindowSnapshot& window);
// Into a slot of the same geometry. kInvalidData leaves the slot undefined.
Status decode_window(std::span<const uint8_t> bytes, int64_t boundary, WindowSnapshot* slot);

}  // namespace deepinfer
