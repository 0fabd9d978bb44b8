// Strong ids of the policies: a number of one kind cannot be passed for another. They are opaque: a policy
// compares and copies them and never computes with what they stand for. Knows nothing of memory behind them.
// Threads: plain values.
#pragma once

#include <array>
#include <compare>
#include <cstdint>
#include <type_traits>

namespace deepinfer::policy {

enum class SeqId : uint64_t {};      // one request, given by the caller, never reused
enum class TenantId : uint32_t {};   // who pays; fairness is between tenants
enum class BlockId : int32_t {};     // 0 .. pool_blocks - 1
enum class SnapshotId : int32_t {};  // 0 .. snapshot_slots - 1
enum class LeaseId : uint64_t {};    // a reader outside the scheduler (store write, transfer), given by it
enum class StepId : int64_t {};      // consecutive from 1

inline constexpr BlockId kNoBlock{-1};
inline constexpr SnapshotId kNoSnapshot{-1};

template <typename E>
constexpr auto raw(E id) {
  return static_cast<std::underlying_type_t<E>>(id);
}

// The content address of a full block: the digest of everything that determines its bytes, chained over the
// prefix. 32 bytes as four words; how it is computed is not a policy's business.
struct BlockKey {
  std::array<uint64_t, 4> words{};
  auto operator<=>(const BlockKey&) const = default;
};

}  // namespace deepinfer::policy
