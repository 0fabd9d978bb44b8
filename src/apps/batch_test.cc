// A batch file through the server's endpoints: answers, errors per line, going on after a stop and after a
// torn file.
#include "apps/batch_run.h"

#include <gtest/gtest.h>

#include <fstream>
#include <set>
#include <sstream>

#include "apps/serve_test_support.h"

namespace deepinfer {
namespace {

class BatchRun : public testing::Test {
 protected:
  void SetUp() override {
    dir_ = testing::TempDir() + "/batch_" + testing::UnitTest::GetInstance()->current_test_info()->name();
    in_ = dir_ + ".in.jsonl";
    out_ = dir_ + ".out.jsonl";
    std::remove(out_.c_str());
  }
  void write(const std::string& path, const std::string& text) {
    std::ofstream(path, std::ios::binary) << text;
  }
  std::vector<Json> answers() {
    std::ifstream f(out_);
    std::vector<Json> all;
    for (std::string line; std::getline(f, line);) {
      Result<Json> j = parse_json(line);
      EXPECT_TRUE(j.ok()) << line;
      if (j.ok()) all.push_back(*j);
    }
    return all;
  }
  Result<BatchCounts> run(const TestServer& t, BatchOptions o = {}) {
    o.model = "tiny";
    return run_batch([&](std::shared_ptr<Exchange> e) { t.server->handle(std::move(e)); }, in_, out_, o);
  }
  std::string dir_, in_, out_;
};

std::string chat(int i) {
  return "{\"custom_id\": \"c" + std::to_string(i) +
         "\", \"method\": \"POST\", \"url\": \"/v1/chat/completions\", \"body\": {\"model\": \"tiny\", "
         "\"max_tokens\": "
         "5, \"messages\": [{\"role\": \"user\", \"content\": \"n " +
         std::to_string(i) + "\"}]}}\n";
}

TEST_F(BatchRun, AnswersEveryKindOfLineAndSaysWhatIsWrongWithOthers) {
  TestServer t;
  write(in_, chat(1) +
                 "{\"messages\": [{\"role\": \"user\", \"content\": \"bare\"}], \"max_tokens\": 3, "
                 "\"stream\": true}\n\n"
                 "{\"prompt\": \"once\", \"max_tokens\": 4}\n"
                 "{\"custom_id\": \"r\", \"url\": \"/v1/responses\", \"body\": {\"input\": \"hi\", "
                 "\"max_output_tokens\": 6}}\n"
                 "{broken\n" +
                 chat(1) +
                 "{\"custom_id\": \"u\", \"url\": \"/etc/passwd\", \"body\": {}}\n"
                 "{\"custom_id\": \"bad\", \"url\": \"/v1/chat/completions\", \"body\": {\"model\": "
                 "\"tiny\", \"messages\": 5}}\n");
  auto c = run(t);
  ASSERT_TRUE(c.ok()) << c.status().to_string();
  EXPECT_EQ(c->lines, 8);
  EXPECT_EQ(c->answered, 4);
  EXPECT_EQ(c->failed, 4);
  EXPECT_EQ(c->output_tokens, 5 + 3 + 4 + 6);
  std::map<std::string, Json> by;
  for (Json& a : answers()) by[a["custom_id"].get<std::string>()] = a;
  ASSERT_EQ(by.size(), 8u);
  EXPECT_EQ(by["c1"]["response"]["status_code"], 200);
  EXPECT_EQ(by["c1"]["response"]["body"]["object"], "chat.completion");
  EXPECT_EQ(by["line-2"]["response"]["body"]["usage"]["completion_tokens"], 3);
  EXPECT_EQ(by["line-4"]["response"]["body"]["object"], "text_completion");
  EXPECT_EQ(by["r"]["response"]["body"]["object"], "response");
  EXPECT_TRUE(by["c1"]["error"].is_null());
  EXPECT_NE(by["line-6"]["error"]["message"].get<std::string>().find(":6:"), std::string::npos);
  EXPECT_NE(by["line-7"]["error"]["message"].get<std::string>().find("used before"), std::string::npos);
  EXPECT_NE(by["line-8"]["error"]["message"].get<std::string>().find("/etc/passwd"), std::string::npos);
  EXPECT_EQ(by["bad"]["response"]["status_code"], 400);
}

TEST_F(BatchRun, GoesOnWhereItStopped) {
  TestServer t;
  std::string all;
  for (int i = 0; i < 40; ++i) all += chat(i);
  write(in_, all);
  BatchOptions o;
  o.concurrency = 4;
  o.progress = [](const BatchCounts& c) { return c.answered < 10; };
  auto first = run(t, o);
  ASSERT_TRUE(first.ok());
  EXPECT_TRUE(first->stopped);
  auto half = answers().size();
  EXPECT_GE(half, 10u);
  EXPECT_LT(half, 40u);
  // Killed in the middle of a line; and one answer that another try may change.
  {
    std::ofstream f(out_, std::ios::app);
    f << "{\"id\": \"x\", \"custom_id\": \"c39\", \"response\": {\"status_code\": 503, \"body\": {}}, "
         "\"error\": null}\n";
    f << "{\"id\": \"batch_req_77\", \"custom";
  }
  auto second = run(t);
  ASSERT_TRUE(second.ok()) << second.status().to_string();
  EXPECT_EQ(second->kept, static_cast<int64_t>(half));
  EXPECT_EQ(second->answered, 40 - static_cast<int64_t>(half));
  std::set<std::string> ids;
  for (const Json& a : answers()) {
    EXPECT_EQ(a["response"]["status_code"], 200);
    EXPECT_TRUE(ids.insert(a["custom_id"].get<std::string>()).second);
  }
  EXPECT_EQ(ids.size(), 40u);
  auto third = run(t);
  ASSERT_TRUE(third.ok());
  EXPECT_EQ(third->kept, 40);
  EXPECT_EQ(third->answered, 0);
}

TEST_F(BatchRun, ForeignOutputIsNotTouched) {
  TestServer t;
  write(in_, chat(1));
  write(out_, "a letter to somebody\n");
  auto c = run(t);
  ASSERT_FALSE(c.ok());
  EXPECT_EQ(c.status().code(), Code::kInvalidData);
  std::stringstream s;
  s << std::ifstream(out_).rdbuf();
  EXPECT_EQ(s.str(), "a letter to somebody\n");
  in_ = dir_ + ".none";
  EXPECT_FALSE(run(t).ok());
}

}  // namespace
}  // namespace deepinfer
