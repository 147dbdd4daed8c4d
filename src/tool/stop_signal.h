#pragma once
// Signals that end a program, as a question that a training loop asks between its steps.

namespace zero::tool {

/// From now on the first SIGINT, SIGTERM or SIGHUP is only noted; the next one ends the program at once. A
/// limit on file sizes gives an error where it is met instead of ending the program.
void watch_stop_signals();

/// The signal that came, or 0.
int stop_signal();

}  // namespace zero::tool
