// Names a thread for whoever looks at the process from outside (top -H, /proc/PID/task/*/comm, a debugger),
// and for the bench of the server, which counts the time of threads by name. Threads: each names itself.
#pragma once

#include <pthread.h>

namespace deepinfer {

// At most 15 bytes; a longer name is not taken.
inline void name_this_thread(const char* name) {
  ::pthread_setname_np(::pthread_self(), name);
}

}  // namespace deepinfer
