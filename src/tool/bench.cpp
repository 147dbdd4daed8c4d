// zero bench step: whole training steps, timed, beside forward and backward alone.
#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <ATen/ops/randint.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/nn/module.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <fstream>
#include <iostream>
#include <nlohmann/json.hpp>
#include <optional>
#include <thread>

#include "bench_model.h"
#include "ranks.h"
#include "verbs.h"
#include "zero/compute_threads.h"
#include "zero/cpu_allocator.h"
#include "zero/engine.h"
#include "zero/error.h"
#include "zero/fast_operators.h"
#include "zero/lazy.h"
#include "zero/trace_file.h"

namespace zero::tool {
namespace {

using Clock = std::chrono::steady_clock;
using nlohmann::ordered_json;

struct BenchArguments {
  std::string model = "gpt2", dtype = "bf16", backend = "auto", trace;
  int stage = 3, ranks = 2, threads = 0, batch = 1, sequence = 256, steps = 8, warmup = 2, accumulation = 1;
  int64_t bucket_numel = 0;
  bool plain = false, alone = false, beside_alone = false, json = false, private_parameters = false,
       plain_allocator = false, bind = false;
  uint64_t seed = 1234;
};

struct Micro {
  at::Tensor tokens, targets;
};

double mebibytes(const char* file, const std::string& key) {
  std::ifstream in(file);
  for (std::string line; std::getline(in, line);)
    if (line.starts_with(key)) return std::stod(line.substr(key.size())) / 1024;
  return 0;
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const size_t middle = values.size() / 2;
  return values.size() % 2 == 1 ? values[middle] : (values[middle - 1] + values[middle]) / 2;
}

/// CPU seconds that this process has used.
double cpu_seconds() { return static_cast<double>(std::clock()) / CLOCKS_PER_SEC; }

/// CPU seconds that all cores together have spent not idle.
double busy_seconds() {
  std::ifstream in("/proc/stat");
  std::string name;
  double user = 0, nice = 0, system = 0, idle = 0, wait = 0, irq = 0, soft = 0, steal = 0;
  in >> name >> user >> nice >> system >> idle >> wait >> irq >> soft >> steal;
  return (user + nice + system + irq + soft + steal) / static_cast<double>(sysconf(_SC_CLK_TCK));
}

/// Forward and backward with gradients thrown away: what a step costs without any of our work. Of a plain
/// model by LibTorch's operators, of ours by ours.
class Alone {
 public:
  Alone(BenchModel model, at::ScalarType dtype, bool plain) : model_(std::move(model)), plain_(plain) {
    materialize(*model_.module);
    model_.module->to(dtype);
  }
  double step(const std::vector<Micro>& micros) {
    std::optional<FastOperators> fast;
    if (!plain_) fast.emplace();
    double loss = 0;
    for (const Micro& micro : micros) {
      at::Tensor value = model_.loss(micro.tokens, micro.targets);
      torch::autograd::backward({value}, {});
      for (at::Tensor& parameter : model_.module->parameters()) parameter.mutable_grad().reset();
      loss += value.item<double>();
    }
    return loss / static_cast<double>(micros.size());
  }

 private:
  BenchModel model_;
  bool plain_;
};

class Trained {
 public:
  Trained(BenchModel model, const BenchArguments& arguments, at::ScalarType dtype, const Mesh& mesh)
      : model_(std::move(model)), engine_(*model_.module, optimizer(), options(arguments, dtype), mesh) {}
  double step(const std::vector<Micro>& micros) {
    double loss = 0;
    for (const Micro& micro : micros) {
      at::Tensor value = engine_.forward([&] { return model_.loss(micro.tokens, micro.targets); });
      engine_.backward(value);
      loss += value.item<double>();
    }
    engine_.step();
    return loss / static_cast<double>(micros.size());
  }
  const Engine& engine() const { return engine_; }

