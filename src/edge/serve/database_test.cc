// The ledger counts a request once: whoever writes its row, how often, and across a process that died.
#include "edge/serve/database.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdio>

namespace deepinfer {
namespace {

class Ledger : public ::testing::Test {
 protected:
  void SetUp() override { forget(); }
  void TearDown() override { forget(); }
  void forget() {
    for (const char* end : {"", "-wal", "-shm"}) std::remove((path_ + end).c_str());
  }
  std::unique_ptr<Database> open(bool recover) {
    DatabaseOptions o;
    o.path = path_;
    o.recover = recover;
    auto db = Database::open(o);
    EXPECT_TRUE(db.ok()) << db.status().to_string();
    return db.ok() ? std::move(*db) : nullptr;
  }
  static UsageRow row(const std::string& id, const std::string& reason, int64_t output) {
    return {id, "t", "k", "/v1/chat/completions", "m", reason, 1, 10, 4, output, 0};
  }
  static UsageTotal total(Database& db) {
    auto all = db.totals(0, "");
    EXPECT_TRUE(all.ok());
    return all.ok() && all->size() == 1 ? (*all)[0] : UsageTotal();
  }
  std::string path_ = ::testing::TempDir() + "di_ledger_" + std::to_string(::getpid()) + ".db";
};

TEST_F(Ledger, ARowReplacesOnlyWhatStillRuns) {
  auto db = open(true);
  EXPECT_TRUE(db->durable());
  db->record(row("a", kUsageRunning, 0));
  db->record(row("a", kUsageRunning, 5));
  EXPECT_EQ(total(*db).output_tokens, 5);
  db->record(row("a", "stop", 9));
  db->record(row("a", "stop", 9));          // a retry of the writer
  db->record(row("a", kUsageRunning, 7));   // late
  db->record(row("a", "client_left", 99));  // a second end changes nothing
  db->record(row("b", "stop", 1));
  EXPECT_EQ(total(*db).requests, 2);
  EXPECT_EQ(total(*db).output_tokens, 10);
  EXPECT_EQ(total(*db).prompt_tokens, 20);
}

TEST_F(Ledger, WhatADeadProcessLeftRunningIsCountedAsItWas) {
  open(true)->record(row("a", kUsageRunning, 5));
  {
    auto reader = open(false);  // who only reads the ledger changes nothing
    EXPECT_EQ(total(*reader).output_tokens, 5);
    reader->record(row("a", kUsageRunning, 6));
  }
  auto again = open(true);
  again->record(row("a", kUsageRunning, 7));  // it did not run on after all: crashed rows may be corrected
  again->record(row("c", "stop", 1));
  EXPECT_EQ(total(*again).requests, 2);
  EXPECT_EQ(total(*again).output_tokens, 8);
  again = nullptr;
  again = open(true);
  EXPECT_EQ(total(*again).output_tokens, 8);
}

TEST_F(Ledger, InMemoryNothingIsDurable) {
  auto db = Database::open({});
  ASSERT_TRUE(db.ok());
  EXPECT_FALSE((*db)->durable());
}

}  // namespace
}  // namespace deepinfer
