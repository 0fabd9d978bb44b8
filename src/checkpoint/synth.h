// Writes a synthetic checkpoint: random weights of model specification 12.7 in the released formats, for any
// configuration. It makes benchmarks and tests possible where no real weights are. Streaming: memory does not
// grow with the model. Source: model specification 8.1, 9, 11.2, 12.7; request edge specification 1.1 and 2
// (tokenizer).
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "base/status.h"
#include "model/config.h"

namespace deepinfer {

struct SynthOptions {
  uint64_t seed = 0;   // 0: exactly the specification's values
  int threads = 0;     // 0: as many as this process may use
  bool force = false;  // replace a checkpoint that is already there
  int64_t shard_bytes =
      5'000'000'000;  // a shard ends before a tensor would take it beyond this; a single tensor may be larger
  // Called now and then with the payload bytes written so far and in all, from one thread at a time. May be
  // empty.
  std::function<void(int64_t done, int64_t total)> progress;
  // Asked before every piece of work; true ends with kCancelled. Called from several threads. May be empty.
  std::function<bool()> stop;
};

struct SynthReport {
  int64_t tensors = 0, payload_bytes = 0, files = 0;
};

// Writes DIR: config.json, weights (one model.safetensors up to single_file_bytes, else shards by layer and
// an index), engram_token_map.i32, tokenizer.json, generation_config.json. It is built as DIR.partial,
// flushed and then renamed, so DIR is either whole or as it was. With force an existing checkpoint is
// exchanged for the new one; a directory that holds anything else than checkpoint files is never replaced.
// Errors: kInvalidArgument (DIR not empty, not a directory, holds other files), kResourceExhausted (disk),
// kIo, kCancelled. REQUIRES a validated configuration. Cost: about one core-second per 0.5 GB. The caller
// waits; uses its own threads.
Status synthesise(const ModelConfig& config, const std::string& dir, const SynthOptions& options,
                  SynthReport* report = nullptr);

// Models up to this size are one file.
inline constexpr int64_t kSingleFileBytes = 1'000'000'000;

// The text of a tokenizer.json for a configuration's vocabulary: byte-level BPE without merges in the model
// family's layout.
//
// Ids 0, 1, 2 are BOS, EOS and pad; byte symbols follow from 3 on in the family's order (visible ASCII
// first). A vocabulary from 259 on has all 256 bytes, then the control tokens of request edge
// specification 1.1: at their released ids if the vocabulary reaches that far, otherwise right after the
// bytes, as many as fit; the rest is filled with place-holders. The configuration's image token always is the
// image control token when it lies above the bytes. A smaller vocabulary has as many bytes as fit, chosen in
// this order: visible ASCII, space, LF, TAB, CR, then the family's order; their ids keep the family's order.
std::string synthetic_tokenizer_json(const ModelConfig& config);

}  // namespace deepinfer
