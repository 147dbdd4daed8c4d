#pragma once
// Frozen parameters that a checkpoint leaves out, from the model directory that training began with.

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "checkpoint/left_out.h"
#include "hf/weights.h"
#include "zero/config.h"
#include "zero/plan.h"

namespace zero::exporting {

class FrozenFiles {
 public:
  struct Parameter {
    std::string stored;  // its name in the files
    std::vector<int64_t> shape;
    uint64_t fingerprint;
  };

  /// Reads names and shapes of `directory`. `config` and `model`: of the run, `place`: its checkpoint. Throws
  /// Config for the files of another model, Corrupt for a checkpoint that leaves out what the model does not
  /// have, Io.
  FrozenFiles(const std::filesystem::path& directory, const checkpoint::LeftOut& left_out,
              const Config& config, const ModuleSpec& model, const std::string& place);

  /// By their names in the model.
  const std::map<std::string, Parameter>& parameters() const { return parameters_; }
  /// The type they were trained with, in which values are handed out.
  Dtype dtype() const { return dtype_; }

  /// Elements [begin, begin + numel), appended to `out`.
  void read(const std::string& name, int64_t begin, int64_t numel, std::vector<std::byte>& out) const;
  /// Throws Config unless all elements of it together have this fingerprint.
  void require_same(const std::string& name, uint64_t fingerprint) const;

 private:
  hf::Weights weights_;
  std::string place_;
  Dtype dtype_;
  std::map<std::string, Parameter> parameters_;
};

}  // namespace zero::exporting
