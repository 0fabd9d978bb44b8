// What `deepinfer eval` says: results in, JSON and tables out. Pure; the measuring is done elsewhere.
// Source: docs/evaluation.md. Threads: pure functions.
#pragma once

#include <nlohmann/json.hpp>

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "apps/eval_compare.h"
#include "apps/eval_hits.h"
#include "apps/eval_measures.h"

namespace deepinfer {

struct EvalReport {
  std::string model;   // directory
  std::string notice;  // why the numbers mean little, e.g. random weights; empty otherwise
  bool quick = false;
  int64_t keep = 0;  // decoder rows of bounded replay; negative: exact
  std::vector<SkillResult> skills;
  std::optional<DraftTally> skill_drafts, prose_drafts;
  std::vector<TextResult> texts;
  std::vector<UserResult> user;
  std::optional<ReplayComparison> replay;
  std::optional<PoolComparison> pool;
  std::optional<HitComparison> hits;
  double seconds = 0;
};

// Stable keys: model, quick, keep, seconds; skills.NAME.{score,lower_95,n,right};
// drafts.{mean_accepted_skills, mean_accepted_prose,skills,prose}; calibration_error;
// perplexity.{NAME,by_context}; user.NAME.{n,samples,pass_at_1, pass_at_k};
// compare.{ways,perplexity_ratio,perplexity_ratio_low,perplexity_ratio_high,top_token_change_rate,
// moved_share,positions,documents,by_length,control|suites}. Only what was measured is there.
nlohmann::ordered_json eval_json(const EvalReport& report);

// `decode` turns ids into text for the wrong answers shown.
std::string eval_text(const EvalReport& report,
                      const std::function<std::string(const std::vector<int32_t>&)>& decode);

}  // namespace deepinfer
