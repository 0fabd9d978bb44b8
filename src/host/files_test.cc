// Reading with a limit from files, folders and pipes; atomic replacement that leaves the old file and no
// litter on failure.
#include "host/files.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>

namespace deepinfer {
namespace {

namespace fs = std::filesystem;

class Files : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string name = ::testing::UnitTest::GetInstance()->current_test_info()->name();
    folder_ = fs::temp_directory_path() / ("di_files_" + std::to_string(::getpid()) + "_" + name);
    fs::create_directories(folder_);
  }
  void TearDown() override { fs::remove_all(folder_); }
  std::string path(const std::string& name) const { return folder_ / name; }
  int64_t entries() const { return std::distance(fs::directory_iterator(folder_), fs::directory_iterator()); }
  fs::path folder_;
};

TEST_F(Files, WriteThenRead) {
  std::string bytes("a\0b\n", 4);
  bytes += std::string(200'000, 'x');
  ASSERT_TRUE(write_file_atomically(path("f"), bytes).ok());
  Result<std::string> back = read_file(path("f"), 1 << 20);
  ASSERT_TRUE(back.ok()) << back.status().to_string();
  EXPECT_EQ(*back, bytes);
  ASSERT_TRUE(write_file_atomically(path("f"), "").ok());
  EXPECT_EQ(*read_file(path("f"), 0), "");
  EXPECT_EQ(entries(), 1);
}

TEST_F(Files, LimitIsExact) {
  ASSERT_TRUE(write_file_atomically(path("f"), std::string(70'000, 'x')).ok());
  EXPECT_TRUE(read_file(path("f"), 70'000).ok());
  Result<std::string> r = read_file(path("f"), 69'999);
  ASSERT_FALSE(r.ok());
  EXPECT_EQ(r.status().code(), Code::kResourceExhausted);
  EXPECT_NE(r.status().message().find("69999"), std::string::npos);
}

TEST_F(Files, ErrorsNameThePath) {
  Result<std::string> missing = read_file(path("none"), 10);
  ASSERT_FALSE(missing.ok());
  EXPECT_EQ(missing.status().code(), Code::kNotFound);
  EXPECT_NE(missing.status().message().find(path("none")), std::string::npos);
  EXPECT_EQ(read_file(folder_, 10).status().code(), Code::kInvalidArgument);
  EXPECT_EQ(write_file_atomically(path("no/such/f"), "x").code(), Code::kNotFound);
}

TEST_F(Files, EndlessInputStopsAtTheLimit) {
  Result<std::string> r = read_file("/dev/zero", 1 << 20);
  ASSERT_FALSE(r.ok());
  EXPECT_EQ(r.status().code(), Code::kResourceExhausted);
}

TEST_F(Files, Pipe) {
  int ends[2];
  ASSERT_EQ(::pipe(ends), 0);
  ASSERT_EQ(::write(ends[1], "hello", 5), 5);
  ::close(ends[1]);
  Result<std::string> r = read_descriptor(ends[0], "standard input", 100);
  ::close(ends[0]);
  ASSERT_TRUE(r.ok());
  EXPECT_EQ(*r, "hello");
}

TEST_F(Files, ReplacingKeepsTheModeAndFailureKeepsTheOldFile) {
  ASSERT_TRUE(write_file_atomically(path("f"), "old").ok());
  ::chmod(path("f").c_str(), 0640);
  ASSERT_TRUE(write_file_atomically(path("f"), "new").ok());
  struct stat s{};
  ::stat(path("f").c_str(), &s);
  EXPECT_EQ(s.st_mode & 0777, 0640u);
  // A folder with something in it cannot be replaced by a file: the rename fails, and nothing is left behind.
  fs::create_directories(folder_ / "d" / "inner");
  Status failed = write_file_atomically(path("d"), "x");
  EXPECT_EQ(failed.code(), Code::kIo);
  EXPECT_TRUE(fs::is_directory(folder_ / "d" / "inner"));
  EXPECT_EQ(entries(), 2);
}

}  // namespace
}  // namespace deepinfer
