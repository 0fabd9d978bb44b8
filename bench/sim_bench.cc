// Speed of the fleet simulator: a full cluster with every policy, for growing times, so that the cost per
// event can be seen not to grow. Seconds are of the processor. Prints; asserts nothing.
#include <fmt/format.h>
#include <time.h>

#include "sim/fleet.h"

namespace {

double thread_seconds() {
  timespec t{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
}

}  // namespace

int main() {
  using namespace deepinfer::sim;
  fmt::print("{:>10}{:>14}{:>10}{:>14}{:>18}\n", "seconds", "events", "took s", "events/s",
             "request-steps/s");
  for (double seconds : {1.0, 2.0, 4.0, 8.0, 16.0}) {
    DayConfig day = cluster_day(1, 1, seconds);
    const double start = thread_seconds();
    const FleetResult r = run_day(day).total;
    const double took = thread_seconds() - start;
    fmt::print("{:>10}{:>14}{:>10.2f}{:>14.0f}{:>18.0f}{}\n", seconds, r.events, took,
               static_cast<double>(r.events) / took, static_cast<double>(r.request_steps) / took,
               r.broken.empty() ? "" : "  BROKEN: " + r.broken);
  }
  return 0;
}
