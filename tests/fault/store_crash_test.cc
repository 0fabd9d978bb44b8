// kill -9 at random points of mixed writes, torn and flipped files, and two processes on one directory of
// which one dies again and again: nothing wrong is ever served, nothing acknowledged is lost, whoever lives
// goes on.
#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fstream>
#include <map>
#include <random>
#include <set>
#include <sstream>
#include <thread>

#include "store/maintenance.h"
#include "store_crash.h"

namespace deepinfer::store {
namespace {

namespace fs = std::filesystem;

// A writer in a process of its own, and what it has said.
class Writer {
 public:
  Writer(const std::string& dir, uint64_t first, int64_t quota = 0) {
    int ends[2] = {};
    DI_CHECK(::pipe2(ends, O_CLOEXEC) == 0, "no pipe");
    std::string chain = std::to_string(first), bytes = std::to_string(quota);
    const char* argv[] = {STORE_WRITER, dir.c_str(), chain.c_str(), bytes.c_str(), nullptr};
    pid_ = ::fork();
    DI_CHECK(pid_ >= 0, "no process");
    if (pid_ == 0) {
      ::dup2(ends[1], 1);
      ::execv(STORE_WRITER, const_cast<char**>(argv));
      ::_exit(127);
    }
    ::close(ends[1]);
    from_ = ends[0];
    listener_ = std::thread([this] {
      char buffer[65536];
      for (ssize_t n = 0; (n = ::read(from_, buffer, sizeof(buffer))) > 0;) {
        std::lock_guard lock(mutex_);
        said_.append(buffer, static_cast<size_t>(n));
      }
    });
  }
  ~Writer() { kill(); }
  void kill() {
    if (pid_ < 0) return;
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
    pid_ = -1;
    listener_.join();
    ::close(from_);
  }
  std::string said() {
    std::lock_guard lock(mutex_);
    return said_;
  }
  bool wait_for(const std::string& text) {
    for (int i = 0; i < 5000 && said().find(text) == std::string::npos; ++i)
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    return said().find(text) != std::string::npos;
  }

