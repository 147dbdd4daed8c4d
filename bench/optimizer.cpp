// Optimizer kernels in GB/s, each in alternation with a loop of the same loads and stores on the same memory.
// Counters: GB/s = what the kernel moves, stream = what that loop moves, of_stream = their ratio.
#include <benchmark/benchmark.h>
#include <sys/mman.h>
#include <time.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <memory>
#include <new>
#include <string>
#include <thread>
#include <vector>

#include "median.h"
#include "optim/kernels/kernels.h"
#include "stream.h"

namespace zero::bench {
namespace {

using kernels::Buffers;
using kernels::Element;
using kernels::KernelSet;

constexpr int64_t kCount = 32 << 20;  // 20 bytes each: far beyond any cache

/// Huge pages, as the engine's slabs have.
template <class T>
struct HugePages {
  using value_type = T;
  static constexpr size_t kPage = size_t{2} << 20;
  T* allocate(size_t count) {
    const size_t bytes = (count * sizeof(T) + kPage - 1) / kPage * kPage;
    void* const memory = std::aligned_alloc(kPage, bytes);
    if (memory == nullptr) throw std::bad_alloc();
    madvise(memory, bytes, MADV_HUGEPAGE);
    return static_cast<T*>(memory);
  }
  void deallocate(T* memory, size_t /*count*/) { std::free(memory); }
};
template <class T>
using Values = std::vector<T, HugePages<T>>;

struct Memory {
  Values<float> master = Values<float>(kCount, 0.5F), gradient = Values<float>(kCount, 1e-3F);
  Values<float> first = Values<float>(kCount, 1e-3F), second = Values<float>(kCount, 1e-6F);
  Values<uint16_t> parameter = Values<uint16_t>(kCount);
  Values<kernels::Remainder> remainder = Values<kernels::Remainder>(kCount);
};

Memory& memory() {
  static const auto owned = std::make_unique<Memory>();
  return *owned;
}

/// Of this thread only: on a busy machine the time that others take is not the kernel's.
double thread_seconds() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

/// Runs work on equal parts of [0, kCount), a thread each; seconds of the slowest.
double split(int threads, const auto& work) {
  std::vector<double> seconds(threads);
  const int64_t part = kCount / threads;
  const auto run = [&](int i) {
    const double start = thread_seconds();
    work(i * part, (i + 1) * part);
    seconds[i] = thread_seconds() - start;
  };
  {
    std::vector<std::jthread> others;
    for (int i = 1; i < threads; ++i) others.emplace_back(run, i);
    run(0);
  }
  return *std::max_element(seconds.begin(), seconds.end());
}

struct Work {
  std::string name;
  int states;
  bool split;  // the master is in two halves
  void (*run)(const KernelSet& set, const Buffers& buffers, int64_t count);
};

void run_adamw(const KernelSet& set, const Buffers& buffers, int64_t count) {
  set.of<AdamW>().update(buffers,
                         {.gradient_scale = 0.5F,
                          .decay = 0.9999F,
                          .beta1 = 0.9F,
                          .one_minus_beta1 = 0.1F,
                          .beta2 = 0.999F,
                          .one_minus_beta2 = 0.001F,
                          .inverse_root_correction = 1.5F,
                          .eps = 1e-8F,
                          .step_size = 1e-4F},
                         count);
}
void run_sgd(const KernelSet& set, const Buffers& buffers, int64_t count) {
  set.of<SGD>().update(buffers, {.gradient_scale = 0.5F, .momentum = 0.9F, .lr = 1e-4F}, count);
}
void run_lion(const KernelSet& set, const Buffers& buffers, int64_t count) {
  set.of<Lion>().update(buffers,
                        {.gradient_scale = 0.5F,
                         .beta1 = 0.9F,
                         .one_minus_beta1 = 0.1F,
                         .beta2 = 0.99F,
                         .one_minus_beta2 = 0.01F,
                         .lr = 1e-4F},
                        count);
}

void measure(benchmark::State& state, const Work& work, const KernelSet& set, int threads) {
  Memory& m = memory();
  Buffers buffers{.master = m.master.data(), .gradient = m.gradient.data(), .parameter = m.parameter.data()};
  buffers.parameter_type = Element::bf16;
  if (work.split) {
    buffers.master = nullptr;
    buffers.remainder = m.remainder.data();
  }
  if (work.states > 0) buffers.first = m.first.data();
  if (work.states > 1) buffers.second = m.second.data();
  const Stream stream{buffers.master, buffers.remainder, m.gradient.data(),
                      buffers.first,  buffers.second,    m.parameter.data()};
  std::vector<double> kernel_times, stream_times;
  for (auto _ : state) {
    kernel_times.push_back(split(threads, [&](int64_t begin, int64_t end) {
      work.run(set, kernels::advance(buffers, begin), end - begin);
    }));
    state.SetIterationTime(kernel_times.back());
    stream_times.push_back(
        split(threads, [&](int64_t begin, int64_t end) { run_stream(stream, begin, end); }));
  }
  const double bytes = kCount * (4.0 + 8.0 * work.states + (work.split ? 8.0 : 10.0));
  state.counters["GB/s"] = bytes / median(kernel_times) / 1e9;
  state.counters["stream"] = bytes / median(stream_times) / 1e9;
  state.counters["of_stream"] = median(stream_times) / median(kernel_times);
}

void measure_norm(benchmark::State& state, const KernelSet& set) {
  const Memory& m = memory();
  constexpr int64_t kBlock = 1 << 15;
  std::vector<double> sums(kCount / kBlock);
  for (auto _ : state) {
    set.sums_of_squares(m.gradient.data(), Element::f32, kCount, kBlock, sums.data());
    benchmark::DoNotOptimize(sums.data());
  }
  state.SetBytesProcessed(state.iterations() * kCount * 4);
}

void register_all() {
  static const Work kWorks[] = {{"AdamW_split", 2, true, run_adamw},
                                {"AdamW", 2, false, run_adamw},
                                {"SGD_momentum", 1, false, run_sgd},
                                {"SGD", 0, false, run_sgd},
                                {"Lion", 1, false, run_lion}};
  for (const Work& work : kWorks) {
    for (const KernelSet* set : kernels::available_kernels()) {
      for (const int threads : {1, 2}) {
        const std::string name =
            work.name + "/" + std::string(set->name) + "/threads:" + std::to_string(threads);
        benchmark::RegisterBenchmark(
            name.c_str(),
            [&work, set, threads](benchmark::State& state) { measure(state, work, *set, threads); })
            ->UseManualTime()
            ->Unit(benchmark::kMillisecond)
            ->Iterations(9);
      }
    }
  }
  for (const KernelSet* set : kernels::available_kernels()) {
    benchmark::RegisterBenchmark(("sums_of_squares/" + std::string(set->name)).c_str(),
                                 [set](benchmark::State& state) { measure_norm(state, *set); })
        ->Unit(benchmark::kMillisecond)
        ->Iterations(9);
  }
}

}  // namespace
}  // namespace zero::bench

int main(int argc, char** argv) {
  zero::bench::register_all();
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 1;
  benchmark::RunSpecifiedBenchmarks();
  return 0;
}
