// The tokenizer that synth writes, as the text room reads it: accepted, every byte its family id, control
// tokens where prompts expect them.
#include <gtest/gtest.h>

#include <string>

#include "checkpoint/synth.h"
#include "model/config.h"
#include "text/tokenizer.h"

namespace deepinfer {
namespace {

class SynthTokenizerReads : public ::testing::TestWithParam<const char*> {};

TEST_P(SynthTokenizerReads, IsAcceptedAndCoversTheVocabulary) {
  const ModelConfig config = builtin_config(GetParam()).value();
  const auto t = Tokenizer::from_json(synthetic_tokenizer_json(config), "synthetic");
  ASSERT_TRUE(t.ok()) << t.status().to_string();
  EXPECT_EQ(t->vocab_size(), config.vocab_size);
  for (int32_t id = 0; id < config.vocab_size; ++id) ASSERT_FALSE(t->token_bytes(id).empty()) << id;
  std::string every_byte;
  for (int b = 0; b < 256; ++b) every_byte += static_cast<char>(b);
  const std::vector<int32_t> ids = t->encode(every_byte);
  EXPECT_EQ(t->decode(ids), every_byte);
  for (int32_t id : ids) EXPECT_TRUE(id >= 3 && id < 259) << id;
  EXPECT_EQ(t->encode("A a"), (std::vector<int32_t>{35, 223, 67}));
  EXPECT_EQ(t->added_token_id("<｜begin▁of▁sentence｜>"), config.bos_token_id);
  EXPECT_EQ(t->added_token_id("<｜end▁of▁sentence｜>"), config.eos_token_id);
  EXPECT_EQ(t->added_token_id("<｜▁pad▁｜>"), config.pad_token_id);
  EXPECT_EQ(t->added_token_id("<｜image｜>"), config.image_token_id);
  for (const char* control :
       {"<｜User｜>", "<｜Assistant｜>", "<think>", "</think>", "<｜System｜>", "｜DSML｜"}) {
    EXPECT_GE(t->added_token_id(control), 259) << control;
  }
}

INSTANTIATE_TEST_SUITE_P(Configs, SynthTokenizerReads, ::testing::Values("t1", "t2", "v41-flash"),
                         [](const auto& param) { return std::string(param.param).substr(0, 3); });

}  // namespace
}  // namespace deepinfer
