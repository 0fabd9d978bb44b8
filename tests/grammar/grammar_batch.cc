// Helper of the scripts in this folder: reads lines {"schema": TEXT, "texts": [...], "samples": n, "seed": s,
// "any_order": b, "max_space": n} from standard input and writes for each one line {"status", "message",
// "accept":
// [...], "samples": [...]}. A sample is a random walk through the masks, ended as soon as it may end once it
// is long.
//   grammar_batch [TOKENIZER.json]   without one: single bytes and made-up tokens
// With REFERENCE_MASKS=1 in the environment every mask of a sample is also compared with accept() of every
// token.
#include <fmt/format.h>

#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <random>

#include "apps/grammar_bench.h"
#include "grammar/compile.h"

using namespace deepinfer;
using grammar::JsonValue;

namespace {

std::string quoted(const std::string& s) {
  return '"' + grammar::json_spelling(s) + '"';
}

const JsonValue* member(const JsonValue& v, const char* name) {
  return v.find(name);
}
int64_t number(const JsonValue& v, const char* name, int64_t otherwise) {
  const JsonValue* m = member(v, name);
  return m == nullptr ? otherwise : std::atoll(m->text.c_str());
}

// A walk that ends: what it has written steers it to short endings after `soft` tokens.
bool sample(const std::shared_ptr<const grammar::CompiledGrammar>& g, std::mt19937_64& rng, int soft,
            std::string* out) {
  const grammar::Vocabulary& v = g->vocabulary();
  grammar::Matcher m(g);
  std::vector<uint32_t> mask(v.mask_words());
  static const bool check = std::getenv("REFERENCE_MASKS") != nullptr;
  for (int n = 0; n < soft * 40; ++n) {
    if (!m.fill_mask(mask)) return false;
    if (check) {
      for (int32_t id = 0; id < v.size(); ++id) {
        bool bit = (mask[static_cast<size_t>(id) / 32] >> (id % 32) & 1) != 0, taken = m.accept(id);
        if (taken) m.rollback(1);
        if (bit != taken) {
          std::fprintf(stderr, "mask and accept differ on token %d after %s\n", id, out->c_str());
          std::exit(3);
        }
      }
    }
    if (m.can_stop() && (n > soft || rng() % 4 == 0)) return true;
    std::vector<int32_t> allowed;
    for (int32_t id = 0; id < v.size(); ++id) {
      if (!v.is_stop(id) && (mask[static_cast<size_t>(id) / 32] >> (id % 32) & 1) != 0) allowed.push_back(id);
    }
    if (allowed.empty()) return m.can_stop();
    int32_t t = allowed[rng() % allowed.size()];
    // Late in the walk prefer what closes things: quotes and brackets.
    if (n > soft) {
      for (char c : {'}', ']', '"'}) {
        if (rng() % 2 == 0 && (mask[static_cast<uint8_t>(c) / 32] >> (c % 32) & 1) != 0 &&
            v.bytes(c) == std::string(1, c))
          t = c;
      }
    }
    if (!m.accept(t)) return false;
    *out += v.bytes(t);
  }
  return false;
}

}  // namespace

int main(int argc, char** argv) {
  std::shared_ptr<const grammar::Vocabulary> v;
  if (argc > 1) {
    Result<Tokenizer> t = Tokenizer::from_file(argv[1]);
    if (!t.ok()) return 1;
    v = *grammar_vocabulary(*t);
  } else {
    v = made_up_vocabulary(3500);
  }
  std::string line;
  while (std::getline(std::cin, line)) {
    Result<JsonValue> parsed = grammar::parse_json_value(line, 200);
    if (!parsed.ok()) {
      std::fprintf(stderr, "%s\n", parsed.status().to_string().c_str());
      return 1;
    }
    grammar::GrammarSource source;
    source.text = member(*parsed, "schema")->text;
    const JsonValue* order = member(*parsed, "any_order");
    source.schema.any_order = order != nullptr && order->boolean;
    source.schema.max_space = static_cast<uint32_t>(number(*parsed, "max_space", 4));
    auto g = grammar::compile(source, v);
    std::string accept, samples;
    if (g.ok()) {
      if (const JsonValue* texts = member(*parsed, "texts"); texts != nullptr) {
        for (const JsonValue& text : texts->items) {
          grammar::Matcher m(*g);
          bool ok = true;
          for (int32_t id : greedy_tokens(*v, text.text)) ok = ok && m.accept(id);
          accept += (accept.empty() ? "" : ",") + std::string(ok && m.can_stop() ? "true" : "false");
        }
      }
      std::mt19937_64 rng(static_cast<uint64_t>(number(*parsed, "seed", 1)));
      for (int64_t i = number(*parsed, "samples", 0); i > 0; --i) {
        std::string text;
        bool done = sample(*g, rng, 60, &text);
        samples += (samples.empty() ? "" : ",") + (done ? quoted(text) : "null");
      }
    }
    std::string status = g.ok() ? "ok" : code_name(g.status().code());
    std::printf("{\"status\":%s,\"message\":%s,\"accept\":[%s],\"samples\":[%s]}\n", quoted(status).c_str(),
                quoted(g.ok() ? "" : g.status().message()).c_str(), accept.c_str(), samples.c_str());
  }
  return 0;
}
