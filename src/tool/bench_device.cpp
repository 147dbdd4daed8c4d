#include "bench_device.h"

#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/zeros.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <iostream>
#include <limits>
#include <thread>

#include "device.h"
#include "ranks.h"
#include "zero/compute_threads.h"
#include "zero/cpu_allocator.h"
#include "zero/engine.h"
#include "zero/error.h"
#include "zero/gpt2.h"
#include "zero/lazy.h"

namespace zero::tool {
namespace {

using virtual_device::DeviceDescription;
using virtual_device::KernelSample;
using DeviceClock = std::chrono::steady_clock;

double nanoseconds_since(DeviceClock::time_point begin) {
  return std::chrono::duration<double, std::nano>(DeviceClock::now() - begin).count();
}

/// A model of which the time of each operator is taken: what training larger ones needs, in small.
struct Probe {
  int64_t width, vocabulary, sequence;
};
constexpr Probe kProbes[] = {{128, 1024, 64}, {384, 8192, 256}, {768, 50257, 256}, {1024, 4096, 512}};
constexpr int kProbeSteps = 4;  // the first is not timed

/// Trains a probe on the mesh's device as `zero bench step` does with LibTorch's operators.
class ProbeTraining {
 public:
  ProbeTraining(const Probe& probe, Dtype dtype, const Mesh& mesh)
      : model_(lazily([&] {
          Gpt2Shape shape{.layers = 2, .width = probe.width, .heads = probe.width / 64};
          shape.vocab_size = probe.vocabulary;
          shape.context_length = probe.sequence;
          shape.dropout = 0;
          return Gpt2(shape);
        })),
        engine_(*model_, AdamW{.lr = 1e-4, .weight_decay = 0.1}, options_of(dtype), mesh) {
    const at::Tensor data = at::randint(0, probe.vocabulary, {1, probe.sequence + 1}, at::kLong);
    tokens_ = data.narrow(1, 0, probe.sequence).contiguous().to(mesh.device());
    targets_ = data.narrow(1, 1, probe.sequence).contiguous().to(mesh.device());
  }

  void step() {
    at::Tensor loss = engine_.forward([&] { return model_->loss(tokens_, targets_); });
    engine_.backward(loss);
    loss.item<float>();
    engine_.step();
  }

 private:
  static EngineOptions options_of(Dtype dtype) {
    EngineOptions options{.stage = 0, .dtype = dtype};
    options.gradient_clipping = 1;
    options.cpu_operators = false;
    return options;
  }

