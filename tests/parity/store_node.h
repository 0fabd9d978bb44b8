// What tests of the engine over a persistent store share: one process with a store on a directory, and
// requests.
#pragma once

#include "apps/store_prefix.h"
#include "serving_fixture.h"
#include "store/test_support.h"

namespace deepinfer::parity {

using store::DirectoryOptions;
using store::DirectoryStore;

inline const std::string kConfig = "t0";

inline int vocab() {
  return weights(kConfig).config.vocab_size;
}
inline int window() {
  return weights(kConfig).config.sliding_window;
}

// Does something to the store between a match and the load that follows from it.
class Meddler : public StorePrefix {
 public:
  using StorePrefix::StorePrefix;
  std::function<void(const StoreLoad&)> before_load;
  int64_t rest_ns = -1;  // what is said of the time until the rest of a load is there; -1: what is predicted
  uint64_t load(StoreLoad l) override {
    if (before_load) before_load(l);
    if (l.first && rest_ns >= 0) l.first = [first = std::move(l.first), ns = rest_ns](int64_t) { first(ns); };
    return StorePrefix::load(std::move(l));
  }
};

// One process: a store on the directory and an engine over it.
struct Node {
  explicit Node(const std::string& path, std::function<void(EngineConfig*, DirectoryOptions*)> change = {},
                policy::RestoreRules rules = patient()) {
    EngineConfig c = test_config();
    c.exact_hits = true;
    c.cost = {0, 0, 10'000'000, 0, 0, 0, 0};  // a row is dear: the store pays
    c.batch_budget_ns = c.interactive_budget_ns = 100'000'000'000;
    DirectoryOptions o = store::test_options(path);
    if (change) change(&c, &o);
    auto opened = DirectoryStore::open(o);
    DI_CHECK(opened.ok(), opened.status().to_string());
    disk = std::move(opened).value();
    prefix = std::make_unique<Meddler>(disk.get(), rules);
    c.store = prefix.get();
    server = std::make_unique<Server>(kConfig, c);
  }
  // No load is given up because the machine that runs the tests is busy.
  static policy::RestoreRules patient() {
    policy::RestoreRules r;
    r.deadline_floor_ns = 60'000'000'000;
    return r;
  }
  ~Node() {
    if (server != nullptr) server->expect_clean();
    server.reset();
    prefix.reset();
  }
  const Answer& run(const EngineRequest& r) {
    const Answer& a = server->run(r);
    disk->flush();
    return a;
  }
  std::unique_ptr<DirectoryStore> disk;
  std::unique_ptr<Meddler> prefix;
  std::unique_ptr<Server> server;
};

inline EngineRequest question(int variant = 0, int64_t windows = 6) {
  return request(prompt(static_cast<int>(windows) * window() + 3, vocab(), variant), 2 * window() + 5, 0.7,
                 17);
}
// The next turn: the question, its answer, and something new.
inline EngineRequest next_turn(const EngineRequest& q, const std::vector<int32_t>& answer) {
  EngineRequest r = q;
  r.prompt.insert(r.prompt.end(), answer.begin(), answer.end());
  std::vector<int32_t> more = prompt(3 * window() / 2, vocab(), 9);
  r.prompt.insert(r.prompt.end(), more.begin(), more.end());
  r.sampling.seed = 18;
  return r;
}

}  // namespace deepinfer::parity
