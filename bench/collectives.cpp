// Reduce-scatter and all-gather between the ranks of this host, each beside Gloo and beside the least that
// shared memory can do: every rank reads the others' bytes where they are and writes its output once.
//
//   zero launch --ranks 2 -- collectives_bench [--benchmark_...]
//
// Sizes are of the full tensor. The three take turns; counters are medians: ms, gloo_ms, direct_ms, over_gloo
// = gloo_ms / ms, of_direct = direct_ms / ms. Inputs come from input_tensor(), as the engine's do; outputs
// are private memory.
#include <ATen/ATen.h>
#include <benchmark/benchmark.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <functional>
#include <iostream>

#include "median.h"
#include "mesh/group_parts.h"
#include "stream.h"
#include "zero/compute_threads.h"
#include "zero/cpu_allocator.h"
#include "zero/mesh.h"

namespace zero::bench {
namespace {

using Clock = std::chrono::steady_clock;

/// A barrier of processes in shared memory, so that what is measured is not the library's own barrier.
class SpinBarrier {
 public:
  explicit SpinBarrier(const Group& group)
      : memory_(detail::common_tensor(group, 64, at::kLong, "barrier")), ranks_(group.size()) {}
  void wait() {
    auto* words = memory_.data_ptr<int64_t>();
    std::atomic_ref<int64_t> arrived(words[0]), round(words[32]);
    const int64_t here = round.load();
    if (arrived.fetch_add(1) + 1 == ranks_) {
      arrived.store(0);
      round.store(here + 1);
    }
    while (round.load() == here) __builtin_ia32_pause();
  }

 private:
  at::Tensor memory_;
  int ranks_;
};

struct Job {
  Group shared, gloo;
  SpinBarrier barrier;
};

enum class Kind { ReduceScatter, AllGather };

/// The tensors of one operation: `all` is every rank's input in one mapping, `in` this rank's part of it.
struct Tensors {
  at::Tensor all, in, plain_in, out;
  Tensors(const Group& group, Kind kind, int64_t numel, at::ScalarType dtype) {
    const int64_t part = kind == Kind::AllGather ? numel / group.size() : numel;
    all = detail::common_tensor(group, part * group.size(), dtype, "inputs").view({group.size(), part});
    in = detail::input_tensor(group, part, dtype).fill_(1);
    all[group.rank()].fill_(1);
    plain_in = at::ones({part}, dtype);
    out = kind == Kind::AllGather ? at::empty({numel}, dtype) : at::empty({numel / group.size()}, at::kFloat);
  }
};

void run(const Group& group, Kind kind, const at::Tensor& in, const at::Tensor& out) {
  if (kind == Kind::AllGather)
    group.all_gather(out, in, "bench").wait();
  else
    group.reduce_scatter(out, in, false, "bench").wait();
}

void run_direct(const Group& group, Kind kind, const Tensors& tensors) {
  const int64_t ranks = group.size();
  if (kind == Kind::AllGather) {
    std::memcpy(tensors.out.data_ptr(), tensors.all.data_ptr(), tensors.out.nbytes());
    return;
  }
  const int64_t part = tensors.out.numel();
  std::vector<const void*> rows;
  for (int64_t rank = 0; rank < ranks; ++rank)
    rows.push_back(tensors.all[rank].narrow(0, group.rank() * part, part).data_ptr());
  add_rows(tensors.out.data_ptr<float>(), rows, part, tensors.all.scalar_type() == at::kBFloat16);
}

void measure(benchmark::State& state, Job& job, Kind kind, at::ScalarType dtype, int64_t bytes) {
  const Tensors tensors(job.shared, kind, bytes / static_cast<int64_t>(c10::elementSize(dtype)), dtype);
  std::vector<double> ours, gloo, direct;
  const auto timed = [&](std::vector<double>& times, const std::function<void()>& body) {
    job.barrier.wait();
    const auto began = Clock::now();
    body();
    job.barrier.wait();
    times.push_back(std::chrono::duration<double, std::milli>(Clock::now() - began).count());
  };
  for (auto _ : state) {
    timed(ours, [&] { run(job.shared, kind, tensors.in, tensors.out); });
    state.SetIterationTime(ours.back() / 1e3);
    timed(gloo, [&] { run(job.gloo, kind, tensors.plain_in, tensors.out); });
    timed(direct, [&] { run_direct(job.shared, kind, tensors); });
  }
  state.counters["ms"] = median(ours);
  state.counters["gloo_ms"] = median(gloo);
  state.counters["direct_ms"] = median(direct);
  state.counters["over_gloo"] = median(gloo) / median(ours);
  state.counters["of_direct"] = median(direct) / median(ours);
}

void register_all(Job& job) {
  for (const auto& [kind, word] :
       {std::pair{Kind::ReduceScatter, "reduce_scatter"}, std::pair{Kind::AllGather, "all_gather"}})
    for (const auto& [dtype, type] : {std::pair{at::kFloat, "fp32"}, std::pair{at::kBFloat16, "bf16"}})
      for (const int64_t mebibytes : {1, 4, 16, 64, 256}) {
        const std::string name = std::string(word) + "/" + type + "/MiB:" + std::to_string(mebibytes);
        benchmark::RegisterBenchmark(name.c_str(),
                                     [&job, kind = kind, dtype = dtype, mebibytes](benchmark::State& state) {
                                       measure(state, job, kind, dtype, mebibytes << 20);
                                     })
            ->UseManualTime()
            ->Unit(benchmark::kMillisecond)
            ->Iterations(mebibytes >= 256 ? 7 : 15);
      }
}

/// Of the ranks that measure, one speaks.
class Silent : public benchmark::BenchmarkReporter {
 public:
  bool ReportContext(const Context&) override { return true; }
  void ReportRuns(const std::vector<Run>&) override {}
};

}  // namespace
}  // namespace zero::bench

int main(int argc, char** argv) {
  using namespace zero;
  const Rendezvous place = rendezvous_from_environment();
  if (place.size < 2) {
    std::cerr << "collectives_bench: start it with `zero launch --ranks 2 -- collectives_bench`\n";
    return 2;
  }
  use_training_allocator();
  prepare_compute_threads(1);
  MeshOptions options;
  options.transport = "shm";
  const Mesh mesh = Mesh::join(place, options);
  options.transport = "gloo";
  Rendezvous again = place;
  again.external_store = true;  // the first mesh keeps it
  again.listen_fd = -1;
  const Mesh over_gloo = Mesh::join(again, options);
  bench::Job job{mesh.world(), over_gloo.world(), bench::SpinBarrier(mesh.world())};
  // All ranks run the same benchmarks; one writes files.
  std::vector<char*> arguments;
  for (int i = 0; i < argc; ++i)
    if (mesh.rank() == 0 || !std::string_view(argv[i]).starts_with("--benchmark_out"))
      arguments.push_back(argv[i]);
  int count = static_cast<int>(arguments.size());
  bench::register_all(job);
  benchmark::Initialize(&count, arguments.data());
  bench::Silent silent;
  if (mesh.rank() == 0)
    benchmark::RunSpecifiedBenchmarks();
  else
    benchmark::RunSpecifiedBenchmarks(&silent);
  mesh.world().barrier("end");
}
