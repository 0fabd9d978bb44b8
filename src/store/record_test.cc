// The byte formats: fixed bytes for fixed values, any flipped bit is found, any bytes are survived.
#include "store/record.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <random>
#include <vector>

#include "base/sha256.h"
#include "store/test_support.h"

namespace deepinfer::store {
namespace {

RecordHeader sample() {
  RecordHeader h;
  h.kind = Kind::kWindow;
  for (uint64_t i = 0; i < 4; ++i) {
    h.key.words[i] = 0x1111111111111111 * (i + 1);
    h.parent.words[i] = 0x0101010101010101 * (i + 9);
  }
  h.depth = 77;
  h.generation = 0x123456789;
  h.segment = 3;
  h.page = 99;
  h.payload_bytes = 1'414'848;
  h.payload_crc = 0xdeadbeef;
  h.created_s = 1'800'000'000;
  h.ttl_s = 604'800;
  h.shard = {10, 2, 7, 113'920, 0x11223344};
  return h;
}

ManifestEntry sample_entry() {
  ManifestEntry e;
  e.type = EntryType::kTouch;
  e.kind = Kind::kBlock;
  e.sequence = 12345;
  e.key = sample().key;
  e.segment = 3;
  e.page = 99;
  e.payload_bytes = 113'920;
  e.payload_crc = 5;
  e.depth = 77;
  e.used_s = 1'800'000'000;
  e.expires_s = 1'800'604'800;
  e.target = 0x123456789;
  e.generation = 0x23456789;
  return e;
}

TEST(Record, Crc32c) {
  // The check value of CRC-32C.
  std::string digits = "123456789";
  EXPECT_EQ(crc32c({reinterpret_cast<const uint8_t*>(digits.data()), digits.size()}), 0xE3069283u);
  EXPECT_EQ(crc32c({}), 0u);
}

// A change of these digests is a change of the format: a new version number, or old stores are lost.
TEST(Record, FixedBytes) {
  std::vector<uint8_t> h(kRecordHeaderBytes), e(kManifestEntryBytes);
  encode(sample(), h);
  encode(sample_entry(), e);
  auto text = [](const std::vector<uint8_t>& v) {
    return to_hex(sha256({reinterpret_cast<const char*>(v.data()), v.size()}));
  };
  EXPECT_EQ(text(h), "0b7d344d6c0a8fec2e46636e5a302039b7350a2497b86b5b8aa2e724fbaa25d2");
  EXPECT_EQ(text(e), "4b19f23bc7fc8c51a604a036146fce4976109acbcdc412cee1899a204448b82b");
  EXPECT_EQ(*decode_record_header(h), sample());
  EXPECT_EQ(*decode_manifest_entry(e), sample_entry());
  EXPECT_EQ(record_bytes(113'920), 28 * kPage);  // the released block: 0.7 % of padding
}

// A payload in two parts: the first is checked alone, the rest from where the first one ended.
TEST(Record, SplitRecords) {
  RecordHeader h = sample();
  h.shard = {};
  h.payload_bytes = 9000;
  h.split = 4000;
  std::vector<uint8_t> payload = test_payload(h.key, h.kind, 9000);
  set_checksums(&h, payload);
  std::span<const uint8_t> all(payload);
  EXPECT_EQ(h.first_crc, crc32c(all.first(4000)));
  EXPECT_EQ(h.payload_crc, crc32c(all.subspan(4000), h.first_crc));
  EXPECT_EQ(h.payload_crc, crc32c(all));  // as of a record that is not split
  std::vector<uint8_t> record(static_cast<size_t>(record_bytes(9000)));
  encode(h, record);
  std::copy(payload.begin(), payload.end(), record.begin() + kRecordHeaderBytes);
  EXPECT_EQ(record[8], kSplitVersion);
  EXPECT_EQ(*decode_record_header(record), h);
  EXPECT_TRUE(check_record(record, h).ok());
  for (size_t at : {500, 5000}) {
    record[at] ^= 4;
    EXPECT_FALSE(check_record(record, h).ok());
    record[at] ^= 4;
  }
  for (size_t bit = 0; bit < kRecordHeaderBytes * 8; ++bit) {
    record[bit / 8] ^= static_cast<uint8_t>(1 << (bit % 8));
    EXPECT_FALSE(decode_record_header(record).ok()) << bit;
    record[bit / 8] ^= static_cast<uint8_t>(1 << (bit % 8));
  }
  // Splits that cannot be, and a version nobody knows, with a checksum that is right.
  auto refused = [&](size_t at, std::initializer_list<uint8_t> bytes) {
    std::vector<uint8_t> x(record.begin(), record.begin() + kRecordHeaderBytes);
    std::copy(bytes.begin(), bytes.end(), x.begin() + static_cast<int64_t>(at));
    uint32_t crc = crc32c(std::span(x).first(124));
    std::memcpy(x.data() + 124, &crc, 4);
    return !decode_record_header(x).ok();
  };
  EXPECT_FALSE(refused(104, {1}));
  EXPECT_TRUE(refused(116, {0, 0, 0, 0}));
  EXPECT_TRUE(refused(116, {0x28, 0x23, 0, 0}));  // 9000
  EXPECT_TRUE(refused(11, {10, 2}));              // a shard
  EXPECT_TRUE(refused(8, {3}));
  // Pages of the two parts meet or share one.
  EXPECT_EQ(pages_of(0, 4000).end, 2 * kPage);
  EXPECT_EQ(pages_of(4000, 9000).begin, kPage);
  EXPECT_EQ(pages_of(4000, 9000).end, record_bytes(9000));
  EXPECT_EQ(pages_of(0, kPage - kRecordHeaderBytes).end, kPage);
  EXPECT_EQ(pages_of(kPage - kRecordHeaderBytes, 9000).begin, kPage);
}

TEST(Record, EveryFlippedBitIsFound) {
  std::vector<uint8_t> h(kRecordHeaderBytes), e(kManifestEntryBytes);
  encode(sample(), h);
  encode(sample_entry(), e);
  for (size_t bit = 0; bit < h.size() * 8; ++bit) {
    h[bit / 8] ^= static_cast<uint8_t>(1 << (bit % 8));
    EXPECT_FALSE(decode_record_header(h).ok()) << bit;
    h[bit / 8] ^= static_cast<uint8_t>(1 << (bit % 8));
  }
  for (size_t bit = 0; bit < e.size() * 8; ++bit) {
    e[bit / 8] ^= static_cast<uint8_t>(1 << (bit % 8));
    EXPECT_FALSE(decode_manifest_entry(e).ok()) << bit;
    e[bit / 8] ^= static_cast<uint8_t>(1 << (bit % 8));
  }
  for (size_t n = 0; n < h.size(); ++n) EXPECT_FALSE(decode_record_header(std::span(h).first(n)).ok());
  for (size_t n = 0; n < e.size(); ++n) EXPECT_FALSE(decode_manifest_entry(std::span(e).first(n)).ok());
}

TEST(Record, AnotherRecordIsRefused) {
  RecordHeader h = sample();
  std::vector<uint8_t> payload = test_payload(h.key, h.kind, 5000);
  h.payload_bytes = 5000;
  h.payload_crc = crc32c(payload);
  std::vector<uint8_t> record(static_cast<size_t>(record_bytes(5000)));
  encode(h, record);
  std::copy(payload.begin(), payload.end(), record.begin() + kRecordHeaderBytes);
  Result<std::span<const uint8_t>> got = check_record(record, h);
  ASSERT_TRUE(got.ok());
  EXPECT_TRUE(std::equal(got->begin(), got->end(), payload.begin(), payload.end()));
  auto refused = [&](auto edit) {
    RecordHeader want = h;
    edit(want);
    return !check_record(record, want).ok();
  };
  EXPECT_TRUE(refused([](RecordHeader& w) { w.key.words[3] ^= 1; }));
  EXPECT_TRUE(refused([](RecordHeader& w) { w.kind = Kind::kBlock; }));
  EXPECT_TRUE(refused([](RecordHeader& w) { ++w.generation; }));
  EXPECT_TRUE(refused([](RecordHeader& w) { ++w.segment; }));
  EXPECT_TRUE(refused([](RecordHeader& w) { ++w.page; }));
  EXPECT_FALSE(check_record(std::span(record).first(5000), h).ok());  // cut
  record[3000] ^= 4;
  EXPECT_FALSE(check_record(record, h).ok());
}

// Every beginning in a line of memory, every odd length: the same bytes, the same sum, nothing beside them.
TEST(Record, CopiesAndSumsAtAnyPlace) {
  std::vector<uint8_t> from(20'000), to(from.size() + 256);
  std::mt19937_64 random(11);
  for (uint8_t& b : from) b = static_cast<uint8_t>(random());
  auto check = [&](size_t at, size_t bytes, size_t place) {
    std::fill(to.begin(), to.end(), uint8_t{0xEE});
    std::span<const uint8_t> part = std::span(from).subspan(at, bytes);
    EXPECT_EQ(copy_crc32c(part, std::span(to).subspan(place, bytes), 5), crc32c(part, 5));
    EXPECT_TRUE(std::equal(part.begin(), part.end(), to.begin() + static_cast<int64_t>(place)));
    EXPECT_EQ(std::count(to.begin(), to.begin() + static_cast<int64_t>(place), 0xEE),
              static_cast<int64_t>(place));
    EXPECT_TRUE(std::all_of(to.begin() + static_cast<int64_t>(place + bytes), to.end(),
                            [](uint8_t b) { return b == 0xEE; }));
  };
  for (size_t place = 0; place < 70; ++place) {
    for (size_t bytes : {0, 1, 15, 63, 64, 65, 127, 200}) check(place % 7, bytes, place);
    check(128, 8192 + place, place);
    check(3, 16'384 + 63, 70 - place);
  }
}

}  // namespace
}  // namespace deepinfer::store
