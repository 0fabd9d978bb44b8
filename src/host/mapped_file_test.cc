// Mappings: content, empty and missing files, things that are not files, moves, hints.
#include "host/mapped_file.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

namespace deepinfer {
namespace {

class MappedFileTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = (std::filesystem::temp_directory_path() / "mapped_file_XXXXXX").string();
    ASSERT_NE(::mkdtemp(pattern.data()), nullptr);
    dir_ = pattern;
  }
  void TearDown() override { std::filesystem::remove_all(dir_); }
  std::string write(const std::string& name, const std::string& content) {
    std::string path = dir_ + "/" + name;
    std::ofstream(path, std::ios::binary) << content;
    return path;
  }
  std::string dir_;
};

TEST_F(MappedFileTest, ShowsTheBytesOfTheFile) {
  auto file = MappedFile::open(write("a", "hello"));
  ASSERT_TRUE(file.ok()) << file.status().to_string();
  ASSERT_EQ(file->size(), 5u);
  EXPECT_EQ(std::string(file->bytes().begin(), file->bytes().end()), "hello");
}

TEST_F(MappedFileTest, AnEmptyFileHasNoBytes) {
  auto file = MappedFile::open(write("a", ""));
  ASSERT_TRUE(file.ok());
  EXPECT_EQ(file->size(), 0u);
  EXPECT_TRUE(file->bytes().empty());
  file->advise(MapAdvice::kWillNeed);
}

TEST_F(MappedFileTest, NamesWhatIsMissingOrNotAFile) {
  auto missing = MappedFile::open(dir_ + "/none");
  ASSERT_FALSE(missing.ok());
  EXPECT_EQ(missing.status().code(), Code::kNotFound);
  EXPECT_NE(missing.status().message().find("none"), std::string::npos);
  auto directory = MappedFile::open(dir_);
  ASSERT_FALSE(directory.ok());
  EXPECT_EQ(directory.status().code(), Code::kInvalidData);
  std::string fifo = dir_ + "/fifo";
  ASSERT_EQ(::mkfifo(fifo.c_str(), 0600), 0);
  auto pipe = MappedFile::open(fifo);  // must return, not wait for a writer
  ASSERT_FALSE(pipe.ok());
  EXPECT_EQ(pipe.status().code(), Code::kInvalidData);
}

TEST_F(MappedFileTest, AMoveTakesTheMappingAlong) {
  auto a = MappedFile::open(write("a", "aaaa"));
  auto b = MappedFile::open(write("b", "bb"));
  ASSERT_TRUE(a.ok() && b.ok());
  const uint8_t* data = a->data();
  MappedFile c = std::move(*a);
  EXPECT_EQ(c.data(), data);
  EXPECT_EQ(a->data(), nullptr);
  *b = std::move(c);
  EXPECT_EQ(b->size(), 4u);
  EXPECT_EQ(b->data()[3], 'a');
}

TEST_F(MappedFileTest, HintsNeverChangeContent) {
  std::string content(100000, 'x');
  for (size_t i = 0; i < content.size(); ++i) content[i] = static_cast<char>(i * 31 >> 3);
  auto file = MappedFile::open(write("a", content));
  ASSERT_TRUE(file.ok());
  for (MapAdvice advice : {MapAdvice::kNormal, MapAdvice::kSequential, MapAdvice::kRandom,
                           MapAdvice::kWillNeed, MapAdvice::kDontNeed}) {
    file->advise(advice);
    file->advise(advice, 5000, 60000);
    file->advise(advice, 99999, 1);
    file->advise(advice, 100000, 1);
    file->advise(advice, SIZE_MAX, SIZE_MAX);
    EXPECT_EQ(std::string(file->bytes().begin(), file->bytes().end()), content);
  }
}

}  // namespace
}  // namespace deepinfer
