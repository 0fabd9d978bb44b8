// The classical way to accept drafts: keep a draft with probability target / draft, else draw from what the
// draft left over. The output has the target's distribution whatever the drafts are, but which token comes
// depends on how many drafts were verified; so the default is the target's own draw (sampler.h), which has
// both properties and accepts less often only when sampling is hot. Source: serving specification 4.6;
// Leviathan et al. 2023 (arXiv 2211.17192). Threads: pure functions.
#pragma once

#include <cstdint>

#include "engine/sampler.h"

namespace deepinfer {

// The id at which the running sum of probabilities passes u in (0, 1). REQUIRES a distribution that is not
// empty.
int32_t draw_from(const Distribution& d, double u);

// A draft for `position`, drawn with a stream of its own.
int32_t draw_draft(const Distribution& draft, uint64_t seed, int64_t position);

struct RatioVerdict {
  bool accepted = false;
  int32_t token = -1;  // the draft, or the token in its place
};
// Judges a draft that was drawn from `draft`. An id the target cannot produce is never accepted. If nothing
// is left over (less than 1e-12), the token is drawn from the target.
RatioVerdict accept_by_ratio(const Distribution& target, const Distribution& draft, int32_t drafted,
                             uint64_t seed, int64_t position);
// The token after the last accepted draft, or without drafts.
int32_t draw_bonus(const Distribution& target, uint64_t seed, int64_t position);

}  // namespace deepinfer
