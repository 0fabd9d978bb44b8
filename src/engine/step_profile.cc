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

int64_t matrix_bytes(const MatrixView& m, int64_t rows) {
  switch (m.format) {
    case WeightFormat::kF64:
      return rows * m.cols * 8;
    case WeightFormat::kF32:
      return rows * m.cols * 4;
    case WeightFormat::kBF16:
      return rows * m.cols * 2;
    case WeightFormat::kFp8Tile32:
      return rows * m.cols + (rows + 31) / 32 * ((m.cols + 31) / 32);
    case WeightFormat::kFp8Row32:
      return rows * m.cols + rows * (m.cols / 32);
    case WeightFormat::kMxfp4:
      return rows * m.cols / 2 + rows * (m.cols / 32);
  }
  return 0;
}

}  // namespace deepinfer