 private:
  pid_t pid_ = -1;
  int from_ = -1;
  std::thread listener_;
  std::mutex mutex_;
  std::string said_;
};

using Acknowledged = std::map<uint64_t, std::set<std::pair<uint64_t, int>>>;

void take(const std::string& said, Acknowledged* all) {
  std::istringstream in(said);
  for (std::string line; std::getline(in, line);) {
    EXPECT_NE(line.rfind("BAD", 0), 0u) << line;
    std::istringstream words(line);
    char a = 0;
    uint64_t c = 0, i = 0;
    int kind = 0;
    if (words >> a >> c >> i >> kind && a == 'a') (*all)[c].insert({i, kind});
  }
}

std::unique_ptr<DirectoryStore> look(const std::string& dir) {
  DirectoryOptions o = crash_options(dir);
  o.writable = false;
  o.refresh_ns = 3'600'000'000'000;
  auto s = DirectoryStore::open(o);
  EXPECT_TRUE(s.ok()) << s.status().to_string();
  return s.ok() ? std::move(s).value() : nullptr;
}

// Everything acknowledged is there and right.
void expect_all(DirectoryStore* s, const Acknowledged& all) {
  for (const auto& [c, objects] : all) {
    size_t whole = 0;
    EXPECT_EQ(crash_check(s, c, &whole), "");
    for (auto [i, kind] : objects) {
      bool there =
          static_cast<Kind>(kind) == Kind::kBlock ? i < whole : s->contains(Kind::kWindow, test_key(c, i));
      EXPECT_TRUE(there) << "chain " << c << " lost block " << i << " kind " << kind;
    }
  }
}

// Whether everything acknowledged is there, without a word if not.
bool has_all(DirectoryStore* s, const Acknowledged& all) {
  for (const auto& [c, objects] : all) {
    size_t whole = 0;
    if (!crash_check(s, c, &whole).empty()) return false;
    for (auto [i, kind] : objects) {
      if (static_cast<Kind>(kind) == Kind::kBlock ? i >= whole : !s->contains(Kind::kWindow, test_key(c, i)))
        return false;
    }
  }
  return true;
}

TEST(StoreCrash, KilledAtRandomPoints) {
  TestDirectory d;
  std::mt19937_64 random(STORE_CRASH_SEED);
  Acknowledged all;
  int64_t total = 0;
  for (int round = 0; round < STORE_CRASHES; ++round) {
    // A fresh start now and then: the directory shall not grow without end.
    if (round % 20 == 0) {
      all.clear();
      for (const auto& e : fs::directory_iterator(d.path())) fs::remove_all(e.path());
    }
    Writer w(d.path(), static_cast<uint64_t>(round) * 1000 + 1);
    // From before it has opened to well into its writing, denser at the beginning.
    int64_t us = static_cast<int64_t>(random() % 12'000);
    if (random() % 3 == 0) us *= 5;
    bool opened = random() % 4 == 0 || w.wait_for("open");
    ASSERT_TRUE(opened);
    std::this_thread::sleep_for(std::chrono::microseconds(us));
    w.kill();
    take(w.said(), &all);
    // Killed before the directory was made a store: there is nothing to look at, and nothing was
    // acknowledged.
    if (all.empty() && !fs::exists(fs::path(d.path()) / "deepinfer-store")) continue;
    auto s = look(d.path());
    ASSERT_NE(s, nullptr);
    expect_all(s.get(), all);
    total = s->gauges().objects;
    if (HasFailure()) break;
  }
  EXPECT_GT(total, 0);
  VerifyReport r;
  ASSERT_TRUE(verify_manifests(d.path(), &r).ok());
  EXPECT_EQ(r.damaged_entries, 0);  // a kill tears ends, it damages nothing
}

// On top of the kill somebody cuts files and flips bytes: what is damaged is absent, the rest is right.
TEST(StoreCrash, KilledAndVandalised) {
  std::mt19937_64 random(STORE_CRASH_SEED + 1);
  for (int round = 0; round < STORE_CRASHES / 4 + 1; ++round) {
    TestDirectory d;
    Acknowledged all;
    {
      Writer w(d.path(), 1);
      ASSERT_TRUE(w.wait_for("a 3 "));
      w.kill();
      take(w.said(), &all);
    }
    std::vector<fs::path> files;
    for (const auto& e : fs::recursive_directory_iterator(d.path())) {
      if (e.is_regular_file() && e.path().filename() != "deepinfer-store" && e.file_size() > 0)
        files.push_back(e.path());
    }
    for (int blow = 0; blow < 6; ++blow) {
      const fs::path& p = files[random() % files.size()];
      int64_t size = static_cast<int64_t>(fs::file_size(p));
      if (size == 0) continue;
      int64_t at = static_cast<int64_t>(random() % static_cast<uint64_t>(size));
      if (random() % 3 == 0) {
        fs::resize_file(p, static_cast<uintmax_t>(at));
      } else {
        std::fstream f(p, std::ios::in | std::ios::out | std::ios::binary);
        f.seekp(at);
        f.put(static_cast<char>(random()));
      }
    }
    auto s = look(d.path());
    ASSERT_NE(s, nullptr);
    for (uint64_t c = 0; c < 60; ++c) EXPECT_EQ(crash_check(s.get(), c), "");
    s.reset();
    // And it can be written to again.
    Writer again(d.path(), 5000);
    EXPECT_TRUE(again.wait_for("a 5001 "));
    again.kill();
    Acknowledged later;
    take(again.said(), &later);
    expect_all(look(d.path()).get(), later);
  }
}

// With a quota objects go; what stays is right, through kills, take-overs and given back space.
TEST(StoreCrash, KilledWhileEvicting) {
  TestDirectory d;
  std::mt19937_64 random(STORE_CRASH_SEED + 2);
  for (int round = 0; round < STORE_CRASHES / 4 + 1; ++round) {
    Writer w(d.path(), static_cast<uint64_t>(round) * 1000 + 1, 1 << 20);
    ASSERT_TRUE(w.wait_for(" 3 1"));
    std::this_thread::sleep_for(std::chrono::microseconds(random() % 40'000));
    w.kill();
    Acknowledged all;
    take(w.said(), &all);
    auto s = look(d.path());
    ASSERT_NE(s, nullptr);
    for (const auto& [c, objects] : all) EXPECT_EQ(crash_check(s.get(), c), "");
  }
}

// Two processes, one directory, hits both ways, while one of them is killed again and again.
void two_processes(uint64_t* next, int first_round, int rounds) {
  TestDirectory d;
  auto opened = DirectoryStore::open(crash_options(d.path()));
  ASSERT_TRUE(opened.ok());
  DirectoryStore* mine = opened->get();
  Acknowledged theirs, ours;
  for (int round = first_round; round < first_round + rounds; ++round) {
    Writer w(d.path(), 100'000 + static_cast<uint64_t>(round) * 1000);
    ASSERT_TRUE(w.wait_for("open"));
    for (int k = 0; k < 10; ++k, ++*next) {
      for (uint64_t i = 0; i < 12; ++i) {
        ObjectMeta m = test_meta(*next, i, crash_size(*next, i, Kind::kBlock));
        Status put = put_one(mine, m, test_payload(m.key, m.kind, static_cast<size_t>(m.payload_bytes)));
        ASSERT_TRUE(put.ok()) << put.to_string();
        ours[*next].insert({i, 1});
      }
    }
    ASSERT_TRUE(w.wait_for("a "));
    w.kill();
    take(w.said(), &theirs);
    // What the dead one acknowledged is found by the living one, without a restart.
    // (it reads manifests every 0.1 s, and may be at it in its own thread).
    for (int i = 0; i < 300 && !has_all(mine, theirs); ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
      mine->keep_house();
    }
    expect_all(mine, theirs);
    // And the other way: a new process finds what this one wrote.
    auto other = look(d.path());
    expect_all(other.get(), ours);
    if (::testing::Test::HasFailure()) break;
  }
  // The dead ones' objects are looked after.
  for (int i = 0; i < 200 && mine->counters().adopted_generations == 0; ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  EXPECT_GT(mine->counters().adopted_generations, 0);
  EXPECT_EQ(mine->counters().integrity_failures, 0);
  expect_all(mine, theirs);
}

TEST(StoreCrash, TwoProcessesOneDirectory) {
  // Every round looks at all that was written, so a directory lives for some rounds only.
  constexpr int kKills = STORE_CRASHES / 5 + 2, kOneDirectory = 14;
  uint64_t next = 1;
  for (int round = 0; round < kKills && !HasFailure(); round += kOneDirectory)
    two_processes(&next, round, std::min(kOneDirectory, kKills - round));
}

}  // namespace
}  // namespace deepinfer::store
