// zero bench step: whole training steps, timed, beside forward and backward alone.
#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <ATen/ops/randint.h>
#include <c10/core/CachingDeviceAllocator.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <fstream>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "bench_device.h"
#include "bench_disk.h"
#include "bench_options.h"
#include "bench_steps.h"
#include "device.h"
#include "median.h"
#include "ranks.h"
#include "train/trace_file.h"
#include "verbs.h"
#include "zero/activations.h"
#include "zero/compute_threads.h"
#include "zero/cpu_allocator.h"
#include "zero/cpu_operators.h"
#include "zero/engine.h"
#include "zero/error.h"

namespace zero::tool {
namespace {

using Clock = std::chrono::steady_clock;
using nlohmann::ordered_json;

double mebibytes(const char* file, const std::string& key) {
  std::ifstream in(file);
  for (std::string line; std::getline(in, line);)
    if (line.starts_with(key)) return std::stod(line.substr(key.size())) / 1024;
  return 0;
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

/// A step on a virtual device.
struct DeviceStep {
  DeviceFigures figures;
  double exposed_ms = 0;
};

struct Timings {
  std::vector<std::vector<double>> seconds;  // of each that takes its turn, a step each
  std::vector<double> losses;                // of the first
  double pss_mib = 0;                        // proportional, the most between steps
  double shared_mib = 0;                     // what resident has beyond proportional, after the last step
  double other_cpu = 0;
  double first_step_at = 0;              // Unix time of its beginning
  std::vector<DeviceStep> device_steps;  // of a virtual device, this rank's
};

std::vector<Micro> draw(const BenchArguments& arguments, int64_t vocabulary, at::Generator& generator,
                        at::Device device) {
  std::vector<Micro> micros;
  for (int i = 0; i < arguments.accumulation; ++i) {
    at::Tensor data =
        at::randint(0, vocabulary, {arguments.batch, arguments.sequence + 1}, generator, at::kLong);
    const auto there = [&](const at::Tensor& part) {
      return device.is_cpu() ? part : part.pin_memory().to(device, /*non_blocking=*/true);
    };
    micros.push_back({there(data.narrow(1, 0, arguments.sequence).contiguous()),
                      there(data.narrow(1, 1, arguments.sequence).contiguous())});
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

double exposed_ns(ToolDevice& device) { return device.devices().report().exposed_ns; }

/// The first of `turns` is the one that counts; the others follow after every step, on the same tokens.
Timings time_steps(const BenchArguments& arguments, const Mesh& mesh,
                   const std::vector<std::unique_ptr<BenchStep>>& turns, ToolDevice& device) {
  at::Generator generator = at::globalContext().defaultGenerator(at::kCPU).clone();
  generator.set_current_seed(arguments.seed + 1 + static_cast<uint64_t>(mesh.group("dp").rank()));
  const Group world = mesh.world();
  Timings timings;
  timings.seconds.resize(turns.size());
  double cpu = 0, busy = 0;
  Clock::time_point begin;
  for (int i = 0; i < arguments.steps; ++i) {
    if (i == arguments.warmup) {
      cpu = cpu_seconds();
      busy = busy_seconds();
      begin = Clock::now();
    }
    const std::vector<Micro> micros =
        draw(arguments, turns[0]->model().shape.vocab_size, generator, mesh.device());
    world.barrier("ready");
    if (device.is_virtual()) device.figures();
    const double exposed_before_ns = device.is_virtual() ? exposed_ns(device) : 0;
    if (i == 0)
      timings.first_step_at =
          std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
    for (size_t turn = 0; turn < turns.size(); ++turn) {
      double loss = 0;
      timings.seconds[turn].push_back(seconds_of(world, [&] { loss = turns[turn]->run(micros); }));
      if (turn == 0) timings.losses.push_back(loss);
      if (turn == 0 && device.is_virtual())
        timings.device_steps.push_back(
            {device.figures(), virtual_device::passed_ns(exposed_before_ns, exposed_ns(device)) / 1e6});
    }
    timings.pss_mib = std::max(timings.pss_mib, mebibytes("/proc/self/smaps_rollup", "Pss:"));
  }
  timings.shared_mib =
      mebibytes("/proc/self/smaps_rollup", "Rss:") - mebibytes("/proc/self/smaps_rollup", "Pss:");
  at::Tensor own = at::tensor(cpu_seconds() - cpu, at::kDouble).view({1}).to(mesh.device());
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

/// What the plan says of a rank's tensors. The model from torch::nn modules needs about what ours does.
int64_t planned_bytes(const Plan& plan, const BenchModel& model, const BenchArguments& arguments) {
  return peak_bytes(plan, activations_of(model, arguments)) + plan.rank.common_bytes;
}

double rounded(double value, int digits) {
  const double scale = std::pow(10, digits);
  return std::round(value * scale) / scale;
}

/// A median and the least of some seconds, without the warm-up's.
void put_seconds(ordered_json& record, const std::string& name, const std::vector<double>& seconds,
                 int warmup) {
  const std::vector<double> timed(seconds.begin() + warmup, seconds.end());
  record[name] = rounded(median(timed), 4);
  record[name + "_min"] = rounded(*std::min_element(timed.begin(), timed.end()), 4);
}

/// One figure of every rank, in rank order.
std::vector<double> from_all(const Mesh& mesh, double value) {
  at::Tensor all = at::zeros({mesh.size()}, at::kDouble);
  all[mesh.rank()] = value;
  all = all.to(mesh.device());
  mesh.world().all_reduce(all, Group::Reduce::Sum, "figures").wait();
  all = all.cpu();
  return {all.data_ptr<double>(), all.data_ptr<double>() + mesh.size()};
}

/// "alone_s", "libtorch_s", "stage_0_s"
std::string field_of(const std::string& beside) {
  const bool is_word =
      beside == kAlone || beside == kOnLibTorch || beside == kInMemory || beside == kKeepingAll;
  return (is_word ? beside : "stage_" + beside) + "_s";
}
std::string said_of(const std::string& beside) {
  if (beside == kInMemory) return "the same with all states in memory";
  if (beside == kOnLibTorch) return "the same on LibTorch's operators";
  if (beside == kKeepingAll) return "the same with nothing recomputed";
  return beside == kAlone ? "forward and backward alone" : "stage " + beside;
}

/// Of a virtual device's steps: the median's time and rank 0's figures.
void put_device(ordered_json& record, const ToolDevice& device, const std::vector<DeviceStep>& steps,
                int warmup) {
  std::vector<double> simulated_s, exposed_s;
  for (const DeviceStep& step : steps) {
    simulated_s.push_back(step.figures.simulated_ms / 1e3);
    exposed_s.push_back(step.exposed_ms / 1e3);
  }
  record["device"] = device.description().name;
  record["simulated_step_s"] = median({simulated_s.begin() + warmup, simulated_s.end()});
  record["exposed_communication_s"] = median({exposed_s.begin() + warmup, exposed_s.end()});
  record["device_peak_bytes"] = steps.back().figures.peak_bytes;
  record["device_peak_bytes_by_purpose"] = steps.back().figures.peak_bytes_by_purpose;
  record["copied_in_bytes"] = steps.back().figures.copied_in_bytes;
  record["copied_out_bytes"] = steps.back().figures.copied_out_bytes;
}

void report(const BenchArguments& arguments, const Mesh& mesh,
            const std::vector<std::unique_ptr<BenchStep>>& turns, const Timings& timings,
            const BaseMemory& base_memory, const ToolDevice& device) {
  const BenchStep& step = *turns[0];
  std::vector<double> losses = timings.losses;
  for (double& loss : losses) {
    at::Tensor sum = at::tensor(loss, at::kDouble).view({1}).to(mesh.device());
    mesh.group("dp").all_reduce(sum, Group::Reduce::Sum, "loss").wait();
    loss = sum.item<double>() / mesh.group("dp").size();
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
  SequentialRate sequential;
  const bool on_disk = step.engine() != nullptr && !step.engine()->stats().disk.transport.empty();
  if (on_disk) {
    EngineOptions options;
    set_offload(options, arguments);
    sequential = sequential_rate(mesh, options.offload);
  }
  if (mesh.rank() != 0) return;
  const double tokens = static_cast<double>(mesh.group("dp").size()) * arguments.batch * arguments.sequence *
                        arguments.accumulation;
  ordered_json record = {{"peer", "zero.cpp"},
                         {"mode", arguments.alone ? "alone" : "zero" + std::to_string(arguments.stage)},
                         {"plain", arguments.plain},
                         {"operators", arguments.operators},
                         {"model", arguments.model},
                         {"params", step.model().parameters},
                         {"ranks", mesh.size()},
                         {"threads", at::get_num_threads()},
                         {"batch", arguments.batch},
                         {"seq", arguments.sequence},
                         {"dtype", arguments.dtype},
                         {"communication", arguments.communication},
                         {"ckpt", arguments.recompute == "all" ? 1 : 0},
                         {"recompute", arguments.recompute},
                         {"grad_accum", arguments.accumulation},
                         {"tensor", arguments.tensor},
                         {"sequence", arguments.cuts_sequence},
                         {"pipeline", arguments.pipeline},
                         {"steps", arguments.steps}};
  if (arguments.pipeline > 1) {
    record["schedule"] = arguments.schedule;
    record["stage_blocks"] = bench_stage_blocks(step.model().shape, arguments);
  }
  put_seconds(record, "step_s", timings.seconds[0], arguments.warmup);
  record["tokens_per_s"] = rounded(tokens / record["step_s"].get<double>(), 1);
  record["peak_rss_mib"] = peaks;
  record["pss_mib"] = pss;
  record["peak_pss_mib"] = peak_pss;
  record["base_rss_mib"] = base;
  record["other_cpu"] = rounded(timings.other_cpu, 2);
  record["first_step_at"] = rounded(timings.first_step_at, 3);
  record["loss_first"] = rounded(losses.front(), 5);
  record["loss"] = rounded(losses.back(), 5);
  record["tensor_peak_mib"] = std::llround(mebibytes_of(tensors.peak_bytes));  // rank 0's
  record["tensor_span_mib"] = std::llround(mebibytes_of(tensors.span_bytes));
  record["process_mib"] = process[0];
  record["kept_mib"] = rounded(mebibytes_of(turns[0]->kept_bytes()), 1);  // rank 0's
  if (!turns[0]->chosen().empty()) record["chosen"] = turns[0]->chosen();
  for (size_t i = 0; i < arguments.beside.size(); ++i) {
    if (arguments.beside[i] == kKeepingAll)
      record["kept_all_mib"] = rounded(mebibytes_of(turns[1 + i]->kept_bytes()), 1);
    put_seconds(record, field_of(arguments.beside[i]), timings.seconds[1 + i], arguments.warmup);
  }
  if (const Engine* const engine = step.engine()) {
    if (arguments.pipeline == 1)  // of a rank without stages
      record["plan_mib"] = std::llround(mebibytes_of(planned_bytes(engine->plan(), step.model(), arguments)));
    record["waited_s"] = rounded(engine->stats().waited_s / arguments.steps, 4);  // a step, rank 0
    if (!step.placement().empty()) {
      record["memory_budget_mib"] = rounded(mebibytes_of(arguments.budget_bytes), 1);
      record["placement"] = step.placement();
    }
    put_offload(record, arguments, *engine, mesh.size(), sequential);
  }
  if (mesh.device().is_cuda()) {
    constexpr auto kAll = static_cast<size_t>(c10::CachingAllocator::StatType::AGGREGATE);
    c10::DeviceAllocator& memory = *c10::getDeviceAllocator(mesh.device().type());
    record["device"] = "cuda";
    record["device_peak_bytes"] = memory.getDeviceStats(mesh.device().index()).allocated_bytes[kAll].peak;
  }
  if (device.is_virtual()) put_device(record, device, timings.device_steps, arguments.warmup);
  if (arguments.json) {
    std::cout << record.dump() << "\n";
    return;
  }
  std::cout << record["mode"].get<std::string>() << (arguments.plain ? " plain " : " ") << arguments.model
            << ": " << record["step_s"] << " s per step (median of " << arguments.steps - arguments.warmup
            << "), " << record["tokens_per_s"] << " tokens/s, peak resident " << peaks[0]
            << " MiB per rank, proportional " << pss[0] << " MiB\n";
  if (on_disk)
    std::cout << "states on disk: " << record["tier_mib"]["disk"] << " MiB a rank, "
              << record["disk_transport"].get<std::string>() << ", " << record["disk_mib_s"] << " MiB/s of "
              << record["sequential_mib_s"] << " MiB/s sequential\n";
  if (!step.placement().empty()) std::cout << step.placement() << "\n";
  if (arguments.offload == "host" && mesh.device().is_cpu())
    std::cout << "states in the host's memory: on CPU that is where they are anyway\n";
  if (device.is_virtual())
    std::cout << "on " << device.description().name << ": " << record["simulated_step_s"]
              << " s per step, of which " << record["exposed_communication_s"]
              << " s exposed communication; peak " << record["device_peak_bytes"] << " bytes\n";
  for (const std::string& what : arguments.beside)
    std::cout << "in turn with it, " << said_of(what) << ": " << record[field_of(what)] << " s\n";
}

int bench_here(const BenchArguments& arguments, const Rendezvous& job, ToolDevice& device) {
  const int cores = static_cast<int>(std::thread::hardware_concurrency());
  if (arguments.bind) bind_to_cores(job.local_rank, job.local_size);
  prepare_compute_threads(arguments.threads > 0 ? arguments.threads : std::max(1, cores / job.local_size));
  if (!arguments.plain_allocator) use_training_allocator();
  MeshOptions options;
  options.transport = arguments.backend;
  options.communication = arguments.communication == "fast" ? Communication::fast : Communication::exact;
  options.axes = {{"pp", arguments.pipeline}, {"dp", -1}, {"tp", arguments.tensor}};
  if (!arguments.trace.empty()) options.trace = std::make_shared<Trace>();
  device.open(options, /*trace=*/true);
  const Mesh mesh = Mesh::join(job, options);
  try {
    const BaseMemory base{.resident_mib = mebibytes("/proc/self/status", "VmRSS:"),
                          .own_mib = mebibytes("/proc/self/status", "RssAnon:")};
    at::manual_seed(arguments.seed);
    std::vector<std::unique_ptr<BenchStep>> turns;
    turns.push_back(make_bench_step(arguments.alone ? kAlone : std::to_string(arguments.stage), arguments,
                                    mesh, recompute_of(arguments)));
    for (const std::string& what : arguments.beside) turns.push_back(make_bench_step(what, arguments, mesh));
    const Timings timings = time_steps(arguments, mesh, turns, device);
    report(arguments, mesh, turns, timings, base, device);
    if (!arguments.trace.empty()) write_trace(mesh, arguments.trace, device.trace_events(mesh));
    return device.is_sound(mesh) ? 0 : 1;
  } catch (const std::exception& error) {
    mesh.report_failure(error.what());
    throw;
  }
}

}  // namespace

int run_bench(int argc, char** argv) {
  BenchArguments arguments;
  CLI::App app(
      "zero bench step|device [OPTIONS]\n"
      "step trains a GPT-2 on random tokens and times whole steps: forward, backward, clipping, AdamW. Every "
      "step "
      "begins\n"
      "and ends with a barrier; the median leaves out the warm-up.\ndevice prints a description of this "
      "machine for "
      "--device virtual:FILE.");
  CLI::App* step = app.add_subcommand("step", "time training steps");
  DeviceArguments device_arguments;
  const CLI::App* const measures = add_bench_device(app, device_arguments);
  app.require_subcommand(1);
  add_bench_options(*step, arguments);
  if (!parse(app, argc, argv)) return 0;
  if (measures->parsed()) return bench_device(device_arguments, argc, argv);
  check_bench(arguments);
  ToolDevice device(arguments.device);
  require(!device.is_virtual() || !arguments.alone, ErrorKind::Config, "--alone",
          "a model without an engine is on the CPU", "leave --device or --alone out");
  require(!device.is_virtual() || arguments.beside.empty(), ErrorKind::Config, "--beside",
          "a virtual device tells the time of one kind of step", "leave --device or --beside out");
  const Ranks ranks = ranks_of(started_by_launcher() ? 0 : arguments.ranks);
  if (!arguments.trace.empty() && ranks.must_check()) check_trace_file(arguments.trace);
  if (!ranks.starts) return bench_here(arguments, ranks.job, device);
  return launch_self(ranks.ranks, argc, argv);
}

}  // namespace zero::tool
