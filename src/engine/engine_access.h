#pragma once
// Engines of a part of a module, and backwards in other portions than micro-batches: what a pipeline needs.

#include <functional>
#include <memory>
#include <vector>

#include "engine/engine_state.h"

namespace zero::detail {

/// What an engine is made anew from.
struct RemadeFrom {
  ModelParameters parameters;
  OptimizerSpec optimizer;
  Mesh mesh;
  double base_rate;
  double waited_s;
};

struct EngineAccess {
  /// An engine over these parameters, which need not be all of a module's. Collective.
  static std::unique_ptr<Engine> make(ModelParameters parameters, const OptimizerSpec& optimizer,
                                      const EngineOptions& options, const Mesh& mesh);
  static EngineState& state(Engine& engine) { return *engine.state_; }
  /// Makes what the engine is made of anew, with other options. The old is gone first, with all its values.
  /// Where this throws the engine can only be remade or destroyed. Collective.
  static void remake(Engine& engine, const EngineOptions& options, const RemadeFrom& from);
  /// Throws Usage for a pipeline's engine.
  static RemadeFrom remade_from(const Engine& engine);

  /// What the losses of the step that begins are to be multiplied by: 1 without loss scaling. What is seen of
  /// the step's gradients is divided by it again. The same on all ranks of a mesh.
  static double scale_losses(Engine& engine);

  /// Runs `backward`, which may take autograd over any part of what forwards have recorded since the last
  /// step; `outputs` are where it begins. What arrives at parameters is added to this rank's sums, and sent
  /// by finish() alone: for plans that reduce once. A parameter's portions must come in the order of their
  /// micro-batches, for the bits of one rank's accumulation.
  static void accumulate(Engine& engine, const std::vector<at::Tensor>& outputs,
                         const std::function<void()>& backward);
  /// After the last portion: adds gradients from elsewhere (by parameter, as EngineState numbers them), then
  /// reduces the sums over "dp". step() is due afterwards. Collective.
  static void finish(Engine& engine, const std::vector<std::pair<int, at::Tensor>>& from_elsewhere);
};

}  // namespace zero::detail
