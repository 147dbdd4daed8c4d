#pragma once
// The values of a SavedModel, wherever they are: any rank reads any range of any parameter.

#include <cstdint>
#include <map>
#include <memory>
#include <string>

#include "zero/checkpoint.h"
#include "zero/engine.h"
#include "zero/load_model.h"

namespace zero::training {

struct SavedValues {
  std::shared_ptr<const InitialValues> values;  // of all parameters
  // Frozen ones that a checkpoint leaves out and that are read from the directory training began with: the
  // fingerprint (checkpoint/left_out.h) that each must have in the compute type.
  std::map<std::string, uint64_t> left_out = {};
  std::shared_ptr<const CheckpointReader> reader = {};  // null: a model directory, which has no checksums

  /// Of a parameter in a checkpoint: reads it and compares its checksums, which a mapping does not. Throws
  /// as CheckpointReader::check.
  void check(const std::string& name) const;

  /// Throws Config, naming the parameter, unless `fingerprint` is the one it was trained with.
  void require_same(const SavedModel& saved, const std::string& name, uint64_t fingerprint) const;
};

/// Reads names and shapes only, and checks them. Throws as load_model().
SavedValues values_of(const SavedModel& saved);

}  // namespace zero::training
