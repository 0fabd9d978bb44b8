// Runs, their memory and their parallel encoding (text/prompt_encoder.h).
#include "text/prompt_encoder.h"

#include "text/unicode.h"

namespace deepinfer {
namespace {

// Below this a part is not worth a task of its own.
constexpr size_t kPartBytes = 16384;

bool space_at(std::string_view text) {
  Utf8Char c = decode_utf8(text);
  if (c.code_point == Utf8Char::kBad) return false;
  CharClass k = char_class(c.code_point);
  return k == CharClass::kSpace || k == CharClass::kNewline;
}

}  // namespace

std::vector<std::string_view> cut_for_encoding(std::string_view text, size_t least_bytes) {
  std::vector<std::string_view> parts;
  size_t start = 0;
  size_t at = least_bytes;
  while (at < text.size()) {
    size_t feed = text.find('\n', at);
    if (feed == text.npos || feed + 1 >= text.size()) break;
    if (space_at(text.substr(feed + 1))) {
      at = feed + 1;
      continue;
    }
    parts.push_back(text.substr(start, feed + 1 - start));
    start = feed + 1;
    at = start + least_bytes;
  }
  parts.push_back(text.substr(start));
  return parts;
}

bool PromptEncoder::find(std::string_view text, std::vector<int32_t>* ids) {
  std::lock_guard lock(mutex_);
  auto it = by_text_.find(text);
  if (it == by_text_.end()) return false;
  entries_.splice(entries_.begin(), entries_, it->second);
  *ids = it->second->ids;
  return true;
}

void PromptEncoder::remember(std::string text, const std::vector<int32_t>& ids) {
  if (text.size() > cache_bytes_) return;
  std::lock_guard lock(mutex_);
  if (by_text_.contains(text)) return;
  used_bytes_ += text.size();
  entries_.push_front({std::move(text), ids});
  by_text_.emplace(entries_.front().text, entries_.begin());
  while (used_bytes_ > cache_bytes_) {
    used_bytes_ -= entries_.back().text.size();
    by_text_.erase(entries_.back().text);
    entries_.pop_back();
  }
}

std::vector<int32_t> PromptEncoder::encode(const std::vector<Span>& spans, const ParallelFor& parallel) {
  // A run: neighbouring text spans, as one string; the spans between runs are single ids.
  struct Run {
    std::string text;
    int32_t id = -1;                                // the id after the text, -1 if none
    const std::vector<int32_t>* sampled = nullptr;  // the ids after the text
    std::vector<int32_t> ids;
    bool known = false;
  };
  struct Task {
    size_t run;
    std::string_view part;
    std::vector<int32_t> ids;
  };
  std::vector<Run> runs(1);
  for (const Span& span : spans) {
    if (span.kind == Span::Kind::kText) {
      runs.back().text += span.text;
    } else {
      if (span.kind == Span::Kind::kSampled) {
        runs.back().sampled = &span.ids;
      } else {
        runs.back().id = span.id;
      }
      runs.emplace_back();
    }
  }
  std::vector<Task> tasks;
  for (size_t i = 0; i < runs.size(); ++i) {
    if (runs[i].text.empty()) continue;
    runs[i].known = cache_bytes_ > 0 && find(runs[i].text, &runs[i].ids);
    if (runs[i].known) continue;
    for (std::string_view part : cut_for_encoding(runs[i].text, kPartBytes)) tasks.push_back({i, part, {}});
  }
  auto work = [&](size_t k) { tokenizer_.encode_append(tasks[k].part, &tasks[k].ids); };
  if (parallel && tasks.size() > 1) {
    parallel(tasks.size(), work);
  } else {
    for (size_t k = 0; k < tasks.size(); ++k) work(k);
  }
  for (Task& t : tasks) runs[t.run].ids.insert(runs[t.run].ids.end(), t.ids.begin(), t.ids.end());
  std::vector<int32_t> ids;
  for (Run& run : runs) {
    ids.insert(ids.end(), run.ids.begin(), run.ids.end());
    if (run.id >= 0) ids.push_back(run.id);
    if (run.sampled != nullptr) ids.insert(ids.end(), run.sampled->begin(), run.sampled->end());
    if (!run.text.empty() && !run.known && cache_bytes_ > 0) remember(std::move(run.text), run.ids);
  }
  return ids;
}

}  // namespace deepinfer
