#pragma once
// What an engine is made of. The public class is a thin front of it.

#include <exception>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/sharded_model.h"
#include "zero/engine.h"

namespace zero::detail {

class SaveJob;

/// Lets a parameter's hook find the engine, and notice that it is gone.
struct HookLink {
  EngineState* state;
};

struct EngineState {
  EngineState(ModelParameters parameters, const OptimizerSpec& optimizer, const EngineOptions& options,
              Mesh mesh);
  ~EngineState();
  EngineState(const EngineState&) = delete;
  EngineState& operator=(const EngineState&) = delete;

  bool at_boundary() const { return micro_step + 1 >= model.options.accumulation_steps; }
  void require_step_not_due() const;
  /// Rethrows what a scope's destructor had to keep to itself.
  void rethrow_deferred();
  /// After an error in forward or backward: tells the other ranks, forgets the pass.
  void fail_pass(const char* reason) noexcept;
  double rate() const;

  ShardedModel model;
  double base_rate;
  int micro_step = 0;  // backwards since the last step
  int64_t steps = 0, skipped_steps = 0;
  double waited_s = 0;
  int64_t loaded_bytes = 0;
  std::exception_ptr deferred;
  std::shared_ptr<HookLink> link;
  std::unique_ptr<SaveJob> saving;  // in the background
};

/// One call of the engine's: what it waits for others counts as the engine's, and a trace shows it.
class EngineCall {
 public:
  EngineCall(EngineState& state, Trace::Row row, std::string_view name)
      : state_(state),
        waited_before_s_(state.model.mesh.waited_s()),
        span_(state.model.mesh.trace(), row, name) {}
  ~EngineCall() { state_.waited_s += state_.model.mesh.waited_s() - waited_before_s_; }
  EngineCall(const EngineCall&) = delete;
  EngineCall& operator=(const EngineCall&) = delete;

 private:
  EngineState& state_;
  double waited_before_s_;
  TraceScope span_;
};

// engine_save.cpp
struct SaveOptions {
  std::string metadata;
  int keep_last = 0;
  std::string frozen_from;  // not empty: frozen parameters are left out
};
std::filesystem::path save(EngineState& state, const std::filesystem::path& directory,
                           const SaveOptions& options);
void begin_save(EngineState& state, const std::filesystem::path& directory, const SaveOptions& options);
std::optional<std::filesystem::path> finish_save(EngineState& state, bool wait);
// engine_load.cpp
std::string load(EngineState& state, const std::filesystem::path& checkpoint);

}  // namespace zero::detail
