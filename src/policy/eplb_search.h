// Pieces of the expert search that eplb.cc and eplb_search.cc share. Private to the room.
#pragma once

#include "policy/eplb.h"
#include "policy/eplb_loads.h"

namespace deepinfer::policy {

// Each copy on the rank where the sum of the slowest grows least.
Placement step_greedy(const EplbShape& shape, const EplbHistory& history, double risk);
// Improving changes until there is none or the evaluations are used up. A change must gain more than
// `per_slot` for each slot it touches.
Placement local_search(const EplbShape& shape, const EplbHistory& history, Placement start,
                       int64_t* evaluations, double per_slot = 0);
// The same sets of experts per rank, given to the ranks that hold most of them already, slots aligned.
Placement relabel(const EplbShape& shape, const Placement& current, const Placement& wanted);

}  // namespace deepinfer::policy
