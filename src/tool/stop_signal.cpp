#include "stop_signal.h"

#include <signal.h>

namespace zero::tool {
namespace {

// A signal handler can reach nothing but globals.
volatile sig_atomic_t noted = 0;
volatile sig_atomic_t save_noted = 0;

void note(int signal) {
  if (noted != 0) {
    ::signal(signal, SIG_DFL);
    ::raise(signal);
    return;
  }
  noted = signal;
}

void note_save(int) { save_noted = 1; }

}  // namespace

void watch_stop_signals() {
  struct sigaction action {};
  action.sa_handler = note;
  action.sa_flags = SA_RESTART;
  ::sigemptyset(&action.sa_mask);
  ::sigaction(SIGINT, &action, nullptr);
  ::sigaction(SIGTERM, &action, nullptr);
  if (::signal(SIGHUP, SIG_IGN) != SIG_IGN) ::sigaction(SIGHUP, &action, nullptr);  // unless under nohup
  action.sa_handler = note_save;
  ::sigaction(SIGUSR1, &action, nullptr);
  ::signal(SIGXFSZ, SIG_IGN);
}

void outlive_readers() { ::signal(SIGPIPE, SIG_IGN); }

int stop_signal() { return noted; }

bool save_requested() {
  const bool asked = save_noted != 0;
  if (asked) save_noted = 0;
  return asked;
}

}  // namespace zero::tool
