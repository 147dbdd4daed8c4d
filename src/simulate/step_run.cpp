#include "simulate/step_run.h"

#include <ATen/ops/zeros.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <memory>
#include <utility>

#include "plan/config_tiers.h"
#include "train/training_model.h"
#include "zero/error.h"
#include "zero/from_config.h"
#include "zero/initial_values.h"
#include "zero/language_model.h"
#include "zero/model_shape.h"
#include "zero/model_spec.h"

namespace zero::simulate {
namespace {

/// Nobody looks at the values of a device with shapes only.
class NoValues final : public InitialValues {
 public:
  bool holds(const std::string&) const override { return true; }
  void read(const std::string&, const BoxRange&, at::Tensor) const override {}
};

EngineOptions engine_options(const Config& config, const Mesh& mesh, bool without_values) {
  EngineOptions options = engine_options_of(config, mesh.group("dp").size());
  const RankPlaces places = RankPlaces::of(mesh.group("dp").memories(), mesh.device().is_cpu());
  if (const auto tiers = choose_config_tiers(config, trained_spec(config), options, places, {}))
    use_tiers(options, *tiers);
  if (without_values) options.initial_values = std::make_shared<NoValues>();
  return options;
}

at::Tensor micro_batch(const Config& config, const Mesh& mesh, LanguageModel& model, Engine& engine) {
  const at::Tensor ids = at::zeros({config.train_micro_batch_size, config.data.sequence_length}, at::kLong);
  const at::Tensor tokens = ids.to(mesh.device()), targets = ids.to(mesh.device());
  const at::Tensor loss = engine.forward([&] { return model.loss(tokens, targets); });
  engine.backward(loss);
  return loss.detach().to(at::kDouble);
}

// The loss, and what any rank was told to stop by or to save, on every rank.
void share(const Mesh& mesh, const at::Tensor& loss) {
  const at::Tensor sum = at::zeros({1}, loss.options()), told = at::zeros({2}, loss.options());
  sum[0] = loss;
  Work loss_work = mesh.group("dp").all_reduce(sum, Group::Reduce::Sum, "loss");
  Work told_work = mesh.world().all_reduce(told, Group::Reduce::Max, "stop signal");
  loss_work.wait();
  told_work.wait();
  sum.item<double>();
  told.cpu();
}

void step(const Config& config, const Mesh& mesh, LanguageModel& model, Engine& engine) {
  at::Tensor loss = at::zeros({}, at::TensorOptions(at::kDouble).device(mesh.device()));
  for (int64_t micro = 0; micro < config.gradient_accumulation_steps; ++micro)
    loss += micro_batch(config, mesh, model, engine);
  engine.step();
  share(mesh, loss);
}

constexpr Operation kOperations[] = {Operation::AllGather, Operation::ReduceScatter, Operation::AllReduce,
                                     Operation::Broadcast};

/// What has been counted so far.
struct Counts {
  double end_ns;
  virtual_device::DeviceReport device;
  EngineStats engine;
  std::map<Operation, Traffic> traffic;

  Counts(const Mesh& mesh, const virtual_device::VirtualDevices& devices, const Engine& counted)
      : end_ns(devices.simulated_ns()), device(devices.report()), engine(counted.stats()) {
    const Mesh::Blocks blocks = mesh.split("dp", counted.plan().shard_ranks);  // made by the engine
    for (const Operation operation : kOperations)
      for (const Group& group : {mesh.world(), mesh.group("dp"), blocks.inner, blocks.outer}) {
        const Traffic more = group.traffic(operation);
        Traffic& sum = traffic[operation];
        sum = {sum.calls + more.calls, sum.elements + more.elements, sum.bytes + more.bytes};
      }
  }
};

void put_difference(const Counts& before, const Counts& after, StepFigures& figures) {
  using virtual_device::passed_ns;
  figures.step_ns = passed_ns(before.end_ns, after.end_ns);
  figures.compute_ns = passed_ns(before.device.compute_ns, after.device.compute_ns);
  figures.copies_ns = passed_ns(before.device.copy_in_ns + before.device.copy_out_ns,
                                after.device.copy_in_ns + after.device.copy_out_ns);
  figures.copied_in_bytes = after.device.copied_in_bytes - before.device.copied_in_bytes;
  figures.copied_out_bytes = after.device.copied_out_bytes - before.device.copied_out_bytes;
  figures.communication_ns = after.device.communication_ns;
  figures.exposed_ns = after.device.exposed_ns;
  figures.flops = after.device.flops - before.device.flops;
  figures.kernels = after.device.kernels - before.device.kernels;
  figures.host_reads = after.device.host_reads - before.device.host_reads;
  for (const auto& [operation, sum] : after.traffic) {
    const Traffic& less = before.traffic.at(operation);
    figures.traffic[operation] = {sum.calls - less.calls, sum.elements - less.elements,
                                  sum.bytes - less.bytes};
  }
  figures.all_gather_elements = after.engine.all_gather_elements - before.engine.all_gather_elements;
  figures.reduce_scatter_elements =
      after.engine.reduce_scatter_elements - before.engine.reduce_scatter_elements;
  figures.all_reduce_elements = after.engine.all_reduce_elements - before.engine.all_reduce_elements;
}

// Frozen units that stay resident are there from the second step on only.
int steps_until_steady(const Plan& plan) {
  const bool all_trained = std::all_of(plan.units.begin(), plan.units.end(),
                                       [](const UnitLayout& unit) { return unit.trainable; });
  return all_trained ? 2 : 3;
}

StepFigures run(const Config& config, const Mesh& mesh, virtual_device::VirtualDevices& devices,
                const StepRunOptions& options) {
  const std::shared_ptr<LanguageModel> model = training::training_model(config);
  Engine engine(*model, optimizer_of(config), engine_options(config, mesh, options.without_values), mesh);
  devices.synchronize();
  devices.reset_peaks();
  const int steps = options.steps > 0 ? options.steps : steps_until_steady(engine.plan());
  StepFigures figures;
  figures.used_before_bytes = devices.report().used_bytes;
  for (int number = 1; number <= steps; ++number) {
    if (number == steps) devices.begin_measure();
    const Counts before(mesh, devices, engine);
    step(config, mesh, *model, engine);
    devices.synchronize();
    if (number == steps) put_difference(before, Counts(mesh, devices, engine), figures);
  }
  figures.memory = devices.report();
  figures.order = engine.schedule();
  figures.plan = engine.plan();
  return figures;
}

}  // namespace

StepFigures run_steps(const Config& config, const Mesh& mesh, virtual_device::VirtualDevices& devices,
                      const StepRunOptions& options) {
  require(options.steps >= 0, ErrorKind::Config, "steps",
          "expected at least 1, or 0 for as many as it takes, got " + std::to_string(options.steps));
  try {
    return run(config, mesh, devices, options);
  } catch (const c10::OutOfMemoryError& error) {
    fail(ErrorKind::Config, "rank " + std::to_string(mesh.rank()) + " of " + std::to_string(mesh.size()),
         error.what_without_backtrace(), "use more ranks, a higher stage or smaller micro-batches");
  }
}

}  // namespace zero::simulate
