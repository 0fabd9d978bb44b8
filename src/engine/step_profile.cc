// Names and sizes for the step profile. See step_profile.h.
#include "engine/step_profile.h"

namespace deepinfer {

const char* step_part_name(StepPart part) {
  switch (part) {
    case StepPart::kEmbed:
      return "embed";
    case StepPart::kEngram:
      return "engram";
    case StepPart::kStreams:
      return "streams";
    case StepPart::kQueries:
      return "queries";
    case StepPart::kPublish:
      return "publish";
    case StepPart::kIndex:
      return "index";
    case StepPart::kAttend:
      return "attend";
    case StepPart::kOutput:
      return "output";
    case StepPart::kExperts:
      return "experts";
    case StepPart::kNarrow:
      return "narrow";
    case StepPart::kDraftFeed:
      return "draft_feed";
    case StepPart::kHead:
      return "head";
    case StepPart::kDraft:
      return "draft";
    case StepPart::kCount:
      break;
  }
  return "?";
}

}  // namespace deepinfer
