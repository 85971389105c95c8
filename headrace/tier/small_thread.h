// Threads with a small stack, for what copies, reads or serves beside the computing threads.
#pragma once

#include <pthread.h>
#include <signal.h>

#include <cstddef>

#include "headrace/base/types.h"

namespace headrace {

// Copying needs a few hundred bytes of stack; the default of 8 MiB would count in the
// limit.
constexpr size_t kSmallStackBytes = 256 * kKiB;

// Starts `body(argument)` with all signals blocked (they belong to the threads of the
// program that embeds us). 0, or an errno; the caller joins `*thread`.
inline int start_small_thread(void* (*body)(void*), void* argument, pthread_t* thread,
                              size_t stack_bytes = kSmallStackBytes) {
  pthread_attr_t attributes;
  pthread_attr_init(&attributes);
  pthread_attr_setstacksize(&attributes, stack_bytes);
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  const int rc = pthread_create(thread, &attributes, body, argument);
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  pthread_attr_destroy(&attributes);
  return rc;
}

}  // namespace headrace
