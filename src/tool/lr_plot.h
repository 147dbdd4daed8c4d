#pragma once
// A learning-rate schedule as text.

#include <string>

#include "zero/config.h"

namespace zero::tool {

/// The rate of every step of the run (run.steps), as a drawing of 16 rows and at most 96 columns, a column
/// the mean of its steps, and the rates of the first and the last step in figures. The rate is
/// optimizer.params.lr's; groups of parameters scale it. Throws Config.
std::string lr_plot(Config config, int ranks);

}  // namespace zero::tool
