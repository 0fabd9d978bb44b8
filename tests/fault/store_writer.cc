// The process that store_crash_test kills: writes prefixes and windows as fast as it can, says on standard
// output what was acknowledged ("a CHAIN BLOCK KIND"), and reads what it and others wrote ("BAD ..." if a
// byte is wrong). Usage: store_writer DIR FIRST_CHAIN QUOTA_BYTES
#include <unistd.h>

#include <random>
#include <thread>

#include "store_crash.h"

namespace deepinfer::store {
namespace {

void say(const std::string& line) {
  // One call per line: what was said before a kill is whole.
  if (::write(1, line.data(), line.size()) < 0) std::_Exit(3);
}

void put_async(DirectoryStore* s, uint64_t c, uint64_t i, Kind kind) {
  ObjectMeta m = test_meta(c, i, crash_size(c, i, kind), kind);
  Result<Ticket> t = s->begin({m});
  if (!t.ok()) return;
  if (!t->wanted[0]) {
    s->abort(*t);
    return;
  }
  s->write(*t, 0, test_payload(m.key, kind, static_cast<size_t>(m.payload_bytes)));
  s->commit(*t, [=](Status st, size_t n) {
    if (st.ok() && n == 1) say(fmt::format("a {} {} {}\n", c, i, static_cast<int>(kind)));
  });
}

int run(const std::string& dir, uint64_t first, int64_t quota) {
  DirectoryOptions o = crash_options(dir);
  o.retention.quota_bytes = quota;
  auto s = DirectoryStore::open(o);
  if (!s.ok()) {
    say("BAD open: " + s.status().to_string() + "\n");
    return 1;
  }
  say("open\n");
  std::mt19937_64 random(first);
  for (uint64_t c = first;; ++c) {
    for (uint64_t i = 0; i < 12; ++i) {
      put_async(s->get(), c, i, Kind::kBlock);
      if (i % 5 == 4) put_async(s->get(), c, i, Kind::kWindow);
      if (random() % 16 == 0) (*s)->flush();
    }
    // Somebody's prefix, be it of another process.
    uint64_t other = random() % (c + 1);
    (*s)->touch(test_chain(other, 4), random() % 2 == 0, {});
    if (std::string bad = crash_check(s->get(), other); !bad.empty()) say("BAD " + bad + "\n");
    // A window on an ordinary machine: some hundred megabytes a minute are enough.
    if (c % 8 == 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

}  // namespace
}  // namespace deepinfer::store

int main(int argc, char** argv) {
  if (argc != 4) return 2;
  return deepinfer::store::run(argv[1], std::stoull(argv[2]), std::stoll(argv[3]));
}
