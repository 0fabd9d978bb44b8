// Signal handling for a clean stop. See stop_flag.h.
//
// A signal handler has no argument through which a context could be passed, so this file holds the process's
// only mutable globals: three words, written by the handler with lock-free atomics only.
#include "host/stop_flag.h"

#include <csignal>

#include "base/check.h"

namespace deepinfer {
namespace {

std::atomic<int> g_signal{0};
std::atomic<bool> g_stop{false};
std::atomic<bool> g_installed{false};
struct sigaction g_old_int, g_old_term;
static_assert(std::atomic<int>::is_always_lock_free && std::atomic<bool>::is_always_lock_free,
              "a signal handler may only touch lock-free atomics");

extern "C" void on_stop_signal(int number) {
  g_signal.store(number);
  g_stop.store(true);
  // SA_RESETHAND has put the default action back: the next signal of this kind ends the program.
}

}  // namespace

StopFlag::StopFlag() {
  DI_CHECK(!g_installed.exchange(true), "two StopFlags at a time");
  g_signal.store(0);
  g_stop.store(false);
  struct sigaction action{};
  action.sa_handler = on_stop_signal;
  // No SA_RESTART: a blocking read of the terminal must return when the user presses Ctrl-C.
  action.sa_flags = SA_RESETHAND;
  sigemptyset(&action.sa_mask);
  sigaction(SIGINT, &action, &g_old_int);
  sigaction(SIGTERM, &action, &g_old_term);
}

StopFlag::~StopFlag() {
  sigaction(SIGINT, &g_old_int, nullptr);
  sigaction(SIGTERM, &g_old_term, nullptr);
  g_installed.store(false);
}

bool StopFlag::stop_requested() const {
  return g_stop.load(std::memory_order_relaxed);
}

int StopFlag::signal_number() const {
  return g_signal.load();
}

void StopFlag::request_stop() {
  g_stop.store(true);
}

}  // namespace deepinfer
