// For tests: temporary directories, and checkpoints that can be taken apart and put together wrongly.
#pragma once

#include <gtest/gtest.h>
#include <stdlib.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <sstream>
#include <string>
#include <vector>

#include "checkpoint/safetensors.h"
#include "checkpoint/synth.h"
#include "model/config.h"

namespace deepinfer {

class TempDir {
 public:
  TempDir() {
    std::string pattern = (std::filesystem::temp_directory_path() / "di_checkpoint_XXXXXX").string();
    if (::mkdtemp(pattern.data()) != nullptr) path_ = pattern;
    EXPECT_FALSE(path_.empty());
  }
  ~TempDir() {
    if (!path_.empty()) std::filesystem::remove_all(path_);
  }
  TempDir(const TempDir&) = delete;
  TempDir& operator=(const TempDir&) = delete;
  std::string operator/(const std::string& name) const { return path_ + "/" + name; }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

inline std::string read_bytes(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  std::ostringstream out;
  out << in.rdbuf();
  EXPECT_TRUE(in.good()) << path;
  return out.str();
}

inline void write_bytes(const std::string& path, const std::string& bytes) {
  std::ofstream out(path, std::ios::binary | std::ios::trunc);
  out << bytes;
  EXPECT_TRUE(out.good()) << path;
}

inline std::span<const uint8_t> as_bytes(const std::string& s) {
  return {reinterpret_cast<const uint8_t*>(s.data()), s.size()};
}

// A safetensors file from JSON text as it stands and data bytes.
inline std::string raw_safetensors(const std::string& json, const std::string& data = "") {
  std::string out(8, '\0');
  for (size_t i = 0; i < 8; ++i) out[i] = static_cast<char>(uint64_t{json.size()} >> (8 * i) & 0xff);
  return out + json + data;
}

// A file as tensors with their bytes, to be changed and written again with consistent offsets.
struct LooseTensor {
  TensorEntry entry;
  std::string data;
};
using LooseTensors = std::vector<LooseTensor>;

inline LooseTensors take_apart(const std::string& file) {
  const std::string bytes = read_bytes(file);
  auto header = parse_safetensors_header(as_bytes(bytes), file);
  EXPECT_TRUE(header.ok()) << header.status().to_string();
  LooseTensors out;
  for (const TensorEntry& e : header->tensors) {
    out.push_back({e, bytes.substr(header->data_offset + e.begin, e.end - e.begin)});
  }
  return out;
}

// Offsets follow from the data; the stated shapes need not fit it. Digests are dropped. `pad` more spaces
// after the header shift the data's alignment.
inline std::string put_together(const LooseTensors& tensors, size_t pad = 0) {
  std::string json = "{", data;
  for (const LooseTensor& t : tensors) {
    if (json.size() > 1) json += ",";
    std::string shape;
    for (int64_t d : t.entry.shape) shape += (shape.empty() ? "" : ",") + std::to_string(d);
    json += "\"" + t.entry.name + "\":{\"dtype\":\"" + t.entry.dtype + "\",\"shape\":[" + shape +
            "],\"data_offsets\":[" + std::to_string(data.size()) + "," +
            std::to_string(data.size() + t.data.size()) + "]}";
    data += t.data;
  }
  json += "}";
  json.resize((json.size() + 7) / 8 * 8 + pad, ' ');
  return raw_safetensors(json, data);
}

inline LooseTensor& find_tensor(LooseTensors* tensors, const std::string& name) {
  for (LooseTensor& t : *tensors) {
    if (t.entry.name == name) return t;
  }
  ADD_FAILURE() << name;
  return tensors->front();
}

// A synthetic checkpoint of a built-in configuration in DIR/NAME.
inline std::string make_checkpoint(const TempDir& dir, const char* name, SynthOptions options = {}) {
  const std::string path = dir / name;
  const Status status = synthesise(builtin_config(name).value(), path, options);
  EXPECT_TRUE(status.ok()) << status.to_string();
  return path;
}

inline std::string copy_directory(const std::string& from, const std::string& to) {
  std::filesystem::remove_all(to);
  std::filesystem::copy(from, to);
  return to;
}

// Rewrites DIR/model.safetensors.
inline void edit_model(const std::string& dir, const std::function<void(LooseTensors*)>& edit,
                       size_t pad = 0) {
  LooseTensors tensors = take_apart(dir + "/model.safetensors");
  edit(&tensors);
  write_bytes(dir + "/model.safetensors", put_together(tensors, pad));
}

}  // namespace deepinfer
