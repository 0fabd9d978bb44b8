// Encoding and decoding over the loaded tables (text/tokenizer.h).
#include "text/tokenizer.h"

#include "text/tokenizer_impl.h"

namespace deepinfer {

void AddedTrie::add(std::string_view text, int32_t id) {
  size_t node = 0;
  for (char ch : text) {
    auto byte = static_cast<uint8_t>(ch);
    int32_t child = -1;
    for (auto& [b, n] : nodes_[node].next) {
      if (b == byte) child = n;
    }
    if (child < 0) {
      child = static_cast<int32_t>(nodes_.size());
      nodes_[node].next.emplace_back(byte, child);
      nodes_.emplace_back();
    }
    node = static_cast<size_t>(child);
  }
  nodes_[node].id = id;
}

AddedTrie::Match AddedTrie::longest(std::string_view text) const {
  Match best;
  size_t node = 0;
  for (size_t i = 0; i < text.size(); ++i) {
    int32_t child = -1;
    for (auto& [b, n] : nodes_[node].next) {
      if (b == static_cast<uint8_t>(text[i])) child = n;
    }
    if (child < 0) break;
    node = static_cast<size_t>(child);
    if (nodes_[node].id >= 0) best = {nodes_[node].id, i + 1};
  }
  return best;
}

void Tokenizer::encode_append(std::string_view text, std::vector<int32_t>* ids) const {
  PieceScanner scanner(text, impl_->digits);
  std::string_view piece;
  while (scanner.next(&piece)) impl_->bpe->encode_piece(piece, ids);
}

std::vector<int32_t> Tokenizer::encode(std::string_view text) const {
  std::vector<int32_t> ids;
  ids.reserve(text.size() / 4 + 8);
  encode_append(text, &ids);
  return ids;
}

std::vector<int32_t> Tokenizer::encode_with_added_tokens(std::string_view text) const {
  std::vector<int32_t> ids;
  size_t start = 0;
  for (size_t i = 0; i < text.size();) {
    AddedTrie::Match m = impl_->trie.longest(text.substr(i));
    if (m.size == 0) {
      ++i;
      continue;
    }
    encode_append(text.substr(start, i - start), &ids);
    ids.push_back(m.id);
    i += m.size;
    start = i;
  }
  encode_append(text.substr(start), &ids);
  return ids;
}

std::string_view Tokenizer::token_bytes(int32_t id) const {
  if (const AddedToken* added = added_token(id)) return added->text;
  if (id < 0 || static_cast<size_t>(id) >= impl_->bpe->token_count()) return {};
  return impl_->bpe->token(id);
}

std::string Tokenizer::decode(const std::vector<int32_t>& ids, bool skip_special) const {
  std::string out;
  for (int32_t id : ids) {
    const AddedToken* added = added_token(id);
    if (skip_special && added != nullptr && added->special) continue;
    out += token_bytes(id);
  }
  return out;
}

bool Tokenizer::is_added(int32_t id) const {
  return impl_->added_by_id.contains(id);
}

const AddedToken* Tokenizer::added_token(int32_t id) const {
  auto it = impl_->added_by_id.find(id);
  return it == impl_->added_by_id.end() ? nullptr : &impl_->added[it->second];
}

int32_t Tokenizer::added_token_id(std::string_view text) const {
  auto it = impl_->added_by_text.find(std::string(text));
  return it == impl_->added_by_text.end() ? -1 : it->second;
}

const std::vector<AddedToken>& Tokenizer::added_tokens() const {
  return impl_->added;
}
int32_t Tokenizer::vocab_size() const {
  return impl_->vocab_size;
}

std::vector<int32_t> encode_spans(const Tokenizer& tokenizer, const std::vector<Span>& spans) {
  std::vector<int32_t> ids;
  std::string run;
  auto flush = [&] {
    tokenizer.encode_append(run, &ids);
    run.clear();
  };
  for (const Span& span : spans) {
    if (span.kind == Span::Kind::kText) {
      run += span.text;
    } else {
      flush();
      if (span.kind == Span::Kind::kSampled) {
        ids.insert(ids.end(), span.ids.begin(), span.ids.end());
      } else {
        ids.push_back(span.id);
      }
    }
  }
  flush();
  return ids;
}

}  // namespace deepinfer