  Gpt2 model_;
  Engine engine_;
  at::Tensor tokens_, targets_;
};

/// Each kernel of a step, at its fastest of the steps.
std::vector<KernelSample> sample(const Probe& probe, Dtype dtype, const Mesh& mesh,
                                 virtual_device::VirtualDevices& devices) {
  ProbeTraining training(probe, dtype, mesh);
  training.step();
  devices.take_samples();
  std::vector<KernelSample> fastest;
  for (int i = 1; i < kProbeSteps; ++i) {
    training.step();
    std::vector<KernelSample> now = devices.take_samples();
    if (fastest.size() != now.size()) {  // the schedule of gathers is still found out
      fastest = std::move(now);
      continue;
    }
    for (size_t k = 0; k < now.size(); ++k) fastest[k].host_ns = std::min(fastest[k].host_ns, now[k].host_ns);
  }
  return fastest;
}

double sum_ns(const std::vector<KernelSample>& samples) {
  double sum = 0;
  for (const KernelSample& sample : samples) sum += sample.host_ns;
  return sum;
}

/// A step on the CPU without a virtual device, at its fastest.
double step_ns(const Probe& probe, Dtype dtype, const Mesh& mesh) {
  constexpr int kSteps = 20;
  ProbeTraining training(probe, dtype, mesh);
  double fastest = std::numeric_limits<double>::infinity();
  for (int i = 0; i < kSteps; ++i) {
    const auto began = DeviceClock::now();
    training.step();
    fastest = std::min(fastest, nanoseconds_since(began));
  }
  return fastest;
}

/// From gathering little and much; of one rank, what copying takes.
virtual_device::Link measure_link(const Mesh& mesh) {
  constexpr int64_t kFew = 1 << 10, kMany = 1 << 22;
  constexpr int kTurns = 8;
  const Group world = mesh.world();
  const auto gather_ns = [&](int64_t numel) {
    const at::Tensor in = at::zeros({numel});
    at::Tensor out = at::zeros({numel * world.size()});
    double fastest = std::numeric_limits<double>::infinity();
    for (int i = 0; i < kTurns; ++i) {
      world.barrier("begin");
      const auto began = DeviceClock::now();
      world.size() > 1 ? world.all_gather(out, in, "gather").wait() : void(out.copy_(in));
      fastest = std::min(fastest, nanoseconds_since(began));
    }
    return fastest / std::max(1, world.size() - 1);
  };
  const double few_ns = gather_ns(kFew), many_ns = std::max(gather_ns(kMany), few_ns + 1);
  return {4.0 * (kMany - kFew) / (many_ns - few_ns) * 1e9, std::llround(few_ns)};
}

/// The fastest of the large ones, of a second.
double best_rate(const std::vector<KernelSample>& samples, Dtype dtype, bool of_products) {
  double best = 0, most = 0;
  const auto counts = [&](const KernelSample& sample) {
    return of_products ? sample.flops > 0 && sample.dtype == dtype : sample.flops == 0;
  };
  for (const KernelSample& sample : samples)
    if (counts(sample)) most = std::max(most, sample.work());
  for (const KernelSample& sample : samples)
    if (counts(sample) && 4 * sample.work() >= most)
      best = std::max(best, sample.work() / std::max(sample.host_ns, 1.0) * 1e9);
  return best;
}

DeviceDescription measure(const Mesh& mesh) {
  // Alone: what other ranks do goes on at the same time and unasked.
  const Mesh own = Mesh::join(Rendezvous{});
  DeviceDescription found;
  found.within_host = found.between_hosts = measure_link(mesh);
  std::map<Dtype, double> whole_ns;
  for (const Dtype dtype : {Dtype::f32, Dtype::bf16}) whole_ns[dtype] = step_ns(kProbes[0], dtype, own);
  std::vector<KernelSample> samples;
  double launch_ns = std::numeric_limits<double>::infinity();
  virtual_device::VirtualDeviceOptions options;
  options.description = ToolDevice("virtual").description();
  options.checks = false;
  options.samples = true;
  virtual_device::VirtualDevices devices(options);
  MeshOptions mesh_options;
  mesh_options.device = devices.device();
  const Mesh there = Mesh::join(Rendezvous{}, mesh_options);
  mesh.world().barrier("probes");
  for (const Dtype dtype : {Dtype::f32, Dtype::bf16})
    for (const Probe& probe : kProbes) {
      const std::vector<KernelSample> more = sample(probe, dtype, there, devices);
      // What the step takes beyond its kernels: operators on their way, views, the graph.
      if (&probe == &kProbes[0])
        launch_ns = std::min(launch_ns, (whole_ns[dtype] - sum_ns(more)) / static_cast<double>(more.size()));
      samples.insert(samples.end(), more.begin(), more.end());
    }
  found.operators = virtual_device::curves_of(samples);
  found.launch_ns = std::llround(std::max(launch_ns, 0.0));
  for (const Dtype dtype : {Dtype::f32, Dtype::bf16})
    found.flops_per_s[dtype] = best_rate(samples, dtype, /*of_products=*/true);
  found.memory_bytes_per_s = best_rate(samples, Dtype::f32, /*of_products=*/false);
  found.host_to_device = found.device_to_host = found.device_to_device = {found.memory_bytes_per_s / 2, 0};
  return found;
}

int measure_here(const DeviceArguments& arguments, const Rendezvous& job) {
  const int cores = static_cast<int>(std::thread::hardware_concurrency());
  prepare_compute_threads(arguments.threads > 0 ? arguments.threads : std::max(1, cores / job.local_size));
  use_training_allocator();
  const Mesh mesh = Mesh::join(job);
  try {
    at::manual_seed(1);
    DeviceDescription found = measure(mesh);
    mesh.world().barrier("measured");
    found.name = "this machine, one of " + std::to_string(job.size) + " ranks with " +
                 std::to_string(at::get_num_threads()) + " threads";
    found.source = "zero bench device, LibTorch's operators";
    found.memory_bytes = ::sysconf(_SC_PHYS_PAGES) * ::sysconf(_SC_PAGESIZE) / job.local_size;
    found.host_computes = true;
    if (mesh.rank() == 0) std::cout << to_text(found);
  } catch (const std::exception& error) {
    mesh.report_failure(error.what());
    throw;
  }
  return 0;
}

}  // namespace

CLI::App* add_bench_device(CLI::App& app, DeviceArguments& arguments) {
  CLI::App* device = app.add_subcommand(
      "device", "measure this machine: prints a description for --device virtual:FILE, as JSON");
  device->add_option("-n,--ranks", arguments.ranks, "ranks that share the machine, measured together")
      ->check(at_least_one())
      ->capture_default_str();
  device->add_option("--threads", arguments.threads, "compute threads of a rank [cores / ranks]")
      ->check(at_least_one());
  return device;
}

int bench_device(const DeviceArguments& arguments, int argc, char** argv) {
  const Ranks ranks = ranks_of(started_by_launcher() ? 0 : arguments.ranks);
  return ranks.starts ? launch_self(ranks.ranks, argc, argv) : measure_here(arguments, ranks.job);
}

}  // namespace zero::tool