 private:
  static OptimizerSpec optimizer() {
    return AdamW{.lr = 1e-4, .beta1 = 0.9, .beta2 = 0.95, .weight_decay = 0.1};
  }
  static EngineOptions options(const BenchArguments& arguments, at::ScalarType dtype) {
    EngineOptions options{
        .stage = arguments.stage, .dtype = dtype, .accumulation_steps = arguments.accumulation};
    options.gradient_clipping = 1;
    options.broadcast_initial_values = arguments.stage == 0;  // all ranks draw from one seed
    options.share_parameters = !arguments.private_parameters;
    if (arguments.bucket_numel > 0) options.reduce_bucket_numel = arguments.bucket_numel;
    return options;
  }
  BenchModel model_;
  Engine engine_;
};

struct Timings {
  std::vector<double> seconds, losses;
  std::vector<double> alone_seconds;  // of the forward and backward alone after each step; maybe empty
  double pss_mib = 0;                 // proportional, the most between steps
  double shared_mib = 0;              // what resident has beyond proportional, after the last step
  double other_cpu = 0;
  double first_step_at = 0;  // Unix time of its beginning
};

std::vector<Micro> draw(const BenchArguments& arguments, int64_t vocabulary, at::Generator& generator) {
  std::vector<Micro> micros;
  for (int i = 0; i < arguments.accumulation; ++i) {
    at::Tensor data =
        at::randint(0, vocabulary, {arguments.batch, arguments.sequence + 1}, generator, at::kLong);
    micros.push_back({data.narrow(1, 0, arguments.sequence).contiguous(),
                      data.narrow(1, 1, arguments.sequence).contiguous()});
  }
  return micros;
}

/// Seconds from the first rank's beginning to the last one's end.
template <class Work>
double seconds_of(const Group& world, const Work& work) {
  world.barrier("begin");
  const auto began = Clock::now();
  work();
  world.barrier("end");
  return std::chrono::duration<double>(Clock::now() - began).count();
}

/// `alone`, if there is one, takes its turn after every step, on the same tokens.
template <class Step>
Timings time_steps(const BenchArguments& arguments, const Mesh& mesh, int64_t vocabulary, const Step& step,
                   Alone* alone = nullptr) {
  at::Generator generator = at::globalContext().defaultGenerator(at::kCPU).clone();
  generator.set_current_seed(arguments.seed + 1 + static_cast<uint64_t>(mesh.rank()));
  const Group world = mesh.world();
  Timings timings;
  double cpu = 0, busy = 0;
  Clock::time_point begin;
  for (int i = 0; i < arguments.steps; ++i) {
    if (i == arguments.warmup) {
      cpu = cpu_seconds();
      busy = busy_seconds();
      begin = Clock::now();
    }
    const std::vector<Micro> micros = draw(arguments, vocabulary, generator);
    world.barrier("ready");
    if (i == 0)
      timings.first_step_at =
          std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
    timings.seconds.push_back(seconds_of(world, [&] { timings.losses.push_back(step(micros)); }));
    if (alone != nullptr) timings.alone_seconds.push_back(seconds_of(world, [&] { alone->step(micros); }));
    timings.pss_mib = std::max(timings.pss_mib, mebibytes("/proc/self/smaps_rollup", "Pss:"));
  }
  timings.shared_mib =
      mebibytes("/proc/self/smaps_rollup", "Rss:") - mebibytes("/proc/self/smaps_rollup", "Pss:");
  at::Tensor own = at::tensor(cpu_seconds() - cpu, at::kDouble).view({1});
  world.all_reduce(own, Group::Reduce::Sum, "cpu time").wait();
  const double wall = std::chrono::duration<double>(Clock::now() - begin).count();
  timings.other_cpu = std::max(0.0, busy_seconds() - busy - own.item<double>()) / wall;
  return timings;
}

/// Of this process before the model is built: resident, and of it not pages of files.
struct BaseMemory {
  double resident_mib, own_mib;
};

double mebibytes_of(int64_t bytes) { return static_cast<double>(bytes) / (1 << 20); }

/// What this process has resident beside its tensors: pages of its programs, and memory of its own outside
/// the range that the allocator keeps for tensors (what oneDNN compiles, autograd's graph), at least what it
/// had before the model.
double without_tensors(const BaseMemory& base, const CpuAllocatorStats& tensors) {
  const double own = mebibytes("/proc/self/status", "RssAnon:") - mebibytes_of(tensors.span_bytes);
  const bool told_apart = tensors.span_bytes > 0;
  return (told_apart ? std::max(base.own_mib, own) : base.own_mib) +
         mebibytes("/proc/self/status", "RssFile:");
}

double rounded(double value, int digits) {
  const double scale = std::pow(10, digits);
  return std::round(value * scale) / scale;
}

/// One figure of every rank, in rank order.
std::vector<double> from_all(const Mesh& mesh, double value) {
  at::Tensor all = at::zeros({mesh.size()}, at::kDouble);
  all[mesh.rank()] = value;
  mesh.world().all_reduce(all, Group::Reduce::Sum, "figures").wait();
  return {all.data_ptr<double>(), all.data_ptr<double>() + mesh.size()};
}

void report(const BenchArguments& arguments, const Mesh& mesh, const BenchModel& model,
            const Timings& timings, const BaseMemory& base_memory, const Engine* engine) {
  std::vector<double> losses = timings.losses;
  for (double& loss : losses) {
    at::Tensor sum = at::tensor(loss, at::kDouble).view({1});
    mesh.world().all_reduce(sum, Group::Reduce::Sum, "loss").wait();
    loss = sum.item<double>() / mesh.size();
  }
  auto whole = [&](double value) {
    std::vector<int64_t> result;
    for (double v : from_all(mesh, value)) result.push_back(std::llround(v));
    return result;
  };
  const CpuAllocatorStats tensors = cpu_allocator_stats();  // zeros with --malloc
  const double peak = mebibytes("/proc/self/status", "VmHWM:");
  const auto peaks = whole(peak), pss = whole(timings.pss_mib), peak_pss = whole(peak - timings.shared_mib),
             base = whole(base_memory.resident_mib), process = whole(without_tensors(base_memory, tensors));
  if (mesh.rank() != 0) return;
  const std::vector<double> timed(timings.seconds.begin() + arguments.warmup, timings.seconds.end());
  const double step_s = median(timed);
  const double tokens =
      static_cast<double>(mesh.size()) * arguments.batch * arguments.sequence * arguments.accumulation;
  ordered_json record = {{"peer", "zero.cpp"},
                         {"mode", arguments.alone ? "alone" : "zero" + std::to_string(arguments.stage)},
                         {"plain", arguments.plain},
                         {"model", arguments.model},
                         {"params", model.parameters},
                         {"ranks", mesh.size()},
                         {"threads", at::get_num_threads()},
                         {"batch", arguments.batch},
                         {"seq", arguments.sequence},
                         {"dtype", arguments.dtype},
                         {"ckpt", 0},
                         {"grad_accum", arguments.accumulation},
                         {"steps", arguments.steps},
                         {"step_s", rounded(step_s, 4)},
                         {"step_s_min", rounded(*std::min_element(timed.begin(), timed.end()), 4)},
                         {"tokens_per_s", rounded(tokens / step_s, 1)},
                         {"peak_rss_mib", peaks},
                         {"pss_mib", pss},
                         {"peak_pss_mib", peak_pss},
                         {"base_rss_mib", base},
                         {"other_cpu", rounded(timings.other_cpu, 2)},
                         {"first_step_at", rounded(timings.first_step_at, 3)},
                         {"loss_first", rounded(losses.front(), 5)},
                         {"loss", rounded(losses.back(), 5)}};
  record["tensor_peak_mib"] = std::llround(mebibytes_of(tensors.peak_bytes));  // rank 0's
  record["tensor_span_mib"] = std::llround(mebibytes_of(tensors.span_bytes));
  record["process_mib"] = process[0];
  if (!timings.alone_seconds.empty()) {
    const std::vector<double> alone(timings.alone_seconds.begin() + arguments.warmup,
                                    timings.alone_seconds.end());
    record["alone_s"] = rounded(median(alone), 4);
    record["alone_s_min"] = rounded(*std::min_element(alone.begin(), alone.end()), 4);
  }
  if (engine != nullptr) {
    record["plan_mib"] = std::llround(mebibytes_of(engine->plan().rank.resident_bytes()));
    record["waited_s"] = rounded(engine->stats().waited_s / arguments.steps, 4);  // a step, rank 0
  }
  if (arguments.json) {
    std::cout << record.dump() << "\n";
    return;
  }
  std::cout << record["mode"].get<std::string>() << (arguments.plain ? " plain " : " ") << arguments.model
            << ": " << step_s << " s a step (median of " << timed.size() << "), " << record["tokens_per_s"]
            << " tokens/s, peak resident " << peaks[0] << " MiB a rank, proportional " << pss[0] << " MiB\n";
  if (record.contains("alone_s"))
    std::cout << "forward and backward alone, in turn with it: " << record["alone_s"] << " s\n";
}

int bench_here(const BenchArguments& arguments, const Rendezvous& job) {
  const int cores = static_cast<int>(std::thread::hardware_concurrency());
  if (arguments.bind) bind_to_cores(job.local_rank, job.local_size);
  prepare_compute_threads(arguments.threads > 0 ? arguments.threads : std::max(1, cores / job.local_size));
  if (!arguments.plain_allocator) use_training_allocator();
  MeshOptions options;
  options.transport = arguments.backend;
  if (!arguments.trace.empty()) options.trace = std::make_shared<Trace>();
  const Mesh mesh = Mesh::join(job, options);
  try {
    const BaseMemory base{.resident_mib = mebibytes("/proc/self/status", "VmRSS:"),
                          .own_mib = mebibytes("/proc/self/status", "RssAnon:")};
    const auto dtype = arguments.dtype == "bf16" ? at::kBFloat16 : at::kFloat;
    at::manual_seed(arguments.seed);
    BenchModel model = make_bench_model(arguments.model, arguments.plain, std::max(1024, arguments.sequence));
    if (arguments.alone) {
      Alone alone(model, dtype, arguments.plain);
      const Timings timings = time_steps(arguments, mesh, model.vocabulary,
                                         [&](const auto& micros) { return alone.step(micros); });
      report(arguments, mesh, model, timings, base, nullptr);
    } else {
      Trained trained(model, arguments, dtype, mesh);
      std::optional<Alone> alone;
      if (arguments.beside_alone)
        alone.emplace(make_bench_model(arguments.model, arguments.plain, std::max(1024, arguments.sequence)),
                      dtype, arguments.plain);
      const Timings timings = time_steps(
          arguments, mesh, model.vocabulary, [&](const auto& micros) { return trained.step(micros); },
          alone ? &*alone : nullptr);
      report(arguments, mesh, model, timings, base, &trained.engine());
    }
    if (!arguments.trace.empty()) write_trace(mesh, arguments.trace);
  } catch (const std::exception& error) {
    mesh.report_failure(error.what());
    throw;
  }
  return 0;
}

}  // namespace

int run_bench(int argc, char** argv) {
  BenchArguments arguments;
  CLI::App app(
      "zero bench step [OPTIONS]\n"
      "Trains a GPT-2 on random tokens and times whole steps: forward, backward, clipping, AdamW. Every step "
      "begins\n"
      "and ends with a barrier; the median leaves out the warm-up.");
  CLI::App* step = app.add_subcommand("step", "time training steps");
  app.require_subcommand(1);
  step->add_option("--model", arguments.model, "tiny or a name of the configuration's model.name")
      ->capture_default_str();
  step->add_option("--stage", arguments.stage, "ZeRO stage")->check(CLI::Range(0, 3))->capture_default_str();
  step->add_option("-n,--ranks", arguments.ranks, "ranks on this host")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  step->add_option("--threads", arguments.threads, "compute threads of a rank [cores / ranks]")
      ->check(CLI::PositiveNumber);
  step->add_option("--batch", arguments.batch, "sequences in a micro-batch")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  step->add_option("--seq", arguments.sequence, "tokens in a sequence")
      ->check(CLI::Range(1, 1 << 20))
      ->capture_default_str();
  step->add_option("--steps", arguments.steps, "steps, the warm-up among them")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  step->add_option("--warmup", arguments.warmup, "steps that are not timed")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  step->add_option("--grad-accum", arguments.accumulation, "micro-batches a step")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  step->add_option("--dtype", arguments.dtype, "of parameters and computation")
      ->check(CLI::IsMember({"bf16", "fp32"}))
      ->capture_default_str();
  step->add_option("--backend", arguments.backend, "auto, shm or gloo")->capture_default_str();
  step->add_option("--bucket", arguments.bucket_numel, "elements of a gradient bucket")
      ->check(CLI::PositiveNumber);
  step->add_option("--seed", arguments.seed, "of weights and tokens")->capture_default_str();
  step->add_flag("--plain", arguments.plain, "GPT-2 from torch::nn modules instead of ours");
  step->add_flag("--alone", arguments.alone, "forward and backward only: no engine, gradients thrown away");
  step->add_flag("--beside-alone", arguments.beside_alone,
                 "after every step, time forward and backward alone too: more memory, but one run")
      ->excludes("--alone");
  step->add_flag("--private", arguments.private_parameters, "ranks keep gathered parameters of their own");
  step->add_flag("--bind", arguments.bind, "keep each rank on its part of the cores");
  step->add_flag("--malloc", arguments.plain_allocator, "the C library's allocator instead of ours");
  step->add_option("--trace", arguments.trace, "write a timeline of all ranks to this file");
  step->add_flag("--json", arguments.json, "one line of JSON");
  if (!parse(app, argc, argv)) return 0;
  require(arguments.warmup < arguments.steps, ErrorKind::Config, "--warmup",
          "expected fewer than the " + std::to_string(arguments.steps) + " steps");

  const Ranks ranks = ranks_of(started_by_launcher() ? 0 : arguments.ranks);
  if (!ranks.starts) return bench_here(arguments, ranks.job);
  return launch_self(ranks.ranks, argc, argv);
}

}  // namespace zero::tool
