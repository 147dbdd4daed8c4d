#pragma once
// How to train on own text: the configuration that `zero fit` writes, from what it was given and what it
// measured.

#include <cstdint>
#include <string>

#include "fit_text.h"
#include "zero/config.h"

namespace zero::tool {

struct FitRequest {
  std::string model;         // "tiny", "small", "gpt2", a model directory of Hugging Face's; "": by the time
  double minutes = 5;        // of training, evaluations and samples included
  int64_t steps = 0;         // instead of minutes; 0: as many as they hold
  int64_t memory_bytes = 0;  // of a rank; 0: not bounded
  int ranks = 1;
  std::string out;  // run directory
};

/// Throws Config for a model that is neither a size nor a model directory.
void check_fit_model(const std::string& model);

/// A run of so many steps, resolved for the ranks. `size` as FitRequest::model, not "". Throws as resolve(),
/// and Config where a rank needs more than memory_bytes.
Config fit_config(const FitRequest& request, const std::string& size, const FitText& text, int64_t steps);

/// The size for so many tokens: larger ones learn more from each, and see fewer. `tokens`: what the smallest
/// trains on in the time there is.
std::string suitable_model(double tokens);

}  // namespace zero::tool
