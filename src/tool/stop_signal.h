#pragma once
// Signals that end a program or ask it to save, as questions that a training loop asks between its steps.

namespace zero::tool {

/// From now on the first SIGINT, SIGTERM or SIGHUP is only noted; the next one ends the program at once.
/// SIGUSR1 is noted each time. A limit on file sizes gives an error where it is met instead of ending the
/// program.
void watch_stop_signals();

/// From now on writing to a pipe that nobody reads any more is an error where it happens, and does not end
/// the program or what it starts: `zero train CONFIG | tee log` goes on, and saves, when tee is gone.
void outlive_readers();

/// The signal that came, or 0.
int stop_signal();

/// True if SIGUSR1 came since it was asked last.
bool save_requested();

}  // namespace zero::tool
