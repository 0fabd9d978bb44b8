// JSON and tables of an evaluation.
#include "apps/eval_report.h"

#include <fmt/format.h>

#include <algorithm>

namespace deepinfer {
namespace {

using OrderedJson = nlohmann::ordered_json;

double share(double sum, int64_t n) {
  return n > 0 ? sum / static_cast<double>(n) : 0.0;
}

OrderedJson failures_json(const std::vector<EvalFailure>& failures) {
  OrderedJson list = OrderedJson::array();
  for (const EvalFailure& f : failures)
    list.push_back({{"item", f.item}, {"expected", f.expected}, {"produced", f.produced}});
  return list;
}

OrderedJson skills_json(const EvalReport& r) {
  OrderedJson j = OrderedJson::object();
  for (const SkillResult& s : r.skills) {
    OrderedJson& one = j[s.name] = {
        {"score", s.score()}, {"lower_95", wilson_lower(s.right, s.n)}, {"n", s.n}, {"right", s.right}};
    if (!s.failures.empty()) one["failures"] = failures_json(s.failures);
  }
  return j;
}

OrderedJson tally_json(const DraftTally& t) {
  OrderedJson positions = OrderedJson::array(), bins = OrderedJson::array();
  for (const DraftTally::Position& p : t.positions) {
    positions.push_back({{"acceptance", share(static_cast<double>(p.accepted), p.alive)},
                         {"survival", share(static_cast<double>(p.survived), p.observed)},
                         {"predicted_survival", share(p.predicted, p.observed)},
                         {"n", p.observed}});
  }
  for (const DraftTally::Bin& b : t.bins) {
    if (b.n == 0) continue;
    bins.push_back({{"n", b.n},
                    {"predicted", share(b.predicted, b.n)},
                    {"actual", share(static_cast<double>(b.accepted), b.n)}});
  }
  return {{"steps", t.steps},
          {"mean_accepted", t.mean_accepted()},
          {"mean_accepted_uncut", t.mean_accepted_uncut()},
          {"calibration_error", t.calibration_error()},
          {"positions", positions},
          {"calibration", bins}};
}

std::string bucket_name(const TextResult::Bucket& b) {
  return fmt::format("{}-{}", b.begin, b.end);
}

OrderedJson texts_json(const EvalReport& r) {
  OrderedJson j = OrderedJson::object(), by_context = OrderedJson::object();
  for (const TextResult& t : r.texts) {
    j[t.name] = t.all.perplexity();
    OrderedJson& one = by_context[t.name] = OrderedJson::object();
    for (const TextResult::Bucket& b : t.buckets)
      one[bucket_name(b)] = {{"perplexity", b.perplexity()}, {"n", b.n}};
  }
  j["by_context"] = by_context;
  return j;
}

OrderedJson difference_json(const Difference& d) {
  return {{"perplexity_ratio", d.perplexity_ratio.mean},
          {"perplexity_ratio_low", d.perplexity_ratio.low},
          {"perplexity_ratio_high", d.perplexity_ratio.high},
          {"top_token_change_rate", d.top_token_change_rate.mean},
          {"top_token_change_rate_low", d.top_token_change_rate.low},
          {"top_token_change_rate_high", d.top_token_change_rate.high},
          {"moved_share", d.moved_share.mean},
          {"moved_share_low", d.moved_share.low},
          {"moved_share_high", d.moved_share.high},
          {"positions", d.positions},
          {"documents", d.documents}};
}

OrderedJson compared_json(const char* ways, const Difference& all,
                          const std::vector<LengthDifference>& lengths) {
  OrderedJson j = {{"ways", ways}};
  j.update(difference_json(all));
  OrderedJson& by_length = j["by_length"] = OrderedJson::object();
  for (const LengthDifference& l : lengths)
    by_length[std::to_string(l.length)] = difference_json(l.difference);
  return j;
}

// The members of the other comparisons are those of the way that may differ; every way has its own beside
// them.
OrderedJson hits_json(const HitComparison& hits) {
  OrderedJson j;
  for (const HitComparison::Way& w : hits.ways) {
    if (w.name == "hit-replayed") j = compared_json("cold,hit,hit-replayed,preempted", w.all, w.lengths);
  }
  j["keep"] = hits.keep;
  for (const HitComparison::Way& w : hits.ways) {
    OrderedJson& one = j[w.name] = compared_json(w.name.c_str(), w.all, w.lengths);
    one["prompts"] = w.prompts;
    one["prompt_tokens"] = w.prompt_tokens;
    one["cached_tokens"] = w.cached_tokens;
    one["replayed"] = w.replayed;
    one["preemptions"] = w.preemptions;
  }
  return j;
}

OrderedJson compare_json(const EvalReport& r) {
  if (r.hits) return hits_json(*r.hits);
  if (r.replay) {
    OrderedJson j = compared_json("exact,replay", r.replay->all, r.replay->lengths);
    j["keep"] = r.replay->keep;
    j["control"] = difference_json(r.replay->control);
    j["control"]["keep"] = r.replay->control_keep;
    return j;
  }
  OrderedJson j = compared_json("pool,nopool", r.pool->all, r.pool->lengths);
  j["pool_entries"] = r.pool->pool_entries;
  OrderedJson& suites = j["suites"] = OrderedJson::object();
  for (const auto& s : r.pool->suites) {
    suites[s.name] = {{"n", s.n},
                      {"pool", share(static_cast<double>(s.pool), s.n)},
                      {"nopool", share(static_cast<double>(s.no_pool), s.n)},
                      {"answers_that_differ", s.differ}};
  }
  return j;
}

std::string failures_text(const std::vector<EvalFailure>& failures,
                          const std::function<std::string(const std::vector<int32_t>&)>& decode) {
  std::string out;
  for (const EvalFailure& f : failures) {
    out += fmt::format(
        "    item {}: expected {}\n      produced {}\n", f.item,
        f.expected.empty()
            ? std::string("(see the file)")
            : OrderedJson(decode(f.expected)).dump(-1, ' ', false, OrderedJson::error_handler_t::replace),
        OrderedJson(decode(f.produced)).dump(-1, ' ', false, OrderedJson::error_handler_t::replace));
  }
  return out;
}

std::string tally_text(const char* name, const DraftTally& t) {
  std::string out = fmt::format(
      "{}: {:.3f} accepted per step ({:.3f} without the cut at the end of texts), {} steps, calibration "
      "error {:.3f}\n",
      name, t.mean_accepted(), t.mean_accepted_uncut(), t.steps, t.calibration_error());
  out += "  draft   accepted if reached   survival   predicted   steps\n";
  for (size_t k = 0; k < t.positions.size(); ++k) {
    const DraftTally::Position& p = t.positions[k];
    out += fmt::format("  {:>5} {:>20.1f} % {:>8.1f} % {:>9.1f} % {:>7}\n", k + 1,
                       100 * share(static_cast<double>(p.accepted), p.alive),
                       100 * share(static_cast<double>(p.survived), p.observed),
                       100 * share(p.predicted, p.observed), p.observed);
  }
  return out;
}

std::string difference_line(const std::string& name, const Difference& d) {
  return fmt::format("  {:<10} {:>9.5f} [{:.5f}, {:.5f}] {:>9.2f} % {:>11.2f} % {:>9} {:>9}\n", name,
                     d.perplexity_ratio.mean, d.perplexity_ratio.low, d.perplexity_ratio.high,
                     100 * d.top_token_change_rate.mean, 100 * d.moved_share.mean, d.positions, d.documents);
}

std::string compared_text(const char* title, const Difference& all,
                          const std::vector<LengthDifference>& lengths) {
  std::string out = fmt::format("{}\n  {:<10} {:>9} {:<18} {:>11} {:>13} {:>9} {:>9}\n", title, "prompt",
                                "ppl ratio", "[95 %]", "top changes", "moves > 10 %", "positions", "texts");
  for (const LengthDifference& l : lengths) out += difference_line(std::to_string(l.length), l.difference);
  return out + difference_line("all", all);
}

std::string compare_text(const EvalReport& r) {
  std::string out;
  if (r.replay) {
    out += compared_text(fmt::format("bounded replay of {} rows against exact state", r.replay->keep).c_str(),
                         r.replay->all, r.replay->lengths);
    out += difference_line(fmt::format("control"), r.replay->control);
    out += fmt::format("  (control: replay of {} rows, which must change nothing)\n", r.replay->control_keep);
  }
  for (const HitComparison::Way& w : r.hits ? r.hits->ways : std::vector<HitComparison::Way>()) {
    out += compared_text((w.name + " against cold").c_str(), w.all, w.lengths);
    out += fmt::format("  ({} prompts, {} of {} tokens from the cache, {} replayed, {} preemptions)\n",
                       w.prompts, w.cached_tokens, w.prompt_tokens, w.replayed, w.preemptions);
  }
  if (r.pool) {
    out +=
        compared_text(fmt::format("candidate pool of {} entries against none", r.pool->pool_entries).c_str(),
                      r.pool->all, r.pool->lengths);
    for (const auto& s : r.pool->suites) {
      out += fmt::format("  {:<20} pool {:>5.1f} %  no pool {:>5.1f} %  n {:>4}  answers that differ {}\n",
                         s.name, 100 * share(static_cast<double>(s.pool), s.n),
                         100 * share(static_cast<double>(s.no_pool), s.n), s.n, s.differ);
    }
  }
  return out;
}

}  // namespace

OrderedJson eval_json(const EvalReport& r) {
  OrderedJson j = {{"model", r.model}};
  if (!r.notice.empty()) j["notice"] = r.notice;
  j["quick"] = r.quick;
  j["keep"] = r.keep;
  if (!r.skills.empty()) j["skills"] = skills_json(r);
  if (r.skill_drafts) {
    j["drafts"]["mean_accepted_skills"] = r.skill_drafts->mean_accepted();
    if (r.prose_drafts) j["drafts"]["mean_accepted_prose"] = r.prose_drafts->mean_accepted();
    j["drafts"]["skills"] = tally_json(*r.skill_drafts);
    if (r.prose_drafts) j["drafts"]["prose"] = tally_json(*r.prose_drafts);
    j["calibration_error"] = r.skill_drafts->calibration_error();
  }
  if (!r.texts.empty()) j["perplexity"] = texts_json(r);
  for (const UserResult& u : r.user) {
    OrderedJson& one = j["user"][u.name] = {{"n", u.right.size()},
                                            {"samples", u.samples},
                                            {"pass_at_1", u.pass_at(1)},
                                            {"pass_at_k", u.pass_at(u.samples)},
                                            {"right_per_item", u.right}};
    if (!u.failures.empty()) one["failures"] = failures_json(u.failures);
  }
  if (r.replay || r.pool || r.hits) j["compare"] = compare_json(r);
  j["seconds"] = r.seconds;
  return j;
}

std::string eval_text(const EvalReport& r,
                      const std::function<std::string(const std::vector<int32_t>&)>& decode) {
  std::string out = fmt::format("model {}{}\n", r.model, r.quick ? " (quick)" : "");
  if (!r.skills.empty())
    out += fmt::format("\n{:<20} {:>8} {:>14} {:>6}\n", "skill", "score", "at least, 95 %", "n");
  for (const SkillResult& s : r.skills) {
    out += fmt::format("{:<20} {:>6.1f} % {:>12.1f} % {:>6}\n", s.name, 100 * s.score(),
                       100 * wilson_lower(s.right, s.n), s.n);
    out += failures_text(s.failures, decode);
  }
  for (const UserResult& u : r.user) {
    out += fmt::format("\n{}: {} items, pass@1 {:.1f} %", u.name, u.right.size(), 100 * u.pass_at(1));
    if (u.samples > 1) out += fmt::format(", pass@{} {:.1f} %", u.samples, 100 * u.pass_at(u.samples));
    out += "\n" + failures_text(u.failures, decode);
  }
  if (!r.texts.empty()) out += "\nperplexity by tokens of context\n";
  for (const TextResult& t : r.texts) {
    out += fmt::format("  {:<8} {:.3f} over {} tokens:", t.name, t.all.perplexity(), t.all.n);
    for (const TextResult::Bucket& b : t.buckets)
      out += fmt::format("  {} {:.3f}", bucket_name(b), b.perplexity());
    out += "\n";
  }
  if (r.skill_drafts) out += "\n" + tally_text("drafts on skills, greedy", *r.skill_drafts);
  if (r.prose_drafts) out += tally_text("drafts on prose, against the true continuation", *r.prose_drafts);
  if (r.replay || r.pool || r.hits) out += "\n" + compare_text(r);
  return out + fmt::format("\n{:.1f} s\n", r.seconds);
}

}  // namespace deepinfer
