#pragma once
// A page about runs: one HTML file that loads nothing.

#include <string>
#include <vector>

#include "report/run_record.h"

namespace zero::report {

/// What the page shows of a run beside its record.
struct RunOnPage {
  RunRecord record;
  std::string plan;  // text; empty: not shown
};

/// Curves of all runs over each other, a table of what they came to, their events, plans and configurations.
/// Names and texts of runs may hold anything. Throws Config for no runs.
std::string page(const std::vector<RunOnPage>& runs);

}  // namespace zero::report
