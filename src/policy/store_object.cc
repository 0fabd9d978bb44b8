// One table of what may follow what.
#include "policy/store_object.h"

#include "base/check.h"

namespace deepinfer::policy {

bool allowed(const StoreObject& o, ObjectEvent event) {
  switch (event) {
    case ObjectEvent::kBegin:
      return o.phase == ObjectPhase::kAbsent;
    case ObjectEvent::kCommit:
    case ObjectEvent::kAbort:
      return o.phase == ObjectPhase::kWriting;
    case ObjectEvent::kLease:
      return o.phase == ObjectPhase::kComplete && o.leases < UINT16_MAX;
    case ObjectEvent::kRelease:
      return o.leases > 0;
    case ObjectEvent::kEvict:
      return o.phase == ObjectPhase::kComplete && o.leases == 0;
    case ObjectEvent::kInvalidate:
      return o.phase == ObjectPhase::kComplete;
    case ObjectEvent::kReuse:
      return o.phase == ObjectPhase::kDropped && o.leases == 0;
  }
  return false;
}

void apply(StoreObject* o, ObjectEvent event) {
  DI_CHECK(allowed(*o, event), "a stored object takes a step it may not take");
  switch (event) {
    case ObjectEvent::kBegin:
      o->phase = ObjectPhase::kWriting;
      break;
    case ObjectEvent::kCommit:
      o->phase = ObjectPhase::kComplete;
      break;
    case ObjectEvent::kAbort:
    case ObjectEvent::kReuse:
      o->phase = ObjectPhase::kAbsent;
      break;
    case ObjectEvent::kLease:
      ++o->leases;
      break;
    case ObjectEvent::kRelease:
      --o->leases;
      break;
    case ObjectEvent::kEvict:
    case ObjectEvent::kInvalidate:
      o->phase = ObjectPhase::kDropped;
      break;
  }
}

void observe(OwnerWatch* w, uint64_t beat, int64_t now_ns) {
  if (w->seen && w->beat == beat) return;
  w->seen = true;
  w->beat = beat;
  w->since_ns = now_ns;
}

bool owner_dead(const OwnerWatch& w, bool lock_is_free, int64_t now_ns, int64_t silent_ns) {
  return w.seen && lock_is_free && now_ns - w.since_ns >= silent_ns;
}

}  // namespace deepinfer::policy
