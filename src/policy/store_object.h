// The life of one stored object (a block or a window in the persistent store) and who may read it: nothing is
// seen before its commit, nothing that is read is given up, and space is used again only after the last
// reader has gone and a grace period has passed. What may happen next is a question, doing it is an event.
// Knows no bytes, places or clocks. Source: serving specification 7.3. Threads: plain values.
#pragma once

#include <cstdint>

namespace deepinfer::policy {

enum class ObjectPhase : uint8_t {
  kAbsent,
  kWriting,   // reserved by a ticket; nobody sees it
  kComplete,  // its commit record is there; readers may lease it
  kDropped,   // expired, evicted or found damaged: no new reader; the old ones keep its bytes
};

struct StoreObject {
  ObjectPhase phase = ObjectPhase::kAbsent;
  uint16_t leases = 0;
  bool operator==(const StoreObject&) const = default;
};

enum class ObjectEvent : uint8_t {
  kBegin,       // a ticket reserves it
  kCommit,      // all its bytes are written and its commit record is
  kAbort,       // the ticket ends, or its owner died
  kLease,       // a reader comes
  kRelease,     // and goes, or its lease ran out
  kEvict,       // retention gives it up
  kInvalidate,  // it failed a check
  kReuse,       // its space goes to somebody else; the caller has waited for the grace period
};

// Whether the event may happen to this object now.
bool allowed(const StoreObject& object, ObjectEvent event);
// REQUIRES allowed(): a fault of the caller aborts.
void apply(StoreObject* object, ObjectEvent event);

// A reader's hold on the objects of one match. The reader asks again after the last byte has arrived: what
// arrived after the end may be another object's bytes and is thrown away.
struct ReadLease {
  int64_t expires_ns = 0;
};
inline constexpr int64_t kReadLeaseNs = 60'000'000'000;
inline constexpr int64_t kTicketReclaimNs = 600'000'000'000;  // a ticket nobody ended, of an owner that lives
inline constexpr int64_t kOwnerSilentNs = 30'000'000'000;     // an owner whose heart does not beat is gone
inline bool holds(const ReadLease& lease, int64_t now_ns) {
  return now_ns < lease.expires_ns;
}

// Whether the owner of a directory of segments may be taken for dead. Its heartbeat is a counter that the
// observer compares with its own clock: no two machines' clocks are compared. The lock ends with the process
// on one machine; across machines it may be free while the owner lives, so that silence is needed as well.
struct OwnerWatch {
  uint64_t beat = 0;
  int64_t since_ns = 0;  // the observer's clock when the counter last changed
  bool seen = false;
};
void observe(OwnerWatch* watch, uint64_t beat, int64_t now_ns);
bool owner_dead(const OwnerWatch& watch, bool lock_is_free, int64_t now_ns, int64_t silent_ns);

}  // namespace deepinfer::policy
