// The safetensors file format: an 8-byte little-endian header length, a JSON object of tensors, then their
// bytes without holes. Everything here is untrusted input. Knows no model: which tensors should be there is
// the loader's business. Source: model specification 9; the public safetensors format description. Threads:
// pure functions.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"
#include "checkpoint/problems.h"

namespace deepinfer {

// One tensor as a header states it. begin and end are byte offsets after the header.
struct TensorEntry {
  std::string name;
  std::string dtype;  // the tag, known or not
  std::vector<int64_t> shape;
  uint64_t begin = 0, end = 0;
};

struct SafetensorsHeader {
  std::vector<TensorEntry> tensors;  // in the order of the header
  std::map<std::string, std::string> metadata;
  uint64_t data_offset = 0;  // of the first data byte in the file
};

// The format's own limit; a longer header is refused before it is read.
inline constexpr uint64_t kMaxSafetensorsHeaderBytes = 100'000'000;

// Reads the header of a whole file's bytes. Offsets and shapes are NOT yet held against the file: see below.
// Errors: kInvalidData, with `where` and the reason: too short, header length beyond file or limit, not such
// a JSON object, a name or member twice, a shape that overflows.
Result<SafetensorsHeader> parse_safetensors_header(std::span<const uint8_t> file, const std::string& where);

// Holds the header against the file: unknown types, sizes that differ from shape times type, tensors that end
// past the file (a truncated file), overlaps, holes, bytes after the last tensor. One line per finding in
// `problems`.
void check_safetensors_layout(const SafetensorsHeader& header, uint64_t file_bytes, const std::string& where,
                              ProblemList* problems);

// Bits per element of a tag, 0 if unknown.
int dtype_tag_bits(const std::string& tag);

// "F32 [24, 512]": how messages show a tensor's type and shape.
std::string shown_shape(const std::vector<int64_t>& shape);

// The file layout of `tensors` (name, dtype, shape given; begin and end are filled in, in the order given) as
// header bytes: length, JSON, padded with spaces so that data starts at a multiple of 64 bytes. REQUIRES
// known tags.
std::string make_safetensors_header(std::vector<TensorEntry>* tensors,
                                    const std::map<std::string, std::string>& metadata);

}  // namespace deepinfer
